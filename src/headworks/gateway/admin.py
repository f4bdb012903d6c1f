"""The admin port: is it alive, is it ready, its metrics, and what it holds (F12). Not on the path of any request.

A Starlette application over callables, so it knows nothing of what answers them. `/admin/*` wants an admin key as a
bearer token where one is known (`admin_keys.py`); probes and metrics do not, as the port is on loopback unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from headworks.gateway.admin_keys import Guard, asked_of, guard, key_routes, refused
from headworks.gateway.admin_orders import OrderAnswers, order_routes
from headworks.gateway.cost_desk import CostDesk, cost_routes
from headworks.gateway.dashboard.routes import dashboard_routes
from headworks.gateway.feed import VIEWERS_MAX, Feed, FeedResponse
from headworks.gateway.key_watch import KeyWatch
from headworks.gateway.looks import KEPT_MAX, Looks
from headworks.gateway.metrics import CONTENT_TYPE
from headworks.gateway.openapi import encoded
from headworks.gateway.reload_door import Reload, reload_routes
from headworks.gateway.replicas import VERBS, Untold
from headworks.ledgers.errors import LedgerError

ID_CHARACTERS_MAX = 256
SUBJECTS = {"release": "execution", "withdraw": "replica"}
"""What an operator may declare about the ledger, and of what."""
VERSION_DIGITS_MAX = 18
RETRY_S = 5.0
NOT_STORED = {"Cache-Control": "no-store"}


class ReplicaAnswers(Protocol):
    """The replicas, and what an operator asks of one. May raise `Untold`."""

    def replicas_shown(self) -> dict[str, dict[str, Any]]: ...

    async def tell_replica(self, verb: str, name: str, reason: str, actor: str) -> dict[str, Any]: ...


class LedgerAnswers(Protocol):
    """What is known of the ledger, and what an operator declares of it. Each may raise `LedgerError`."""

    async def show(self) -> Any: ...

    async def audit(self) -> Sequence[str]:
        """A sentence for each counter that differs from the sum of its parts; none means all is well."""
        ...

    async def declare(self, verb: str, subject: str, reason: str, actor: str) -> Any:
        """`actor`: the name of the admin key it is done with."""
        ...


def admin_app(
    *,
    obstacles: Callable[[], Sequence[str]],
    metrics: Callable[[], bytes],
    looks: Looks,
    feed: Feed,
    ledger: LedgerAnswers,
    explain: Callable[[str], Awaitable[dict[str, Any]]],
    admin_key: str | None,
    keys: KeyWatch | None = None,
    replicas: ReplicaAnswers | None = None,
    reload: Callable[[], Reload | None] = lambda: None,
    cost: CostDesk | None = None,
    orders: OrderAnswers | None = None,
) -> Starlette:
    """`obstacles`: what keeps the gateway from taking work, one sentence each; none means ready.

    `explain`: the records of the decision logs with an id and their story.
    """

    async def livez(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        found = list(obstacles())
        return _json({"ready": not found, "obstacles": found}, 503 if found else 200)

    async def openapi(_: Request) -> Response:
        return Response(encoded(), media_type="application/json")

    async def exposition(_: Request) -> Response:
        return Response(metrics(), media_type=CONTENT_TYPE)

    async def show_explanation(request: Request) -> Response:
        found = await explain(request.path_params["name"][:ID_CHARACTERS_MAX])
        return _json(found, 200 if found["records"] else 404)

    guarded = guard(admin_key, keys)
    made = Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", exposition),
            Route("/openapi.json", openapi),
            *_look_routes(looks, feed, guarded),
            *_ledger_routes(ledger, guarded),
            Route("/admin/explain/{name}", guarded(show_explanation)),
            *(key_routes(keys, guarded) if keys is not None else ()),
            *(_replica_routes(replicas, guarded) if replicas is not None else ()),
            *reload_routes(reload, guarded),
            *(cost_routes(cost, guarded) if cost is not None else ()),
            *(order_routes(orders, guarded) if orders is not None else ()),
            *dashboard_routes(),
        ]
    )
    made.router.redirect_slashes = False  # where to would be made of whatever Host the request names
    return made


def _look_routes(looks: Looks, feed: Feed, guarded: Guard) -> list[Route]:
    """What there is: once, or as it changes. Both are the same looks."""

    async def snapshot(request: Request) -> Response:
        asked = request.query_params.get("version")
        if asked is None:
            return Response(looks.look()[1], media_type="application/json", headers=NOT_STORED)
        found = looks.kept(int(asked)) if asked.isascii() and asked.isdecimal() and len(asked) <= VERSION_DIGITS_MAX else None
        if found is None:
            return refused(404, "not_found", f"Only the last {KEPT_MAX} looks are kept, by the number of their version.")
        return Response(found, media_type="application/json", headers=NOT_STORED)

    async def watch(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream", headers=NOT_STORED)
        if not feed.has_room:
            return refused(503, "gateway_overloaded", f"{VIEWERS_MAX} watch already; /admin/snapshot has the same.", RETRY_S)
        return FeedResponse(feed, request.state.still_opens)

    return [
        Route("/admin/snapshot", guarded(snapshot)),
        Route("/admin/state", guarded(snapshot)),  # the name it had before
        Route("/admin/feed", guarded(watch)),
    ]


def _ledger_routes(ledger: LedgerAnswers, guarded: Guard) -> list[Route]:
    async def said(answer: Awaitable[Any]) -> Response:
        try:
            return _json(await answer)
        except LedgerError as error:
            return refused(503, "ledger_unavailable", str(error))

    async def audited() -> Any:
        found = list(await ledger.audit())
        return {"holds": not found, "differences": found}

    async def show(_: Request) -> Response:
        return await said(ledger.show())

    async def audit(_: Request) -> Response:
        return await said(audited())

    async def declare(request: Request) -> Response:
        verb = request.url.path.rpartition("/")[2]
        asked = await asked_of(request, SUBJECTS[verb])
        return asked if isinstance(asked, Response) else await said(ledger.declare(verb, *asked, request.state.actor))

    return [
        Route("/admin/ledger", guarded(show)),
        Route("/admin/ledger/audit", guarded(audit)),
        *(Route(f"/admin/ledger/{verb}", guarded(declare, writes=True), methods=["POST"]) for verb in SUBJECTS),
    ]


def _replica_routes(replicas: ReplicaAnswers, guarded: Guard) -> list[Route]:
    async def listed(_: Request) -> Response:
        return _json({"replicas": replicas.replicas_shown()})

    async def tell(request: Request) -> Response:
        verb = request.url.path.rpartition("/")[2]
        asked = await asked_of(request, "replica")
        if isinstance(asked, Response):
            return asked
        try:
            return _json({"replica": asked[0], **await replicas.tell_replica(verb, *asked, request.state.actor)})
        except Untold as error:
            return refused(409, "invalid_request", str(error))

    return [
        Route("/admin/replicas", guarded(listed)),
        *(Route(f"/admin/replicas/{verb}", guarded(tell, writes=True), methods=["POST"]) for verb in VERBS),
    ]


def _json(value: Any, status: int = 200) -> Response:
    """Plain values and our own types alike; what is not finite becomes null."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")
