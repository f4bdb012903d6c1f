"""One request on one connection, as a handler sees it: what was asked, and one way to answer it exactly once.

The exchange owns the framing of the answer. A handler says `respond`, or `start`, `write` …, `finish`; whatever becomes of
the client meanwhile, these calls stay safe and do nothing once `gone` is set. An answer that cannot be finished is
aborted: the client must see a broken connection, never a clean end.

Its handler is called where the request came in: it answers, has somebody promise to, or goes on as a task if it has to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headworks.engines.base import Carrier
from headworks.engines.outbox import Outgoing
from headworks.gateway.http.answer import CHUNKED_LINES, CLOSE_LINE, KEEP_ALIVE_LINE, LAST_CHUNK, WITHOUT_LENGTH, header_lines
from headworks.gateway.http.body import RequestBody
from headworks.gateway.http.head import Head
from headworks.gateway.http.limits import Headers
from headworks.gateway.reader import Reader

if TYPE_CHECKING:
    from headworks.gateway.http.connection import Connection

_JOINED_BYTES_MAX = 65_536
"""Up to here head and body leave in one write; beyond, copying the body would cost more than a second write."""


@dataclass(slots=True, eq=False)
class Exchange:
    """Attributes without an underscore are for handlers to read; only this package writes them.

    `path` is percent-decoded once and checked: the only thing routing and authorisation may look at. `headers` has
    lower-case names; lists that came in several fields are joined by a comma. `peer` is the socket's address.
    `body_ready` is a body that came whole with its head; None: `read_body` has it, sooner or later.
    Headers of an answer are pairs, or whole lines that `header_lines` has made of such pairs.
    """

    _connection: Connection
    _transport: Outgoing
    head: Head
    method: str
    path: str
    headers: dict[bytes, bytes]
    peer: str
    body_ready: bytes | None
    _body: RequestBody | None
    received_s: float
    carrier: Carrier | None = None
    """Whoever takes it to its engine in our place, where that is who asks (`gateway/envoy`)."""
    task: asyncio.Task[None] | None = None
    """Its handler, where that has to wait for something, until it has ended."""
    started: bool = False
    chunked: bool = False
    finished: bool = False
    promised: bool = False
    """Whoever promised the answer gives it, or says `fail`; the handler may end before."""
    gone_reason: str = ""
    """Set once the client is gone."""
    _open: bool = False
    _paused: bool = False
    _left_bytes: int | None = None
    _reader: Reader | None = None
    _gone_callbacks: tuple[Callable[[], None], ...] = ()

    def handler_done(self, task: asyncio.Task[None]) -> None:
        """It was one that had to wait."""
        self._connection.server.handler_ended(self, asyncio.CancelledError() if task.cancelled() else task.exception())

    def promise(self, left: Callable[[], None]) -> None:
        """Somebody else gives the answer, whatever happens, and the handler need not wait for it. `left`: see `on_gone`."""
        self.promised = True
        self.on_gone(left)

    def fail(self, fault: BaseException) -> None:
        """A promise that cannot be kept, which is a fault of ours."""
        self._connection.server.handler_ended(self, fault)

    # The client.

    @property
    def gone(self) -> bool:
        """Nobody reads an answer any more."""
        return self.gone_reason != ""

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Calls back once when the client is gone, at once if it is. Nothing is called after a clean finish."""
        if self.gone_reason:
            callback()
        else:
            self._gone_callbacks += (callback,)

    def read_by(self, reader: Reader) -> None:
        """Tells `reader` when the client falls behind (at once if it has) and catches up, and once if it is gone."""
        self._reader = reader
        if self.gone_reason:
            reader.leave()
        elif self._paused:
            reader.fall_behind()

    async def read_body(self) -> bytes:
        """The body, asked for now: a client that waits for `100 Continue` gets it here, so after authentication."""
        body = self._body
        if body is None:
            return self.body_ready or b""
        while not body.complete:
            if body.error is not None:
                raise body.error
            self._connection.ask_for_body(body)
            body.waiter = asyncio.get_running_loop().create_future()
            await body.waiter
        self._connection.server.book_unread(self._connection, 0)
        return bytes(body.content)

    # The answer.

    def respond(self, status: int, headers: Headers | bytes, body: bytes) -> None:
        """The whole answer. Its length is stated, and a HEAD request gets the head alone."""
        if status in WITHOUT_LENGTH:
            framing, body = b"\r\n", b""
        else:
            framing = b"Content-Length: %d\r\n\r\n" % len(body)
            if self.method == "HEAD":
                body = b""
        connection = self._connection
        now_s = connection.server.clock_s()
        if len(body) <= _JOINED_BYTES_MAX:
            self._begin(status, headers, framing, now_s, body)
        else:
            self._begin(status, headers, framing, now_s, b"")
            if not self.gone_reason:
                self._transport.write(body)
        self._end()
        if not self.gone_reason:
            connection.exchange_finished(now_s)

    def start(self, status: int, headers: Headers | bytes, length: int | None) -> None:
        """Begins an answer of `length` bytes; None: chunked, or ended by closing where the client speaks HTTP/1.0."""
        has_body = self.method != "HEAD" and status not in WITHOUT_LENGTH
        chunked = length is None and has_body and not self.head.line.http_1_0
        if length is not None and status not in WITHOUT_LENGTH:
            framing = b"Content-Length: %d\r\n\r\n" % length
        else:
            framing = CHUNKED_LINES if chunked else b"\r\n"
        connection = self._connection
        if length is None and has_body and not chunked:
            connection.keep_alive = False
        self._begin(status, headers, framing, connection.server.clock_s(), b"")
        if not self.gone_reason:
            self.chunked = chunked
            self._left_bytes, self._open = length, has_body
            self.body_ready = None  # an answer that has begun asks nothing more

    def _begin(self, status: int, headers: Headers | bytes, framing: bytes, now_s: float, body: bytes) -> None:
        """Writes the head, by which the connection's fate is settled. `framing`: its last lines, the empty one included."""
        if self.started or self.finished:
            raise RuntimeError("this exchange was answered already")
        if self.gone_reason:
            self.started = True
            return
        fields = headers if type(headers) is bytes else header_lines(headers)
        connection = self._connection
        server = connection.server
        if self._body is not None:
            connection.give_up(self._body)
        if not connection.keep_alive or server.draining:
            connection.keep_alive = False
            ours = CLOSE_LINE
        else:
            ours = KEEP_ALIVE_LINE if self.head.line.http_1_0 else b""
        self.started = True
        self._transport.write(b"".join((server.first_lines.of(status, now_s), fields, ours, framing, body)))

    def write(self, payload: bytes) -> None:
        """A piece of the answer, framed as `start` decided."""
        if not self._open or not payload:
            self._check_started()
            return
        if self.chunked:
            self._transport.write(b"%x\r\n%b\r\n" % (len(payload), payload))
        else:
            if self._left_bytes is not None:
                if len(payload) > self._left_bytes:
                    raise RuntimeError("more was written than the answer's stated length")
                self._left_bytes -= len(payload)
            self._transport.write(payload)
        if self._paused:
            self._connection.wrote_while_paused(len(payload))

    def write_raw(self, raw: bytes) -> None:
        """Whole chunks, framed already, passed on as they are. The last, empty one is `finish`'s: never among them."""
        if not self._open:
            self._check_started()
            return
        if not self.chunked:
            raise RuntimeError("raw chunks in an answer that is not chunked")
        self._transport.write(raw)
        if self._paused:
            self._connection.wrote_while_paused(len(raw))

    def finish(self) -> None:
        """The clean end. Of an answer that fell short of its stated length there is none: that connection breaks."""
        if self.finished:
            return
        self._check_started()
        if self._open and self._left_bytes:
            self.abort()
            return
        self._end()
        if not self.gone_reason:
            if self.chunked:
                self._transport.write(LAST_CHUNK)
            self._connection.exchange_finished(self._connection.server.clock_s())

    def abort(self) -> None:
        """Breaks the connection, so that no client takes what it has for the whole. What was written still goes out."""
        if self.finished:
            return
        self._end()
        if not self.gone_reason:
            # A chunked or counted answer shows by itself that its end is missing. One that ends by closing does not, so
            # there the end must be a reset.
            self._connection.break_off(reset=not self.chunked and not self._left_bytes)

    def _end(self) -> None:
        """Those who asked to be told things point here as well: parted, both go without the garbage collector."""
        self.finished, self._open, self._gone_callbacks, self._reader = True, False, (), None
        self._connection.server.exchange_over(self)

    def _check_started(self) -> None:
        if not self.started:
            raise RuntimeError("nothing was started")

    # What its connection tells.

    def lose(self, reason: str) -> None:
        """The client is gone. Handlers hear of it once, unless they had finished."""
        if self.finished or self.gone_reason:
            return
        self.gone_reason = reason
        self._open = False
        callbacks, reader, self._gone_callbacks, self._reader = self._gone_callbacks, self._reader, (), None
        for callback in callbacks if reader is None else (*callbacks, reader.leave):
            self._connection.guarded(callback)
        self._connection.server.exchange_over(self)

    def flow(self) -> None:
        """The write buffer passed its mark, up or down."""
        self._paused = self._connection.write_paused
        if self._reader is not None:
            (self._reader.fall_behind if self._paused else self._reader.catch_up)()
