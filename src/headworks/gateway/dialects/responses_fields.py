"""The fields of `POST /v1/responses`: items of known kinds with text, and functions a model may call.

OpenAI lets a message stand without its `type`, so an item is one struct with the fields of every kind that is known here:
whatever stands in it is counted, whichever kind it is. What the service would do by itself (search, run code, call somebody's
server) is no kind here. Types in a module of their own: what is compiled (decision 24) can use such types and cannot make them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from headworks.gateway.dialects.chat_fields import MESSAGES_MAX, PARTS_MAX, TOOLS_MAX
from headworks.gateway.dialects.fields import (
    BIASES_MAX,
    LOGPROBS_MAX,
    STOPS_MAX,
    TOKENS_RANGE_MAX,
    Bias,
    Factor,
    Label,
    Penalty,
    PositiveTokens,
    Share,
    StopText,
    TokenId,
    TokenName,
)

Nothing: TypeAlias = Annotated[list[Any], msgspec.Meta(max_length=0)]
"""A list that clients send back as they got it, and that is empty here."""


class InputText(msgspec.Struct, tag_field="type", tag="input_text", forbid_unknown_fields=True, gc=False):
    """What a person, or a tool, says."""

    text: str


class OutputText(msgspec.Struct, tag_field="type", tag="output_text", forbid_unknown_fields=True, gc=False):
    """What the model said before."""

    text: str
    annotations: Nothing | None = None
    logprobs: Nothing | None = None


class Refusal(msgspec.Struct, tag_field="type", tag="refusal", forbid_unknown_fields=True, gc=False):
    """An earlier refusal of the model."""

    refusal: str


class SummaryText(msgspec.Struct, tag_field="type", tag="summary_text", forbid_unknown_fields=True, gc=False):
    """What the model thought, in short."""

    text: str


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text", forbid_unknown_fields=True, gc=False):
    """What the model thought."""

    text: str


class InputImage(msgspec.Struct, tag_field="type", tag="input_image", forbid_unknown_fields=True, gc=False):
    """An image as a data URI, where its model has a price for it (`parts.py`)."""

    image_url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


Part = InputImage | InputText | OutputText | Refusal | SummaryText | ReasoningText
Parts: TypeAlias = Annotated[list[Part], msgspec.Meta(max_length=PARTS_MAX)]


class Item(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One piece of a conversation."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Parts | None = None
    id: Label | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: Label | None = None
    call_id: Label | None = None
    name: Label | None = None
    arguments: str | None = None
    output: str | Parts | None = None
    summary: Parts | None = None
    encrypted_content: str | None = None


class FunctionTool(msgspec.Struct, forbid_unknown_fields=True):
    """A function the model may call. Its parameters are a JSON Schema, looked at by `check_schema`."""

    type: Literal["function"]
    name: Label
    description: str | None = None
    parameters: msgspec.Raw = msgspec.Raw()
    strict: bool | None = None


class NamedTool(msgspec.Struct, forbid_unknown_fields=True):
    """The one tool it must use."""

    type: Literal["function"]
    name: Label


class TextForm(msgspec.Struct, forbid_unknown_fields=True):
    """The form of the answer. The schema's own content is checked by `check_schema`."""

    type: Literal["text", "json_object", "json_schema"]
    name: Label | None = None
    description: str | None = None
    schema: msgspec.Raw = msgspec.Raw()
    strict: bool | None = None


class TextAsked(msgspec.Struct, forbid_unknown_fields=True):
    """How the answer is to be written."""

    format: TextForm | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(msgspec.Struct, forbid_unknown_fields=True):
    """How much the model is to think."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class StreamForm(msgspec.Struct, forbid_unknown_fields=True):
    """What OpenAI's clients may ask of this stream: nothing that concerns an engine."""

    include_obfuscation: bool | None = None


class ResponseFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Every field of the route."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    input: str | Annotated[list[Item], msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)]
    instructions: str | None = None
    max_output_tokens: PositiveTokens | None = None
    stream: bool | None = None
    stream_options: StreamForm | None = None
    background: bool | None = None
    tools: Annotated[list[FunctionTool], msgspec.Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextAsked | None = None
    reasoning: Reasoning | None = None
    include_reasoning: bool | None = None
    include: list[Literal["reasoning.encrypted_content", "message.output_text.logprobs"]] | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=LOGPROBS_MAX)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    temperature: Factor | None = None
    top_p: Share | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=TOKENS_RANGE_MAX)] | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Factor | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopText | Annotated[list[StopText], msgspec.Meta(max_length=STOPS_MAX)] | None = None
    stop_token_ids: Annotated[list[TokenId], msgspec.Meta(max_length=STOPS_MAX)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: Annotated[dict[TokenName, Bias], msgspec.Meta(max_length=BIASES_MAX)] | None = None
    user: Label | None = None
    store: bool | None = None
    metadata: dict[Label, Label] | None = None
    service_tier: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Label | None = None
    max_tool_calls: PositiveTokens | None = None
