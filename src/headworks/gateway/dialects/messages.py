"""POST /v1/messages, Anthropic's form of a chat, streamed or not; and /v1/messages/count_tokens, which only counts its prompt.

`max_tokens` has to be given. An engine turns the messages into a chat before it runs its template, so they are measured in that
form: a tool's input as the JSON text that it becomes, each tool result as a message of its own. Counting is priced like
`/tokenize` (`tokenize.py`): it holds up the server for as long as it takes, and uses nothing.
"""

from __future__ import annotations

import json

import msgspec

from headworks.gateway.dialects.base import Fault, Limits, Parsed, Raws, Route, Unacceptable, read, reading, within
from headworks.gateway.dialects.chat import MESSAGE_BYTES
from headworks.gateway.dialects.fields import NESTING_MAX, check_schema, invalid
from headworks.gateway.dialects.messages_fields import (
    THINKING_TOKENS_MIN,
    Block,
    CountFields,
    MessageFields,
    Text,
    Thinking,
    ThinkingAsked,
    ToolResult,
    ToolUse,
)
from headworks.gateway.dialects.parts import of_messages, priced
from headworks.gateway.dialects.sizes import flat_tools_bytes, flat_tools_text, size_of
from headworks.gateway.dialects.tokenize import short_enough

ROUTE: Route[MessageFields] = Route("/v1/messages", MessageFields)
COUNT: Route[CountFields] = Route("/v1/messages/count_tokens", CountFields)
LIMIT_KEY = b'"max_tokens":'
STREAM_TAIL = b',"stream":true'
ASSEMBLED_EXACTLY = frozenset(
    {
        *("model", "messages", "system", "max_tokens", "stream", "stop_sequences", "temperature", "top_k", "top_p"),
        *("metadata", "service_tier", "inference_geo", "cache_control"),
    }
)
"""An answer to a request with no other field is text, and perhaps what was thought before it (A8)."""


class MessageParsed(Parsed):
    """What a request asks for. Its thinking is a part of its output, so it is written by us as the output's limit is."""

    __slots__ = ()  # no dataclass of its own: its fields would stand beside those that compiled code reads

    def build(self, output_tokens_max: int, salt: bytes | None, streamed: bool = False) -> bytes:
        body = Parsed.build(self, output_tokens_max, salt, streamed)
        asked = self.asked
        if not isinstance(asked, MessageFields) or asked.thinking is None:
            return body
        written = _thinking_within(asked.thinking, self.raws["thinking"], output_tokens_max)
        return body if written is None else b'%b,"thinking":%b}' % (body[:-1], written)


def parse(body: bytes, limits: Limits) -> Parsed | Fault:
    """What is asked for, or what is wrong with it."""
    try:
        asked, raws, forwarded = read(ROUTE, body)
        size_bytes, kind = _size(asked, raws)
        thinking = asked.thinking
        if thinking is not None and thinking.budget_tokens is not None and thinking.budget_tokens >= asked.max_tokens:
            raise invalid("thinking.budget_tokens must be less than max_tokens.", "thinking.budget_tokens")
        parsed = MessageParsed(
            ROUTE.path,
            asked,
            raws,
            forwarded,
            asked.model,
            size_bytes,
            None,
            within(asked.max_tokens, limits),
            0,
            1,
            bool(asked.stream),
            True,
            LIMIT_KEY,
            not asked.stream and raws.keys() <= ASSEMBLED_EXACTLY,
            kind,
            1,
            STREAM_TAIL,
        )
        return priced(parsed, of_messages(asked), limits)
    except Unacceptable as error:
        return error.fault


def parse_count(body: bytes, limits: Limits) -> Parsed | Fault:
    """The same where only the prompt is to be counted."""
    try:
        asked, raws, forwarded = read(COUNT, body)
        size_bytes, kind = _size(asked, raws)
        if "thinking" in raws and asked.thinking is not None:
            forwarded += b'"thinking":%b,' % bytes(raws["thinking"])
        parsed = reading(COUNT, asked, raws, forwarded, asked.model, short_enough(size_bytes), kind)
        return priced(parsed, of_messages(asked), limits)
    except Unacceptable as error:
        return error.fault


