"""POST /tokenize and /detokenize, as vLLM has them: a text or a chat into token ids, and ids into text.

Nothing of it reaches the engine's scheduler, but its server does it in the loop that also writes everybody's streams: a long
text holds that up. So what is looked at is admitted and held like a prompt that is read, for as long as it takes, and bounded
in length; when it is over, nothing was used. A model has to be named, since that is how an engine is found.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from headworks.core.prompt_sizes import TEXT
from headworks.gateway.dialects import chat
from headworks.gateway.dialects.base import Fault, Limits, Parsed, Route, Unacceptable, read, reading
from headworks.gateway.dialects.chat_fields import MESSAGES_MAX, TOOLS_MAX, ChatFields, Message, OfferedTool
from headworks.gateway.dialects.fields import TokenId, invalid
from headworks.gateway.dialects.sizes import size_of

LOOKED_AT_BYTES_MAX = 1_000_000
"""A text that is longer holds an engine's server up for a third of a second and more."""

ModelName = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class TokenizeFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Either a prompt, or messages with what belongs to them."""

    model: ModelName
    prompt: str | None = None
    messages: Annotated[list[Message], msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)] | None = None
    tools: Annotated[list[OfferedTool], msgspec.Meta(max_length=TOOLS_MAX)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Ids that become text."""

    model: ModelName
    tokens: Annotated[list[TokenId], msgspec.Meta(max_length=LOOKED_AT_BYTES_MAX)]


ROUTE: Route[TokenizeFields] = Route("/tokenize", TokenizeFields)
BACK: Route[DetokenizeFields] = Route("/detokenize", DetokenizeFields)


def parse(body: bytes, limits: Limits) -> Parsed | Fault:
    """What is asked for, or what is wrong with it."""
    try:
        asked, raws, forwarded = read(ROUTE, body)
        if (asked.prompt is None) == (asked.messages is None):
            raise invalid("Give either prompt or messages.", "prompt")
        if asked.messages is not None:
            talk = ChatFields(model=asked.model, messages=asked.messages, tools=asked.tools)
            size_bytes, kind = chat.prompt_size(talk, raws)
        elif asked.tools is not None:
            raise invalid("tools belong to messages.", "tools")
        else:
            size_bytes, kind = size_of([asked.prompt or ""], 1)
        return reading(ROUTE, asked, raws, forwarded, asked.model, short_enough(size_bytes), kind)
    except Unacceptable as error:
        return error.fault


def parse_back(body: bytes, limits: Limits) -> Parsed | Fault:
    """The same of ids."""
    try:
        asked, raws, forwarded = read(BACK, body)
        tokens = max(1, len(asked.tokens))
        return reading(BACK, asked, raws, forwarded, asked.model, tokens, TEXT, tokens)
    except Unacceptable as error:
        return error.fault


def short_enough(size_bytes: int) -> int:
    """So many bytes, or a fault."""
    if size_bytes > LOOKED_AT_BYTES_MAX:
        raise invalid(f"What is to be counted has {size_bytes} bytes; {LOOKED_AT_BYTES_MAX} are allowed.")
    return size_bytes
