"""What an engine says in an answer, as far as we read it: which choice has ended how, and what was used.

These are types by which bytes are decoded, in a module of their own: what is compiled (decision 24) can use such types and
cannot make them.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
"""More is no word on what was used; what passed is counted then, and nothing absurd gets into the ledger."""


class PromptDetails(msgspec.Struct, gc=False):
    """Where the engine says how much of the prompt it found in its cache."""

    cached_tokens: _Count | None = None


class WireUsage(msgspec.Struct, gc=False):
    """An engine's word on what was used, of all choices together."""

    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0
    prompt_tokens_details: PromptDetails | None = None


class Supposed(WireUsage, gc=False):
    """Concluded from what an engine said of a part."""


class Choice(msgspec.Struct, gc=False):
    """All we need of a choice: which one it is, and whether it has ended."""

    index: int = 0
    finish_reason: str | None = None


class Piece(msgspec.Struct, gc=False):
    """An event of a stream, or a whole answer."""

    choices: list[Choice] = []
    usage: WireUsage | None = None
    error: Any = None


decode_piece = msgspec.json.Decoder(Piece).decode
