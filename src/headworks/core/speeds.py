"""How much slower than its like is each engine of a pool? (D4: a request goes where it is complete first)

What lies before the end of a request is counted in prompt tokens and requests in hand (`core/affinity.py`), which compares
engines that are equally quick. Not all are: another card, a neighbour, a fault. So what lies before its end at a replica counts
as many times as answers have taken longer there than they usually do in this pool:

    usual   the time for a token beside so many others, fitted over the answers of all replicas
    times   what those of this replica took over that, on average, the last ones weighing most

One answer says little, as its context and its company vary by more than engines do, and many say much. `SEEN_MIN` are waited
for, and up to `ALIKE_RATIO` replicas are alike: no difference that is not there may draw work to one of them.
"""

from __future__ import annotations

from headworks.core.stats import FittedLine

ALIKE_RATIO = 1.3
SEEN_MIN = 20
WEIGHT = 0.05
"""Of the last answer: a replica that has become four times slower is known for it after three, and well again after fifty."""
TIMES_MAX = 4.0
"""More is not told apart, of an answer or of a replica: one answer is no news, and work is to be seen there now and then."""
SHORT_TOKENS = 8
"""Answers of fewer tokens say more of the clock than of the engine."""


class Usual:
    """How long a token takes in one pool of several replicas."""

    __slots__ = ("_count", "_line")

    def __init__(self) -> None:
        self._line = FittedLine(keep_ratio=0.998)
        self._count = 0

    def times(self, batch: float, tokens: int, took_s: float) -> float:
        """An answer of so many further tokens beside so many others: how many times as long as usual it took."""
        each_s = took_s / tokens
        usual_s = self._line.at(batch) if self._count >= SEEN_MIN else each_s
        self._line.add(batch, each_s)
        self._count += 1
        return min(TIMES_MAX, each_s / usual_s) if usual_s > 0.0 else 1.0


class Speed:
    """Of one replica, among its like."""

    __slots__ = ("_count", "_mean", "times")

    def __init__(self) -> None:
        self._mean = 1.0
        self._count = 0
        self.times = 1.0
        """How many times as long as usual it takes."""

    def answered(self, usual: Usual, batch: float, tokens: int, took_s: float) -> None:
        """An answer is whole."""
        if tokens < SHORT_TOKENS:
            return
        self._mean = mean = self._mean + (usual.times(batch, tokens, took_s) - self._mean) * WEIGHT
        self._count += 1
        alike = self._count < SEEN_MIN or 1.0 / ALIKE_RATIO <= mean <= ALIKE_RATIO
        self.times = 1.0 if alike else mean

    def restarted(self) -> None:
        """Another process answers there."""
        self._mean, self._count, self.times = 1.0, 0, 1.0
