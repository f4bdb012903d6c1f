"""A real port on loopback with a small handler, and a client that sends exactly the bytes it is given."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import uvloop

from headworks.gateway.http import EdgeLimits, Exchange, Server

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
JSON = [(b"Content-Type", b"application/json")]
PATHS = {"/echo": ("POST",), "/models": ("GET",), "/models/a/b": ("GET",), "/session/1": ("DELETE",)}


def run(loop: str, steps: Coroutine[Any, Any, None], *, within_s: float = 20.0) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(asyncio.wait_for(steps, within_s))


def error_body(status: int, code: str, message: str, path: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    return JSON, json.dumps({"error": {"code": code, "message": message}}).encode()


async def echo(exchange: Exchange) -> None:
    """Says what it was asked, in JSON."""
    body = await exchange.read_body()
    said = {
        "method": exchange.method,
        "path": exchange.path,
        "query": exchange.head.line.query,
        "peer": exchange.peer,
        "body_bytes": len(body),
        "headers": {name.decode(): value.decode("latin-1") for name, value in exchange.headers.items()},
    }
    exchange.respond(200, JSON, json.dumps(said).encode())


@dataclass
class Flow:
    """A reader that says what it is told, but for the leaving."""

    fall_behind: Callable[[], None]
    catch_up: Callable[[], None]

    def leave(self) -> None: ...


@dataclass
class Answer:
    status: int
    fields: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json()["error"]["code"])


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, payload: bytes) -> None:
        self.writer.write(payload)

    async def answer(self, *, head_only: bool = False) -> Answer:
        """One whole answer; raises IncompleteReadError where the connection broke before its end."""
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)).decode("latin-1")
        first, *lines = head.split("\r\n")[:-2]
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        assert len(fields) == len(lines), f"a field came twice: {head}"
        status = int(first.split(" ")[1])
        if head_only or status in (100, 204, 304):
            body = b""
        elif fields.get("transfer-encoding") == "chunked":
            body = await self._chunks()
        elif "content-length" in fields:
            body = await self.reader.readexactly(int(fields["content-length"]))
        else:
            body = await self.reader.read()
        return Answer(status, fields, body)

    async def _chunks(self) -> bytes:
        pieces = []
        while True:
            size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
            pieces.append(await self.reader.readexactly(size))
            assert await self.reader.readexactly(2) == b"\r\n"
            if size == 0:
                return b"".join(pieces)

    async def ended(self, within_s: float = 5.0) -> str:
        """How the connection ended, once it has: `closed` or `reset`; bytes before that are an error."""
        try:
            rest = await asyncio.wait_for(self.reader.read(), within_s)
        except ConnectionResetError:
            return "reset"
        assert rest == b"", rest
        return "closed"

    def close(self) -> None:
        self.writer.close()


@dataclass
class Port:
    server: Server
    address: Any
    faults: list[BaseException] = field(default_factory=list)

    async def connect(self) -> Client:
        if isinstance(self.address, str):
            return Client(*await asyncio.open_unix_connection(self.address))
        return Client(*await asyncio.open_connection(*self.address[:2]))

    async def ask(self, payload: bytes, *, head_only: bool = False) -> Answer:
        """One request on a connection of its own."""
        client = await self.connect()
        client.send(payload)
        try:
            return await client.answer(head_only=head_only)
        finally:
            client.close()


@contextlib.asynccontextmanager
async def port(
    handler: Any = echo, *, listen: dict[str, Any] | None = None, error_body: Any = error_body, **limits: Any
) -> AsyncIterator[Port]:
    faults: list[BaseException] = []
    server = Server(
        handler,
        replace(EdgeLimits(linger_s=0.3), **limits),
        allowed=PATHS.get,
        clock_s=time.monotonic,
        error_body=error_body,
        on_fault=faults.append,
    )
    addresses = await server.start(**(listen or {"host": "127.0.0.1"}))
    yield Port(server, addresses[0], faults)
    await server.close(1.0)
    assert not server.connections
    assert not server.exchanges
    assert server.unread_bytes == 0


async def until(condition: Any, within_s: float = 5.0) -> None:
    """Turns the loop until the condition holds."""
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, "it never came true"
        await asyncio.sleep(0.005)


def post(*fields: str, body: bytes = b"{}", path: str = "/echo", length: bool = True) -> bytes:
    """A good request, with more fields if wanted."""
    lines = [f"POST {path} HTTP/1.1", "Host: edge", "Content-Type: application/json", *fields]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def chunked(*fields: str, body: bytes = b"2\r\n{}\r\n0\r\n\r\n") -> bytes:
    return post("Transfer-Encoding: chunked", *fields, body=body, length=False)


def get(path: str = "/models", *fields: str, version: str = "1.1", method: str = "GET") -> bytes:
    return ("\r\n".join([f"{method} {path} HTTP/{version}", "Host: edge", *fields]) + "\r\n\r\n").encode("latin-1")
