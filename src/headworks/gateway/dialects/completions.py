"""POST /v1/completions: one prompt or several, as text or as token ids.

Each prompt is a sequence of its own, times n. Token ids are counted exactly; text by its bytes.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec

from headworks.core.prompt_sizes import TEXT
from headworks.gateway.dialects.base import Fault, Limits, Parsed, Route, Unacceptable, assemble, read
from headworks.gateway.dialects.fields import (
    DENSE_FROM_BYTES,
    LOGPROBS_MAX,
    SharedFields,
    TokenId,
    invalid,
    is_dense,
    kind_of,
    response_format_bytes,
    text_bytes,
)

OUTPUT_TOKENS_DEFAULT = 16
"""What this route means by leaving out `max_tokens`, in OpenAI's reference and in vLLM alike."""

TokenIds: TypeAlias = Annotated[list[TokenId], msgspec.Meta(min_length=1)]
Prompt: TypeAlias = str | Annotated[list[str | TokenId | TokenIds], msgspec.Meta(min_length=1)]


class CompletionFields(SharedFields, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Every field of the route."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=LOGPROBS_MAX)] | None = None
    add_special_tokens: bool | None = None


ROUTE: Route[CompletionFields] = Route("/v1/completions", CompletionFields)


def parse(body: bytes, limits: Limits) -> Parsed | Fault:
    """What is asked for, or what is wrong with it."""
    try:
        asked, raws, forwarded = read(ROUTE, body)
        size_bytes, kind, tokens, prompts = _sizes(asked.prompt, asked.truncate_prompt_tokens)
        if asked.response_format is not None:
            size_bytes += prompts * response_format_bytes(asked.response_format)
        default = OUTPUT_TOKENS_DEFAULT
        return assemble(ROUTE, asked, raws, forwarded, limits, size_bytes, kind, tokens, prompts, default_limit=default)
    except Unacceptable as error:
        return error.fault


def texts(parsed: Parsed) -> tuple[list[str], int]:
    """What a tokenizer has to count; a prompt as text has no marks."""
    asked = parsed.asked
    assert isinstance(asked, CompletionFields)
    prompt: Any = asked.prompt
    found = [prompt] if type(prompt) is str else list(prompt)
    if asked.response_format is not None and asked.response_format.json_schema is not None:
        found += [bytes(asked.response_format.json_schema.schema).decode()] * len(found)
    return found, 0


def _sizes(prompt: Any, cut: int | None) -> tuple[int, str, int | None, int]:
    """Bytes of all prompts and their kind, their exact tokens where they are ids, and how many there are."""
    if type(prompt) is str:
        prompt = [prompt]
    kind = type(prompt[0])
    if any(type(item) is not kind for item in prompt):
        raise invalid("prompt mixes text and token ids.", "prompt")
    if kind is str:
        size_bytes = sum(map(text_bytes, prompt))
        return size_bytes, _kind(prompt, size_bytes), None, len(prompt)
    if kind is int:
        prompt = [prompt]
    tokens = sum(len(ids) if cut is None else min(len(ids), cut) for ids in prompt)
    return tokens, TEXT, tokens, len(prompt)


def _kind(prompts: list[str], size_bytes: int) -> str:
    beyond_bytes = size_bytes - sum(map(len, prompts))
    dense_bytes = sum(len(text) for text in prompts if len(text) >= DENSE_FROM_BYTES and is_dense(text))
    return kind_of(size_bytes, beyond_bytes, dense_bytes, 0)
