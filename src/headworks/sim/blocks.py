"""The paged KV memory of an engine model: blocks, a prefix cache, eviction.

Blocks are counted, not listed: a block that nobody else can share is one more in `used`. A block whose content has a
name (`prefix_blocks` of a submit) can be shared and outlives its users: when the last one leaves it stays, idle, and
counts as free until it is evicted, least recently left first. So

    used (private + referenced named blocks) + idle (named, unreferenced) ≤ total,

and allocating evicts idle blocks only when nothing is empty. Real engines keep one queue of free blocks and may evict
a named block while a freed nameless one stands behind it; here the nameless one goes first.

One block of the engine's memory is never handed out (the real engine keeps it as a null block): a pool of 20 blocks
holds 19, and the usage gauge divides by 19.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence


class BlockPool:
    """Who holds how many blocks is the sequences' business; this counts and remembers names."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        assert blocks >= 2, "one block is reserved, so a pool needs at least two"
        self.total = blocks - 1
        self.block_tokens = block_tokens
        self.used = 0
        self._users: dict[Hashable, int] = {}
        self._idle: OrderedDict[Hashable, None] = OrderedDict()

    def free(self) -> int:
        """Blocks that can be had now, the idle named ones included."""
        return self.total - self.used

    def blocks_for(self, tokens: int) -> int:
        """Whole blocks that `tokens` tokens of one sequence need."""
        return -(-tokens // self.block_tokens)

    def cached(self, names: Sequence[Hashable], limit: int) -> int:
        """How many of the first `limit` named blocks are here, counted from the front without a gap."""
        count = 0
        for name in names[:limit]:
            if name not in self._users:
                break
            count += 1
        return count

    def idle_among(self, names: Sequence[Hashable]) -> int:
        """How many of these cached blocks nobody uses: taking them lowers `free` as a new block does."""
        return sum(name in self._idle for name in names)

    def share(self, names: Sequence[Hashable]) -> None:
        """Become a user of blocks that `cached` found."""
        for name in names:
            users = self._users[name]
            if users == 0:
                del self._idle[name]
                self.used += 1
            self._users[name] = users + 1

    def take(self, count: int) -> None:
        """Hand out `count` nameless blocks, evicting idle ones when nothing is empty. The caller has checked `free`."""
        self.used += count
        assert self.used <= self.total, "more blocks handed out than there are"
        while self.used + len(self._idle) > self.total:
            name, _ = self._idle.popitem(last=False)
            del self._users[name]

    def publish(self, name: Hashable) -> bool:
        """Give a block one has taken its name, so that others can share it. False: that content is here already."""
        if name in self._users:
            return False
        self._users[name] = 1
        return True

    def leave(self, private: int, names: Sequence[Hashable]) -> None:
        """Give everything back. The deepest named block becomes the first to be evicted: without its front it is useless."""
        self.used -= private
        for name in reversed(names):
            self._users[name] -= 1
            if self._users[name] == 0:
                self._idle[name] = None
                self.used -= 1
        assert self.used >= 0, "more blocks given back than were taken"
