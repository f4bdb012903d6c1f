"""Sessions in worlds in which everything goes wrong: used up, left behind, closed twice, used after their end (B14).

A quarter of the campaign's worlds has them. Here are only those, and ledgers with one bug each that must not survive them.
"""

from __future__ import annotations

from functools import cache, partial

import pytest

from headworks.core.book import Book
from headworks.core.book_parts import Entry
from headworks.core.book_sessions import OpenSession
from headworks.core.commands import Answer, CloseSession
from headworks.core.policy import Policy
from headworks.core.types import Usage
from headworks.sim.campaign import Campaign, run_seed, run_world
from headworks.sim.campaign_worlds import small_world
from headworks.sim.compare import make_book

SEEDS = [seed for seed in range(500, 960) if any(source.agents for source in small_world(seed).sources)]


@cache
def done() -> Campaign:
    found = Campaign()
    for seed in SEEDS:
        problem = run_seed(seed, make_book, found)
        if problem:
            found.failed[seed] = problem
    return found


def test_B14_what_sessions_hold_is_what_was_not_spent_and_comes_back_once_in_every_world() -> None:
    failed = [f"{problem}\n  again: headworks sim --campaign --seed {seed}" for seed, problem in done().failed.items()]
    assert failed == [], "\n".join(failed)
    assert len(SEEDS) >= 90


@pytest.mark.parametrize(
    "what",
    [
        "session opened",
        "session refused",
        "session dead",
        "session closed ok closed",
        "session closed recorded closed",
        "session idle",
        "session deadline",
        "session exhausted",
        "call of a session granted",
        "outcome refused session_exhausted",
    ],
)
def test_B14_the_campaign_meets_what_is_rare(what: str) -> None:
    assert done().reached.get(what, 0) >= 1


def test_B14_a_tenants_limit_is_not_exceeded_by_what_the_memory_of_a_call_is_rounded_up_by() -> None:
    assert run_seed(848) == ""


# planted bugs


class ReturnsTwice(Book):
    """Who closes twice gets the rest twice."""

    def _close_session(self, command: CloseSession) -> Answer:
        session = self._sessions.get(command.session)
        if session is not None and session.ended:
            self.counters.move(session.scopes, "tokens", -session.returned_tokens)
        return super()._close_session(command)


class CountsWhatIsReturnedAgain(Book):
    """Who closes twice is told of another rest, though nothing moves."""

    def _close_session(self, command: CloseSession) -> Answer:
        session = self._sessions.get(command.session)
        if session is not None and session.ended:
            session.returned_tokens = 0
        return super()._close_session(command)


class NeverIdle(Book):
    """What was left behind is held until its deadline, or for ever."""

    def _sweep_sessions(self) -> None:
        for session in self._sessions.values():
            session.idle_until_ms = session.until_ms = self.now_ms + 1_000_000
        super()._sweep_sessions()


class LetsCallsInAfterItsEnd(Book):
    """A session that is closed goes on serving those who know its name."""

    def _session_of(self, charges: object) -> OpenSession | None:
        session = self._sessions.get(charges[0][0]) if self._sessions and charges else None  # type: ignore[index]
        if session is not None and session.ended:
            session.unspent_tokens = session.tokens
        return session


class SpendsNothing(Book):
    """What a call used is the session's again."""

    def _spend(self, entry: Entry, usage: Usage | None) -> None:
        super()._spend(entry, None if usage is None else Usage(0, 0, 0, 0.0, "stop", True))


class SpendsWhatWasReserved(Book):
    """What a call did not use is lost."""

    def _spend(self, entry: Entry, usage: Usage | None) -> None:
        super()._spend(entry, None)


def planted(kind: type[Book], policy: Policy) -> Book:
    return kind(lease_ms=round(policy.lease_s * 1000), remember_ms=round(policy.remember_s * 1000))


@pytest.mark.parametrize(
    ("kind", "by"),
    [
        (ReturnsTwice, "the counter says"),
        (CountsWhatIsReturnedAgain, "and is now"),
        (NeverIdle, "still open"),
        (LetsCallsInAfterItsEnd, ""),
        (SpendsNothing, "its calls used"),
        (SpendsWhatWasReserved, "its calls used"),
    ],
)
def test_B14_planted_is_seen(kind: type[Book], by: str) -> None:
    for seed in SEEDS:
        problem = run_world(small_world(seed, partial(planted, kind)))
        if problem:
            break
    assert problem and by in problem, problem
