"""One client connection: bytes in, one exchange at a time, and an end for every way in which a peer can stall.

A connection awaits a head, serves one exchange, and awaits the next; or it lingers (an answer came before the request's
end, so the rest is read and dropped for a moment, else the client would see a reset instead of the answer); or it closes.
Each of these states has its one deadline (`_arm`) and its one way out when that passes (`_time_is_up`).

Bytes after the end of a request are refused while that request is being served: they are how a client hides that it left.
Reading never stops while a request waits, save for the sum of unread bodies, so that an end of stream is always seen.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from headworks.engines.outbox import Outgoing
from headworks.gateway.http.answer import CONTINUE
from headworks.gateway.http.body import RequestBody
from headworks.gateway.http.deadlines import NEVER_S, UNFILED
from headworks.gateway.http.exchange import Exchange
from headworks.gateway.http.head import (
    LENGTH_DIGITS_MAX,
    Head,
    judge_beginning,
    polite_refusal,
    read_head,
    remember,
    with_implied,
)
from headworks.gateway.http.limits import HttpError, malformed
from headworks.gateway.http.listen import reset_on_close

if TYPE_CHECKING:
    from headworks.gateway.http.server import Server

_AWAITING = 0  # Each has a line, by which the compiler knows it for a constant.
_SERVING = 1
_LINGERING = 2
_CLOSING = 3
_MISSES_MAX = 8
"""A client that sends so many different heads in a row is no longer expected to repeat one."""


@dataclass(slots=True, eq=False)
class Connection:
    """What the event loop calls when a client's socket has news (`asyncio.Protocol`), and what an exchange asks of it."""

    server: Server
    peer: str
    _transport: Outgoing = field(init=False)
    _state: int = _AWAITING
    _begun: bytes = b""
    """Some of a head whose end is missing."""
    _served: bool = False
    _repeated: Head | None = None
    """The last head, so that the same again need not be judged again: two comparisons of bytes instead."""
    _misses: int = 0
    """Heads in a row that were not the one before."""
    _exchange: Exchange | None = None
    _body: RequestBody | None = None
    """None also where the whole body came with its head."""
    keep_alive: bool = True
    _continue_asked: bool = False
    write_paused: bool = False
    _paused_bytes: int = 0
    _dropped_bytes: int = 0
    _reason: str = ""
    """Why it ends: the first cause stays."""
    due_s: float = NEVER_S
    wheel_slot: int = UNFILED

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = Outgoing(cast(asyncio.Transport, transport), self.server.outbox)
        refusal = self.server.admit(self)
        if refusal is not None:
            # No lingering: when places are short, a refused peer may cost nothing that lasts.
            self._transport.write(refusal)
            self._transport.close()
            self._state = _CLOSING
            return
        self._transport.set_write_buffer_limits(self.server.limits.write_buffer_bytes_max)
        self._arm()

    def data_received(self, data: bytes) -> None:
        try:
            if self._state == _AWAITING:
                repeated = self._repeated
                if repeated is None or self._begun or not self._repeated_received(repeated, data):
                    self._head_received(data)
            elif self._state == _SERVING:
                self._body_received(data)
            elif self._state == _LINGERING:
                self._drop(len(data))
        except HttpError as error:
            refusal = error
            self.guarded(lambda: self._refuse(refusal, "malformed"))
        except Exception as fault:
            self._fault(fault)

    def eof_received(self) -> None:
        """An end of stream counts as gone, also when only half was closed: nobody can tell the two apart in time."""
        if self._state == _SERVING:
            self.abort("client_closed")
        else:
            self.end("client_closed")

    def pause_writing(self) -> None:
        if self._state <= _SERVING:
            self.server.wheel.watch(self, self.server.clock_s() + self.server.limits.write_stall_s)
        self._paused_bytes = 0
        self._flow(True)

    def resume_writing(self) -> None:
        self._flow(False)

    def _flow(self, paused: bool) -> None:
        self.write_paused = paused
        if self._state <= _SERVING:
            self._arm()
        if self._exchange is not None:
            self.guarded(self._exchange.flow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = _CLOSING
        self._lose("client_closed" if exc is None else "client_reset")
        self.server.wheel.forget(self)
        self.server.forget(self, self._reason)

    # A head.

    def _head_received(self, data: bytes) -> None:
        head = self._begun + data
        if head.startswith(b"\r\n"):  # RFC 9112 2.2: one empty line before a request is to be ignored.
            head = head[2:]
        end = head.find(b"\r\n\r\n") + 4
        if end >= 4:
            self._begun = b""
            self._serve(head[:end], head[end:])
        elif head:
            judge_beginning(head, self.server.limits)
            is_first, self._begun = not self._begun, head
            if is_first and self._served:  # The first request's time has run since the connection was made.
                self._arm()

    def _repeated_received(self, head: Head, data: bytes) -> bool:
        """Serves the last request's head again, where only the digits of its length differ; they are judged as ever."""
        start = head.before_bytes
        end = start + len(head.digits)
        if data[:start] != head.before:
            return False
        if data[end : end + head.after_bytes] != head.after:
            end = data.find(b"\r", start, start + LENGTH_DIGITS_MAX + 1)
            if end < 0 or not data.startswith(head.after, end):
                return False
        digits, fields, length_bytes = data[start:end], head.fields, head.length_bytes
        if digits != head.digits:
            if not digits.isdigit() or not 0 < (length_bytes := int(digits)) <= self.server.limits.body_bytes_max:
                return False
            fields = {**fields, b"content-length": digits}
        self._misses = 0
        self._continue_asked = False
        exchange = self._begin(head, fields, length_bytes, data[end + head.after_bytes :])
        if exchange is not None:
            self.server.launch(exchange)
        return True

    def _serve(self, text: bytes, rest: bytes) -> None:
        """Judges a head, answers what is not for a handler, and starts the handler for the rest."""
        server = self.server
        head = read_head(text, server.limits)
        self.keep_alive = head.keep_alive
        self._continue_asked = head.continue_asked
        exchange = self._begin(head, head.fields, head.length_bytes, rest)
        if exchange is None:
            return
        allowed = server.allowed(head.line.path)
        refusal = polite_refusal(head, allowed, server.limits)
        if refusal is not None:
            server.answer_error(exchange, refusal)
        elif exchange.method == "OPTIONS":
            names = [] if allowed is None else [(b"Allow", ", ".join(with_implied(allowed)).encode())]
            exchange.respond(204, names, b"")
        else:
            if head.length_bytes and self._misses < _MISSES_MAX:
                self._misses += 1
                self._repeated = remember(head, text)
            server.launch(exchange)

    def _begin(self, head: Head, fields: dict[bytes, bytes], length_bytes: int | None, rest: bytes) -> Exchange | None:
        """`rest` came with the head. A body that is all there goes to the handler at once and is never booked as unread."""
        server, line = self.server, head.line
        self._state = _SERVING
        self._served = True
        server.counters.requests += 1
        body_ready = rest if len(rest) == length_bytes else None
        body = self._body = RequestBody(length_bytes, server.limits) if body_ready is None else None
        now_s = server.clock_s()
        exchange = self._exchange = Exchange(
            self, self._transport, head, line.method, line.path, fields, self.peer, body_ready, body, now_s
        )
        if self.write_paused:
            exchange.flow()
        elif body is None:
            self.due_s = NEVER_S
        if body is not None:
            self._dropped_bytes = 0
            self._body_received(rest)
        return None if exchange.gone_reason else exchange

    # A body.

    def _body_received(self, data: bytes) -> None:
        body = self._body
        if body is None or body.complete:
            self._pipelined()
        elif body.error is not None:
            self._drop(len(data))
        else:
            body.receive(data)
            if body.surplus:
                self._pipelined()
            else:
                self.server.book_unread(self, len(body.content))
                self._arm()

    def _pipelined(self) -> None:
        if self._exchange is not None and self._exchange.started:
            self.abort("pipelined")
        else:
            self._refuse(malformed("More bytes came before the answer; send the next request after it."), "pipelined")

    def _drop(self, count_bytes: int) -> None:
        """What nobody reads any more. A client that still gets an answer must be seen to leave, so it is read on."""
        self._dropped_bytes += count_bytes
        if self._state == _SERVING:
            if self._dropped_bytes > self.server.limits.body_bytes_max:
                self.abort("unread_body")
        elif self._dropped_bytes > self.server.limits.linger_bytes_max:
            self._transport.pause_reading()

    # What the exchange and the server ask of it.

    def ask_for_body(self, body: RequestBody) -> None:
        if self._continue_asked and not body.wire_bytes:
            self._continue_asked = False
            self._transport.write(CONTINUE)
            self._arm()

    def give_up(self, body: RequestBody) -> None:
        """An answer begins: what has not come of the request's body by now is dropped, and the connection will end."""
        if not body.complete:
            body.fail(RuntimeError("the body was given up when the answer began"))
            self.keep_alive = False
            self.server.book_unread(self, 0)
            self._arm()

    def pause_reading(self) -> None:
        """The sum of unread bodies is at its bound."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """There is room again, or it is this one's turn."""
        if self._state == _SERVING:
            self._transport.resume_reading()
            self._arm()

    def wrote_while_paused(self, count_bytes: int) -> None:
        self._paused_bytes += count_bytes
        if self._paused_bytes > self.server.limits.paused_bytes_max:
            self.abort("write_overflow")

    def exchange_finished(self, now_s: float) -> None:
        self._exchange = None
        was_whole = self._body is None or self._let_go()
        if self.keep_alive:
            self._state = _AWAITING
            if not self.write_paused:
                self.server.wheel.watch(self, now_s + self.server.limits.idle_s)
        elif was_whole:
            self.end("draining" if self.server.draining else "answered")
        else:
            self._linger("unread_body")

    def break_off(self, reset: bool) -> None:
        if reset:
            reset_on_close(self._transport.get_extra_info("socket"))
        self.end("broken")

    def guarded(self, callback: Callable[[], None]) -> None:
        """Runs another module's callback; its fault costs this connection and nothing else."""
        try:
            callback()
        except Exception as fault:
            self._fault(fault)

    # Deadlines.

    def _arm(self) -> None:
        """Sets the deadline of the state it is in. A client that does not read is watched for that alone, until it closes."""
        if self.write_paused and self._state <= _SERVING:
            return
        limits, body, now_s = self.server.limits, self._body, self.server.clock_s()
        if self._state == _CLOSING:
            due_s = now_s + limits.write_stall_s
        elif self._state == _LINGERING:
            due_s = now_s + limits.linger_s
        elif self._state == _AWAITING:
            due_s = now_s + (limits.header_s if self._begun or not self._served else limits.idle_s)
        elif body is None or body.is_over or (self._continue_asked and not body.wire_bytes):
            due_s = NEVER_S
        else:
            if body.total_due_s == NEVER_S:
                body.total_due_s = now_s + limits.body_s
            # While we do not read, silence is ours, not the client's.
            idle_s = limits.body_idle_s if self._transport.is_reading() else limits.body_s
            due_s = min(body.total_due_s, now_s + idle_s)
        self.server.wheel.watch(self, due_s)

    def deadline_passed(self, now_s: float) -> None:
        self.guarded(self._time_is_up)

    def _time_is_up(self) -> None:
        if self._state == _CLOSING:
            self._transport.abort()
        elif self._state == _LINGERING:
            self.end("lingered")
        elif self.write_paused:
            self.abort("write_stall")
        elif self._body is not None:
            self._reason = self._reason or "body_timeout"
            self._body.fail(malformed("The body did not come in time.", 408))
        elif self._begun:
            self._refuse(malformed("The head did not come in time.", 408), "head_timeout")
        else:
            self.end("idle" if self._served else "silent")

    # Ends.

    def drain(self) -> None:
        """For the server: closes a connection on which nothing has been asked."""
        if self._state == _AWAITING and not self._begun:
            self.end("draining")

    def _refuse(self, error: HttpError, reason: str) -> None:
        """The answer to bytes that are no request; nothing after them can be trusted, so the connection ends."""
        self._lose(reason)
        self._transport.write(self.server.last_answer(error))
        self._linger(reason)

    def _linger(self, reason: str) -> None:
        self._lose(reason)
        self._state = _LINGERING
        self._begun = b""
        self._dropped_bytes = 0
        with contextlib.suppress(OSError):  # the client reset it just now; the transport is about to say so
            if self._transport.can_write_eof():
                self._transport.write_eof()
        self._arm()

    def end(self, reason: str) -> None:
        """Closes once all is written, or when the client has let it lie too long."""
        self._lose(reason)
        self._state = _CLOSING
        self._transport.close()
        self._arm()

    def abort(self, reason: str) -> None:
        """Ends at once; what is not written yet is lost."""
        self._state = _CLOSING
        self._transport.abort()
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        """Nothing more will come from the client: whoever serves it hears why. The first cause stays."""
        self._reason = self._reason or reason
        exchange, self._exchange = self._exchange, None
        self._let_go()
        if exchange is not None:
            exchange.lose(self._reason)

    def _let_go(self) -> bool:
        """Nothing more of a body is waited for. Whether it was whole."""
        body, self._body = self._body, None
        if body is None:
            return True
        self.server.book_unread(self, 0)
        return body.close()

    def _fault(self, fault: BaseException) -> None:
        self.server.count_fault(fault)
        if self._state != _CLOSING:
            self.abort("fault")
