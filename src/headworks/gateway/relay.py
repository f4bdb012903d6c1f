"""Between one engine connection and the clients of one request: bytes pass on, and what they say about the end is told.

The relay listens to one execution (`engines/base.py`) and writes to an `Audience`. It parses only what decides
something: how many events, each choice's finish reason, the usage. It goes on reading when nobody listens any more,
because only the end of the answer proves that it ended.

What the runner is told comes through a `Follower`, in the loop turn in which it became known; exactly one of `not_sent`,
`busy`, `stopped` and `lost` comes, once. Before the first event nothing is sent to the client, so until then an error
is an ordinary answer with its own status.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from headworks.core.types import Usage
from headworks.engines.base import Upstream
from headworks.gateway.audience import Audience
from headworks.gateway.event_stream import ABORTED, EventStream, Piece, WireUsage, decode_piece

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""An answer that is not streamed is held until it is whole. Beyond this it is given up."""
RATE_EVENTS_MAX = 10_000
"""How far back the tokens per event of a replica are remembered."""
HIDDEN_STATUSES = frozenset({401, 403, 407})
"""The engine's opinion of our own credentials is nothing a client could act on."""


class Follower(Protocol):
    """Who is told what became of an execution."""

    def first_byte(self) -> None:
        """The engine has begun: its first event, or the first bytes of a whole answer."""

    def progressed(self, output_tokens: int) -> None:
        """So many tokens, all samples together, counted from events."""

    def slow(self, paused: bool) -> None:
        """Reading from the engine was paused for a slow client, or goes on."""

    def stopped(self, usage: Usage, failed: bool) -> None:
        """It ended in band (E1). `failed`: with an error answer, so nothing of it runs."""

    def lost(self, cause: str) -> None:
        """It may still run."""

    def not_sent(self, reason: str) -> None:
        """Nothing was written, and the audience has not been answered."""

    def busy(self) -> None:
        """The engine refused it for want of room, and the audience has not been answered."""

    def closed(self) -> None:
        """After an abort: the engine's server closed its side."""

    def over(self) -> None:
        """Nothing more will come from this execution's connection. The last call, once."""


class EventRate:
    """Tokens per event of one replica, learnt from answers that said both. One object for all relays of the replica."""

    __slots__ = ("_events", "_tokens")

    def __init__(self) -> None:
        self._events = 1.0
        self._tokens = 1.0

    def tokens(self, events: int) -> int:
        """What so many events are worth."""
        return round(events * self._tokens / self._events)

    def learn(self, events: int, tokens: int) -> None:
        """An answer of so many events had so many tokens. Old answers count half as much each time the memory is full."""
        self._events += events
        self._tokens += tokens
        if self._events > RATE_EVENTS_MAX:
            self._events /= 2
            self._tokens /= 2


