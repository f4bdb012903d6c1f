"""What an operator asks of a running gateway, over its admin port: of a replica, of a tenant, of its mode (F13).

Each is noted, taken in as a policy of its own, and written down with who asked for it. One at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headworks.core.policy import Policy
from headworks.gateway.decisions import DecisionLog
from headworks.gateway.log_delete import Deleted
from headworks.gateway.orders import TENANT_VERBS, Orders
from headworks.gateway.replicas import Replicas


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
    ) -> None:
        self._log = log
        self._orders = orders
        self._replicas = replicas
        self._take = take
        self._policy = policy
        self.replicas_shown = shown

    async def tell_replica(self, verb: str, name: str, reason: str, actor: str) -> dict[str, Any]:
        """`drain`, `resume` or `withdraw`. Raises `Untold`."""
        async with self._replicas.changing:
            self._replicas.tell(verb, name)
            await self._take()
        self._orders.declare(actor, verb, name, reason, "done")
        return self.replicas_shown().get(name, {"state": "forgotten"})

    async def order(self, verb: str, subject: str, reason: str, actor: str) -> dict[str, Any]:
        """A tenant is frozen or thawed, this gateway observes or enforces. Raises `Unordered`."""
        async with self._replicas.changing:
            if verb in TENANT_VERBS:
                self._orders.tenant(verb, subject, actor, reason, self._policy())
            else:
                self._orders.mode(verb, actor, reason, self._replicas.configured)
            await asyncio.to_thread(self._orders.keep)
            await self._take()
        self._orders.declare(actor, verb, subject, reason, "done")
        return self.orders_shown()

    async def delete_from_log(self, tenant: str, reason: str, actor: str) -> Deleted | None:
        """Take a tenant out of the decision log. None: none is kept."""
        if self._log is None:
            return None
        deleted = await asyncio.to_thread(self._log.delete, tenant)
        self._orders.declare(actor, "delete", tenant, reason, f"{deleted.lines} lines")
        return deleted

    def orders_shown(self) -> dict[str, Any]:
        """What is ordered, and what was declared lately."""
        return self._orders.shown(self._policy())
