"""Fault points in the gateway's own shell: places that are armed in some histories, and then fire now and then.

A fault of the world (`faults.py`) has a time. These have a place, between two things the shell does which are usually done
together, where a process may die, be stopped by its kernel, or be told something once more, late, or for nothing. What a point
does is allowed at any time: a gate that breaks because of it would break one day without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from headworks.core.commands import Answer
from headworks.core.effects import Effect
from headworks.core.events import Event, Freed, LedgerAnswered, Tick
from headworks.core.types import Usage
from headworks.sim.runner import SimRunner
from headworks.sim.world import Action

if TYPE_CHECKING:
    from headworks.sim.simulation import Simulation

PAUSES_S = (0.02, 0.3, 1.0, 6.0)
"""SIGSTOP or a blocked loop: from a hiccup to several leases."""
RESTARTS_S = (0.05, 0.6, 3.0)
LATE_S = 0.3

OFTEN = ("late_wakeup", "spare_tick", "freed_for_nothing", "answers_again")
POINTS = ("death", "pause", *OFTEN)
"""All others fire once in a history: one of them is enough to change all that follows."""


@dataclass(slots=True)
class Points:
    """What is armed in one history: point → the chance that it fires when it is passed."""

    armed: dict[str, float]
    seed: int
    fired: dict[str, int] = field(default_factory=dict)
    _random: dict[str, Random] = field(default_factory=dict)

    def fires(self, point: str) -> bool:
        """Whether it does, this time."""
        ratio = self.armed.get(point, 0.0)
        if not ratio or (point in self.fired and point not in OFTEN) or self.random_of(point).random() >= ratio:
            return False
        self.fired[point] = self.fired.get(point, 0) + 1
        return True

    def random_of(self, point: str) -> Random:
        """Each has its own, so that it fires where it did when another one is not armed."""
        if point not in self._random:
            self._random[point] = Random(f"point-{point}-{self.seed}")
        return self._random[point]

    def disarm(self) -> None:
        """No more faults (the liveness phase)."""
        self.armed = {}


def points_of(make_runner: Callable[..., SimRunner]) -> Points | None:
    """What is armed in the runners that this makes, if anything is."""
    return make_runner.args[0] if isinstance(make_runner, partial) else None


class ArmedRunner(SimRunner):
    """A boot of a gateway whose shell has fault points in it."""

    def __init__(self, points: Points, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._points = points
        self._simulation: Simulation = arguments[4]
        self._stopped_until_s = -1.0
        self._waiting: list[Action] = []
        """What came while the process stood still, in the order in which its kernel kept it."""
        self._departs = False

    # --- standing still -----------------------------------------------------------------------------------------

    def _stop(self, for_s: float) -> None:
        """SIGSTOP. Connections that are still being opened are written to when the process goes on, if at all."""
        self._stopped_until_s = self._world.now_s + for_s
        for replica in self._simulation.replicas.values():
            replica.hold_back(self, self._stopped_until_s)
        self._world.at(self._stopped_until_s, self._go_on)

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            self._in_turn(action)

    def _in_turn(self, action: Action) -> None:
        """Now, or when the process goes on."""
        if self._waiting or self._world.now_s < self._stopped_until_s:
            self._waiting.append(action)
        else:
            action()

    def tell(self, event: Event) -> None:
        if self._busy or not self.alive:
            super().tell(event)
            return
        self._in_turn(lambda: self._handle(event))

    def _handle(self, event: Event) -> None:
        super().tell(event)
        if not self.alive:
            return
        if self._points.fires("spare_tick"):
            super().tell(Tick())
        if self._points.fires("freed_for_nothing"):
            super().tell(Freed(next(iter(self._simulation.policy.pools))))
        if self._points.fires("pause"):
            self._stop(self._points.random_of("pause").choice(PAUSES_S))

    def _on_answers(self, answers: list[Answer]) -> None:
        super()._on_answers(answers)
        if self._points.fires("answers_again"):
            after_s = LATE_S * self._points.random_of("answers_again").random()
            self._world.after(after_s, lambda: self.tell(LedgerAnswered(answers)))

    def on_not_sent(self, execution: str, reason: str) -> None:
        self._in_turn(lambda: self._if_alive(super(ArmedRunner, self).on_not_sent, execution, reason))

    def on_first_byte(self, execution: str) -> None:
        self._in_turn(lambda: self._if_alive(super(ArmedRunner, self).on_first_byte, execution))

    def on_progress(self, execution: str, output_tokens: int) -> None:
        self._in_turn(lambda: self._if_alive(super(ArmedRunner, self).on_progress, execution, output_tokens))

    def on_stopped(self, execution: str, usage: Usage, failed: bool) -> None:
        self._in_turn(lambda: self._if_alive(super(ArmedRunner, self).on_stopped, execution, usage, failed))

    def on_lost(self, execution: str, cause: str) -> None:
        self._in_turn(lambda: self._if_alive(super(ArmedRunner, self).on_lost, execution, cause))

    def on_closed(self, execution: str) -> None:
        self._in_turn(lambda: self._if_alive(super(ArmedRunner, self).on_closed, execution))

    def _if_alive(self, told: Callable[..., None], *arguments: object) -> None:
        if self.alive:
            told(*arguments)

    # --- dying between two effects --------------------------------------------------------------------------------

    def depart(self) -> None:
        self._departs = True
        super().depart()

    def _perform(self, effect: Effect) -> None:
        if not self.alive:
            return
        super()._perform(effect)
        if self.alive and not self._departs and self._points.fires("death"):
            self._die()

    def _die(self) -> None:
        """kill -9, and another process after a while."""
        simulation, number = self._simulation, self._simulation.runners.index(self)
        simulation.kill(number)
        restart_s = self._points.random_of("death").choice(RESTARTS_S)
        simulation.world.after(restart_s, lambda: _boot(simulation, number))

    def _wake(self, at_s: float) -> None:
        if self._points.fires("late_wakeup"):
            at_s += LATE_S * self._points.random_of("late_wakeup").random()
        super()._wake(at_s)


def _boot(simulation: Simulation, number: int) -> None:
    if simulation.runners[number] is None:
        simulation.boot(number)