def _thinking_within(thinking: ThinkingAsked, raw: msgspec.Raw, output_tokens_max: int) -> bytes | None:
    """What is sent of it: a budget that the limit leaves no room for would have the engine refuse all of it."""
    if thinking.budget_tokens is None or thinking.budget_tokens < output_tokens_max:
        return bytes(raw)
    if output_tokens_max <= THINKING_TOKENS_MIN:
        return None
    return b'{"type":"enabled","budget_tokens":%d}' % (output_tokens_max - 1)


def _size(asked: CountFields, raws: Raws) -> tuple[int, str]:
    form = asked.output_config.format if asked.output_config is not None else None
    if form is not None:
        check_schema(form.schema, "output_config.format.schema")
    found, marks_bytes = _texts(asked)
    tools_bytes = 0
    if asked.tools is not None:
        for index, tool in enumerate(asked.tools):
            check_schema(tool.input_schema, f"tools[{index}].input_schema")
        tools_bytes = flat_tools_bytes(raws["tools"], len(asked.tools))
    return size_of(found, marks_bytes, tools_bytes)


def texts(parsed: Parsed) -> tuple[list[str], int]:
    """What a tokenizer has to count, and how many tokens its marks take at most."""
    asked = parsed.asked
    assert isinstance(asked, CountFields)
    found, marks_bytes = _texts(asked)
    if asked.tools is not None:
        found.append(flat_tools_text(parsed.raws["tools"]))
        marks_bytes += flat_tools_bytes(parsed.raws["tools"], len(asked.tools)) - len(found[-1])
    return found, marks_bytes


def _texts(asked: CountFields) -> tuple[list[str], int]:
    """Everything that may become a part of the prompt, but for the tools; and what a template adds to it."""
    found: list[str] = []
    marks_bytes = MESSAGE_BYTES
    if isinstance(asked.system, str):
        found.append(asked.system)
    elif asked.system is not None:
        found += [block.text for block in asked.system]
    for index, message in enumerate(asked.messages):
        marks_bytes += MESSAGE_BYTES
        if isinstance(message.content, str):
            found.append(message.content)
            continue
        for block in message.content:
            if isinstance(block, ToolResult):
                marks_bytes += MESSAGE_BYTES
            found += _block_texts(block, f"messages[{index}].content")
    form = asked.output_config.format if asked.output_config is not None else None
    if form is not None:
        found.append(bytes(form.schema).decode())
    return found, marks_bytes


def _block_texts(block: Block, where: str) -> list[str]:
    if isinstance(block, Text):
        return [block.text]
    if isinstance(block, Thinking):
        return [block.thinking]
    if isinstance(block, ToolUse):
        return [block.id, block.name, _input_text(block.input, where)]
    if isinstance(block, ToolResult):
        content = block.content
        answered = [content] if isinstance(content, str) else [one.text for one in content or ()]
        return [block.tool_use_id, *answered]
    return []  # an image (`parts.py`), or what nobody can read and an engine drops


def _input_text(raw: msgspec.Raw, where: str) -> str:
    """A tool's input as the JSON text that it becomes: its names are its author's, and its depth is bounded."""
    try:
        decoded = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(f"{where}: the input of a tool: {str(error)[:200]}.", where) from error
    if not isinstance(decoded, dict):
        raise invalid(f"{where}: the input of a tool is an object.", where)
    level = [decoded]
    for _ in range(NESTING_MAX):
        below = [child for node in level for child in (node.values() if type(node) is dict else node)]
        level = [child for child in below if type(child) in (dict, list)]
        if not level:
            return json.dumps(decoded)
    raise invalid(f"{where}: the input of a tool is nested more than {NESTING_MAX} levels deep.", where)
