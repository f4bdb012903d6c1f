"""What becomes of a request's trace: its engine is told, it is a name of the request, where traces are exported it is begun."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headworks.core.types import Request, RequestKey
from headworks.gateway import trace_context
from headworks.gateway.telemetry import Telemetry
from headworks.gateway.trace_context import TRACEPARENT

NAME_BEFORE = "trace:"
"""Stands before a trace's id where it is written down among the names of its requests."""


class Tracing:
    """One gateway's. `note` writes a name of a request down."""

    def __init__(self, telemetry: Telemetry | None, note: Callable[[str, RequestKey, str], None]) -> None:
        self._telemetry = telemetry
        self._note = note

    def concerns(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether there is anything to do for this request."""
        return TRACEPARENT in headers or self._telemetry is not None

    def lines(self, headers: Mapping[bytes, bytes], request: Request) -> bytes:
        """Header lines for its engine."""
        context, lines = trace_context.read(headers), b""
        if self._telemetry is not None:
            context, lines = self._telemetry.begin(request.id, context)
        elif context is not None:
            lines = context.lines()
        if context is not None:
            self._note(request.id, request.key, NAME_BEFORE + context.trace_id.decode("ascii"))
        return lines
