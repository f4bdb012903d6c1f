"""A second, simpler ledger and an engine, to judge the book by.

The oracle knows five rules and nothing else of the book: what was granted is held, what has ended gives all of it back once,
what has ended stays as it is, what was held for reading a prompt comes back when its first byte was told, and of an open
session is held what neither its calls hold nor have used. The engine knows what physically runs, which a book is only told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headworks.core.commands import Answer, CloseSession, Command, Grow, Reassert, Reserve, Start
from headworks.core.types import Charge, Reservation, Usage

LIVE = ("RESERVED", "RUNNING", "CANCELLING", "ORPHANED")
NAME_ONLY = ("STOPPED", "")
"""What a restart keeps of an end that nobody can ask to be repeated."""
READ = ("prefill_tokens", "heavy_prefills")


@dataclass
class Session:
    scopes: tuple[str, ...]
    tokens: int
    spent: int = 0


class Oracle:
    """What must be held, by the answers alone."""

    def __init__(self) -> None:
        self.held: dict[str, list[Charge]] = {}
        self.ended: dict[str, tuple[str, str]] = {}
        self.seen: set[str] = set()
        self.sessions: dict[str, Session] = {}

    def note(self, command: Command, answer: Answer) -> None:
        """One command and what it came to."""
        name = answer.execution
        if isinstance(command, Reserve | Grow) and answer.outcome == "granted":
            assert name not in self.ended, f"{name} had ended"
            self.held.setdefault(name, []).extend(Charge(*one) for one in command.charges)
        elif isinstance(command, Reserve) and answer.outcome == "opened":
            fresh = Session(tuple(scope for scope, _, _ in command.charges), command.charges[0][2])
            self.sessions.setdefault(command.session, fresh)
        elif isinstance(command, CloseSession) and answer.outcome == "ok":
            assert self.sessions.pop(command.session, None), f"{command.session} ended twice"
        elif isinstance(command, Reassert) and answer.outcome == "ok" and name not in self.held:
            self.held[name] = list(command.record.charges)
        elif isinstance(command, Start) and answer.outcome == "ok":
            self.seen.add(name)
            self.held[name] = [one for one in self.held[name] if one.unit not in READ]
        elif answer.verb == "stop" and answer.outcome == "ok":
            self._end(name, answer.state, answer.evidence, answer.usage)
        elif answer.verb in ("heartbeat", "put_sample", "put_incarnation", "withdraw"):
            for record in answer.records:
                self._end(record.execution, record.state, record.evidence, record.usage)

    def _end(self, execution: str, state: str, evidence: str, usage: Usage | None) -> None:
        charges = self.held.pop(execution, None)
        if state not in ("STOPPED", "TOMBSTONE"):
            assert execution not in self.ended, f"{execution} ended twice"
            self.ended[execution] = (state, evidence)
        session = self.sessions.get(charges[0].scope) if charges else None
        if charges and session is not None:
            used = charges[0].amount if execution in self.seen else 0
            used = usage.prompt_tokens + usage.output_tokens if usage is not None else used
            session.spent = min(session.spent + used, max(session.spent, session.tokens - self._live(charges[0].scope)))
            if session.spent >= session.tokens:
                del self.sessions[charges[0].scope]

    def _live(self, scope: str, unit: str = "tokens") -> int:
        return sum(one.amount for charges in self.held.values() for one in charges if one[:2] == (scope, unit))

    def must_hold(self, scope: str, unit: str) -> int:
        """All that is live, and of sessions what is neither."""
        open_here = [(name, one) for name, one in self.sessions.items() if scope in one.scopes and unit == "tokens"]
        unspent = sum(max(0, one.tokens - one.spent - self._live(name)) for name, one in open_here)
        return self._live(scope, unit) + unspent


def judge(oracle: Oracle, book: Any, scopes: Sequence[tuple[str, str]]) -> None:
    """Sums, single release, and finality."""
    for scope, unit in scopes:
        must = oracle.must_hold(scope, unit)
        assert book.held(scope, unit) == must, f"{scope} {unit}: {book.held(scope, unit)} held, {must} granted"
    for record in book.records():
        name = record.execution
        assert (record.state in LIVE) == (name in oracle.held), f"{name} is {record.state}"
        if name in oracle.ended and (record.state, record.evidence) != NAME_ONLY:
            assert (record.state, record.evidence) == oracle.ended[name], f"{name} changed after its end"


class Engine:
    """What physically runs, and in which life of the engine."""

    def __init__(self) -> None:
        self.inside: dict[str, int] = {}
        self.life = 1

    def restart(self) -> None:
        """Everything in it is gone."""
        self.inside.clear()
        self.life += 1

    def judge(self, records: Sequence[Reservation]) -> None:
        """Whatever runs is charged."""
        live = {record.execution for record in records if record.state in LIVE}
        for name in self.inside:
            assert name in live, f"{name} runs in the engine and is not charged"
