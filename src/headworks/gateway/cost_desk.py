"""The statement for whoever asks: an operator on the admin port, a tenant about itself on the public one (F7, F12).

    GET /admin/cost?period=2026-11&by=tenant,model&format=json|csv|html

It reads files for as long as that takes, so it is made in a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headworks.gateway.admin_keys import Guard, refused
from headworks.gateway.statement import Statement, statement
from headworks.gateway.statement_shown import Unnamed, as_csv, as_page, as_values, parts_named, period_named
from headworks.gateway.usage import UsageJournal

OWN_PARTS = ("client", "model")
"""What a tenant's rows are told apart by."""
NOT_STORED = {"Cache-Control": "no-store"}


class NotKept(Exception):
    """There is no usage journal, so nothing can be stated."""


class CostDesk:
    """Makes statements from one gateway's usage journal, and those of others in its directory; one at a time."""

    def __init__(self, usage: UsageJournal | None, utc_s: Callable[[], float]) -> None:
        self._usage = usage
        self._utc_s = utc_s
        self._making = threading.Lock()

    def of(self, period: str) -> Statement:
        """Of a period, by its name; empty: this month. Raises `Unnamed`, `NotKept`."""
        if self._usage is None:
            raise NotKept
        now_s = self._utc_s()
        named = period_named(period or time.strftime("%Y-%m", time.gmtime(now_s)))
        with self._making:
            self._usage.flush()
            return statement(self._usage.directory, named, now_s)

    def own(self, tenant: str, period: str) -> dict[str, Any] | None:
        """What a tenant may see of it: its own rows. None: there is no such period, or no journal."""
        try:
            return {"tenant": tenant, **as_values(self.of(period), OWN_PARTS, tenant)}
        except (Unnamed, NotKept):
            return None


def cost_routes(desk: CostDesk, guarded: Guard) -> list[Route]:
    """`/admin/cost`."""

    async def show(request: Request) -> Response:
        asked = request.query_params
        try:
            parts = parts_named(asked.get("by", "tenant"))
            made = await run_in_threadpool(desk.of, asked.get("period", ""))
        except Unnamed as error:
            return refused(400, "invalid_request", str(error))
        except NotKept:
            return refused(404, "not_found", "No usage journal is kept (usage.path: null).")
        return _shown(made, parts, asked.get("format", "json"))

    return [Route("/admin/cost", guarded(show))]


def _shown(made: Statement, parts: tuple[str, ...], form: str) -> Response:
    if form == "csv":
        return Response(as_csv(made, parts), 200, NOT_STORED, "text/csv")
    if form == "html":
        return Response(as_page(made, parts), 200, NOT_STORED, "text/html")
    if form == "json":
        return Response(msgspec.json.encode(as_values(made, parts)), 200, NOT_STORED, "application/json")
    return refused(400, "invalid_request", f"{form!r} is none of json, csv, html.")
