"""The little that is read of a body whose request is refused before it is read (`door.py`), whatever dialect it is in.

In a module of its own: what is compiled can use such types and cannot make them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

SAMPLES_MAX = 1_024
TOKENS_MAX = 100_000_000
Tokens = Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)]


class Peek(msgspec.Struct, gc=False):
    """Whose engines are asked, and for how much at most. Everything else is passed over."""

    model: str
    stream: bool = False
    n: Annotated[int, msgspec.Meta(ge=1, le=SAMPLES_MAX)] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    max_output_tokens: Tokens | None = None


peek = msgspec.json.Decoder(Peek).decode
"""Raises `msgspec.MsgspecError`, `UnicodeDecodeError` or `RecursionError` where a body is not what it should be."""
