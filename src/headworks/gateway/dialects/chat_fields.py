"""The fields of a chat: messages of known roles with text, and the tools a model may call.

Every part of every message is a type, so that no key hides in it. Types in a module of their own: what is compiled
(decision 24) can use such types and cannot make them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from headworks.gateway.dialects.fields import LOGPROBS_MAX, Label, PositiveTokens, SharedFields

MESSAGES_MAX = 4_096
"""A chat template is run over them on the engine's event loop."""
PARTS_MAX = 1_024
"""Parts of one message."""
TOOLS_MAX = 512


class TextPart(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True, gc=False):
    """The one kind of content that needs no rule."""

    text: str


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal", forbid_unknown_fields=True, gc=False):
    """An earlier refusal of the model, sent back as history."""

    refusal: str


class ImageUrl(msgspec.Struct, forbid_unknown_fields=True):
    """An image as a data URI."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(msgspec.Struct, tag_field="type", tag="image_url", forbid_unknown_fields=True, gc=False):
    """An image in what a person says, where its model has a price for it (`parts.py`)."""

    image_url: ImageUrl


class InputAudio(msgspec.Struct, forbid_unknown_fields=True):
    """Audio in base64. Of other formats nobody could tell how long they last without decoding them."""

    data: str
    format: Literal["wav"]


class AudioPart(msgspec.Struct, tag_field="type", tag="input_audio", forbid_unknown_fields=True, gc=False):
    """Audio in what a person says, where its model has a price for it."""

    input_audio: InputAudio


Said: TypeAlias = Annotated[list[TextPart | ImagePart | AudioPart], msgspec.Meta(max_length=PARTS_MAX)]
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

    content: str | Said
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
