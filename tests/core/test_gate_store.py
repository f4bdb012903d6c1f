"""Several gateways on one store, and another store in its place: empty, an older copy, or one that not all have reached yet."""

from __future__ import annotations

import json
from typing import Any

from headworks.core import events
from headworks.core.book import Book
from headworks.core.commands import Heartbeat, Reassert, Reserve
from headworks.core.effects import Abort, Ask, Reply, Run
from headworks.core.policy import Policy
from tests.core.driver import Bench, policy

PATIENT: dict[str, Any] = {"ttft_slo_s": None, "wait_s_max": 20.0}
LEASE_S = 5.0


def limited(tokens: int = 1_000) -> Policy:
    return policy(interactive=PATIENT, tenant={"active_tokens_max": tokens})


def empty() -> Book:
    return Book(lease_ms=5_000, remember_ms=3_600_000)


def copy_of(book: Book) -> Book:
    """What a restored dump of it holds: everything charged is orphaned (A9)."""
    made = empty()
    made.restore(json.loads(json.dumps(book.snapshot())))
    return made


def standing(book: Book, boot: str, settings: Policy | None = None) -> Bench:
    """A gateway that the others know."""
    made = Bench(settings or limited(), book=book, boot=boot)
    made.feed(events.StoreChanged("first"))
    together(2.2, made)
    made.effects.clear()
    return made


def together(seconds: float, *benches: Bench) -> None:
    """Time passes for all of them, in small steps."""
    for _ in range(round(seconds / 0.05)):
        for bench in benches:
            bench.advance(0.05)


def changed(book: Book, *benches: Bench) -> None:
    """Another store answers those."""
    for bench in benches:
        bench.book = book
        bench.feed(events.StoreChanged("second"))


def running(bench: Bench, tokens: int) -> str:
    bench.arrive(tokens)
    execution = bench.execution()
    bench.first_byte(execution)
    return execution


def admits(bench: Bench, tokens: int = 100) -> bool:
    """Whether it sends one more; what it does not send is refused or waits."""
    bench.take(Run)
    bench.arrive(tokens)
    return len(bench.take(Run)) == 1


def told(bench: Bench) -> list[Reassert]:
    asked = [command for ask in bench.take(Ask) for command in ask.commands]
    return [command for command in asked if isinstance(command, Reassert)]


def test_A11_an_empty_store_is_told_what_runs_before_anything_new_is_admitted() -> None:
    made = standing(empty(), "boot-1")
    one = running(made, 300)
    made.arrive(200)
    two = made.execution()  # sent, and no byte of it seen
    book = empty()
    changed(book, made)
    assert not admits(made), "nothing of it stands there yet"
    together(0.3, made)
    assert {record.execution: record.state for record in book.charged()} == {one: "RUNNING", two: "RESERVED"}
    assert made.held("tenant:acme") == 500
    assert admits(made, 500) and not admits(made, 1)
    made.complete(one)
    made.complete(two)
    assert made.held("tenant:acme") == 501, "the one that waited has come in"


def test_A11_nothing_is_admitted_until_every_gateway_that_was_known_has_told_its_set() -> None:
    first = empty()
    one, two = standing(first, "boot-1"), standing(first, "boot-2")
    together(1.1, one, two)
    running(two, 900)
    book = empty()
    changed(book, one)
    together(2.0, one, two)
    assert not admits(one), "the other holds 900 of 1,000, which this store does not know"
    changed(book, two)
    together(0.5, one, two)
    assert book.held("tenant:acme", "tokens") == 900
    assert admits(one, 100) and not admits(two, 100)


def test_A11_a_gateway_that_has_more_to_tell_is_not_listed_as_having_come_back() -> None:
    book = empty()
    first, second = standing(book, "boot-1").gate._desk.owner, standing(book, "boot-2").gate._desk.owner
    (answer,) = book.apply([Heartbeat(first, 7, posting=True)], 200_000)
    assert (answer.outcome, answer.owners) == ("ok", ())
    _, answer = book.apply([Heartbeat(second, 7), Heartbeat(first, 8)], 200_000)
    assert answer.owners == (first, second)


def test_A11_one_that_does_not_come_back_is_waited_for_no_longer_than_its_lease() -> None:
    first = empty()
    one, two = standing(first, "boot-1"), standing(first, "boot-2")
    together(1.1, one, two)
    changed(empty(), one)
    together(LEASE_S - 0.2, one)
    assert not admits(one)
    together(0.4, one)
    assert admits(one)


