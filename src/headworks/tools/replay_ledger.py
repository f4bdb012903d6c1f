"""A ledger as a log remembers it: what lets work start is answered when that has been written.

So does the journal (`ledgers/journal.py`): whatever was asked in one turn of the loop is written at its end, and grants wait
for that. When it was is in the log: the instants at which work was sent. Of growth it is not: that waits as long as work did.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from statistics import median

from headworks.core.commands import Answer, Command
from headworks.sim.ledger import Answered, BookLike, Line, SimLedger
from headworks.sim.world import World
from headworks.tools.decision_log import Life

TURN_S_MAX = 0.05
"""No turn of a loop lasts longer: a grant at a later instant was another turn's."""


class RecordedLedger(SimLedger):
    """Everything else is answered at once."""

    def __init__(self, world: World, book: BookLike, life: Life) -> None:
        super().__init__(world, book, Line(), seed=0)
        self._clock = world
        sent = [(one.ended.sent_s, one.at_s) for one in life.arrivals if one.ended.sent_s is not None]
        self._written_s = sorted(sent_s for sent_s, _ in sent)
        waits_s = [sent_s - at_s for sent_s, at_s in sent if sent_s - at_s <= TURN_S_MAX]
        self._wait_s = median(waits_s) if waits_s else 0.0
        """How long one waited that had room."""

    def apply(self, commands: Sequence[Command], answered: Answered) -> None:
        """Run them now, and answer them now or when they would have been written."""
        answers = self.book.apply(tuple(commands), self.now_ms())
        self._clock.at(self._answered_s(answers), partial(answered, answers))

    def _answered_s(self, answers: Sequence[Answer]) -> float:
        now_s = self._clock.now_s
        granted = [answer.verb for answer in answers if answer.outcome == "granted"]
        if "reserve" in granted:
            place = bisect_left(self._written_s, now_s)
            if place < len(self._written_s) and self._written_s[place] <= now_s + TURN_S_MAX:
                return self._written_s[place]
        return now_s + self._wait_s if "reserve" in granted or "grow" in granted else now_s
