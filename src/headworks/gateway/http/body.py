"""One request's body that did not come whole with its head: counted, capped, and handed over once.

A stated length says where it ends, or its chunks do, which httptools reads (llhttp in its strict mode). This also says
whether the body may still go on, and holds its bytes until a handler takes them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httptools

from headworks.gateway.http.deadlines import NEVER_S
from headworks.gateway.http.head import body_too_large
from headworks.gateway.http.limits import EdgeLimits, malformed

_CHUNKS_FOLLOW = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(slots=True, eq=False)
class RequestBody:
    """`length_bytes` None: chunked. Only the connection that reads it writes its fields."""

    length_bytes: int | None
    limits: EdgeLimits
    received_bytes: int = 0
    wire_bytes: int = 0
    complete: bool = False
    surplus: bool = False
    """Bytes came after its end."""
    error: Exception | None = None
    """It was refused or given up, and nothing of it is kept."""
    total_due_s: float = NEVER_S
    """Set when its time begins to run."""
    waiter: asyncio.Future[None] | None = None
    content: bytearray = field(default_factory=bytearray)
    _parser: Any = None

    def receive(self, received: bytes) -> None:
        """What came from the wire. Errors are kept for whoever reads the body."""
        self.wire_bytes += len(received)
        if self.length_bytes is None:
            self._receive_chunks(received)
            return
        left_bytes = self.length_bytes - self.received_bytes
        self.surplus = len(received) > left_bytes
        self.on_body(received[:left_bytes])
        if self.received_bytes == self.length_bytes:
            self.on_message_complete()

    def _receive_chunks(self, received: bytes) -> None:
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
            self._parser.feed_data(_CHUNKS_FOLLOW)
        try:
            self._parser.feed_data(received)
        except httptools.HttpParserError as error:
            self.surplus = self.complete
            self.fail(malformed(f"The chunked body cannot be read: {error}."))
        self._check_framing()

    def _check_framing(self) -> None:
        """Chunk sizes, extensions and trailers are dropped, but they may not cost without end."""
        if self.wire_bytes - self.received_bytes > self.limits.header_bytes_max + self.received_bytes:
            self.fail(malformed("The chunks' sizes, extensions and trailers outweigh the body; send larger chunks."))

    def on_message_begin(self) -> None:
        """For the parser: a request begins, the one whose chunks follow or one too many."""
        self.surplus = self.complete

    def on_body(self, piece: bytes) -> None:
        """For the parser: one piece. All are gathered in one buffer, so that many small ones cost no more."""
        self.received_bytes += len(piece)
        if self.received_bytes > self.limits.body_bytes_max:
            self.fail(body_too_large(self.limits.body_bytes_max))
        elif self.error is None:
            self.content += piece

    def on_message_complete(self) -> None:
        """For the parser: it is whole."""
        self._check_framing()
        self.complete = self.error is None
        self._wake()

    def fail(self, error: Exception) -> None:
        """The first error stays; whoever waits or asks later gets it."""
        if not self.is_over:
            self.error = error
            self.content.clear()
            self._wake()

    @property
    def is_over(self) -> bool:
        """Nothing of it is waited for."""
        return self.complete or self.error is not None

    def close(self) -> bool:
        """Nothing further will be received. Whether it is whole."""
        self._parser = None  # It holds our methods: each body would wait for the collector.
        self.fail(malformed("The client left before its body was complete."))
        return self.complete

    def _wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
