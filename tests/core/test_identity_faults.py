"""Clients' keys when the ledger's messages are lost, late or repeated, and when somebody else is quicker (A6)."""

from __future__ import annotations

from headworks.core import events
from headworks.core.commands import Claim, Heartbeat, Reserve, Stop
from headworks.core.effects import Attach, Run
from headworks.core.types import Owner, RequestKey
from tests.core.driver import Bench, policy
from tests.core.test_identity import ONE_PLACE, PATIENT, commands, ended, keyed, settled, waiting


def test_A6_a_lost_claim_is_asked_again_and_a_lost_answer_too() -> None:
    for loss in ("lose_asks", "lose_answers"):
        bench = Bench(policy(interactive=PATIENT))
        setattr(bench, loss, True)
        keyed(bench)
        assert bench.take(Run) == []
        setattr(bench, loss, False)
        bench.advance(0.3)
        bench.complete(bench.execution())
        settled(bench)


def test_A6_a_claim_that_is_never_answered_is_refused_in_time_and_its_key_comes_free() -> None:
    bench = Bench(policy(interactive={"wait_s_max": 0.4}))
    bench.lose_answers = True
    keyed(bench)
    bench.advance(0.5)
    assert bench.refusal().reason == "ledger_unavailable"
    bench.lose_answers = False
    bench.advance(0.5)
    assert bench.gate._desk.claims == {}
    keyed(bench, fingerprint="other")
    bench.complete(bench.execution())
    settled(bench)


def test_A6_a_client_that_leaves_while_its_key_is_asked_for_holds_nothing() -> None:
    bench = Bench(policy())
    bench.lose_answers = True
    name = keyed(bench)
    bench.feed(events.ClientGone(name))
    assert ended(bench)[name].outcome == "cancelled"
    bench.lose_answers = False
    bench.advance(0.3)
    settled(bench)


def test_A6_a_claim_that_comes_through_after_it_was_given_up_is_given_back() -> None:
    bench = Bench(policy())
    first = keyed(bench)
    execution = bench.execution()
    late = keyed(bench)
    (claim,) = [one for one in commands(bench, Claim) if one.execution != execution]
    bench.feed(events.ClientGone(first))
    bench.feed(events.ClientGone(late))
    bench.feed(events.NotSent(execution, "gone"))
    bench.feed(events.LedgerAnswered(bench.book.apply([claim], int(bench.now_s * 1000))))  # it was asked twice
    assert [stop.execution for stop in commands(bench, Stop)][-1] == claim.execution
    keyed(bench)
    assert bench.execution() not in (execution, claim.execution)


def test_A6_anti_entropy_leaves_a_waiting_key_alone() -> None:
    bench = Bench(policy(interactive=PATIENT | {"wait_s_max": 30.0}, pool=ONE_PLACE))
    busy = waiting(bench)
    keyed(bench)
    (claim,) = bench.gate._desk.claims
    bench.advance(12.0)  # the ledger has listed what it holds here twice
    bench.complete(busy)
    assert bench.execution() == claim


def unheard_grant() -> tuple[Bench, Bench, str]:
    """A key that waits here for the ledger, and was charged by an ask that came twice, of whose grant nobody heard."""
    settings = policy(interactive=PATIENT, pool={"active_tokens_max": 1_000})
    there = Bench(settings)
    there.arrive(1_000)
    here = Bench(settings, book=there.book, boot="boot-2")
    name = keyed(here)
    (reserve,) = commands(here, Reserve)
    here.lose_asks = True
    there.complete(there.execution())
    assert here.book.apply([reserve], int(here.now_s * 1000))[0].outcome == "granted"
    here.lose_asks = False
    assert (here.held(), here.take(Run)) == (1_000, [])
    return here, there, name


def test_A6_a_grant_nobody_heard_of_is_used_by_the_next_ask() -> None:
    here, _, _ = unheard_grant()
    here.advance(0.1)
    (run,) = here.take(Run)
    here.complete(run.execution.id)
    settled(here)


def test_A6_a_grant_nobody_heard_of_is_freed_with_its_key() -> None:
    here, _, name = unheard_grant()
    here.feed(events.ClientGone(name))
    settled(here)


def test_A6_a_key_taken_by_another_gateway_in_a_lapse_is_not_run_twice() -> None:
    bench = Bench(policy(interactive=PATIENT | {"wait_s_max": 60.0}, pool=ONE_PLACE))
    busy = waiting(bench)
    keyed(bench)
    bench.lose_asks = True
    bench.advance(6.0)  # its lease lapses, and with it the claim
    other = Owner("g2", "boot-2")
    now_ms = int(bench.now_s * 1000)
    answers = bench.book.apply([Heartbeat(other), Claim("theirs", RequestKey("acme", "k"), "f", other)], now_ms)
    assert [answer.outcome for answer in answers] == ["ok", "claimed"]
    bench.lose_asks = False
    bench.advance(1.0)
    bench.complete(busy)
    bench.advance(0.5)
    assert bench.take(Run) == []
    assert bench.refusal().reason == "idempotency_in_progress"


def test_A6_who_asked_first_may_leave_while_the_key_is_asked_for_and_another_waits_for_it() -> None:
    bench = Bench(policy(interactive=PATIENT))
    bench.lose_answers = True
    first = keyed(bench)
    bench.lose_answers = False
    second = keyed(bench)
    bench.feed(events.ClientGone(first))
    assert bench.take(Run) == []
    bench.advance(0.3)  # the claim is asked again, and answered
    bench.complete(bench.execution())
    assert {name: one.outcome for name, one in ended(bench).items()} == {first: "completed", second: "replayed"}
    settled(bench)


def test_A6_a_repeat_that_comes_before_the_ledger_has_heard_of_the_end_gets_the_answer() -> None:
    bench = Bench(policy(interactive=PATIENT))
    keyed(bench)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.lose_asks = True
    bench.complete(execution)
    bench.lose_asks = False
    again = keyed(bench)
    assert [one.execution for one in bench.take(Attach)] == [execution]
    assert ended(bench)[again].outcome == "replayed"
    bench.advance(0.3)
    settled(bench)
