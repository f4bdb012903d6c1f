"""How long the answers of one tenant are, and how much more is to be expected of one that is so long already.

A reservation has to hold for one answer, so it is a quantile (`core/estimate.py`). How much many answers take together is a
sum, and the expectation of a sum is the sum of expectations: here it is the mean that counts. What is expected more of an
answer that has `made` tokens is the mean of those that became longer, less `made`:

    more(made) = E[length | length > made] − made

Lengths are counted in buckets a quarter of an octave wide, which is as exact as such a forecast can be, so that a question
costs nothing but a look-up. All counts are halved when `KEPT` have come, so old ones fade. An answer longer than any that
was seen is expected to become twice as long: that is what long tails do.
"""

from __future__ import annotations

PARTS = 4
"""Buckets to an octave."""
BUCKETS = 4 * 20
KEPT = 600
TENANTS_MAX = 10_000
KNOWN = 20
"""Answers that have to be seen before anything is said."""


class Lengths:
    """Of one tenant in one pool."""

    __slots__ = ("_counts", "_mores", "_total")

    def __init__(self) -> None:
        self._counts = [0.0] * BUCKETS
        self._total = 0.0
        self._mores: list[tuple[float, float]] | None = None
        """By bucket: how many were in it or above, and their lengths added up. None: to be added up again."""

    def add(self, tokens: int) -> None:
        """An answer has come to so many tokens."""
        if self._total >= KEPT:
            self._counts = [count / 2 for count in self._counts]
            self._total /= 2
        self._counts[_bucket(tokens)] += 1.0
        self._total += 1.0
        self._mores = None

    def more_tokens(self, made_tokens: int) -> int | None:
        """What is to be expected beyond `made_tokens`; None while too few have ended."""
        if self._total < KNOWN:
            return None
        tails = self._mores or self._tails()
        bucket = _bucket(made_tokens)
        count, tokens = tails[bucket + 1]
        middle = _middle(bucket)
        if middle > made_tokens:
            count, tokens = count + self._counts[bucket], tokens + self._counts[bucket] * middle
        if count < 1e-6:
            return max(1, made_tokens)
        return max(1, int(tokens / count) - made_tokens)

    def _tails(self) -> list[tuple[float, float]]:
        tails = [(0.0, 0.0)] * (BUCKETS + 1)
        count = tokens = 0.0
        for bucket in range(BUCKETS - 1, -1, -1):
            count += self._counts[bucket]
            tokens += self._counts[bucket] * _middle(bucket)
            tails[bucket] = (count, tokens)
        self._mores = tails
        return tails


class TenantLengths:
    """Of all tenants of one pool; those beyond `TENANTS_MAX` share one."""

    __slots__ = ("_rest", "_tenants")

    def __init__(self) -> None:
        self._tenants: dict[str, Lengths] = {}
        self._rest = Lengths()

    def of(self, tenant: str) -> Lengths:
        """One of them."""
        known = self._tenants.get(tenant)
        if known is None and len(self._tenants) < TENANTS_MAX:
            known = self._tenants[tenant] = Lengths()
        return known or self._rest


def _bucket(tokens: int) -> int:
    """Those below four have one each; an octave has four from there on."""
    if tokens < PARTS:
        return max(0, tokens)
    octave = tokens.bit_length() - 2
    return min(BUCKETS - 1, PARTS * octave + (tokens >> (octave - 1)) % PARTS)


def _edge(bucket: int) -> int:
    octave, part = divmod(bucket, PARTS)
    return bucket if octave == 0 else (PARTS + part) << (octave - 1)


def _middle(bucket: int) -> float:
    return (_edge(bucket) + _edge(bucket + 1) - 1) / 2
