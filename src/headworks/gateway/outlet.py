"""Where a relay writes to: the audience of an answer, or what puts one together for it (`assembly.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headworks.gateway.audience import EngineHeaders, Source

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""An answer that is not passed on as it comes is held until it is whole. Beyond this it is given up."""


class Outlet(Protocol):
    """One answer on its way out. It ends exactly once: by `respond`, `finish` or `fail`."""

    @property
    def untouched(self) -> bool:
        """Nothing has been said to anybody yet, so another attempt may write here."""

    def fed_by(self, source: Source) -> None:
        """Who writes here from now on, and is told when a reader is slow."""

    def respond(self, status: int, engine_headers: EngineHeaders, body: bytes) -> None:
        """The whole answer at once."""

    def start(self, status: int, engine_headers: EngineHeaders) -> None:
        """The head of a stream."""

    def send(self, raw: bytes | None, payload: bytes) -> None:
        """Some of a stream, up to the end of an event; `raw` is the same in whole chunked frames."""

    def straight(self) -> Callable[[bytes], None] | None:
        """Where whole chunked frames may go without passing here, if anywhere."""

    def finish(self) -> None:
        """The clean end of a stream."""

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
        """It cannot be had, for this reason."""
