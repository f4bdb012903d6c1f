"""A connection that dies, an execution that is stopped: what is told, and when it proves something."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from wire import (
    BODY,
    CHUNKED_HEAD,
    LAST_CHUNK,
    LOOPS,
    Clock,
    Peer,
    Server,
    answer,
    complete,
    complete_quietly,
    frame,
    run_on,
    start,
    stream_for_ever,
    until,
)

from headworks.engines.endpoint import Endpoint
from headworks.engines.pool import CLOSE_S_MAX, Pool
from headworks.testing.listener import Recorder

pytestmark = pytest.mark.parametrize("loop", LOOPS)

# Lost after a byte was written.


def test_E6_connection_that_dies_after_the_write_is_lost_and_never_resent(loop: str) -> None:
    requests: list[bytes] = []

    async def answer_once_then_die(peer: Peer) -> None:
        requests.append((await peer.request())[1])
        await peer.say(answer(b"{}"))
        requests.append((await peer.request())[1])
        raw = peer.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.writer.transport.abort()

    async def test() -> None:
        async with Server(answer_once_then_die) as server:
            pool = Pool(Endpoint(server.url), Clock())
            await complete(pool)
            recorder = Recorder()
            start(pool, recorder, b"second")
            await recorder.until_told("lost")
            assert requests == [BODY, b"second"]
            assert server.accepted_count == 1
            assert pool.connections_count == 0
            await pool.close()

    run_on(loop, test())


@pytest.mark.parametrize(
    "cut",
    [b"", b"HTTP/1.1 200", CHUNKED_HEAD + frame(b"data: 1\n\n"), b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"],
    ids=["nothing", "half-head", "mid-stream", "short-body"],
)
def test_E1_answer_cut_short_is_lost_not_ended(loop: str, cut: bytes) -> None:
    async def cut_short(peer: Peer) -> None:
        await peer.request()
        await peer.say(cut)

    async def test() -> None:
        async with Server(cut_short) as server:
            pool = Pool(Endpoint(server.url), Clock())
            recorder = Recorder()
            start(pool, recorder)
            assert "before the end of its answer" in await recorder.until_told("lost")
            assert recorder.told.count("end") == 0
            await pool.close()

    run_on(loop, test())


def test_E1_answer_without_length_ends_with_the_connection(loop: str) -> None:
    async def until_close(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\n\r\n", b"all ", b"of it")

    async def test() -> None:
        async with Server(until_close) as server:
            pool = Pool(Endpoint(server.url), Clock())
            recorder = await complete(pool)
            assert (recorder.told, recorder.payload) == (["head", "end"], b"all of it")
            await pool.close()

    run_on(loop, test())


@pytest.mark.parametrize("garbage", [b"SSH-2.0-x\r\n\r\n", CHUNKED_HEAD + b"zz\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 40_000])
def test_E6_garbage_is_lost(loop: str, garbage: bytes) -> None:
    async def talk_nonsense(peer: Peer) -> None:
        await peer.request()
        await peer.say(garbage)
        await peer.reader.read()

    async def test() -> None:
        async with Server(talk_nonsense) as server:
            pool = Pool(Endpoint(server.url), Clock())
            recorder = Recorder()
            start(pool, recorder)
            assert "the engine sent" in await recorder.until_told("lost")
            await until(lambda: not pool.connections_count)
            await pool.close()

    run_on(loop, test())


# Abort: half-close, read on, see the server close.


def test_A5_abort_half_closes_and_reports_the_servers_close(loop: str) -> None:
    async def test() -> None:
        async with Server(stream_for_ever) as server:
            pool = Pool(Endpoint(server.url), Clock())
            recorder = Recorder()
            call = start(pool, recorder)
            await recorder.until(lambda told: len(told.payload) > 20)
            call.abort()
            call.abort()
            await recorder.until_told("closed")
            await complete_quietly(pool)
            assert recorder.told == ["head", "closed"]

    run_on(loop, test())


def test_A5_what_the_engine_says_after_the_abort_still_arrives(loop: str) -> None:
    """The last frames, usage among them, may be on their way when the client leaves: they settle the account."""

    async def finish_anyway(peer: Peer) -> None:
        await peer.request()
        await peer.say(CHUNKED_HEAD + frame(b"data: 1\n\n"))
        assert await peer.reader.read() == b""
        await peer.say(frame(b'data: {"usage":{}}\n\n'), frame(b"data: [DONE]\n\n") + LAST_CHUNK)

    async def test() -> None:
        async with Server(finish_anyway) as server:
            pool = Pool(Endpoint(server.url), Clock())
            recorder = Recorder()
            call = start(pool, recorder)
            await recorder.until(lambda told: len(told.payload) > 0)
            call.abort()
            await recorder.until_told("closed")
            assert recorder.told == ["head", "end", "closed"]
            assert recorder.payload.endswith(b'data: {"usage":{}}\n\ndata: [DONE]\n\n')
            await complete_quietly(pool)

    run_on(loop, test())


def test_A5_answer_that_ends_by_closing_has_no_end_after_an_abort(loop: str) -> None:
    """Its end cannot be told from being cut, so it proves nothing in band."""

    async def until_close(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\n\r\npart")
        await peer.reader.read()

    async def test() -> None:
        async with Server(until_close) as server:
            pool = Pool(Endpoint(server.url), Clock())
            recorder = Recorder()
            call = start(pool, recorder)
            await recorder.until(lambda told: told.payload == b"part")
            call.abort()
            await recorder.until_told("closed")
            await complete_quietly(pool)
            assert recorder.told == ["head", "closed"]

    run_on(loop, test())


def test_A5_server_that_never_closes_is_lost_after_the_bound(loop: str) -> None:
    async def ignore(peer: Peer) -> None:
        await peer.request()
        await peer.say(CHUNKED_HEAD)
        while True:
            await peer.say(frame(b"data: 1\n\n"))

    async def test() -> None:
        assert CLOSE_S_MAX == 5.0
        async with Server(ignore) as server:
            pool = Pool(Endpoint(server.url), Clock(), close_s_max=0.05)
            recorder = Recorder()
            call = start(pool, recorder)
            await recorder.until_told("head")
            call.abort()
            assert await recorder.until_told("lost") == "lost no close"
            await complete_quietly(pool)
            assert recorder.told == ["head", "lost no close"]

    run_on(loop, test())


def test_A5_answer_that_ended_is_not_lost_when_the_server_never_closes(loop: str) -> None:
    async def test() -> None:
        asked = asyncio.Event()

        async def finish_and_stay(peer: Peer) -> None:
            await peer.request()
            asked.set()
            assert await peer.reader.read() == b""
            await peer.say(answer(b"all of it"))
            await asyncio.sleep(60)

        async with Server(finish_and_stay) as server:
            pool = Pool(Endpoint(server.url), Clock(), close_s_max=0.1)
            recorder = Recorder()
            call = start(pool, recorder)
            await asked.wait()
            call.abort()
            await recorder.until_told("end")
            await complete_quietly(pool)
            assert recorder.told == ["head", "end"]

    run_on(loop, test())


def test_A5_reset_after_an_abort_is_lost_not_closed(loop: str) -> None:
    """A reset may come from anything on the way; only the server's own close starts the clock proof."""

    async def reset(peer: Peer) -> None:
        await peer.request()
        await peer.say(CHUNKED_HEAD)
        await peer.reader.read()
        raw = peer.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.writer.transport.abort()

    async def test() -> None:
        async with Server(reset) as server:
            pool = Pool(Endpoint(server.url), Clock())
            recorder = Recorder()
            call = start(pool, recorder)
            await recorder.until_told("head")
            call.abort()
            await recorder.until_told("lost")
            await complete_quietly(pool)
            assert "closed" not in recorder.told

    run_on(loop, test())


