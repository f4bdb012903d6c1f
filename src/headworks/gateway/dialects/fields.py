"""The fields a client may send, by type and range, and the two ways a value is refused.

The struct of a route is its allow-list: a field that is not there is refused by name, so nothing reaches an engine that
nobody has thought about (H3): not a priority, not an id, not a URL to fetch. Every number that prices work is an
integer with a range, every other number has the range in which it means something. `REFUSED` says of the fields that
engines do know why they stay out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from headworks.core.prompt_sizes import DENSE, TEXT, TOOLS, WIDE

TOKENS_RANGE_MAX = 2**31 - 1
"""No count of tokens can be larger; engines hold them in 32 bits."""
NESTING_MAX = 64
"""Levels of arrays and objects in a JSON Schema that passes through. An engine's own parser fails at about a thousand."""
FAULT_TEXT_MAX = 200
"""Characters of the client's own text that an error message repeats."""
STOPS_MAX = 16
BIASES_MAX = 1_024
LOGPROBS_MAX = 20
PROMPT_LOGPROBS_MAX = 5
"""An engine answers with this many entries for each prompt token: more is a way to fill its memory."""

ASSEMBLED_EXACTLY = frozenset(
    {
        *("model", "messages", "prompt", "stream", "n", "best_of", "use_beam_search", "seed", "response_format"),
        *("max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos", "stop", "stop_token_ids", "logit_bias"),
        *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens", "truncate_prompt_tokens"),
        *("add_special_tokens", "add_generation_prompt", "continue_final_message"),
        *("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "modalities"),
    }
)
"""An answer to a request with no other field is a text a choice, which is put together from a stream exactly (A8). Not so
with tools, log probabilities, an echoed prompt or the options of reasoning: engines write those differently in streams."""

PROXIED_NAMES = frozenset({"api_base", "base_url", "host", "callback_url", "user_config"})
"""Names that have steered gateways to other servers. They may not stand at any depth of what we pass on."""
SCHEMA_NAME_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""In a JSON Schema the keys of these objects are names chosen by its author, not fields: a tool may well take a `host`."""

REFUSED: dict[str, str] = {
    "request_id": "engines get ids of ours; the header X-Request-Id is yours",
    "rid": "engines get ids of ours; the header X-Request-Id is yours",
    "priority": "the header Headworks-Class says how urgent it is",
    "cache_salt": "it decides whose cached prompts are shared",
    "session_id": "it names what an engine keeps between requests",
    "kv_transfer_params": "engines are connected by their operator",
    "ec_transfer_params": "engines are connected by their operator",
    "vllm_xargs": "it reaches past everything that is checked",
    "mm_payload": "only text is accepted here",
    "media_io_kwargs": "only text is accepted here",
    "mm_processor_kwargs": "only text is accepted here",
    "prompt_embeds": "only text and token ids are accepted here",
    "chat_template": "a template is a program that would run in the engine",
    "chat_template_kwargs": "it steers a program that runs in the engine",
    "documents": "what a template makes of them cannot be counted; put their text into a message",
    "stream_interval": "how often an engine sends is its operator's choice",
    "use_beam_search": "n asks for several answers",
    "background": "an answer is counted while its client waits for it",
    "previous_response_id": "nothing is kept between requests; send the conversation itself",
    "conversation": "nothing is kept between requests; send the conversation itself",
    "previous_input_messages": "it reaches past everything that is checked",
    "structured_outputs": "text.format and response_format say what form an answer has",
    "mcp_servers": "tools are run by who asks for them",
    "container": "tools are run by who asks for them",
    "context_management": "nothing is kept between requests; send the conversation itself",
    "padding": "a padded prompt costs what nobody counted",
    **dict.fromkeys(("api_base", "base_url", "host", "callback_url", "user_config"), "servers are chosen by the operator"),
}
"""Fields that engines or other gateways know and a client may not set, and what stands in the refusal beside the name.

Any other name that is not in a route's struct is refused as well, without a reason.
"""

PositiveTokens: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=TOKENS_RANGE_MAX)]
TokenId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=TOKENS_RANGE_MAX)]
TokenName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,10}\Z")]
"""A token's id where JSON allows text only."""
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
Factor: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=100)]
Penalty: TypeAlias = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Bias: TypeAlias = Annotated[float, msgspec.Meta(ge=-100, le=100)]
Samples: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=4_096)]
Label: TypeAlias = Annotated[str, msgspec.Meta(max_length=512)]
StopText: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