def test_A11_who_was_missing_in_one_store_is_waited_for_in_the_next_too() -> None:
    first = empty()
    one, two = standing(first, "boot-1"), standing(first, "boot-2")
    together(1.1, one, two)
    running(two, 900)
    changed(empty(), one)
    together(0.5, one, two)
    book = empty()
    changed(book, one)
    together(1.0, one, two)
    assert not admits(one)
    changed(book, two)
    together(0.5, one, two)
    assert admits(one, 100) and not admits(two, 100)


def test_A11_who_may_not_know_of_a_newcomer_waits_for_the_lease() -> None:
    first = empty()
    one = standing(first, "boot-1")
    one.lose_answers = True
    one.advance(2.0)
    one.lose_answers = False
    two = standing(first, "boot-2")
    running(two, 900)
    changed(empty(), one)
    together(LEASE_S - 0.5, one)
    assert not admits(one), "it had not been told anything for two seconds, and the newcomer holds 900"


def test_A11_living_work_is_adopted_by_nobody_because_another_was_quicker_to_come_back() -> None:
    first = empty()
    one, two = standing(first, "boot-1"), standing(first, "boot-2")
    together(1.1, one, two)
    running(two, 300)
    book = copy_of(first)
    changed(book, one)
    together(3.0, one, two)
    assert [(record.state, record.owner.boot) for record in book.charged()] == [("ORPHANED", "boot-2")]
    changed(book, two)
    together(0.5, one, two)
    assert [record.state for record in book.charged()] == ["RUNNING"] and two.aborts() == []


def test_A7_who_comes_back_after_its_lease_is_listed_at_once() -> None:
    book = empty()
    one, two = standing(book, "boot-1"), standing(book, "boot-2")
    running(one, 300)
    one.lose_asks = True
    together(LEASE_S + 1.5, one)
    one.lose_asks = False
    one.take(Ask)
    together(1.3, one, two)
    beats = [command for ask in one.take(Ask) for command in ask.commands if isinstance(command, Heartbeat)]
    assert beats and not any(beat.posting for beat in beats)


def test_A11_a_new_gateway_admits_nothing_until_all_can_know_it() -> None:
    made = Bench(limited(), book=empty(), boot="boot-1")
    made.feed(events.StoreChanged("first"))
    made.advance(1.4)
    assert not admits(made)
    made.advance(0.3)
    assert admits(made)


def test_A11_what_was_asked_of_the_old_store_is_asked_anew_when_the_new_one_is_open() -> None:
    made = standing(empty(), "boot-1")
    made.lose_answers = True
    made.arrive(100)
    made.lose_answers = False
    made.take(Ask)
    book = empty()
    changed(book, made)
    assert made.take(Ask) == []
    made.advance(0.5)
    asked = [type(command) for ask in made.take(Ask) for command in ask.commands if type(command) in (Heartbeat, Reserve)]
    assert asked[:2] == [Heartbeat, Reserve]
    assert len(made.take(Run)) == 1
    assert made.held("tenant:acme") == 100


def test_A11_of_an_older_copy_what_has_ended_since_is_ended_again_with_its_own_evidence() -> None:
    first = empty()
    made = standing(first, "boot-1")
    gone = running(made, 300)
    book = copy_of(first)
    made.complete(gone)
    stays = running(made, 200)
    changed(book, made)
    together(0.3, made)
    assert made.held("tenant:acme") == 500, "the copy holds the one that has ended, and was told of the other"
    together(5.0, made)
    record = book.find(gone)
    assert record is not None and (record.state, record.evidence) == ("COMPLETED", "E1")
    assert [one.execution for one in book.charged()] == [stays]


def test_A11_of_an_older_copy_what_was_charged_and_never_sent_is_given_back() -> None:
    first = empty()
    made = standing(first, "boot-1")
    made.lose_answers = True
    made.arrive(100)
    made.lose_answers = False
    book = copy_of(first)
    changed(book, made)
    together(11.0, made)
    made.complete(made.execution())
    assert book.charged() == []


def test_A7_what_another_gateway_adopted_meanwhile_is_closed_and_its_end_is_told() -> None:
    book = empty()
    one, two = standing(book, "boot-1"), standing(book, "boot-2")
    execution = running(one, 300)
    one.lose_asks = True
    together(LEASE_S + 3.0, one, two)
    assert [record.owner.boot for record in book.charged()] == ["boot-2"]
    one.lose_asks = False
    together(1.2, one, two)
    assert [abort.execution for abort in one.aborts()] == [execution]
    one.complete(execution)
    assert book.charged() == []
    assert one.gate.check() == [] and two.gate.check() == []


