"""One execution, one connection, one write. Over real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from wire import CHUNKED_HEAD, EXECUTION, LAST_CHUNK, LOOPS, Clock, Peer, Server, answer, frame, run_on, until

from headworks.engines.endpoint import Endpoint
from headworks.engines.pool import CLOSE_S_MAX, IDLE_S_MAX, Call, Pool
from headworks.testing.listener import Recorder

BODY = b'{"model":"tiny"}'
FOREVER_S = float("inf")


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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


async def complete_quietly(pool: Pool) -> None:
    """Give late callbacks their chance, then close."""
    await until(lambda: not pool.connections_count)
    await pool.close()


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
    async def finish_and_stay(peer: Peer) -> None:
        await peer.request()
        assert await peer.reader.read() == b""
        await peer.say(answer(b"all of it"))
        await asyncio.sleep(60)

    async def test() -> None:
        async with Server(finish_and_stay) as server:
            pool = Pool(Endpoint(server.url), Clock(), close_s_max=0.1)
            recorder = Recorder()
            call = start(pool, recorder)
            await until(lambda: server.open_count == 1)
            await asyncio.sleep(0.01)
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


# Back-pressure.


def test_E2_paused_call_receives_nothing_until_resumed(loop: str) -> None:
    async def test() -> None:
        paused = asyncio.Event()
        blocked = asyncio.Event()

        async def flood(peer: Peer) -> None:
            await peer.request()
            await peer.say(CHUNKED_HEAD + frame(b"first\n"))
            await paused.wait()
            peer.writer.transport.set_write_buffer_limits(65_536)
            piece = frame(b"x" * 65_535 + b"\n")
            for _ in range(400):
                peer.writer.write(piece)
                try:
                    await asyncio.wait_for(peer.writer.drain(), 0.2 if not blocked.is_set() else 10)
                except TimeoutError:
                    blocked.set()
            await peer.say(LAST_CHUNK)

        async with Server(flood) as server:
            pool = Pool(Endpoint(server.url), Clock())
            recorder = Recorder()
            call = start(pool, recorder)
            await recorder.until(lambda told: told.payload == b"first\n")
            call.pause_reading()
            call.pause_reading()
            paused.set()
            await blocked.wait()
            assert recorder.payload == b"first\n", "nothing is read while paused, and the engine feels it"
            call.resume_reading()
            await recorder.until_told("end")
            assert len(recorder.payload) == 6 + 400 * 65_536
            await pool.close()

    run_on(loop, test())


def test_E2_pause_ends_with_the_answer(loop: str) -> None:
    """A client that pauses at its last byte must not leave the next execution on that connection unread."""

    class PausesAtOnce(Recorder):
        call: Call

        def on_body(self, raw: bytes | None, payload: bytes) -> None:
            self.call.pause_reading()
            super().on_body(raw, payload)

    async def test() -> None:
        async with Server(echo) as server:
            pool = Pool(Endpoint(server.url), Clock())
            slow = PausesAtOnce()
            slow.call = start(pool, slow)
            await slow.until_told("end")
            assert (await complete(pool, b"next")).payload == b"next"
            assert server.accepted_count == 1
            await pool.close()

    run_on(loop, test())


def test_E2_abort_of_a_paused_call_still_sees_the_close(loop: str) -> None:
    async def test() -> None:
        async with Server(stream_for_ever) as server:
            pool = Pool(Endpoint(server.url), Clock())
            recorder = Recorder()
            call = start(pool, recorder)
            await recorder.until_told("head")
            call.pause_reading()
            call.abort()
            call.pause_reading()
            await recorder.until_told("closed")
            await complete_quietly(pool)

    run_on(loop, test())


# The pool's own end.


def test_E6_close_lets_running_executions_end(loop: str) -> None:
    async def test() -> None:
        go_on = asyncio.Event()

        async def hold(peer: Peer) -> None:
            await peer.request()
            await go_on.wait()
            await peer.say(answer(b"done"))
            assert await peer.reader.read() == b"", "closed after its end, not kept"

        async with Server(hold) as server:
            pool = Pool(Endpoint(server.url), Clock())
            recorder = Recorder()
            start(pool, recorder)
            await until(lambda: server.accepted_count)
            await asyncio.sleep(0.01)
            await pool.close()
            go_on.set()
            await recorder.until_told("end")
            assert recorder.payload == b"done"
            refused = Recorder()
            start(pool, refused)
            await refused.until_told("not_sent connect")
            await complete_quietly(pool)

    run_on(loop, test())