@dataclass(slots=True)
class Fault:
    """Why a request is not acceptable: a code of `core/reasons.py`, what its sentence says, and the field at fault."""

    reason: str
    subject: str
    param: str | None = None


class Unacceptable(Exception):
    """Carries a fault from where it was found to `parse`. It never leaves a dialect."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.subject)
        self.fault = fault


def invalid(subject: str, param: str | None = None) -> Unacceptable:
    """The request makes no sense, said in one sentence."""
    return Unacceptable(Fault("invalid_request", subject, param))


def not_allowed(param: str) -> Unacceptable:
    """The field may not be set by a client. Says why where it is one that engines know."""
    param = param[:FAULT_TEXT_MAX]
    why = REFUSED.get(param.replace("…", ".").rpartition(".")[2])
    return Unacceptable(Fault("field_not_allowed", param if why is None else f"{param} ({why})", param))


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What OpenAI's clients may ask of a stream, and vLLM's running usage."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True):
    """The schema an answer has to follow. Its own content is checked by `check_schema`."""

    name: Label
    description: str | None = None
    schema: msgspec.Raw = msgspec.Raw()
    """Empty where there is none."""
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class SharedFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """What chat and completions have in common. Null means the same as leaving a field out."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: PositiveTokens | None = None
    min_tokens: Annotated[int, msgspec.Meta(ge=0, le=TOKENS_RANGE_MAX)] | None = None
    ignore_eos: bool | None = None
    n: Samples | None = None
    best_of: Samples | None = None
    use_beam_search: bool | None = None
    truncate_prompt_tokens: PositiveTokens | None = None
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
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    logit_bias: Annotated[dict[TokenName, Bias], msgspec.Meta(max_length=BIASES_MAX)] | None = None
    prompt_logprobs: Annotated[int, msgspec.Meta(ge=0, le=PROMPT_LOGPROBS_MAX)] | None = None
    response_format: ResponseFormat | None = None
    user: Label | None = None


def check_schema(raw: msgspec.Raw, param: str) -> int:
    """Look at a JSON Schema that passes through; returns its size in bytes.

    Numbers, text and encoding are checked by the decoder. The tree is walked only if it may be too deep or may hold a
    name that is not allowed or a reference, level by level, so that its depth costs no recursion.
    """
    written = bytes(raw)
    try:
        fields: list[Any] = [msgspec.json.decode(written)]
    except RecursionError as error:
        raise invalid(f"{param} is nested too deeply.", param) from error
    except msgspec.DecodeError as error:
        raise invalid(f"{param}: {error}.", param) from error
    if written.count(b"{") + written.count(b"[") <= NESTING_MAX and not any(map(written.__contains__, _SUSPICIOUS)):
        return len(written)
    named: list[Any] = []
    for _ in range(NESTING_MAX):
        fields, named = _next_level(fields, named, param)
        if not fields and not named:
            return len(written)
    raise invalid(f"{param} is nested more than {NESTING_MAX} levels deep.", param)


REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
"""A schema may point into itself. What it points at elsewhere, somebody would have to fetch."""
_SUSPICIOUS = (*(name.encode() for name in (*sorted(PROXIED_NAMES), *REFERENCES)), b"\\u00")
"""A name as it may stand in the text, or an escape that can spell one."""


