"""The clients of `disconnects.py`: each on a socket of its own, so that leaving is one close and its time is known."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from random import Random
from typing import Any
from urllib.parse import urlsplit

from headworks.tools.load_engine import Target, Words

READ_BYTES = 65_536
EVENT = b"data: "
PATH = "/v1/chat/completions"
SHORT_TOKENS = 100
ROOM_TOKENS = 100
"""What an answer that is to fill the context leaves free, as a prompt's length is only known about."""
LONG_ANSWER_TOKENS, SHORT_ANSWER_TOKENS, LEAVER_TOKENS = 1_500, 16, 600
LEAVER_PROMPT_TOKENS = 200
OCCUPIES_RATIO = 0.7
"""An occupier that has given so much of its answer may end in the middle of a trial, and is replaced."""


class Call:
    """One request on the wire."""

    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._events = 0
        self.ended = False

    async def read(self) -> bytes:
        """Some of the answer; empty at its end."""
        piece = await self._loop.sock_recv(self._wire, READ_BYTES)
        self._events += piece.count(EVENT)
        self.ended = self.ended or not piece
        return piece

    async def events(self, count: int) -> int:
        """Read until so many events have come, or all that will; how many there are."""
        while self._events < count and not self.ended:
            await self.read()
        return self._events

    def has_answered(self) -> bool:
        """Whether anything of an answer that is not being read has come; the head of a stream comes before its answer."""
        try:
            piece = self._wire.recv(READ_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        return EVENT in piece if b"text/event-stream" in piece else True

    def leave(self) -> float:
        """Close, as a process that ends does; when that was."""
        gone_s = time.monotonic()
        self._wire.close()
        return gone_s


class Caller:
    """Makes calls; no two prompts are alike, so no engine answers from its prefix cache."""

    def __init__(self, served: Target, words: Words, key: str, long_prompt_tokens: int) -> None:
        self.served = served
        self._words = words
        self._key = key
        self._count = 0
        occupied_tokens = served.context_tokens - SHORT_TOKENS - ROOM_TOKENS
        self._shapes: dict[str, tuple[int, int, bool]] = {
            "before_first_token": (long_prompt_tokens, SHORT_ANSWER_TOKENS, True),
            "mid_stream": (SHORT_TOKENS, LONG_ANSWER_TOKENS, True),
            "non_streaming": (SHORT_TOKENS, LONG_ANSWER_TOKENS, False),
            "queued": (SHORT_TOKENS, LONG_ANSWER_TOKENS, True),
            "occupier": (SHORT_TOKENS, occupied_tokens, True),
            "leaver": (LEAVER_PROMPT_TOKENS, LEAVER_TOKENS, True),
        }

    def answer_tokens(self, shape: str) -> int:
        """The length of the answer a call of this shape asks for."""
        return self._shapes[shape][1]

    @contextlib.asynccontextmanager
    async def call(self, url: str, shape: str) -> AsyncIterator[Call]:
        """A call of this shape, sent; its socket is closed at the end in any case."""
        self._count += 1
        address = urlsplit(url)
        with socket.socket() as wire:
            wire.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(wire, (address.hostname, address.port or 80))
            await loop.sock_sendall(wire, self._request(address.netloc, shape))
            yield Call(wire)

    def _request(self, host: str, shape: str) -> bytes:
        prompt_tokens, output_tokens, stream = self._shapes[shape]
        asked: dict[str, Any] = {
            "model": self.served.model,
            "messages": [{"role": "user", "content": self._words.prompt(self._count, prompt_tokens)}],
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": stream,
        }
        content = json.dumps(asked).encode()
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {self._key}\r\n"
            f"Idempotency-Key: {shape}-{self._count}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content


class Occupier:
    """A long stream that keeps the only place of a pool taken."""

    def __init__(self, caller: Caller, url: str) -> None:
        self._caller = caller
        self._url = url
        self._reading: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        self._events = 0

    @property
    def ended(self) -> bool:
        return self._reading is None or self._reading.done()

    async def lasts(self) -> bool:
        """True while it will go on for longer than a trial; one that will not is let go."""
        if not self.ended and self._events < OCCUPIES_RATIO * self._caller.answer_tokens("occupier"):
            return True
        await self.aclose()
        return False

    async def begin(self) -> None:
        """Returns once its answer has begun."""
        self._events = 0
        self._begun.clear()
        self._reading = asyncio.create_task(self._read())
        await self._begun.wait()

    async def _read(self) -> None:
        try:
            async with self._caller.call(self._url, "occupier") as call:
                while not call.ended:
                    self._events = await call.events(self._events + 1)
                    self._begun.set()
        finally:
            self._begun.set()

    async def aclose(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


class Leaver:
    """Clients that leave at a random moment, whatever came until then."""

    def __init__(self, caller: Caller, url: str, random: Random, within_s: float) -> None:
        self._caller = caller
        self._url = url
        self._random = random
        self._within_s = within_s

    async def run(self, rate_per_s: float, seconds: float) -> None:
        """They come at random, so many a second; returns when the last one has left."""
        started_s = due_s = time.monotonic()
        async with asyncio.TaskGroup() as running:
            while due_s < started_s + seconds:
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                running.create_task(self._one(self._random.uniform(0, self._within_s)))
                due_s += self._random.expovariate(rate_per_s)

    async def _one(self, leaves_s: float) -> None:
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(leaves_s), self._caller.call(self._url, "leaver") as call:
                while not call.ended:
                    await call.read()
