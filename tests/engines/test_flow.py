"""A slow client is felt by its own engine connection, and by nothing else."""

from __future__ import annotations

import asyncio

import pytest
from wire import (
    CHUNKED_HEAD,
    LAST_CHUNK,
    LOOPS,
    Clock,
    Peer,
    Server,
    complete,
    complete_quietly,
    echo,
    frame,
    run_on,
    start,
    stream_for_ever,
)

from headworks.engines.call import Call
from headworks.engines.endpoint import Endpoint
from headworks.engines.pool import Pool
from headworks.testing.listener import Recorder

pytestmark = pytest.mark.parametrize("loop", LOOPS)


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


def test_E2_a_pause_before_the_connection_exists_is_kept(loop: str) -> None:
    async def test() -> None:
        asked, answered = asyncio.Event(), asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            asked.set()
            await peer.say(CHUNKED_HEAD + frame(b"first\n"), LAST_CHUNK)
            answered.set()

        async with Server(script) as server:
            pool = Pool(Endpoint(server.url), Clock())
            recorder = Recorder()
            call = start(pool, recorder)
            call.pause_reading()
            assert not asked.is_set(), "it is connecting"
            await answered.wait()
            for _ in range(20):  # turns in which it would have been read
                await asyncio.sleep(0)
            assert recorder.told == []
            call.resume_reading()
            await recorder.until_told("end")
            assert recorder.payload == b"first\n"
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
