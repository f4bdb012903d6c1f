"""Agents: clients with one task that takes several calls, one after the other, and is worth nothing if one of them fails.

An agent begins when its traffic's arrival comes. With `session_tokens` it opens a session first, and all its calls are of that;
without, each call stands for itself. Every attempt follows the rules of the stock SDK (`clients.py`), its retries included.

*Begun*: its session is open, or its first call was answered. *Interrupted*: a later call was not, after all its retries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from headworks.core.events import CloseAsked
from headworks.core.types import Budget
from headworks.sim.clients import Caller
from headworks.sim.engine import on_grid_s
from headworks.sim.traffic import Planned

if TYPE_CHECKING:
    from headworks.sim.simulation import Simulation

WARM_S = 1.0
"""As `simulation.WARM_S`."""
CLOSE_AGAIN_S = 0.03
"""Who closes more than once does so in steps of this: before the ledger has answered, on most lines."""
LATE_CALL_S = 0.05
"""A call that comes after the end comes so much later."""


@dataclass(slots=True)
class Agents:
    """How the agents of one source work."""

    calls: int = 12
    think_s: float = 1.0
    """Between an answer and the next call."""
    session_tokens: int = 0
    """The budget of its session; 0: it opens none."""
    lasts_s: float = 3600.0
    closes: int = 1
    """How often it says that it is done. 0: it leaves its session behind."""
    late_calls: int = 0
    """Calls that it makes once it is done, of a session that it has closed."""


class Agent:
    """One of them."""

    __slots__ = ("_agents", "_planned", "_simulation", "answered", "begun", "ended", "number", "session")

    def __init__(self, number: int, planned: Planned, agents: Agents, simulation: Simulation) -> None:
        self.number = number
        self.answered = 0
        self.begun = False
        self.ended = ""
        """`finished`, `interrupted` or `refused` (it never began)."""
        self.session = ""
        self._planned = planned
        self._agents = agents
        self._simulation = simulation

    def start(self) -> None:
        """Open a session, or begin."""
        if not self._agents.session_tokens:
            self._call()
            return
        caller = self._caller(self._opened, "s")
        caller.key = ""  # an opening has none: what it is called is its identity
        caller.session = f"session:agent/{self.number}"
        caller.opens = Budget(self._agents.session_tokens, self._agents.lasts_s)
        caller.start()

    def _opened(self, caller: Caller) -> None:
        if caller.attempts[-1].end != "completed":
            self._end("refused")
            return
        self.begun, self.session = True, f"{caller.session}.{caller.attempts[-1].number}"
        self._call()

    def _call(self) -> None:
        caller = self._caller(self._answered, str(self.answered))
        caller.session = self.session
        caller.start()

    def _caller(self, settled: Callable[[Caller], None], name: str) -> Caller:
        simulation, planned, name = self._simulation, self._planned, f"{self.number}.{name}"
        temper, random = simulation.setup.sources[planned.source].temper, Random(f"agent-{name}-{simulation.setup.seed}")
        caller = Caller(self.number, planned, temper, simulation.world, simulation, random, settled, f"a{name}")
        simulation.callers.append(caller)
        return caller

    def _answered(self, caller: Caller) -> None:
        if caller.attempts[-1].end != "completed":
            self._end("interrupted" if self.begun else "refused")
            return
        self.begun = True
        self.answered += 1
        if self.answered == self._agents.calls:
            self._end("finished")
        else:
            self._simulation.world.after(self._agents.think_s, self._call)

    def _end(self, ended: str) -> None:
        self.ended = ended
        if not self.session:
            return
        for number in range(self._agents.closes):
            self._simulation.world.after(number * CLOSE_AGAIN_S, self._close)
        for number in range(self._agents.late_calls):
            self._simulation.world.after((number + 1) * LATE_CALL_S, partial(self._call_late, number))

    def _close(self) -> None:
        """At whichever gateway listens: a session belongs to none."""
        for runner in self._simulation.runners:
            if runner is not None:
                runner.tell(CloseAsked("", self.session))
                return

    def _call_late(self, number: int) -> None:
        """What becomes of it is nothing to the task."""
        caller = self._caller(lambda caller: None, f"late{number}")
        caller.session = self.session
        caller.start()


def begin(simulation: Simulation, number: int, planned: Planned, agents: Agents | None) -> bool:
    """One more, when its time comes. False: it is no agent that comes then."""
    if agents is None:
        return False
    agent = Agent(number, planned, agents, simulation)
    simulation.agents.append(agent)
    simulation.world.at(on_grid_s(WARM_S + planned.at_s), agent.start)
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
