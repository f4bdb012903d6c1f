"""The proxy does to a connection what a test asks for, and nothing else."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

import pytest

from headworks.testing.tcp_fault_proxy import FaultProxy, Faults, threaded

Body = Callable[[FaultProxy, list[bytes]], Awaitable[None]]


def through(body: Body, seed: int = 0) -> None:
    """Run it with an echo server behind the proxy, which writes down what it read."""

    async def run() -> None:
        read: list[bytes] = []

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while piece := await reader.read(65_536):
                    read.append(piece)
                    writer.write(piece)
                writer.close()
            except ConnectionError:
                writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with server, FaultProxy("127.0.0.1", server.sockets[0].getsockname()[1], seed) as proxy:
            async with asyncio.timeout(10):
                await body(proxy, read)

    asyncio.run(run())


async def connect(proxy: FaultProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


def test_without_faults_everything_passes_and_an_end_is_an_end() -> None:
    async def body(proxy: FaultProxy, read: list[bytes]) -> None:
        reader, writer = await connect(proxy)
        writer.write(b"x" * 200_000)
        writer.write_eof()
        assert await reader.read() == b"x" * 200_000
        writer.close()

    through(body)


def test_delayed_pieces_come_later_and_in_order() -> None:
    async def body(proxy: FaultProxy, read: list[bytes]) -> None:
        proxy.answers = Faults(delay_s=0.05)
        reader, writer = await connect(proxy)
        began_s = time.monotonic()
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        assert time.monotonic() - began_s >= 0.05
        writer.close()

    through(body)


def test_a_cut_answer_has_been_done_and_is_not_heard_of() -> None:
    async def body(proxy: FaultProxy, read: list[bytes]) -> None:
        proxy.answers = Faults(cut_after_bytes=0)
        reader, writer = await connect(proxy)
        writer.write(b"do it")
        with pytest.raises(ConnectionError):
            await reader.readexactly(1)
        assert read == [b"do it"]
        writer.close()

    through(body)


def test_a_cut_comes_after_so_many_bytes_exactly() -> None:
    async def body(proxy: FaultProxy, read: list[bytes]) -> None:
        proxy.asks = Faults(cut_after_bytes=5)
        reader, writer = await connect(proxy)
        writer.write(b"0123456789")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(10)
        assert b"".join(read) in (b"01234", b""), "a reset may overtake what was sent before it, and nothing more may come"
        writer.close()

    through(body)


def test_half_open_takes_everything_and_says_nothing_until_it_is_cut() -> None:
    async def body(proxy: FaultProxy, read: list[bytes]) -> None:
        reader, writer = await connect(proxy)
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        proxy.asks = Faults(is_silent=True)
        writer.write(b"b" * 100_000)
        await writer.drain()
        assert proxy.connections == 1 and read == [b"a"]
        proxy.cut()
        with pytest.raises(ConnectionError):
            await reader.readexactly(1)
        writer.close()

    through(body)


def test_throttled_bytes_take_their_time() -> None:
    async def body(proxy: FaultProxy, read: list[bytes]) -> None:
        proxy.asks = Faults(bytes_per_s=10_000)
        reader, writer = await connect(proxy)
        began_s = time.monotonic()
        writer.write(b"x" * 1_000)
        await reader.readexactly(1_000)
        assert time.monotonic() - began_s >= 0.1
        writer.close()

    through(body)


def test_connections_overtake_each_other_as_the_seed_says() -> None:
    orders: list[list[bytes]] = []

    async def body(proxy: FaultProxy, read: list[bytes]) -> None:
        proxy.connect_s_max = 0.2
        lines = []
        for number in range(6):
            lines.append(await connect(proxy))
            lines[-1][1].write(b"%d" % number)
        for reader, writer in lines:
            await reader.readexactly(1)
            writer.close()
        orders.append(list(read))

    through(body, seed=1)
    assert sorted(orders[0]) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert orders[0] != sorted(orders[0])


def test_refused_connections_are_reset() -> None:
    async def body(proxy: FaultProxy, read: list[bytes]) -> None:
        proxy.refuse_ratio = 1.0
        reader, writer = await connect(proxy)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            writer.write(b"x")
            await reader.readexactly(1)
        assert read == []
        writer.close()

    through(body)


def test_in_a_thread_beside_blocking_code() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        threaded("127.0.0.1", server.getsockname()[1]) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as one,
    ):
        other, _ = server.accept()
        with other:
            one.sendall(b"hello")
            other.settimeout(5)
            assert other.recv(5) == b"hello"
