"""Forecasts against engines in simulation: do their bounds cover what they say (C3)?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from headworks.sim.compare import plan, setup
from headworks.sim.scenario import Comparison
from headworks.sim.simulation import Simulation

WARM, SPAN = 200, 500
PROMPTS = {"kind": "lognormal", "tokens": 600, "sigma": 0.9, "low": 16, "high": 6_000}
ANSWERS = {"kind": "lognormal", "tokens": 40, "sigma": 0.7, "low": 2, "high": 200}


class Seen(NamedTuple):
    """One forecast and what became of it."""

    at_s: float
    took_s: float
    bound_s: float
    fitted_s: float


class Run(NamedTuple):
    first: list[Seen]
    whole: list[Seen]
    late_ratio: float


def run(preset: str, per_s: float, seconds: float, seed: int, **changed: Any) -> Run:
    """One engine of this preset under Poisson arrivals, nobody telling the gate anything about it."""
    comparison = Comparison.model_validate(
        {
            "duration_s": seconds,
            "engines": {"preset": preset, "distance": {"connect_s": 0.0005, "latency_s": 0.0005, "scrape_s": 0.005}},
            "policy": {"pool": {"growth": True}},
            "disciplines": {"wfq": {"kind": "wfq"}},
            "traffic": [{"rate_per_s": per_s, "arrivals": "poisson", "prompt": PROMPTS, "output": ANSWERS}],
            "clients": {"patience_s": 5.0},
            **changed,
        }
    )
    simulation = Simulation(setup(comparison, "wfq", plan(comparison, seed), seed))
    simulation.run()
    first, whole, late, admitted = [], [], 0, 0
    for arrival in simulation.arrivals.values():
        decision, outcome = arrival.decision, arrival.outcome
        if decision is None or outcome is None or decision.outcome == "refuse":
            continue
        forecast, seen_s = decision.forecast, outcome.first_byte_s or outcome.ended_s
        took_s = seen_s - outcome.arrived_s
        admitted, late = admitted + 1, late + (outcome.first_byte_s is not None and took_s > 1.0)
        known = outcome.first_byte_s is not None or (forecast.ttft_s is not None and took_s > forecast.ttft_s)
        if forecast.ttft_s is not None and known:  # one that ended before its bound without a first token says nothing
            first.append(Seen(seen_s, took_s, forecast.ttft_s, forecast.ttft_s / forecast.buffer_ratio))
        if forecast.total_s is not None and outcome.outcome == "completed":
            whole.append(Seen(outcome.ended_s, outcome.ended_s - outcome.arrived_s, forecast.total_s, 0.0))
    return Run(sorted(first), sorted(whole), late / admitted)


def covered(missed: list[bool]) -> tuple[float, float]:
    """The least and the largest coverage over any 500 in a row, after 200."""
    counted = missed[WARM:]
    assert len(counted) > SPAN, "too few to say anything"
    shares = [1.0 - sum(counted[begin : begin + SPAN]) / SPAN for begin in range(len(counted) - SPAN + 1)]
    return min(shares), max(shares)


WORLDS = [
    ("a100_8b", 14.0, 120.0, 1),  # about what it can do
    pytest.param(
        *("a100_8b", 60.0, 100.0, 2),  # four times that
        marks=pytest.mark.xfail(strict=True, reason="0.852 to 0.904 on 2026-11-30: misses come in bursts (decision 28)"),
    ),
    ("h100_8b", 30.0, 50.0, 8),
    ("vllm_cpu_tiny", 8.0, 120.0, 4),
    ("vllm_cpu_tiny", 20.0, 100.0, 5),
]


def coverages(seen: list[Seen], missed: Callable[[Seen], bool]) -> tuple[float, float]:
    return covered([missed(one) for one in seen])


def past_bound(one: Seen) -> bool:
    return one.took_s > one.bound_s


def past_fixed_buffer(one: Seen) -> bool:
    return one.took_s > 1.3 * one.fitted_s


@pytest.mark.parametrize(("preset", "per_s", "seconds", "seed"), WORLDS)
def test_C3_first_tokens_keep_their_bound_88_to_92_of_a_hundred(preset: str, per_s: float, seconds: float, seed: int) -> None:
    found = run(preset, per_s, seconds, seed)
    least, most = coverages(found.first, past_bound)
    print(f"{preset} {per_s}/s seed {seed}: first {least:.3f} to {most:.3f}, whole {coverages(found.whole, past_bound)}")
    assert 0.88 <= least <= most <= 0.92
    least, most = coverages(found.whole, past_bound)
    assert 0.75 <= least <= most <= 0.95, "heard of tens of seconds late, they are off while an engine fills up (decision 17)"
    least, most = coverages(found.first, past_fixed_buffer)
    assert not 0.88 <= least <= most <= 0.92, "the control: a fixed buffer of 1.3 does not keep it"
    assert found.late_ratio <= 0.03


@pytest.mark.xfail(strict=True, reason="0.860 to 0.914 on 2026-11-30: misses come in bursts (decision 28)")
def test_C3_an_engine_at_half_speed_for_a_minute_is_followed() -> None:
    slow = {"kind": "engine_slow", "target": "main/0", "at_s": 60.0, "for_s": 60.0, "ratio": 2.0}
    found = run("a100_8b", 14.0, 180.0, 6, faults=[slow])
    least, most = coverages(found.first, past_bound)
    print(f"half speed: {least:.3f} to {most:.3f}, late {found.late_ratio:.3%}")
    assert 0.87 <= least <= most <= 0.93


def test_C3_an_engine_that_restarts_is_followed() -> None:
    restart = {"kind": "engine_restart", "target": "main/0", "at_s": 60.0, "for_s": 2.0}
    found = run("a100_8b", 14.0, 120.0, 7, faults=[restart])
    least, most = coverages(found.first, past_bound)
    print(f"restart: {least:.3f} to {most:.3f}, late {found.late_ratio:.3%}")
    assert 0.87 <= least <= most <= 0.93


@pytest.mark.xfail(strict=True, reason="0.842 to 0.904 on 2026-11-30: misses come in bursts (decision 28)")
def test_C3_a_quick_engine_at_twice_its_load_in_its_first_half_minute() -> None:
    least, most = coverages(run("h100_8b", 60.0, 30.0, 3).first, past_bound)
    print(f"h100 at twice its load: {least:.3f} to {most:.3f}")
    assert 0.88 <= least <= most <= 0.92
