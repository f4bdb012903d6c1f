"""Runs an engine model in real time, or `speed` times as fast, on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headworks.sim.engine import EngineModel, Output


class Driver:
    """The only one who advances the model. After any call into the model, `poke` must follow."""

    def __init__(self, model: EngineModel, speed: float, deliver: Callable[[list[Output]], None]) -> None:
        self.model = model
        self._loop = asyncio.get_running_loop()
        self._speed = speed
        self._started_s = self._loop.time()
        self._deliver = deliver
        self._armed: asyncio.TimerHandle | None = None

    def now_s(self) -> float:
        """The model's clock."""
        return (self._loop.time() - self._started_s) * self._speed

    def poke(self) -> None:
        """Set the timer to whatever the model waits for now."""
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None
        due_s = self.model.next_s()
        if due_s is not None:
            self._armed = self._loop.call_at(self._started_s + due_s / self._speed, self._due)

    def _due(self) -> None:
        self._armed = None
        self._deliver(self.model.advance(self.now_s()))
        self.poke()

    def stop(self) -> None:
        """No timer is left behind."""
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None
