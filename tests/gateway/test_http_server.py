"""H3, H4, F11: places, addresses and the end of the port; its one wheel of deadlines."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from http_port import JSON, LOOPS, get, port, post, run, until

from headworks.gateway.http import Exchange
from headworks.gateway.http.deadlines import NEVER_S, UNFILED, DeadlineWheel

BOTH = pytest.mark.parametrize("loop", LOOPS)


@BOTH
@pytest.mark.parametrize("limit", ["connections_max", "connections_per_address_max"])
def test_F11_no_place_is_said_and_a_place_comes_free(limit: str, loop: str) -> None:
    async def steps() -> None:
        async with port(**{limit: 3}) as edge:
            clients = [await edge.connect() for _ in range(3)]
            await until(lambda: len(edge.server.connections) == 3)
            refused = await edge.connect()
            answer = await refused.answer()
            assert (answer.status, answer.code, answer.fields["connection"]) == (503, "gateway_overloaded", "close")
            assert await refused.ended() == "closed"
            assert edge.server.counters.refused == 1
            clients.pop().close()
            await until(lambda: len(edge.server.connections) == 2)
            assert (await edge.ask(get())).status == 200
            for client in [*clients, refused]:
                client.close()

    run(loop, steps())


@BOTH
def test_H3_all_addresses_share_a_port_and_peers_read_as_they_are(loop: str) -> None:
    async def steps() -> None:
        async with port(listen={"host": "*"}) as edge:
            for host in ["127.0.0.1", "::1"]:
                edge.address = (host, edge.address[1])
                assert (await edge.ask(post())).json()["peer"] == host

    run(loop, steps())


@BOTH
def test_H3_bound_socket_is_taken_as_it_is(loop: str) -> None:
    async def steps() -> None:
        given = socket.create_server(("127.0.0.1", 0))
        async with port(listen={"sock": given}) as edge:
            assert edge.address == given.getsockname()
            assert (await edge.ask(get())).status == 200

    run(loop, steps())


@BOTH
def test_H3_accepted_sockets_probe_their_peers_and_do_not_delay(loop: str) -> None:
    async def steps() -> None:
        async with port() as edge:
            client = await edge.connect()
            await until(lambda: edge.server.connections)
            accepted = next(iter(edge.server.connections))._transport.get_extra_info("socket")
            tcp = socket.IPPROTO_TCP
            asked = [socket.TCP_NODELAY, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT]
            assert [accepted.getsockopt(tcp, option) for option in asked] == [1, 30, 10, 3]
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            client.close()

    run(loop, steps())


async def slow(exchange: Exchange) -> None:
    await exchange.read_body()
    await asyncio.sleep(0.2)
    exchange.respond(200, JSON, b"{}")


@BOTH
def test_H4_drain_closes_the_idle_and_answers_what_runs(loop: str) -> None:
    async def steps() -> None:
        async with port(slow) as edge:
            silent, idle, busy = [await edge.connect() for _ in range(3)]
            idle.send(get())
            assert (await idle.answer()).fields.get("connection") is None
            busy.send(post())
            await until(lambda: edge.server.exchanges and len(edge.server.connections) == 3)
            edge.server.stop_accepting()
            assert await silent.ended(0.1) == "closed"
            assert await idle.ended(0.1) == "closed"
            with pytest.raises(ConnectionRefusedError):
                await edge.connect()
            answer = await busy.answer()
            assert (answer.status, answer.fields["connection"]) == (200, "close")
            assert await busy.ended() == "closed"
            assert edge.server.counters.closed == {"draining": 3}

    run(loop, steps())


@BOTH
def test_H4_close_cuts_off_what_does_not_end(loop: str) -> None:
    async def endless(exchange: Exchange) -> None:
        exchange.start(200, JSON, None)
        await asyncio.Event().wait()

    async def steps() -> None:
        async with port(endless) as edge:
            client = await edge.connect()
            client.send(post())
            await until(lambda: edge.server.exchanges)
            begun_s = time.monotonic()
            await edge.server.close(0.2)
            assert 0.19 <= time.monotonic() - begun_s <= 1.5
            await until(lambda: not edge.server.connections)
            assert edge.server.counters.closed == {"deadline": 1}
            assert edge.faults == []
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await client.answer()

    run(loop, steps())


STARVED = """
import asyncio, resource, sys
sys.path.insert(0, {tests!r})
from http_port import LOOPS, port, run

