"""An autoscaler as clusters have them: it looks now and then at one gauge, and what it starts is there much later.

The gauge is the gateway's own `scale_wanted_ratio` (core/pressure.py), capacity that is wanted ÷ capacity that is there:

    wanted = ceil(ready · ratio)

What is missing is started, less what is starting already, up to the replicas the policy names. A replica joins the pool after
`start_s`, when it is described to every gateway; until then it answers nothing. Nothing is taken away again: a run is
about a surge, and how long it takes to be met.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headworks.sim.simulation import Simulation


@dataclass(slots=True)
class Scaling:
    """How many replicas stand at the beginning, and how the rest is started."""

    ready: int = 1
    start_s: float = 90.0
    """From the order to the first request it can take: a machine, the weights, the warm-up."""
    every_s: float = 15.0
    """How often the gauge is looked at."""


class Autoscaler:
    """Starts the replicas that are not there yet, in the policy's order."""

    def __init__(self, scaling: Scaling, simulation: Simulation) -> None:
        self._scaling = scaling
        self._simulation = simulation
        names = list(simulation.replicas)
        self._ready = max(1, min(scaling.ready, len(names)))
        self._absent = names[self._ready :]
        self._starting = 0
        self.joined_s: list[float] = []
        """When each further replica was ready, by the world's clock."""
        for name in self._absent:
            simulation.replicas[name].stand_by()

    def begin(self) -> None:
        """Look from now on."""
        self._simulation.world.after(self._scaling.every_s, self._look)

    def _look(self) -> None:
        world, simulation = self._simulation.world, self._simulation
        ratios = [runner.scale_wanted_ratio() for runner in simulation.runners if runner is not None]
        wanted = math.ceil(self._ready * max(ratios, default=1.0) - 1e-9)
        for _ in range(min(wanted - self._ready - self._starting, len(self._absent))):
            self._start(self._absent.pop(0))
        if world.now_s + self._scaling.every_s <= simulation.end_s:
            world.after(self._scaling.every_s, self._look)

    def _start(self, name: str) -> None:
        self._starting += 1

        def joined() -> None:
            self._starting -= 1
            self._ready += 1
            self.joined_s.append(self._simulation.world.now_s)
            self._simulation.replicas[name].come_up()
            self._simulation.describe(name)

        self._simulation.world.after(self._scaling.start_s, joined)
