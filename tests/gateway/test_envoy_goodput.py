"""Twice what an engine can carry, through Envoy and through the public port: as much of it comes in time either way (H5).

`HEADWORKS_DRILLS=1 pytest -s tests/gateway/test_envoy_goodput.py`, on a machine that does little else.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from app_scene import SIZES, chat, fake_engine, run
from envoy_scene import behind_envoy, needs_envoy
from http_port import Client

pytestmark = [
    needs_envoy,
    pytest.mark.skipif("HEADWORKS_DRILLS" not in os.environ, reason="a measurement: HEADWORKS_DRILLS=1 runs it"),
]
SECONDS = 10
TTFT_S = 0.5
CAPACITY_PER_S = 16
"""Sixteen places, fifty tokens each, one every 20 ms."""
SEED = 7


async def first_token_s(connect: Callable[[], Awaitable[Client]]) -> float | None:
    """How long until a stream has begun; None if it was refused."""
    client = await connect()
    begun_s = asyncio.get_running_loop().time()
    client.send(chat(tokens=50, stream=True))
    try:
        head = await client.reader.readuntil(b"\r\n\r\n")
        took_s = asyncio.get_running_loop().time() - begun_s
        if not head.startswith(b"HTTP/1.1 200"):
            return None
        await client.reader.readuntil(b"[DONE]")
        return took_s
    finally:
        client.close()


async def in_time_per_s(through_envoy: bool) -> float:
    """Streams that began in time, of Poisson arrivals at twice the capacity."""
    slow = fake_engine(engine=replace(SIZES, running_max=CAPACITY_PER_S, cost=replace(SIZES.cost, base_s=0.02)))
    async with behind_envoy(slow, classes={"interactive": {"slo": {"ttft_s": TTFT_S}}}) as (s, envoy):
        connect = envoy.connect if through_envoy else s.connect
        drawn, loop, asked = random.Random(SEED), asyncio.get_running_loop(), []
        due_s = loop.time()
        end_s = due_s + SECONDS
        while due_s < end_s:
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            asked.append(asyncio.create_task(first_token_s(connect)))
            due_s += drawn.expovariate(2 * CAPACITY_PER_S)
        firsts_s = await asyncio.gather(*asked)
        return sum(first is not None and first <= TTFT_S for first in firsts_s) / SECONDS


def test_H5_goodput_at_twice_the_load_is_that_of_the_public_port() -> None:
    async def steps() -> None:
        straight, through = await in_time_per_s(False), await in_time_per_s(True)
        print(f"in time: {straight:.1f}/s through the public port, {through:.1f}/s through Envoy, of {CAPACITY_PER_S}/s")
        assert straight > 0.7 * CAPACITY_PER_S
        assert through > 0.9 * straight

    run("uvloop", steps(), within_s=90.0)
