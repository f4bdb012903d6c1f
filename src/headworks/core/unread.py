"""What of the prompts sent to one engine has not been read yet: that is what the next one stands behind (C3).

Neither how far an engine is with a prompt nor in what it counts them is told by it, so both are reckoned:

    unread = Σ of those that have not shown a first byte - rate · (now - since)

*since* is when the last of them showed its first byte, or when the first of them was sent to an engine that had none; *rate*
is what was read in such gaps ÷ their time, over the last hundred or so.

A prompt counts with what such prompts come to and not with its bound (`lengths.PromptShares`), less what is found in the cache.
And its tokens are not alike: each is compared with all before it, so at `ATTENTION_TOKENS` of context one takes twice as long
as at the beginning. For the dense models that are served most, of 8 to 70 billion weights, that is where the work of
attention reaches that of the weights: between 30,000 and 50,000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headworks.core.lane import Lane
    from headworks.core.types import Work

ATTENTION_TOKENS = 40_000
KEEP_RATIO = 0.98
"""The weight of a gap against the next one."""


def to_read_tokens(work: Work, lane: Lane) -> int:
    """What the engine will have to read of a prompt, in tokens that take as long as the first of a prompt; 1 at least."""
    whole = float(lane.lengths.prompts.tokens(work))
    cached = whole * lane.cached_ratio
    context = (whole * whole - cached * cached) / (2.0 * ATTENTION_TOKENS * work.sequences)
    return max(1, int(whole - cached + context))


def plain_tokens(tokens: int, own_tokens: int, work: Work, lane: Lane) -> int:
    """What was read, in tokens as prompts have them: as if the others had been as long as its own, of which it knows both."""
    return tokens * lane.lengths.prompts.tokens(work) // max(1, own_tokens)


class Unread:
    """Of one engine, for this gateway."""

    __slots__ = ("_gap_s", "_gap_tokens", "_since_s", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        """Of all that have not shown a first byte, whatever of them has been read."""
        self._since_s = 0.0
        self._gap_s = self._gap_tokens = 0.0

    def sent(self, tokens: int, now_s: float) -> int:
        """A prompt goes there. Returns what stands before it."""
        before = self.at(now_s)
        if not self.tokens:
            self._since_s = now_s
        self.tokens += tokens
        return before

    def ended(self, tokens: int, read_s: float | None) -> None:
        """Its first byte came, at this time; or it ended before."""
        self.tokens -= tokens
        if read_s is not None:
            self._gap_tokens = self._gap_tokens * KEEP_RATIO + tokens
            self._gap_s = self._gap_s * KEEP_RATIO + max(0.0, read_s - self._since_s)
            self._since_s = read_s

    def at(self, now_s: float) -> int:
        """What is left of them now."""
        if not self.tokens or self._gap_s <= 0.0:
            return self.tokens
        return max(0, self.tokens - int(self._gap_tokens / self._gap_s * (now_s - self._since_s)))
