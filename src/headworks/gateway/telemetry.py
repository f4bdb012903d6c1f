"""Traces and `gen_ai` metrics for an OpenTelemetry collector, over OTLP/HTTP (F1, decision 47; the extra `otel`).

Off unless `telemetry.otlp_url` is set, and then nothing of the SDK is loaded. A request that is sampled costs the loop a random
number, an entry in a table and a tuple in a queue; spans are built and sent by a thread of its own, every `SEND_S`. While the
collector does not take them they wait, at most `WAITING_MAX`; what does not fit is dropped and counted.

A request is a span `chat MODEL` from its arrival to its end, with two in it: `queue` until it was admitted, and `engine` from
when it was sent until its end, which is the parent of whatever the engine records. No prompt, no answer, no fingerprint is in
any of them."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from headworks.core.effects import Outcome
from headworks.gateway.trace_context import SAMPLED, TraceContext

log = logging.getLogger("headworks.gateway")

SEND_S = 1.0
WAITING_MAX = 4_096
"""Requests that have ended and are not sent yet; and as many that have not ended."""
RATIO_BITS = 56
"""Of the random part of a trace's id, by which it is sampled: so all that share it are, or none."""
MISSING = "it needs the OpenTelemetry SDK; install headworks[otel], or leave telemetry.otlp_url out"


class TelemetryError(Exception):
    """Traces are configured and cannot be sent."""


@dataclass(slots=True)
class Traced:
    """A request that is recorded, and what its spans are called."""

    context: TraceContext
    span_id: bytes
    engine_span_id: bytes
    """All ids are hexadecimal."""


class Sends(Protocol):
    """Sends what has ended. Returns how many could not be sent."""

    def send(self, ended: list[tuple[Traced | None, Outcome]]) -> int: ...

    def close(self) -> None: ...


class Telemetry:
    """One gateway's."""

    def __init__(self, exporter: Sends, ratio: float, send_s: float = SEND_S) -> None:
        self._exporter = exporter
        self._below = int(ratio * (1 << RATIO_BITS))
        self._open: dict[str, Traced] = {}
        """By arrival."""
        self._ended: deque[tuple[Traced | None, Outcome]] = deque()
        self.dropped = 0
        """Requests of which nothing was sent."""
        self._send_s = send_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send_on, name="telemetry", daemon=True)
        self._thread.start()

    def begin(self, arrival: str, context: TraceContext | None) -> tuple[TraceContext, bytes]:
        """A request comes. Gives its trace, and the header lines for its engine."""
        if context is None:
            trace_id = secrets.token_hex(16)
            is_sampled = int(trace_id[-RATIO_BITS // 4 :], 16) < self._below
            context = TraceContext(trace_id.encode(), b"", SAMPLED if is_sampled else 0, b"")
        span_id = secrets.token_hex(8).encode()
        if context.is_sampled and len(self._open) < WAITING_MAX:
            self._open[arrival] = Traced(context, secrets.token_hex(8).encode(), span_id)
        return context, context.lines(span_id)

    def ended(self, outcome: Outcome) -> None:
        """An arrival has ended."""
        traced = self._open.pop(outcome.id, None)
        if len(self._ended) >= WAITING_MAX:
            self.dropped += 1
        else:
            self._ended.append((traced, outcome))

    def flush(self) -> None:
        """Send what has ended up to now."""
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        if ended:
            self.dropped += self._exporter.send(ended)

    def close(self) -> None:
        """What has ended is sent, if it is taken."""
        self._closing.set()
        self._thread.join()
        self.flush()
        self._exporter.close()

    def _send_on(self) -> None:
        while not self._closing.wait(self._send_s):
            try:
                self.flush()
            except Exception as fault:  # somebody else's library: no fault of it may end the thread
                log.error("traces could not be sent", exc_info=fault)


def opened(url: str | None, ratio: float, offset_s: float, about: dict[str, Any]) -> Telemetry | None:
    """By the settings; None: nothing is exported. `about`: this gateway. Raises `TelemetryError` where the SDK is missing."""
    if url is None:
        return None
    try:
        from headworks.gateway.telemetry_export import Exporter
    except ImportError:
        raise TelemetryError(f"telemetry.otlp_url: {MISSING}") from None
    return Telemetry(Exporter(url, offset_s, about), ratio)
