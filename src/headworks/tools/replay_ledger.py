"""A ledger as a log remembers it: it is asked once in a turn of the loop, and a durable one grants when it has written.

The gateway's runner collects what a turn asks and asks it together; the journal (`ledgers/journal.py`) keeps all answers of a
turn that lets work start until it is on the disk. When that was is in the log: the instants at which work was sent. Of growth
it is not: that waits as long as work did. The control keeps to these instants, since a loop that was busy granted late; a plan,
whose grants are others, to how long they took.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial
from statistics import median

from headworks.core.commands import Command
from headworks.core.policy import INFINITE_S
from headworks.sim.ledger import Answered, BookLike, Line, SimLedger
from headworks.sim.world import World
from headworks.tools.decision_log import Life
from headworks.tools.replay_engine import Agenda

TURN_S_MAX = 0.05
"""No turn of a loop lasts longer: a grant at a later instant was another turn's."""


class RecordedLedger(SimLedger):
    """For one gateway."""

    def __init__(self, world: World, agenda: Agenda, book: BookLike, life: Life, *, exact: bool) -> None:
        super().__init__(world, book, Line(), seed=0)
        self._clock = world
        self._agenda = agenda
        self._is_durable = life.is_durable
        self._written = sorted((one.ended.sent_s, one.granted_place) for one in life.arrivals if one.ended.sent_s is not None)
        self._wait_s = _wait_s(life) if life.is_durable else 0.0
        self._turn_s = TURN_S_MAX if exact else 2.0 * self._wait_s
        """A grant waits for one of the log so long at most."""
        self._asked: list[Command] = []

    def apply(self, commands: Sequence[Command], answered: Answered, epoch: int = 1) -> None:
        """With whatever else is asked at this instant."""
        if not self._asked:
            self._clock.after(0.0, partial(self._ask, answered))
        self._asked += commands

    def _ask(self, answered: Answered) -> None:
        commands, self._asked = self._asked, []
        answers = self.book.apply(commands, self.now_ms())
        answer = partial(answered, answers)
        granted = {one.verb for one in answers if one.outcome == "granted"}
        now_s = self._clock.now_s
        # What is asked when something has been written waits for the next write; in memory it is granted at that instant.
        place = bisect_right(self._written, (now_s, INFINITE_S if self._is_durable else 0.0))
        if "reserve" in granted and place < len(self._written) and self._written[place][0] <= now_s + self._turn_s:
            self._agenda.at(*self._written[place], answer)
        elif "reserve" in granted or "grow" in granted:
            self._clock.after(self._wait_s, answer)
        else:
            answer()


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
