"""What a tenant may ask about itself on the public port, with its own key: its use, and what became of its requests.

    GET /v1/headworks/usage         limits, what is in use now, how promises were kept (F12)
    GET /v1/headworks/explain/ID    the story of one request of its own (F2)
    GET /v1/headworks/cost/PERIOD   what it used, was billed and caused in that month, day or hour (F7); none: this month

Another tenant's request is not there at all: 404, the same as for a name that never was.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from headworks.core.types import RequestKey
from headworks.gateway import reply
from headworks.gateway.every_answer import Ids
from headworks.gateway.explanations import WAITING_MAX, Explanations, TooMany
from headworks.gateway.http.exchange import Exchange

USAGE_PATH = "/v1/headworks/usage"
EXPLAIN_PATH = "/v1/headworks/explain/"
COST_PATH = "/v1/headworks/cost"
METHODS = ("GET", "HEAD")


def is_own(path: str) -> bool:
    """Whether a path is one of these."""
    return path in (USAGE_PATH, COST_PATH) or path.startswith((EXPLAIN_PATH, COST_PATH + "/"))


class Own:
    """Answers them. `note` puts down what a client calls its request, so that it can ask by that name."""

    def __init__(
        self,
        usage: Callable[[str], dict[str, Any]],
        explanations: Explanations,
        cost: Callable[[str, str], dict[str, Any] | None],
        note: Callable[[str, RequestKey, str], None],
        wall_s: Callable[[], float],
    ) -> None:
        self._usage = usage
        self._explanations = explanations
        self._cost = cost
        self.note = note
        self._wall_s = wall_s

    async def serve(self, exchange: Exchange, tenant: str, ids: Ids) -> None:
        """The whole answer."""
        if exchange.path == USAGE_PATH:
            self._respond(exchange, ids, self._usage(tenant))
            return
        try:
            found = await self._found(exchange.path, tenant)
        except TooMany:
            what, limit = "look-ups that wait", WAITING_MAX
            busy = reply.failure(
                "gateway_overloaded", ids, wall_s=self._wall_s(), subject=what, value=limit, limit=limit, unit="look-ups"
            )
            exchange.respond(*busy)
            return
        if found is not None:
            self._respond(exchange, ids, found)
        else:
            exchange.respond(*reply.failure("not_found", ids, wall_s=self._wall_s(), subject=exchange.path[:256]))

    async def _found(self, path: str, tenant: str) -> dict[str, Any] | None:
        """What has to be looked up. Raises `TooMany`."""
        if path.startswith(COST_PATH):
            period = path.removeprefix(COST_PATH).removeprefix("/")
            return await self._explanations.aside(partial(self._cost, tenant, period))
        found = await self._explanations.own(path.removeprefix(EXPLAIN_PATH), tenant)
        return found if found["records"] else None

    def _respond(self, exchange: Exchange, ids: Ids, found: dict[str, Any]) -> None:
        exchange.respond(200, [reply.JSON, (b"X-Request-Id", ids.request_id)], msgspec.json.encode(found))
