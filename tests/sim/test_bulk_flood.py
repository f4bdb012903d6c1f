"""Chat beside a flood of bulk, in simulation: what the chat's first tokens cost, and what they are worth (D2, B7, B8)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from headworks.sim.compare import run
from headworks.sim.scenario import load


@cache
def found() -> dict[str, Any]:
    scenario = load(Path(__file__).parents[2] / "scenarios" / "bulk_flood.yaml")
    return run(scenario, scenario.seed)


def test_G3_every_expectation_of_the_flood_holds() -> None:
    assert found()["failures"] == []


def test_B8_under_a_flood_of_bulk_first_tokens_of_chat_are_at_most_half_as_late_again_and_hardly_any_work_is_lost() -> None:
    flooded, alone = found()["disciplines"]["wfq"], found()["cases"]["alone"]["disciplines"]["wfq"]
    thrown = found()["disciplines"]["no_control"]
    first_s, alone_s = (one["classes"]["interactive"]["ttft_p99_s"] for one in (flooded, alone))
    assert first_s <= min(1.0, 1.5 * alone_s)
    assert flooded["engine_tokens"] >= 0.97 * thrown["engine_tokens"]
    assert flooded["classes"]["bulk"]["useful"] == flooded["classes"]["bulk"]["arrivals"], "and bulk is served, only later"
    assert thrown["classes"]["interactive"]["goodput_ratio"] <= 0.6, "or this shows nothing"
