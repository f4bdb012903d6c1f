"""A server whose every byte a test decides, a listener that remembers, and the two event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import uvloop

from headworks.engines.call import Call
from headworks.engines.pool import Pool
from headworks.testing.listener import WAIT_S, Recorder

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
FOREVER_S = float("inf")
BODY = b'{"model":"tiny"}'
EXECUTION = "0123456789abcdef" * 2


def run_on(loop: str, test: Coroutine[Any, Any, None], limit_s: float = 4 * WAIT_S) -> None:
    """Run a test's coroutine on the named loop, bounded in time."""

    async def bounded() -> None:
        async with asyncio.timeout(limit_s):
            await test

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(bounded())


class Peer:
    """One accepted connection, seen from the server."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.reader = reader
        self.writer = writer

    async def request(self) -> tuple[bytes, bytes]:
        """The next request's head and body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return head, await self.reader.readexactly(length)

    async def say(self, *pieces: bytes) -> None:
        """Write each piece by itself, giving the other side a turn in between."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0.002)


class Server:
    """`async with Server(script) as server`: `script(peer)` runs for each connection, which closes when it returns."""

    def __init__(self, script: Callable[[Peer], Awaitable[None]]) -> None:
        self._script = script
        self._tasks: set[asyncio.Task[Any]] = set()
        self.accepted_count = 0
        self.url = ""

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    @property
    def open_count(self) -> int:
        """Connections whose script still runs."""
        return len(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted_count += 1
        try:
            await self._script(Peer(self.accepted_count, reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what nobody announces."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class Clock:
    """A clock that stands still unless told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def answer(body: bytes, status: bytes = b"200 OK", *headers: bytes) -> bytes:
    """A counted answer."""
    lines = [b"HTTP/1.1 " + status, b"Content-Type: application/json", *headers, b"Content-Length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def frame(payload: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def start(pool: Pool, listener: Recorder, body: bytes = BODY, send_before_s: float = FOREVER_S) -> Call:
    return pool.send(pool.endpoint.post(EXECUTION, "/v1/completions", body), body, send_before_s, listener)


async def complete(pool: Pool, body: bytes = BODY) -> Recorder:
    recorder = Recorder()
    start(pool, recorder, body)
    await recorder.until_told("end")
    return recorder


async def echo(peer: Peer) -> None:
    """Answers each request with its own body, on one connection."""
    while True:
        _, body = await peer.request()
        await peer.say(answer(body))


async def stream_for_ever(peer: Peer) -> None:
    """Streams until the client closes its side, then closes its own, as vLLM does."""
    await peer.request()
    gone = asyncio.ensure_future(peer.reader.read())
    await peer.say(CHUNKED_HEAD)
    while not gone.done():
        await peer.say(frame(b"data: 1\n\n"))


async def complete_quietly(pool: Pool) -> None:
    """Give late callbacks their chance, then close."""
    await until(lambda: not pool.connections_count)
    await pool.close()
