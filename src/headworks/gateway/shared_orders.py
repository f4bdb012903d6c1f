"""An operator's word holds for all gateways of one ledger: told to its store, and heard from there (F13).

Once a second each gateway asks what stands there, tells what it knows better, and takes in what is later than what it knew.
So a gateway that comes later, or comes back, takes what was ordered before it. While the store is away what was known holds,
and what is ordered meanwhile is told when it is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headworks.gateway.clock import UtcStamp
from headworks.gateway.orders import MODE_VERBS, TENANT_VERBS, Orders
from headworks.gateway.replicas import VERBS as REPLICA_VERBS
from headworks.gateway.replicas import Replicas
from headworks.ledgers.errors import LedgerError
from headworks.ledgers.valkey_orders import ValkeyOrders, Word

log = logging.getLogger("headworks.gateway")

LOOK_S = 1.0
START_LOOK_S, START_S_MAX = 0.05, 1.0
"""A store that does not answer when the gateway starts is not waited for: nothing is admitted without it anyway."""


class SharedOrders:
    """One gateway's view of them. `take` has it decide by what was noted."""

    def __init__(
        self,
        store: ValkeyOrders,
        orders: Orders,
        replicas: Replicas,
        take: Callable[[], Awaitable[None]],
        wall_s: Callable[[], float],
    ) -> None:
        self._store = store
        self._orders = orders
        self._replicas = replicas
        self._take = take
        self._wall_s = wall_s
        self.known: dict[str, Word] = {}
        """The last word about each subject; as many as the store keeps, and what was ordered here."""
        self._untold: dict[str, Word] = {}
        self._unheard: dict[str, Word] = {}
        """Known, and not taken in yet."""
        self._failed = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Hear what holds, and go on listening."""
        for _ in range(round(START_S_MAX / START_LOOK_S)):
            if await self.look(is_told=False):
                break
            await asyncio.sleep(START_LOOK_S)
        self._task = asyncio.create_task(self._keep_looking())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def note(self, verb: str, subject: str, actor: str, reason: str, taken_back: bool) -> None:
        """This gateway does it already, and whoever says so holds `Replicas.changing`; the next `look` tells all others."""
        about, at_s = _about(verb, subject), self._wall_s()
        before = self.known.get(about)
        at_ms = max(round(at_s * 1000), 0 if before is None else before.at_ms + 1)
        self.known[about] = self._untold[about] = Word(
            verb, subject, actor, reason, UtcStamp().text(at_s), at_ms, taken_back=taken_back
        )

    async def look(self, *, is_told: bool = True) -> bool:
        """Tell what the store does not know, and take in what we do not. False: tried again.

        `is_told`: a failure is logged. At a start the first tries come before there is a connection.
        """
        try:
            await self._exchange()
        except Exception as fault:  # whatever it is: who listens no more would not know of it
            if is_told and repr(fault) != self._failed:
                self._failed = repr(fault)
                is_ours = not isinstance(fault, LedgerError)
                log.error("what operators order elsewhere is not followed, and tried again: %s", fault, exc_info=is_ours)
            return False
        self._failed = ""
        return True

    async def _exchange(self) -> None:
        found = await self._store.tell(self._untold)
        news = {about: word for about, word in found.items() if _counts(word, self.known.get(about))}
        self.known |= news
        self._unheard |= news
        self._untold = {about: word for about, word in self.known.items() if _counts(word, found.get(about))}
        if self._unheard:
            await self._hear()

    async def _hear(self) -> None:
        """Take in what is news still: while this waits, something else may be ordered here, and that came after it."""
        async with self._replicas.changing:
            news = dict(self._unheard)
            heard = [word for about, word in news.items() if self.known.get(about) is word]
            for word in heard:
                if word.verb in TENANT_VERBS or word.verb in MODE_VERBS or word.verb in REPLICA_VERBS:
                    self._orders.heard(word)
                if word.verb in REPLICA_VERBS:
                    self._replicas.heard(word.verb, word.subject)
            await self._take()
            self._unheard = {about: word for about, word in self._unheard.items() if news.get(about) is not word}
        for word in heard:
            self._orders.declare(word.actor, word.verb, word.subject, word.reason, f"heard, ordered {word.utc}")

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()


def _about(verb: str, subject: str) -> str:
    if verb in MODE_VERBS:
        return "mode"
    return f"{'tenant' if verb in TENANT_VERBS else 'replica'} {subject}"


def _counts(word: Word, other: Word | None) -> bool:
    return other is None or word.place() > other.place()
