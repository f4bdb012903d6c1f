"""Forecasts against engines in simulation: do their bounds cover what they say (C3)?"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from headworks.sim.compare import plan, setup
from headworks.sim.scenario import Comparison
from headworks.sim.simulation import Simulation

WARM, SPAN = 200, 500
PROMPTS = {"kind": "lognormal", "tokens": 600, "sigma": 0.9, "low": 16, "high": 6_000}
ANSWERS = {"kind": "lognormal", "tokens": 150, "sigma": 0.7, "low": 4, "high": 1_200}
SHORT = {"kind": "lognormal", "tokens": 40, "sigma": 0.7, "low": 2, "high": 200}


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
            "traffic": [{"rate_per_s": per_s, "arrivals": "poisson", "prompt": PROMPTS, "output": changed.pop("output", SHORT)}],
            "clients": {"patience_s": 5.0},
            **changed,
        }
    )
    simulation = Simulation(setup(comparison, "wfq", plan(comparison, seed), seed))
    simulation.run()
    first, whole, late, admitted = [], [], 0, 0
    for arrival in simulation.arrivals.values():
        decision, outcome = arrival.decision, arrival.outcome
        if decision is None or outcome is None or outcome.first_byte_s is None:
            continue
        forecast, ttft_s = decision.forecast, outcome.first_byte_s - outcome.arrived_s
        admitted, late = admitted + 1, late + (ttft_s > 1.0)
        if forecast.ttft_s is not None:
            first.append(Seen(outcome.first_byte_s, ttft_s, forecast.ttft_s, forecast.ttft_s / forecast.buffer_ratio))
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
    ("a100_8b", 14.0, 120.0, 1),
    ("a100_8b", 60.0, 100.0, 2),
    ("h100_8b", 60.0, 30.0, 3),
    ("vllm_cpu_tiny", 8.0, 120.0, 4),
    ("vllm_cpu_tiny", 20.0, 100.0, 5),
]


@pytest.mark.parametrize(("preset", "per_s", "seconds", "seed"), WORLDS)
def test_C3_first_tokens_keep_their_bound_88_to_92_of_a_hundred(preset: str, per_s: float, seconds: float, seed: int) -> None:
    found = run(preset, per_s, seconds, seed)
    least, most = covered([one.took_s > one.bound_s for one in found.first])
    print("first", preset, per_s, least, most, found.late_ratio)
    wleast, wmost = covered([one.took_s > one.bound_s for one in found.whole])
    print("whole", wleast, wmost)
    fleast, fmost = covered([one.took_s > 1.3 * one.fitted_s for one in found.first])
    print("fixed", fleast, fmost)
