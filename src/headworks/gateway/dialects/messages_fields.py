"""The fields of `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's form of a chat.

Every block of every message is a type, so that no key hides in it; but for the input of a tool that was called, whose names are
its author's choice, like those of a schema's properties. Types in a module of their own: what is compiled (decision 24) can use
such types and cannot make them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from headworks.gateway.dialects.chat_fields import MESSAGES_MAX, PARTS_MAX, TOOLS_MAX
from headworks.gateway.dialects.fields import STOPS_MAX, TOKENS_RANGE_MAX, Label, PositiveTokens, Share, StopText

THINKING_TOKENS_MIN = 1_024
"""Anthropic's least budget, and vLLM's."""


class CacheControl(msgspec.Struct, forbid_unknown_fields=True):
    """Where Anthropic's own service may cut its cache. Engines find a prefix again without being told."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Text(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True, gc=False):
    """The one kind of content that needs no rule."""

    text: str
    cache_control: CacheControl | None = None
    citations: Annotated[list[Any], msgspec.Meta(max_length=0)] | None = None


class ImageSource(msgspec.Struct, forbid_unknown_fields=True):
    """Its data in base64. One that is named by a URL or a file's id somebody would have to fetch."""

    type: Literal["base64"]
    media_type: Literal["image/png", "image/jpeg", "image/webp", "image/gif"]
    data: str


class Image(msgspec.Struct, tag_field="type", tag="image", forbid_unknown_fields=True, gc=False):
    """An image, where its model has a price for it (`parts.py`)."""

    source: ImageSource
    cache_control: CacheControl | None = None


class Thinking(msgspec.Struct, tag_field="type", tag="thinking", forbid_unknown_fields=True, gc=False):
    """What the model thought before, sent back as history."""

    thinking: str
    signature: str | None = None


class RedactedThinking(msgspec.Struct, tag_field="type", tag="redacted_thinking", forbid_unknown_fields=True, gc=False):
    """The same where nobody may read it."""

    data: str


class ToolUse(msgspec.Struct, tag_field="type", tag="tool_use", forbid_unknown_fields=True, gc=False):
    """A call in the model's answer, sent back as history."""

    id: Label
    name: Label
    input: msgspec.Raw
    cache_control: CacheControl | None = None
    caller: None = None


class ToolResult(msgspec.Struct, tag_field="type", tag="tool_result", forbid_unknown_fields=True, gc=False):
    """What a tool answered."""

    tool_use_id: Label
    content: str | Annotated[list[Text], msgspec.Meta(max_length=PARTS_MAX)] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


Block = Text | Image | Thinking | RedactedThinking | ToolUse | ToolResult
Blocks: TypeAlias = Annotated[list[Block], msgspec.Meta(max_length=PARTS_MAX)]
Texts: TypeAlias = Annotated[list[Text], msgspec.Meta(max_length=PARTS_MAX)]


class Message(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class Tool(msgspec.Struct, forbid_unknown_fields=True):
    """A function the model may call. Tools that Anthropic's own service runs have other types, and are refused."""

    name: Label
    input_schema: msgspec.Raw
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    cache_control: CacheControl | None = None


class ToolChoice(msgspec.Struct, forbid_unknown_fields=True):
    """Which tool, if any, it must use."""

    type: Literal["auto", "any", "tool", "none"]
    name: Label | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingAsked(msgspec.Struct, forbid_unknown_fields=True):
    """Whether, and how much, the model is to think."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, msgspec.Meta(ge=THINKING_TOKENS_MIN, le=TOKENS_RANGE_MAX)] | None = None
    display: Literal["summarized", "omitted", "updates"] | None = None


class OutputForm(msgspec.Struct, forbid_unknown_fields=True):
    """The form of the answer. The schema's own content is checked by `check_schema`."""

    type: Literal["json_schema"]
    schema: msgspec.Raw


class OutputAsked(msgspec.Struct, forbid_unknown_fields=True):
    """How the answer is to be."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputForm | None = None


class CountFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Every field of `/v1/messages/count_tokens`: what becomes the prompt."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    messages: Annotated[list[Message], msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)]
    system: str | Texts | None = None
    tools: Annotated[list[Tool], msgspec.Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingAsked | None = None
    output_config: OutputAsked | None = None
    cache_control: CacheControl | None = None


class MessageFields(CountFields, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Every field of `/v1/messages`."""

    max_tokens: PositiveTokens
    stream: bool | None = None
    stop_sequences: Annotated[list[StopText], msgspec.Meta(max_length=STOPS_MAX)] | None = None
    temperature: Share | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=TOKENS_RANGE_MAX)] | None = None
    top_p: Share | None = None
    metadata: dict[Label, Label | None] | None = None
    service_tier: Label | None = None
    inference_geo: Label | None = None
