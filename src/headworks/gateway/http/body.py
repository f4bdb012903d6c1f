"""One request's body that did not come whole with its head: counted, capped, and handed over once.

Its stated length or its chunks say where it ends; this also says whether it may still go on, and holds the bytes until a
handler takes them. A body that was refused or given up is still counted, and dropped.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from headworks.gateway.http.deadlines import NEVER_S
from headworks.gateway.http.head import body_too_large
from headworks.gateway.http.limits import HttpError, malformed
from headworks.gateway.http.reader import ChunkReader


@dataclass(slots=True, eq=False)
class RequestBody:
    """`length_bytes` None: chunked. Only the connection that reads it writes its fields."""

    length_bytes: int | None
    bytes_max: int
    framing_bytes_max: int
    received_bytes: int = 0
    wire_bytes: int = 0
    booked: bool = False
    booked_bytes: int = 0
    """What the server's sum of unread bodies holds for this one."""
    complete: bool = False
    surplus: bool = False
    """Bytes came after its end."""
    dropped: bool = False
    """Nobody will read it any more."""
    error: HttpError | None = None
    total_due_s: float = NEVER_S
    """Set when its time begins to run."""
    waiter: asyncio.Future[None] | None = None
    content: bytes = b""
    """The whole body, once complete."""
    _gathered: bytearray | None = None
    _chunks: ChunkReader | None = None

    def receive(self, received: bytes) -> None:
        """What came from the wire. Errors are kept for whoever reads the body."""
        self.wire_bytes += len(received)
        if self.length_bytes is None:
            self._receive_chunks(received)
            return
        left_bytes = self.length_bytes - self.received_bytes
        if len(received) > left_bytes:
            self.surplus = True
            received = received[:left_bytes]
        self._add(received)
        if self.received_bytes == self.length_bytes:
            self._finish()

    def _receive_chunks(self, received: bytes) -> None:
        chunks = self._chunks
        if chunks is None:
            chunks = self._chunks = ChunkReader(self._add)
        error = chunks.read(received)
        self.surplus = chunks.surplus
        if error is not None:
            self.fail(error)
        self._check_framing()
        if chunks.complete:
            self._finish()

    def _add(self, piece: bytes) -> None:
        """One piece. Pieces are gathered in one buffer, so that many small ones cost no more."""
        self.received_bytes += len(piece)
        if self.received_bytes > self.bytes_max:
            self.fail(body_too_large(self.bytes_max))
        elif self.dropped:
            return
        elif not self.content:
            self.content = piece
        else:
            if self._gathered is None:
                self._gathered = bytearray(self.content)
            self._gathered += piece

    def _check_framing(self) -> None:
        """Chunk sizes, extensions and trailers are dropped, but they may not cost without end."""
        framing_bytes = self.wire_bytes - self.received_bytes
        if framing_bytes > self.framing_bytes_max + self.received_bytes:
            self.fail(malformed("The chunks' sizes, extensions and trailers outweigh the body; send larger chunks."))

    def fail(self, error: HttpError) -> None:
        """The first error stays; whoever waits or asks later gets it."""
        if self.error is None and not self.complete:
            self.error = error
            self.drop()
            self.wake()

    def drop(self) -> None:
        """Gives it up; what still comes of it is only counted."""
        self.dropped = True
        self.content = b""
        self._gathered = None

    def _finish(self) -> None:
        if self.error is None:
            self.complete = True
            if self._gathered is not None:
                self.content = bytes(self._gathered)
                self._gathered = None
            self.wake()

    def held_bytes(self) -> int:
        """Memory that waits for a handler."""
        return 0 if self.dropped else self.received_bytes

    @property
    def is_over(self) -> bool:
        """Nothing of it is waited for: it is whole, or refused, or given up."""
        return self.complete or self.error is not None or self.dropped

    def close(self) -> None:
        """Nothing further will be received."""
        if self._chunks is not None:
            self._chunks.close()
            self._chunks = None

    def wake(self) -> None:
        """Lets a reading handler look again."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
