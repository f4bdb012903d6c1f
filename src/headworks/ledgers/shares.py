"""`ledger.when_lost: share`: while the store does not answer, this gateway goes on within its share of every limit.

    its share of a limit = max(what it holds when the store is lost, limit ÷ G)          G: gateways in the last answer

What all hold together was within the limit, so in the worst case one of them holds all of it and each of the others takes
its part: the whole fleet stays below (2 − 1/G) × limit, however long the store is away (K34). What came of that is told to
the store when it answers again, above its limits if it must be, and drains.

The gate knows nothing of this. To it the store has changed, twice: first to a book of this process, which stands in for the
store with the gateway's share as its limits, and then back. Both times it tells what runs (`core/recovery.py`).

Client-given keys are not claimed meanwhile: another gateway may run the same key, and nobody here could know. Their
requests wait for the store, and are told `ledger_unavailable` when their time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from headworks.core.book import Book
from headworks.core.commands import Answer, Claim, Command, Heartbeat, Reassert, SetLimits
from headworks.core.seams import LedgerStore
from headworks.core.types import Charge, Owner

Answered = Callable[[list[Answer]], None]
EPOCH = "shares"


class SharesStore:
    """A `LedgerStore` over a shared one, that goes on without it."""

    guarantee = (
        "Exact across all gateways of its domain while the store answers; while it does not, each goes on within its last "
        "known share of every limit, together less than twice the limit."
    )

    def __init__(
        self, lease_ms: int, remember_ms: int, clock_ms: Callable[[], int], changed: Callable[[str], None] = lambda epoch: None
    ) -> None:
        """`changed` is told whenever what stands behind this is another book. `store` is to be set before anything is asked."""
        self.store: LedgerStore
        self._lease_ms, self._remember_ms = lease_ms, remember_ms
        self._clock_ms = clock_ms
        self._changed = changed
        self._epoch = ""
        """Of the shared store."""
        self._listed_ms: dict[Owner, int] = {}
        """When each gateway was listed last, for a lease: who has more to tell to a new store is not listed, and lives."""
        self._fleet: tuple[Owner, ...] = ()
        """The gateways that lived when a heartbeat was answered last."""
        self._alone: Book | None = None
        self._held: dict[tuple[str, str], int] = {}
        """What this gateway held of each limit when the store was lost."""

    @property
    def is_alone(self) -> bool:
        """The store is away, and this gateway admits within its share."""
        return self._alone is not None

    def apply(self, commands: Sequence[Command], answered: Answered) -> None:
        """Ask whichever book stands behind this now."""
        if self._alone is None:
            self.store.apply(commands, lambda answers: self._heard(answers, answered))
            return
        for command in commands:
            if isinstance(command, Heartbeat):  # its answer says that the store is there again; it vouches for nothing
                self.store.apply([Heartbeat(command.owner, posting=True)], self._answers_again)
        if self._alone is None:
            return  # it answered at once: all this is told to the store, and asked anew
        answers = self._ask_alone(self._alone, commands)
        if answers:
            answered(answers)

    def _heard(self, answers: list[Answer], answered: Answered) -> None:
        if self._alone is not None:
            return  # on its way when the store was lost: it speaks of another book
        for answer in answers:
            if answer.verb == "heartbeat" and answer.owners:
                now_ms = self._clock_ms()
                listed = self._listed_ms | dict.fromkeys(answer.owners, now_ms)
                self._listed_ms = {owner: at_ms for owner, at_ms in listed.items() if now_ms - at_ms <= self._lease_ms}
                self._fleet = tuple(self._listed_ms)
        answered(answers)

    # the store comes and goes

    def lost(self) -> bool:
        """The store does not answer. True when this gateway goes on alone: who has never been told of the others cannot."""
        if not self._fleet or self._alone is not None:
            return self._alone is not None
        self._alone = Book(self._lease_ms, self._remember_ms)
        self._held.clear()
        self._changed(EPOCH)
        return True

    def changed(self, epoch: str) -> None:
        """The store answers, and is another one than before, or the first."""
        self._epoch = epoch
        self._back()
        self._changed(epoch)

    def _answers_again(self, answers: list[Answer]) -> None:
        """The same store as before answers: it knows nothing of what was done without it."""
        if self._alone is not None:
            self._back()
            self._changed(self._epoch)

    def _back(self) -> None:
        """Not all come back at once: who was of the fleet counts for another lease."""
        if self._alone is not None:
            self._listed_ms = dict.fromkeys(self._fleet, self._clock_ms())
        self._alone = None

    # alone

    def _ask_alone(self, book: Book, commands: Sequence[Command]) -> list[Answer]:
        """First what runs is told; what it holds of each limit is part of its share."""
        now_ms = self._clock_ms()
        asked = [command for command in commands if not isinstance(command, Claim | SetLimits)]
        answers = [self._as_shared(answer) for answer in book.apply(asked, now_ms)]
        tells = any(isinstance(command, Reassert) for command in commands)
        limits = [command for command in commands if isinstance(command, SetLimits)]
        for command in limits:
            for charge in command.limits:
                name = (charge.scope, charge.unit)
                if tells or name not in self._held:
                    self._held[name] = max(self._held.get(name, 0), book.held(*name))
            limits_here = tuple(map(self._share, command.limits))
            floors = tuple(floor._replace(amount=floor.amount // len(self._fleet)) for floor in command.floors)
            answers += book.apply([replace(command, limits=limits_here, floors=floors)], now_ms)
        return answers

    def _share(self, limit: Charge) -> Charge:
        part = limit.amount // len(self._fleet)
        return limit._replace(amount=max(self._held.get((limit.scope, limit.unit), 0), part))

    def _as_shared(self, answer: Answer) -> Answer:
        """What fits into no share may fit into the limit; and the others have not gone because they cannot be asked."""
        if answer.outcome == "never":
            return replace(answer, outcome="refused")
        return replace(answer, owners=self._fleet) if answer.verb == "heartbeat" else answer

    # the rest of a store

    def now_ms(self) -> int:
        """The store's clock."""
        return self.store.now_ms()

    def close(self) -> None:
        """The store's connections."""
        self.store.close()
