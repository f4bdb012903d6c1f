"""The breaker of a replica, apart from admission (B16), and our own second tries upstream (B15)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headworks.core import events
from headworks.core.breaker import Breaker
from headworks.core.effects import Alarm, Reply, Run
from headworks.core.policy import BreakerPolicy
from headworks.core.types import Usage
from tests.core.driver import Bench, capacity, drained_at, policy

LONG = {"ttft_slo_s": 5.0, "wait_s_max": 2.0, "first_byte_s": 3.0}


def counted(well: int, failed: int, breaker: Breaker | None = None, now_s: float = 100.0) -> Breaker:
    """So many good ends, then so many failures, all at this moment."""
    made = breaker or Breaker(BreakerPolicy())
    for _ in range(well):
        made.ended_well("x", now_s)
    for _ in range(failed):
        made.failed("x", now_s)
    return made


def failing(bench: Bench, failures: int = 20) -> None:
    """Executions that break off one after the other; what they held is proved stopped."""
    for _ in range(failures):
        bench.arrive(10)
        (run,) = bench.take(Run)
        bench.first_byte(run.execution.id)
        bench.feed(events.EngineLost(run.execution.id, "reset"))
        bench.feed(events.Evidence(run.execution.id, "operator"))
        bench.effects = [effect for effect in bench.effects if isinstance(effect, Alarm)]


def state(bench: Bench, replica: str = "p/0") -> tuple[str, str]:
    shown = bench.gate.snapshot(bench.now_s)["pools"]["p"]["replicas"][replica]
    return shown["state"], shown["breaker"]


# the count


@pytest.mark.parametrize(
    ("well", "failed", "opens"),
    [(83, 17, True), (85, 15, True), (86, 14, False), (0, 3, False), (0, 19, False), (0, 20, True), (16, 3, False)],
)
def test_B16_golden_17_of_100_opens_and_14_of_100_and_3_of_3_do_not(well: int, failed: int, opens: bool) -> None:
    assert counted(well, failed).is_closed is not opens


def test_B16_what_is_older_than_ten_seconds_counts_no_more() -> None:
    breaker = counted(0, 19, now_s=100.0)
    counted(0, 1, breaker, now_s=111.1)
    assert breaker.is_closed
    counted(0, 19, breaker, now_s=112.0)
    assert not breaker.is_closed


def test_B16_it_opens_for_30_s_doubling_to_60_with_one_probe_at_a_time() -> None:
    breaker = counted(0, 20, now_s=100.0)
    assert [breaker.lets_pass(at_s) for at_s in (100.0, 129.9, 130.0)] == [False, False, True]
    breaker.sent("probe", 130.0)
    assert not breaker.lets_pass(130.0), "one probe at a time"
    assert breaker.failed("probe", 131.0) == "the probe failed: left alone for 60 s"
    assert [breaker.lets_pass(at_s) for at_s in (190.9, 191.0)] == [False, True]
    breaker.sent("another", 191.0)
    assert breaker.failed("another", 192.0) == "the probe failed: left alone for 60 s"
    breaker.sent("third", 252.0)
    breaker.began("third", 252.1)
    assert breaker.is_closed
    assert breaker.transitions == {"open": 3, "half_open": 3, "closed": 1}


def test_B16_one_that_was_well_for_long_begins_at_30_s_again_and_one_that_was_not_goes_on_doubling() -> None:
    for calm_s, left_alone_s in ((10.0, 60.0), (40.0, 30.0)):
        breaker = counted(0, 20, now_s=100.0)
        breaker.sent("probe", 130.0)
        breaker.ended_well("probe", 130.0)
        counted(0, 20, breaker, now_s=130.0 + calm_s)
        assert breaker.until_s == 130.0 + calm_s + left_alone_s


def test_B16_a_probe_whose_client_left_makes_way_for_another() -> None:
    breaker = counted(0, 20, now_s=100.0)
    breaker.sent("probe", 130.0)
    breaker.silent("probe")
    assert breaker.lets_pass(130.0)
    breaker.sent("another", 130.0)
    assert breaker.failed("probe", 131.0) == "", "and what became of it later decides nothing"
    assert breaker.state(131.0) == "half_open"


# what it decides


def test_B16_an_open_breaker_is_503_with_its_time_and_capacity_is_429() -> None:
    bench = Bench(policy(interactive=LONG, pool={"active_requests_max": 1}))
    failing(bench)
    assert state(bench) == ("breaker_open", "open")
    (alarm,) = [one for one in bench.take(Alarm) if one.name == "breaker_open"]
    assert (alarm.subject, alarm.detail) == ("p/0", "20 of 20 failed within 10 s: left alone for 30 s")
    bench.advance(10.0)
    bench.arrive(10)
    refusal = bench.refusal()
    assert (refusal.reason, refusal.retry_after_s) == ("breaker_open", pytest.approx(20.0))
    assert bench.held() == 0


def test_B16_the_probe_closes_it_with_its_first_byte() -> None:
    bench = Bench(policy(interactive=LONG))
    failing(bench)
    bench.advance(30.0)
    bench.arrive(10)
    (probe,) = bench.take(Run)
    bench.arrive(10)
    assert bench.refusal().reason == "breaker_open", "one probe at a time"
    bench.first_byte(probe.execution.id)
    assert state(bench) == ("ready", "closed")
    bench.arrive(10)
    assert len(bench.take(Run)) == 1


def test_B16_others_of_the_pool_take_what_a_broken_one_would_have_got() -> None:
    bench = Bench(policy(interactive=LONG, replicas=2), capacities=(capacity(), capacity("p/1")))
    for _ in range(40):
        bench.arrive(10)
        (run,) = bench.take(Run)
        if run.execution.replica == "p/1":
            bench.complete(run.execution.id)
        else:
            bench.feed(events.EngineLost(run.execution.id, "reset"))
            bench.feed(events.Evidence(run.execution.id, "operator"))
    assert (state(bench, "p/0"), state(bench, "p/1")) == (("breaker_open", "open"), ("ready", "closed"))
    for _ in range(4):
        bench.arrive(10)
    assert {run.execution.replica for run in bench.take(Run)} == {"p/1"}


@pytest.mark.parametrize("kind", ["connect", "first byte", "idle", "broken", "restarted"])
def test_B16_a_refused_connection_silence_and_a_broken_stream_are_failures(kind: str) -> None:
    bench = Bench(policy(interactive={**LONG, "gateway_s": 100.0}, pool={"active_requests_max": 100}))
    for _ in range(20):
        bench.arrive(10, start_by_s=bench.now_s)  # so that it is not sent again
    bench.sample(incarnation="a")
    executions = [run.execution.id for run in bench.take(Run)]
    for execution in executions:
        if kind == "connect":
            bench.feed(events.NotSent(execution, "connect"))
        elif kind != "first byte":
            bench.first_byte(execution)
        if kind == "idle":
            bench.feed(events.EngineSilent(execution, 11.0))
        elif kind == "broken":
            bench.feed(events.EngineLost(execution, "reset"))
    bench.advance(0.1)
    if kind == "restarted":
        bench.sample(incarnation="a", running=20)
        bench.advance(0.1)
        bench.sample(incarnation="b")
    elif kind == "first byte":
        assert state(bench)[1] == "closed"
        bench.advance(3.0)
    assert len(executions) == 20
    assert state(bench)[1] == "open"


def test_B16_a_client_that_leaves_is_never_a_failure_and_neither_is_a_refusal_in_band() -> None:
    bench = Bench(policy(interactive=LONG))
    for number in range(60):
        name = bench.arrive(10)
        execution = bench.execution()
        if number % 3 == 0:
            bench.feed(events.ClientGone(name))
            bench.feed(events.EngineLost(execution, "reset"))
            bench.feed(events.Evidence(execution, "operator"))
        elif number % 3 == 1:
            bench.feed(events.ClientGone(name))
            bench.complete(execution)
        else:
            bench.feed(events.Stopped(execution, Usage(0, 0, 0, 0.0, "failed", True), True))
    assert state(bench) == ("ready", "closed")


def test_B16_whoever_waits_for_a_broken_pool_is_told_so_in_time() -> None:
    bench = Bench(policy(interactive=LONG, pool={"active_requests_max": 1}))
    failing(bench, 19)
    bench.arrive(10)
    execution = bench.execution()
    bench.arrive(10)
    bench.feed(events.EngineLost(execution, "reset"))
    bench.feed(events.Evidence(execution, "operator"))
    assert bench.take(Run) == []
    bench.take(Reply)
    bench.advance(2.01)
    assert bench.refusal().reason == "breaker_open"


def test_F3_observing_a_breaker_opens_and_nothing_is_held_back() -> None:
    bench = Bench(replace(policy(interactive=LONG), observe=True))
    failing(bench)
    assert state(bench)[1] == "open"
    bench.arrive(10)
    assert len(bench.take(Run)) == 1


def test_B16_a_reload_changes_the_thresholds_and_not_the_count() -> None:
    bench = Bench(policy(interactive=LONG))
    failing(bench, 19)
    tight = policy(interactive=LONG, pool={"breaker": BreakerPolicy(requests_min=10, open_s=5.0)})
    bench.feed(events.PolicyChanged(replace(tight, version="v2", number=2)))
    assert state(bench)[1] == "closed"
    failing(bench, 1)
    assert state(bench)[1] == "open"
    bench.advance(5.0)
    assert state(bench)[1] == "half_open"


# second tries


def test_B15_while_every_answer_is_busy_tries_stay_within_the_budget_and_the_breaker_closed() -> None:
    bench = Bench(policy(interactive=LONG))
    tries = 0
    for _ in range(200):
        bench.arrive(10)
        for _ in range(35):
            runs = bench.take(Run)
            tries += len(runs)
            for run in runs:
                bench.feed(events.NotSent(run.execution.id, "busy"))
            bench.advance(0.06)
    assert 215 <= tries <= 223, "200 first tries, a tenth of that again, and the three that are free"
    assert state(bench) == ("ready", "closed")
    shown = bench.gate.snapshot(bench.now_s)["pools"]["p"]
    assert (shown["upstream_sent"], shown["upstream_sent"] - shown["upstream_retried"]) == (tries, 200)
    assert bench.held() == 0


def test_B15_without_a_budget_for_it_a_busy_answer_is_429_at_once() -> None:
    bench = Bench(policy(interactive=LONG, pool={"retries_ratio_max": 0.0}))
    for _ in range(3):
        bench.arrive(10)
        bench.feed(events.NotSent(bench.execution(), "busy"))
        bench.advance(0.06)
        bench.complete(bench.execution())
    bench.arrive(10)
    bench.feed(events.NotSent(bench.execution(), "busy"))
    assert bench.refusal().reason == "queue_timeout"


def test_B15_what_the_gateways_own_lease_kept_back_costs_no_budget() -> None:
    bench = Bench(policy(interactive=LONG, pool={"retries_ratio_max": 0.0}))
    bench.arrive(10)
    for _ in range(10):
        bench.feed(events.NotSent(bench.execution(), "late"))
    assert len(bench.take(Run)) == 1


def test_B16_an_upstreams_retry_after_passes_as_the_larger_of_both() -> None:
    def told_s(upstream_s: float) -> float:
        patient = {"ttft_slo_s": None, "wait_s_max": 100.0}
        bench = Bench(policy(interactive=patient, pool={"retries_ratio_max": 0.0, "active_requests_max": 1}))
        drained_at(bench, per_s=10.0, tokens=10, waiting=5)
        bench.gate._desk.pools["p"].retries._credit = 0.0
        bench.take(Reply)
        (execution,) = [name for name, life in bench.gate._desk.runs.items() if life.state == "running"]
        bench.complete(execution)
        bench.feed(events.NotSent(bench.execution(), "busy", upstream_s))
        refusal = bench.refusal()
        assert refusal.reason == "queue_timeout"
        assert refusal.retry_after_s is not None
        return refusal.retry_after_s

    own_s = told_s(0.0)
    assert 0.1 < own_s < 2.0
    assert told_s(own_s / 2) == own_s
    assert told_s(7.0) == 7.0
