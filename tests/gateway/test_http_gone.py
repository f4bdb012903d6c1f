"""E2, H3: a client that leaves is an event at once, in every state and by every trick; a slow one is bounded."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from http_port import JSON, LOOPS, Client, Flow, chunked, port, post, run, until

from headworks.gateway.http import Exchange

BOTH = pytest.mark.parametrize("loop", LOOPS)


class Waiting:
    """A handler that reads, may begin to answer, and waits until its client is gone."""

    def __init__(self, *, read: bool = True, start: bool = False) -> None:
        self.read = read
        self.start = start
        self.calls = 0
        self.exchange: Exchange | None = None
        self.reason = ""

    async def __call__(self, exchange: Exchange) -> None:
        if self.read:
            await exchange.read_body()
        if self.start:
            exchange.start(200, JSON, None)
            exchange.write(b"data")
        gone = asyncio.Event()
        exchange.on_gone(self.called)
        exchange.on_gone(gone.set)
        self.exchange = exchange
        await gone.wait()
        self.reason = exchange.gone_reason
        again: list[bool] = []
        exchange.on_gone(lambda: again.append(True))
        assert again == [True]
        # Nothing of this reaches anybody, and nothing of it is an error.
        if self.start:
            exchange.write(b"late")
            exchange.write_raw(b"1\r\nx\r\n")
            exchange.finish()
        else:
            exchange.respond(200, JSON, b"{}")

    def called(self) -> None:
        self.calls += 1


async def close(client: Client) -> None:
    client.close()


async def half_close(client: Client) -> None:
    client.writer.write_eof()


async def reset(client: Client) -> None:
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


async def pipeline_and_close(client: Client) -> None:
    client.send(b"G")
    await asyncio.sleep(0.02)
    client.close()


async def pipeline_and_stay(client: Client) -> None:
    client.send(post())


async def empty_line_and_stay(client: Client) -> None:
    client.send(b"\r\n")


LEAVING = [
    (close, "client_closed"),
    (half_close, "client_closed"),
    (reset, "client_reset"),
    (pipeline_and_close, "pipelined"),
    (pipeline_and_stay, "pipelined"),
    (empty_line_and_stay, "pipelined"),
]


@BOTH
@pytest.mark.parametrize("start", [False, True], ids=["waiting", "streaming"])
@pytest.mark.parametrize(("leave", "reason"), LEAVING)
def test_E2_leaving_is_seen_at_once(leave: Callable[[Client], Awaitable[None]], reason: str, start: bool, loop: str) -> None:
    async def steps() -> None:
        waiting = Waiting(start=start)
        async with port(waiting) as edge:
            client = await edge.connect()
            client.send(post())
            await until(lambda: waiting.exchange is not None)
            if start:
                await client.reader.readuntil(b"data\r\n")  # closing with bytes unread would be a reset
            await leave(client)
            await until(lambda: not edge.server.exchanges, within_s=1)
            assert (waiting.calls, waiting.reason) == (1, reason)
            await until(lambda: edge.server.counters.closed == {reason: 1})
            assert edge.faults == []
            client.close()

    run(loop, steps())


@BOTH
def test_E2_pipelining_client_reads_400_if_nothing_was_answered(loop: str) -> None:
    async def steps() -> None:
        waiting = Waiting()
        async with port(waiting) as edge:
            client = await edge.connect()
            client.send(post())
            await until(lambda: waiting.exchange is not None)
            client.send(post())
            answer = await client.answer()
            assert (answer.status, answer.code, answer.fields["connection"]) == (400, "invalid_request", "close")
            assert await client.ended() == "closed"
            assert edge.server.counters.requests == 1
            client.close()

    run(loop, steps())


@BOTH
@pytest.mark.parametrize("opening", [post(body=b"x" * 100)[:-50], chunked(body=b"5\r\nhe"), post("Expect: 100-continue")[:-2]])
def test_E2_leaving_in_the_body_ends_the_reading(opening: bytes, loop: str) -> None:
    async def steps() -> None:
        async with port() as edge:
            client = await edge.connect()
            client.send(opening)
            await until(lambda: edge.server.exchanges)
            client.close()
            await until(lambda: not edge.server.exchanges, within_s=1)
            assert edge.faults == []

    run(loop, steps())


def test_E2_nothing_is_called_after_a_clean_finish() -> None:
    calls: list[str] = []

    async def handler(exchange: Exchange) -> None:
        exchange.on_gone(lambda: calls.append("gone"))
        exchange.respond(200, JSON, b"{}")

    async def steps() -> None:
        async with port(handler) as edge:
            await edge.ask(post())
            await until(lambda: not edge.server.connections)
            assert calls == []

    run("uvloop", steps())


@BOTH
def test_H3_fault_in_a_callback_is_counted_and_closes_that_connection(loop: str) -> None:
    async def handler(exchange: Exchange) -> None:
        exchange.on_gone(lambda: {}["missing"])
        exchange.on_gone(left.set)
        await left.wait()

    async def steps() -> None:
        async with port(handler) as edge:
            client = await edge.connect()
            client.send(post())
            await until(lambda: edge.server.exchanges)
            client.close()
            await until(lambda: not edge.server.connections)
            assert [type(fault) for fault in edge.faults] == [KeyError]
            assert left.is_set()

    left = asyncio.Event()
    run(loop, steps())


class Fountain:
    """Writes `pieces` of 8 KiB, minding the marks or not."""

    def __init__(self, pieces: int, *, minds: bool) -> None:
        self.pieces = pieces
        self.minds = minds
        self.seen: list[str] = []
        self.buffered_bytes_most = 0
        self.reason = ""

    async def __call__(self, exchange: Exchange) -> None:
        flowing = asyncio.Event()
        flowing.set()

        def pause() -> None:
            self.seen.append("pause")
            flowing.clear()

        def resume() -> None:
            self.seen.append("resume")
            flowing.set()

        if self.minds:
            exchange.read_by(Flow(pause, resume))
        exchange.start(200, JSON, None)
        for _ in range(self.pieces):
            await flowing.wait()
            exchange.write(b"x" * 8192)
            buffered_bytes = exchange._transport.get_write_buffer_size()
            self.buffered_bytes_most = max(self.buffered_bytes_most, buffered_bytes)
            await asyncio.sleep(0)
        exchange.finish()
        self.reason = exchange.gone_reason


@BOTH
def test_E1_slow_reader_pauses_its_stream_and_gets_it_all(loop: str) -> None:
    async def steps() -> None:
        fountain = Fountain(2_000, minds=True)
        async with port(fountain, write_buffer_bytes_max=65_536) as edge:
            client = await edge.connect()
            client.writer.transport.pause_reading()
            client.send(post())
            await until(lambda: fountain.seen == ["pause"])
            await asyncio.sleep(0.05)
            assert fountain.seen == ["pause"]
            assert fountain.buffered_bytes_most <= 65_536 + 8_300
            client.writer.transport.resume_reading()
            assert (await client.answer()).body == b"x" * 8192 * 2_000
            assert fountain.seen[:2] == ["pause", "resume"]
            client.close()

    run(loop, steps())


@BOTH
def test_H3_stream_that_minds_no_pause_is_let_go(loop: str) -> None:
    async def steps() -> None:
        fountain = Fountain(5_000, minds=False)
        async with port(fountain, write_buffer_bytes_max=65_536, paused_bytes_max=200_000) as edge:
            client = await edge.connect()
            client.writer.transport.pause_reading()
            client.send(post())
            await until(lambda: edge.server.counters.closed == {"write_overflow": 1})
            await until(lambda: fountain.reason != "")
            assert fountain.reason == "write_overflow"
            assert fountain.buffered_bytes_most <= 65_536 + 200_000 + 2 * 8_300
            client.close()

    run(loop, steps())


@BOTH
def test_H3_unread_bodies_are_bounded_in_sum_and_all_arrive_in_the_end(loop: str) -> None:
    size_bytes = 2_000_000
    go = asyncio.Event()
    read: list[int] = []

    async def patient(exchange: Exchange) -> None:
        await go.wait()
        read.append(len(await exchange.read_body()))
        exchange.respond(200, JSON, b"{}")

    async def steps() -> None:
        async with port(patient, unread_bytes_max=1_000_000, body_idle_s=5) as edge:
            clients = [await edge.connect() for _ in range(8)]
            for client in clients:
                client.send(post(body=b"x" * size_bytes))
            await until(lambda: edge.server.unread_bytes > 1_000_000)
            held_bytes = 0
            while held_bytes != edge.server.unread_bytes:
                held_bytes = edge.server.unread_bytes
                await asyncio.sleep(0.1)
            # The bound, the one body that is read on, and one read of at most 256 KiB for each of the others.
            assert held_bytes <= 1_000_000 + size_bytes + 7 * 262_144
            go.set()
            for client in clients:
                assert (await client.answer()).status == 200
                client.close()
            assert read == [size_bytes] * 8
            assert edge.server.unread_bytes == 0

    run(loop, steps())


def test_H3_stopped_reading_is_no_fault_of_the_client() -> None:
    """The idle deadline of a body does not run while we do not read it."""
    go = asyncio.Event()

    async def patient(exchange: Exchange) -> None:
        await go.wait()
        await exchange.read_body()
        exchange.respond(200, JSON, b"{}")

    async def steps() -> None:
        async with port(patient, unread_bytes_max=100_000, body_idle_s=0.2, body_s=10) as edge:
            clients: list[Any] = [await edge.connect() for _ in range(3)]
            for client in clients:
                client.send(post(body=b"x" * 1_000_000))
            await until(lambda: len(edge.server.exchanges) == 3)
            await asyncio.sleep(0.6)
            go.set()
            for client in clients:
                assert (await client.answer()).status == 200
                client.close()

    run("uvloop", steps())


@BOTH
def test_E2_leaving_is_seen_though_the_body_was_not_read_on(loop: str) -> None:
    """A body that is given up may not leave its connection unread."""
    begun: list[Exchange] = []
    go = asyncio.Event()

    async def second_is_hasty(exchange: Exchange) -> None:
        begun.append(exchange)
        gone = asyncio.Event()
        exchange.on_gone(gone.set)
        if len(begun) == 2:
            await go.wait()
            exchange.start(200, JSON, None)
        await gone.wait()

    async def steps() -> None:
        async with port(second_is_hasty, unread_bytes_max=100_000) as edge:
            clients = [await edge.connect() for _ in range(2)]
            for number, client in enumerate(clients):
                client.send(post(body=b"x" * 1_000_000)[:-100_000])
                await until(lambda: len(begun) == number + 1)  # noqa: B023
            await until(lambda: edge.server.unread_bytes >= 900_000)
            go.set()
            clients[1].close()
            await until(lambda: begun[1].gone, within_s=1)
            assert not begun[0].gone
            clients[0].close()

    run(loop, steps())
