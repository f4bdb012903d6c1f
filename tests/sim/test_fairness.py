"""D1 and D2 with real gates, a ledger at a distance and engines: shares, floors, mixed traffic; and controls that must fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from headworks.core.book import Book
from headworks.core.book_proof import Replica
from headworks.core.commands import Reserve
from headworks.core.fair import Mark, Turns
from headworks.core.policy import Policy
from headworks.sim.compare import plan, run, setup
from headworks.sim.fairness import Flow, fairness
from headworks.sim.ledger import BookLike
from headworks.sim.scenario import load
from headworks.sim.simulation import Simulation

SCENARIOS = Path(__file__).parents[2] / "scenarios"


@cache
def found(name: str) -> dict[str, Any]:
    """The results of a scenario, run once for all tests that look at them."""
    scenario = load(SCENARIOS / f"{name}.yaml")
    return run(scenario, scenario.seed)


class NobodyYields(Book):
    """The simpler idea: local queues and shared counters. Whoever asks first while there is room gets it."""

    def _whose_turn(self, command: Reserve, turns: Turns, replica: Replica) -> tuple[bool, Sequence[Mark]]:
        return False, ()


def shared_counters(policy: Policy) -> BookLike:
    return NobodyYields(round(policy.lease_s * 1000), round(policy.remember_s * 1000))


@pytest.mark.parametrize("name", ["fair_shares", "floors", "mixed", "nine_am", "bounded_queue"])
def test_every_expectation_of_a_scenario_holds(name: str) -> None:
    assert found(name)["failures"] == []


@pytest.mark.parametrize("name", ["fair_shares", "floors", "mixed", "nine_am", "bounded_queue"])
def test_I36_every_arrival_ends_in_exactly_one_way(name: str) -> None:
    for case in [found(name), *found(name)["cases"].values()]:
        for one in case["disciplines"].values():
            assert (one["conservation"]["difference"], one["conservation"]["running"]) == (0, 0)


@pytest.mark.parametrize("case", ["", "two_gateways", "eight_gateways"])
def test_D1_forty_small_against_four_large_stay_within_the_bound(case: str) -> None:
    shares = _case("fair_shares", case)["wfq"]["fairness"]
    assert shares["service_by_bound_min"] >= 8.0, "too little work to mean anything"
    assert shares["difference_by_bound_max"] <= 1.0
    (pair,) = shares["pairs"].values()
    assert pair["bound"] == pytest.approx(100 + 1_000 + 16 * 100 + 24, abs=10)


@pytest.mark.parametrize("case", ["", "two_gateways", "eight_gateways"])
def test_D1_negative_control_first_in_first_out_leaves_the_bound(case: str) -> None:
    assert _case("fair_shares", case)["fifo"]["fairness"]["difference_by_bound_max"] >= 2.0


def test_D1_negative_control_local_queues_with_shared_counters_leave_the_bound() -> None:
    scenario = load(SCENARIOS / "fair_shares.yaml")
    comparison = scenario.comparison("two_gateways")
    world = setup(comparison, "wfq", plan(comparison, scenario.seed), scenario.seed)
    simulation = Simulation(dataclasses.replace(world, make_book=shared_counters))
    simulation.run()
    assert fairness(simulation)["difference_by_bound_max"] > 1.0


def test_D2_K40_bulk_gets_its_floor_in_every_ten_seconds_while_interactive_work_floods() -> None:
    floor = found("floors")["disciplines"]["wfq"]["fairness"]["floors"]["bulk"]
    assert floor["windows"] >= 60
    assert floor["worst_by_floor"] >= 0.95


def test_D2_negative_control_strict_priority_fails_the_floor() -> None:
    floor = found("floors")["disciplines"]["class_priority"]["fairness"]["floors"]["bulk"]
    assert floor["worst_by_floor"] < 0.95


def test_G4_K41_in_the_simulator_chat_keeps_its_first_token_and_every_bulk_request_is_answered() -> None:
    classes = found("mixed")["disciplines"]["wfq"]["classes"]
    assert classes["interactive"]["ttft_p95_s"] <= 1.0
    assert (classes["bulk"]["arrivals"], classes["bulk"]["unanswered"]) == (50, 0)
    assert classes["bulk"]["answered_s_max"] <= 300.0


def test_G6_nine_am_breaks_nobodys_promise() -> None:
    """A first token in time is promised to 95 in 100."""
    classes = found("nine_am")["disciplines"]["wfq"]["classes"]
    assert classes["interactive"]["goodput_ratio"] >= 0.95
    assert classes["batch"]["goodput_ratio"] == 1.0


def test_B6_a_bounded_queue_beats_refusing_only_at_85_per_cent_load_with_bursts() -> None:
    queued = found("bounded_queue")["disciplines"]["wfq"]["goodput_per_s"]
    refused = found("bounded_queue")["cases"]["refuse_only"]["disciplines"]["wfq"]["goodput_per_s"]
    assert queued >= 1.15 * refused


def _case(name: str, case: str) -> dict[str, Any]:
    results = found(name)
    disciplines: dict[str, Any] = (results["cases"][case] if case else results)["disciplines"]
    return disciplines


# the measure itself


def test_the_measure_joins_stays_that_touch() -> None:
    flow = Flow("f", 1.0)
    flow.stays = [(3.0, 4.0), (0.0, 2.0), (1.0, 2.5)]
    assert flow.backlogged() == [(0.0, 2.5), (3.0, 4.0)]
