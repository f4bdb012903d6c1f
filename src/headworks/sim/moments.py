"""The moments of a request's life at which its gateway is struck: killed, or stopped for a while.

    a  before anything was reserved        e  while it streams
    b  the reserve was sent                f  its engine has ended it, and the ledger does not know
    c  granted, and nothing sent yet       g  the ledger knows
    d  sent, and no byte has come back

They are points like those of `points.py`, each of which fires once in a history; here the place is a moment of one request.
"""

from __future__ import annotations

from typing import Any

from headworks.core.commands import Answer, Reserve
from headworks.core.effects import Ask, Effect, Run
from headworks.core.types import Request, Usage
from headworks.sim.points import ArmedRunner, Points

KILLED = tuple(f"killed_{moment}" for moment in "abcdefg")
STOPPED_S = {"stopped_c": 25.0, "stopped_e": 25.0, "blocked_e": 5.0}
"""Ten leases of the longest in a campaign (SIGSTOP); a loop that is blocked."""
MOMENTS = (*KILLED, *STOPPED_S)
LOOK_S, LOOKS_MAX = 0.002, 250


class StruckRunner(ArmedRunner):
    """A boot of a gateway that is struck at a moment."""

    def __init__(self, points: Points, *arguments: Any) -> None:
        super().__init__(points, *arguments)

    def arrive(self, request: Request) -> None:
        if not self._dies_at("a"):
            super().arrive(request)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Run) and self._dies_at("c"):
            return
        super()._perform(effect)
        if isinstance(effect, Run):
            self._stops_at("c")
            self._look_for_d(
                effect.execution.id, effect.execution.replica, LOOKS_MAX if "killed_d" in self._points.armed else 0
            )
        elif isinstance(effect, Ask) and any(isinstance(one, Reserve) for one in effect.commands):
            self._dies_at("b")

    def _look_for_d(self, execution: str, replica: str, looks: int) -> None:
        """When its engine has taken it in."""
        stream = self._streams.get(execution)
        if not looks or not self.alive or stream is None or stream.begun:
            return
        if execution not in self._simulation.replicas[replica].taken:
            self._world.after(LOOK_S, lambda: self._look_for_d(execution, replica, looks - 1))
        else:
            self._dies_at("d")

    def on_first_byte(self, execution: str) -> None:
        super().on_first_byte(execution)
        if not self._dies_at("e"):
            self._stops_at("e")

    def on_stopped(self, execution: str, usage: Usage, failed: bool) -> None:
        if not self._dies_at("f"):
            super().on_stopped(execution, usage, failed)

    def _on_answers(self, answers: list[Answer]) -> None:
        super()._on_answers(answers)
        if any(answer.verb == "stop" and answer.outcome == "ok" for answer in answers):
            self._dies_at("g")

    def _dies_at(self, moment: str) -> bool:
        """True if the process is no more."""
        if self.alive and self._points.fires(f"killed_{moment}"):
            self._die()
        return not self.alive

    def _stops_at(self, moment: str) -> None:
        for point, for_s in STOPPED_S.items():
            if self.alive and point.endswith(f"_{moment}") and self._points.fires(point):
                self._stop(for_s)
