"""Agents in sessions under a flood, against the same agents without: the scenario file is the test (B14)."""

from __future__ import annotations

from pathlib import Path

from headworks.sim.compare import run
from headworks.sim.scenario import load


def test_B14_under_a_flood_of_five_times_the_engine_sessions_spare_four_interruptions_of_five() -> None:
    scenario = load(Path(__file__).parents[2] / "scenarios" / "sessions.yaml")
    found = run(scenario, scenario.seed)
    assert found["failures"] == []
    agents = found["disciplines"]["predictive_ttft"]["agents"]
    assert agents["interrupted"] == 0
    assert agents["finished"] == agents["begun"]
