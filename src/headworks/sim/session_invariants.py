"""What must be true of sessions after every event of a simulation (B14), whatever the book says of itself.

The book's own audit compares its sums with their parts. Here is kept what its commands and answers, and the ends of its
records, came to, and the sessions are compared with that: what is spent is what its calls used; what is over is over, and
came back once; no call begins in a session that is not open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headworks.core.book_sessions import CALLS
from headworks.core.book_table import TERMINAL
from headworks.core.commands import Answer, Command, Reserve
from headworks.core.types import Reservation, SessionRecord

BY_THE_CLOCK = ("idle", "deadline")
"""Ends that come before anything of a list is run."""


class SessionWatch:
    """The witness of one simulation's sessions. Each method returns a sentence about what is wrong, or nothing."""

    def __init__(self, note: Callable[[str], None]) -> None:
        """`note` is told of rare things that did happen."""
        self._note = note
        self._over: dict[str, tuple[str, int, int]] = {}
        """How each ended: why, what it had spent, what came back."""
        self._used_tokens: dict[str, int] = {}
        """What the calls of each have used that ended while it was open."""
        self._unsure: set[str] = set()
        """Sessions of which one call used more than it held: such a one is charged to nobody beyond the budget."""
        self._begun: set[str] = set()
        """Calls that were granted."""
        self._ended: set[str] = set()
        """Calls whose end has been counted."""
        self._stores = 1

    def another_store(self) -> None:
        """It knows what it has a copy of, or what gateways tell it: what was spent before is their word."""
        self._stores += 1
        self._over.clear()

    def overhear(self, command: Command, answer: Answer, sessions: Iterable[SessionRecord]) -> str:
        """A call, an opening or a close that was answered. `sessions` as they are after the whole list."""
        for told in answer.sessions:
            if answer.verb == "close_session":
                self._note(f"session closed {answer.outcome} {told.ended}")
                if answer.outcome == "ok":
                    self._over[told.scope] = (told.ended, told.spent_tokens, told.returned_tokens)
        if not isinstance(command, Reserve) or not command.session.startswith(CALLS):
            return ""
        if command.opens is not None:
            self._note(f"session {answer.outcome}")
            return ""
        if answer.outcome != "granted" or command.execution in self._begun:
            return ""
        self._begun.add(command.execution)
        ended = {one.scope for one in sessions if one.ended in BY_THE_CLOCK} | set(self._over)
        if command.session in ended:
            return f"{command.execution} began in {command.session}, which has ended"
        self._note("call of a session granted")
        return ""

    def look(self, sessions: Iterable[SessionRecord], records: Iterable[Reservation]) -> str:
        """After a list: what is spent is what was used, and what has ended stays as it ended."""
        known = {one.scope: one for one in sessions}
        self._count(known, records)
        for scope in [scope for scope in self._used_tokens if scope not in known]:
            del self._used_tokens[scope]
        for scope in [scope for scope in self._over if scope not in known]:
            del self._over[scope]
        for one in known.values():
            problem = self._of_one(one)
            if problem:
                return problem
        return ""

    def _count(self, known: dict[str, SessionRecord], records: Iterable[Reservation]) -> None:
        for record in records:
            scope = record.charges[0].scope if record.charges else ""
            if not scope.startswith(CALLS) or record.state not in TERMINAL or record.execution in self._ended:
                continue
            self._ended.add(record.execution)
            session = known.get(scope)
            if session is None or session.ended:
                continue
            used_tokens = record.charges[0].amount if record.seen else 0  # its caller got nothing, or nobody can say what
            if record.usage is not None:
                used_tokens = record.usage.prompt_tokens + record.usage.output_tokens
            if used_tokens > record.charges[0].amount:
                self._unsure.add(scope)
            self._used_tokens[scope] = self._used_tokens.get(scope, 0) + used_tokens

    def _of_one(self, one: SessionRecord) -> str:
        used_tokens = self._used_tokens.get(one.scope, 0)
        if one.ended:
            now = (one.ended, one.spent_tokens, one.returned_tokens)
            before = self._over.setdefault(one.scope, now)
            if before is now:
                self._note(f"session {one.ended}")
            if before != now:
                return f"{one.scope} ended as {before}, and is now {now}"
            if one.unspent_tokens:
                return f"{one.scope} has ended and holds {one.unspent_tokens}"
        elif self._stores == 1 and one.scope not in self._unsure and one.spent_tokens != used_tokens:
            return f"{one.scope} has spent {one.spent_tokens}, and its calls used {used_tokens}"
        return ""


def held_by(sessions: Iterable[SessionRecord]) -> dict[str, int]:
    """Tokens that are held for calls to come, by scope."""
    held: dict[str, int] = {}
    for one in sessions:
        for scope in one.scopes:
            held[scope] = held.get(scope, 0) + one.unspent_tokens
    return held
