"""A tokenizer of the fake engine's own: deterministic, quick, and never more tokens than bytes.

ASCII text falls into words cut after four letters or digits, each with the space before it, and single other
characters; everything beyond ASCII costs one token per UTF-8 byte, as in a byte-level vocabulary that never saw it. So
English is about four bytes a token and other scripts are up to twelve times dearer: an estimate from characters must
fail here as it fails on a real engine. A chat template adds one token a message and one for the answer's turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from zlib import crc32

VOCABULARY = 4096
_PIECE = re.compile(r" ?[A-Za-z0-9]{1,4}|[\x00-\x7f]|[^\x00-\x7f]+")
_SYLLABLES = ("ba", "ko", "ri", "ten", "lu", "mar", "fe", "so", "gin", "dal", "wo", "per", "ci", "han", "jo", "vel")


def tokens_of(text: str) -> list[int]:
    """Token ids, at most one per UTF-8 byte."""
    ids: list[int] = []
    for piece in _PIECE.findall(text):
        raw = piece.encode(errors="surrogatepass")
        if raw[0] < 0x80:
            ids.append(crc32(raw) % (VOCABULARY - 256) + 256)
        else:
            ids.extend(raw)
    return ids


def word(seed: int, index: int) -> str:
    """The text of the index-th output token of a sequence, the same for the same seed."""
    number = crc32(b"%d" % index, seed)
    return f" {_SYLLABLES[number & 15]}{_SYLLABLES[number >> 4 & 15]}"


def block_names(ids: Sequence[int], block_tokens: int, salt: str) -> list[int]:
    """A name for each whole block, which tells its content and everything before it."""
    names: list[int] = []
    name = crc32(salt.encode())
    for start in range(0, len(ids) - block_tokens + 1, block_tokens):
        name = hash((name, *ids[start : start + block_tokens]))
        names.append(name)
    return names
