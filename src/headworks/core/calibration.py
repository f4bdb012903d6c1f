"""How sure is a forecast? Bounds that a stated share of requests stays within, whatever the engine does.

A bound is a quantile of what requests like this one took beyond the fit. Taken at a fixed level it covers its share only as
long as tomorrow is like yesterday; so the level is steered by what came of it (adaptive conformal inference, Gibbs and
Candès 2021). After each request whose time was seen

    tail ← tail + STEP · ((1 − coverage) − missed)        missed is 1 or 0, and the level is 1 − tail

so over any n requests in a row the share that was missed differs from 1 − coverage by the change of the tail ÷ (STEP · n).
That is an identity and asks nothing of the engine: while the tail is not stopped at `TAIL_MIN` or `TAIL_MAX`, it is at most
2 % over 500. Below zero the bound is the largest of what was seen; the tail stops, because a debt of many misses in one burst
would otherwise be paid for by refusing, for long, what would have been on time.

What was missed is heard of late, and a level that is moved faster than that swings: with many bounds outstanding the step is
smaller (`DAMPED`).
"""

from __future__ import annotations

from collections import deque

STEP = 0.1
DAMPED = 2.0
"""A level that is moved by more than this before its first miss is heard of swings to and fro."""
TAIL_MIN = -0.6
TAIL_MAX = 0.4
RECENT_MAX = 500
"""Requests over which the coverage is told."""


class Calibration:
    """The level of one kind of forecast: `coverage` of its bounds should be kept."""

    __slots__ = ("_missed", "_recent", "coverage", "tail_ratio")

    def __init__(self, coverage: float) -> None:
        self.coverage = coverage
        self.tail_ratio = 1.0 - coverage
        """The share of what was seen that the bound leaves above it; below zero, nothing is left."""
        self._recent: deque[bool] = deque()
        self._missed = 0

    def aim(self, coverage: float) -> None:
        """A reload states another coverage: what was learnt of the level is kept relative to it."""
        self.tail_ratio += self.coverage - coverage
        self.coverage = coverage

    def saw(self, missed: bool, outstanding: int = 0) -> None:
        """One came to its time: within its bound, or not. `outstanding`: bounds that were given and not seen through yet."""
        self.steer(missed, STEP if outstanding <= DAMPED / STEP else DAMPED / outstanding)
        self.record(missed)

    def steer(self, missed: bool, step: float = STEP) -> None:
        """Move the level."""
        tail_ratio = self.tail_ratio + step * (1.0 - self.coverage - missed)
        self.tail_ratio = min(TAIL_MAX, max(TAIL_MIN, tail_ratio))

    def record(self, missed: bool) -> None:
        """Count what became of a bound that was given."""
        self._recent.append(missed)
        self._missed += missed
        if len(self._recent) > RECENT_MAX:
            self._missed -= self._recent.popleft()

    @property
    def seen(self) -> int:
        """Of the last `RECENT_MAX`."""
        return len(self._recent)

    @property
    def missed(self) -> int:
        """Of those, the ones that took longer than their bound."""
        return self._missed
