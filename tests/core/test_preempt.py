"""Running work that is stopped for a request that would be late (B12): when, which, how often, and what it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headworks.core import events
from headworks.core.effects import Abort, Reply, Run
from headworks.core.policy import PreemptionPolicy
from headworks.core.preempt import Preemption
from tests.core.driver import Bench, capacity
from tests.core.test_reserves import settings

EACH_S = 0.1
"""What a token takes on the bench's engine."""


def bench_of(
    running: int = 1,
    tokens: int = 10_000,
    output_tokens: int = 111,
    bulk_tokens: int = 6_000,
    often: bool = False,
    share: float = 10.0,
    **reserved: int,
) -> Bench:
    """A pool that bulk work has filled; each of it wrote for a second, and has ten seconds to go."""
    pool = {"active_requests_max": 100, "preemption": PreemptionPolicy(running_ratio_max=1.0 if often else 0.02)}
    made = settings(pool=pool, **{"reserved_tokens": 0, "reserved_requests": 0, **reserved})
    made.classes["interactive"] = replace(made.classes["interactive"], share=share)
    bench = Bench(made, capacities=(capacity(kv_tokens=tokens, running_max=100),))
    bench.sample(running=1, iterations=(0,))
    for _ in range(running):
        bench.arrive(bulk_tokens, output_tokens, service_class="bulk", tenant="batchco", finish_by_s=bench.now_s + 600.0)
    for run in bench.take(Run):
        bench.first_byte(run.execution.id)
    bench.advance(1.0)
    bench.sample(running=1, iterations=(10,))
    return bench


def urgent(bench: Bench, left_s: float, tokens: int = 5_000, **changed: object) -> str:
    """A request that has so long to start, and finds no room."""
    return bench.arrive(tokens, start_by_s=bench.now_s + left_s, **changed)


def preempted(bench: Bench) -> list[Abort]:
    found = bench.take(Abort)
    assert all(abort.reason == "preempted" for abort in found)
    return found


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interactive work may wait longer than any deadline here."""
    patient = replace(settings().classes["interactive"], wait_s_max=100.0)
    monkeypatch.setattr("tests.core.test_reserves.INTERACTIVE", patient)


@pytest.mark.parametrize(("left_s", "stops"), [(4.9, 1), (5.1, 0)])
def test_B12_golden_of_10_s_remaining_4_9_s_preempts_and_5_1_s_does_not(left_s: float, stops: int) -> None:
    bench = bench_of()
    urgent(bench, left_s)
    assert len(preempted(bench)) == stops


def test_B12_it_is_looked_at_again_when_the_deadline_has_come_nearer() -> None:
    """Both come nearer at the same pace: 5.1 s against half of 10 s is 4.8 s against half of 9.7 s 0.3 s later."""
    bench = bench_of()
    urgent(bench, 5.1)
    bench.advance(0.1)
    assert preempted(bench) == []
    bench.advance(0.3)
    assert len(preempted(bench)) == 1


def test_B12_nothing_is_free_before_there_is_evidence() -> None:
    bench = bench_of()
    name = urgent(bench, 1.0)
    (abort,) = preempted(bench)
    bench.advance(0.2)
    assert bench.take(Run) == [] and bench.held() == 6_000
    assert bench.book.find(abort.execution).state == "CANCELLING"  # type: ignore[union-attr]
    bench.feed(events.Evidence(abort.execution, "E3a"))
    (run,) = bench.take(Run)
    assert (run.id, bench.held()) == (name, 5_000)
    (row,) = [one for one in run.decision.verdicts if one.scope == "request:r1"]
    assert (row.check, row.value, row.limit, row.passed) == ("time", 1.0, 5.0, True)


def test_B12_the_victim_is_told_with_a_ticket_and_counted_as_such() -> None:
    bench = bench_of()
    urgent(bench, 1.0)
    (abort,) = preempted(bench)
    assert abort.retry_after_s is not None and abort.retry_after_s > 0.0
    bench.feed(events.Evidence(abort.execution, "E3a"))
    (outcome,) = bench.outcomes()
    assert (outcome.id, outcome.outcome, outcome.reason, outcome.evidence) == ("r1", "failed", "preempted", "E3a")
    assert bench.gate.snapshot(bench.now_s)["pools"]["p"]["preempted_total"] == 1


def test_B12_a_request_preempts_once_and_one() -> None:
    bench = bench_of(running=3, tokens=18_000, often=True)
    urgent(bench, 1.0)
    assert len(preempted(bench)) == 1
    bench.advance(0.9)
    assert preempted(bench) == []


def test_B12_one_whose_end_does_not_make_room_is_not_stopped() -> None:
    bench = bench_of(running=3, bulk_tokens=3_300)
    urgent(bench, 1.0, 4_000)
    assert preempted(bench) == []


def test_B12_who_comes_back_in_its_slot_is_not_stopped_again() -> None:
    bench = bench_of()
    life = next(iter(bench.gate._desk.runs.values()))
    life.retry_kind = "ticket_kept"
    urgent(bench, 1.0)
    assert preempted(bench) == []


def test_B12_only_preemptible_classes_and_only_for_those_that_preempt() -> None:
    bench = bench_of()
    bench.arrive(5_000, service_class="bulk", start_by_s=bench.now_s + 1.0)
    assert preempted(bench) == []
    other = Bench(settings(reserved_tokens=0, reserved_requests=0), capacities=(capacity(kv_tokens=10_000, running_max=8),))
    other.sample(running=1, iterations=(0,))
    other.arrive(6_000, 1_000)
    other.first_byte(other.execution())
    other.advance(1.0)
    other.sample(running=1, iterations=(10,))
    urgent(other, 1.0)
    assert preempted(other) == []


def test_B12_where_nobody_knows_what_a_token_takes_nothing_is_stopped() -> None:
    bench = Bench(settings(reserved_tokens=0, reserved_requests=0), capacities=(capacity(kv_tokens=10_000, running_max=8),))
    bench.arrive(6_000, 1_000, service_class="bulk")
    urgent(bench, 0.1)
    assert preempted(bench) == []


def test_B12_an_engine_that_cannot_be_stopped_is_left_alone() -> None:
    made = settings(reserved_tokens=0, reserved_requests=0)
    bench = Bench(made, capacities=(capacity(kv_tokens=10_000, running_max=8, evidence=("E1",)),))
    bench.sample(running=1, iterations=(0,))
    bench.arrive(6_000, 1_000, service_class="bulk")
    bench.first_byte(bench.execution())
    bench.advance(1.0)
    bench.sample(running=1, iterations=(10,))
    urgent(bench, 0.1)
    assert preempted(bench) == []


def test_B12_what_is_stopped_is_not_stopped_for_its_like() -> None:
    """More bulk work waits, whose turn it would be by far: what comes free is the preemptor's."""
    bench = bench_of(share=0.001)
    bench.arrive(10)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.complete(execution, 9, 1)
    for _ in range(3):
        bench.arrive(6_000, 111, service_class="bulk", tenant="batchco")
    name = urgent(bench, 1.0)
    bench.advance(0.03)
    (abort,) = preempted(bench)
    bench.feed(events.Evidence(abort.execution, "E3a"))
    bench.advance(0.1)
    assert [run.id for run in bench.take(Run)] == [name]


