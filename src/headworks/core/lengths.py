"""How long the answers of one tenant are, and how much more is to be expected of one that is so long already.

A reservation has to hold for one answer, so it is a high quantile (`core/estimate.py`). How much many answers take together
is another question: so many of them as usual will end soon, and a few go on. Nobody knows which, but each can be given a
*rank* from 0 to 1, evenly spread over all, and be expected to become as long as that part of its like did, among those that
became longer than it is:

    more(made, rank) = quantile(rank) of { length : length > made } − made

Then of many at any time as many are still there as usually are. Taking the mean for each would keep all of them until it, and
of lengths with a long tail most are much shorter. (It is what "Past-Future" scheduling draws at random.)

Lengths are counted in buckets a quarter of an octave wide, which is as exact as such a forecast can be, so that a question
costs a bisection. All counts are halved when `KEPT` have come, so old ones fade. An answer longer than any that was seen is
expected to become twice as long: that is what long tails do.
"""

from __future__ import annotations

from bisect import bisect_left

PARTS = 4
"""Buckets to an octave."""
BUCKETS = 4 * 20
KEPT = 600
TENANTS_MAX = 10_000
KNOWN = 20
"""Answers that have to be seen before anything is said."""


class Lengths:
    """Of one tenant in one pool; of all its tenants together as long as too few of its own are known."""

    __slots__ = ("_all", "_counts", "_longer", "_total")

    def __init__(self, all_tenants: Lengths | None = None) -> None:
        self._all = all_tenants
        self._counts = [0.0] * BUCKETS
        self._total = 0.0
        self._longer: list[float] | None = None
        """By bucket, and beyond the last: how many were in it or above, below zero so that they ascend. None: to be counted."""

    def add(self, tokens: int) -> None:
        """An answer has come to so many tokens."""
        if self._total >= KEPT:
            self._counts = [count / 2 for count in self._counts]
            self._total /= 2
        self._counts[_bucket(tokens)] += 1.0
        self._total += 1.0
        self._longer = None
        if self._all is not None:
            self._all.add(tokens)

    def more_tokens(self, made_tokens: int, rank: float) -> int | None:
        """What is to be expected beyond `made_tokens` of one that stands at `rank`; None while too few have ended."""
        if self._total < KNOWN:
            return None if self._all is None else self._all.more_tokens(made_tokens, rank)
        longer = self._longer or self._counted()
        bucket = _bucket(made_tokens)
        low, high = _edge(bucket), _edge(bucket + 1)
        left = self._counts[bucket] * (high - max(low, made_tokens)) / (high - low) - longer[bucket + 1]
        if left < 1e-6:
            return max(1, made_tokens)
        beyond = left * (1.0 - rank)
        at = max(bucket, bisect_left(longer, -beyond, bucket + 1) - 1)
        low, high, count = _edge(at), _edge(at + 1), self._counts[at]
        length = high - (beyond + longer[at + 1]) / count * (high - low) if count else high
        return max(1, int(length) - made_tokens)

    def _counted(self) -> list[float]:
        longer = [0.0] * (BUCKETS + 1)
        for bucket in range(BUCKETS - 1, -1, -1):
            longer[bucket] = longer[bucket + 1] - self._counts[bucket]
        self._longer = longer
        return longer


class TenantLengths:
    """Of all tenants of one pool; those beyond `TENANTS_MAX` share what all have."""

    __slots__ = ("_all", "_tenants")

    def __init__(self) -> None:
        self._tenants: dict[str, Lengths] = {}
        self._all = Lengths()

    def of(self, tenant: str) -> Lengths:
        """One of them."""
        known = self._tenants.get(tenant)
        if known is None and len(self._tenants) < TENANTS_MAX:
            known = self._tenants[tenant] = Lengths(self._all)
        return known or self._all


def _bucket(tokens: int) -> int:
    """Those below four have one each; an octave has four from there on."""
    if tokens < PARTS:
        return max(0, tokens)
    octave = tokens.bit_length() - 2
    return min(BUCKETS - 1, PARTS * octave + (tokens >> (octave - 1)) % PARTS)


def _edge(bucket: int) -> int:
    octave, part = divmod(bucket, PARTS)
    return bucket if octave == 0 else (PARTS + part) << (octave - 1)
