"""How long answers become: a rolling quantile that corrects itself (C2, A10).

What is wanted is the length that `quantile` of a tenant's next answers stay within. Of a group of answers the last
`LENGTHS_KEPT` are kept, and its length is their quantile at 1 − m, where m is what may be missing:

    after each answer    m ← m + STEP_RATIO × ((1 − quantile) − missed)        missed: 1 if it passed what was reserved for it

(adaptive conformal inference: Gibbs and Candès, 2021). An answer within its reservation lets m rise a little, one beyond it
takes nineteen times as much away, so over any N answers the share that was missed is off by at most the swing of m over
N × STEP_RATIO, however the lengths drift. m is held within `MISSING_TIMES_MAX` × what may be missing on either side of 0.
Below 0 the longest answer kept is said, and what was missed too often is made up for; and a tenant of which nothing was
missed for long is caught soon when it changes. When answers become shorter, too much is reserved until the longer ones have
left the window.

*Groups.* A tenant's answers by one model are one group, and a group for each size of the prompt, by powers of two of its
bytes. What a service does often shows in how much it is given: by size, public chat traffic needs a quarter less reserved.
Where it does not, a size has only fewer answers to go by. So both are kept, and a size's own length is used while sizes have
lately said `BIN_GAIN_RATIO` of what the tenant's whole group said, or less.

*Not known yet.* Of a tenant of whom fewer than `LENGTHS_MIN` answers have ended there is the longest of these; and where most
have passed what was reserved for them, so that the longest are still running, `REACHED_TIMES` of what one of these has
reached: what took long so far takes long from here on.

Costs: a few comparisons in two sorted windows for each answer, one look-up for each arrival. Bound: `LENGTHS_KEPT` numbers
a tenant and model, and from `BINNED_FROM` answers on `BIN_LENGTHS_KEPT` for each size in use, at most `BINS_MAX` sizes: 13 KB,
and 48 KB at most.
"""

from __future__ import annotations

from headworks.core.stats import Window

LENGTHS_KEPT = 300
LENGTHS_MIN = 20
BIN_LENGTHS_KEPT = 100
BIN_LENGTHS_MIN = 50
"""With fewer, a size has no quantile of its own."""
BINS_MAX = 8
BINNED_FROM = 300
"""Answers after which a tenant's sizes are told apart: who asks seldom would not have enough of one size for long."""
STEP_RATIO = 0.02
MISSING_TIMES_MAX = 2.0
REACHED_TIMES = 4
BIN_GAIN_RATIO = 0.9
COST_KEEP_RATIO = 0.99
"""What two ways of saying came to, the last hundred answers counting most."""
LONGER_MIN = 4
"""With fewer that became so long, nothing is said of those that do."""


class Lengths:
    """One group of answers."""

    __slots__ = ("_added", "_least", "_missing_ratio", "_window", "tokens")

    def __init__(self, kept: int, least: int, quantile: float) -> None:
        self._window = Window(kept)
        self._least = least
        self._missing_ratio = 1.0 - quantile
        self._added = 0
        self.tokens: int | None = None
        """What the next answers stay within; None while too few have ended."""

    def add(self, tokens: int, missed: bool, quantile: float) -> None:
        """An answer came to so many tokens; `missed`: more than was reserved for it."""
        window, aimed = self._window, 1.0 - quantile
        self._added += 1
        if missed:
            missing = self._missing_ratio + STEP_RATIO * (aimed - 1.0)
            self._missing_ratio = max(missing, -MISSING_TIMES_MAX * aimed)
        else:
            missing = self._missing_ratio + STEP_RATIO * aimed
            self._missing_ratio = min(missing, MISSING_TIMES_MAX * aimed)
            if self._added % 2 and len(window) == window.size:
                return  # of a full window every second is enough of those that say nothing new
        window.add(tokens)
        if len(window) >= self._least:
            self.tokens = int(window.quantile(1.0 - self._missing_ratio))

    def longest(self) -> int:
        """The longest that is kept; 0 where there is none."""
        return int(self._window.quantile(1.0)) if len(self._window) else 0

    def half_of_longer(self, tokens: int) -> int | None:
        """Of those that became longer than this, what half stay within; None where they are too few."""
        return None if self._window.count_above(tokens) < LONGER_MIN else int(self._window.median_above(tokens))


