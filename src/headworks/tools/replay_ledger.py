"""A ledger as a log remembers it: it is asked once in a turn of the loop, and a durable one grants when it has written.

The gateway's runner collects what a turn asks and asks it together, when everything that came in that turn has been handled.
The journal (`ledgers/journal.py`) keeps all answers of a turn that lets work start until it is on the disk. When that was is
in the log: the instants at which work was sent, or granted more. The control keeps to these instants; a plan, whose grants
are others, to how long they took.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

from headworks.core.commands import Command
from headworks.core.instants import turn_ends_s, turn_ms
from headworks.sim.engine import on_grid_s
from headworks.sim.ledger import Answered, BookLike, Line, SimLedger
from headworks.sim.world import World
from headworks.tools.decision_log import Life
from headworks.tools.replay_engine import Agenda

LAST = sys.maxsize
"""Behind everything that happens at an instant."""


class RecordedLedger(SimLedger):
    """For one gateway."""

    def __init__(self, world: World, agenda: Agenda, book: BookLike, life: Life, *, exact: bool) -> None:
        super().__init__(world, book, Line(), seed=0)
        self._clock = world
        self._agenda = agenda
        self._is_durable = life.is_durable
        self._has_turns = life.has_turns
        self._written = sorted(_written(life))
        self._wait_s = _wait_s(life) if life.is_durable else 0.0
        self._turn_s = life.policies[0][1].lease_s if exact else 2.0 * self._wait_s
        """A grant waits for one of the log so long at most: one that came later than a lease would not have been sent."""
        self._asked: list[Command] = []

    def now_ms(self) -> int:
        """It counts by the turns of its gateway."""
        return turn_ms(self._clock.now_s) if self._has_turns else super().now_ms()

    def apply(self, commands: Sequence[Command], answered: Answered, epoch: int = 1) -> None:
        """With whatever else is asked in this turn."""
        if not self._asked:
            at_s, place = self._asked_at()
            self._agenda.at(at_s, place, partial(self._ask, answered))
        self._asked += commands

    def _asked_at(self) -> tuple[float, int]:
        """When all that came in this turn has been handled: at its end, or when something was granted in it from memory."""
        now_s = self._clock.now_s
        ends_s = max(now_s, turn_ends_s(now_s)) if self._has_turns else now_s
        granted = self._next_written()
        if not self._is_durable and granted is not None and granted[0] <= ends_s:
            return granted
        return ends_s, LAST

    def _next_written(self) -> tuple[float, int] | None:
        """The next instant at which something was granted; what is asked when a file has been written waits for another."""
        place = bisect_right(self._written, (on_grid_s(self._clock.now_s), LAST if self._is_durable else 0))
        return self._written[place] if place < len(self._written) else None

    def _ask(self, answered: Answered) -> None:
        commands, self._asked = self._asked, []
        answers = self.book.apply(commands, self.now_ms())
        answer = partial(answered, answers)
        if not any(one.outcome == "granted" and one.verb in ("reserve", "grow") for one in answers):
            answer()
            return
        written = self._next_written()
        if written is not None and written[0] <= self._clock.now_s + self._turn_s:
            self._agenda.at(*written, answer)
        else:
            self._clock.after(self._wait_s, answer)


def _written(life: Life) -> Iterator[tuple[float, int]]:
    """The instants at which something was granted in the log, and by which line that is known."""
    for one in life.arrivals:
        if one.ended.sent_s is not None:
            yield on_grid_s(one.ended.sent_s), one.granted_place
        for at_s in one.ended.let_go_on_s:
            yield on_grid_s(at_s), one.end_place


def _wait_s(life: Life) -> float:
    """How long grants wait, usually: from what was asked when it came, or when something had ended, to its sending."""
    ended_s = sorted(one.ended.ended_s for one in life.arrivals)
    waits_s = []
    for one in life.arrivals:
        sent_s = one.ended.sent_s
        if sent_s is not None:
            place = bisect_left(ended_s, sent_s)
            waits_s.append(sent_s - max(one.at_s, ended_s[place - 1] if place else one.at_s))
    return median(waits_s) if waits_s else 0.0
