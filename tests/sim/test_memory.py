"""The two currencies in simulation: an avalanche of prompts (B7), and memory promised beyond what there is (D4)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from headworks.sim.compare import run
from headworks.sim.scenario import load

SCENARIOS = Path(__file__).parents[2] / "scenarios"


@cache
def found(name: str) -> dict[str, Any]:
    scenario = load(SCENARIOS / f"{name}.yaml")
    return run(scenario, scenario.seed)


@pytest.mark.parametrize("name", ["prefill_avalanche", "over_commit"])
def test_G3_every_expectation_of_the_scenario_holds(name: str) -> None:
    assert found(name)["failures"] == []


@pytest.mark.parametrize("name", ["prefill_avalanche", "over_commit"])
def test_I36_every_arrival_ends_in_exactly_one_way(name: str) -> None:
    for case in (found(name), *found(name)["cases"].values()):
        for one in case["disciplines"].values():
            assert (one["conservation"]["difference"], one["conservation"]["running"]) == (0, 0)


def test_B7_2000_prompts_of_10000_tokens_at_once_leave_the_chat_its_first_token() -> None:
    kept = found("prefill_avalanche")["disciplines"]["wfq"]
    without = found("prefill_avalanche")["cases"]["without_caps"]["disciplines"]["wfq"]
    assert kept["classes"]["documents"]["arrivals"] == 2_000
    assert kept["classes"]["interactive"]["ttft_p95_s"] <= 1.0
    assert kept["classes"]["interactive"]["goodput_ratio"] >= 0.95, "those that were refused count as missed"
    assert without["classes"]["interactive"]["goodput_ratio"] <= 0.9, "or this shows nothing"


def test_B7_the_engine_goes_on_reading_all_the_while() -> None:
    """The forty seconds in which documents wait are enough to read 140 of them and nothing else."""
    assert found("prefill_avalanche")["disciplines"]["wfq"]["classes"]["documents"]["useful"] >= 100


def test_B7_who_is_refused_for_it_is_told_so() -> None:
    reasons = found("prefill_avalanche")["disciplines"]["wfq"]["refused_by_reason"]
    assert reasons["prefill_saturated"] >= 10


def _useful_tokens(one: dict[str, Any]) -> int:
    return int(one["engine_tokens"]) - int(one["wasted_tokens"])


def per_1000(one: dict[str, Any]) -> float:
    return 1_000 * float(one["engine"]["preemptions"]) / float(one["admitted"])


def of(case: str = "") -> dict[str, Any]:
    found_all = found("over_commit")
    one: dict[str, Any] = (found_all["cases"][case] if case else found_all)["disciplines"]["predictive_ttft"]
    return one


def test_D4_auto_serves_more_than_the_memory_alone_and_is_hardly_ever_preempted() -> None:
    auto, never_more = of(), of("never_more")
    assert auto["goodput_per_s"] >= 1.1 * never_more["goodput_per_s"]
    assert _useful_tokens(auto) >= 1.1 * _useful_tokens(never_more), "and no fewer tokens for each"
    assert per_1000(auto) < 1.0


def test_D4_without_the_future_peak_the_engine_preempts() -> None:
    assert of("without_the_peak")["engine"]["preemptions"] >= 10 * max(1, of()["engine"]["preemptions"])
