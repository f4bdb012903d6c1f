"""Streams of typed events: what `/v1/responses` and `/v1/messages` have in common (`event_stream.EventStream` for the others).

Each event says what it is. Those that carry a piece of the answer are counted, about one a token. What comes before the first
of them (an id, an empty answer, an empty block) is held back until it is there, so that until then an error is still an
ordinary answer with a status of its own.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from headworks.gateway.engine_words import WireUsage
from headworks.gateway.event_stream import EVENT_BYTES_MAX, UNREADABLE, EventStream, content_of, read_answer
from headworks.gateway.outlet import Outlet

LENGTH = "length"


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


class Speech(Protocol):
    """How the answers of a dialect are read, where that is not as chat completions are."""

    def stream(self) -> EventStream:
        """Reads one stream."""

    def whole(self, body: bytes) -> tuple[str, WireUsage | None]:
        """How a whole answer ended, and what was used. Raises `msgspec.DecodeError` if it is of no form we know."""

    def assembled(self, audience: Outlet) -> Outlet:
        """An outlet that makes a whole answer of a stream. Only for requests that say they can be assembled."""


def read_whole(speech: Speech | None, body: bytes) -> tuple[str, WireUsage | None]:
    """How a whole answer ended, and what was used; see `read_answer`."""
    if speech is None:
        return read_answer(body)
    try:
        return speech.whole(body)
    except msgspec.ValidationError:
        return "stop", None
    except (msgspec.DecodeError, RecursionError):
        return UNREADABLE, None


def event_of(name: str, content: object) -> bytes:
    """An event of ours."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(content))
