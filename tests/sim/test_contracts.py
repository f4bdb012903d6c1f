"""Scenarios of what a tenant was promised, and of what that costs the others (B11, B12, B13)."""

from __future__ import annotations

from pathlib import Path

import pytest

from headworks.sim.campaign import run_world
from headworks.sim.compare import plan, run, setup
from headworks.sim.scenario import load

SCENARIOS = Path(__file__).parents[2] / "scenarios"


@pytest.mark.parametrize("name", ["reserves", "preemption", "demotion"])
def test_every_expectation_holds(name: str) -> None:
    scenario = load(SCENARIOS / f"{name}.yaml")
    assert run(scenario, scenario.seed)["failures"] == []


def test_B11_B12_reserves_that_are_lent_and_taken_back_keep_every_invariant() -> None:
    """After every event, the auditor of what engines hold among them; three gateways, one ledger that answers late."""
    comparison = load(SCENARIOS / "reserves.yaml").comparison()
    line = {"latency_s": 0.002, "jitter_ratio": 0.5}
    shorter = comparison.model_copy(update={"duration_s": 4.0, "gateways": 3, "ledger": line})
    assert run_world(setup(shorter, "wfq", plan(shorter, 1), 1)) == ""
