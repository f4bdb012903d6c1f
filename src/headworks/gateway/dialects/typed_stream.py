"""Streams of typed events: what `/v1/responses` and `/v1/messages` have in common (`event_stream.EventStream` for the others).

Each event says what it is. Those that carry a piece of the answer are counted, about one a token. What comes before the first
of them (an id, an empty answer, an empty block) is held back until it is there, so that until then an error is still an
ordinary answer with a status of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from headworks.gateway.audience import EngineHeaders, Source
from headworks.gateway.engine_words import WireUsage
from headworks.gateway.event_stream import EVENT_BYTES_MAX, EventStream, content_of, read_answer
from headworks.gateway.outlet import ANSWER_BYTES_MAX, Outlet

LENGTH = "length"
ABOUT_STREAMS = frozenset({b"content-type", b"cache-control"})


class TypedStream(EventStream):
    """One answer's typed events. A dialect says what each means in `_read`."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        super().__init__(1, True)
        self._held = b""

    def take(self, payload: bytes) -> bytes:
        """What came before the first piece of the answer goes out with it."""
        passed = self._take_apart(payload)
        if not self.token_events and self.error is None:
            self._held += passed
            if len(self._held) > EVENT_BYTES_MAX:
                self.error = b"an answer does not begin within %d bytes" % EVENT_BYTES_MAX
            return b""
        if not self._held:
            return passed
        held, self._held = self._held, b""
        return held + passed

    def close(self) -> bytes:
        """The stream is over: an event that lacks only its empty line counts."""
        rest = super().close()
        if not self.token_events:
            return b""
        held, self._held = self._held, b""
        return held + rest

    def ending(self, prompt_tokens: int, output_tokens: int) -> bytes:
        """The events that are still missing of an answer that is ended here, as one that has reached its limit (A8)."""
        raise NotImplementedError

    def _look(self, event: bytes) -> bool:
        content = content_of(event)
        if content is None:
            return True
        try:
            return self._read(content)
        except (msgspec.DecodeError, RecursionError):
            return True  # not of a form we know: the client's business, and no sign of an end

    def _read(self, content: bytes) -> bool:
        """Learn from one event. False: not for the client."""
        raise NotImplementedError

    def _ended(self, reason: str) -> None:
        """The last word on the answer. One without a token has begun with it."""
        self.finished[0] = reason
        self.token_events = self.token_events or 1


class AssembledEvents:
    """An outlet that reads a stream itself and gives the audience one answer, for requests that want it in one piece (A8)."""

    __slots__ = ("_audience", "_headers", "_size_bytes", "_status")

    def __init__(self, audience: Outlet) -> None:
        self._audience = audience
        self._status = 0
        self._headers: EngineHeaders = ()
        self._size_bytes = 0

    def _read(self, content: bytes) -> None:
        """Take in one event."""
        raise NotImplementedError

    def _body(self) -> bytes:
        """The whole answer; empty where something of it is missing."""
        raise NotImplementedError

    @property
    def untouched(self) -> bool:
        return self._audience.untouched

    def fed_by(self, source: Source) -> None:
        self._audience.fed_by(source)

    def respond(self, status: int, engine_headers: EngineHeaders, body: bytes) -> None:
        """The engine answered in one piece after all, perhaps to say what is wrong."""
        self._audience.respond(status, engine_headers, body)

    def start(self, status: int, engine_headers: EngineHeaders) -> None:
        """The audience hears of it when it is whole."""
        self._status = status
        self._headers = [pair for pair in engine_headers if pair[0] not in ABOUT_STREAMS]

    def send(self, raw: bytes | None, payload: bytes) -> None:
        """Whole events."""
        self._size_bytes += len(payload)
        if self._size_bytes > ANSWER_BYTES_MAX:
            return
        for event in payload.replace(b"\r\n", b"\n").split(b"\n\n"):
            content = content_of(event)
            if content is not None:
                self._read(content)

    def straight(self) -> Callable[[bytes], None] | None:
        """Every frame has to be read."""
        return None

    def finish(self) -> None:
        """Everything is there."""
        body = self._body() if self._size_bytes <= ANSWER_BYTES_MAX else b""
        if body:
            self._audience.respond(self._status, [(b"content-type", b"application/json"), *self._headers], body)
        else:
            self._audience.fail("upstream_lost")

    def fail(
        self,
        code: str,
        *,
        value: float | None = None,
        limit: float | None = None,
        unit: str = "",
        subject: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        """Nothing was sent yet, so it has a status of its own."""
        self._audience.fail(code, value=value, limit=limit, unit=unit, subject=subject, retry_after_s=retry_after_s)


class Speech(Protocol):
    """How the answers of a dialect are read, where that is not as chat completions are."""

    def stream(self) -> TypedStream:
        """Reads one stream."""

    def whole(self, body: bytes) -> tuple[str, WireUsage | None]:
        """How a whole answer ended, and what was used. Raises `msgspec.DecodeError` if it is of no form we know."""

    def assembled(self, audience: Outlet) -> Outlet:
        """An outlet that makes a whole answer of a stream. Only for requests that say they can be assembled."""


def read_whole(speech: Speech | None, body: bytes) -> tuple[str, WireUsage | None]:
    """How a whole answer ended, and what was used; one of no form we know has ended, and says nothing."""
    if speech is None:
        return read_answer(body)
    try:
        return speech.whole(body)
    except (msgspec.DecodeError, RecursionError):
        return "stop", None


def event_of(name: str, content: object) -> bytes:
    """An event of ours."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(content))
