"""The admin port's routes for what an operator orders beside the configuration (F13): see `orders.py`.

GET  /admin/orders                       what is in force, and what was declared lately
POST /admin/tenants/freeze, thaw         {"tenant": …, "reason": …}
POST /admin/log/delete                   {"tenant": …, "reason": …}: out of the decision log (`log_delete.py`)
POST /admin/mode/observe, enforce        {"reason": …}
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headworks.gateway.admin_keys import Guard, asked_of, refused
from headworks.gateway.log_delete import Deleted
from headworks.gateway.orders import MODE_VERBS, TENANT_VERBS, Unordered


class OrderAnswers(Protocol):
    """What is ordered, and whoever orders it. May raise `Unordered`."""

    def orders_shown(self) -> dict[str, Any]: ...

    async def order(self, verb: str, subject: str, reason: str, actor: str) -> dict[str, Any]: ...

    async def delete_from_log(self, tenant: str, reason: str, actor: str) -> Deleted | None: ...


def order_routes(orders: OrderAnswers, guarded: Guard) -> list[Route]:
    """All of them. What is only read is open as everything else that is."""

    async def show(_: Request) -> Response:
        return _json(orders.orders_shown())

    async def order(request: Request) -> Response:
        kind, _, verb = request.url.path.removeprefix("/admin/").partition("/")
        asked = await asked_of(request, "tenant" if kind == "tenants" else "")
        if isinstance(asked, Response):
            return asked
        try:
            return _json(await orders.order(verb, *asked, request.state.actor))
        except Unordered as error:
            return refused(409, "invalid_request", str(error))

    async def delete(request: Request) -> Response:
        asked = await asked_of(request, "tenant")
        if isinstance(asked, Response):
            return asked
        deleted = await orders.delete_from_log(*asked, request.state.actor)
        return (
            refused(404, "not_found", "No decision log is kept (log.decisions: null).") if deleted is None else _json(deleted)
        )

    paths = [f"/admin/tenants/{verb}" for verb in TENANT_VERBS] + [f"/admin/mode/{verb}" for verb in MODE_VERBS]
    return [
        Route("/admin/orders", guarded(show)),
        Route("/admin/log/delete", guarded(delete, writes=True), methods=["POST"]),
        *(Route(path, guarded(order, writes=True), methods=["POST"]) for path in paths),
    ]


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), 200, {"Cache-Control": "no-store"}, "application/json")
