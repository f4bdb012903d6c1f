"""The admin port: is it alive, is it ready, its metrics, and what it holds (F12). Not on the path of any request.

A Starlette application over callables, so it knows nothing of what answers them. `/admin/*` wants an admin key as a
bearer token where one is known (`admin_keys.py`); probes and metrics do not, as the port is on loopback unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from headworks.gateway.admin_keys import guard, key_routes
from headworks.gateway.key_watch import KeyWatch
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
    keys: KeyWatch | None = None,
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

    guarded = guard(admin_key, keys)
    return Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", exposition),
            Route("/admin/snapshot", guarded(show_snapshot)),
            Route("/admin/ledger", guarded(show_ledger)),
            Route("/admin/ledger/audit", guarded(show_audit)),
            Route("/admin/explain/{name}", guarded(show_explanation)),
            *(key_routes(keys, guarded) if keys is not None else ()),
            Route("/admin/state", guarded(show_state)),
        ]
    )


def _json(value: Any, status: int = 200) -> Response:
    """Plain values and our own types alike; what is not finite becomes null."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")
