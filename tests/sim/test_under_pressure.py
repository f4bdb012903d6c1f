"""Scenarios of what is done instead of a refusal, and of replicas that fail (E5, D4, B16, G3)."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headworks.sim.campaign import run_world
from headworks.sim.compare import plan, run, setup
from headworks.sim.scenario import load
from headworks.sim.simulation import Simulation

SCENARIOS = Path(__file__).parents[2] / "scenarios"


@cache
def found(name: str) -> Any:
    scenario = load(SCENARIOS / f"{name}.yaml")
    return run(scenario, scenario.seed)


@pytest.mark.parametrize("name", ["breaker", "cascade", "ramp", "replicas", "rolling", "prefixes"])
def test_every_expectation_holds(name: str) -> None:
    assert found(name)["failures"] == []


def test_G3_the_cascade_serves_10_and_20_a_second_and_sheds_nothing() -> None:
    cascade = found("cascade")["disciplines"]["predictive_ttft"]
    assert (cascade["arrivals"], cascade["refused"]) == (1800, 0)
    served = {name: replica["executions"] for name, replica in cascade["replicas"].items()}
    assert served["main/0"] == pytest.approx(600, abs=15)
    assert served["small/0"] == pytest.approx(1200, abs=15)
    assert found("cascade")["cases"]["refusing_alone"]["disciplines"]["predictive_ttft"]["goodput_per_s"] == 10


@pytest.mark.parametrize("case", ["killed", "hung", "slow", "restarted"])
def test_D4_whatever_befalls_one_of_four_engines_nothing_runs_twice_and_all_is_released_on_evidence(case: str) -> None:
    """Every invariant of the simulator after every event, its auditor among them, on 8 s of the scenario."""
    comparison = load(SCENARIOS / "replicas.yaml").comparison(case)
    faults = [{**fault, "at_s": 3, "for_s": min(fault["for_s"], 4)} for fault in comparison.faults]
    shorter = comparison.model_copy(update={"duration_s": 8.0, "faults": faults})
    assert run_world(setup(shorter, "wfq", plan(shorter, 1), 1)) == ""


def test_E5_on_a_ramp_a_class_changes_at_most_every_five_seconds_and_ends_where_it_began() -> None:
    comparison = load(SCENARIOS / "ramp.yaml").comparison()
    simulation = Simulation(setup(comparison, "predictive_ttft", plan(comparison, 1), 1))
    changes: list[tuple[float, int]] = [(0.0, 0)]

    def look() -> None:
        (runner,) = simulation.runners
        level = runner.gate.snapshot(simulation.world.now_s)["pools"]["main"]["steps_in_force"].get("interactive", 0)
        if level != changes[-1][1]:
            changes.append((simulation.world.now_s, level))
        if simulation.world.now_s < simulation.end_s:
            simulation.world.after(0.05, look)

    simulation.world.at(1.5, look)
    simulation.run()
    times_s, levels = zip(*changes, strict=True)
    assert min(after_s - before_s for before_s, after_s in pairwise(times_s[1:])) >= 5.0 - 0.05
    assert {abs(after - before) for before, after in pairwise(levels)} == {1}, "one step at a time"
    assert (max(levels), levels[-1]) == (2, 0)


def test_E5_a_cascade_keeps_every_invariant() -> None:
    comparison = load(SCENARIOS / "cascade.yaml").comparison()
    shorter = comparison.model_copy(update={"duration_s": 8.0})
    assert run_world(setup(shorter, "predictive_ttft", plan(shorter, 1), 1)) == ""
