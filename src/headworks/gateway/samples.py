"""Looks at engines when the gate wants it: one look at a time per replica, and the capacity before the first.

The gate says `Observe(replica, at_s)`: a look that begins from now on and not later than `at_s`. A wish that comes while a look
is under way is kept for the next one, because a look begun before the wish proves nothing for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from headworks.core.events import Event, ReplicaDescribed, ReplicaSampled, SampleFailed
from headworks.engines.base import Engine, EngineError, Unreachable
from headworks.gateway.compute_watch import ComputeWatch

DESCRIBE_RETRY_S = 1.0
FAILED = (EngineError, ValueError, ArithmeticError, RecursionError)
"""A page that says nonsense (a count of NaN, braces without end) is a look that failed, and not the last one."""


class Sampler:
    """One replica's looks."""

    def __init__(
        self,
        engine: Engine,
        feed: Callable[[Event], None],
        clock_s: Callable[[], float],
        compute: ComputeWatch | None = None,
    ) -> None:
        self._engine = engine
        self._compute = compute
        self._feed = feed
        self._clock_s = clock_s
        self._wanted_s = float("inf")
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.failure = ""
        """What the last failed look said, for `serve` and `/readyz`; empty when the last one came back."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        if self._compute is not None:
            self._compute.start()

    def wish(self, at_s: float) -> None:
        """The earliest wish holds."""
        if at_s < self._wanted_s:
            self._wanted_s = at_s
            self._wake.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._compute is not None:
            await self._compute.close()

    async def _run(self) -> None:
        incarnation = await self._describe()
        while True:
            await self._until_wanted()
            self._wanted_s = float("inf")
            try:
                sample = await self._engine.sample()
            except FAILED as error:
                self.failure = str(error)
                self._feed(SampleFailed(self._engine.replica, str(error), isinstance(error, Unreachable)))
                continue
            self.failure = ""
            if self._compute is not None:
                sample = replace(sample, compute_used_ratio=self._compute.ratio())
            self._feed(ReplicaSampled(sample))
            if sample.incarnation != incarnation:  # another process may hold more, or less
                incarnation = await self._describe()

    async def _describe(self) -> str:
        """Ask until it answers: a gateway may be started before its engines."""
        while True:
            try:
                capacity = await self._engine.describe()
            except FAILED as error:
                self.failure = str(error)
                await asyncio.sleep(DESCRIBE_RETRY_S)
                continue
            self.failure = ""
            self._feed(ReplicaDescribed(capacity))
            return capacity.incarnation

    async def _until_wanted(self) -> None:
        while True:
            self._wake.clear()
            left_s = self._wanted_s - self._clock_s()
            if left_s <= 0:
                return
            try:  # not `wait_for`: where a wish and a cancel meet, Python 3.11 loses the cancel there, and closing never ends
                async with asyncio.timeout(None if left_s == float("inf") else left_s):
                    await self._wake.wait()
            except TimeoutError:
                return
