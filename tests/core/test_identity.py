"""One key, one execution: what becomes of requests that repeat a client's key (A6, B15)."""

from __future__ import annotations

from typing import Any

import pytest

from headworks.core import events
from headworks.core.commands import Claim
from headworks.core.effects import Ask, Attach, Outcome, Reply, Run
from headworks.core.types import RequestKey, Usage
from tests.core.driver import Bench, policy

PATIENT: dict[str, Any] = {"wait_s_max": 5.0, "ttft_slo_s": None}
ONE_PLACE: dict[str, Any] = {"active_requests_max": 1}


def keyed(bench: Bench, name: str = "k", *, tenant: str = "acme", fingerprint: str = "f", tokens: int = 1_000) -> str:
    """A request whose client gave a key. Returns the arrival's id."""
    return bench.arrive(tokens, key=RequestKey(tenant, name), key_given=True, fingerprint=fingerprint)


def ended(bench: Bench) -> dict[str, Outcome]:
    """The outcome of each arrival that has one."""
    found = bench.outcomes()
    assert len({one.id for one in found}) == len(found), "an arrival has two outcomes"
    return {one.id: one for one in found}


def commands(bench: Bench, kind: type[Any]) -> list[Any]:
    return [command for ask in bench.take(Ask) for command in ask.commands if isinstance(command, kind)]


def waiting(bench: Bench) -> str:
    """Fill the pool's one place with somebody else's request. Returns that execution."""
    bench.arrive(1_000)
    return bench.execution()


def settled(bench: Bench) -> None:
    assert bench.held() == 0
    assert (bench.gate._desk.lives, bench.gate._desk.runs, bench.gate._desk.claims) == ({}, {}, {})
    assert (bench.gate._identity._joining, bench.gate._identity._claimed) == ({}, {})


def test_A6_K25_a_hundred_retries_of_one_key_are_one_execution_billed_once() -> None:
    bench = Bench(policy())
    first = keyed(bench)
    others = [keyed(bench) for _ in range(50)]
    (run,) = bench.take(Run)
    bench.first_byte(run.execution.id)
    others += [keyed(bench) for _ in range(49)]
    assert [one.execution for one in bench.take(Attach)] == [run.execution.id] * 99
    assert bench.held() == 1_000
    bench.complete(run.execution.id, 999, 1)
    outcomes = ended(bench)
    assert outcomes[first].outcome == "completed"
    assert {outcomes[name].outcome for name in others} == {"replayed"}
    assert {outcomes[name].execution for name in others} == {run.execution.id}
    assert [one.id for one in outcomes.values() if one.usage is not None] == [first]
    assert [one.id for one in outcomes.values() if one.evidence] == [first]
    assert bench.take(Run) == []
    settled(bench)


def test_A6_a_request_without_a_key_claims_nothing() -> None:
    bench = Bench(policy())
    bench.arrive(1_000)
    bench.complete(bench.execution())
    assert commands(bench, Claim) == []


def test_A6_who_attaches_to_one_that_waits_gets_its_answer_from_the_start() -> None:
    bench = Bench(policy(interactive=PATIENT, pool=ONE_PLACE))
    busy = waiting(bench)
    first, second = keyed(bench), keyed(bench)
    assert bench.take(Attach) == []
    bench.complete(busy)
    (run,) = bench.take(Run)
    assert (run.id, run.others) == (first, (second,))
    bench.complete(run.execution.id)
    assert {name: one.outcome for name, one in ended(bench).items() if name != "r1"} == {first: "completed", second: "replayed"}
    settled(bench)


def test_A6_only_the_last_client_that_leaves_cancels() -> None:
    bench = Bench(policy())
    first = keyed(bench)
    second = keyed(bench)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.feed(events.ClientGone(first))
    assert bench.aborts() == []
    bench.feed(events.ClientGone(second))
    assert [abort.execution for abort in bench.aborts()] == [execution]
    assert ended(bench)[second].outcome == "cancelled"
    bench.complete(execution)
    assert ended(bench)[first].outcome == "cancelled"
    settled(bench)


