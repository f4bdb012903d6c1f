"""Looks as they are made, to whoever watches: server-sent events on the admin port (F9).

While somebody watches, one look is made every `EVERY_S`, for all of them together; while nobody does, none. A viewer is sent
the newest look there is when he has taken the one before: a slow one misses looks and delays nobody, and one that takes
nothing for `STUCK_S` is let go. So a viewer costs what is on its way to him, and there are `VIEWERS_MAX` at most.

    id: 17
    data: {"version": 17, …}        the very bytes of /admin/snapshot?version=17
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

log = logging.getLogger("headworks.gateway")

EVERY_S = 0.5
VIEWERS_MAX = 16
STUCK_S = 15.0
END = b"event: end\ndata:\n\n"
HEADERS = Headers(
    {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store", "x-accel-buffering": "no"}
).raw
"""The last one asks proxies of nginx's kind not to keep events back."""


class Feed:
    """The viewers of one gateway, and the task that looks for them."""

    def __init__(self, look: Callable[[], tuple[int, bytes]], every_s: float = EVERY_S, stuck_s: float = STUCK_S) -> None:
        self._look = look
        self._every_s = every_s
        self._stuck_s = stuck_s
        self._newest: tuple[int, bytes] = (0, b"")
        self._looking: asyncio.Task[None] | None = None
        self._viewers: list[Viewer] = []
        self._is_closed = False

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    @property
    def has_room(self) -> bool:
        """Another may watch."""
        return self.viewers < VIEWERS_MAX and not self._is_closed

    async def watch(self, receive: Receive, send: Send, may_go_on: Callable[[], bool]) -> None:
        """Send one viewer what there is, until he leaves, may not look any more, is stuck, or this gateway ends."""
        viewer = Viewer()
        self._viewers.append(viewer)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_on())
        leaving = asyncio.create_task(viewer.leave(receive))
        try:
            await self._send_on(viewer, send, may_go_on)
        except TimeoutError:
            log.warning("a viewer of the feed has taken nothing for %g s and is let go", self._stuck_s)
        finally:
            leaving.cancel()
            self._viewers.remove(viewer)
            if not self._viewers:
                self._stop_looking()

    async def _send_on(self, viewer: Viewer, send: Send, may_go_on: Callable[[], bool]) -> None:
        sent = 0
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        while not viewer.is_over and may_go_on():
            version, body = self._newest
            if version == sent:
                viewer.news.clear()
                await viewer.news.wait()
                continue
            sent = version
            async with asyncio.timeout(self._stuck_s):
                await send({"type": "http.response.body", "body": _event(version, body), "more_body": True})
        if not viewer.has_left:
            async with asyncio.timeout(self._stuck_s):
                await send({"type": "http.response.body", "body": END, "more_body": False})

    async def _look_on(self) -> None:
        """A look that fails is a fault of ours: viewers are let go and told so, and come again a little later."""
        try:
            while True:
                self._newest = self._look()
                for viewer in self._viewers:
                    viewer.news.set()
                await asyncio.sleep(self._every_s)
        except Exception:
            log.exception("the gateway could not be looked at")
            self._looking = None
            self._let_go()

    def _stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self._looking, self._newest = None, (0, b"")

    def _let_go(self) -> None:
        for viewer in self._viewers:
            viewer.end()

    def close(self) -> None:
        """This gateway ends: everybody is told so."""
        self._is_closed = True
        self._let_go()


class Viewer:
    """One open connection."""

    __slots__ = ("has_left", "is_over", "news")

    def __init__(self) -> None:
        self.news = asyncio.Event()
        """There may be something new to do."""
        self.is_over = False
        self.has_left = False

    async def leave(self, receive: Receive) -> None:
        """Returns when he has."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.has_left = True
        self.end()

    def end(self) -> None:
        """Nothing more is for him."""
        self.is_over = True
        self.news.set()


class FeedResponse(Response):
    """An answer that goes on."""

    def __init__(self, feed: Feed, may_go_on: Callable[[], bool]) -> None:
        self._feed = feed
        self._may_go_on = may_go_on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._feed.watch(receive, send, self._may_go_on)


def _event(version: int, body: bytes) -> bytes:
    """JSON of ours has no line breaks."""
    return b"id: %d\ndata: %b\n\n" % (version, body)
