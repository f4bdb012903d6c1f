"""H3: whoever stalls is answered or closed in the stated time, and costs the others nothing but a place."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from http_port import JSON, LOOPS, Client, Flow, Port, chunked, get, port, post, run, until

from headworks.gateway.http import Exchange

LATE_S = 1.5
"""What a busy machine may add; the wheel itself is at most 0.05 s late."""
LIMITS: dict[str, Any] = {"header_s": 0.2, "body_s": 0.5, "body_idle_s": 0.2, "write_stall_s": 0.3}


async def silent(client: Client) -> None:
    """Connects and says nothing."""


async def half_a_line(client: Client) -> None:
    client.send(b"POST /ec")


async def half_a_head(client: Client) -> None:
    client.send(post()[:60])


async def dripping_head(client: Client) -> None:
    for byte in post()[:20]:
        client.send(bytes([byte]))
        await asyncio.sleep(0.04)


async def half_a_body(client: Client) -> None:
    client.send(post(body=b"x" * 100)[:-99])


async def no_body(client: Client) -> None:
    client.send(post(body=b"x" * 100)[:-100])


async def dripping_body(client: Client) -> None:
    client.send(post(body=b"x" * 100)[:-100])
    for _ in range(20):
        client.send(b"x")
        await asyncio.sleep(0.04)


async def half_a_chunk(client: Client) -> None:
    client.send(chunked(body=b"5\r\nhel"))


async def no_last_chunk(client: Client) -> None:
    client.send(chunked(body=b"2\r\n{}\r\n"))


async def asked_to_continue(client: Client) -> None:
    client.send(post("Expect: 100-continue")[:-2])
    assert (await client.answer()).status == 100


async def idle(client: Client) -> None:
    client.send(get())
    assert (await client.answer()).status == 200


async def half_a_second_head(client: Client) -> None:
    await idle(client)
    client.send(post()[:60])


STALLS = [  # what the client does, the limit that ends it, the answer it gets
    (silent, 0.2, None),
    (half_a_line, 0.2, 408),
    (half_a_head, 0.2, 408),
    (dripping_head, 0.2, 408),
    (half_a_body, 0.2, 408),
    (no_body, 0.2, 408),
    (dripping_body, 0.5, 408),
    (half_a_chunk, 0.2, 408),
    (no_last_chunk, 0.2, 408),
    (asked_to_continue, 0.2, 408),
    (idle, 0.2, None),
    (half_a_second_head, 0.2, 408),
]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("stall", "limit_s", "status"), STALLS, ids=lambda value: getattr(value, "__name__", ""))
def test_H3_stall_ends_in_its_time(stall: Any, limit_s: float, status: int | None, loop: str) -> None:
    async def steps() -> None:
        async with port(**LIMITS, idle_s=0.2 if stall is idle else 30) as edge:
            client = await edge.connect()
            begun_s = time.monotonic()
            stalling = asyncio.ensure_future(stall(client))
            if "dripping" not in stall.__name__:
                await stalling
            if status is None:
                assert await client.ended() == "closed"
            else:
                answer = await client.answer()
                assert (answer.status, answer.code, answer.fields["connection"]) == (status, "invalid_request", "close")
            assert limit_s - 0.01 <= time.monotonic() - begun_s <= limit_s + LATE_S
            stalling.cancel()
            client.close()
            await until(lambda: not edge.server.connections)

    run(loop, steps())


@pytest.mark.parametrize("loop", LOOPS)
def test_H3_refused_client_that_stays_is_closed_after_the_linger(loop: str) -> None:
    async def steps() -> None:
        async with port(linger_s=0.3) as edge:
            client = await edge.connect()
            begun_s = time.monotonic()
            client.send(post(path="/nothing", body=b"x" * 100)[:-50])
            assert (await client.answer()).status == 404
            client.send(b"x" * 10)
            await until(lambda: edge.server.counters.closed == {"unread_body": 1})
            assert 0.3 <= time.monotonic() - begun_s <= 0.3 + LATE_S
            client.close()

    run(loop, steps())


async def stream_for_ever(exchange: Exchange) -> None:
    """Writes until told to pause, and goes on when told to resume."""
    running = asyncio.Event()
    left = asyncio.Event()
    running.set()
    exchange.on_gone(lambda: (left.set(), running.set()))  # type: ignore[func-returns-value]
    exchange.read_by(Flow(running.clear, running.set))
    exchange.start(200, JSON, None)
    while not left.is_set():
        await running.wait()
        exchange.write(b"x" * 8192)
        await asyncio.sleep(0)


@pytest.mark.parametrize("loop", LOOPS)
def test_H3_reader_that_stops_is_gone_after_the_write_stall(loop: str) -> None:
    async def steps() -> None:
        async with port(stream_for_ever, write_stall_s=0.3, write_buffer_bytes_max=65_536) as edge:
            client = await edge.connect()
            client.writer.transport.pause_reading()
            begun_s = time.monotonic()
            client.send(post())
            await until(lambda: edge.server.counters.closed == {"write_stall": 1})
            assert time.monotonic() - begun_s >= 0.3
            await until(lambda: not edge.server.exchanges)
            assert edge.faults == []
            client.close()

    run(loop, steps())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("mark_bytes", [65_536, 100_000_000], ids=["paused", "below the mark"])
def test_H3_unread_last_answer_does_not_hold_its_connection(mark_bytes: int, loop: str) -> None:
    async def large(exchange: Exchange) -> None:
        exchange.respond(200, JSON, b"x" * 20_000_000)

    async def steps() -> None:
        async with port(large, write_stall_s=0.3, idle_s=0.3, write_buffer_bytes_max=mark_bytes) as edge:
            for fields in (["Connection: close"], []):
                client = await edge.connect()
                client.writer.transport.pause_reading()
                client.send(post(*fields))
                await until(lambda: edge.server.connections)
                await until(lambda: not edge.server.connections)
                client.close()
            assert edge.faults == []

    run(loop, steps())


def crowd() -> list[bytes]:
    """Five hundred stalled openings of every kind."""
    kinds = [b"", b"POST", post()[:60], post(body=b"x" * 100)[:-99], chunked(body=b"5\r\nhel")]
    return [kinds[number % len(kinds)] for number in range(500)]


@pytest.mark.parametrize("loop", LOOPS)
def test_H3_good_requests_are_answered_beside_500_stalled(loop: str) -> None:
    async def steps() -> None:
        async with port() as edge:
            stalled = [await edge.connect() for _ in range(500)]
            for client, opening in zip(stalled, crowd(), strict=True):
                client.send(opening)
            await until(lambda: len(edge.server.connections) == 500 and edge.server.counters.requests == 200)
            await answered(edge, 50)
            assert len(edge.server.connections) >= 500
            for client in stalled:
                client.close()

    run(loop, steps(), within_s=60)


def test_H3_500_stalled_are_closed_together_and_good_requests_still_answered() -> None:
    async def steps() -> None:
        async with port(header_s=0.4, body_s=0.4, body_idle_s=0.4) as edge:
            stalled = [await edge.connect() for _ in range(500)]
            for client, opening in zip(stalled, crowd(), strict=True):
                client.send(opening)
            while edge.server.connections:
                await answered(edge, 1)
                await asyncio.sleep(0.02)
            assert sum(edge.server.counters.closed.values()) >= 500
            for client in stalled:
                client.close()

    run("uvloop", steps(), within_s=60)


async def answered(edge: Port, count: int) -> None:
    for _ in range(count):
        assert (await edge.ask(post())).status == 200
