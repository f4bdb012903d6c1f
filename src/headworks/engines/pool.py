"""Connections to one engine: one execution on one connection at a time, every byte written once.

What a library client gives away here are the two facts that stop evidence is made of: whether a byte of a request was
written (E0 or not), and the moment the engine's server closed its side after we half-closed ours (the start of E3a).
So: a request is written once, after the last look at the clock, on a connection known to be alive; it is never sent
again. A kept-alive connection found dead before the write costs a new one; a connection that dies later is reported.

A `Call` (`engines/call.py`) is one execution's way (`engines.base.Upstream`), a `Connection` serves calls one after another.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import cast

from headworks.engines.base import Carrier, Listener, Passage, Upstream
from headworks.engines.call import Call
from headworks.engines.endpoint import Endpoint
from headworks.engines.outbox import Outbox
from headworks.engines.response import FRAME_BYTES_MAX, FRAME_HEADS, AnswerReader, BrokenAnswer

CONNECTIONS_MAX = 10_000
"""As many as clients may have: with fewer, what was admitted would find no way to its engine."""
CONNECT_S_MAX = 3.0
IDLE_S_MAX = 4.0
"""Engines' servers close idle connections after 5 s; a request must not be on its way when they do."""
CLOSE_S_MAX = 5.0
"""How long the engine's server may take to close its side after we closed ours."""
ABORTED_SILENCE_S_MAX = 600.0
"""An answer that is read to its end for proof may be silent for so long, then nothing more is learnt from waiting."""
_WRITE_JOINED_BYTES_MAX = 8_192
"""A longer body is not copied once more to stand behind its head: uvloop writes both by one call."""
_NEWLINE = 10


