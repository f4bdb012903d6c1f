"""What is written in one turn goes out when the turn is over: joined, in order, before any end, and not after an abort."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from wire import BODY, LOOPS, Clock, Peer, Server, answer, complete, run_on, start, until

from headworks.engines.endpoint import Endpoint
from headworks.engines.outbox import HELD_MAX, JOINED_BYTES_MAX, Outbox, Outgoing
from headworks.engines.pool import Pool
from headworks.testing.listener import Recorder

pytestmark = pytest.mark.parametrize("loop", LOOPS)


class Wire:
    """A transport that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.told.append(data)

    def close(self) -> None:
        self.told.append("close")

    def abort(self) -> None:
        self.told.append("abort")

    def write_eof(self) -> None:
        self.told.append("eof")

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 7


class Breaks(Wire):
    """Cannot be written to, and does not know it."""

    def write(self, data: bytes) -> None:
        raise RuntimeError("the handle is gone")


def made(outbox: Outbox, wire: Wire) -> Outgoing:
    return Outgoing(cast(asyncio.Transport, wire), outbox)


async def echo(peer: Peer) -> None:
    while True:
        _, body = await peer.request()
        await peer.say(answer(body))


def test_E2_what_a_turn_says_on_one_connection_is_one_write_when_it_is_over(loop: str) -> None:
    async def test() -> None:
        outbox, wire, other = Outbox(), Wire(), Wire()
        first, second = made(outbox, wire), made(outbox, other)
        first.write(b"one ")
        second.write(b"two")
        first.write(b"three")
        assert first.get_write_buffer_size() == 16
        assert wire.told == other.told == [], "the turn is not over"
        await asyncio.sleep(0)
        assert (wire.told, other.told) == ([b"one three"], [b"two"])
        first.write(b"four")
        await asyncio.sleep(0)
        assert wire.told == [b"one three", b"four"]

    run_on(loop, test())


def test_E2_many_writes_do_not_wait_for_a_long_turn(loop: str) -> None:
    async def test() -> None:
        outbox, wires = Outbox(), [Wire() for _ in range(HELD_MAX)]
        for number, wire in enumerate(wires):
            assert not wires[0].told, number
            made(outbox, wire).write(b"x")
        assert [wire.told for wire in wires] == [[b"x"]] * HELD_MAX

    run_on(loop, test())


def test_E2_a_large_piece_is_not_copied_and_stays_behind_what_came_before(loop: str) -> None:
    async def test() -> None:
        wire = Wire()
        out = made(Outbox(), wire)
        large = bytes(JOINED_BYTES_MAX)
        out.write(b"head")
        out.write(large)
        assert wire.told == [b"head", large]
        assert wire.told[1] is large

    run_on(loop, test())


def test_E1_an_end_comes_after_what_was_said_and_an_abort_instead_of_it(loop: str) -> None:
    async def test() -> None:
        outbox = Outbox()
        for end, told in (("close", [b"said", "close"]), ("write_eof", [b"said", "eof"]), ("abort", ["abort"])):
            wire = Wire()
            out = made(outbox, wire)
            out.write(b"said")
            getattr(out, end)()
            assert wire.told == told
            await asyncio.sleep(0)
            assert wire.told == told, "and nothing after it"
        gone = Wire()
        made(outbox, gone).write(b"said")
        gone.closing = True
        await asyncio.sleep(0)
        assert gone.told == []

    run_on(loop, test())


def test_F1_a_write_that_fails_costs_no_other(loop: str) -> None:
    async def test() -> None:
        outbox, wire, broken = Outbox(), Wire(), Breaks()
        made(outbox, broken).write(b"lost")
        made(outbox, wire).write(b"said")
        await asyncio.sleep(0)
        assert wire.told == [b"said"]
        assert broken.told == ["abort"], "or what comes next would be read as if nothing were missing"

    run_on(loop, test())


def test_E0_what_is_aborted_in_its_own_turn_is_not_written(loop: str) -> None:
    async def test() -> None:
        seen: list[bytes] = []

        async def noting(peer: Peer) -> None:
            while True:
                seen.append((await peer.request())[1])
                await peer.say(answer(b"{}"))

        async with Server(noting) as server:
            pool, recorder = Pool(Endpoint(server.url), Clock()), Recorder()
            await complete(pool, b"before")
            start(pool, recorder, b"never").abort()
            await recorder.until_told("not_sent")
            assert recorder.told == ["not_sent gone"]
            await complete(pool, b"after")
            assert (seen, server.accepted_count) == ([b"before", b"after"], 1)
            await pool.close()

    run_on(loop, test())


def test_E0_the_clock_is_read_when_it_is_written(loop: str) -> None:
    async def test() -> None:
        clock, outbox = Clock(), Outbox()
        async with Server(echo) as server:
            pool, recorder = Pool(Endpoint(server.url), clock, outbox=outbox), Recorder()
            await complete(pool)
            start(pool, recorder, BODY, clock.now_s + 1.0)
            clock.now_s += 1.5
            outbox.flush()
            await recorder.until_told("not_sent")
            assert recorder.told == ["not_sent late"]
            await pool.close()

    run_on(loop, test())


def test_F1_a_fault_in_writing_is_told_as_a_loss(loop: str) -> None:
    async def test() -> None:
        async with Server(echo) as server:
            outbox = Outbox()
            pool, recorder = Pool(Endpoint(server.url), Clock(), outbox=outbox), Recorder()
            await complete(pool)
            await until(lambda: len(pool._idle) == 1)
            pool._idle[0].transport = cast(asyncio.Transport, Breaks())
            pool.send(b"", b"", 1e9, recorder)
            outbox.flush()
            assert recorder.told == ["lost a fault of ours"]
            await pool.close()

    run_on(loop, test())


def test_F1_a_turn_that_says_when_it_is_over_needs_no_call_of_the_loop(loop: str) -> None:
    async def test() -> None:
        outbox, wire = Outbox(), Wire()
        outgoing = made(outbox, wire)
        outbox.begin_turn()
        outgoing.write(b"in ")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        outgoing.write(b"it")
        assert wire.told == []
        outbox.end_turn()
        assert wire.told == [b"in it"]
        outgoing.write(b"after")
        outbox.begin_turn()  # the next, which keeps waiting nothing that was said before it
        assert wire.told == [b"in it", b"after"]
        outbox.end_turn()
        outgoing.write(b"alone")
        await asyncio.sleep(0)
        assert wire.told == [b"in it", b"after", b"alone"]

    run_on(loop, test())
