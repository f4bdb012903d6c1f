"""One execution, one connection, one write. Over real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import socket

import pytest
from wire import (
    BODY,
    LOOPS,
    Clock,
    Peer,
    Server,
    answer,
    complete,
    complete_quietly,
    echo,
    run_on,
    start,
    stream_for_ever,
    until,
)

from headworks.engines.endpoint import Endpoint
from headworks.engines.pool import IDLE_S_MAX, Pool
from headworks.testing.listener import Recorder

pytestmark = pytest.mark.parametrize("loop", LOOPS)

# What is written.


def test_H3_request_is_built_from_scratch(loop: str) -> None:
    heads: list[bytes] = []

    async def keep(peer: Peer) -> None:
        head, body = await peer.request()
        heads.append(head + body)
        await peer.say(answer(b"{}"))

    async def test() -> None:
        async with Server(keep) as server:
            pool = Pool(Endpoint(server.url, api_key="secret"), Clock())
            await complete(pool)
            await pool.close()
            port = server.url.rpartition(":")[2]
            assert heads == [
                b"POST /v1/completions HTTP/1.1\r\n"
                b"Host: 127.0.0.1:" + port.encode() + b"\r\n"
                b"Authorization: Bearer secret\r\n"
                b"Content-Type: application/json\r\n"
                b"Accept: text/event-stream, application/json\r\n"
                b"X-Request-Id: 0123456789abcdef0123456789abcdef\r\n"
                b"Content-Length: 16\r\n\r\n"
                b'{"model":"tiny"}'
            ]

    run_on(loop, test())


def test_E6_large_body_arrives_whole(loop: str) -> None:
    async def test() -> None:
        async with Server(echo) as server:
            pool = Pool(Endpoint(server.url), Clock())
            body = bytes(range(256)) * 16_000
            assert (await complete(pool, body)).payload == body
            assert (await complete(pool, BODY)).payload == BODY
            assert server.accepted_count == 1
            await pool.close()

    run_on(loop, test())


# Which connection.


def test_E6_connection_is_reused_after_a_complete_answer(loop: str) -> None:
    async def test() -> None:
        async with Server(echo) as server:
            pool = Pool(Endpoint(server.url), Clock())
            for _ in range(5):
                await complete(pool)
            assert server.accepted_count == pool.connections_count == 1
            await pool.close()

    run_on(loop, test())


def test_E6_two_executions_never_share_a_connection(loop: str) -> None:
    async def test() -> None:
        both = asyncio.Event()

        async def hold(peer: Peer) -> None:
            await peer.request()
            if peer.number == 2:
                both.set()
            await both.wait()
            await peer.say(answer(b"%d" % peer.number))

        async with Server(hold) as server:
            pool = Pool(Endpoint(server.url), Clock())
            first, second = await asyncio.gather(complete(pool), complete(pool))
            assert {first.payload, second.payload} == {b"1", b"2"}
            await pool.close()

    run_on(loop, test())


def test_E6_newest_idle_connection_is_taken_first(loop: str) -> None:
    async def test() -> None:
        gates = {1: asyncio.Event(), 2: asyncio.Event()}
        asked: list[int] = []

        async def hold(peer: Peer) -> None:
            while True:
                await peer.request()
                asked.append(peer.number)
                await gates[peer.number].wait()
                await peer.say(answer(b"%d" % peer.number))

        async with Server(hold) as server:
            pool = Pool(Endpoint(server.url), Clock())
            running = [asyncio.ensure_future(complete(pool)) for _ in range(2)]
            await until(lambda: len(asked) == 2)
            for number in (2, 1):
                gates[number].set()
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED if number == 2 else asyncio.ALL_COMPLETED)
            assert (await complete(pool)).payload == b"1"
            await pool.close()

    run_on(loop, test())


def test_E6_connection_idle_for_four_seconds_is_not_reused(loop: str) -> None:
    async def test() -> None:
        clock = Clock()
        async with Server(echo) as server:
            pool = Pool(Endpoint(server.url), clock)
            await complete(pool)
            clock.now_s += IDLE_S_MAX - 0.01
            await complete(pool)
            assert server.accepted_count == 1
            clock.now_s += IDLE_S_MAX
            await complete(pool)
            assert server.accepted_count == 2
            await pool.close()

    run_on(loop, test())


def test_E6_connection_closed_while_idle_costs_a_new_one(loop: str) -> None:
    async def once(peer: Peer) -> None:
        _, body = await peer.request()
        await peer.say(answer(body))

    async def test() -> None:
        async with Server(once) as server:
            pool = Pool(Endpoint(server.url), Clock())
            await complete(pool)
            await until(lambda: not pool.connections_count)
            assert (await complete(pool)).told == ["head", "end"]
            assert server.accepted_count == 2
            await pool.close()

    run_on(loop, test())


@pytest.mark.parametrize(
    "spoilt",
    [answer(b"{}") + b"x", answer(b"{}", b"200 OK", b"Connection: close"), b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"],
    ids=["left-over", "connection-close", "http-1.0"],
)
def test_E6_connection_is_not_reused_after(loop: str, spoilt: bytes) -> None:
    async def spoil(peer: Peer) -> None:
        await peer.request()
        await peer.say(spoilt)
        await peer.reader.read()

    async def test() -> None:
        async with Server(spoil) as server:
            pool = Pool(Endpoint(server.url), Clock())
            assert (await complete(pool)).payload == b"{}"
            assert (await complete(pool)).payload == b"{}"
            assert server.accepted_count == 2
            await pool.close()

    run_on(loop, test())


def test_E6_answer_before_the_whole_request_spoils_the_connection(loop: str) -> None:
    async def refuse_early(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.say(answer(b'{"error":1}', b"413 Too Large"))
        if peer.number == 1:
            await asyncio.sleep(60)

    async def test() -> None:
        async with Server(refuse_early) as server:
            pool = Pool(Endpoint(server.url), Clock())
            assert (await complete(pool, b"x" * 30_000_000)).status == 413
            assert (await complete(pool)).status == 413
            assert server.accepted_count == 2
            await pool.close()

    run_on(loop, test())


def test_E6_redirect_is_an_answer_and_is_not_followed(loop: str) -> None:
    async def redirect(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.say(answer(b"", b"307 Temporary Redirect", b"Location: http://169.254.169.254/"))

    async def test() -> None:
        async with Server(redirect) as server:
            pool = Pool(Endpoint(server.url), Clock())
            assert (await complete(pool)).status == 307
            assert server.accepted_count == 1
            await pool.close()

    run_on(loop, test())


# Nothing sent (E0).


def test_A7_late_fence_writes_nothing_on_an_idle_connection(loop: str) -> None:
    async def test() -> None:
        clock = Clock()
        async with Server(echo) as server:
            pool = Pool(Endpoint(server.url), clock)
            await complete(pool)
            recorder = Recorder()
            start(pool, recorder, send_before_s=clock.now_s - 0.001)
            assert recorder.told == [], "not from inside run"
            await recorder.until_told("not_sent late")
            # The connection was not touched: the next request finds it in step.
            assert (await complete(pool, b"next")).payload == b"next"
            assert server.accepted_count == 1
            await pool.close()

    run_on(loop, test())


def test_E6_what_was_too_late_to_be_written_keeps_no_connection_fresh(loop: str) -> None:
    async def test() -> None:
        clock = Clock()
        async with Server(echo) as server:
            pool = Pool(Endpoint(server.url), clock)
            await complete(pool)
            clock.now_s += IDLE_S_MAX - 0.1
            recorder = Recorder()
            start(pool, recorder, send_before_s=clock.now_s - 0.001)
            await recorder.until_told("not_sent late")
            clock.now_s += 0.2
            await complete(pool)
            assert server.accepted_count == 2, "the server has heard nothing on the first for longer than it waits"
            await pool.close()

    run_on(loop, test())


def test_A7_clock_is_read_after_the_connection_is_made(loop: str) -> None:
    """A process that slept while connecting must not send with a lease that ran out meanwhile."""

    async def test() -> None:
        clock = Clock()
        async with Server(echo) as server:
            pool = Pool(Endpoint(server.url), clock)
            recorder = Recorder()
            start(pool, recorder, send_before_s=clock.now_s + 1)
            clock.now_s += 2
            await recorder.until_told("not_sent late")
            assert recorder.told == ["not_sent late"]
            await pool.close()

    run_on(loop, test())


def test_E2_abort_before_the_write_sends_nothing(loop: str) -> None:
    heads: list[bytes] = []

    async def keep(peer: Peer) -> None:
        while True:
            head, _ = await peer.request()
            heads.append(head)
            await peer.say(answer(b"{}"))

    async def test() -> None:
        async with Server(keep) as server:
            pool = Pool(Endpoint(server.url), Clock())
            recorder = Recorder()
            call = start(pool, recorder)
            call.abort()
            call.abort()
            assert recorder.told == [], "not from inside abort"
            await recorder.until_told("not_sent gone")
            await complete(pool)
            assert recorder.told == ["not_sent gone"]
            assert len(heads) == 1
            await pool.close()

    run_on(loop, test())


def test_E6_refused_connection_is_not_sent(loop: str) -> None:
    async def test() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            pool = Pool(Endpoint(f"http://127.0.0.1:{closed.getsockname()[1]}"), Clock())
            recorder = Recorder()
            start(pool, recorder)
            await recorder.until_told("not_sent connect")
            assert pool.connections_count == 0
            await pool.close()

    run_on(loop, test())


def test_E6_connections_are_bounded(loop: str) -> None:
    async def test() -> None:
        async with Server(stream_for_ever) as server:
            pool = Pool(Endpoint(server.url), Clock(), connections_max=1)
            first, second = Recorder(), Recorder()
            call = start(pool, first)
            start(pool, second)
            await second.until_told("not_sent connect")
            await first.until_told("head")
            call.abort()
            await first.until_told("closed")
            await pool.close()

    run_on(loop, test())


# The pool's own end.


def test_E6_close_lets_running_executions_end(loop: str) -> None:
    async def test() -> None:
        asked = asyncio.Event()
        go_on = asyncio.Event()

        async def hold(peer: Peer) -> None:
            await peer.request()
            asked.set()
            await go_on.wait()
            await peer.say(answer(b"done"))
            assert await peer.reader.read() == b"", "closed after its end, not kept"

        async with Server(hold) as server:
            pool = Pool(Endpoint(server.url), Clock())
            recorder = Recorder()
            start(pool, recorder)
            await asked.wait()
            await pool.close()
            go_on.set()
            await recorder.until_told("end")
            assert recorder.payload == b"done"
            refused = Recorder()
            start(pool, refused)
            await refused.until_told("not_sent connect")
            await complete_quietly(pool)

    run_on(loop, test())
