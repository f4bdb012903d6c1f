"""Everything at once: clients that come and leave anyhow, engines that fail in every way they know, reloads in between.

Whatever was answered, at the end nothing is held, nothing is inside, and the books are right (K14, K16).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import pytest
from app_scene import Scene, chat, completion, fake_engine, run, scene
from test_app_gone import WAYS

from headworks.gateway.answers import ENTRY_BYTES
from headworks.testing.fake_engine import FakeEngine

LASTS_S = 3.0
CLIENTS = 150
CLASSES = {
    "interactive": {"slo": {"ttft_s": 3}, "queue": {"wait_s_max": 2}, "timeouts": {"first_byte_s": 1.0, "idle_s": 1.0}},
}


async def one_client(s: Scene, choose: random.Random, answers: Counter[int]) -> None:
    await asyncio.sleep(choose.uniform(0, LASTS_S))
    client = await s.connect()
    client.send(one_request(choose))
    try:
        if choose.random() < 0.5:
            await asyncio.sleep(choose.expovariate(4.0))
            await WAYS[choose.choice(list(WAYS))](client)
        else:
            answers[(await client.answer()).status] += 1
    except (asyncio.IncompleteReadError, ConnectionError):
        answers[0] += 1  # a stream that was cut, as it has to be
    client.close()


def one_request(choose: random.Random) -> bytes:
    """Some of them repeat a key, each under the parameters that belong to it."""
    route, stream, tokens = choose.choice((chat, completion)), choose.random() < 0.7, choose.randint(1, 120)
    if choose.random() < 0.6:
        return route(stream=stream, tokens=tokens)
    tokens = choose.choice((20, 80, 120))
    return route(f"Idempotency-Key: {route.__name__}-{stream}-{tokens}", stream=stream, tokens=tokens)


async def break_things(s: Scene, choose: random.Random) -> None:
    until_s = time.monotonic() + LASTS_S
    while time.monotonic() < until_s:
        await asyncio.sleep(choose.uniform(0.05, 0.3))
        await break_one_thing(s, choose.choice(s.engines), choose)


async def break_one_thing(s: Scene, engine: FakeEngine, choose: random.Random) -> None:
    what = choose.choice(("restart", "hang", "fault", "busy", "slow", "reload", "metrics", "drain"))
    if what == "restart":
        engine.restart(down_s=choose.uniform(0, 0.2))
        await asyncio.sleep(0.3)
    elif what == "hang":
        engine.hang()
        await asyncio.sleep(choose.uniform(0, 1.2))
        engine.resume()
    elif what == "fault":
        engine.fault(choose.choice(("error", "break", "garbage")), choose.randint(0, 20), choose.randint(1, 3))
    elif what == "busy":
        engine.faults.busy_times = choose.randint(1, 4)
    elif what == "slow":
        engine.slow(choose.uniform(1, 20))
        await asyncio.sleep(0.2)
        engine.slow(1.0)
    elif what == "reload":
        await s.reload(s.text(classes={"interactive": {"queue": {"wait_s_max": choose.choice((0.5, 2))}}}))
    elif what == "metrics":
        engine.faults.dropped_series |= {"vllm:num_requests_running"}
        await asyncio.sleep(0.2)
        engine.faults.dropped_series.clear()
    else:
        engine.drain()
        await asyncio.sleep(0.2)
        engine.faults.draining = False


@pytest.mark.parametrize(("seed", "loop"), [(1, "uvloop"), (2, "asyncio"), (3, "uvloop")])
def test_K14_nothing_is_held_after_everything_went_wrong(seed: int, loop: str) -> None:
    async def steps() -> None:
        choose = random.Random(seed)
        pool = {"active_requests_max": 4}
        async with scene(fake_engine(), fake_engine(), pool=pool, classes=CLASSES, ledger={"lease_s": 2}) as s:
            answers: Counter[int] = Counter()
            await asyncio.gather(break_things(s, choose), *(one_client(s, choose, answers) for _ in range(CLIENTS)))
            for engine in s.engines:
                engine.heal()
            await s.until(lambda: not s.charged(), 15.0)
            await s.settled()
            assert answers[200] > 5, answers
            assert answers[500] == 0, "no fault of our own"
            assert s.app.server.counters.faults == 0
            assert s.app.accounts.alarms.get("gateway_fault", 0) == 0
            assert not s.app.runner._calls
            assert answers[422] == 0
            await s.until(lambda: not s.app.runner._attempts and not s.app.runner._over, 8.0)
            kept = s.app.answers
            assert not kept._running
            assert kept.total_bytes == sum(ENTRY_BYTES + audience.kept_bytes for _, audience in kept._whole.values())

    print(f"pytest tests/gateway/test_app_soak.py -k '{seed}-{loop}'")
    run(loop, steps(), within_s=60.0)
