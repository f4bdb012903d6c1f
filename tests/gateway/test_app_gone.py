"""A client that leaves, at every moment: the engine hears of it, and nothing is free before it has stopped (E2, A5, K10)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
from app_scene import LOOPS, PATIENT, SIZES, Scene, chat, completion, fake_engine, first_event, rest_of_stream, run, scene
from http_port import Client

both_loops = pytest.mark.parametrize("loop", LOOPS)
LONG = 1500
"""Tokens of an answer that takes six seconds: whatever ends sooner was stopped."""
Leave = Callable[[Client], Awaitable[None]]


async def close(client: Client) -> None:
    client.close()


async def reset(client: Client) -> None:
    """RST instead of FIN."""
    raw = client.writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


async def half_close(client: Client) -> None:
    """FIN while it still reads. An HTTP client that does this has gone (K10)."""
    client.writer.write_eof()


async def hide(client: Client) -> None:
    """One more request's bytes, then close: servers that wait for the next request never see it (reliability 0.4)."""
    client.send(chat()[:40])
    await client.writer.drain()
    client.close()


WAYS: dict[str, Leave] = {"close": close, "reset": reset, "half-close": half_close, "pipelined": hide}
each_way = pytest.mark.parametrize("way", WAYS)


@contextlib.asynccontextmanager
async def beside_a_stream(s: Scene) -> AsyncIterator[None]:
    """Something else runs in the engine, so that its clock goes on: what a busy engine proves of the unseen by E3a."""
    other = await s.connect()
    other.send(chat("Idempotency-Key: other", stream=True, tokens=LONG))
    await first_event(other)
    yield
    other.close()
    await s.settled()


async def left(s: Scene, key: str, since_s: float, others: int = 0) -> None:
    """It was stopped in the engine, then proved, then freed; in that order, and soon."""
    await s.until(lambda: s.inside() == others, 2.0)
    stopped_s = time.monotonic() - since_s
    await s.until(lambda: len(s.charged()) == others)
    assert s.inside() == others
    assert stopped_s < 1.0, f"the engine was let go after {stopped_s:.3f} s only"
    outcome = s.outcome(key)
    assert (outcome["outcome"], outcome["evidence"]) == ("cancelled", "E3a")
    assert 0.0 < outcome["unconfirmed_s"] < 1.5


@each_way
@both_loops
def test_E2_gone_while_queued_is_never_sent(way: str, loop: str) -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, pool={"active_requests_max": 1}, classes=PATIENT) as s:
            running = await s.connect()
            running.send(chat(stream=True, tokens=60))
            await first_event(running)
            client = await s.connect()
            client.send(chat("Idempotency-Key: k1", tokens=LONG))
            await s.until(lambda: s.app.snapshot()["pools"]["llama"]["queued_requests"] == 1)
            await WAYS[way](client)
            await s.until(lambda: s.app.snapshot()["pools"]["llama"]["queued_requests"] == 0, 1.0)
            assert engine.requests == 1
            assert len(s.charged()) == 1
            assert (await rest_of_stream(running))[1]
            running.close()
            client.close()
            await s.settled()
            outcome = s.outcome("k1")
            assert (outcome["outcome"], outcome["evidence"], outcome["usage"]) == ("cancelled", "", None)
            assert engine.requests == 1

    run(loop, steps())


@each_way
@both_loops
def test_E2_gone_before_the_first_token_frees_on_proof(way: str, loop: str) -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine) as s, beside_a_stream(s):
            engine.slow(20.0)  # steps of 80 ms
            client = await s.connect()
            client.send(chat("Idempotency-Key: k1", stream=True, tokens=LONG))
            await s.until(lambda: s.inside() == 2)
            await WAYS[way](client)
            await left(s, "k1", time.monotonic(), others=1)
            client.close()

    run(loop, steps())


@each_way
@both_loops
def test_E2_gone_in_mid_stream_frees_on_proof(way: str, loop: str) -> None:
    async def steps() -> None:
        async with scene() as s:
            client = await s.connect()
            client.send(completion("Idempotency-Key: k1", stream=True, tokens=LONG))
            assert (await first_event(client)).status == 200
            await WAYS[way](client)
            await left(s, "k1", time.monotonic())
            client.close()
            assert s.outcome("k1")["usage"]["exact"] is False

    run(loop, steps())


@each_way
@both_loops
def test_E2_gone_from_an_answer_in_one_piece_frees_on_proof(way: str, loop: str) -> None:
    async def steps() -> None:
        async with scene() as s, beside_a_stream(s):
            client = await s.connect()
            client.send(chat("Idempotency-Key: k1", tokens=LONG))
            await s.until(lambda: s.inside() == 2)
            await WAYS[way](client)
            await left(s, "k1", time.monotonic(), others=1)
            client.close()

    run(loop, steps())