def test_A6_the_first_client_may_leave_the_queue_and_the_second_is_served() -> None:
    bench = Bench(policy(interactive=PATIENT, pool=ONE_PLACE))
    busy = waiting(bench)
    first, second = keyed(bench), keyed(bench)
    bench.feed(events.ClientGone(first))
    bench.complete(busy)
    (run,) = bench.take(Run)
    assert (run.id, run.others) == (second, ())
    bench.complete(run.execution.id)
    settled(bench)


def test_A6_all_who_wait_for_one_that_is_refused_are_told() -> None:
    bench = Bench(policy(interactive=PATIENT | {"wait_s_max": 1.0}, pool=ONE_PLACE))
    busy = waiting(bench)
    first, second = keyed(bench), keyed(bench)
    bench.advance(1.1)
    replies = bench.take(Reply)
    assert [(one.id, one.decision.reason) for one in replies] == [(first, "queue_timeout"), (second, "queue_timeout")]
    assert {one.outcome for name, one in ended(bench).items() if name != "r1"} == {"expired"}
    assert {one.admitted_s for name, one in ended(bench).items() if name != "r1"} == {None}
    bench.complete(busy)
    settled(bench)


def test_A6_a_completed_key_is_replayed_and_runs_no_second_time() -> None:
    bench = Bench(policy())
    keyed(bench)
    execution = bench.execution()
    bench.complete(execution, 999, 1)
    again = keyed(bench)
    assert [(one.id, one.execution) for one in bench.take(Attach)] == [(again, execution)]
    assert bench.take(Run) == []
    assert (ended(bench)[again].outcome, ended(bench)[again].usage) == ("replayed", None)
    settled(bench)


def test_A6_a_completed_key_whose_answer_is_gone_is_told_what_it_used() -> None:
    bench = Bench(policy())
    keyed(bench)
    bench.complete(bench.execution(), 999, 1)
    bench.keeps_answers = False
    again = keyed(bench)
    (reply,) = bench.take(Reply)
    assert (reply.id, reply.decision.reason) == (again, "idempotency_result_gone")
    assert reply.usage == Usage(999, 0, 1, 0.0, "stop", True)
    assert reply.decision.retry_after_s is None
    assert ended(bench)[again].outcome == "refused"
    assert bench.take(Run) == []
    settled(bench)


def test_A6_other_parameters_under_the_same_key_are_refused_while_it_runs_and_after() -> None:
    bench = Bench(policy())
    keyed(bench)
    execution = bench.execution()
    for _ in range(2):
        keyed(bench, fingerprint="other")
        assert bench.refusal().reason == "idempotency_key_reused"
        bench.complete(execution)
    keyed(bench)
    assert len(bench.take(Attach)) == 1, "and the key still has its answer"
    settled(bench)


def test_A6_K11_a_retry_while_the_first_is_being_stopped_comes_back_and_runs_as_a_new_execution() -> None:
    bench = Bench(policy())
    first = keyed(bench)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.feed(events.ClientGone(first))
    second = keyed(bench)
    refusal = bench.refusal()
    assert (refusal.reason, refusal.retry_after_s) == ("idempotency_in_progress", 5.0), "nothing was measured yet"
    bench.feed(events.EngineClosed(execution))
    bench.advance(0.25)
    bench.sample(iterations=(10,))
    bench.advance(0.05)
    bench.sample(iterations=(14,))
    assert ended(bench)[first].evidence == "E3a"
    third = keyed(bench)
    (run,) = bench.take(Run)
    assert (run.id, run.execution.id != execution) == (third, True)
    bench.complete(run.execution.id)
    assert ended(bench)[third].outcome == "completed"
    assert ended(bench)[second].outcome == "refused"
    settled(bench)


def test_A6_the_hint_is_the_measured_p95_of_the_time_to_evidence() -> None:
    bench = Bench(policy())
    for number in range(20):
        name = keyed(bench, f"k{number}")
        execution = bench.execution()
        bench.first_byte(execution)
        bench.feed(events.ClientGone(name))
        bench.advance(0.010 * (number + 1))
        bench.complete(execution)
    last = keyed(bench, "last")
    bench.feed(events.ClientGone(last))
    keyed(bench, "last")
    assert bench.refusal().retry_after_s == pytest.approx(0.190)


