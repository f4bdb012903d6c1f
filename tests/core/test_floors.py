"""Memory that is guaranteed to a model on every replica (B10)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headworks.core import events
from headworks.core.effects import Reply, Run
from tests.core.driver import Bench, capacity, policy

FLOORS = {"small": 4_096}


def bench_of(free: int, kind: str = "predictive_ttft", floors: dict[str, int] | None = None, **interactive: Any) -> Bench:
    settings = policy(
        interactive={"ttft_slo_s": None, "wait_s_max": 2.0, **interactive},
        pool={"floors": FLOORS if floors is None else floors, "active_requests_max": 100},
        kind=kind,
    )
    return Bench(settings, capacities=(capacity(kv_tokens=free),))


def test_B10_golden_28000_free_refuses_24576_beside_a_floor_of_4096_and_30000_free_admits_it() -> None:
    for running, outcome in ((12_000, "model_reservation"), (10_000, "sent")):
        bench = bench_of(40_000)
        bench.arrive(running, model="big")
        bench.take(Run)
        bench.arrive(24_576, model="big")
        bench.advance(2.01)
        refused = [reply.decision.reason for reply in bench.take(Reply)]
        assert (refused or ["sent"]) == [outcome]
        assert len(bench.take(Run)) == (outcome == "sent")


def test_B10_what_others_use_of_their_floor_already_is_kept_no_more() -> None:
    bench = bench_of(30_000)
    bench.arrive(4_096, model="small")
    bench.arrive(25_904, model="big")
    assert len(bench.take(Run)) == 2, "30,000 = 4,096 + 25,904: all of the floor is used by its model"


def test_B10_up_to_its_floor_a_model_always_finds_room() -> None:
    bench = bench_of(30_000)
    bench.arrive(25_904, model="big")
    bench.arrive(1, model="big")
    assert len(bench.take(Run)) == 1, "and not one token of it is lent"
    bench.arrive(4_096, model="small")
    (run,) = bench.take(Run)
    assert bench.gate.snapshot(bench.now_s)["pools"]["p"]["queued_requests"] == 1, "past its own tenant's that waits"
    bench.complete(run.execution.id)
    assert bench.take(Run) == []


def test_B10_whoever_waits_for_room_that_is_kept_is_told_whose_it_is() -> None:
    bench = bench_of(30_000)
    bench.arrive(20_000, model="big")
    bench.arrive(6_000, model="big")
    assert len(bench.take(Run)) == 1
    bench.advance(2.01)
    refusal = bench.refusal()
    assert refusal.reason == "model_reservation"
    (found,) = [one for one in refusal.verdicts if one.scope == "model:big"]
    assert (found.value, found.limit, found.unit, found.passed) == (6_000, 5_904, "tokens", False)


def test_B10_more_than_the_others_floors_leave_is_never_to_be_had() -> None:
    bench = bench_of(28_000)
    bench.arrive(24_576, model="big")
    refusal = bench.refusal()
    assert refusal.reason == "request_exceeds_capacity"
    (found,) = [one for one in refusal.verdicts if one.reason == "request_exceeds_capacity"]
    assert (found.value, found.limit) == (24_576, 23_904)


@pytest.mark.parametrize("kind", ["wfq", "predictive_ttft"])
def test_B10_a_model_with_a_floor_passes_one_that_waits_for_its_room(kind: str) -> None:
    bench = bench_of(30_000, kind)
    bench.arrive(20_000, model="big", tenant="batchco")
    bench.arrive(6_000, model="big", tenant="batchco")
    bench.take(Run)
    for _ in range(4):
        bench.arrive(1_000, model="small")
        bench.advance(0.03)
    assert len(bench.take(Run)) == 4


def test_B10_a_reload_that_brings_a_floor_counts_what_runs() -> None:
    bench = bench_of(30_000, floors={})
    bench.arrive(3_000, model="small")
    bench.arrive(20_000, model="big")
    settings = bench.gate._desk.policy
    pools = {"p": replace(settings.pools["p"], floors=FLOORS)}
    bench.feed(events.PolicyChanged(replace(settings, version="v2", number=2, pools=pools)))
    bench.take(Run)
    bench.arrive(5_904, model="big")  # 7,000 are free, and 1,096 of them are kept
    assert len(bench.take(Run)) == 1
    bench.arrive(1, model="big")
    assert bench.take(Run) == []
