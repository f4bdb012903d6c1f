"""A second, simpler ledger and an engine, to judge the book by.

The oracle knows four rules and nothing else of the book: what was granted is held, what has ended gives all of it back
once, what has ended stays as it is, and what was held for reading a prompt comes back when its first byte was told. The
engine knows what physically runs, which the book can only be told.
"""

from __future__ import annotations

from collections.abc import Sequence

from headworks.core.book import Book
from headworks.core.commands import Answer, Command, Grow, Reassert, Reserve, Start
from headworks.core.types import Charge, Reservation

LIVE = ("RESERVED", "RUNNING", "CANCELLING", "ORPHANED")


class Oracle:
    """What must be held, by the answers alone."""

    def __init__(self) -> None:
        self.held: dict[str, list[Charge]] = {}
        self.ended: dict[str, tuple[str, str]] = {}

    def note(self, command: Command, answer: Answer) -> None:
        """One command and what it came to."""
        if isinstance(command, Reserve | Grow) and answer.outcome == "granted":
            assert answer.execution not in self.ended, f"{answer.execution} had ended"
            self.held.setdefault(answer.execution, []).extend(command.charges)
        elif isinstance(command, Reassert) and answer.outcome == "ok" and answer.execution not in self.held:
            self.held[answer.execution] = list(command.record.charges)
        elif isinstance(command, Start) and answer.outcome == "ok":
            held = self.held[answer.execution]
            self.held[answer.execution] = [one for one in held if one[1] not in ("prefill_tokens", "heavy_prefills")]
        elif answer.verb == "stop" and answer.outcome == "ok":
            self._end(answer.execution, answer.state, answer.evidence)
        elif answer.verb in ("heartbeat", "put_sample", "put_incarnation", "withdraw"):
            for record in answer.records:
                self._end(record.execution, record.state, record.evidence)

    def _end(self, execution: str, state: str, evidence: str) -> None:
        self.held.pop(execution, None)
        if state not in ("STOPPED", "TOMBSTONE"):
            assert execution not in self.ended, f"{execution} ended twice"
            self.ended[execution] = (state, evidence)

    def judge(self, book: Book, scopes: Sequence[tuple[str, str]]) -> None:
        """Sums, single release, and finality."""
        for scope, unit in scopes:
            must = sum(one.amount for charges in self.held.values() for one in charges if one[:2] == (scope, unit))
            assert book.held(scope, unit) == must, f"{scope} {unit}: {book.held(scope, unit)} held, {must} granted"
        for record in book.records():
            self._judge_record(record)

    def _judge_record(self, record: Reservation) -> None:
        name = record.execution
        assert (record.state in LIVE) == (name in self.held), f"{name} is {record.state}"
        if name in self.ended:
            assert (record.state, record.evidence) == self.ended[name], f"{name} changed after its end"


class Engine:
    """What physically runs, and in which life of the engine."""

    def __init__(self) -> None:
        self.inside: dict[str, int] = {}
        self.life = 1

    def restart(self) -> None:
        """Everything in it is gone."""
        self.inside.clear()
        self.life += 1

    def judge(self, book: Book) -> None:
        """Whatever runs is charged."""
        for name in self.inside:
            record = book.find(name)
            assert record is not None and record.state in LIVE, f"{name} runs in the engine and is not charged"
