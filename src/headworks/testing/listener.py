"""A listener that writes down what it was told, in order, and lets a test wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

WAIT_S = 10.0


class Recorder:
    """`engines.base.Listener` for tests. `told` holds one line for each call but the body's."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.chunked = False
        self.payload = b""
        self.raw: list[bytes | None] = []
        self._news = asyncio.Event()

    def _tell(self, what: str) -> None:
        self.told.append(what)
        self._news.set()

    def on_not_sent(self, reason: str) -> None:
        """See `Listener`."""
        self._tell(f"not_sent {reason}")

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]], chunked: bool) -> None:
        """See `Listener`."""
        self.status, self.headers, self.chunked = status, headers, chunked
        self._tell("head")

    def on_body(self, raw: bytes | None, payload: bytes) -> None:
        """See `Listener`."""
        self.payload += payload
        self.raw.append(raw)
        self._news.set()

    def on_end(self) -> None:
        """See `Listener`."""
        self._tell("end")

    def on_lost(self, cause: str) -> None:
        """See `Listener`."""
        self._tell(f"lost {cause}")

    def on_closed(self) -> None:
        """See `Listener`."""
        self._tell("closed")

    async def until(self, reached: Callable[[Recorder], bool], wait_s: float = WAIT_S) -> None:
        """Wait until what was told satisfies the condition. Raises `TimeoutError` with what was told instead."""
        try:
            async with asyncio.timeout(wait_s):
                while not reached(self):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise TimeoutError(f"told {self.told} and {len(self.payload)} bytes, nothing more in {wait_s:g} s") from None

    async def until_told(self, begin: str, wait_s: float = WAIT_S) -> str:
        """Wait until something beginning like this was told."""
        await self.until(lambda recorder: any(what.startswith(begin) for what in recorder.told), wait_s)
        return next(what for what in self.told if what.startswith(begin))

    async def until_over(self, wait_s: float = WAIT_S) -> str:
        """Wait for the last word: `not_sent …`, `end`, `lost …` or `closed`."""
        await self.until(lambda recorder: bool(recorder.told) and recorder.told[-1] != "head", wait_s)
        return self.told[-1]
