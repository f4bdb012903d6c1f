"""Many live streams in one process, without a client library's weight: who began, when each event came, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from processes import BODY

AT_ONCE = 16
"""Streams that are begun side by side: 200 in one instant would be a test of accepting connections."""

AGAIN_S = 0.3
"""Until one that was refused is asked again."""


@dataclass
class Stream:
    """One of them, as its client sees it."""

    url: str
    at_s: list[float] = field(default_factory=list)
    """When each of its events came."""
    status: int = 0
    last: bytes = b""
    is_over: bool = False


class Streams:
    """Streams spread over some gateways, read in a thread of their own until they end or are left."""

    def __init__(self, urls: list[str], tokens: int) -> None:
        self.streams = [Stream(url) for url in urls]
        self._tokens = tokens
        self._loop = asyncio.new_event_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._tasks = [self._loop.create_task(self._read(stream)) for stream in self.streams]
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))

    async def _read(self, stream: Stream) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while not await self._stream(stream):  # noqa: ASYNC110 (its answer is what is waited for)
                    await asyncio.sleep(AGAIN_S)
        finally:
            stream.is_over = True

    async def _stream(self, stream: Stream) -> bool:
        """False: it was refused, and may be asked again."""
        where = urlsplit(stream.url)
        async with self._gate:
            reader, writer = await asyncio.open_connection(where.hostname, where.port)
            writer.write(asking(stream.url, self._tokens))
            head = await reader.readuntil(b"\r\n\r\n")
            stream.status = int(head.split(b" ", 2)[1])
        try:
            while stream.status == 200 and (line := await reader.readline()):
                if line.startswith(b"data: "):
                    stream.at_s.append(time.monotonic())
                    stream.last = line.strip()
                elif stream.last == b"data: [DONE]":
                    break
            return stream.status == 200
        finally:
            writer.close()

    def begun(self) -> int:
        """So many have shown two events at least."""
        return sum(len(stream.at_s) >= 2 for stream in self.streams)

    def leave(self) -> None:
        """Close every connection."""
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])
        self._thread.join(30)


def asking(url: str, tokens: int) -> bytes:
    """The bytes of one streamed chat."""
    body = json.dumps({**BODY, "max_tokens": tokens}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def gaps_ms(streams: list[Stream], from_s: float, to_s: float) -> list[float]:
    """How long each event that came in between was behind the one before it, sorted."""
    found = []
    for stream in streams:
        before_s = None
        for at_s in list(stream.at_s):
            if before_s is not None and from_s <= at_s < to_s:
                found.append(1000 * (at_s - before_s))
            before_s = at_s
    return sorted(found)


def quantile(values: list[float], ratio: float) -> float:
    """Of sorted values."""
    return values[min(len(values) - 1, int(ratio * len(values)))]
