"""One client connection: bytes in, one exchange at a time, and an end for every way in which a peer can stall.

A connection awaits a head, serves one exchange, and awaits the next; or it lingers (an answer came before the request's
end, so the rest is read and dropped for a moment, else the client would see a reset instead of the answer); or it closes.
Bytes after the end of a request are refused while that request is being served: they are how a client hides that it left.
Reading never stops while a request waits, save for the sum of unread bodies, so that an end of stream is always seen.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from headworks.gateway.http import head as rules
from headworks.gateway.http.answer import CONTINUE
from headworks.gateway.http.body import RequestBody
from headworks.gateway.http.deadlines import NEVER_S, UNFILED
from headworks.gateway.http.exchange import Exchange
from headworks.gateway.http.limits import HttpError, malformed
from headworks.gateway.http.listen import reset_on_close
from headworks.gateway.http.reader import judge_head
from headworks.gateway.http.repeated import DIGITS_MAX, MISSES_MAX, RepeatedHead, remember

if TYPE_CHECKING:
    from headworks.gateway.http.server import Server

_AWAITING, _SERVING, _LINGERING, _CLOSING = range(4)


@dataclass(slots=True, eq=False)
class Connection(asyncio.Protocol):
    """What the event loop calls when a client's socket has news, and what an exchange asks of it."""

    server: Server
    peer: str
    _transport: asyncio.Transport = field(init=False)
    _head: rules.IncomingHead = field(default_factory=rules.IncomingHead)
    _state: int = _AWAITING
    _admitted: bool = False
    _served: bool = False
    _repeated: RepeatedHead | None = None
    _misses: int = 0
    """Heads in a row that were not the one before."""
    _body: RequestBody | None = None
    """None also where the whole body came with its head."""
    _exchange: Exchange | None = None
    keep_alive: bool = True
    _continue_asked: bool = False
    _dropped_bytes: int = 0
    _paused_bytes: int = 0
    _reason: str = ""
    """Why it ends: the first cause stays."""
    write_paused: bool = False
    due_s: float = NEVER_S
    wheel_slot: int = UNFILED

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        server = self.server
        if server.draining:  # It was accepted in the turn in which the port closed.
            self._close("draining")
            return
        refusal = server.admit(self)
        if refusal is not None:
            # No lingering: when places are short, a refused peer may cost nothing that lasts.
            self._transport.write(server.last_answer(refusal))
            self._close("refused")
            return
        self._admitted = True
        self._transport.set_write_buffer_limits(server.limits.write_buffer_bytes_max)
        self._arm(server.clock_s() + server.limits.header_s)

    def data_received(self, data: bytes) -> None:
        try:
            if self._state == _AWAITING:
                if self._repeated is None or self._head.begun or not self._repeated_head(data, self._repeated):
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
            self._close("client_closed")

    def pause_writing(self) -> None:
        self._paused_bytes = 0
        self._arm(self.server.clock_s() + self.server.limits.write_stall_s)
        self.write_paused = True
        self._tell_flow(self._exchange)

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._state == _AWAITING:
            limits = self.server.limits
            self._arm(self.server.clock_s() + (limits.header_s if self._head.begun else limits.idle_s))
        elif self._state == _SERVING:
            self._arm_body(self._body)
        self._tell_flow(self._exchange)

    def _tell_flow(self, exchange: Exchange | None) -> None:
        if exchange is not None:
            self.guarded(lambda: exchange.flow(paused=self.write_paused))

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self._reason or ("client_closed" if exc is None else "client_reset")
        self._state = _CLOSING
        self._lose(reason)
        self.server.wheel.forget(self)
        if self._admitted:
            self.server.forget(self, reason)

    # A head.

    def _head_received(self, data: bytes) -> None:
        was_begun = self._head.begun
        whole = self._head.take(data, self.server.limits)
        if whole is not None:
            self._serve(*whole)
        elif self._head.begun and not was_begun and self._served:
            self._arm(self.server.clock_s() + self.server.limits.header_s)

    def _repeated_head(self, data: bytes, repeated: RepeatedHead) -> bool:
        """Serves the last request's head again, where only the digits of its length differ; they are judged as ever."""
        start = repeated.before_bytes
        end = data.find(b"\r", start)
        digits = data[start:end]
        if not (
            data.startswith(repeated.before)
            and data.startswith(repeated.after, end)
            and len(digits) <= DIGITS_MAX
            and digits.isdigit()
            and 0 < (length := int(digits)) <= self.server.limits.body_bytes_max
        ):
            return False
        self._misses = 0
        self._continue_asked = False
        fields = repeated.fields.copy()
        fields[b"content-length"] = digits
        exchange = self._begin(repeated.line, fields, length, data[end + repeated.after_bytes :])
        if exchange is not None:
            self.server.launch(exchange)
        return True

    def _serve(self, head: bytes, rest: bytes) -> None:
        server = self.server
        lines = rules.split_head(head, server.limits)
        line = rules.request_line(lines[0])
        allowed = server.allowed(line.path)
        if line.method not in rules.ROUTABLE:
            raise rules.wrong_method(line, allowed)
        judge_head(head)
        fields = rules.fields_of(lines)
        rules.check_routing(line, fields)
        length = rules.length_bytes(line, fields)
        self.keep_alive = rules.keeps_alive(fields.get(b"connection", b""), line.http_1_0)
        self._continue_asked = b"expect" in fields and not line.http_1_0
        exchange = self._begin(line, fields, length, rest)
        if exchange is not None and self._decide(exchange, line, length, allowed):
            if length and self.keep_alive and self._misses < MISSES_MAX:
                self._misses += 1
                self._repeated = remember(head, line, fields, server.limits.header_bytes_max)
            server.launch(exchange)

    def _begin(self, line: rules.RequestLine, fields: dict[bytes, bytes], length: int | None, rest: bytes) -> Exchange | None:
        """`rest` came with the head. A body that is all there goes to the handler at once and is never booked as unread."""
        server = self.server
        limits = server.limits
        self._state = _SERVING
        self._served = True
        server.counters.requests += 1
        now_s = server.clock_s()
        if len(rest) == length and length <= limits.body_bytes_max:
            exchange = self._exchange = Exchange(self, self._transport, rest, None, line, fields, now_s)
            if not self.write_paused:
                self.due_s = NEVER_S
            return exchange
        self._body = body = RequestBody(length, limits.body_bytes_max, limits.header_bytes_max)
        self._exchange = Exchange(self, self._transport, None, body, line, fields, now_s)
        if rest:
            body.receive(rest)
        if body.surplus:
            self._pipelined()
        else:
            self._body_goes_on(body)
        return self._exchange

    def _decide(self, exchange: Exchange, line: rules.RequestLine, length: int | None, allowed: tuple[str, ...] | None) -> bool:
        """Whether it is for the handler; if not, it is answered here."""
        server = self.server
        of_all_paths = line.method == "OPTIONS" and line.path == "*"
        refusal = None if of_all_paths else rules.polite_refusal(line, exchange.headers, length, allowed, server.limits)
        if refusal is not None:
            server.answer_error(exchange, refusal)
        elif line.method == "OPTIONS":
            names = [] if allowed is None else [(b"Allow", ", ".join(rules.with_implied(allowed)).encode())]
            exchange.respond(204, names, b"")
        else:
            return True
        return False

    # A body.

    def _body_received(self, data: bytes) -> None:
        body = self._body
        if body is None or body.complete:
            self._pipelined()
            return
        if body.error is not None:
            self._drop(len(data))
            return
        body.receive(data)
        if body.surplus:
            self._pipelined()
        else:
            self._body_goes_on(body)

    def _body_goes_on(self, body: RequestBody) -> None:
        if body.dropped:
            self.server.release_unread(self, body)
        elif body.booked or not body.complete:
            self.server.count_unread(self, body)
        self._arm_body(body)

    def _arm_body(self, body: RequestBody | None) -> None:
        """Both body deadlines: in all, and since the last bytes. Neither runs while the client waits to be asked."""
        if body is None or body.is_over or (self._continue_asked and not body.wire_bytes):
            self._arm(NEVER_S)
            return
        now_s = self.server.clock_s()
        if body.total_due_s is NEVER_S:
            body.total_due_s = now_s + self.server.limits.body_s
        # While we do not read, silence is ours, not the client's.
        idle_s = self.server.limits.body_idle_s if self._transport.is_reading() else self.server.limits.body_s
        self._arm(min(body.total_due_s, now_s + idle_s))

    def _pipelined(self) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.started:
            self.abort("pipelined")
            return
        self._refuse(malformed("More bytes came before the answer; send the next request after it."), "pipelined")

    # What the exchange asks of its connection.

    def gives_up(self, body: RequestBody) -> bool:
        """Asked when an answer begins: a body that is not complete by then is dropped, and the connection will end."""
        if body.complete:
            return False
        body.drop()
        self.server.release_unread(self, body)
        self._arm_body(body)
        return True

    def ask_for_body(self, body: RequestBody) -> None:
        asked, self._continue_asked = self._continue_asked, False
        if asked and not body.wire_bytes:
            self._transport.write(CONTINUE)
            self._arm_body(body)

    def resume_reading(self) -> None:
        """For the server: the sum of unread bodies has room again, or it is this one's turn."""
        if self._state == _SERVING and self._body is not None:
            self._transport.resume_reading()
            self._arm_body(self._body)

    def pause_reading(self) -> None:
        """For the server: the sum of unread bodies is at its bound."""
        self._transport.pause_reading()

    def wrote_while_paused(self, count_bytes: int) -> None:
        self._paused_bytes += count_bytes
        if self._paused_bytes > self.server.limits.paused_bytes_max:
            self.abort("write_overflow")

    def exchange_finished(self, closes: bool, now_s: float) -> None:
        body, self._body, self._exchange = self._body, None, None
        if body is not None:
            self._let_go(body)
        if not closes:
            self._state = _AWAITING
            if not self.write_paused:
                self.server.wheel.watch(self, now_s + self.server.limits.idle_s)
        elif body is None or body.complete:
            self._close("draining" if self.server.draining else "answered")
        else:
            self._linger("unread_body")

    def break_off(self, reset: bool) -> None:
        if reset and self.peer != "unix":
            reset_on_close(self._transport.get_extra_info("socket"))
        self._lose("broken")
        self._close("broken")

    def guarded(self, callback: Callable[[], None]) -> None:
        """Runs another module's callback; its fault costs this connection and nothing else."""
        try:
            callback()
        except Exception as fault:
            self._fault(fault)

    # Ends.

    def drain(self) -> None:
        """For the server: closes a connection on which nothing has been asked."""
        if self._state == _AWAITING and not self._head.begun:
            self._close("draining")

    def deadline_passed(self, now_s: float) -> None:
        self.guarded(self._time_is_up)

    def _time_is_up(self) -> None:
        if self._state == _CLOSING:
            self._transport.abort()
        elif self._state == _LINGERING:
            self._close("lingered")
        elif self.write_paused:
            self.abort("write_stall")
        elif self._state == _SERVING and self._body is not None:
            self._reason = self._reason or "body_timeout"
            self._body.fail(malformed("The body did not come in time.", 408))
        elif self._head.begun:
            self._refuse(malformed("The head did not come in time.", 408), "head_timeout")
        else:
            self._close("idle" if self._served else "silent")

    def _refuse(self, error: HttpError, reason: str) -> None:
        """The answer to bytes that are no request; nothing after them can be trusted, so the connection ends."""
        self._lose(reason)
        self._transport.write(self.server.last_answer(error))
        self._linger(reason)

    def _linger(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._state = _LINGERING
        self._head.drop()
        self._dropped_bytes = 0
        with contextlib.suppress(OSError):  # the client reset it just now; the transport is about to say so
            if self._transport.can_write_eof():
                self._transport.write_eof()
        self._arm(self.server.clock_s() + self.server.limits.linger_s)

    def _drop(self, count_bytes: int) -> None:
        self._dropped_bytes += count_bytes
        if self._dropped_bytes > self.server.limits.linger_bytes_max:
            self._transport.pause_reading()

    def _close(self, reason: str) -> None:
        """Closes once all is written, or when the client has let it lie too long."""
        self._reason = self._reason or reason
        self._state = _CLOSING
        self._transport.close()
        if self._admitted:
            self._arm(self.server.clock_s() + self.server.limits.write_stall_s)

    def abort(self, reason: str) -> None:
        """Ends at once; what is not written yet is lost."""
        self._reason = self._reason or reason
        self._state = _CLOSING
        self._transport.abort()
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        exchange, self._exchange = self._exchange, None
        body, self._body = self._body, None
        if body is not None:
            self._let_go(body)
        if exchange is not None:
            exchange.lose(reason)

    def _let_go(self, body: RequestBody) -> None:
        body.close()
        if body.booked:
            self.server.release_unread(self, body)

    def _fault(self, fault: BaseException) -> None:
        self.server.count_fault(fault)
        if self._state != _CLOSING:
            self.abort("fault")

    def _arm(self, due_s: float) -> None:
        """While the client does not read, its stall is the only deadline of an open exchange."""
        if not self.write_paused or self._state >= _LINGERING:
            self.server.wheel.watch(self, due_s)
