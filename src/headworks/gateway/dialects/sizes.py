"""How large a prompt is that is made of several texts: its bytes, and what most of it is made of (C1).

Chat counts while it looks at its messages, as it is asked the most; the other routes list their texts and have them counted
here. The same list is what a tokenizer is given, so nothing can be counted in one way and not in the other.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headworks.gateway.dialects.chat import INDENT, tools_written, tools_written_bytes
from headworks.gateway.dialects.fields import DENSE_FROM_BYTES, composed_bytes, is_dense, kind_of

TOOL_BYTES = 192
"""What the chat template's form of a tool has beside what was given: a type, a level more, and fields left out, as null."""


def size_of(texts: Iterable[str], marks_bytes: int, tools_bytes: int = 0) -> tuple[int, str]:
    """Bytes of everything that may be written into the prompt, and the kind of most of it."""
    total, beyond_bytes, dense_bytes = marks_bytes + tools_bytes, 0, 0
    for text in texts:
        size_bytes = len(text)
        if not text.isascii():
            size_bytes = composed_bytes(text)
            beyond_bytes += size_bytes - len(text)
        elif size_bytes >= DENSE_FROM_BYTES and is_dense(text):
            dense_bytes += size_bytes
        total += size_bytes
    return total, kind_of(total, beyond_bytes, dense_bytes, tools_bytes)


def flat_tools_bytes(raw: msgspec.Raw, tools: int) -> int:
    """Tools that are not given in the form in which a template gets them: there they stand a level deeper."""
    written = bytes(raw)
    lines = written.count(b",") + 2 * (written.count(b"[") + written.count(b"{")) + tools
    return tools_written_bytes(raw) + INDENT * lines + TOOL_BYTES * tools


def flat_tools_text(raw: msgspec.Raw) -> str:
    """The same for a tokenizer."""
    return tools_written(raw).decode()
