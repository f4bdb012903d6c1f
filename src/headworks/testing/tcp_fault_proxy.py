"""A TCP proxy that misbehaves on purpose, the same way for the same seed.

    async with FaultProxy("127.0.0.1", port, seed=7) as proxy:      # in a test's own loop
    with threaded("127.0.0.1", port) as proxy:                      # beside processes: in a thread of its own

Each way has its faults, and they hold for what passes from then on: `proxy.asks` towards the server, `proxy.answers` back.
`Faults(cut_after_bytes=0)` on the answers is the lost answer: the server has read and done it, and nobody hears of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from types import TracebackType

READ_BYTES = 65_536
CONNECTIONS_MAX = 1024
RESET = struct.pack("ii", 1, 0)
"""Linger for no time: closing sends a reset."""
STARTED_S = 10.0


@dataclass(slots=True)
class Faults:
    """What happens to one direction of every connection."""

    delay_s: float = 0.0
    """Each piece comes so much later, and in its order."""
    jitter_ratio: float = 0.0
    """… × (1 ± this)."""
    cut_after_bytes: int | None = None
    """After so many bytes of a connection both its sides are reset; 0: at the first."""
    is_silent: bool = False
    """Half open: what is sent is read and goes nowhere, an end included, and the connection stays."""
    bytes_per_s: float | None = None


class FaultProxy:
    """Stands between clients and one server."""

    def __init__(self, host: str, port: int, seed: int = 0) -> None:
        self.asks = Faults()
        self.answers = Faults()
        self.refuse_ratio = 0.0
        """So many new connections are reset as soon as they are made."""
        self.connect_s_max = 0.0
        """A new connection reaches the server up to so much later: connections overtake each other."""
        self.port = 0
        self.connections = 0
        """Made so far."""
        self._server_at = (host, port)
        self._random = Random(f"proxy-{seed}")  # noqa: S311 — faults that can be made again
        self._open: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        """Client's side → server's side."""
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def __aenter__(self) -> FaultProxy:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=READ_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection there is."""
        for pair in list(self._open.items()):
            for side in pair:
                _reset(side)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        self.connections += 1
        try:
            if self._random.random() < self.refuse_ratio or len(self._open) >= CONNECTIONS_MAX:
                _reset(writer)
                return
            if self.connect_s_max:
                await asyncio.sleep(self._random.random() * self.connect_s_max)
            there, towards = await asyncio.open_connection(*self._server_at, limit=READ_BYTES)
            await self._carry_both(reader, writer, there, towards)
        except OSError:
            _reset(writer)
        finally:
            del self._tasks[task]

    async def _carry_both(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        towards: asyncio.StreamWriter,
    ) -> None:
        self._open[writer] = towards
        try:
            await asyncio.gather(self._carry(reader, towards, "asks"), self._carry(there, writer, "answers"))
        finally:
            del self._open[writer]
            _reset(writer)
            _reset(towards)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, way: str) -> None:
        """One direction, until its end or until something cuts it."""
        passed_bytes = 0
        while piece := await source.read(READ_BYTES):
            faults = self._faults(way)
            if faults.is_silent:
                continue
            left_bytes = len(piece) if faults.cut_after_bytes is None else faults.cut_after_bytes - passed_bytes
            await self._hold_up(faults, len(piece))
            target.write(piece[: max(0, left_bytes)])
            await target.drain()
            passed_bytes += len(piece)
            if left_bytes < len(piece):
                raise ConnectionResetError("cut")
        if not self._faults(way).is_silent:
            target.write_eof()

    def _faults(self, way: str) -> Faults:
        return self.asks if way == "asks" else self.answers

    async def _hold_up(self, faults: Faults, size_bytes: int) -> None:
        delay_s = faults.delay_s * (1 + faults.jitter_ratio * (2 * self._random.random() - 1))
        if faults.bytes_per_s:
            delay_s += size_bytes / faults.bytes_per_s
        if delay_s > 0:
            await asyncio.sleep(delay_s)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the other end sees it broken, whatever was on the way."""
    if writer.transport.is_closing():
        return
    one = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()


@contextlib.contextmanager
def threaded(host: str, port: int, seed: int = 0) -> Iterator[FaultProxy]:
    """The same in a thread, for tests that wait for processes. Faults may be set from outside; `cut` is not to be called."""
    proxy = FaultProxy(host, port, seed)
    loop = asyncio.new_event_loop()
    listening, over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with proxy:
            listening.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="fault-proxy", daemon=True)
    thread.start()
    try:
        assert listening.wait(STARTED_S), "the proxy did not start"
        yield proxy
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(STARTED_S)
        loop.close()
