"""H3: the second request of a connection is judged like the first, also where its head was seen before."""

from __future__ import annotations

import asyncio

import pytest
from http_port import LOOPS, port, post, run
from test_http_payloads import PLAIN, REFUSED, TAKEN

from headworks.gateway.http import Exchange

BOTH = pytest.mark.parametrize("loop", LOOPS)
FIRST = PLAIN + b"Content-Length: 2\r\nX-A: b\r\n\r\n{}"


def again(length: str, body: bytes, x_a: str = "b") -> bytes:
    return PLAIN + f"Content-Length: {length}\r\nX-A: {x_a}\r\n\r\n".encode() + body


SECOND = {
    "the same": (200, again("2", b"[]")),
    "longer body": (200, again("12", b'"0123456789"')),
    "leading zero": (200, again("02", b"{}")),
    "space after the length": (200, again("2 ", b"{}")),
    "other value": (200, again("2", b"{}", "c")),
    "no body": (200, again("0", b"")),
    "plus": (400, again("+2", b"{}")),
    "no length": (400, again("", b"{}")),
    "letter": (400, again("2x", b"{}")),
    "list": (400, again("2, 2", b"{}")),
    "bare LF after the length": (400, again("2\nX-B: c", b"{}")),
    "nineteen digits": (400, again("0000000000000000002", b"{}")),
    "too large": (413, again("20001", b"{}")),
    "one byte more": (400, again("2", b"{}G")),
    "second length": (400, again("2\r\nContent-Length: 3", b"{}")),
    "folded length": (400, again("2\r\n 3", b"{}")),
}


@BOTH
@pytest.mark.parametrize("name", SECOND)
def test_H3_second_length_is_judged_as_strictly(name: str, loop: str) -> None:
    status, payload = SECOND[name]

    async def steps() -> None:
        async with port(body_bytes_max=20_000) as edge:
            client = await edge.connect()
            for _ in range(2):
                client.send(FIRST)
                assert (await client.answer()).status == 200
            client.send(payload)
            answer = await client.answer()
            assert answer.status == status
            if status == 200:
                head, _, body = payload.partition(b"\r\n\r\n")
                lines = [line.split(b": ") for line in head.split(b"\r\n")[1:]]
                assert answer.json()["headers"] == {name.decode().lower(): value.decode().strip() for name, value in lines}
                assert answer.json()["body_bytes"] == len(body)
            client.close()

    run(loop, steps())


@pytest.mark.parametrize("name", [*TAKEN, *REFUSED])
def test_H3_payload_is_judged_alike_after_a_good_request(name: str) -> None:
    status, payload = REFUSED[name] if name in REFUSED else (200, TAKEN[name])

    async def steps() -> None:
        async with port(body_bytes_max=20_000) as edge:
            client = await edge.connect()
            client.send(PLAIN + b"Content-Length: 2\r\n\r\n{}")
            assert (await client.answer()).status == 200
            client.send(payload)
            assert (await client.answer(head_only=b"HEAD " in payload)).status == status
            assert edge.faults == []
            client.close()

    run("uvloop", steps())


@BOTH
def test_H3_repeated_head_may_come_apart_and_its_body_later(loop: str) -> None:
    async def steps() -> None:
        async with port() as edge:
            client = await edge.connect()
            client.send(FIRST)
            await client.answer()
            for border in range(1, len(FIRST), 9):
                client.send(FIRST[:border])
                await asyncio.sleep(0.002)
                client.send(FIRST[border:])
                answer = await client.answer()
                assert (answer.status, answer.json()["body_bytes"]) == (200, 2)
            client.close()

    run(loop, steps())


@BOTH
def test_H3_earlier_wish_to_be_asked_does_not_stick(loop: str) -> None:
    async def reads(exchange: Exchange) -> None:
        exchange.respond(200, [], await exchange.read_body())

    async def steps() -> None:
        async with port(reads) as edge:
            client = await edge.connect()
            client.send(FIRST)
            await client.answer()
            client.send(PLAIN + b"Content-Length: 2\r\nExpect: tea\r\n\r\n{}")
            assert (await client.answer()).status == 417
            client.send(FIRST[:-2])
            await asyncio.sleep(0.02)
            client.send(FIRST[-2:])
            assert (await client.answer()).status == 200  # and no `100 Continue` before it
            client.close()

    run(loop, steps())


@BOTH
def test_H3_what_is_remembered_is_bounded(loop: str) -> None:
    async def steps() -> None:
        async with port() as edge:
            client = await edge.connect()
            client.send(post())
            await client.answer()
            [connection] = edge.server.connections
            assert connection._repeated is not None
            client.send(post("X-Long: " + "x" * 2_048))
            await client.answer()
            assert connection._repeated is None
            for number in range(20):
                client.send(post(f"X-Number: {number}"))
                await client.answer()
            assert connection._repeated is None or b"X-Number: 19" not in connection._repeated.before
            client.close()

    run(loop, steps())
