"""POST /v1/embeddings: texts or token ids that are read, each a sequence of its own, and nothing is generated.

So no output is reserved, there is no stream and no first token; the prompt is what it costs, and what the usage says. A chat as
input, which vLLM knows, is refused: OpenAI's API has none.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from headworks.core.prompt_sizes import TEXT
from headworks.gateway.dialects.base import Fault, Limits, Parsed, Route, Unacceptable, few_enough, read, reading
from headworks.gateway.dialects.fields import Label, PositiveTokens, TokenId, invalid
from headworks.gateway.dialects.sizes import size_of

DIMENSIONS_MAX = 65_536

TokenIds: TypeAlias = Annotated[list[TokenId], msgspec.Meta(min_length=1)]
Input: TypeAlias = str | Annotated[list[str | TokenId | TokenIds], msgspec.Meta(min_length=1)]


class EmbeddingFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Every field of the route."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    input: Input
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=DIMENSIONS_MAX)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    truncate_prompt_tokens: PositiveTokens | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = None
    user: Label | None = None


ROUTE: Route[EmbeddingFields] = Route("/v1/embeddings", EmbeddingFields)


def parse(body: bytes, limits: Limits) -> Parsed | Fault:
    """What is asked for, or what is wrong with it."""
    try:
        asked, raws, forwarded = read(ROUTE, body)
        cut = asked.truncate_prompt_tokens
        given: Any = asked.input
        inputs = [given] if type(given) is str or type(given[0]) is int else given
        kind = type(inputs[0])
        if any(type(one) is not kind for one in inputs) or (kind is list and type(given[0]) is int and not _all_ids(given)):
            raise invalid("input mixes text and token ids.", "input")
        tokens = None
        if kind is list:
            tokens = sum(len(ids) if cut is None else min(len(ids), cut) for ids in inputs)
            size_bytes, what = tokens, TEXT
        else:
            size_bytes, what = size_of(inputs, 0)
        prompts = few_enough(len(inputs), limits)
        return reading(ROUTE, asked, raws, forwarded, asked.model, size_bytes, what, tokens, prompts, cut)
    except Unacceptable as error:
        return error.fault


def _all_ids(given: list[Any]) -> bool:
    return all(type(one) is int for one in given)


def texts(parsed: Parsed) -> tuple[list[str], int]:
    """What a tokenizer has to count; an input as text has no marks."""
    asked = parsed.asked
    assert isinstance(asked, EmbeddingFields)
    given: Any = asked.input
    return ([given] if type(given) is str else list(given)), 0