def test_E6_connection_of_an_aborted_call_is_not_reused(loop: str) -> None:
    async def test() -> None:
        async with Server(stream_for_ever) as server:
            pool = Pool(Endpoint(server.url), Clock())
            for _ in range(2):
                recorder = Recorder()
                call = start(pool, recorder)
                await recorder.until_told("head")
                call.abort()
                await recorder.until_told("closed")
            assert server.accepted_count == 2
            await complete_quietly(pool)

    run_on(loop, test())


def test_E6_abort_after_the_end_touches_nobody_elses_execution(loop: str) -> None:
    async def test() -> None:
        second_asked = asyncio.Event()
        go_on = asyncio.Event()

        async def second_slowly(peer: Peer) -> None:
            await peer.request()
            await peer.say(answer(b"1"))
            await peer.request()
            second_asked.set()
            await go_on.wait()
            await peer.say(answer(b"2"))
            await peer.request()
            await peer.say(answer(b"3"))

        async with Server(second_slowly) as server:
            pool = Pool(Endpoint(server.url), Clock())
            first, second = Recorder(), Recorder()
            call = start(pool, first)
            await first.until_told("end")
            start(pool, second)
            await second_asked.wait()
            call.abort()
            call.pause_reading()
            go_on.set()
            await second.until_told("end")
            assert (first.told, second.told, second.payload) == (["head", "end"], ["head", "end"], b"2")
            assert (await complete(pool)).payload == b"3"
            assert server.accepted_count == 1, "the connection was not half-closed under the second"
            await pool.close()

    run_on(loop, test())


# Engines with in-band proof only.


def test_E2_read_on_after_abort_reaches_the_end(loop: str) -> None:
    async def test() -> None:
        aborted = asyncio.Event()

        async def finish(peer: Peer) -> None:
            while True:
                await peer.request()
                await peer.say(CHUNKED_HEAD + frame(b"data: 1\n\n"))
                await aborted.wait()
                await peer.say(frame(b"data: [DONE]\n\n") + LAST_CHUNK)

        async with Server(finish) as server:
            pool = Pool(Endpoint(server.url), Clock(), read_on_after_abort=True)
            recorder = Recorder()
            call = start(pool, recorder)
            await recorder.until(lambda told: len(told.payload) > 0)
            call.pause_reading()
            call.abort()
            aborted.set()
            await recorder.until_told("end")
            assert recorder.told == ["head", "end"]
            await complete(pool)
            assert server.accepted_count == 1, "its end leaves the connection in step"
            await pool.close()

    run_on(loop, test())


def test_E2_read_on_after_abort_gives_up_on_silence_only(loop: str) -> None:
    async def talk_then_silence(peer: Peer) -> None:
        await peer.request()
        await peer.say(CHUNKED_HEAD)
        for _ in range(8):
            await asyncio.sleep(0.05)
            await peer.say(frame(b"data: 1\n\n"))
        await asyncio.sleep(60)

    async def test() -> None:
        async with Server(talk_then_silence) as server:
            pool = Pool(Endpoint(server.url), Clock(), read_on_after_abort=True, aborted_silence_s_max=0.1)
            recorder = Recorder()
            call = start(pool, recorder)
            await recorder.until_told("head")
            call.abort()
            assert await recorder.until_told("lost") == "lost silent"
            assert recorder.payload == b"data: 1\n\n" * 8
            await complete_quietly(pool)

    run_on(loop, test())
