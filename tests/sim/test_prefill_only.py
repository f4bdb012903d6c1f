"""Work that is only read, as embeddings are: in the engine models, and in a whole world beside chat (E1, B7, G1)."""

from __future__ import annotations

from typing import Any

from headworks.sim.batching import ContinuousBatching
from headworks.sim.compare import plan, setup
from headworks.sim.engine import ABORTED, Finished, FirstToken, Held, Output, Submitted, Tokens
from headworks.sim.fixed_rate import FixedRate
from headworks.sim.invariants import Watch
from headworks.sim.presets import FixedRateSettings, tiny
from headworks.sim.scenario import Scenario
from headworks.sim.simulation import Simulation

CAP = 6_000


def submit(engine: Any, execution: str, prompt: int, output: int, now_s: float = 0.0, samples: int = 1) -> None:
    assert engine.submit(execution, prompt, output, samples, (), now_s) == Submitted.ACCEPTED


def ended(outputs: list[Output]) -> dict[str, tuple[str, float]]:
    return {output.execution: (output.reason, output.at_s) for output in outputs if isinstance(output, Finished)}


def test_G1_what_is_only_read_leaves_with_its_last_chunk_and_writes_nothing() -> None:
    engine = ContinuousBatching(tiny())
    submit(engine, "e", 129, 0)
    assert engine.advance(0.025) == []
    assert engine.held(0.025) == {"e": Held(1, 144)}, "its prompt is held while it is read"
    assert engine.advance(1.0) == [FirstToken("e", 0.03), Finished("e", "stop", 0.03)]
    gauges = engine.sample(1.0)
    assert (gauges.prompt_tokens, gauges.output_tokens, gauges.running, gauges.kv_used_ratio) == (129, 0, 0, 0.0)


def test_G1_all_inputs_of_one_request_are_read_before_it_ends() -> None:
    engine = ContinuousBatching(tiny())
    submit(engine, "e", 64, 0, samples=3)
    outputs = engine.advance(1.0)
    assert ended(outputs) == {"e": ("stop", 0.03)}
    assert not [output for output in outputs if isinstance(output, Tokens)]
    assert engine.sample(1.0).prompt_tokens == 3 * 64


def test_G1_beside_what_is_written_it_takes_its_share_of_each_step_and_leaves() -> None:
    engine = ContinuousBatching(tiny())
    submit(engine, "chat", 16, 6)
    submit(engine, "e", 64, 0)
    assert ended(engine.advance(1.0)) == {"e": ("stop", 0.02), "chat": ("stop", 0.06)}


def test_G1_one_that_is_dropped_while_it_is_read_gives_everything_back() -> None:
    engine = ContinuousBatching(tiny())
    submit(engine, "e", 200, 0)
    engine.advance(0.015)
    engine.abort("e", 0.015)
    assert ended(engine.advance(1.0))["e"][0] == ABORTED
    assert (engine.held(1.0), engine.used_tokens()) == ({}, 0)


def test_G3_the_fixed_rate_engine_reads_it_for_a_whole_turn() -> None:
    engine = FixedRate(FixedRateSettings(rate_per_s=10.0, servers=1, prefill_ratio=0.25))
    submit(engine, "e", 100, 0)
    assert engine.advance(1.0) == [FirstToken("e", 0.025), Finished("e", "stop", 0.1)]
    assert engine.sample(1.0).output_tokens == 0


def world() -> Simulation:
    """Chat beside embeddings around the clock, whose prompts being read may be so many."""
    given = {
        "what": "w",
        "duration_s": 20,
        "engines": {"preset": "a100_8b"},
        "policy": {
            "classes": {
                "interactive": {"floor_ratio": 0.05, "ttft_slo_s": 2.0, "wait_s_max": 2.0, "gateway_s": 60},
                "bulk": {"ttft_slo_s": None, "wait_s_max": 30.0, "gateway_s": 120},
            },
            "tenants": {"chat": {"service_class": "interactive"}, "vectors": {"service_class": "bulk"}},
            "pool": {"active_requests_max": 64, "prefill_tokens_max": CAP},
        },
        "disciplines": {"wfq": {}},
        "traffic": [
            {"tenant": "chat", "arrivals": "poisson", "rate_per_s": 4, "prompt": {"tokens": 200}, "output_tokens_max": 60},
            {
                "tenant": "vectors",
                "service_class": "bulk",
                "arrivals": "poisson",
                "rate_per_s": 8,
                "prompt": {"tokens": 2_000},
                "output_tokens_max": 0,
                "exact_prompt": True,
            },
        ],
    }
    comparison = Scenario.model_validate(given).comparison()
    return Simulation(setup(comparison, "wfq", plan(comparison, 1), 1))


def test_B7_embeddings_are_charged_their_prompts_and_held_as_being_read_until_they_end() -> None:
    simulation = world()
    watch = Watch(simulation)
    most = 0

    def look() -> None:
        nonlocal most
        watch.look()
        most = max(most, simulation.ledger.book.held("replica:main/0", "prefill_tokens"))  # type: ignore[attr-defined]
        desk = simulation.runners[0].gate._desk  # type: ignore[union-attr]
        inside = [life for life in desk.runs.values() if life.request.output_tokens_max == 0 and life.state == "sent"]
        assert all(life.lane.is_paced for life in inside)
        assert desk.pools["main"].reading_tokens >= 2_000 * len(inside), "what is only read is being read to its end"

    simulation.world.watch = look
    simulation.run()
    simulation.world.run(simulation.world.now_s + 5.0)
    watch.at_the_end()
    vectors = [one for one in simulation.arrivals.values() if one.outcome is not None and one.outcome.key.tenant == "vectors"]
    assert len(vectors) > 100
    completed = [one.outcome for one in vectors if one.outcome is not None and one.outcome.outcome == "completed"]
    assert len(completed) == len(vectors)
    for outcome in completed:
        assert outcome.usage is not None
        assert (outcome.usage.prompt_tokens, outcome.usage.output_tokens, outcome.usage.end) == (2_000, 0, "stop")
        assert (outcome.work.tokens, outcome.work.output_tokens_max, outcome.growths) == (2_000, 0, 0)
    assert 2_000 <= most <= CAP, "some were being read at any time, and never more than may be"
    chat = [one for one in simulation.arrivals.values() if one.outcome is not None and one.outcome.key.tenant == "chat"]
    assert sum(one.outcome is not None and one.outcome.outcome == "completed" for one in chat) > 0.95 * len(chat)
