"""What of the prompts sent to one engine it has not read yet: that is what the next one stands behind (C3).

It is the sum of those that have not shown a first byte, from the ask on: those that are asked for in one instant stand behind
each other too. How far an engine is with one of them is not told, and what the fit makes of the sum is half of that on average.

A prompt counts with what such prompts come to and not with its bound (`lengths.PromptShares`), less what is found in the cache.
And its tokens are not alike: each is compared with all before it, so at `ATTENTION_TOKENS` of context one takes twice as long
as at the beginning. For the dense models that are served most, of 8 to 70 billion weights, that is where the work of
attention reaches that of the weights: between 30,000 and 50,000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headworks.core.lane import Lane
    from headworks.core.life import Life
    from headworks.core.replica import Replica
    from headworks.core.types import Work

ATTENTION_TOKENS = 40_000


def to_read_tokens(work: Work, lane: Lane) -> int:
    """What the engine will have to read of a prompt, in tokens that take as long as the first of a prompt; 1 at least."""
    whole = float(lane.lengths.prompts.tokens(work))
    cached = whole * lane.cached_ratio
    context = (whole * whole - cached * cached) / (2.0 * ATTENTION_TOKENS * work.sequences)
    return max(1, int(whole - cached + context))


def begin_to_read(life: Life, replica: Replica) -> None:
    """Its prompt stands there from now on."""
    if life.streamed and not life.opening_tokens:
        life.opening_tokens = tokens = to_read_tokens(life.work, life.lane)
        life.ahead_tokens = replica.unread_tokens
        replica.unread_tokens += tokens


def has_read(life: Life, replica: Replica) -> None:
    """Its first byte came, or it ended before."""
    replica.unread_tokens -= life.opening_tokens
    life.opening_tokens = 0


def plain_tokens(tokens: int, own_tokens: int, work: Work, lane: Lane) -> int:
    """What was read, in tokens as prompts have them: as if the others had been as long as its own, of which it knows both."""
    return tokens * lane.lengths.prompts.tokens(work) // max(1, own_tokens)
