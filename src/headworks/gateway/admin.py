"""The admin port: is it alive, is it ready, its metrics, and what it holds (F12). Not on the path of any request.

A Starlette application over callables, so it knows nothing of what answers them. `/admin/*` wants the admin key as a
bearer token where one is configured; probes and metrics do not, as the port is on loopback unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hmac import compare_digest
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from headworks.gateway.metrics import CONTENT_TYPE

ID_CHARACTERS_MAX = 256

Plain = Callable[[], Any]


def admin_app(
    *,
    obstacles: Callable[[], Sequence[str]],
    metrics: Callable[[], bytes],
    snapshot: Plain,
    ledger: Plain,
    audit: Callable[[], Sequence[str]],
    explain: Callable[[str], dict[str, Any]],
    state: Plain,
    admin_key: str | None,
) -> Starlette:
    """`obstacles`: what keeps the gateway from taking work, one sentence each; none means ready.

    `audit`: a sentence for each counter that differs from the sum of its parts; none means all is well.
    `explain`: the records of the decision log with an id and their story. It reads files, so it is called in a thread.
    `state`: what `headworks top` shows, in totals since the start: whoever looks twice has rates.
    """

    async def livez(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        found = list(obstacles())
        return _json({"ready": not found, "obstacles": found}, 503 if found else 200)

    async def exposition(_: Request) -> Response:
        return Response(metrics(), media_type=CONTENT_TYPE)

    async def show_snapshot(_: Request) -> Response:
        return _json(snapshot())

    async def show_ledger(_: Request) -> Response:
        return _json(ledger())

    async def show_audit(_: Request) -> Response:
        found = list(audit())
        return _json({"holds": not found, "differences": found})

    async def show_explanation(request: Request) -> Response:
        found = await run_in_threadpool(explain, request.path_params["name"][:ID_CHARACTERS_MAX])
        return _json(found, 200 if found["records"] else 404)

    async def show_state(_: Request) -> Response:
        return _json(state())

    guarded = _guard(admin_key)
    return Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", exposition),
            Route("/admin/snapshot", guarded(show_snapshot)),
            Route("/admin/ledger", guarded(show_ledger)),
            Route("/admin/ledger/audit", guarded(show_audit)),
            Route("/admin/explain/{name}", guarded(show_explanation)),
            Route("/admin/state", guarded(show_state)),
        ]
    )


Endpoint = Callable[[Request], Awaitable[Response]]


def _guard(admin_key: str | None) -> Callable[[Endpoint], Endpoint]:
    """Let in whoever has the key. The check belongs to the route, so no way of writing a path gets around it."""

    def guarded(endpoint: Endpoint) -> Endpoint:
        if admin_key is None:
            return endpoint
        wanted = f"Bearer {admin_key}".encode()

        async def checked(request: Request) -> Response:
            given = request.headers.get("authorization", "").encode("latin-1", "replace")
            if compare_digest(given, wanted):
                return await endpoint(request)
            return JSONResponse(
                {"error": {"message": "The admin key is missing or wrong.", "code": "invalid_api_key"}},
                status_code=401,
                headers={"WWW-Authenticate": "Bearer"},
            )

        return checked

    return guarded


def _json(value: Any, status: int = 200) -> Response:
    """Plain values and our own types alike; what is not finite becomes null."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")
