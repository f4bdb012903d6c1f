"""How long the answers of one tenant are, and how much more is to be expected of one that is so long already.

A reservation has to hold for one answer, so it is a quantile (`core/estimate.py`). How much many answers take together is a
sum, and the expectation of a sum is the sum of expectations: here it is the mean that counts. What is expected more of an
answer that has `made` tokens is the mean of those that became longer, less `made`:

    more(made) = E[length | length > made] − made

And of those that became longer, some are about to end and some are not. The share of them that go on beyond `more` tokens is

    goes_on(made, more) = P[length > made + more | length > made]

Lengths are counted in buckets a quarter of an octave wide, which is as exact as such a forecast can be, so that a question
costs little more than a look-up. All counts are halved when `KEPT` have come, so old ones fade. An answer longer than any that
was seen is expected to become twice as long: that is what long tails do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from headworks.core.peak import AHEAD_TOKENS
from headworks.core.prompt_sizes import UNSURE
from headworks.core.stats import nearest
from headworks.core.types import Usage, Work

PARTS = 4
"""Buckets to an octave."""
BUCKETS = 4 * 20
KEPT = 600
TENANTS_MAX = 10_000
NEWS_PARTS = 16
SHARES_KEEP_RATIO = 0.99
KNOWN = 20
"""Answers that have to be seen before anything is said."""


class PromptShares:
    """How much of what is charged for prompts they come to on average, by the way they were sized.

    What is charged for a prompt nobody counted is a bound: on the public traces three to five times what it is, while its
    tenant is not known. That is right for a limit and wrong for a sum of expectations, in which it would be most of what is
    said to be held. The last hundred or so count, by their tokens.
    """

    __slots__ = ("_shares",)

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}
        """By basis (`Work.basis`), of which there are a handful."""

    def add(self, work: Work, prompt_tokens: int) -> None:
        """An engine has counted a prompt."""
        share = self._shares.get(work.basis)
        if share is None:
            share = self._shares[work.basis] = _Share()
        share.add(work.prefill_tokens, prompt_tokens)

    def tokens(self, work: Work) -> int:
        """What the prompts of such work are expected to come to; what is charged, while too few are known."""
        share = self._shares.get(work.basis)
        if share is None or share.seen < KNOWN:
            return work.prefill_tokens
        return nearest(work.prefill_tokens * share.came / share.charged)


class _Share:
    """Of one basis."""

    __slots__ = ("came", "charged", "seen")

    def __init__(self) -> None:
        self.seen = 0
        self.charged = self.came = 0.0

    def add(self, charged_tokens: int, came_tokens: int) -> None:
        self.seen += 1
        self.charged = SHARES_KEEP_RATIO * self.charged + charged_tokens
        self.came = SHARES_KEEP_RATIO * self.came + min(came_tokens, charged_tokens)


class Lengths:
    """Of one tenant in one pool; of all its tenants together as long as too few of its own are known."""

    __slots__ = ("_all", "_chances", "_counts", "_means", "_news", "_tails", "_total", "prompts")

    def __init__(self, all_tenants: Lengths | None = None) -> None:
        self._all = all_tenants
        self.prompts: PromptShares = PromptShares() if all_tenants is None else all_tenants.prompts
        """Of all tenants together: who is not known is like those that were not."""
        self._counts = [0.0] * BUCKETS
        self._total = 0.0
        self._means: list[float] | None = None
        """By bucket: the mean length of those above its middle; 0.0 where there were none. None: to be made anew."""
        self._tails: list[float] = []
        """By bucket: how many were in it or above; empty when it has to be made anew."""
        self._chances: dict[int, Sequence[float]] = {}
        """By bucket: see `chances`."""
        self._news = 0
        """Lengths that came since these were begun."""

    def saw(self, usage: Usage, work: Work) -> None:
        """An answer has ended by itself."""
        self.add(usage.output_tokens // work.sequences)
        if (
            usage.exact and work.sequences == 1 and work.basis in UNSURE
        ):  # of several samples engines make up the sum differently
            self.prompts.add(work, usage.prompt_tokens)

    def add(self, tokens: int) -> None:
        """An answer has come to so many tokens."""
        if self._total >= KEPT:
            self._counts = [count / 2 for count in self._counts]
            self._total /= 2
        self._counts[bucket_of(tokens)] += 1.0
        self._total += 1.0
        self._means = None
        if self._tails:
            self._tails = []
        self._news += 1
        if self._all is not None:
            self._all.add(tokens)

    def more_tokens(self, made_tokens: int) -> int | None:
        """What is to be expected beyond `made_tokens`; None while too few have ended."""
        if self._total < KNOWN:
            return None if self._all is None else self._all.more_tokens(made_tokens)
        mean_tokens = (self._means or self._learnt())[bucket_of(made_tokens)]
        return max(1, (int(mean_tokens) if mean_tokens else 2 * made_tokens) - made_tokens)

    def goes_on(self, made_tokens: int, ahead_tokens: Sequence[int]) -> list[float] | None:
        """Of those that became longer than `made_tokens`, the shares that became longer by each of these; None as above."""
        if self._total < KNOWN:
            return None if self._all is None else self._all.goes_on(made_tokens, ahead_tokens)
        longer = self._longer(made_tokens)
        if not longer:
            return [1.0 if more < made_tokens else 0.0 for more in ahead_tokens]
        return [self._longer(made_tokens + more) / longer for more in ahead_tokens]

    def chances(self, made_tokens: int) -> Sequence[float] | None:
        """`goes_on` for each of `AHEAD_TOKENS`, of one about so long: kept until a sixteenth of what is known is new."""
        if self._total < KNOWN:
            return None if self._all is None else self._all.chances(made_tokens)
        if self._news * NEWS_PARTS > self._total:
            self._chances.clear()
            self._news = 0
        bucket = bucket_of(made_tokens)
        found = self._chances.get(bucket)
        if found is None:
            middle = (EDGES[bucket] + EDGES[bucket + 1]) // 2
            found = self._chances[bucket] = (1.0, *(self.goes_on(middle, AHEAD_TOKENS[:-1]) or ()))
        return found

    def _longer(self, tokens: int) -> float:
        """How many became longer, those of one bucket taken as spread over it evenly."""
        if not self._tails:
            self._tails = list(accumulate(reversed(self._counts), initial=0.0))[::-1]
        bucket = bucket_of(tokens)
        low, high, above = EDGES[bucket], EDGES[bucket + 1], self._tails[bucket + 1]
        return above + (self._tails[bucket] - above) * max(0, high - 1 - tokens) / (high - low)

    def _learnt(self) -> list[float]:
        means = [0.0] * BUCKETS
        count = tokens = 0.0
        for bucket in range(BUCKETS - 1, -1, -1):
            low, high, half = EDGES[bucket], EDGES[bucket + 1] - 1, self._counts[bucket] / 2
            count, tokens = count + half, tokens + half * (low + 3 * high) / 4
            means[bucket] = tokens / count if count else 0.0
            count, tokens = count + half, tokens + half * (3 * low + high) / 4
        self._means = means
        return means


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


def bucket_of(tokens: int) -> int:
    """The bucket of a length. Those below four have one each; an octave has four from there on."""
    if tokens < PARTS:
        return max(0, tokens)
    octave = tokens.bit_length() - 2
    return min(BUCKETS - 1, PARTS * octave + (tokens >> (octave - 1)) % PARTS)


def _edge(bucket: int) -> int:
    octave, part = divmod(bucket, PARTS)
    return bucket if octave == 0 else (PARTS + part) << (octave - 1)


EDGES = [_edge(bucket) for bucket in range(BUCKETS + 1)]
"""The least length of each bucket, and one beyond."""