def test_B12_the_one_that_loses_least_is_stopped() -> None:
    bench = bench_of(running=1, tokens=12_000)
    first = next(iter(bench.gate._desk.runs))
    bench.feed(events.Progressed(first, 11))
    bench.arrive(6_000, 111, service_class="bulk", tenant="batchco")
    (run,) = bench.take(Run)
    urgent(bench, 1.0)
    assert [abort.execution for abort in preempted(bench)] == [run.execution.id], "it has not begun"


def test_B12_two_percent_of_what_runs_may_be_stopped_in_a_minute() -> None:
    """Of 100 two; a third a minute after the first."""
    policy, preemption = PreemptionPolicy(), Preemption()
    stopped = []
    for now_s in (0.0, 1.0, 2.0, 59.9, 60.0, 60.5, 61.0):
        if preemption.allows(100, policy, now_s):
            preemption.stopped(1, True, now_s)
            stopped.append(now_s)
    assert stopped == [0.0, 1.0, 60.0, 61.0]


def test_B12_where_two_percent_are_less_than_one_it_is_one_in_the_time_that_takes() -> None:
    """Of 10 one in five minutes; none at all where nothing may be stopped."""
    preemption = Preemption()
    assert preemption.allows(10, PreemptionPolicy(), 0.0)
    preemption.stopped(1, True, 0.0)
    assert [preemption.allows(10, PreemptionPolicy(), now_s) for now_s in (60.0, 299.0, 300.0)] == [False, False, True]
    assert not preemption.allows(10, PreemptionPolicy(running_ratio_max=0.0), 1_000.0)


def test_B12_the_limit_holds_for_the_pool() -> None:
    bench = bench_of(running=3, tokens=18_000)
    urgent(bench, 1.0)
    urgent(bench, 1.0, tenant="batchco")
    bench.advance(0.5)
    assert len(preempted(bench)) == 1, "2 % of three are one in 17 minutes"


def test_B11_what_is_lent_is_taken_back_whatever_the_limit_per_minute_and_as_much_as_it_takes() -> None:
    bench = bench_of(running=5, bulk_tokens=2_000, reserved_tokens=4_000, reserved_requests=2)
    name = urgent(bench, 1.0, 4_000)
    aborts = preempted(bench)
    assert len(aborts) == 2
    for abort in aborts:
        assert bench.take(Run) == []
        bench.feed(events.Evidence(abort.execution, "E3a"))
    bench.advance(0.1)
    assert [run.id for run in bench.take(Run)] == [name]
    assert bench.held("reserved:p:acme") == 4_000


def test_B12_a_client_that_left_before_is_told_nothing() -> None:
    bench = bench_of()
    urgent(bench, 1.0)
    (abort,) = preempted(bench)
    bench.feed(events.ClientGone("r1"))
    bench.feed(events.Evidence(abort.execution, "E3a"))
    assert bench.take(Reply) == []
