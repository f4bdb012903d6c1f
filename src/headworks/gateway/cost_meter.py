"""What an engine costs, divided among what is inside it at each instant (F7, decision 46).

An engine costs the same whether it is full or empty. Of each moment's money every sequence that is inside has an equal part;
of a moment in which nothing is inside nobody has any. A step of the engine takes about as long for each sequence that is in
it, and what needs more of it stays for longer. So what all of them paid, and what was nobody's, is what the engine cost,
exactly: money is counted in whole billionths, and what a division leaves over goes to whoever comes next.

    meter.to(at_ms)             time goes on
    mark = meter.enter(2)       two sequences of an execution begin
    meter.leave(2, mark)        they end: this is what they cost
"""

from __future__ import annotations

HOUR_MS = 3_600_000


class CostMeter:
    """One engine, from an instant on. All that is counted is in billionths of money."""

    __slots__ = ("_carry", "_each", "_inside", "_part", "at_ms", "idle", "nanomoney_per_h", "total")

    def __init__(self, at_ms: int, nanomoney_per_h: int) -> None:
        self.at_ms = at_ms
        self.nanomoney_per_h = nanomoney_per_h
        self.total = 0
        """What it has cost."""
        self.idle = 0
        """Of that, what nobody caused."""
        self._inside = 0
        """Sequences."""
        self._each = 0
        """What one would have paid that had been inside all the time."""
        self._carry = 0
        """What could not be divided yet: less than a billionth for each that is inside."""
        self._part = 0
        """Of a billionth, in hours of milliseconds."""

    def to(self, at_ms: int) -> None:
        """Time has gone on. An instant before the last one is the last one."""
        if at_ms <= self.at_ms:
            return
        cost, self._part = divmod(self._part + (at_ms - self.at_ms) * self.nanomoney_per_h, HOUR_MS)
        self.at_ms = at_ms
        self.total += cost
        if self._inside:
            each, self._carry = divmod(self._carry + cost, self._inside)
            self._each += each
        else:
            self.idle += cost

    def enter(self, sequences: int) -> int:
        """An execution begins now. Gives what it must show when it leaves."""
        self._inside += sequences
        return self._each

    def leave(self, sequences: int, mark: int) -> int:
        """It has ended: what it cost."""
        self._inside -= sequences
        if not self._inside:
            self.idle += self._carry
            self._carry = 0
        return sequences * (self._each - mark)

    def so_far(self, sequences: int, mark: int) -> int:
        """What it has cost up to now, and it goes on."""
        return sequences * (self._each - mark)
