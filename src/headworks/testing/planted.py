"""Books with one bug each: what a ledger must never do, planted so that tests can show they would notice.

Each overrides as little as possible. The suite, the oracle and the simulator's auditor are run against them; one that
survives them all means that a test is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from headworks.core.book import Book
from headworks.core.book_counters import Counter
from headworks.core.book_parts import Entry
from headworks.core.book_proof import Replica, Sample
from headworks.core.book_table import CANCELLED, RESERVED, Move
from headworks.core.commands import Answer, Cancel, CloseSession, Command, Reserve, Shortfall, Stop


class FreesOnCancel(Book):
    """The wish to stop is taken for the stop."""

    def _close(self, verb: str, entry: Entry | None, command: Cancel, move: Move) -> Answer:
        assert entry is not None
        self._finish(entry, CANCELLED, "", None)
        return self._answer_of(verb, entry, move.outcome)


class CancelFreesReserved(Book):
    """As long as no byte was seen, a cancelled execution is taken for one that was never sent."""

    def _close(self, verb: str, entry: Entry | None, command: Cancel, move: Move) -> Answer:
        assert entry is not None
        if entry.state != RESERVED:
            return super()._close(verb, entry, command, move)
        self._finish(entry, CANCELLED, "", None)
        return self._answer_of(verb, entry, move.outcome)


class ReleasesTwice(Book):
    """A second completion gives back once more."""

    def _record(self, verb: str, entry: Entry | None, command: Command, move: Move) -> Answer:
        assert entry is not None
        if isinstance(command, Stop) and entry.charges:
            self.counters.give(entry.charges, self.counters.find(entry.charges))
        return super()._record(verb, entry, command, move)


class ReleasesOnlyWhatWasUsed(Book):
    """The unused rest of a reservation stays held for ever."""

    def _release(self, entry: Entry) -> None:
        if entry.usage is None:
            super()._release(entry)
            return
        used_tokens = entry.usage.prompt_tokens + entry.usage.output_tokens
        used = [
            (scope, unit, min(amount, used_tokens) if unit == "tokens" else amount) for scope, unit, amount in entry.charges
        ]
        self.counters.give(used, entry.counters)


class ChecksThenCharges(Book):
    """Two steps instead of one: everybody is checked against what was held when the list began."""

    def apply(self, commands: Sequence[Command], now_ms: int) -> list[Answer]:
        self._read = {(one.scope, one.unit): one.held for one in self.counters.all()}
        return super().apply(commands, now_ms)

    def _take(self, charges: Sequence[tuple[str, str, int]]) -> tuple[Sequence[Counter], Sequence[Shortfall]]:
        short = []
        for scope, unit, amount in charges:
            limit = self.counters.limit(scope, unit)
            value = self._read.get((scope, unit), 0) + amount
            if limit is not None and value > limit:
                short.append(Shortfall(scope, unit, value, limit))
        return ([], short) if short else (self.counters.force(charges), [])


class ExpiryFrees(Book):
    """A lapsed lease is taken for vanished work."""

    def _orphan(self, entry: Entry) -> None:
        self._finish(entry, CANCELLED, "", None)


class LeavesNoTombstone(Book):
    """A cancel of something unknown is forgotten, so the reserve that arrives after it is granted."""

    def _bury(self, verb: str, entry: Entry | None, command: Cancel | Stop, move: Move) -> Answer:
        if entry is None:
            return self._answer(verb, command.execution, "ok")
        return super()._bury(verb, entry, command, move)


class CountsWhatIsOwned(Book):
    """E3 by ownership: what somebody owns is counted as inside, though it may not have reached the engine yet."""

    def _known_inside(self, replica: Replica, sample: Sample) -> int | None:
        owned = [entry for entry in replica.entries.values() if not entry.closing_sequence]
        # "N ≤ owned" was the rule; the book compares with equality.
        return min(len(owned), sample.load)


class StampsAtReserve(Book):
    """E4 by the incarnation at reserve: a request sent after the engine's restart is ended with the old engine."""

    def _admit(self, entry: Entry | None, command: Reserve, replica: Replica, taken: Sequence[Counter]) -> Entry:
        entry = super()._admit(entry, command, replica, taken)
        entry.incarnation = replica.incarnation
        return entry


class RefusesStaleTestimony(Book):
    """Testimony is fenced like authority: a fenced owner's evidence is refused, and what it knows is lost."""

    def _end(self, verb: str, entry: Entry | None, command: Stop, move: Move) -> Answer:
        assert entry is not None
        if command.owner != entry.owner or not self._lives(command.owner):
            return self._refuse(verb, entry, command, move)
        return super()._end(verb, entry, command, move)


class ReturnsAgain(Book):
    """A session that is closed twice gives back twice what it did not spend."""

    def _close_session(self, command: CloseSession) -> Answer:
        session = self._sessions.get(command.session)
        if session is not None and session.ended:
            session.unspent_tokens, session.ended = session.returned_tokens, ""
        return super()._close_session(command)


PLANTED: tuple[type[Book], ...] = (
    FreesOnCancel,
    CancelFreesReserved,
    ReleasesTwice,
    ReleasesOnlyWhatWasUsed,
    ChecksThenCharges,
    ExpiryFrees,
    LeavesNoTombstone,
    CountsWhatIsOwned,
    StampsAtReserve,
    RefusesStaleTestimony,
    ReturnsAgain,
)
