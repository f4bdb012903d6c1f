"""Looks at exporters of compute use, apart from the looks at engines: a slow exporter must not delay a proof.

The last value goes with every sample of its replica while it is fresh; then compute is unknown, or told by the engine's
steps (`core/pressure.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from headworks.config.settings import Settings
from headworks.engines.base import EngineError
from headworks.engines.exporter import Exporter

log = logging.getLogger("headworks.gateway")

READ_EVERY_S = 1.0
FRESH_S = 5.0


class ComputeWatch:
    """One replica's exporter, read once a second."""

    def __init__(self, replica: str, exporter: Exporter, clock_s: Callable[[], float]) -> None:
        self._replica = replica
        self._exporter = exporter
        self._clock_s = clock_s
        self._ratio = 0.0
        self._read_s = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self.failure = ""
        """What the last look said; empty when it came back."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def ratio(self) -> float | None:
        """What was read last, while it is fresh."""
        return self._ratio if self._clock_s() - self._read_s <= FRESH_S else None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._exporter.close()

    async def _run(self) -> None:
        while True:
            try:
                self._ratio = await self._exporter.compute_used_ratio()
            except EngineError as error:
                if not self.failure:
                    log.warning("compute use of %s is not known from its exporter: %s", self._replica, error)
                self.failure = str(error)
            else:
                self.failure = ""
                self._read_s = self._clock_s()
            await asyncio.sleep(READ_EVERY_S)


def watches(settings: Settings, clock_s: Callable[[], float]) -> dict[str, ComputeWatch]:
    """Of the replicas that have an exporter."""
    return {
        one.name: ComputeWatch(one.name, Exporter(one.compute_url, clock_s), clock_s)
        for one in settings.replicas
        if one.compute_url is not None
    }
