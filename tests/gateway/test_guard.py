"""F11: the gateway refuses new work for its own sake, and nothing else: late loop, full memory, too few descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import time
from typing import Any

import pytest
from app_scene import call, chat, fake_engine, first_event, get, rest_of_stream, run, scene
from http_port import Port, port

from headworks.config.settings import GuardSettings
from headworks.core.policy import ClassPolicy
from headworks.gateway.guard import Guard

SETTINGS = GuardSettings(0.1, 0.25, 1_000, 0.9)
CHAT = ClassPolicy("interactive", ttft_slo_s=1.0)
BULK = ClassPolicy("bulk", ttft_slo_s=None)


class Hands:
    """A loop whose every look is `lag_s` late, by a clock turned by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.rss_bytes = 500
        self.noted: list[float] = []
        self.guard = Guard(SETTINGS, lambda: self.now_s, lambda: self.rss_bytes, self.noted.append)

    async def look(self, *lags_s: float) -> None:
        """Looks that came so late, one after another."""
        for lag_s in lags_s:
            self.guard.close()
            self.guard._look(self.now_s - lag_s)

    def taken(self) -> tuple[bool, bool]:
        """(promised work, bulk)."""
        return self.guard.refuses(CHAT) is None, self.guard.refuses(BULK) is None


@pytest.mark.parametrize(
    ("lags_s", "taken"),
    [
        ((0.0, 0.0, 0.0, 0.0, 0.0), (True, True)),
        ((0.1, 0.1, 0.1, 0.1, 0.1), (True, True)),
        ((0.11, 0.11, 0.11, 0.0, 0.0), (True, False)),
        ((0.25, 0.25, 0.25, 0.0, 0.0), (True, False)),
        ((0.26, 0.26, 0.26, 0.0, 0.0), (False, False)),
        ((0.0, 0.0, 30.0, 9.0, 0.0), (True, True)),
    ],
)
def test_F11_above_100_ms_bulk_is_refused_above_250_all(lags_s: tuple[float, ...], taken: tuple[bool, bool]) -> None:
    async def steps() -> None:
        hands = Hands()
        await hands.look(*lags_s)
        assert hands.taken() == taken
        assert hands.noted == pytest.approx(list(lags_s))
        await hands.look(0.0, 0.0, 0.0)
        assert hands.taken() == (True, True)
        hands.guard.close()

    asyncio.run(steps())


def test_F11_memory_above_its_threshold_refuses_until_it_is_below() -> None:
    async def steps() -> None:
        hands = Hands()
        hands.rss_bytes = 1_001
        await hands.look(0.0)
        overload = hands.guard.refuses(CHAT)
        assert overload is not None
        assert (overload.subject, overload.numbers) == ("its memory in bytes", (1_001, 1_000))
        hands.rss_bytes = 1_000
        await hands.look(*[0.0] * 10)
        assert hands.taken() == (True, True)
        hands.guard.close()

    asyncio.run(steps())


def test_F11_a_look_at_the_memory_that_fails_is_not_the_last_one() -> None:
    """Reading it takes a descriptor, and there may be none: a guard that stopped would go on saying what it said then."""

    async def steps() -> None:
        hands = Hands()
        await hands.look(1.0, 1.0, 1.0)
        read, hands.guard._rss_bytes = hands.guard._rss_bytes, no_descriptor
        await hands.look(*[1.0] * 10)
        assert hands.taken() == (False, False)
        hands.guard._rss_bytes = read
        await hands.look(0.0, 0.0, 0.0)
        assert hands.taken() == (True, True)
        hands.guard.close()

    asyncio.run(steps())


def no_descriptor() -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_F11_the_refused_come_back_in_turn() -> None:
    async def steps() -> None:
        hands = Hands()
        await hands.look(1.0, 1.0, 1.0)
        refused = [hands.guard.refuses(CHAT) for _ in range(9)]
        assert [one.again_s for one in refused if one is not None] == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 1.0, 2.0]
        hands.guard.close()

    asyncio.run(steps())


