"""Every route that asks an engine for something, and the dialect it is spoken in.

A dialect is how a body is read (`parse`, `texts`), how an answer is read (`speech`; None: as chat completions are), in which
shape errors of ours are written (`gateway/error_shapes.py`), and whether a request can give way under pressure (`variants.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headworks.gateway.dialects import (
    chat,
    completions,
    embeddings,
    messages,
    messages_stream,
    responses,
    responses_stream,
    tokenize,
)
from headworks.gateway.dialects.base import Fault, Limits, Parsed
from headworks.gateway.dialects.typed_stream import Speech
from headworks.gateway.error_shapes import ANTHROPIC, OPENAI, RESPONSES

Texts = Callable[[Parsed], tuple[list[str], int]]


@dataclass(slots=True)
class Dialect:
    """One route."""

    path: str
    parse: Callable[[bytes, Limits], Parsed | Fault]
    texts: Texts | None = None
    """What a tokenizer has to count; None: it is the engine that is asked to count it."""
    shape: str = OPENAI
    speech: Speech | None = None


DIALECTS: dict[str, Dialect] = {
    one.path: one
    for one in (
        Dialect(chat.ROUTE.path, chat.parse, chat.texts),
        Dialect(completions.ROUTE.path, completions.parse, completions.texts),
        Dialect(responses.ROUTE.path, responses.parse, responses.texts, RESPONSES, responses_stream.SPEECH),
        Dialect(messages.ROUTE.path, messages.parse, messages.texts, ANTHROPIC, messages_stream.SPEECH),
        Dialect(messages.COUNT.path, messages.parse_count, None, ANTHROPIC),
        Dialect(embeddings.ROUTE.path, embeddings.parse, embeddings.texts),
        Dialect(tokenize.ROUTE.path, tokenize.parse),
        Dialect(tokenize.BACK.path, tokenize.parse_back),
    )
}
