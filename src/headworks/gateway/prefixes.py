"""What a prompt begins with, in names that say nothing: for choosing the replica that has read it already (`core/affinity.py`).

A block is `BLOCK_BYTES` of the prompt as it came, and its name a hash of that and of the name before it, so that equal names
are equal beginnings. The hash is keyed by the process (SipHash with a random key): names mean nothing outside it, nobody can
make prompts that share one, and none is ever written down.
"""

from __future__ import annotations

from headworks.core.policy import PoolPolicy
from headworks.gateway.dialects.base import Parsed

BLOCK_BYTES = 2_048
"""About 512 tokens of text: a few of an engine's own blocks."""
BLOCKS_MAX = 256


def prefix_of(parsed: Parsed, pool: PoolPolicy) -> tuple[int, ...]:
    """The names of its whole blocks, first to last; none where there is nothing to choose."""
    if len(pool.replicas) < 2:
        return ()
    raws = parsed.raws
    prompt = bytes(raws.get("messages") or raws.get("prompt") or raws.get("input") or b"")
    before = [bytes(raws.get(name) or b"") for name in ("tools", "system", "instructions")]
    name = hash((parsed.model, *before))  # templates write these first
    names = []
    for start in range(0, min(len(prompt) - BLOCK_BYTES, BLOCK_BYTES * BLOCKS_MAX), BLOCK_BYTES):
        name = hash((name, prompt[start : start + BLOCK_BYTES]))
        names.append(name)
    return tuple(names)
