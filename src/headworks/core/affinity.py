"""Which replica has read the beginning of this prompt already, and is it worth going there? (D4)

Engines keep what they have read of a prompt, by whole blocks from its beginning, and do not read it again for the next prompt
that begins the same. Of several replicas only the one that has it gains by that. So a pool of several remembers where blocks
were last sent: a block is named by all of the prompt up to its end, so the last one that is known tells the longest beginning.

Where a prompt with a beginning is complete first is compared in prompt tokens, since reading is what differs:

    times · (its own prompt + UNREAD_RATIO · prompts being read there - what of its own need not be read there
             + BESIDE_TOKENS · (itself and the requests in hand there))

with how many times as long as usual that replica takes (`core/speeds.py`), which is 1 among equals.

A hot beginning must not make a hot spot: what need not be read counts only at a replica with at most `LOAD_RATIO_MAX` times the
mean number of requests, and `LOAD_REQUESTS_FREE` more. What is sent elsewhere for that is known there from then on.

Which blocks an engine has dropped meanwhile nobody here knows. The ones not seen for the longest are forgotten here too, and
a wrong guess costs a prompt read once more.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headworks.core.replica import Replica

BLOCKS_MAX = 65_536
"""Blocks of one pool that are remembered."""
BESIDE_TOKENS = 128
"""A request beside it makes each of a few hundred steps longer, all in all by about what so many prompt tokens take to read."""
UNREAD_RATIO = 0.3
"""Of prompts that are being read half is still unread on average; what is unread is counted in tokens as they are at a prompt's
beginning, of which a long one has some half as many again."""
LOAD_RATIO_MAX = 1.25
LOAD_REQUESTS_FREE = 4


class Affinity:
    """Where the beginnings of prompts were sent, of one pool of several replicas."""

    __slots__ = ("_replica_of",)

    def __init__(self) -> None:
        self._replica_of: dict[Hashable, str] = {}
        """By block; the one seen last stands last."""

    def where(self, prefix: Sequence[Hashable]) -> tuple[str, float]:
        """The replica that was sent the longest beginning of this prompt, and how much of it that is; empty: none was."""
        for count in range(len(prefix), 0, -1):
            replica = self._replica_of.get(prefix[count - 1])
            if replica is not None:
                return replica, count / len(prefix)
        return "", 0.0

    def sent(self, prefix: Sequence[Hashable], replica: str) -> None:
        """A prompt that begins so is read there."""
        known = self._replica_of
        for block in prefix:
            known.pop(block, None)
            known[block] = replica
        while len(known) > BLOCKS_MAX:
            del known[next(iter(known))]


def cost_tokens(replica: Replica, prompt_tokens: int, saved_tokens: float, requests_mean: float) -> float:
    """What lies before the end of a request there, in prompt tokens. `saved_tokens`: what of its own has been read there."""
    if replica.requests > LOAD_RATIO_MAX * requests_mean + LOAD_REQUESTS_FREE:
        saved_tokens = 0.0
    to_read = prompt_tokens + UNREAD_RATIO * replica.unread_tokens - saved_tokens
    return replica.speed.times * (to_read + BESIDE_TOKENS * (1 + replica.requests))
