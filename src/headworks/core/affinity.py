"""Which replica has read the beginning of this prompt already? (D4)

Engines keep what they have read of a prompt, by whole blocks from its beginning, and do not read it again for the next prompt
that begins the same. Of several replicas only the one that has it gains by that. So a pool of several remembers where blocks
were last sent: a block is named by all of the prompt up to its end, so the last one that is known tells the longest beginning.

Going where the beginning is must not make a hot spot of it: that replica is preferred only while what it has in hand, with
this request, stays within `LOAD_RATIO_MAX` of the mean of all, as in consistent hashing with bounded loads. Else, and where
nobody has it, the request goes where least is in hand, and its blocks are there from then on.

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
LOAD_RATIO_MAX = 1.25
"""What a replica may have in hand ÷ the mean of all, for a request to be sent there for its beginning."""


class Affinity:
    """Where the beginnings of prompts were sent, of one pool of several replicas."""

    __slots__ = ("_replica_of",)

    def __init__(self) -> None:
        self._replica_of: dict[Hashable, str] = {}
        """By block; the one seen last stands last."""

    def where(self, prefix: Sequence[Hashable]) -> str:
        """The replica that was sent the longest beginning of this prompt; empty: none was."""
        for block in reversed(prefix):
            replica = self._replica_of.get(block)
            if replica is not None:
                return replica
        return ""

    def sent(self, prefix: Sequence[Hashable], replica: str) -> None:
        """A prompt that begins so is read there."""
        known = self._replica_of
        for block in prefix:
            known.pop(block, None)
            known[block] = replica
        while len(known) > BLOCKS_MAX:
            del known[next(iter(known))]


def bears(replica: Replica, kv_tokens: int, in_hand_tokens: int, replicas: int) -> bool:
    """Whether so much more leaves it within the bound. `in_hand_tokens`: of all the replicas, before."""
    return (replica.tokens + kv_tokens) * replicas <= LOAD_RATIO_MAX * (in_hand_tokens + kv_tokens) or not replica.tokens
