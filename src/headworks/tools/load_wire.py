"""The load driver's side of the wire: one attempt on one connection, as cheap as it can be.

The driver shares its machine with the engine it measures, so it takes little: one protocol object a connection, the
response parsed in the callback it arrives in, one small decode an event, no task switch between the first byte and the
last. An attempt ends in exactly one way (`Attempt.end`).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import SplitResult

import httptools
import msgspec

IDLE_S_MAX = 3.5
"""A connection idle for longer is not used again: an engine may close it at 5 s, just as we write."""
CONNECTIONS_MAX = 8_000
ERROR_BODY_BYTES_MAX = 65_536
EVENT_BYTES_MAX = 1_048_576

COMPLETE, REFUSED, LEFT, CUT, OVERDUE, UNCONNECTED = "complete", "refused", "left", "cut", "overdue", "unconnected"
"""How an attempt ends: whole answer · a status of 400 or more, or an error in place of the first token · no first token
within the patience · broken, an error event, aborted, or not an event stream · too long altogether · no connection."""


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Error(msgspec.Struct):
    code: str | int | None = None
    type: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_error = msgspec.json.Decoder(_ErrorBody).decode


@dataclass(slots=True)
class Attempt:
    """One request on the wire and what came of it. Filled in here, read everywhere. Times are the loop's clock."""

    started_s: float
    """Before the connection was looked for."""
    status: int = 0
    code: str = ""
    """The error's code, or its type, where the answer was refused; how it was cut where it was."""
    hints: dict[str, str] = field(default_factory=dict)
    """The headers a client's retry goes by."""
    first_token_s: float = 0.0
    ended_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    """From usage where it came, else one for each event that carried output."""
    end: str = ""

    @property
    def ttft_s(self) -> float:
        """Start to first token; only where there was one."""
        return self.first_token_s - self.started_s


