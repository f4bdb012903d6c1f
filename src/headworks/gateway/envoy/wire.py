"""A connection to our own edge without a socket: what Envoy shows of a request goes in as bytes, and an answer comes out.

So whatever holds on the public port holds here as well, by the same code: who may ask, how long a head and a body may be and
take, what a refusal says, and that a client which has gone is gone at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

from headworks.engines.response import AnswerReader
from headworks.gateway.envoy.heads import Fields
from headworks.gateway.http.connection import Connection
from headworks.gateway.http.server import Server


class Taker(Protocol):
    """Who gets the answer."""

    def take_answer(self, status: int, fields: Fields, payload: bytes, is_last: bool) -> None:
        """Some more of it: the head each time, and what came of the body in one write."""
        ...

    def broken(self) -> None:
        """It will not end as it should."""
        ...


class Wire:
    """The client's side of such a connection; to the edge it is a transport."""

    def __init__(self, server: Server, peer: str, taker: Taker, hold: Callable[[bool], None], *, head_only: bool) -> None:
        """`head_only`: a HEAD request's answer states a length, and no body follows."""
        self._taker: Taker | None = taker
        self._head_only = head_only
        self._hold = hold
        self._reader = AnswerReader()
        self._reader.begin(self)
        self._status, self._fields = 0, Fields()
        self._payloads: list[bytes] = []
        self._is_answered = self._is_closing = self._is_held = False
        self._connection: Connection | None = Connection(server, peer)
        self._connection.connection_made(cast(asyncio.Transport, self))

    # what Envoy shows

    def show(self, data: bytes) -> None:
        """More of the request, as a client would send it."""
        if self._connection is not None and not self._is_closing:
            self._connection.data_received(data)

    def slow(self, paused: bool) -> None:
        """Envoy takes what it is told more slowly than it comes, or has caught up."""
        connection = self._connection
        if connection is not None and not self._is_closing:
            (connection.pause_writing if paused else connection.resume_writing)()

    def refuse(self, answer: bytes) -> None:
        """End it with this, a whole answer that the edge did not make."""
        self.write(answer)
        if self._connection is not None:
            self._connection.abort("refused")

    def lose(self) -> None:
        """Envoy has gone, and the client with it. They point at each other: parted here, both go at once."""
        connection, self._connection, self._taker, self._is_closing = self._connection, None, None, True
        if connection is not None:
            connection.connection_lost(None)
        self._reader.end()

    # of the answer (`engines.base.Listener`)

    def on_head(self, status: int, headers: Fields, chunked: bool) -> None:
        self._status, self._fields = status, headers

    def on_body(self, raw: bytes | None, payload: bytes) -> None:
        self._payloads.append(payload)

    def on_not_sent(self, reason: str) -> None: ...

    def on_end(self) -> None: ...

    def on_lost(self, cause: str) -> None: ...

    def on_closed(self) -> None: ...

    # the edge's side (`asyncio.Transport`)

    def write(self, data: bytes) -> None:
        taker = self._taker
        if self._is_answered or taker is None:
            return
        self._is_answered = self._reader.feed(data) or (self._head_only and self._status > 0)
        if self._status:
            payload, self._payloads = b"".join(self._payloads), []
            taker.take_answer(self._status, self._fields, payload, self._is_answered)

    def close(self) -> None:
        """The edge has said all it has to say."""
        if not self._is_closing:
            self._is_closing = True
            if not self._is_answered and self._taker is not None:
                self._taker.broken()
            asyncio.get_running_loop().call_soon(self.lose)

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def can_write_eof(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """What waits is bounded where it waits (`picker.Said`)."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._is_held = True
        self._hold(True)

    def resume_reading(self) -> None:
        self._is_held = False
        self._hold(False)

    def is_reading(self) -> bool:
        return not self._is_held

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default
