"""Two tenants at one engine: one asks short questions all the time, the other sends long documents all at once (G4's shape).

Both are offered by the load driver, open loop, to the same URL. The seed fixes who asks what and when, so two runs offer the
same, whatever is between. What each got is counted by its own figures; what the engine did beside by its own counters.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from headworks.tools import load as driver
from headworks.tools.load_engine import EngineSample, EngineWatch
from headworks.tools.load_figures import Figures, figures, is_good
from headworks.tools.load_wire import COMPLETE

TELL_EVERY_S = 1.0
ASK_S_MAX = 5.0
NOTHING_YET = driver.Progress(0.0, 0, 0, 0, 0)


@dataclass(slots=True)
class Scene:
    """What is offered. Lengths in tokens are means by construction: every call of a tenant has the same."""

    chat_s: float = 18.0
    chat_per_s: float = 4.0
    chat_prompt_tokens: int = 200
    chat_output_tokens: int = 48
    chat_promise_s: float = 1.0
    chat_patience_s: float = 4.0
    flood_at_s: float = 4.0
    flood_calls: int = 48
    flood_prompt_tokens: int = 600
    flood_output_tokens: int = 160
    flood_limit_s: float = 60.0
    """What has no whole answer by then is given up."""
    seed: int = 7


@dataclass(slots=True)
class Moment:
    """How far it is, for a line on the screen."""

    elapsed_s: float
    chat: driver.Progress
    flood: driver.Progress
    engine: EngineSample | None
    queued_requests: int | None
    """What waits in headworks, where that is between."""


@dataclass(slots=True)
class Half:
    """One of the two runs."""

    chat: Figures
    flood: Figures
    flood_took_s: float | None
    """From the first document sent to the last one answered; None where not all were."""
    engine_waiting_requests_mean: float
    engine_waiting_requests_max: float
    wasted_ratio: float
    """Output tokens the engine generated that are in no answer anybody waited for."""


async def offer(
    url: str,
    engine: str,
    scene: Scene,
    keys: tuple[str | None, str | None],
    tell: Callable[[Moment], None],
    admin: str | None = None,
) -> Half:
    """Offer the scene to `url`. `engine`: whose metrics are read; `keys`: the two tenants'; `admin`: a gateway's between."""
    watch = EngineWatch(engine)
    try:
        before = await watch.settled()
        watching = asyncio.create_task(watch.run())
        try:
            chat, flood = await _both(url, scene, keys, tell, watch, admin)
        finally:
            watching.cancel()
        after = await watch.settled()
    finally:
        await watch.close()
    return _half(chat, flood, before, watch.samples, after)


async def _both(
    url: str,
    scene: Scene,
    keys: tuple[str | None, str | None],
    tell: Callable[[Moment], None],
    watch: EngineWatch,
    admin: str | None,
) -> tuple[driver.Run, driver.Run]:
    progress = {"chat": NOTHING_YET, "flood": NOTHING_YET}

    def note(name: str) -> driver.OnProgress:
        return lambda now: progress.__setitem__(name, now)

    async def told() -> None:
        started_s = time.monotonic()
        async with httpx.AsyncClient(timeout=ASK_S_MAX) as client:
            while True:
                waiting = await _queued(client, admin) if admin is not None else None
                engine = watch.samples[-1] if watch.samples else None
                tell(Moment(time.monotonic() - started_s, progress["chat"], progress["flood"], engine, waiting))
                await asyncio.sleep(TELL_EVERY_S)

    with tempfile.TemporaryDirectory() as directory:
        chat, flood = _plans(url, scene, keys, Path(directory))
        telling = asyncio.create_task(told())
        try:
            return await asyncio.gather(driver.run(chat, note("chat")), _flood(flood, scene.flood_at_s, note("flood")))
        finally:
            telling.cancel()


async def _queued(client: httpx.AsyncClient, admin: str) -> int | None:
    """Requests that wait in the gateway."""
    try:
        pools = (await client.get(f"{admin}/admin/snapshot")).json()["pools"]
    except httpx.HTTPError:
        return None
    return sum(int(pool["queued_requests"]) for pool in pools.values())


async def _flood(plan: driver.Plan, at_s: float, on_progress: driver.OnProgress) -> driver.Run:
    await asyncio.sleep(at_s)
    return await driver.run(plan, on_progress)


def _plans(url: str, scene: Scene, keys: tuple[str | None, str | None], directory: Path) -> tuple[driver.Plan, driver.Plan]:
    chat = driver.Plan(
        url=url,
        trace=_trace(directory / "chat.csv", scene.chat_prompt_tokens, scene.chat_output_tokens),
        rate_per_s=scene.chat_per_s,
        seconds=scene.chat_s,
        patience_s=scene.chat_patience_s,
        ttft_slo_s=scene.chat_promise_s,
        headers=_headers(keys[0]),
        seed=scene.seed,
    )
    flood = replace(
        chat,
        trace=_trace(directory / "flood.csv", scene.flood_prompt_tokens, scene.flood_output_tokens),
        rate_per_s=float(scene.flood_calls),
        seconds=1.0,
        patience_s=scene.flood_limit_s,
        ttft_slo_s=scene.flood_limit_s,
        limit_s=scene.flood_limit_s,
        headers=_headers(keys[1]),
        seed=scene.seed + 1,
    )
    return chat, flood


def _trace(path: Path, prompt_tokens: int, output_tokens: int) -> str:
    """A trace of requests of one size."""
    lines = [f"{t_s},{prompt_tokens},{output_tokens}" for t_s in (0, 1)]
    path.write_text("\n".join(["t_s,input_tokens,output_tokens", *lines, ""]))
    return str(path)


def _headers(key: str | None) -> tuple[tuple[str, str], ...]:
    return (("Authorization", f"Bearer {key}"),) if key is not None else ()


def _half(
    chat: driver.Run,
    flood: driver.Run,
    before: EngineSample | None,
    during: list[EngineSample],
    after: EngineSample | None,
) -> Half:
    waiting = [sample.waiting for sample in during] or [0.0]
    generated = (after.generation_tokens_total if after else 0.0) - (before.generation_tokens_total if before else 0.0)
    wanted = sum(
        attempt.output_tokens
        for run in (chat, flood)
        for call in run.calls
        for attempt in call.attempts
        if is_good(attempt, run.plan.ttft_slo_s)
    )
    answered = [a.ended_s for call in flood.calls for a in call.attempts if a.end == COMPLETE]
    whole = len(answered) == len(flood.calls) > 0
    return Half(
        chat=figures(chat),
        flood=figures(flood),
        flood_took_s=max(answered) - flood.started_s if whole else None,
        engine_waiting_requests_mean=sum(waiting) / len(waiting),
        engine_waiting_requests_max=max(waiting),
        wasted_ratio=max(0.0, 1.0 - wanted / generated) if generated > 0 else 0.0,
    )
