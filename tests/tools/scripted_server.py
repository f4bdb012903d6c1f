"""A server that answers each POST by a script and counts what it sees. It speaks just enough HTTP to be called."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(payload: object) -> bytes:
    """One server-sent event in a chunk of its own."""
    text = payload if isinstance(payload, str) else json.dumps(payload, separators=(",", ":"))
    return framed(f"data: {text}\n\n".encode())


def framed(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def token(text: str = "a", finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 3, "total_tokens": 43}})
DONE = event("[DONE]")
END = b"0\r\n\r\n"
WHOLE = STREAM_HEAD + ROLE + token() + token() + token(finish="length") + USAGE + DONE + END


def whole_json(status: str, body: object, *headers: str) -> bytes:
    payload = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(payload)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


def refusal(status: str, code: object, *headers: str) -> bytes:
    return whole_json(status, {"error": {"message": "no", "type": "overloaded", "code": code}}, *headers)


HANG_UP = b"\x00hang up"
"""A script's piece that closes the connection instead of being sent."""


@dataclass(slots=True)
class Scripted:
    """What it was asked, as it came."""

    script: Callable[[int], list[bytes]]
    """The pieces of the answer to the n-th streaming POST; a list that does not end an answer leaves it hanging."""
    url: str = ""
    connections: int = 0
    heads: list[str] = field(default_factory=list)
    bodies: list[dict[str, object]] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """A client closed its connection while it waited."""
    metrics: str = ""
    open: set[asyncio.Task[None]] = field(default_factory=set)

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next((int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0)
                body = await reader.readexactly(length)
                for piece in self._answer(head, body):
                    if piece == HANG_UP:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone.set()
        except asyncio.CancelledError:
            pass  # the test is over; asyncio's stream server would log a cancelled handler as an error
        finally:
            writer.close()

    def _answer(self, head: str, body: bytes) -> list[bytes]:
        if head.startswith("GET /v1/models"):
            return [whole_json("200 OK", {"data": [{"id": "tiny", "max_model_len": 1000}]})]
        if head.startswith("GET /metrics"):
            text = self.metrics.encode()
            return [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text), text]
        asked = json.loads(body)
        if not asked.get("stream"):
            return [whole_json("200 OK", {"usage": {"prompt_tokens": self._price(asked)}})]
        self.heads.append(head)
        self.bodies.append(asked)
        return self.script(len(self.bodies) - 1)

    def _price(self, asked: dict[str, object]) -> int:
        """Two tokens a word and ten for the frame."""
        return 10 + 2 * len(text_of(asked).split())


def text_of(asked: dict[str, object]) -> str:
    messages = asked.get("messages")
    return str(messages[0]["content"] if isinstance(messages, list) else asked["prompt"])


@asynccontextmanager
async def serving(script: Callable[[int], list[bytes]]) -> AsyncIterator[Scripted]:
    scripted = Scripted(script)
    server = await asyncio.start_server(scripted.on_connection, "127.0.0.1", 0)
    scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield scripted
    finally:
        server.close()
