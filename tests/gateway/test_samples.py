"""Who looks at an engine: it ends when it is told to, whatever else comes in the same moment (F12)."""

from __future__ import annotations

import asyncio

import pytest
from app_scene import LOOPS, fake_engine

from headworks.engines.vllm import VllmEngine
from headworks.gateway import clock
from headworks.gateway.samples import Sampler


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("turns", range(5))
def test_F12_a_look_wished_for_while_it_is_closed_does_not_keep_it_open(loop: str, turns: int) -> None:
    """`turns` of the loop between the wish and the close: in one of them the wish is half heard."""

    async def steps() -> None:
        engine = fake_engine()
        await engine.start()
        seen = asyncio.Event()
        sampler = Sampler(VllmEngine("llama/0", engine.url, clock.now_s, None), lambda _: seen.set(), clock.now_s)
        sampler.start()
        await seen.wait()
        sampler.wish(clock.now_s() + 1_000.0)
        for _ in range(5):
            await asyncio.sleep(0)
        sampler.wish(clock.now_s() + 900.0)  # an earlier one: it looks at the clock again
        for _ in range(turns):
            await asyncio.sleep(0)
        await sampler.close()
        await engine.stop()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(asyncio.wait_for(steps(), 5.0))
