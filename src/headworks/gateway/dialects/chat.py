"""POST /v1/chat/completions: messages of known roles with text, tools, and one limit for each answer.

Every part of every message is decoded by type, so that no key hides in it; what is not text (images, audio, files) is
refused, since an engine would fetch it and nobody could price it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from headworks.gateway.dialects.base import Fault, Limits, Parsed, Route, Unacceptable, assemble, read
from headworks.gateway.dialects.fields import (
    LOGPROBS_MAX,
    Label,
    PositiveTokens,
    SharedFields,
    check_schema,
    response_format_bytes,
    text_bytes,
)

MESSAGES_MAX = 4_096
"""A chat template is run over them on the engine's event loop."""
PARTS_MAX = 1_024
"""Parts of one message."""
TOOLS_MAX = 512
MESSAGE_BYTES = 8
"""What a template adds to each message: its role and marks."""


class TextPart(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True, gc=False):
    """The one kind of content that is accepted."""

    text: str


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal", forbid_unknown_fields=True, gc=False):
    """An earlier refusal of the model, sent back as history."""

    refusal: str


Texts: TypeAlias = Annotated[list[TextPart], msgspec.Meta(max_length=PARTS_MAX)]
Answers: TypeAlias = Annotated[list[TextPart | RefusalPart], msgspec.Meta(max_length=PARTS_MAX)]


class System(msgspec.Struct, tag_field="role", tag="system", forbid_unknown_fields=True, gc=False):
    """Instructions."""

    content: str | Texts
    name: str | None = None


class Developer(msgspec.Struct, tag_field="role", tag="developer", forbid_unknown_fields=True, gc=False):
    """Instructions under their newer name."""

    content: str | Texts
    name: str | None = None


class User(msgspec.Struct, tag_field="role", tag="user", forbid_unknown_fields=True, gc=False):
    """What a person says."""

    content: str | Texts
    name: str | None = None


class Called(msgspec.Struct, forbid_unknown_fields=True):
    """A function the model called."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """A call in the model's answer, sent back as history."""

    id: str
    function: Called
    type: Literal["function"] = "function"
    index: int | None = None


class Assistant(msgspec.Struct, tag_field="role", tag="assistant", forbid_unknown_fields=True, gc=False):
    """An earlier answer. Clients send back the whole object they got, so the fields it has as null are known here."""

    content: str | Answers | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ToolCall], msgspec.Meta(max_length=PARTS_MAX)] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    function_call: None = None
    audio: None = None
    annotations: Annotated[list[Any], msgspec.Meta(max_length=0)] | None = None


class Tool(msgspec.Struct, tag_field="role", tag="tool", forbid_unknown_fields=True, gc=False):
    """What a tool answered."""

    content: str | Texts
    tool_call_id: str
    name: str | None = None


Message = System | Developer | User | Assistant | Tool


class Function(msgspec.Struct, forbid_unknown_fields=True):
    """A function the model may call. Its parameters are a JSON Schema, looked at by `check_schema`."""

    name: Label
    description: str | None = None
    parameters: msgspec.Raw = msgspec.Raw()
    strict: bool | None = None


class OfferedTool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool the model may use."""

    type: Literal["function"]
    function: Function


class ChosenFunction(msgspec.Struct, forbid_unknown_fields=True):
    """The name of the tool it must use."""

    name: Label


class ChosenTool(msgspec.Struct, forbid_unknown_fields=True):
    """The one tool it must use."""

    type: Literal["function"]
    function: ChosenFunction


class ChatFields(SharedFields, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Every field of the route. The last five are labels for OpenAI's own service."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)]
    max_completion_tokens: PositiveTokens | None = None
    tools: Annotated[list[OfferedTool], msgspec.Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=LOGPROBS_MAX)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    thinking_token_budget: PositiveTokens | None = None
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    modalities: list[Literal["text"]] | None = None
    store: bool | None = None
    metadata: dict[Label, Label] | None = None
    service_tier: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None


ROUTE = Route("/v1/chat/completions", ChatFields)


def parse(body: bytes, limits: Limits) -> Parsed | Fault:
    """What is asked for, or what is wrong with it."""
    try:
        asked, raws, forwarded = read(ROUTE, body)
        size_bytes = _prompt_bytes(asked, raws)
        return assemble(ROUTE, asked, raws, forwarded, limits, size_bytes, None, 1, asked.max_completion_tokens)
    except Unacceptable as error:
        return error.fault


def _prompt_bytes(asked: ChatFields, raws: dict[str, msgspec.Raw]) -> int:
    """Everything that a template may write into the prompt."""
    total = 0
    for message in asked.messages:
        content = message.content
        total += MESSAGE_BYTES
        if isinstance(content, str):
            total += len(content) if content.isascii() else len(content.encode())
        elif content is not None:
            total += sum(text_bytes(part.refusal if isinstance(part, RefusalPart) else part.text) for part in content)
        if message.name is not None:
            total += text_bytes(message.name)
        if type(message) is Assistant:
            total += _assistant_bytes(message)
    if asked.tools is not None:
        total += _tools_bytes(asked.tools, raws["tools"])
    return total if asked.response_format is None else total + response_format_bytes(asked.response_format)


def _assistant_bytes(message: Assistant) -> int:
    """What an earlier answer holds beside its text."""
    total = 0
    for text in (message.refusal, message.reasoning, message.reasoning_content):
        if text:
            total += text_bytes(text)
    for call in message.tool_calls or ():
        total += text_bytes(call.id) + text_bytes(call.function.name) + text_bytes(call.function.arguments)
    return total


def _tools_bytes(tools: list[OfferedTool], raw: msgspec.Raw) -> int:
    """Tools are written into the prompt about as they came."""
    for index, tool in enumerate(tools):
        if bytes(tool.function.parameters):
            check_schema(tool.function.parameters, f"tools[{index}].function.parameters")
    return len(bytes(raw))
