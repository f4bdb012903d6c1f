"""The future peak: how much memory running answers will take at once, if each goes on until it ends (D4).

An answer takes a token more with every step of its engine and gives all of it back at its end. So memory in use rises until
somebody ends, and its peaks are the instants just before an end. With what each holds now and how many tokens it will still
write, let those who write longest come first; at the end of the k-th all before it hold what they hold now and as many
tokens more as the k-th still writes:

    peak = max over k of  Σ_{j ≤ k} held_j  +  remaining_k × Σ_{j ≤ k} sequences_j

This is the estimate of "Past-Future" scheduling (arXiv 2507.10150). It is exact where lengths are known, and where every
sequence makes a token in each step. Sums of reservations are not: they hold as if all were longest at the same instant.

Where lengths are not known but only how they are spread, taking each as long as the mean of its like is too much: all of
them would end together. In truth most end before that and give their memory back. An `Outlook` takes, for each of
`AHEAD_TOKENS` further steps t, what is then held as a sum of independent chances s of still running, of each sequence:

    expected(t) = Σ s · (held + t)      variance(t) = Σ s · (1 − s) · (held + t)²
    peak = max over t of  min(expected(t) + SPREADS · √variance(t), Σ (held + t))

Between two of those steps those count that run at the first, with the tokens they have at the second: rather too much.

What runs at other gateways is known from profiles: how many sequences have about so much to write, and what they hold, in
`BUCKETS` powers of two. Profiles add up, and one counts every sequence at the upper edge of its bucket: never too little,
as long as no answer may write more than 2 ** 17.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import sqrt
from typing import NamedTuple

Group = tuple[int, int, int]
"""(tokens each still writes, sequences, tokens they hold together)."""

AHEAD_TOKENS = (0, *(int(2 ** (half / 2)) for half in range(10, 35)))
"""From 32 on in halves of an octave."""
SPREADS = 2.0
"""So many standard deviations of what will be held are kept free."""
CERTAIN = (1.0,) * len(AHEAD_TOKENS)

BUCKETS = 12
LOWEST_BITS = 6
"""The first bucket is of up to 2 ** 6 tokens, the last of all above 2 ** 16."""
Profile = tuple[int, ...]
"""Sequences by bucket, then tokens held by bucket."""


def peak_tokens(groups: Iterable[Group]) -> int:
    """The most that will be held at once; 0 of nothing."""
    held_tokens = sequences = peak = 0
    for remaining_tokens, count, tokens in sorted(groups, reverse=True):
        held_tokens += tokens
        sequences += count
        then_tokens = held_tokens + remaining_tokens * sequences
        if then_tokens > peak:
            peak = then_tokens
    return peak


class Part(NamedTuple):
    """Some alike in an outlook, as they were added: what takes them out again."""

    runs: Sequence[float]
    sequences: int
    base_tokens: float
    """What they hold together, less what all of the outlook had made each when they were added."""
    squares_tokens: float


class Outlook:
    """What will be held at each of `AHEAD_TOKENS`, as far as chance tells.

    Everybody in it makes a token in each step. So nothing has to be done about those that run on: with h = b + τ, where τ is
    what each has made since the beginning, both sums over all of them are polynomials of τ + t, of which the coefficients
    stay what they are. Who comes, goes, or has other chances now, changes them at each of the steps ahead, and nobody else.
    """

    __slots__ = ("_base", "_bases", "_count", "_counts", "_squares", "_unsure_bases", "_unsure_counts", "tokens")

    def __init__(self) -> None:
        steps = len(AHEAD_TOKENS)
        self.tokens = 0.0
        """What each of them has made since the beginning."""
        self._count = self._base = 0.0
        """All of them: Σ 1, and Σ b."""
        self._counts, self._bases = [0.0] * steps, [0.0] * steps
        """By step ahead: Σ s, and Σ s · b."""
        self._unsure_counts, self._unsure_bases, self._squares = [0.0] * steps, [0.0] * steps, [0.0] * steps
        """Σ s · (1 − s), times 1, b and b²."""

    def add(self, runs: Sequence[float], count: int, held: float, held_squares: float) -> Part:
        """So many alike, which hold so much together. `runs`: by place, the chance of each to run on until then."""
        made = self.tokens
        part = Part(runs, count, held - made * count, held_squares - made * (2.0 * held - made * count))
        self._change(part, 1.0)
        return part

    def remove(self, part: Part) -> None:
        """They are gone, or others now."""
        self._change(part, -1.0)

    def _change(self, part: Part, one: float) -> None:
        counts, bases = self._counts, self._bases
        count, base, squares = one * part.sequences, one * part.base_tokens, one * part.squares_tokens
        self._count += count
        self._base += base
        for place, ratio in enumerate(part.runs):
            counts[place] += ratio * count
            bases[place] += ratio * base
            if ratio < 1.0:
                unsure = ratio * (1.0 - ratio)
                self._unsure_counts[place] += unsure * count
                self._unsure_bases[place] += unsure * base
                self._squares[place] += unsure * squares

    def peak_tokens(self) -> int:
        """The most that will be held at once, but for chances that are small."""
        return self.peak_with((), 0, 0)

    def peak_with(self, runs: Sequence[float], count: int, held: int) -> int:
        """The same with these."""
        most, joining = 0.0, len(runs)
        for place, tokens in enumerate(AHEAD_TOKENS):
            ahead = self.tokens + tokens
            mean = self._bases[place] + ahead * self._counts[place]
            variance = self._squares[place] + ahead * (2.0 * self._unsure_bases[place] + ahead * self._unsure_counts[place])
            if place < joining:
                ratio, then = runs[place], held + tokens * count
                mean += ratio * then
                variance += ratio * (1.0 - ratio) * then * then / count
            peak = mean
            if variance > 0.0:  # and not more than if all run on: of few that hold much that is less than two spreads
                peak = min(mean + SPREADS * sqrt(variance), self._base + self._count * ahead + held + tokens * count)
            if peak > most:
                most = peak
        return int(most)


def certainly(remaining_tokens: int) -> Sequence[float]:
    """Chances of what is known to run on for so long."""
    return CERTAIN[: bisect_left(AHEAD_TOKENS, remaining_tokens) + 1]


def profile_of(groups: Iterable[Group]) -> Profile:
    """The same groups, as others are told of them."""
    counts, tokens = [0] * BUCKETS, [0] * BUCKETS
    for remaining_tokens, count, held_tokens in groups:
        bucket = max(0, min(BUCKETS - 1, (remaining_tokens - 1).bit_length() - LOWEST_BITS)) if remaining_tokens > 1 else 0
        counts[bucket] += count
        tokens[bucket] += held_tokens
    return (*counts, *tokens)


def groups_of(profile: Sequence[int]) -> list[Group]:
    """What a profile says, each bucket as one group at its upper edge."""
    return [
        (1 << (LOWEST_BITS + bucket), profile[bucket], profile[BUCKETS + bucket])
        for bucket in range(len(profile) // 2)
        if profile[bucket]
    ]


def added(one: Sequence[int], other: Sequence[int]) -> Profile:
    """Two profiles together."""
    return tuple(here + there for here, there in zip(one, other, strict=True))
