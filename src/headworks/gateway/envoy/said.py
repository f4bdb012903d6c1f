"""What is to be said on one gRPC stream, in order, and what happens when the other side takes it slowly."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc

SLOW_BYTES = 262_144
"""So much may wait before whoever writes is told to pause."""


class Body:
    """Some of a body. What comes while it waits is said with it: each message costs more than its bytes."""

    __slots__ = ("is_last", "payload", "said_as")

    def __init__(self, payload: bytes, is_last: bool, said_as: Callable[[bytes, bool], list[Any]]) -> None:
        self.payload = payload
        self.is_last = is_last
        self.said_as = said_as


class Said:
    """Written to by whoever has news, in the turn in which it comes; one task says it."""

    def __init__(self) -> None:
        self._waiting: deque[Any] = deque()
        """Messages, and bodies that are messages when their turn comes."""
        self._waiting_bytes = 0
        self._news = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._failure = ""
        self._is_slow = False
        self.released: Callable[[], object] = _never
        """Is told when what the other side says need wait no more."""
        self.slowed: Callable[[bool], None] = _nobody
        """Is told when too much waits, and when it does not any more."""

    def say(self, message: Any) -> None:
        """After what waits already."""
        if not self._failure:
            self._waiting.append(message)
            self._news.set()

    def pass_on(self, body: Body) -> None:
        """As above, of a body that is passed on as it comes: so much may wait, and then whoever writes is told."""
        if self._failure:
            return
        last = self._waiting[-1] if self._waiting else None
        if type(last) is Body:
            last.payload += body.payload
            last.is_last = body.is_last
        else:
            self.say(body)
        self._waiting_bytes += len(body.payload)
        if not self._is_slow and self._waiting_bytes > SLOW_BYTES:
            self._is_slow = True
            self.slowed(True)

    def fail(self, why: str) -> None:
        """End the stream with an error, after what waits."""
        self._failure = self._failure or why
        self._news.set()

    def part(self) -> None:
        """Nobody writes here any more. They point at each other: parted, both go without the garbage collector."""
        self.slowed, self.released = _nobody, _never

    def hold(self, held: bool) -> None:
        """Whether what the other side says next is to wait."""
        if held:
            self._may_read.clear()
        elif not self._may_read.is_set():
            self._may_read.set()
            self.released()

    @property
    def is_held(self) -> bool:
        """Somebody does."""
        return not self._may_read.is_set()

    async def may_read(self) -> None:
        """Until nobody holds it."""
        if not self._may_read.is_set():
            await self._may_read.wait()

    async def say_all(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Says what there is, until it is cancelled or the stream fails."""
        while True:
            while self._waiting:
                message = self._waiting.popleft()
                if type(message) is Body:
                    for piece in message.said_as(message.payload, message.is_last):
                        await context.write(piece)
                    self._said(len(message.payload))
                else:
                    await context.write(message)
            if self._failure:
                await context.abort(grpc.StatusCode.ABORTED, self._failure)
            self._news.clear()
            await self._news.wait()

    def _said(self, size_bytes: int) -> None:
        self._waiting_bytes -= size_bytes
        if self._is_slow and self._waiting_bytes <= SLOW_BYTES // 2:
            self._is_slow = False
            self.slowed(False)


def _nobody(paused: bool) -> None:
    """Until somebody writes here."""


def _never() -> None:
    """Until somebody waits here."""