def test_A7_of_an_idle_engine_the_unseen_is_proved_by_counting_after_a_lease() -> None:
    """Its clock stands and its gauges may be those of before: only when a lease has passed does emptiness count (E3b)."""

    async def steps() -> None:
        async with scene(ledger={"lease_s": 2}) as s:
            for number in range(3):
                client = await s.connect()
                client.send(chat(f"Idempotency-Key: k{number}", tokens=LONG))
                await s.until(lambda: s.inside() == 1)
                client.close()
                await s.until(lambda: not s.charged(), 8.0)
                outcome = s.outcome(f"k{number}")
                assert outcome["outcome"] == "cancelled"
                assert outcome["evidence"] == "E3a" or (outcome["evidence"] == "E3b" and outcome["unconfirmed_s"] >= 2.0)

    run("uvloop", steps())


def test_A5_what_a_gone_client_held_stays_charged_until_the_engine_has_stopped() -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine) as s:
            client = await s.connect()
            client.send(chat(stream=True, tokens=LONG))
            await first_event(client)
            held = s.held("pool:llama")
            engine.hang()
            client.close()
            await s.until(lambda: [record.state for record in s.charged()] == ["CANCELLING"])
            await asyncio.sleep(0.3)  # an idle clock says nothing, and time is no evidence
            assert s.held("pool:llama") == held
            assert s.inside() == 1
            engine.resume()
            await s.settled()

    run("uvloop", steps())


def test_K12_an_engine_that_ignores_the_abort_stays_charged_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headworks.core.course.OVERDUE_S", 0.3)

    async def steps() -> None:
        engine = fake_engine(ignore_abort=True)
        async with scene(engine) as s:
            client = await s.connect()
            client.send(chat("Idempotency-Key: k1", stream=True, tokens=300))
            await first_event(client)
            held = s.held("pool:llama")
            client.close()
            await s.until(lambda: s.app.accounts.alarms.get("evidence_overdue", 0) >= 1)
            assert s.inside() == 1
            assert s.held("pool:llama") == held
            await s.settled()
            outcome = s.outcome("k1")
            assert outcome["outcome"] == "cancelled"
            assert outcome["evidence"] in ("E1", "E3a", "E3b"), "it ended by itself, and that was seen"

    run("uvloop", steps())


def test_E6_an_engine_of_one_protocol_is_read_to_its_end() -> None:
    async def steps() -> None:
        engine = fake_engine()
        pool = {"replicas": [{"url": "http://127.0.0.1:1", "engine": "openai"}], "evidence_min": "E1"}
        await engine.start()
        pool["replicas"] = [{"url": engine.url, "engine": "openai"}]
        await engine.stop()
        engine.settings.port = engine.port
        async with scene(engine, pool=pool) as s:
            client = await s.connect()
            client.send(chat("Idempotency-Key: k1", stream=True, tokens=100))
            await first_event(client)
            client.close()
            await s.until(lambda: [record.state for record in s.charged()] == ["CANCELLING"])
            await s.settled()
            outcome = s.outcome("k1")
            assert (outcome["outcome"], outcome["evidence"]) == ("cancelled", "E1")
            assert outcome["usage"]["output_tokens"] == 100, "closing would have proved nothing, so it ran to its end"

    run("uvloop", steps())


def test_E3_a_client_that_reads_nothing_is_let_go() -> None:
    """The kernel's own buffers are made small: else it takes megabytes, and the machine's time for them, to fill them first."""

    async def steps() -> None:
        engine = fake_engine(engine=replace(SIZES, kv_blocks=4097), context_tokens=8192, speed=10.0)
        async with scene(engine, server={"limits": {"write_stall_s": 0.5}}) as s:
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            raw.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(raw, s.app.address[:2])
            await s.until(lambda: len(s.app.server.connections) == 1)
            (connection,) = s.app.server.connections
            connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
            await loop.sock_sendall(raw, chat("Idempotency-Key: k1", stream=True, tokens=8000, n=8))
            await s.until(lambda: s.inside() == 1)
            await s.until(lambda: not s.charged(), 15.0)
            raw.close()
            await s.settled()
            outcome = s.outcome("k1")
            assert (outcome["outcome"], outcome["evidence"]) == ("cancelled", "E3a")
            assert s.app.server.counters.closed == {"write_stall": 1}

    run("uvloop", steps())


@pytest.mark.parametrize("seed", [1, 2, 3])
@both_loops
def test_K14_clients_that_leave_anywhere_leave_nothing_held(seed: int, loop: str) -> None:
    async def steps() -> None:
        choose = random.Random(seed)
        pool = {"active_requests_max": 6}
        # What had shown no byte when its engine fell idle is proved a lease later: a short one, so that `settled` can see it.
        async with scene(fake_engine(), fake_engine(), pool=pool, classes=PATIENT, ledger={"lease_s": 2}) as s:

            async def one() -> None:
                await asyncio.sleep(choose.uniform(0, 0.8))
                client = await s.connect()
                ask = choose.choice((chat, completion))
                client.send(ask(stream=choose.random() < 0.7, tokens=choose.randint(1, 60)))
                if choose.random() < 0.6:
                    await asyncio.sleep(choose.expovariate(8.0))
                    await WAYS[choose.choice(list(WAYS))](client)
                else:
                    await client.answer()
                client.close()

            await asyncio.gather(*(one() for _ in range(60)))
            await s.settled()

    print(f"pytest tests/gateway/test_app_gone.py -k 'K14 and {seed}-{loop}'")
    run(loop, steps())