async def steps():
    async with port() as edge:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        print(edge.address[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

run({loop!r}, steps(), within_s=60)
"""


@BOTH
def test_F11_running_out_of_descriptors_is_survived(loop: str) -> None:
    async def steps() -> None:
        program = STARVED.format(tests=str(Path(__file__).parent), loop=loop)
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
        )
        assert child.stdout is not None
        address = ("127.0.0.1", int(await child.stdout.readline()))
        crowd = [await asyncio.open_connection(*address) for _ in range(60)]
        await asyncio.sleep(0.2)
        for _, writer in crowd:
            writer.close()
        answered = b""
        end_s = time.monotonic() + 10
        while not answered and time.monotonic() < end_s:  # while it starves, a connection may be closed unheard
            with contextlib.suppress(ConnectionError):
                reader, writer = await asyncio.open_connection(*address)
                writer.write(get())
                answered = await asyncio.wait_for(reader.readline(), 10)
                writer.close()
        assert answered == b"HTTP/1.1 200 OK\r\n"
        await child.communicate(b"")

    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 200
    run(loop, steps(), within_s=60)


class Clock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Entry:
    def __init__(self) -> None:
        self.due_s = NEVER_S
        self.wheel_slot = UNFILED
        self.passed_s: list[float] = []

    def deadline_passed(self, now_s: float) -> None:
        self.passed_s.append(now_s)


def turned(wheel: DeadlineWheel, clock: Clock, now_s: float) -> None:
    clock.now_s = now_s
    wheel._turn()


def test_H3_wheel_fires_once_never_early_and_in_its_tick() -> None:
    async def steps() -> None:
        clock = Clock()
        wheel = DeadlineWheel(clock, tick_s=0.05)
        soon, late, moved, ended = (Entry() for _ in range(4))
        wheel.watch(soon, 100.22)
        wheel.watch(late, 101.0)
        wheel.watch(moved, 100.3)
        wheel.watch(moved, 102.0)  # later: found out when its slot comes round
        wheel.watch(ended, 100.3)
        wheel.watch(ended, NEVER_S)
        wheel.watch(late, 100.5)  # earlier: moved at once
        turned(wheel, clock, 100.2)
        assert soon.passed_s == []
        turned(wheel, clock, 100.28)
        assert soon.passed_s == [100.28]
        turned(wheel, clock, 100.56)
        assert (late.passed_s, moved.passed_s, ended.passed_s) == ([100.56], [], [])
        turned(wheel, clock, 102.06)
        assert moved.passed_s == [102.06]
        turned(wheel, clock, 200.0)
        assert [len(entry.passed_s) for entry in (soon, late, moved, ended)] == [1, 1, 1, 0]
        assert wheel._slots == {}
        wheel.close()

    run("asyncio", steps())


def test_H3_wheel_forgets_and_files_past_deadlines_soon() -> None:
    async def steps() -> None:
        clock = Clock()
        wheel = DeadlineWheel(clock, tick_s=0.05)
        entries: list[Any] = [Entry() for _ in range(600)]
        for entry in entries:
            wheel.watch(entry, 100.1)
        wheel.forget(entries[0])
        turned(wheel, clock, 100.2)
        fired = sum(len(entry.passed_s) for entry in entries)
        assert fired == 256  # the rest has its turn after other events had theirs
        for _ in range(2):
            wheel._turn()
        assert sum(len(entry.passed_s) for entry in entries) == 599
        assert entries[0].passed_s == []
        wheel.watch(entries[1], 50.0)
        turned(wheel, clock, 100.3)
        assert len(entries[1].passed_s) == 2
        wheel.close()

    run("asyncio", steps())
