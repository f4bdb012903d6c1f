"""Agents: clients with one task that takes several calls, one after the other, and is worth nothing if one of them fails.

An agent begins when its traffic's arrival comes. With `session_tokens` it opens a session first, and all its calls are of that;
without, each call stands for itself. Every attempt follows the rules of the stock SDK (`clients.py`), its retries included.

*Begun*: its session is open, or its first call was answered. *Interrupted*: a later call was not, after all its retries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from headworks.core.events import CloseAsked
from headworks.core.types import Budget
from headworks.sim.clients import Caller, Door, Temper
from headworks.sim.engine import on_grid_s
from headworks.sim.traffic import Planned
from headworks.sim.world import World

if TYPE_CHECKING:
    from headworks.sim.simulation import Simulation

WARM_S = 1.0
"""As `simulation.WARM_S`."""


@dataclass(slots=True)
class Agents:
    """How the agents of one source work."""

    calls: int = 12
    think_s: float = 1.0
    """Between an answer and the next call."""
    session_tokens: int = 0
    """The budget of its session; 0: it opens none."""
    lasts_s: float = 3600.0


class Agent:
    """One of them."""

    __slots__ = (
        "_agents",
        "_close",
        "_door",
        "_make",
        "_planned",
        "_temper",
        "_world",
        "answered",
        "begun",
        "ended",
        "number",
        "session",
    )

    def __init__(
        self,
        number: int,
        planned: Planned,
        agents: Agents,
        temper: Temper,
        world: World,
        door: Door,
        make: Callable[[Caller], None],
        close: Callable[[str], None],
    ) -> None:
        """`make` is told of every caller, `close` of every session that is to be closed."""
        self.number = number
        self.answered = 0
        self.begun = False
        self.ended = ""
        """`finished`, `interrupted` or `refused` (it never began)."""
        self.session = ""
        self._planned = planned
        self._agents = agents
        self._temper = temper
        self._world = world
        self._door = door
        self._make = make
        self._close = close

    def start(self) -> None:
        """Open a session, or begin."""
        if not self._agents.session_tokens:
            self._call()
            return
        caller = self._ask(self._opened, "s")
        caller.session = f"session:agent/{self.number}"
        caller.opens = Budget(self._agents.session_tokens, self._agents.lasts_s)
        caller.start()

    def _opened(self, caller: Caller) -> None:
        if caller.attempts[-1].end != "completed":
            self._end("refused")
            return
        self.begun, self.session = True, caller.session
        self._call()

    def _call(self) -> None:
        caller = self._ask(self._ended_call, str(self.answered))
        caller.session = self.session
        caller.start()

    def _ask(self, settled: Callable[[Caller], None], name: str) -> Caller:
        planned, name = self._planned, f"{self.number}.{name}"
        caller = Caller(
            self.number, planned, self._temper, self._world, self._door, Random(f"agent-{name}"), settled, f"a{name}"
        )
        self._make(caller)
        return caller

    def _ended_call(self, caller: Caller) -> None:
        if caller.attempts[-1].end != "completed":
            self._end("interrupted" if self.begun else "refused")
            return
        self.begun = True
        self.answered += 1
        if self.answered == self._agents.calls:
            self._end("finished")
        else:
            self._world.after(self._agents.think_s, self._call)

    def _end(self, ended: str) -> None:
        self.ended = ended
        if self.session:
            self._close(self.session)


def begin(simulation: Simulation, number: int, planned: Planned, agents: Agents | None) -> bool:
    """One more, when its time comes. False: it is no agent that comes then."""
    if agents is None:
        return False
    world, temper = simulation.world, simulation.setup.sources[planned.source].temper

    def close(session: str) -> None:
        """At whichever gateway listens: a session belongs to none."""
        for runner in simulation.runners:
            if runner is not None:
                runner.tell(CloseAsked("", session))
                return

    agent = Agent(number, planned, agents, temper, world, simulation, simulation.callers.append, close)
    simulation.agents.append(agent)
    world.at(on_grid_s(WARM_S + planned.at_s), agent.start)
    return True


def results(agents: list[Agent]) -> dict[str, float | int]:
    """What became of them. The ratio is of those that began: a task that was never taken on interrupts nobody."""
    begun = [one for one in agents if one.begun]
    interrupted = sum(one.ended == "interrupted" for one in begun)
    return {
        "agents": len(agents),
        "begun": len(begun),
        "finished": sum(one.ended == "finished" for one in begun),
        "interrupted": interrupted,
        "interrupted_ratio": interrupted / len(begun) if begun else 0.0,
        "calls_answered": sum(one.answered for one in agents),
    }
