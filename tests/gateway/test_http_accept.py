"""H3, H4: how connections come in: many at a turn of the loop, and none is left behind at the end."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from http_port import LOOPS, Port, port, run

BOTH = pytest.mark.parametrize("loop", LOOPS)


def callers(edge: Port, count: int) -> list[socket.socket]:
    """Connected as far as the kernel does that by itself."""
    sockets = [socket.socket() for _ in range(count)]
    for caller in sockets:
        caller.setblocking(False)
        caller.connect_ex(edge.address)
    return sockets


@BOTH
def test_H3_a_crowd_is_accepted_in_few_turns_of_a_busy_loop(loop: str) -> None:
    """Each turn of a busy loop may take long; one connection a turn would let the last one wait for all of them."""

    async def steps() -> None:
        async with port() as edge:
            crowd = callers(edge, 48)
            turns = 0
            while edge.server.counters.accepted < 48 and turns < 100:
                await asyncio.sleep(0)
                turns += 1
            assert (edge.server.counters.accepted, turns <= 10) == (48, True)
            for caller in crowd:
                caller.close()

    run(loop, steps())


@BOTH
@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_H4_none_that_was_coming_in_outlives_the_port(turns: int, loop: str) -> None:
    async def steps() -> None:
        async with port() as edge:
            [caller] = callers(edge, 1)
            for _ in range(turns):
                await asyncio.sleep(0)
            edge.server.stop_accepting()
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(caller, 1), 1) == b""
            caller.close()

    run(loop, steps())