class Pool:
    """The connections of one engine, newest idle first."""

    def __init__(
        self,
        endpoint: Endpoint,
        clock_s: Callable[[], float],
        *,
        outbox: Outbox | None = None,
        read_on_after_abort: bool = False,
        connections_max: int = CONNECTIONS_MAX,
        close_s_max: float = CLOSE_S_MAX,
        aborted_silence_s_max: float = ABORTED_SILENCE_S_MAX,
    ) -> None:
        self.endpoint = endpoint
        self._heads = endpoint.heads
        self.clock_s = clock_s
        self._outbox = outbox or Outbox()
        self.read_on_after_abort = read_on_after_abort
        """The engine is not told; its answer is read to the end, which is all the proof it can give."""
        self.close_s_max = close_s_max
        self.aborted_silence_s_max = aborted_silence_s_max
        self.connections_max = connections_max
        self.connections_count = self.half_closed_count = 0
        """All there are; and aborted calls whose end the engine's server has not closed yet."""
        self._idle: list[Connection] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._closed = False

    def run(
        self,
        execution: str,
        path: str,
        body: bytes,
        send_before_s: float,
        listener: Listener,
        lines: bytes = b"",
        carrier: Carrier | None = None,
    ) -> Upstream:
        """See `Engine.run`. By whoever carries it to the address that this pool's connections have, or as `send` does."""
        head = self._heads.head(execution, path, body, lines)
        if carrier is not None:
            return carrier.carry(self.endpoint.pinned, head, body, send_before_s, listener)
        return self.send(head, body, send_before_s, listener)

    def send(self, head: bytes, body: bytes, send_before_s: float, listener: Listener) -> Call:
        """Write one request when this turn is over, or as soon as there is a connection; the listener hears everything else."""
        call = Call(self, head, body, send_before_s, listener)
        self._outbox.hold(call)
        return call

    def write(self, call: Call, head: bytes, body: bytes) -> None:
        """For a call: its turn is over."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.write_if_fresh(call, head, body):
                return
            connection.close()
        if self.connections_count >= self.connections_max or self._closed:
            call.give_up("connect")
        else:
            self.connections_count += 1
            task = asyncio.get_running_loop().create_task(self._connect_and_write(call, head, body))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect_and_write(self, call: Call, head: bytes, body: bytes) -> None:
        connection = Connection(self)
        patience_s = min(CONNECT_S_MAX, max(0.0, call.send_before_s - self.clock_s()))
        try:
            async with asyncio.timeout(patience_s):
                await self.endpoint.connect(lambda: cast(asyncio.Protocol, connection))
        except (OSError, TimeoutError):
            connection.discard()
            self.forget(connection)
            call.give_up("late" if self.clock_s() > call.send_before_s else "connect")
            return
        if call.is_over:
            self.put_idle(connection)
        elif not connection.write_if_fresh(call, head, body):
            call.give_up("connect")

    def put_idle(self, connection: Connection, since_s: float = math.inf) -> None:
        """A connection has nothing to do, since now or since then. It is kept for a while, or closed."""
        transport = connection.transport
        if self._closed or transport is None or transport.is_closing():
            connection.close()
            return
        connection.idle_since_s = min(since_s, self.clock_s())
        self._idle.append(connection)
        if self._sweep_timer is None:
            self._sweep_timer = asyncio.get_running_loop().call_later(IDLE_S_MAX, self._sweep)

    def _sweep(self) -> None:
        """Close what has been idle too long; the oldest stand first."""
        self._sweep_timer = None
        idle_since_s_min = self.clock_s() - IDLE_S_MAX
        while self._idle and self._idle[0].idle_since_s <= idle_since_s_min:
            self._idle.pop(0).close()
        if self._idle:
            wait_s = max(0.01, self._idle[0].idle_since_s - idle_since_s_min)
            self._sweep_timer = asyncio.get_running_loop().call_later(wait_s, self._sweep)

    def forget(self, connection: Connection) -> None:
        """A connection is gone, or never came to be. May be said twice."""
        if connection.is_counted:
            connection.is_counted = False
            self.connections_count -= 1

    async def close(self) -> None:
        """Close idle connections. Those in use close when their call is over."""
        self._closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        while self._idle:
            self._idle.pop().close()
        # Closing is told to the transports; one turn of the loop lets them do it.
        await asyncio.sleep(0)


class Connection:
    """An `asyncio.Protocol` but for its base (decision 24). It is one call's at most, from the write to the end of either."""

    __slots__ = (
        "_call",
        "_closing_cause",
        "_half_closed",
        "_heard",
        "_passage",
        "_paused",
        "_pool",
        "_reader",
        "_timer",
        "idle_since_s",
        "is_counted",
        "transport",
    )

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.transport: asyncio.Transport | None = None
        self._reader = AnswerReader()
        self._call: Call | None = None
        self._closing_cause = ""
        self._half_closed = self._heard = self._paused = False
        self._passage: Passage | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.idle_since_s = math.inf  # a new connection has not been idle
        self.is_counted = True
        """It is one of the pool's `connections_count`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open, and nothing is written yet. uvloop's transports have asyncio's methods, and not its base class."""
        self.transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        """The engine reads a long request slowly: what is written waits in the transport, and there is nothing more to come."""

    def resume_writing(self) -> None:
        """It has read on."""

    def is_open(self) -> bool:
        """Whether a request may be written here."""
        return self.transport is not None and not self.transport.is_closing()

    def write_if_fresh(self, call: Call, head: bytes, body: bytes) -> bool:
        """Write the request, if there is still time; the clock is read last. False: not here, it is dead or too old."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        joined = len(body) <= _WRITE_JOINED_BYTES_MAX
        if joined:
            head = head + body
        now_s = self._pool.clock_s()
        if now_s - self.idle_since_s >= IDLE_S_MAX:
            return False
        if now_s > call.send_before_s:
            call.give_up("late")
            self._pool.put_idle(self, self.idle_since_s)  # nothing was said: its engine counts on
            return True
        transport.write(head)
        if not joined:
            transport.write(body)
        call.connection = self
        self._call = call
        self._reader.begin(call.listener)
        if call.is_paused:
            self.pause()
        return True

    def data_received(self, data: bytes) -> None:
        """Some of the answer. Most of a stream is frames that the listener gave leave to pass on: this costs a stream."""
        passage = self._passage
        if passage is not None:
            length = len(data)
            if passage.left and length < FRAME_BYTES_MAX:
                head, tail = FRAME_HEADS[length], passage.tail
                line = data.removeprefix(head).removesuffix(tail)
                # So long is what is left only if both were there.
                if len(line) == length - len(head) - len(tail) and _NEWLINE not in line:
                    passage.left -= 1
                    passage.write(data)
                    return
        reader = self._reader
        self._heard = True
        try:
            complete = reader.feed(data)
            self._passage = reader.passage
            if complete:
                self._answer_complete()
        except BrokenAnswer as error:
            self._lose(f"the engine sent {error}")

    def _answer_complete(self) -> None:
        call, transport = self._call, self.transport
        assert call is not None and transport is not None
        call.is_over = True
        if self._half_closed:
            # Nothing more can be sent here; the call stays until the server has closed as well.
            call.listener.on_end()
            return
        self._call = call.connection = None
        self._reader.end()
        if self._timer is not None:
            self._stop_timer()
        if self._paused:
            self.resume()
        if self._reader.reusable and not transport.get_write_buffer_size():
            self._pool.put_idle(self)
        else:
            # An answer that came before the request was written whole leaves the connection out of step.
            transport.abort()
        call.listener.on_end()

    def pause(self) -> None:
        """Stop reading: the kernel's buffers fill, then the engine's server notices."""
        if not self._paused and self.is_open():
            assert self.transport is not None
            self.transport.pause_reading()
            self._paused = True

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            if self.is_open():
                assert self.transport is not None
                self.transport.resume_reading()

    def abort_call(self) -> None:
        """Tell the engine that nobody wants this any more, and keep reading: what follows is evidence."""
        self.resume()
        transport, pool = self.transport, self._pool
        assert transport is not None
        if transport.is_closing():
            return
        loop = asyncio.get_running_loop()
        if pool.read_on_after_abort:
            self._heard = True
            self._timer = loop.call_later(pool.aborted_silence_s_max, self._check_silence)
        elif transport.can_write_eof():
            try:
                transport.write_eof()
            except OSError:  # reset by the engine just now; the transport is about to say so
                return
            self._half_closed = True
            pool.half_closed_count += 1
            self._timer = loop.call_later(pool.close_s_max, self._close_hard, "no close")
        else:
            # TLS has no half-close, so the moment the server lets go cannot be seen: E3a is not to be had.
            self._close_hard("closed by us")

    def _check_silence(self) -> None:
        if not self._heard:
            self._close_hard("silent")
            return
        self._heard = False
        self._timer = asyncio.get_running_loop().call_later(self._pool.aborted_silence_s_max, self._check_silence)

    def _close_hard(self, cause: str) -> None:
        self._closing_cause = cause
        self.discard()

    def eof_received(self) -> bool:
        """The server closed its side; the transport then closes ours (False)."""
        call = self._call
        if call is None:
            return False
        if self._half_closed:
            # An answer that only ends by closing may end here, or be cut here: nobody can tell, so it is cut.
            self._call = call.connection = None
            call.is_over = True
            call.listener.on_closed()
        elif self._reader.end_of_stream():
            self._reader.reusable = False
            self._answer_complete()
        else:
            self._lose("the engine closed the connection before the end of its answer")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, by whichever side."""
        self._stop_timer()
        self._pool.half_closed_count -= self._half_closed
        self._pool.forget(self)
        self._lose(self._closing_cause or (f"the connection broke: {exc}" if exc else "the connection was closed"))

    def _lose(self, cause: str) -> None:
        call = self._call
        self.discard()
        if call is None:
            return
        self._call = call.connection = None
        if not call.is_over:
            call.is_over = True
            call.listener.on_lost(cause)

    def close(self) -> None:
        """Let go of an idle connection."""
        if self.transport is not None:
            self.transport.close()

    def discard(self) -> None:
        """Close at once, dropping whatever is in flight."""
        if self.transport is not None:
            self.transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