def test_A7_whoever_was_away_for_less_than_an_adoption_goes_on_with_what_is_its_own() -> None:
    book = empty()
    one = standing(book, "boot-1")
    execution = running(one, 300)
    one.lose_asks = True
    one.advance(LEASE_S + 3.0)
    book.apply([], int(one.now_s * 1000))
    assert [record.state for record in book.charged()] == ["ORPHANED"]
    one.lose_asks = False
    one.advance(1.2)
    assert [record.state for record in book.charged()] == ["RUNNING"]
    assert one.aborts() == []
    assert {command.record.execution for command in told(one)} == {execution}


def test_E3b_nothing_is_vouched_for_by_the_numbers_of_another_store() -> None:
    made = standing(empty(), "boot-1")
    running(made, 300)
    together(30.0, made)
    changed(empty(), made)
    made.take(Ask)
    together(0.05, made)
    beats = [command for ask in made.take(Ask) for command in ask.commands if isinstance(command, Heartbeat)]
    assert [(beat.seen_sequence, beat.posting) for beat in beats] == [(0, True)]


def test_A8_growth_that_was_asked_of_the_old_store_is_asked_again_and_ends_nothing() -> None:
    grows = {"growth": True, "output_tokens_cold": 100, "growth_step_tokens": 64, "growth_ahead_tokens": 16}
    made = standing(empty(), "boot-1", policy(interactive=PATIENT, pool=grows))
    made.arrive(4_100, 4_000)
    execution = made.execution()
    made.first_byte(execution)
    made.lose_asks = True
    made.feed(events.Progressed(execution, 90))
    made.lose_asks = False
    changed(empty(), made)
    together(2.0, made)
    assert made.aborts() == [] and made.held() == 264


def test_A6_a_key_that_was_being_claimed_is_not_claimed_of_a_store_that_may_have_forgotten_its_execution() -> None:
    made = standing(empty(), "boot-1")
    made.lose_asks = True
    made.arrive(100, key_given=True)
    made.lose_asks = False
    changed(empty(), made)
    (reply,) = made.take(Reply)
    assert reply.decision.reason == "ledger_unavailable"


def test_A7_orphans_that_were_watched_here_are_charged_in_the_new_store_too() -> None:
    first = empty()
    one, two = standing(first, "boot-1"), standing(first, "boot-2")
    execution = running(one, 300)
    together(LEASE_S + 3.0, two)
    assert two.gate.snapshot(two.now_s)["orphans_watched"] == 1
    book = empty()
    changed(book, two)
    together(0.5, two)
    (record,) = book.charged()
    assert (record.execution, record.state, record.owner.boot, record.reserved_by.boot) == (
        execution,
        "CANCELLING",
        "boot-2",
        "boot-1",
    )
    assert two.take(Abort) == []


def test_A11_a_newcomer_waits_for_those_it_knows_of() -> None:
    """The store is changed while it is still new: who runs 900 of 1,000 reaches the other store later than it does."""
    first = empty()
    one = standing(first, "boot-1")
    running(one, 900)
    new = Bench(limited(), book=first, boot="boot-2")
    new.now_s = one.now_s
    new.feed(events.StoreChanged("first"))
    together(1.0, one, new)
    book = empty()
    changed(book, new)
    together(LEASE_S - 0.5, one, new)
    assert not admits(new, 900)
    changed(book, one)
    together(1.0, one, new)
    assert book.held("tenant:acme", "tokens") == 900
    assert admits(new, 100)


def test_A11_who_was_cut_off_for_longer_than_a_lease_waits_for_those_it_cannot_know() -> None:
    """Meanwhile the old store took in a boot, which runs 900 of 1,000 and reaches the new one later."""
    first = empty()
    one = standing(first, "boot-1")
    together(1.0, one)
    one.feed(events.LedgerLost())
    one.lose_asks = True
    together(30.0, one)
    new = Bench(limited(), book=first, boot="boot-2")
    new.now_s = one.now_s
    new.feed(events.StoreChanged("first"))
    together(6.0, one, new)
    running(new, 900)
    one.lose_asks = False
    new.feed(events.LedgerLost())
    new.lose_asks = True
    book = empty()
    changed(book, one)
    together(LEASE_S - 0.5, one, new)
    assert not admits(one, 900)
    new.lose_asks = False
    changed(book, new)
    together(1.0, one, new)
    assert book.held("tenant:acme", "tokens") == 900
    assert admits(one, 100)