class OutputLengths:
    """What the answers of one tenant by one model came to: all of them, and by the size of their prompts."""

    __slots__ = (
        "_all",
        "_bins",
        "_by_size",
        "_cost_all_tokens",
        "_cost_bins_tokens",
        "_reached",
        "answers",
        "missed",
        "passed",
    )

    def __init__(self, quantile: float) -> None:
        self._all = Lengths(LENGTHS_KEPT, LENGTHS_MIN, quantile)
        self._bins: dict[int, Lengths] = {}
        self._by_size = False
        self._cost_all_tokens = self._cost_bins_tokens = 0.0
        self._reached = 0
        self.answers = 0
        """That ended."""
        self.missed = 0
        """Of these, the ones that became longer than was reserved for them."""
        self.passed = 0
        """Answers that came to the end of what was reserved for them, those that still run among them."""

    def expected(self, prompt_bytes: int) -> int | None:
        """What an answer to such a prompt stays within; None while too few have ended."""
        if self._by_size:
            binned = self._bins.get(bin_of(prompt_bytes))
            if binned is not None and binned.tokens is not None:
                return binned.tokens
        return self._all.tokens

    def guess(self) -> int:
        """While too few have ended: what they are at least to be expected to come to; 0 where nothing is known."""
        longest = self._all.longest()
        return max(longest, REACHED_TIMES * self._reached) if 2 * self.passed > self.answers else longest

    def reached(self, tokens: int, first: bool) -> None:
        """A running answer has come to so many tokens, and asks for more; `first`: for the first time."""
        self.passed += first
        if self._all.tokens is None and tokens > self._reached:
            self._reached = tokens

    def half_of_longer(self, tokens: int) -> int | None:
        """Of those that became longer than this, what half stay within; None where they are too few."""
        return self._all.half_of_longer(tokens)

    def add(self, tokens: int, prompt_bytes: int, missed: bool, quantile: float) -> None:
        """An answer ended; `missed`: it became longer than what was reserved for it."""
        self.answers += 1
        self.missed += missed
        if tokens >= self._reached:
            self._reached = 0  # it was this one
        if self.answers >= BINNED_FROM:
            self._add_to_bin(tokens, bin_of(prompt_bytes), quantile)
            if self._by_size and self._all.tokens is not None:
                missed = tokens > self._all.tokens  # by what it would have said: it must be right when it is used again
        self._all.add(tokens, missed, quantile)

    def _add_to_bin(self, tokens: int, size: int, quantile: float) -> None:
        """The same among answers to prompts of that size, by what that says; and which of the two ways says less."""
        binned, whole_tokens = self._bins.get(size), self._all.tokens
        if binned is None:
            binned = self._bins[size] = Lengths(BIN_LENGTHS_KEPT, BIN_LENGTHS_MIN, quantile)
        if binned.tokens is not None and whole_tokens is not None:
            self._cost_bins_tokens += (1.0 - COST_KEEP_RATIO) * (binned.tokens - self._cost_bins_tokens)
            self._cost_all_tokens += (1.0 - COST_KEEP_RATIO) * (whole_tokens - self._cost_all_tokens)
            self._by_size = self._cost_bins_tokens < BIN_GAIN_RATIO * self._cost_all_tokens
        binned.add(tokens, binned.tokens is not None and tokens > binned.tokens, quantile)


def bin_of(prompt_bytes: int) -> int:
    """The size of a prompt by powers of two: below 512 bytes, below 1 KiB … below 32 KiB, and beyond."""
    size = prompt_bytes.bit_length() - 9
    return 0 if size < 0 else min(size, BINS_MAX - 1)
