"""An outlet that reads a stream itself and gives its audience one answer, for requests that want it in one piece (A8).

What an event says and what the whole of them is, the dialects know: `assembly.Assembled` for chat completions and completions,
`dialects/*_stream.py` for the others.
"""

from __future__ import annotations

from collections.abc import Callable

from headworks.gateway.audience import EngineHeaders, Source
from headworks.gateway.event_stream import UNFIT, content_of
from headworks.gateway.outlet import ANSWER_BYTES_MAX, Outlet

ABOUT_STREAMS = frozenset({b"content-type", b"cache-control"})


class OnePiece:
    """One answer, as far as it has come."""

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
        """The whole answer; empty where something of it is missing. May raise what is `UNFIT`."""
        raise NotImplementedError

    def _drop(self) -> None:
        """It has become too long to be given: what was read of it is of no use."""

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
            self._drop()
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
        try:
            body = self._body() if self._size_bytes <= ANSWER_BYTES_MAX else b""
        except UNFIT:
            body = b""
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
