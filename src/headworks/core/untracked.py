"""Anti-entropy: what the ledger holds under this boot and nobody here tracks is given back.

The ledger is asked for a list every `LIST_S`. Where much runs it is asked for a part at a time, by the first digit of the
names: whoever makes a list of 10,000 holds everybody up meanwhile, in the ledger and here. What is untracked in two lists, one
after the other, is nobody's; once may be an answer that is still on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headworks.core.book_table import ORPHANED
from headworks.core.commands import Answer, Cancel, Held, Reassert, Stop
from headworks.core.desk import Desk
from headworks.core.policy import INFINITE_S
from headworks.core.recovery import Recovery
from headworks.core.types import Reservation

LIST_S = 5.0
LISTED_MAX = 500
"""Where more runs, the list comes in parts."""
PARTS = "0123456789abcdef"
"""What the name of an execution may begin with (`Desk.mint`)."""


class Untracked:
    """Of one gateway."""

    def __init__(self, desk: Desk, recovery: Recovery, wards: dict[str, Reservation]) -> None:
        self._desk = desk
        self._recovery = recovery
        self._wards = wards
        self._seen_s: dict[str, float] = {}
        """What was untracked in a list, and when; bounded by what the ledger holds."""
        self._lists = 0
        self.next_s = -INFINITE_S

    def ask(self, now_s: float) -> None:
        """For the next list, or the next part of it."""
        part, self.next_s = "", now_s + LIST_S
        if len(self._desk.runs) > LISTED_MAX:
            part, self.next_s = PARTS[self._lists % len(PARTS)], now_s + LIST_S / len(PARTS)
            self._lists += 1
        self._desk.command(Held(self._desk.owner, part))

    def answered(self, answer: Answer, now_s: float, watch: Callable[[Reservation, float], None]) -> None:
        """What is nobody's: told to stop, and watched if it was seen in its engine."""
        runs, claims, found = self._desk.runs, self._desk.claims, dict[str, Reservation]()
        for record in answer.records:
            name = record.execution
            if name in runs:
                if record.state == ORPHANED:  # our lease was over for a moment
                    self._desk.command(Reassert(record))
            elif name not in claims and name not in self._wards:
                found[name] = record
        ended = self._recovery.ended_here() if found else {}
        for name in sorted(found.keys() & ended.keys()):  # an older copy of the ledger has not heard of its end
            self._desk.command(replace(ended[name], commits=()))
            del found[name]
        for name in sorted(found):
            if now_s - self._seen_s.setdefault(name, now_s) >= LIST_S / 2:
                self._give_back(found[name], now_s, watch)
        for name in [name for name, seen_s in self._seen_s.items() if now_s - seen_s > 2 * LIST_S]:
            del self._seen_s[name]

    def _give_back(self, record: Reservation, now_s: float, watch: Callable[[Reservation, float], None]) -> None:
        name, owner = record.execution, self._desk.owner
        if record.reserved_by != owner:  # adopted, and the answer that said so was lost
            watch(record, now_s)
        elif record.seen:
            self._desk.alarm("untracked_execution", name, "seen in the engine and tracked by nobody here")
            self._desk.command(Cancel(name, owner))
            watch(record, now_s)
        else:
            self._desk.command(Stop(name, owner, "E0", "failed", None))
