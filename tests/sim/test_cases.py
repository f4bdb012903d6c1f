"""Cases from the field that only a whole world shows: overload, work for those who have left, memory (K01, K06, K42)."""

from __future__ import annotations

from pathlib import Path

from headworks.sim.compare import compared, plan, setup
from headworks.sim.report import results
from headworks.sim.scenario import Comparison, load
from headworks.sim.simulation import Simulation

TEN_A_SECOND = """
what: "An engine that serves ten a second"
duration_s: 10
engines: {kind: fixed_rate, settings: {rate_per_s: 10, servers: 1, prefill_ratio: 0.15}}
policy:
  classes: {interactive: {ttft_slo_s: null, wait_s_max: 0.5, queue_requests_max: 40}}
  pool: {active_requests_max: 1}
disciplines: {fifo: {kind: fifo}}
traffic: [{rate_per_s: RATE, arrivals: poisson, output_tokens_max: 64, exact_prompt: true}]
clients: {patience_s: 2.0, leave_ratio: LEAVE, retries_max: 2}
"""
SMALL_MEMORY = """
what: "Memory for twelve answers, and three times as many that want to run"
duration_s: 10
engines: {kind: continuous_batching, preset: a100_8b, settings: {kv_blocks: 401}}
policy:
  classes: {interactive: {ttft_slo_s: null, wait_s_max: 1}}
  pool: {active_requests_max: 64}
disciplines: {fifo: {kind: fifo}}
traffic:
  - rate_per_s: 15
    arrivals: poisson
    prompt: {tokens: 256}
    output: {kind: uniform, low: 64, high: 240}
    output_tokens_max: 240
    exact_prompt: true
"""


def comparison(tmp_path: Path, text: str, **values: float) -> Comparison:
    for name, value in values.items():
        text = text.replace(name, f"{value:g}")
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    return load(path).comparison()


def test_K01_at_ten_times_what_it_serves_queue_and_wait_stay_bounded_and_everybody_is_answered(tmp_path: Path) -> None:
    world = comparison(tmp_path, TEN_A_SECOND, RATE=100, LEAVE=0)
    simulation = Simulation(setup(world, "fifo", plan(world, 1), 1))
    simulation.run()
    attempts = [arrival.attempt for arrival in simulation.arrivals.values()]
    assert len(attempts) > 1_000
    assert all(one.end in ("completed", "refused") for one in attempts)
    waited_s = [one.ended_s - one.arrived_s for one in attempts if one.end == "refused" and one.ended_s is not None]
    assert len(waited_s) > 900
    assert max(waited_s) <= 0.5 + 0.02, "the wait of its class, and the way there and back"
    assert results(simulation)["queue_max"] == 40


def test_K06_at_twice_what_it_serves_no_place_is_lost_to_those_who_have_left(tmp_path: Path) -> None:
    """The peak is what the engine can do: ten a second."""
    found = compared(comparison(tmp_path, TEN_A_SECOND, RATE=20, LEAVE=0.3), 1)["fifo"]
    assert found["conservation"]["cancelled"] > 20
    assert found["goodput_per_s"] >= 9.0


def test_K42_memory_that_is_reserved_before_it_is_used_makes_the_engine_preempt_nobody(tmp_path: Path) -> None:
    found = compared(comparison(tmp_path, SMALL_MEMORY), 1)["fifo"]
    assert found["engine"]["preemptions"] == 0
    assert found["engine"]["kv_used_ratio_max"] >= 0.65, "there was something to keep within bounds"
    assert found["refused"] > 0
