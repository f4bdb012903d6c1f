"""One execution on its way to an engine, from being held until its last word."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headworks.engines.base import Listener

if TYPE_CHECKING:
    from headworks.engines.pool import Connection, Pool


class Call:
    """One request and what became of it. The listener gets its last word exactly once, from the loop."""

    __slots__ = ("_body", "_head", "_pool", "aborted", "connection", "is_over", "is_paused", "listener", "send_before_s")

    def __init__(self, pool: Pool, head: bytes, body: bytes, send_before_s: float, listener: Listener) -> None:
        self._pool = pool
        self._head = head
        self._body = body
        self.send_before_s = send_before_s
        self.listener = listener
        self.connection: Connection | None = None
        """The connection it was written to, while that is this call's."""
        self.is_paused = False
        """Nothing of the answer is wanted now, on whichever connection it will come."""
        self.aborted = False
        self.is_over = False
        """`on_not_sent`, `on_end` or `on_lost` is said or scheduled, or `on_closed` was said in its place."""

    def send(self) -> None:
        """See `Held.send`. Whoever left in this very turn has nothing written for it."""
        if self.is_over:
            return
        head, body, self._head, self._body = self._head, self._body, b"", b""
        try:
            self._pool.write(self, head, body)
        except Exception:  # nobody can say whether any of it went out
            self.is_over = True
            self.listener.on_lost("a fault of ours")
            raise

    def give_up(self, reason: str) -> None:
        """Nothing was written and nothing will be."""
        if not self.is_over:
            self.is_over = True
            asyncio.get_running_loop().call_soon(self.listener.on_not_sent, reason)

    def abort(self) -> None:
        """See `Upstream.abort`."""
        if self.aborted:
            return
        self.aborted = True
        if self.connection is not None:
            self.connection.abort_call()
        else:
            self.give_up("gone")

    def discard(self) -> None:
        """Nobody wants to know how it ends: close the connection it is on, if it still is."""
        if self.connection is not None:
            self.connection.discard()
        else:
            self.give_up("gone")

    def pause_reading(self) -> None:
        """See `Upstream.pause_reading`. An aborted call is never paused: its end must be seen."""
        self.is_paused = not self.aborted
        if self.connection is not None and self.is_paused:
            self.connection.pause()

    def resume_reading(self) -> None:
        """See `Upstream.resume_reading`."""
        self.is_paused = False
        if self.connection is not None:
            self.connection.resume()
