"""Agents in sessions under a flood, against the same agents without: the scenario file is the test (B14)."""

from __future__ import annotations

from pathlib import Path

from headworks.sim.compare import run
from headworks.sim.scenario import load


def test_B14_under_a_flood_of_five_times_the_engine_sessions_spare_four_interruptions_of_five() -> None:
    scenario = load(Path(__file__).parents[2] / "scenarios" / "sessions.yaml")
    found = run(scenario, scenario.seed)
    assert found["failures"] == []
    for discipline, of_it in found["disciplines"].items():
        inside, without = of_it["agents"], found["cases"]["without"]["disciplines"][discipline]["agents"]
        assert inside["interrupted_ratio"] <= 0.2 * without["interrupted_ratio"]
        assert inside["finished"] == inside["begun"], "and in fact none of them was"
        assert inside["calls_answered"] == 12 * inside["begun"]