HINTS = (b"retry-after-ms", b"retry-after", b"x-should-retry")


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection that carries one attempt at a time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._clock = time.monotonic  # uvloop rounds its own to milliseconds
        self._transport: asyncio.Transport | None = None
        self._attempt: Attempt | None = None
        self._done: Callable[[Attempt], None] = lambda attempt: None
        self._timer: asyncio.TimerHandle | None = None
        self._patience_s = 0.0
        self._limit_s = 0.0
        self.idle_since_s = 0.0
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._partial = b""
        self._finished = self._done_seen = self._broken = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is one in all but its ancestry.
        self._transport = cast(asyncio.Transport, transport)

    def send(
        self, request: bytes, attempt: Attempt, patience_s: float, limit_s: float, done: Callable[[Attempt], None]
    ) -> None:
        """Write the request; `done` is called once, with the attempt, when it has ended."""
        assert self._transport is not None and self._attempt is None
        self._begin()
        self._attempt, self._done = attempt, done
        self._limit_s = limit_s
        self._timer = self._pool.loop.call_later(max(0.0, attempt.started_s + patience_s - self._clock()), self._leave, LEFT)
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._attempt is None:
            self._close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._leave(CUT, "not HTTP")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in HINTS and self._attempt is not None:
            self._attempt.hints[name.decode()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._attempt is not None:
            self._attempt.status = self._parser.get_status_code()

    def on_body(self, payload: bytes) -> None:
        attempt = self._attempt
        if attempt is None:
            return
        payload = self._partial + payload if self._partial else payload
        if attempt.status != 200:
            self._partial = payload[:ERROR_BODY_BYTES_MAX]
            return
        end = payload.rfind(b"\n\n") + 2 if b"\n\n" in payload else 0
        self._partial = payload[end:]
        for event in payload[:end].split(b"\n\n"):
            if event.startswith(b"data: "):
                self._on_event(attempt, event[6:])
        if len(self._partial) > EVENT_BYTES_MAX:
            self._broken = True

    def _on_event(self, attempt: Attempt, payload: bytes) -> None:
        if payload == b"[DONE]":
            self._done_seen = True
            return
        try:
            event = _decode_event(payload)
        except msgspec.DecodeError:
            self._broken = True
            return
        if event.error is not None:
            self._broken = True
            attempt.code = f"error event {_name(event.error)}".strip()
        if event.usage is not None:
            attempt.prompt_tokens, attempt.output_tokens = event.usage.prompt_tokens, event.usage.completion_tokens
        for choice in event.choices:
            if choice.finish_reason is not None:
                self._finished = True
                # An aborted answer ends well-formed on some engines; it is not the answer that was asked for.
                self._broken = self._broken or choice.finish_reason == "abort"
            if choice.delta is None or choice.delta.role is None or choice.delta.content:
                attempt.output_tokens += 1
                if not attempt.first_token_s:
                    self._on_first_token(attempt)

    def _on_first_token(self, attempt: Attempt) -> None:
        attempt.first_token_s = self._clock()
        if self._timer is not None:
            self._timer.cancel()
        left_s = attempt.started_s + self._limit_s - attempt.first_token_s
        self._timer = self._pool.loop.call_later(max(0.0, left_s), self._leave, OVERDUE)

    def on_message_complete(self) -> None:
        attempt = self._attempt
        if attempt is None or attempt.status < 200:
            return
        if attempt.status != 200:
            attempt.code = _code(self._partial)
            self._end(REFUSED)
        else:
            self._end_stream(attempt)
        if self._parser.should_keep_alive():
            self._pool.take_back(self)
        else:
            self._close()

    def _end_stream(self, attempt: Attempt) -> None:
        """An engine that is full may say so only after it has begun a stream: an error in place of the first token."""
        if self._finished and self._done_seen and not self._broken:
            self._end(COMPLETE)
        elif attempt.code and not attempt.first_token_s:
            self._end(REFUSED)
        else:
            self._end(CUT, attempt.code or "not a whole answer")

    def connection_lost(self, exc: Exception | None) -> None:
        begun = self._attempt is not None and self._attempt.status
        self._end(CUT, "closed in the answer" if begun else "closed before the answer")
        self._pool.forget(self)

    def _leave(self, end: str, code: str = "") -> None:
        """The client hangs up: a plain close, as an application's own client would."""
        self._end(end, code)
        self._close()

    def _end(self, end: str, code: str = "") -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        attempt.end, attempt.ended_s, attempt.code = end, self._clock(), code or attempt.code
        self._done(attempt)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def close(self) -> None:
        """Hang up, whatever is going on."""
        self._leave(CUT, "the run was over")


def _code(body: bytes) -> str:
    try:
        return _name(_decode_error(body).error)
    except msgspec.DecodeError:
        return ""


def _name(error: _Error) -> str:
    """An engine repeats the status as its code; the type then says more."""
    return error.code if isinstance(error.code, str) else (error.type or "")


class Pool:
    """Connections to one address, the newest idle one first, bounded by `CONNECTIONS_MAX`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: SplitResult) -> None:
        self.loop = loop
        self._host = address.hostname or "127.0.0.1"
        self._tls = ssl.create_default_context() if address.scheme == "https" else None
        self._port = address.port or (443 if self._tls else 80)
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._dialling = 0
        self._closed = False

    async def run(self, request: bytes, patience_s: float, limit_s: float) -> Attempt:
        """One attempt from looking for a connection to its end."""
        attempt = Attempt(started_s=time.monotonic())
        connection = self._idle_one(attempt.started_s) or await self._dial(patience_s)
        if connection is None:
            attempt.end, attempt.ended_s = UNCONNECTED, time.monotonic()
            return attempt
        ended: asyncio.Future[Attempt] = self.loop.create_future()

        def done(made: Attempt) -> None:
            if not ended.done():  # the run may have been given up meanwhile
                ended.set_result(made)

        connection.send(request, attempt, patience_s, limit_s, done)
        try:
            return await ended
        except asyncio.CancelledError:
            connection.close()
            raise

    def _idle_one(self, now_s: float) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and now_s - connection.idle_since_s < IDLE_S_MAX:
                return connection
            connection.close()
        return None

    async def _dial(self, patience_s: float) -> Connection | None:
        if len(self._open) + self._dialling >= CONNECTIONS_MAX:
            return None
        self._dialling += 1
        try:
            async with asyncio.timeout(patience_s):
                _, connection = await self.loop.create_connection(
                    lambda: Connection(self), self._host, self._port, ssl=self._tls
                )
        except (OSError, TimeoutError):
            return None
        finally:
            self._dialling -= 1
        if self._closed:
            connection.close()
            return None
        self._open.add(connection)
        return connection

    def take_back(self, connection: Connection) -> None:
        """An answer is read to its end and the connection may carry another request."""
        connection.idle_since_s = time.monotonic()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self._open.discard(connection)

    def close(self) -> None:
        """Hang up everything, and what is being dialled as soon as it is there. An attempt that still runs ends as cut."""
        self._closed = True
        for connection in list(self._open):
            connection.close()
