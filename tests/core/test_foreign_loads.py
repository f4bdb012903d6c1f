"""What an engine holds that nobody here sent: `Book.foreign_loads`, which the gauge `foreign_load` shows (F10)."""

from __future__ import annotations

from headworks.core.commands import Cancel, PutIncarnation, PutSample, Start, Stop, TakeReader, Withdraw
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, SECOND, reserve, used
from tests.core.books import Asked

REPLICA = "pool/0"


def asked_with_engine() -> Asked:
    """Two gateways and an engine in its first life."""
    asked = Asked(FIRST, SECOND)
    asked.ask(PutIncarnation(REPLICA, SECOND, "life-1", (), 0))
    return asked


def measure(asked: Asked, load: int) -> None:
    """The second gateway looks at the engine."""
    (seat,) = asked.ask(TakeReader(REPLICA, SECOND))
    asked.ask(PutSample(REPLICA, SECOND, "life-1", load, seat.sequence))


def test_F10_an_engine_that_nobody_looks_at_says_nothing() -> None:
    asked = asked_with_engine()
    assert asked.book.foreign_loads() == {}
    asked.ask(TakeReader(REPLICA, SECOND))
    assert asked.book.foreign_loads() == {REPLICA: 0}


def test_F10_foreign_is_what_is_above_all_that_is_charged_whatever_its_state() -> None:
    asked = asked_with_engine()
    asked.ask(reserve("waits", 10), reserve("runs", 10), Start("runs", FIRST))
    asked.ask(reserve("leaves", 10), Start("leaves", FIRST), Cancel("leaves", FIRST))
    shown = []
    for load in (3, 5, 4, 2):
        measure(asked, load)
        shown.append(asked.book.foreign_loads()[REPLICA])
    assert shown == [0, 2, 1, 0]


def test_F10_what_ended_after_the_look_began_was_charged_when_it_was_measured() -> None:
    asked = asked_with_engine()
    asked.ask(reserve("runs", 10), Start("runs", FIRST))
    (seat,) = asked.ask(TakeReader(REPLICA, SECOND))
    asked.ask(Stop("runs", FIRST, "E1", "completed", used(10)))
    asked.ask(PutSample(REPLICA, SECOND, "life-1", 1, seat.sequence))
    assert asked.book.foreign_loads() == {REPLICA: 0}
    measure(asked, 1)
    assert asked.book.foreign_loads() == {REPLICA: 1}, "this look began when it was gone"


def test_F10_while_the_proof_is_off_it_never_says_none() -> None:
    """Three looks turn it off and three on again; one look in between that shows nothing foreign is no end of it."""
    asked = asked_with_engine()
    shown = []
    for load in (2, 2, 2, 0, 0, 0):
        measure(asked, load)
        shown.append(asked.book.foreign_loads()[REPLICA])
    assert shown == [2, 2, 2, 1, 1, 0]


def test_F10_a_restart_keeps_whether_and_waits_for_a_look_to_say_how_much() -> None:
    asked = asked_with_engine()
    for _ in range(3):
        measure(asked, 2)
    kept = asked.book.snapshot()
    asked.book.restore(kept)
    assert asked.book.foreign_loads() == {}, "the seat of who looked is empty"
    asked.advance(LEASE_MS, FIRST, SECOND)
    asked.ask(TakeReader(REPLICA, SECOND))
    assert asked.book.foreign_loads() == {REPLICA: 1}


def test_F10_an_operator_who_says_that_the_engine_is_gone_ends_it() -> None:
    asked = asked_with_engine()
    for _ in range(3):
        measure(asked, 2)
    asked.ask(Withdraw(REPLICA))
    assert asked.book.foreign_loads() == {REPLICA: 0}
