"""Moments of sessions that are met seldom, each with its figures. Found by asking which change no test would notice."""

from __future__ import annotations

from dataclasses import replace

from headworks.core.book_parts import Entry
from headworks.core.commands import (
    CloseSession,
    Grow,
    Reassert,
    Start,
    Stop,
    TellSession,
)
from headworks.core.types import Charge, Reservation, SessionRecord
from headworks.testing.suites.ledger_sessions import inside, opening
from headworks.testing.suites.ledger_subject import FIRST, used
from tests.core.books import Asked


def entry(asked: Asked, name: str) -> Entry:
    return asked.book._entries[name]


def told(asked: Asked, name: str, **changed: object) -> Reservation:
    record = asked.book.find(name)
    assert record is not None
    return replace(record, **changed)  # type: ignore[arg-type]


def open_session(tokens: int = 60) -> Asked:
    asked = Asked()
    asked.ask(opening(tokens, "session:s"))
    return asked


def test_B14_a_call_for_all_that_its_session_has_left_waits_for_the_others_and_one_for_more_never_fits() -> None:
    asked = open_session()
    asked.ask(inside("a", 30, "session:s"))
    assert asked.outcome(inside("b", 60, "session:s")) == "refused"
    assert asked.outcome(inside("c", 61, "session:s")) == "never"


def test_B14_a_call_that_a_whole_engine_could_not_hold_never_fits() -> None:
    asked = Asked(limits=(Charge("replica:pool/0", "tokens", 20),))
    asked.ask(opening(60, "session:s"))
    assert asked.outcome(inside("a", 30, "session:s")) == "never"
    asked.ask(inside("b", 15, "session:s"))
    assert asked.outcome(inside("c", 15, "session:s")) == "refused"


def test_B14_growth_beyond_what_a_session_has_left_is_told_with_that() -> None:
    asked = open_session()
    asked.ask(inside("a", 20, "session:s"), Start("a", FIRST), Stop("a", FIRST, "E1", "completed", used(12)))
    asked.ask(inside("b", 30, "session:s"))
    answer = asked.one(Grow("b", FIRST, 1, (Charge("session:s", "tokens", 19),)))
    assert [(one.scope, one.value, one.limit) for one in answer.shortfalls] == [("session:s", 49, 48)]


def test_A7_a_call_that_is_told_to_hold_more_leaves_its_session_less() -> None:
    asked = open_session()
    asked.ask(inside("a", 20, "session:s"))
    more = tuple(one._replace(amount=30) if one.unit == "tokens" else one for one in told(asked, "a").charges)
    asked.ask(Reassert(told(asked, "a", charges=more)))
    (record,) = asked.book.sessions()
    assert (record.live_tokens, record.unspent_tokens, asked.held()) == (30, 30, 60)


def test_B14_a_call_that_showed_nothing_and_was_not_counted_spent_nothing() -> None:
    asked = open_session()
    asked.ask(inside("a", 30, "session:s"), Stop("a", FIRST, "E3a", "failed", None))
    asked.ask(inside("b", 20, "session:s"), Start("b", FIRST), Stop("b", FIRST, "E3a", "failed", None))
    (record,) = asked.book.sessions()
    assert (record.spent_tokens, record.unspent_tokens) == (20, 40)


def test_B14_telling_a_session_again_says_whether_it_was_forgotten() -> None:
    asked = open_session()
    (record,) = asked.book.sessions()
    assert (record.scope, record.tokens, record.unspent_tokens, record.ended) == ("session:s", 60, 60, "")
    assert asked.book.open_sessions() == (record,)
    again = Asked()
    answers = again.ask(TellSession(replace(record, spent_tokens=12)), TellSession(replace(record, spent_tokens=10)))
    assert [(one.verb, one.execution, one.outcome) for one in answers] == [
        ("tell_session", "", "ok"),
        ("tell_session", "", "recorded"),
    ]
    (told_again,) = again.book.sessions()
    assert isinstance(told_again, SessionRecord)
    assert (told_again.spent_tokens, told_again.unspent_tokens) == (12, 48)
    again.ask(CloseSession("session:s"))
    assert (again.book.open_sessions(), len(again.book.sessions())) == ((), 1)
