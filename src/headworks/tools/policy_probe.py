"""A small load against an engine through the policy that is to protect it: what its clients get, and what it refuses.

Three parts, none longer than its time: as many as the engine was measured to carry in time, three times what it can serve,
and a crowd of clients that come at once and obey the hints they are given. And some clients that hang up, whose requests must
stop in the engine behind the gateway.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

from headworks.tools import load_retry
from headworks.tools.doctor_answers import Measured as Seen
from headworks.tools.doctor_stops import Rounds, rounds_of
from headworks.tools.doctor_wire import Ward
from headworks.tools.load_figures import spread
from headworks.tools.load_wire import COMPLETE, REFUSED, Attempt
from headworks.tools.measure import Bench, Measured

BASE_RATIO = 0.8
"""Of the measured saturation, or of the service rate where there is none: what limits are set to."""
BURST_TIMES = 3.0
STORM_CLIENTS, STORM_RETRIES = 100, 3
STORM_S_MAX = 20.0
STORM_SIZE = 0
"""The smallest of the mix."""
BUSY_CLIENTS, AGAIN_S = 64, 1.0
DrainError = Callable[[], Awaitable[float | None]]
BIN_S = 1.0
SETTLE_S = 10.0
"""What was in time at its first token may end in so long."""


@dataclass(slots=True)
class Promise:
    """What the class is promised. None: nothing."""

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None


@dataclass(slots=True)
class Served:
    """What the clients of one part got."""

    requests_per_s: float
    offered: int
    complete: int
    good: int
    """Complete, and every promise of the class was kept."""
    refused: dict[str, int]
    """By the code of the refusal."""
    ttft_p95_s: float | None
    """Of those that were admitted, as all that follow."""
    tpot_p95_s: float | None
    e2e_p99_s: float | None
    refusal_p99_s: float | None
    """From a request to its refusal."""

    @property
    def goodput_ratio(self) -> float:
        return self.good / max(1, self.offered)

    @property
    def refusals(self) -> int:
        return sum(self.refused.values())


@dataclass(slots=True)
class Storm:
    """Clients that all came at once, and came back when they were told to."""

    clients: int
    refused_first: int
    """Of their first attempts."""
    retries: int
    retries_peak: int
    """In the fullest second."""
    answers: int
    answers_peak: int
    """In the fullest second: what the engine showed that it can serve of these."""
    storm_s: float
    drain_error_ratio: float | None = None
    """How well the gateway knew its drain rate, by which it spread them: half of the 95 % interval. None: it did not say."""


@dataclass(slots=True)
class Through:
    """All of it."""

    base: Served
    burst: Served
    storm: Storm
    stops: Rounds


async def through(
    bench: Bench, measured: Measured, promise: Promise, replicas: int, seconds: float, ward: Ward, drain_error: DrainError
) -> Through:
    """`bench` sends to the gateway; `ward` does too, and looks at the engine behind. Raises `LoadError`.

    `drain_error` asks the gateway how well it knows its drain rate.
    """
    whole_per_s = measured.full.requests_per_s * replicas
    kept_per_s = (measured.saturation_per_s or measured.full.requests_per_s) * replicas
    base = await _served(bench, BASE_RATIO * kept_per_s, seconds, promise)
    burst = await _served(bench, BURST_TIMES * whole_per_s, seconds, promise)
    await _kept_busy(bench, seconds)
    storm = await _storm(bench, await drain_error())
    seen = Seen()
    seen.gauges_follow, seen.tpot_s = True, measured.tpot_alone_s
    stops = await rounds_of(ward, seen, "close", 5)
    return Through(base, burst, storm, stops)


async def _served(bench: Bench, requests_per_s: float, seconds: float, promise: Promise) -> Served:
    offered, attempts = await bench.offered(requests_per_s, seconds, SETTLE_S)
    whole = [one for one in attempts if one.end == COMPLETE]
    started = [one.ttft_s for one in attempts if one.first_token_s]
    return Served(
        requests_per_s=requests_per_s,
        offered=offered,
        complete=len(whole),
        good=sum(1 for one in whole if is_kept(one, promise)),
        refused=dict(Counter(one.code or str(one.status) for one in attempts if one.end == REFUSED)),
        ttft_p95_s=spread(started).p95_s,
        tpot_p95_s=spread([_tpot_s(one) for one in whole if one.output_tokens > 1]).p95_s,
        e2e_p99_s=spread([one.ended_s - one.started_s for one in whole]).p99_s,
        refusal_p99_s=spread([one.ended_s - one.started_s for one in attempts if one.end == REFUSED]).p99_s,
    )


def is_kept(attempt: Attempt, promise: Promise) -> bool:
    """Every promise that was given."""
    return (
        (promise.ttft_s is None or attempt.ttft_s <= promise.ttft_s)
        and (promise.tpot_s is None or attempt.output_tokens < 2 or _tpot_s(attempt) <= promise.tpot_s)
        and (promise.e2e_s is None or attempt.ended_s - attempt.started_s <= promise.e2e_s)
    )


def _tpot_s(attempt: Attempt) -> float:
    return (attempt.ended_s - attempt.first_token_s) / (attempt.output_tokens - 1)


async def _kept_busy(bench: Bench, seconds: float) -> None:
    """With requests like those of the storm: slots are spread by how fast such work drains, and not a mix of others."""
    until_s, random = time.monotonic() + seconds, Random("busy")  # noqa: S311 (a client's backoff, not a secret)

    async def client() -> None:
        while (now_s := time.monotonic()) < until_s:
            attempt = await bench.one(STORM_SIZE, STORM_S_MAX)
            if attempt.end == REFUSED:  # who comes back early is given a slot each time, and pushes all others out
                wait_s = load_retry.wait_s(attempt.status, attempt.hints, 0, random)
                await asyncio.sleep(min(until_s - now_s, AGAIN_S if wait_s is None else wait_s))

    await asyncio.gather(*(client() for _ in range(BUSY_CLIENTS)))


async def _storm(bench: Bench, drain_error_ratio: float | None) -> Storm:
    """Everybody at once; who is refused comes back when the stock client would, three times at most."""
    random = Random("storm")  # noqa: S311 (a client's backoff, not a secret)
    firsts: list[Attempt] = []
    again: list[Attempt] = []
    begun_s = time.monotonic()
    clients = [asyncio.create_task(_client(bench, firsts, again, random)) for _ in range(STORM_CLIENTS)]
    await asyncio.wait(clients, timeout=STORM_S_MAX)
    storm_s = time.monotonic() - begun_s
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    whole = [one for one in (*firsts, *again) if one.end == COMPLETE]
    return Storm(
        clients=STORM_CLIENTS,
        refused_first=sum(1 for one in firsts if one.end == REFUSED),
        retries=len(again),
        retries_peak=_fullest([one.started_s - begun_s for one in again]),
        answers=len(whole),
        answers_peak=_fullest([one.ended_s - begun_s for one in whole]),
        storm_s=storm_s,
        drain_error_ratio=drain_error_ratio,
    )


def _fullest(times_s: list[float]) -> int:
    return max(Counter(int(at_s / BIN_S) for at_s in times_s).values(), default=0)


async def _client(bench: Bench, firsts: list[Attempt], again: list[Attempt], random: Random) -> None:
    for retries in range(STORM_RETRIES + 1):
        attempt = await bench.one(STORM_SIZE, STORM_S_MAX)
        (again if retries else firsts).append(attempt)
        if attempt.end != REFUSED:
            return
        wait_s = load_retry.wait_s(attempt.status, attempt.hints, retries, random, STORM_RETRIES)
        if wait_s is None:
            return
        await asyncio.sleep(wait_s)
