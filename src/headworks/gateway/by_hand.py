"""What an operator asks of a running gateway, over its admin port: of a replica, of a tenant, of its mode (F13).

Each is noted, taken in as a policy of its own, and written down with who asked for it. One at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from headworks.core.policy import Policy
from headworks.gateway import clock
from headworks.gateway.decisions import DecisionLog
from headworks.gateway.log_delete import Deleted
from headworks.gateway.orders import TENANT_VERBS, Orders
from headworks.gateway.replicas import Replicas

if TYPE_CHECKING:
    from headworks.gateway.shared_orders import SharedOrders
    from headworks.ledgers.valkey import ValkeyStore


class ByHand:
    """`take` has the gateway decide by what was noted; `policy` is the one in force, `shown` its replicas."""

    def __init__(
        self,
        orders: Orders,
        replicas: Replicas,
        take: Callable[[], Awaitable[None]],
        policy: Callable[[], Policy],
        shown: Callable[[], dict[str, dict[str, Any]]],
        log: DecisionLog | None,
        store: ValkeyStore | None = None,
    ) -> None:
        """`store`: that of a ledger which gateways share."""
        self._log = log
        self._orders = orders
        self._replicas = replicas
        self._take = take
        self._policy = policy
        self.replicas_shown = shown
        self._shared = _shared(store, orders, replicas, take) if store is not None else None

    async def start(self) -> None:
        """Take in what holds for all gateways of a shared ledger."""
        if self._shared is not None:
            await self._shared.start()

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()

    async def tell_replica(self, verb: str, name: str, reason: str, actor: str) -> dict[str, Any]:
        """`drain`, `resume` or `withdraw`. Raises `Untold`."""
        async with self._replicas.changing:
            self._replicas.tell(verb, name)
            self._orders.replica(verb, name, actor, reason)
            await self._take()
            self._note(verb, name, actor, reason)
        await self._declare(actor, verb, name, reason)
        return self.replicas_shown().get(name, {"state": "forgotten"})

    async def order(self, verb: str, subject: str, reason: str, actor: str) -> dict[str, Any]:
        """A tenant is frozen or thawed, this gateway observes or enforces. Raises `Unordered`."""
        async with self._replicas.changing:
            taken_back = False
            if verb in TENANT_VERBS:
                self._orders.tenant(verb, subject, actor, reason, self._policy())
            else:
                taken_back = self._orders.mode(verb, actor, reason, self._replicas.configured)
            await asyncio.to_thread(self._orders.keep)
            await self._take()
            self._note(verb, subject, actor, reason, taken_back)
        await self._declare(actor, verb, subject, reason)
        return self.orders_shown()

    def _note(self, verb: str, subject: str, actor: str, reason: str, taken_back: bool = False) -> None:
        """While nothing else is ordered or heard: what comes after it is compared with it."""
        if self._shared is not None:
            self._shared.note(verb, subject, actor, reason, taken_back)

    async def _declare(self, actor: str, verb: str, subject: str, reason: str) -> None:
        """Write it down, and tell the other gateways of a shared ledger."""
        self._orders.declare(actor, verb, subject, reason, "done")
        if self._shared is not None:
            await self._shared.look()

    async def delete_from_log(self, tenant: str, reason: str, actor: str) -> Deleted | None:
        """Take a tenant out of the decision log. None: none is kept."""
        if self._log is None:
            return None
        deleted = await asyncio.to_thread(self._log.delete, tenant)
        self._orders.declare(actor, "delete", tenant, reason, f"{deleted.lines} lines")
        return deleted

    def orders_shown(self) -> dict[str, Any]:
        """What is ordered, and what was declared lately; of a shared ledger the last word about each subject."""
        shown = self._orders.shown(self._policy())
        return shown if self._shared is None else shown | {"shared": list(self._shared.known.values())}


def _shared(store: ValkeyStore, orders: Orders, replicas: Replicas, take: Callable[[], Awaitable[None]]) -> SharedOrders:
    from headworks.gateway.shared_orders import SharedOrders
    from headworks.ledgers.valkey_orders import ValkeyOrders

    return SharedOrders(ValkeyOrders(store.root, store.ask), orders, replicas, take, clock.utc_s)
