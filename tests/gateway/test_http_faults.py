"""E4, H3: answers that cannot be finished look broken, and a fault of ours costs one answer and is counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from http_port import JSON, LOOPS, chunked, port, post, run, until

from headworks.gateway.http import Exchange, HttpError

BOTH = pytest.mark.parametrize("loop", LOOPS)


@pytest.mark.parametrize(
    "field", [(b"X-A", b"a\r\nX-B: b"), (b"X-A", b"a\nb"), (b"X-A", b"a\rb"), (b"X-A", b"\0"), (b"X A", b"a")]
)
def test_H3_no_field_begins_a_second_answer(field: tuple[bytes, bytes]) -> None:
    async def careless(exchange: Exchange) -> None:
        exchange.respond(200, [*JSON, field], b"{}")

    async def steps() -> None:
        async with port(careless) as edge:
            answer = await edge.ask(post())
            assert (answer.status, answer.code) == (500, "internal_error")
            assert [type(fault) for fault in edge.faults] == [ValueError]

    run("uvloop", steps())


async def break_off(exchange: Exchange) -> None:
    await exchange.read_body()
    length = int(exchange.head.line.query) if exchange.head.line.query else None
    exchange.start(200, JSON, length)
    exchange.write(b"half")
    await asyncio.sleep(0.02)
    exchange.abort()


@BOTH
@pytest.mark.parametrize("payload", [post(), post(path="/echo?10"), post().replace(b"HTTP/1.1", b"HTTP/1.0")])
def test_E4_aborted_answer_never_ends_cleanly(payload: bytes, loop: str) -> None:
    async def steps() -> None:
        async with port(break_off) as edge:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await edge.ask(payload)
            await until(lambda: edge.server.counters.closed == {"broken": 1})

    run(loop, steps())


async def raises(exchange: Exchange) -> None:
    raise KeyError("of our own")


async def forgets_to_answer(exchange: Exchange) -> None:
    await exchange.read_body()


async def refuses_with_a_bad_field(exchange: Exchange) -> None:
    raise HttpError(400, "invalid_request", "No.", [(b"X-A", b"\n")])


@BOTH
@pytest.mark.parametrize("handler", [raises, forgets_to_answer, refuses_with_a_bad_field])
def test_H3_fault_before_an_answer_is_500_and_counted(handler: Any, loop: str) -> None:
    async def steps() -> None:
        async with port(handler) as edge:
            answer = await edge.ask(post())
            assert (answer.status, answer.code) == (500, "internal_error")
            assert edge.server.counters.faults == len(edge.faults) == 1

    run(loop, steps())


async def falls_short(exchange: Exchange) -> None:
    exchange.start(200, JSON, 10)
    exchange.write(b"short")
    exchange.finish()


async def writes_too_much(exchange: Exchange) -> None:
    exchange.start(200, JSON, 3)
    exchange.write(b"to")
    exchange.write(b"long")


async def raises_in_the_middle(exchange: Exchange) -> None:
    exchange.start(200, JSON, None)
    exchange.write(b"data")
    raise KeyError("of our own")


async def refuses_in_the_middle(exchange: Exchange) -> None:
    exchange.start(200, JSON, None)
    raise HttpError(400, "invalid_request", "Too late.")


@BOTH
@pytest.mark.parametrize("handler", [falls_short, writes_too_much, raises_in_the_middle, refuses_in_the_middle])
def test_H3_fault_in_an_answer_breaks_it_and_adds_no_second(handler: Any, loop: str) -> None:
    async def steps() -> None:
        async with port(handler) as edge:
            client = await edge.connect()
            client.send(post())
            everything = await client.reader.read()
            assert everything.count(b"HTTP/1.1") == 1
            assert b"\r\n0\r\n\r\n" not in everything
            client.close()

    run(loop, steps())


def test_H3_bad_chunk_after_the_answer_began_gets_no_second_answer() -> None:
    async def early(exchange: Exchange) -> None:
        exchange.start(200, JSON, None)
        exchange.write(b"x")
        await asyncio.sleep(0.1)
        exchange.finish()

    async def steps() -> None:
        async with port(early) as edge:
            client = await edge.connect()
            client.send(chunked(body=b"2\r\n{}\r\n"))
            await until(lambda: edge.server.exchanges)
            client.send(b"zz\r\n")
            everything = await client.reader.read()
            assert everything.count(b"HTTP/1.1") == 1
            client.close()

    run("uvloop", steps())


def test_H3_an_exchange_is_answered_once() -> None:
    async def twice(exchange: Exchange) -> None:
        exchange.respond(200, JSON, b"{}")
        with pytest.raises(RuntimeError):
            exchange.respond(200, JSON, b"{}")
        with pytest.raises(RuntimeError):
            exchange.start(200, JSON, None)
        exchange.write(b"late")
        exchange.finish()
        exchange.abort()

    async def steps() -> None:
        async with port(twice) as edge:
            client = await edge.connect()
            for _ in range(2):
                client.send(post())
                assert (await client.answer()).body == b"{}"
            client.close()
            assert edge.faults == []

    run("uvloop", steps())


@BOTH
def test_E4_cancelled_handler_breaks_its_answer(loop: str) -> None:
    async def cancelled(exchange: Exchange) -> None:
        exchange.start(200, JSON, None)
        assert exchange.task is not None
        exchange.task.cancel()
        await asyncio.sleep(5)

    async def steps() -> None:
        async with port(cancelled) as edge:
            with pytest.raises(asyncio.IncompleteReadError):
                await edge.ask(post())
            assert edge.server.counters.closed == {"broken": 1}
            assert edge.faults == []

    run(loop, steps())


@BOTH
def test_H3_a_request_with_bytes_behind_it_reaches_no_handler(loop: str) -> None:
    served: list[str] = []

    async def noting(exchange: Exchange) -> None:
        served.append(exchange.path)
        exchange.respond(200, JSON, b"{}")

    async def steps() -> None:
        async with port(noting) as edge:
            assert (await edge.ask(post() + b"x")).status == 400
            assert served == []

    run(loop, steps())
