"""What became of one request: its records in the decision log and their story, for operators and for its own tenant (F2, K05).

A look-up reads files, the whole log in the worst case. Operators' come one by one by themselves; tenants' are counted, and
one is made at a time, so that nobody can keep the gateway from its work by asking why it was refused.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from headworks.gateway.story import COPY, story
from headworks.gateway.tracing import NAME_BEFORE

NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
"""What a request, a key or an execution may be called; nothing else is ever written down."""
FOLLOWED_MAX = 4
"""Of the requests a name stands for, so many are followed, and so many of their keys to other requests under them."""
RECORDS_MAX = 200
"""Records of one answer, the newest: a key that is used over and over would fill books."""
TRACES_MAX = 8
"""Traces that are named."""
TRACE = re.compile(r"[0-9a-f]{32}")
WAITING_MAX = 8
"""Tenants' look-ups that wait for each other."""
OURS = ("execution", "gateway", "replica")
"""What of a record no tenant needs to see."""

Line = dict[str, Any]
Found = TypeVar("Found")


class TooMany(Exception):
    """There are `WAITING_MAX` look-ups of tenants already."""


class Explanations:
    """Over a decision log. Without one nothing is known of anything."""

    def __init__(self, find: Callable[[str, str | None], list[Line]] | None) -> None:
        self._find = find
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, "explanations")

    def of(self, name: str, tenant: str | None = None) -> dict[str, Any]:
        """Everything about a request id, a key, a decision or an execution; of one tenant, if one is named."""
        lines, traces = self._lines(name, tenant) if NAME.fullmatch(name) else ([], [])
        shown = [_without(line, OURS) for line in lines if line["kind"] != COPY] if tenant is not None else lines
        told = story(shown)
        if told and traces:
            told.append(f"It belongs to the trace{'' if len(traces) == 1 else 's'} {', '.join(traces)}.")
        return {"id": name, "story": told, "records": shown, "traces": traces}

    async def own(self, name: str, tenant: str) -> dict[str, Any]:
        """The same for a tenant. Raises `TooMany`."""
        return await self.aside(partial(self.of, name, tenant))

    async def aside(self, look: Callable[[], Found]) -> Found:
        """Something else of a tenant's that reads files, in its turn. Raises `TooMany`."""
        if self._waiting >= WAITING_MAX:
            raise TooMany
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, look)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Look-ups that wait are given up."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _lines(self, name: str, tenant: str | None) -> tuple[list[Line], list[str]]:
        """The records with this name, then those under the same keys: did its client come back, and what then? And their
        traces."""
        if self._find is None:
            return [], []
        lines = self._find(name, tenant)
        if TRACE.fullmatch(name):
            lines += self._find(NAME_BEFORE + name, tenant)
        also = {(r["key"][0], r["id"]): None for r in (line["record"] for line in lines if line["kind"] == "name")}
        for owner, request in list(also)[:FOLLOWED_MAX]:
            lines += [line for line in self._find(request, owner) if line not in lines]
        keys = {(owner, key): None for owner, key in (line["record"]["key"] for line in lines) if key != name}
        for owner, key in [one for one in keys if one not in also][:FOLLOWED_MAX]:
            lines += [line for line in self._find(key, owner) if line not in lines]
        told = [line for line in lines if line["kind"] != "name"]
        names = [line["record"]["request_id"] for line in lines if line["kind"] == "name"]
        traces = dict.fromkeys(name.removeprefix(NAME_BEFORE) for name in names if name.startswith(NAME_BEFORE))
        return sorted(told, key=lambda line: str(line["utc"]))[-RECORDS_MAX:], list(traces)[:TRACES_MAX]


def _without(line: Line, fields: tuple[str, ...]) -> Line:
    return {**line, "record": {name: value for name, value in line["record"].items() if name not in fields}}
