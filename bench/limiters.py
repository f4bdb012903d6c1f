"""Other people's limiters on the same store, each at its simpler job: one limit of one key, no identity, no release.

    python bench/limiters.py NAME PORT SECONDS     hits a second of 64 callers at once, and the version, as JSON

They are no dependencies of headworks: `bench/ledger.py` runs this in an environment of its own, which it makes in
`bench/.build/limiters`. Each has the strategy that costs it least, the client it comes with, and hiredis.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

CALLERS = 64
WARM_S = 0.3
WIDE = 1 << 40
NEEDED = ("limits", "throttled-py", "pyrate-limiter", "redis", "hiredis")

Hit = Callable[[], Awaitable[Any]]


async def limits(port: int) -> Hit:
    from limits import RateLimitItemPerSecond
    from limits.aio.storage import RedisStorage
    from limits.aio.strategies import FixedWindowRateLimiter

    limiter = FixedWindowRateLimiter(RedisStorage(f"async+redis://127.0.0.1:{port}", implementation="redispy"))
    item = RateLimitItemPerSecond(WIDE)
    return lambda: limiter.hit(item, "tenant")


async def throttled(port: int) -> Hit:
    from throttled.asyncio import RateLimiterType, Throttled, rate_limiter, store

    throttle = Throttled(
        using=RateLimiterType.FIXED_WINDOW.value,
        quota=rate_limiter.per_sec(10**9),
        store=store.RedisStore(server=f"redis://127.0.0.1:{port}/0"),
    )
    return lambda: throttle.limit("tenant")


async def pyrate(port: int) -> Hit:
    from pyrate_limiter import Limiter, Rate, RedisBucket
    from redis.asyncio import Redis

    bucket = await RedisBucket.init([Rate(10**9, 1000)], Redis(port=port), "tenant")
    limiter = Limiter(bucket)
    return lambda: limiter.try_acquire_async("tenant")


PEERS = {"limits": limits, "throttled-py": throttled, "pyrate-limiter": pyrate}


async def hits_per_s(hit: Hit, run_s: float) -> float:
    """Of so many callers at once."""
    done, end_s = 0, time.perf_counter() + run_s

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < end_s:
            await hit()
            done += 1

    began_s = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return done / (time.perf_counter() - began_s)


async def measured(name: str, port: int, run_s: float) -> dict[str, Any]:
    hit = await PEERS[name](port)
    await hits_per_s(hit, WARM_S)
    return {"hits_per_s": await hits_per_s(hit, run_s), "version": version(name)}


def main() -> None:
    name, port, run_s = sys.argv[1:]
    print(json.dumps(asyncio.run(measured(name, int(port), float(run_s)))))


if __name__ == "__main__":
    main()
