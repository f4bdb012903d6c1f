"""The samplers of a gateway's engines, which come and go with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping

from headworks.core.events import Event
from headworks.engines.base import Engine
from headworks.gateway.compute_watch import ComputeWatch
from headworks.gateway.samples import Sampler


class Samplers:
    """One sampler for each engine."""

    def __init__(
        self, engines: MutableMapping[str, Engine], feed: Callable[[Event], None], clock_s: Callable[[], float]
    ) -> None:
        self._engines = engines
        self._feed = feed
        self._clock_s = clock_s
        self._samplers: dict[str, Sampler] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def watch(self, name: str, compute: ComputeWatch | None = None) -> Sampler:
        """Have a sampler for one of the engines."""
        sampler = self._samplers[name] = Sampler(self._engines[name], self._feed, self._clock_s, compute)
        return sampler

    def start(self) -> None:
        for sampler in self._samplers.values():
            sampler.start()

    def wish(self, replica: str, at_s: float) -> None:
        """See `Sampler.wish`. Nobody wishes anything of one that was forgotten."""
        sampler = self._samplers.get(replica)
        if sampler is not None:
            sampler.wish(at_s)

    def forget(self, name: str) -> None:
        """No more looks at it, and no connection to it: nothing runs there, since it was forgotten for that."""
        sampler, engine = self._samplers.pop(name, None), self._engines.pop(name, None)
        if sampler is not None and engine is not None:
            task = asyncio.get_running_loop().create_task(_close(sampler, engine))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._closing, *(sampler.close() for sampler in self._samplers.values()))
        await asyncio.gather(*(engine.close() for engine in self._engines.values()))

    def failures(self) -> dict[str, str]:
        """Replicas whose last look failed, and what it said."""
        return {name: sampler.failure for name, sampler in self._samplers.items() if sampler.failure}


async def _close(sampler: Sampler, engine: Engine) -> None:
    await sampler.close()
    await engine.close()
