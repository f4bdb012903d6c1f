"""What became of one request: its records in the decision logs and their story, for operators and for its own tenant (F2, K05).

A look-up reads files, the whole log in the worst case, here and at the other gateways of a shared ledger. Operators' come one
by one by themselves; tenants' are counted, and one is made at a time, so that nobody can keep gateways from their work by
asking why it was refused.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from headworks.gateway.other_logs import Asking, Names, OtherLogs
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
    """Over a decision log, and those of other gateways. Without one nothing is known of anything here."""

    def __init__(self, find: Callable[[str, str | None], list[Line]] | None, others: OtherLogs | None = None) -> None:
        self._find = find
        self._others = others
        self._waiting = 0
        self._turn = asyncio.Lock()

    async def of(self, name: str, tenant: str | None = None) -> dict[str, Any]:
        """Everything about a request id, a key, a decision or an execution; of one tenant, if one is named."""
        asking = None if self._others is None else Asking(self._others)
        lines, traces = await self._lines(name, tenant, asking) if NAME.fullmatch(name) else ([], [])
        shown = [_without(line, OURS) for line in lines if line["kind"] != COPY] if tenant is not None else lines
        told = story(shown)
        if told and traces:
            told.append(f"It belongs to the trace{'' if len(traces) == 1 else 's'} {', '.join(traces)}.")
        found = {"id": name, "story": told, "records": shown, "traces": traces}
        return found if asking is None else found | {"others": asking.shown(names=tenant is None)}

    async def own(self, name: str, tenant: str) -> dict[str, Any]:
        """The same for a tenant. Raises `TooMany`."""
        async with self._in_turn():
            return await self.of(name, tenant)

    async def aside(self, look: Callable[[], Found]) -> Found:
        """Something else of a tenant's that reads files, in its turn. Raises `TooMany`."""
        async with self._in_turn():
            return await asyncio.to_thread(look)

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        if self._waiting >= WAITING_MAX:
            raise TooMany
        self._waiting += 1
        try:
            async with self._turn:
                yield
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Others are answered no more."""
        if self._others is not None:
            self._others.close()

    async def _lines(self, name: str, tenant: str | None, asking: Asking | None) -> tuple[list[Line], list[str]]:
        """The records with this name, then those under the same keys: did its client come back, and what then? And their
        traces."""
        asked = [(name, tenant)] + ([(NAME_BEFORE + name, tenant)] if TRACE.fullmatch(name) else [])
        lines = await self._found(asked, asking)
        also = {(r["id"], r["key"][0]): None for r in (line["record"] for line in lines if line["kind"] == "name")}
        lines = _joined(lines, await self._found(list(also)[:FOLLOWED_MAX], asking))
        keys = {(key, owner): None for owner, key in (line["record"]["key"] for line in lines) if key != name}
        lines = _joined(lines, await self._found([one for one in keys if one not in also][:FOLLOWED_MAX], asking))
        told = [line for line in lines if line["kind"] != "name"]
        names = [line["record"]["request_id"] for line in lines if line["kind"] == "name"]
        traces = dict.fromkeys(name.removeprefix(NAME_BEFORE) for name in names if name.startswith(NAME_BEFORE))
        return sorted(told, key=lambda line: str(line["utc"]))[-RECORDS_MAX:], list(traces)[:TRACES_MAX]

    async def _found(self, names: Names, asking: Asking | None) -> list[Line]:
        """By any of these names, elsewhere and here: who writes into the same directory has then put it on the disk."""
        theirs = [] if asking is None else await asking.lines(names)
        return _joined(await asyncio.to_thread(self._here, names), theirs)

    def _here(self, names: Names) -> list[Line]:
        return [] if self._find is None else [line for name, tenant in names for line in self._find(name, tenant)]


def _joined(lines: list[Line], more: list[Line]) -> list[Line]:
    """Each once: gateways may write into one directory. There may be thousands, and this is on the loop."""
    encode = msgspec.json.encode
    there = {encode(line) for line in lines}
    return lines + [line for line in more if encode(line) not in there]


def _without(line: Line, fields: tuple[str, ...]) -> Line:
    return {**line, "record": {name: value for name, value in line["record"].items() if name not in fields}}