class Relay:
    """Listener of one execution."""

    __slots__ = (
        "_aborted",
        "_audience",
        "_clock_s",
        "_events",
        "_follower",
        "_headers",
        "_include_usage_asked",
        "_is_busy",
        "_over",
        "_parts",
        "_rate",
        "_report_at_events",
        "_report_every_events",
        "_samples",
        "_seen",
        "_size_bytes",
        "_started_s",
        "_status",
        "_stream",
        "_told",
        "_upstream",
        "last_s",
        "paused",
    )

    def __init__(
        self,
        audience: Audience,
        follower: Follower,
        *,
        stream: bool,
        samples: int,
        include_usage_asked: bool,
        rate: EventRate,
        is_busy: Callable[[int, bytes], bool],
        clock_s: Callable[[], float],
        report_every_events: int = 64,
    ) -> None:
        self._audience = audience
        self._follower = follower
        self._stream = stream
        self._samples = samples
        self._include_usage_asked = include_usage_asked
        self._rate = rate
        self._is_busy = is_busy
        self._clock_s = clock_s
        self._report_every_events = self._report_at_events = report_every_events
        self._upstream: Upstream | None = None
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._events: EventStream | None = None
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._seen = False
        self._told = False
        self._over = False
        self._aborted = False
        self._started_s = self.last_s = clock_s()
        """`last_s`: when the engine was last heard. For the idle limit; while `paused` the silence is ours."""
        self.paused = False
        audience.on_flow(self._pause, self._resume)

    # what the runner does

    def attach(self, upstream: Upstream) -> None:
        """The way back to the engine, which exists only once `Engine.run` has returned."""
        self._upstream = upstream
        if self._aborted:
            upstream.abort()
        elif self.paused:
            upstream.pause_reading()

    def abort(self, code: str, *, value: float | None = None, limit: float | None = None) -> None:
        """Stop it upstream and go on reading. `code` is what the clients are told; empty: there are none to tell."""
        self._aborted = True
        if self._upstream is not None:
            self._upstream.abort()
        if code:
            self._audience.fail(code, value=value, limit=limit, unit="s")
        self._resume()

    @property
    def output_tokens(self) -> int:
        """Counted so far."""
        return self._rate.tokens(self._events.token_events) if self._events is not None else 0

    # what the engine connection says

    def on_not_sent(self, reason: str) -> None:
        if not self._told:
            self._told = True
            self._follower.not_sent(reason)
        self._finish()

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]], chunked: bool) -> None:
        self.last_s = self._clock_s()
        self._status = status
        self._headers = headers
        if self._stream and 200 <= status < 300 and _is_event_stream(headers):
            self._events = EventStream(self._samples, self._include_usage_asked)

    def on_body(self, raw: bytes | None, payload: bytes) -> None:
        self.last_s = self._clock_s()
        events = self._events
        if events is None:
            self._hold(payload)
            return
        passed = events.take(payload)
        if not self._seen:
            if events.token_events and not self._told:
                self._begin()
            elif events.error is None or self._told:
                return  # nothing of the answer yet: a comment that keeps the connection alive
        if passed and self._seen:
            self._audience.send(raw if passed is payload else None, passed)
        if events.token_events >= self._report_at_events:
            self._report_at_events = events.token_events + self._report_every_events
            self._follower.progressed(self._rate.tokens(events.token_events))
        if events.done or events.error:
            self._check_end(events)

    def on_end(self) -> None:
        if self._events is None:
            self._end_whole(b"".join(self._parts))
        else:
            self._end_stream(self._events)
        self._finish()

    def on_lost(self, cause: str) -> None:
        events = self._events
        if self._told and events is not None and events.done and events.complete:
            self._audience.finish()  # it was whole; only the connection's own end is missing
        else:
            self._lost(cause)
        self._finish()

    def on_closed(self) -> None:
        self._report()
        self._follower.closed()
        self._finish()

    def _finish(self) -> None:
        if not self._over:
            self._over = True
            self._follower.over()

    # streams

    def _end_stream(self, events: EventStream) -> None:
        rest = events.close()
        if events.token_events and not self._seen:
            self._begin()
        if rest and self._seen:
            self._audience.send(None, rest)
        if events.complete:
            self._stopped(_first_reason(events.finished), events.usage, events)
            self._audience.finish()
        else:
            self._lost("the stream ended before every choice had finished")

    def _begin(self) -> None:
        """The first token. An error in its place leaves the client without a head, so it gets a proper status."""
        self._seen = True
        self._audience.start(self._status, self._headers)
        self._follower.first_byte()

    def _check_end(self, events: EventStream) -> None:
        """`[DONE]`, or an error. The first settles at once if all choices have finished: the client may leave right now."""
        if self._told:
            return
        if events.error is None:
            if events.complete:
                self._stopped(_first_reason(events.finished), events.usage, events)
            return
        if not self._seen and self._is_busy(_error_status(events.error), events.error):
            self._told = True
            self._follower.busy()
            return
        self._lost("an error event: " + events.error[:200].decode("utf-8", "replace"))

    # whole answers

    def _hold(self, payload: bytes) -> None:
        if self._told:
            return
        if not self._seen and 200 <= self._status < 300:
            self._seen = True
            self._follower.first_byte()
        self._size_bytes += len(payload)
        if self._size_bytes <= ANSWER_BYTES_MAX:
            self._parts.append(payload)
            return
        self._parts.clear()
        self._lost(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")

    def _end_whole(self, body: bytes) -> None:
        """A complete answer that was not a stream of events."""
        if self._told:
            return
        status = self._status
        if 200 <= status < 300:
            self._end_success(status, body)
        elif self._is_busy(status, body):
            self._told = True
            self._follower.busy()
        elif status >= 500:
            self._lost(f"the engine answered {status}")
        elif status < 400 or status in HIDDEN_STATUSES:
            self._audience.fail("upstream_lost")
            self._stopped("failed", WireUsage(), None, failed=True)
        else:
            self._audience.respond(status, self._headers, body)
            self._stopped("failed", WireUsage(), None, failed=True)

    def _end_success(self, status: int, body: bytes) -> None:
        try:
            answer = decode_piece(body)
        except (msgspec.DecodeError, RecursionError):
            answer = Piece()
        if any(choice.finish_reason == ABORTED for choice in answer.choices):
            self._lost("the engine says it aborted, which is no proof that it did")
            return
        self._audience.respond(status, self._headers, body)
        reason = answer.choices[0].finish_reason if answer.choices else None
        self._stopped(reason or "stop", answer.usage, None)

    # what is told, once

    def _stopped(self, end: str, usage: WireUsage | None, events: EventStream | None, failed: bool = False) -> None:
        if self._told:
            return
        self._told = True
        engine_s = self._clock_s() - self._started_s
        if usage is None:
            self._follower.stopped(Usage(0, 0, self.output_tokens, engine_s, end, False), failed)
            return
        if events is not None and usage.completion_tokens:
            self._rate.learn(events.token_events, usage.completion_tokens)
        details = usage.prompt_tokens_details
        cached = details.cached_tokens or 0 if details is not None else 0
        told = Usage(usage.prompt_tokens, cached, usage.completion_tokens, engine_s, end, True)
        self._follower.stopped(told, failed)

    def _lost(self, cause: str) -> None:
        """It may still run: the gate decides what must be proved. Its clients get no more of it in any case."""
        if self._told:
            return
        self._told = True
        self._report()
        self._follower.lost(cause)
        self._audience.fail("upstream_lost")

    def _report(self) -> None:
        """The last count of something that will not say its usage."""
        if self._events is not None and self._events.token_events:
            self._follower.progressed(self.output_tokens)

    # flow

    def _pause(self) -> None:
        if self.paused or self._aborted:
            return
        self.paused = True
        if self._upstream is not None:
            self._upstream.pause_reading()
        self._follower.slow(True)

    def _resume(self) -> None:
        if not self.paused:
            return
        self.paused = False
        self.last_s = self._clock_s()
        if self._upstream is not None:
            self._upstream.resume_reading()
        self._follower.slow(False)


def _is_event_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-type" and value.lstrip().startswith(b"text/event-stream") for name, value in headers)


def _first_reason(finished: dict[int, str]) -> str:
    return finished[min(finished)]


def _error_status(content: bytes) -> int:
    """The status an error event stands for, if it says one."""
    try:
        error: Any = msgspec.json.decode(content)["error"]
        status = error.get("code")
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError, AttributeError):
        return 500
    return status if type(status) is int and 400 <= status < 600 else 500
