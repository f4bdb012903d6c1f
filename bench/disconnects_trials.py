"""One trial of `disconnects.py`: a request, its moment, its client's leaving, and looks at the engine until it is gone."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

import httpx

from disconnects_client import Caller, Occupier
from headworks.tools.load_engine import EngineSample, EngineWatch

LOOK_EVERY_S = 0.01
PHASE_S_MAX = 0.1
PHASE_OF_PROMPT_S_MAX = 0.03
"""The client leaves so much later than its moment came, at random, so that no rhythm of ours or the engine's is met;
a long prompt's moment is short."""
COUNTED_S_MAX = 15.0
NEVER_S = 5.0
"""A request that is still counted by then is entered with this."""
IDLE_S_MAX = 60.0
TRIES_PER_TRIAL = 20
QUEUED, MOMENTS = "queued", ("before_first_token", "mid_stream", "non_streaming")

STRANGER = "the engine's gauges count a stranger"

Made = TypeVar("Made")


class Spoilt(Exception):
    """This trial says nothing: a stranger in the engine, or the moment had passed before the client left."""


@dataclass(slots=True)
class Spread:
    """Percentiles of some durations; None where there were none."""

    count: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    max_s: float | None


def spread(values_s: list[float]) -> Spread:
    ordered = sorted(values_s)

    def at(ratio: float) -> float | None:
        return round(ordered[max(0, math.ceil(ratio * len(ordered)) - 1)], 4) if ordered else None

    return Spread(len(ordered), at(0.5), at(0.95), at(0.99), at(1.0))


class Scene:
    """One engine and one way to it: directly, or through a gateway."""

    def __init__(self, engine: str, url: str, admin: str, caller: Caller, random: Random) -> None:
        self.url = url
        self.spoilt = 0
        self._watch = EngineWatch(engine)
        self._admin = httpx.AsyncClient(base_url=admin, timeout=5.0) if admin else None
        self._caller = caller
        self._random = random

    async def aclose(self) -> None:
        await self._watch.close()
        if self._admin is not None:
            await self._admin.aclose()

    async def trial(self, moment: str) -> float:
        """A request of its own, left at its moment; again where the trial was spoilt."""
        return await self._kept(lambda: self._running(moment))

    async def queued_trial(self, occupier: Occupier) -> tuple[float, bool]:
        """How long it stayed in the snapshot, and whether anything of it reached the engine."""
        return await self._kept(lambda: self._queued(occupier))

    async def _kept(self, make: Callable[[], Awaitable[Made]]) -> Made:
        reason = ""
        for _ in range(TRIES_PER_TRIAL):
            try:
                return await make()
            except Spoilt as spoilt:
                self.spoilt += 1
                reason = str(spoilt)
        raise SystemExit(f"{TRIES_PER_TRIAL} trials in a row were spoilt, the last one by this: {reason}")

    async def _running(self, moment: str) -> float:
        await self.idle()
        async with self._caller.call(self.url, moment) as call:
            if moment == "mid_stream":
                await call.events(self._random.randint(3, 40))
            await self._counted()
            phase_s_max = PHASE_OF_PROMPT_S_MAX if moment == "before_first_token" else PHASE_S_MAX
            await asyncio.sleep(self._random.uniform(0, phase_s_max))
            if call.ended if moment == "mid_stream" else call.has_answered():
                raise Spoilt(f"{moment}: the answer came before the client left")
            return await self._fallen(call.leave())

    async def _counted(self) -> None:
        """Only what the gauges have once shown can be seen to vanish from them."""
        until_s = time.monotonic() + COUNTED_S_MAX
        while time.monotonic() < until_s:
            inside = load(await self._look())
            if inside == 1:
                return
            if inside > 1:
                raise Spoilt(STRANGER)
            await asyncio.sleep(LOOK_EVERY_S)
        raise Spoilt(f"the engine never showed it within {COUNTED_S_MAX:g} s")

    async def _fallen(self, gone_s: float) -> float:
        while time.monotonic() - gone_s < NEVER_S:
            sample = await self._look()
            if load(sample) == 0:
                return sample.at_s - gone_s
            if load(sample) > 1:
                raise Spoilt(STRANGER)
            await asyncio.sleep(LOOK_EVERY_S)
        return NEVER_S

    async def _queued(self, occupier: Occupier) -> tuple[float, bool]:
        if not await occupier.lasts():
            await self.idle()
            await occupier.begin()
        async with self._caller.call(self.url, QUEUED) as call:
            if not await self._until(lambda pool: pool["queued_requests"] == 1):
                raise Spoilt("it never waited in headworks")
            before = await self._look()
            await asyncio.sleep(self._random.uniform(0, PHASE_S_MAX))
            gone_s = call.leave()
            left = await self._until(lambda pool: pool["queued_requests"] == 0)
            took_s = time.monotonic() - gone_s if left else NEVER_S
        after = await self._look()
        if occupier.ended:
            raise Spoilt("the occupier ended meanwhile")
        return took_s, load(after) > 1 or after.prompt_tokens_total > before.prompt_tokens_total

    async def _until(self, holds: Callable[[dict[str, Any]], bool]) -> bool:
        until_s = time.monotonic() + NEVER_S
        while time.monotonic() < until_s:
            if holds(await self._pool()):
                return True
            await asyncio.sleep(LOOK_EVERY_S)
        return False

    async def _pool(self) -> dict[str, Any]:
        assert self._admin is not None
        answer = await self._admin.get("/admin/snapshot")
        pool: dict[str, Any] = answer.json()["pools"]["engine"]
        return pool

    async def _look(self) -> EngineSample:
        while True:
            sample = await self._watch.sample()
            if sample is not None:
                return sample

    async def idle(self) -> None:
        """Nothing in the engine, and a place for one more in headworks: what waits for its proof still takes one."""
        until_s = time.monotonic() + IDLE_S_MAX
        while time.monotonic() < until_s:
            if load(await self._look()) == 0 and await self._has_place():
                return
            await asyncio.sleep(5 * LOOK_EVERY_S)
        raise SystemExit(f"the engine, or headworks, was not idle within {IDLE_S_MAX:g} s: who else uses it?")

    async def _has_place(self) -> bool:
        if self._admin is None:
            return True
        pool = await self._pool()
        return bool(pool["requests"] < pool["requests_limit"])


def load(sample: EngineSample) -> float:
    return sample.running + sample.waiting