def test_A6_a_failed_key_runs_again_as_a_new_execution() -> None:
    bench = Bench(policy())
    keyed(bench)
    execution = bench.execution()
    bench.feed(events.Stopped(execution, Usage(0, 0, 0, 0.0, "failed", False), True))
    keyed(bench)
    assert bench.execution() != execution


def test_A6_refusals_are_not_stored() -> None:
    bench = Bench(policy(interactive={"queue_requests_max": 0}, pool=ONE_PLACE))
    busy = waiting(bench)
    keyed(bench)
    assert bench.refusal().reason == "queue_full"
    assert bench.gate._desk.claims == {}
    bench.complete(busy)
    keyed(bench, fingerprint="other")
    bench.complete(bench.execution())
    settled(bench)


def test_A6_keys_of_two_tenants_never_meet() -> None:
    bench = Bench(policy())
    keyed(bench, tenant="acme", fingerprint="f")
    keyed(bench, tenant="batchco", fingerprint="g")
    assert len({run.execution.id for run in bench.take(Run)}) == 2
    assert bench.take(Reply) == []


def test_A6_two_gateways_one_execution_and_the_other_is_told_to_come_back() -> None:
    here = Bench(policy())
    there = Bench(policy(), book=here.book, boot="boot-2")
    keyed(here)
    keyed(there)
    assert there.refusal().reason == "idempotency_in_progress"
    assert there.take(Run) == []
    here.complete(here.execution())
    there.keeps_answers = False
    keyed(there)
    assert there.refusal().reason == "idempotency_result_gone"
    settled(here)
    settled(there)


def test_A6_what_is_not_kept_of_a_running_answer_cannot_be_joined() -> None:
    bench = Bench(policy())
    first = keyed(bench)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.keeps_answers = False
    keyed(bench)
    assert bench.refusal().reason == "idempotency_in_progress"
    assert bench.aborts() == []
    bench.feed(events.ClientGone(first))
    assert [abort.execution for abort in bench.aborts()] == [execution], "the first was its last subscriber again"
    bench.complete(execution)
    settled(bench)


def test_A6_the_key_is_kept_through_a_second_attempt_and_so_are_its_sharers() -> None:
    bench = Bench(policy(interactive=PATIENT))
    first, second = keyed(bench), keyed(bench)
    (run,) = bench.take(Run)
    bench.feed(events.NotSent(run.execution.id, "busy"))
    third = keyed(bench)
    bench.advance(0.1)
    (again,) = bench.take(Run)
    assert again.execution.id != run.execution.id
    assert (again.id, again.others) == (first, (second, third))
    bench.complete(again.execution.id)
    assert {name: one.outcome for name, one in ended(bench).items()} == {
        first: "completed",
        second: "replayed",
        third: "replayed",
    }
    settled(bench)


def test_F3_observing_shares_and_refuses_nothing() -> None:
    settings = policy()
    settings.observe = True
    bench = Bench(settings)
    keyed(bench)
    keyed(bench, fingerprint="other")
    assert [run.others for run in bench.take(Run)] == [None, None]
    assert commands(bench, Claim) == []


def test_A6_what_is_told_of_a_shared_answer() -> None:
    bench = Bench(policy())
    keyed(bench)
    execution = bench.execution()
    bench.decisions()
    second = keyed(bench)
    (decision,) = bench.decisions()
    assert (decision.id, decision.outcome, decision.forecast.basis, decision.work.tokens) == (second, "admit", "attached", 0)
    bench.complete(execution)
    bench.decisions()
    keyed(bench)
    assert [one.forecast.basis for one in bench.decisions()] == ["replayed"]
    keyed(bench, fingerprint="other")
    assert [(one.outcome, one.forecast.basis) for one in bench.decisions()] == [("refuse", "key")]