def test_F11_a_busy_loop_refuses_new_work_and_keeps_what_runs() -> None:
    """A neighbour in the same loop takes 50 of every 51 ms: with a threshold to match, bulk is told so and a stream goes on."""
    guard: dict[str, Any] = {"loop_lag_shed_bulk_s": 0.001, "loop_lag_shed_s": 5}

    async def steps() -> None:
        tenants = {"acme": {"keys": ["env:ACME_KEY"]}, "batchco": {"keys": ["env:BATCHCO_KEY"], "class": "batch"}}
        async with scene(fake_engine(), server={"guard": guard}, tenants=tenants) as s:
            running = await s.connect()
            running.send(chat(key="ACME_KEY", stream=True, tokens=60))
            assert (await first_event(running)).status == 200
            held = asyncio.get_running_loop().create_task(hog())
            try:
                await s.until(lambda: s.app.guard.overload is not None)
                answer = await s.ask(chat(key="BATCHCO_KEY"))
                assert (answer.status, answer.code) == (503, "gateway_overloaded")
                assert "the lag of its event loop in seconds" in answer.json()["error"]["message"]
                assert 1 <= int(answer.fields["retry-after"]) <= 8
                assert (await s.ask(chat(key="ACME_KEY", tokens=2))).status == 200
            finally:
                held.cancel()
            assert (await rest_of_stream(running))[1]
            running.close()
            await s.reload(s.text(server={"guard": {"loop_lag_shed_bulk_s": 4}}))
            await s.until(lambda: s.app.guard.overload is None)
            assert (await s.ask(chat(key="BATCHCO_KEY", tokens=2))).status == 200
            assert 'headworks_shed_self_total{worker="0"} 1.0' in (await s.admin("/metrics")).text

    run("asyncio", steps())


def test_F11_no_session_is_opened_and_none_is_promised_while_new_work_is_refused() -> None:
    """`/admit` says what a request would be told; what ends a session makes room, and is no new work."""

    async def steps() -> None:
        async with scene(fake_engine(), server={"guard": {"rss_shed_bytes": 1}}) as s:
            for path, body in (("/admit", chat().partition(b"\r\n\r\n")[2]), ("/admit/session", {"tokens": 10})):
                answer = await s.ask(call(path, body=body))
                assert (answer.status, answer.code) == (503, "gateway_overloaded"), path
            ended = await s.ask(get(f"/admit/session/{'0' * 32}", method="DELETE"))
            assert (ended.status, ended.code) == (404, "not_found")

    run("uvloop", steps())


async def hog() -> None:
    while True:
        time.sleep(0.05)  # noqa: ASYNC251 - it is what takes the loop's time
        await asyncio.sleep(0.001)


async def answered(edge: Port) -> int:
    """The status of the first connection that is accepted again."""
    for _ in range(100):
        client = await edge.connect()
        client.send(b"GET /models HTTP/1.1\r\nHost: edge\r\n\r\n")
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            return (await client.answer()).status
        await asyncio.sleep(0.02)
    raise AssertionError("nothing was accepted any more")


def test_F11_descriptors_are_left_for_engines_and_files() -> None:
    async def steps() -> None:
        lowest = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest)
        async with port(descriptors_max=lowest + 12) as edge:
            clients = [await edge.connect() for _ in range(20)]
            await asyncio.sleep(0)
            taken = edge.server.counters.accepted
            assert 0 < taken < 12
            for client in clients:
                client.close()
            assert await answered(edge) == 200

    run("asyncio", steps())


def test_F11_the_ratio_is_of_what_this_process_may_open() -> None:
    async def steps() -> None:
        async with scene(fake_engine(), server={"guard": {"fds_stop_accept_ratio": 0.5}}) as s:
            assert s.app.server.limits.descriptors_max == resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2

    run("asyncio", steps())
