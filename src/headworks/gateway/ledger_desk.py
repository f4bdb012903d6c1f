"""What an operator may see of the ledger, and do to it: show, audit, release, withdraw (design section 9).

Of a ledger in this process the book itself is looked at; of a shared one what its server holds at that instant, for all
gateways of the domain. What an operator declares is asked of the ledger like everything else and told to the gate as well,
so that a gateway which watches what was released stops doing so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from headworks.core.book_sessions import CALLS
from headworks.core.commands import Answer, Command, Stop, Withdraw
from headworks.core.types import Owner, Reservation, SessionRecord
from headworks.ledgers.base import EmbeddedStore, LedgerError

RECORDS_MAX = 1_000
ANSWER_S_MAX = 5.0
LOOK_AGAIN_S = 5.0
"""What gauges show of a shared ledger is looked at again by a scrape when it is older."""
AUDIT_AGAIN_S = 10.0
"""The same of the sums over a ledger of this process: with thousands of reservations they are not for every scrape."""


class Book(Protocol):
    """What is held, at one instant."""

    def charged(self) -> list[Reservation]: ...

    def held(self, scope: str, unit: str) -> int: ...

    def differences(self) -> dict[str, int]: ...

    def foreign_loads(self) -> dict[str, int]: ...

    def check(self) -> list[str]: ...

    def open_sessions(self) -> Iterable[SessionRecord]: ...


class SharedStore(Protocol):
    """A ledger that is not in this process."""

    guarantee: str

    def apply(self, commands: Sequence[Command], answered: Callable[[list[Answer]], None]) -> None: ...

    async def look(self) -> Book: ...


class LedgerDesk:
    """One gateway's view of its ledger."""

    def __init__(
        self,
        embedded: EmbeddedStore | None,
        shared: SharedStore | None,
        owner: Owner,
        gate_check: Callable[[], list[str]],
        pools: Callable[[], Iterable[str]],
        answered: Callable[[list[Answer]], None],
        clock_s: Callable[[], float],
    ) -> None:
        self._embedded = embedded
        self._shared = shared
        self._gate_check = gate_check
        self._pools = pools
        self._owner = owner
        self._answered = answered
        self._clock_s = clock_s
        self._charged: list[Reservation] = []
        self._differences: dict[str, int] = {}
        self._foreign: dict[str, int] = {}
        self._audited_s = float("-inf")
        self._looked_s = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self.on_declared: Callable[[str, str, str, str, str], None] = _nobody
        """Who writes down who declared what, of what, why, and what came of it."""

    async def book(self) -> Book:
        """What is held now. Raises `LedgerError` if a shared ledger cannot be asked."""
        if self._embedded is not None:
            return self._embedded.book
        assert self._shared is not None
        return await self._shared.look()

    async def show(self) -> dict[str, Any]:
        """What is charged, record by record."""
        book, store = await self.book(), self._embedded or self._shared
        assert store is not None
        charged = book.charged()
        return {
            "guarantee": store.guarantee,
            "charged": len(charged),
            "tokens": {name: book.held(f"pool:{name}", "tokens") for name in self._pools()},
            "records": charged[:RECORDS_MAX],
            "sessions": [_shown(told) for told in book.open_sessions()],
        }

    async def audit(self) -> list[str]:
        """Counters that differ from the sum of their parts, in this gate and in the ledger."""
        return [*self._gate_check(), *(await self.book()).check()]

    def charged(self) -> list[Reservation]:
        """For gauges: of a shared ledger what the last look showed; this one asks for the next."""
        if self._embedded is not None:
            return self._embedded.book.charged()
        if self._looking is None and self._clock_s() - self._looked_s >= LOOK_AGAIN_S:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return self._charged

    def audited(self) -> tuple[dict[str, int], dict[str, int]]:
        """For gauges: differences by kind of scope, and foreign load by replica, as of at most `AUDIT_AGAIN_S` ago."""
        now_s = self._clock_s()
        if self._embedded is not None and now_s - self._audited_s >= AUDIT_AGAIN_S:
            self._audited_s = now_s
            self._take(self._embedded.book)
        return self._differences, self._foreign

    def _take(self, book: Book) -> None:
        self._differences, self._foreign = book.differences(), book.foreign_loads()

    async def _look(self) -> None:
        try:
            book = await self.book()
            self._charged = book.charged()
            self._take(book)
        except LedgerError:
            self._charged, self._differences, self._foreign = [], {}, {}  # what nobody knows is not shown
        finally:
            self._looked_s, self._looking = self._clock_s(), None

    # what an operator declares

    async def declare(self, verb: str, subject: str, reason: str, actor: str) -> dict[str, Any]:
        """`release` an execution: it holds nothing any more. `withdraw` a replica: its engine is gone with all it had."""
        is_withdrawn = verb == "withdraw"
        command = Withdraw(subject) if is_withdrawn else Stop(subject, self._owner, "operator", "failed", None)
        try:
            answer = await self._ask(command)
        except LedgerError as error:
            self.on_declared(actor, verb, subject, reason, f"not known: {error}")
            raise
        self.on_declared(actor, verb, subject, reason, answer.outcome)
        if is_withdrawn:
            return {"outcome": answer.outcome, "ended": [record.execution for record in answer.records]}
        return {"outcome": answer.outcome, "state": answer.state, "evidence": answer.evidence}

    async def _ask(self, command: Command) -> Answer:
        store = self._embedded or self._shared
        assert store is not None
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        store.apply([command], lambda answers: None if future.done() else future.set_result(answers))
        try:
            answers = await asyncio.wait_for(future, ANSWER_S_MAX)
        except TimeoutError:
            raise LedgerError(f"The ledger did not answer for {ANSWER_S_MAX:g} s; what was asked may have been done") from None
        self._answered(answers)
        return answers[0]


def _nobody(actor: str, verb: str, subject: str, reason: str, outcome: str) -> None:
    """Until somebody writes it down."""


def _shown(told: SessionRecord) -> dict[str, Any]:
    """An open session: whose it is stands in its name."""
    return {
        "session": told.scope.removeprefix(CALLS),
        "pool": told.pool,
        "tokens": told.tokens,
        "spent_tokens": told.spent_tokens,
        "running_tokens": told.live_tokens,
        "unspent_tokens": told.unspent_tokens,
        "left_s": told.left_ms / 1000,
        "idle_left_s": told.idle_left_ms / 1000,
    }
