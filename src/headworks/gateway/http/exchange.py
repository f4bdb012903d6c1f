"""One request on one connection, as a handler sees it: what was asked, and one way to answer it exactly once.

The exchange owns the framing of the answer. A handler says `respond`, or `start`, `write` …, `finish`; whatever becomes of
the client meanwhile, these calls stay safe and do nothing once `gone` is set. An answer that cannot be finished is
aborted: the client must see a broken connection, never a clean end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from headworks.gateway.http.answer import (
    CHUNKED_LINES,
    CLOSE_LINE,
    KEEP_ALIVE_LINE,
    LAST_CHUNK,
    WITHOUT_LENGTH,
    header_lines,
    status_line,
)
from headworks.gateway.http.body import RequestBody
from headworks.gateway.http.head import RequestLine
from headworks.gateway.http.limits import Headers, HttpError, malformed
from headworks.gateway.http.running import Running

if TYPE_CHECKING:
    from headworks.gateway.http.connection import Connection

_JOINED_BYTES_MAX = 65_536
"""Up to here head and body leave in one write; beyond, copying the body would cost more than a second write."""


class Exchange:
    """Attributes without an underscore are for handlers to read; only this module and its connection write them.

    `path` is percent-decoded once and checked: the only thing routing and authorisation may look at. `headers` has
    lower-case names; lists that came in several fields are joined by a comma. `peer` is the socket's address, or `unix`.
    `body_ready` is a body that came whole with its head; None: `read_body` has it, sooner or later.
    Headers of an answer are pairs, or whole lines that `header_lines` has made of such pairs.
    """

    # fmt: off
    __slots__ = (
        "_body", "_closes", "_connection", "_gone_callbacks", "_left_bytes", "_open", "_pause", "_paused", "_resume",
        "_transport", "body_ready", "chunked", "finished", "gone", "gone_reason", "headers", "http_1_0", "method", "path",
        "peer", "query", "received_s", "started", "task",
    )
    # fmt: on

    def __init__(
        self,
        connection: Connection,
        transport: asyncio.Transport,
        body_ready: bytes | None,
        body: RequestBody | None,
        line: RequestLine,
        headers: dict[bytes, bytes],
        received_s: float,
    ) -> None:
        self._connection = connection
        self._transport = transport
        self.body_ready = body_ready
        self._body = body
        self._paused = connection.write_paused
        self._open = self._closes = False
        self._left_bytes: int | None = None
        self._pause: Callable[[], None] | None = None
        self._resume: Callable[[], None] | None = None
        self._gone_callbacks: list[Callable[[], None]] | None = None
        self.method = line.method
        self.path = line.path
        self.query = line.query
        self.http_1_0 = line.http_1_0
        self.headers = headers
        self.peer = connection.peer
        self.received_s = received_s
        self.started = self.finished = self.chunked = self.gone = False
        self.gone_reason = ""
        self.task: Running | None = None

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Calls back once when the client is gone, at once if it is. Nothing is called after a clean finish."""
        if self.gone:
            callback()
        elif self._gone_callbacks is None:
            self._gone_callbacks = [callback]
        else:
            self._gone_callbacks.append(callback)

    def on_flow(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """Calls `pause` when the client falls behind (at once if it has) and `resume` when it has caught up."""
        self._pause = pause
        self._resume = resume
        if self._paused:
            pause()

    async def read_body(self) -> bytes:
        """The body, asked for now: a client that waits for `100 Continue` gets it here, so after authentication."""
        if self.body_ready is not None:
            return self.body_ready
        body = cast(RequestBody, self._body)
        while not body.complete:
            if body.error is not None:
                raise body.error
            if self.gone:
                raise malformed("The client left before its body was complete.")
            if body.dropped:
                raise RuntimeError("the body was given up when the answer began")
            self._connection.ask_for_body(body)
            body.waiter = asyncio.get_running_loop().create_future()
            await body.waiter
        if body.booked:
            self._connection.server.release_unread(self._connection, body)
        return body.content

    def respond(self, status: int, headers: Headers | bytes, body: bytes) -> None:
        """The whole answer. Its length is stated, and a HEAD request gets the head alone."""
        connection = self._connection
        now_s = connection.server.clock_s()
        without_length = status in WITHOUT_LENGTH
        framing = b"\r\n" if without_length else b"Content-Length: %d\r\n\r\n" % len(body)
        head = self._begin(status, headers, framing, False, now_s)
        self.finished = True
        if self.gone:
            return
        if without_length or self.method == "HEAD":
            self._transport.write(head)
        elif len(body) <= _JOINED_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        connection.exchange_finished(self._closes, now_s)

    def start(self, status: int, headers: Headers | bytes, length: int | None) -> None:
        """Begins an answer of `length` bytes; None: chunked, or ended by closing where the client speaks HTTP/1.0."""
        has_body = self.method != "HEAD" and status not in WITHOUT_LENGTH
        chunked = length is None and has_body and not self.http_1_0
        if length is not None and status not in WITHOUT_LENGTH:
            framing = b"Content-Length: %d\r\n\r\n" % length
        else:
            framing = CHUNKED_LINES if chunked else b"\r\n"
        closes = length is None and has_body and not chunked
        head = self._begin(status, headers, framing, closes, self._connection.server.clock_s())
        if self.gone:
            return
        self.chunked = chunked
        self._left_bytes = length
        self._open = has_body
        self._transport.write(head)

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
        self.finished = True
        if self.gone:
            return
        if self.chunked:
            self._transport.write(LAST_CHUNK)
        self._open = False
        self._connection.exchange_finished(self._closes, self._connection.server.clock_s())

    def abort(self) -> None:
        """Breaks the connection, so that no client takes what it has for the whole. What was written still goes out."""
        if self.finished:
            return
        self.finished = True
        self._open = False
        if not self.gone:
            # A chunked or counted answer shows by itself that its end is missing. One that ends by closing does not, so
            # there the end must be a reset.
            self._connection.break_off(reset=not self.chunked and not self._left_bytes)

    def fail(self, error: HttpError, headers: Headers, body: bytes) -> None:
        """Answers with an error if nothing was begun; otherwise there is no second answer, only a broken one."""
        if self.started:
            self.abort()
        else:
            self.respond(error.status, [*headers, *error.headers], body)

    def lose(self, reason: str) -> None:
        """For the connection: the client is gone. Handlers hear of it once, unless they had finished."""
        if self.finished or self.gone:
            return
        self.gone = True
        self.gone_reason = reason
        self._open = False
        if self._body is not None:
            self._body.wake()
        callbacks, self._gone_callbacks = self._gone_callbacks, None
        for callback in callbacks or ():
            self._connection.guarded(callback)

    def flow(self, paused: bool) -> None:
        """For the connection: the write buffer passed its mark, up or down."""
        self._paused = paused
        callback = self._pause if paused else self._resume
        if callback is not None:
            callback()

    def _begin(self, status: int, headers: Headers | bytes, framing: bytes, closes: bool, now_s: float) -> bytes:
        """The head, on whose sending the connection's fate is settled. `framing`: its last lines, the empty one included."""
        if self.started or self.finished:
            raise RuntimeError("this exchange was answered already")
        if self.gone:
            self.started = True
            return b""
        connection = self._connection
        server = connection.server
        date = server.date
        if now_s >= date.stale_s:
            date.render(now_s)
        if not closes:
            # What has not come of the request's body by now is not waited for.
            given_up = self._body is not None and connection.gives_up(self._body)
            closes = given_up or not connection.keep_alive or server.draining
        ours = CLOSE_LINE if closes else KEEP_ALIVE_LINE if self.http_1_0 else b""
        fields = headers if type(headers) is bytes else header_lines(headers)
        head = b"".join((status_line(status), fields, date.line, ours, framing))
        self.started = True
        self._closes = closes
        return head

    def _check_started(self) -> None:
        if not self.started:
            raise RuntimeError("nothing was started")
