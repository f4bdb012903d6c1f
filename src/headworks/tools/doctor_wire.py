"""How the doctor sends real requests to an engine, leaves some of them, and watches what the engine shows of it.

Half of a connection is closed by the adapter that will do it in service; the whole of one by a pool of the doctor's own, as a
client's crash would. What is concluded rests on the engine's gauges alone, never on what happened to a socket.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from headworks.core.types import ReplicaSample
from headworks.engines.base import Engine
from headworks.engines.pool import Pool
from headworks.tools.load_engine import WORDS

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ANSWER_BYTES_MAX = 4_000_000
ANSWER_S_MAX = 30.0
FIRST_TOKEN_S_MAX = 20.0
NOT_SENT = "not sent"


class Heard:
    """What came back of one request (`engines.base.Listener`)."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.payload = b""
        self.first_s: float | None = None
        """When the first event with output, or the first of a body, was here."""
        self.last_s = self.over_s = 0.0
        self.gap_max_s = 0.0
        """The longest pause between two pieces of the answer; whoever wants to know of a while sets it to 0 first."""
        self.over = ""
        """How it ended: `end`, `closed`, `lost …`, `not sent …`."""
        self._news = asyncio.Event()

    def on_not_sent(self, reason: str) -> None:
        self._end(f"{NOT_SENT} {reason}")

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]], chunked: bool) -> None:
        self.status, self.headers = status, dict(headers)

    def on_body(self, raw: bytes | None, payload: bytes) -> None:
        if len(self.payload) < ANSWER_BYTES_MAX:
            self.payload += payload
        if self.first_s is None and (b"data: {" in self.payload or not self.is_stream):
            self.first_s = time.monotonic()
            self._news.set()
        now_s = time.monotonic()
        self.gap_max_s = max(self.gap_max_s, now_s - (self.last_s or now_s))
        self.last_s = now_s

    def on_end(self) -> None:
        self._end("end")

    def on_lost(self, cause: str) -> None:
        self._end(f"lost {cause}")

    def on_closed(self) -> None:
        self._end("closed")

    def _end(self, how: str) -> None:
        self.over, self.over_s = how, time.monotonic()
        self._news.set()

    @property
    def is_stream(self) -> bool:
        return b"event-stream" in self.headers.get(b"content-type", b"")

    async def until(self, reached: Callable[[Heard], bool], wait_s: float) -> bool:
        """Whether it came true in that time."""
        try:
            async with asyncio.timeout(wait_s):
                while not reached(self):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    def events(self) -> list[dict[str, object]]:
        """Those of a stream, or the body as the only one. What is no JSON object is left out."""
        if self.is_stream:
            parts = [line[6:] for line in self.payload.split(b"\n\n") if line.startswith(b"data: {")]
        else:
            parts = [self.payload]
        return [found for found in map(_object, parts) if found]

    def usage(self) -> dict[str, object]:
        """The last one that was told."""
        return next((found for event in reversed(self.events()) if (found := _inner(event, "usage"))), {})

    def is_whole(self) -> bool:
        """It ended in band: every choice has a finish reason, and the stream its end."""
        if self.over != "end" or self.status != 200:
            return False
        choices = [choice for event in self.events() for choice in _list(event, "choices")]
        finished = any(choice.get("finish_reason") for choice in choices)
        return finished and (not self.is_stream or self.payload.rstrip().endswith(b"data: [DONE]"))

    def said(self) -> str:
        """For a sentence: how it ended, and the beginning of what was said."""
        words = "".join(chr(byte) if 32 <= byte < 127 else " " for byte in self.payload[:160])
        return f"{self.over or 'no answer'}, status {self.status}: {words}".rstrip(": ")


def _object(text: bytes) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _inner(event: dict[str, object], key: str) -> dict[str, object]:
    found = event.get(key)
    return found if isinstance(found, dict) else {}


def _list(event: dict[str, object], key: str) -> list[dict[str, object]]:
    found = event.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


@dataclass(slots=True)
class Sent:
    """One request under way, and both ways to leave it."""

    execution: str
    heard: Heard
    half_close: Callable[[], None]
    close: Callable[[], None]
    is_half: bool
    """It went through the adapter, so `half_close` is what service would do; else only `close` is."""
    sent_s: float


@dataclass(slots=True)
class Ward:
    """The engine on the table."""

    engine: Engine
    url: str
    api_key: str | None
    kind: str
    model: str
    context_tokens: int
    plain: Pool
    random: Random
    word_tokens_mean: float = 1.5
    """Of the doctor's words, as the engine counted them; a guess before the first answer."""

    @property
    def path(self) -> str:
        """A server that is not known may have only the newer route."""
        return CHAT if self.kind == "openai" else COMPLETIONS

    def start(self, output_tokens: int, *, words: int = 12, stream: bool = True, through_adapter: bool = True) -> Sent:
        """One request with a prompt of its own, so that no prefix cache knows it."""
        body = json.dumps(self._body(output_tokens, words, stream)).encode()
        execution, heard, sent_s = secrets.token_hex(16), Heard(), time.monotonic()
        if through_adapter:
            way = self.engine.run(execution, self.path, body, float("inf"), heard)
            return Sent(execution, heard, way.abort, way.abort, True, sent_s)
        head = self.plain.endpoint.post(execution, self.path, body)
        call = self.plain.send(head, body, float("inf"), heard)
        return Sent(execution, heard, call.abort, call.discard, False, sent_s)

    def _body(self, output_tokens: int, words: int, stream: bool) -> dict[str, object]:
        text = " ".join(self.random.choice(WORDS) for _ in range(words))
        asked: dict[str, object] = {"model": self.model, "max_tokens": output_tokens, "stream": stream}
        if self.path == CHAT:
            asked["messages"] = [{"role": "user", "content": text}]
        else:
            asked |= {"prompt": text, "ignore_eos": True}
        if stream:
            asked["stream_options"] = {"include_usage": True}
        return asked

    async def load(self) -> int | None:
        """What is inside, running or waiting; None where it does not say."""
        return load_of(await self.engine.sample())

    async def until_load(self, reached: Callable[[int], bool], wait_s: float, every_s: float = 0.01) -> float | None:
        """Seconds until the gauges said so; None: not in that time."""
        begun_s = time.monotonic()
        while (gone_s := time.monotonic() - begun_s) <= wait_s:
            inside = await self.load()
            if inside is not None and reached(inside):
                return time.monotonic() - begun_s
            if inside is None:
                return None
            await asyncio.sleep(min(every_s, max(0.0, wait_s - gone_s)))
        return None

    async def close(self) -> None:
        """Let go of all connections."""
        await self.engine.close()
        await self.plain.close()


def load_of(sample: ReplicaSample) -> int | None:
    """Running and waiting together."""
    return None if sample.running is None or sample.waiting is None else sample.running + sample.waiting
