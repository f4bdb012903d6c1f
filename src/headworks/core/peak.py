"""The future peak: how much memory running answers will take at once, if each goes on until it ends (D4).

An answer takes a token more with every step of its engine and gives all of it back at its end. So memory in use rises until
somebody ends, and its peaks are the instants just before an end. With what each holds now and how many tokens it will still
write, let those who write longest come first; at the end of the k-th all before it hold what they hold now and as many
tokens more as the k-th still writes:

    peak = max over k of  Σ_{j ≤ k} held_j  +  remaining_k × Σ_{j ≤ k} sequences_j

This is the estimate of "Past-Future" scheduling (arXiv 2507.10150). It is exact where lengths are known, and where every
sequence makes a token in each step. Sums of reservations are not: they hold as if all were longest at the same instant.

What runs at other gateways is known from profiles: how many sequences have about so much to write, and what they hold, in
`BUCKETS` powers of two. Profiles add up, and one counts every sequence at the upper edge of its bucket: never too little,
as long as no answer may write more than 2 ** 17.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Group = tuple[int, int, int]
"""(tokens each still writes, sequences, tokens they hold together)."""

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