def _next_level(fields: list[Any], named: list[Any], param: str) -> tuple[list[Any], list[Any]]:
    """The containers one level down: ordinary ones, and objects whose keys are names of their author's choice."""
    below: list[Any] = [child for names in named for child in names.values() if type(child) in _CONTAINERS]
    named_below: list[Any] = []
    for node in fields:
        if type(node) is list:
            below += [child for child in node if type(child) in _CONTAINERS]
        elif type(node) is dict:
            if not PROXIED_NAMES.isdisjoint(node):
                raise not_allowed(f"{param}…{min(PROXIED_NAMES.intersection(node))}")
            for name in REFERENCES:
                if name in node and not str(node[name]).startswith("#"):
                    raise invalid(f"{param}: {name} may only point into the schema itself, with #.", param)
            for name, child in node.items():
                if type(child) in _CONTAINERS:
                    (named_below if name in SCHEMA_NAME_MAPS and type(child) is dict else below).append(child)
    return below, named_below


_CONTAINERS = (dict, list)


def response_format_bytes(form: ResponseFormat | None) -> int:
    """What the form of the answer adds to the prompt (C1: schemas count as prompt)."""
    if form is None or form.json_schema is None or not bytes(form.json_schema.schema):
        return 0
    return check_schema(form.json_schema.schema, "response_format.json_schema.schema")


def text_bytes(text: str) -> int:
    """UTF-8 bytes of a text, and of what it becomes in a tokenizer that composes it first: never fewer than its tokens."""
    return len(text) if text.isascii() else composed_bytes(text)


def composed_bytes(text: str) -> int:
    """The same for a text that is known not to be ASCII."""
    size_bytes = len(text.encode())
    if LENGTHENED.search(text) is not None:
        size_bytes += LENGTHENED_BYTES * sum(1 for _ in LENGTHENED.finditer(text))
    return size_bytes


LENGTHENED = re.compile(
    "[\u0344\u0958-\u095f\u09dc\u09dd\u09df\u0a33\u0a36\u0a59-\u0a5b\u0a5e\u0b5c\u0b5d\u0f43\u0f4d\u0f52\u0f57\u0f5c\u0f69"
    "\u0f73\u0f75\u0f76\u0f78\u0f81\u0f93\u0f9d\u0fa2\u0fa7\u0fac\u0fb9\u2adc\ufa6c\ufacf-\ufad1\ufad5-\ufad7"
    "\ufb1d\ufb1f\ufb2a-\ufb36\ufb38-\ufb3c\ufb3e\ufb40\ufb41\ufb43\ufb44\ufb46-\ufb4e"
    "\U0001d15e-\U0001d164\U0001d1bb-\U0001d1c0]"
)
"""The 92 characters whose composed form (NFC) is longer in UTF-8; many a tokenizer composes text before it counts it."""
LENGTHENED_BYTES = 8
"""By how much at most: four bytes that become twelve."""

DENSE_FROM_BYTES = 2_048
"""Shorter texts are not looked at: what is wrong about them is little."""
DENSE_SAMPLE_CHARS = 4_096
DENSE_WORD_CHARS = 12
"""A text with fewer spaces and line ends than one in so many characters is not made of words."""


def is_dense(text: str) -> bool:
    """Whether a text has long runs without a space: base64, identifiers, JSON without white space, numbers."""
    sample = text[:DENSE_SAMPLE_CHARS]
    return (sample.count(" ") + sample.count("\n")) * DENSE_WORD_CHARS < len(sample)


def kind_of(size_bytes: int, beyond_bytes: int, dense_bytes: int, tools_bytes: int) -> str:
    """What most of a prompt is made of. `beyond_bytes`: bytes more than characters, two of three in Chinese."""
    if tools_bytes * 2 >= size_bytes:
        return TOOLS
    if beyond_bytes * 4 >= size_bytes:
        return WIDE
    return DENSE if dense_bytes * 4 >= size_bytes else TEXT
