"""POST /v1/chat/completions: messages of known roles with text, tools, and one limit for each answer.

Every part of every message is decoded by type, so that no key hides in it; what is not text is priced by a rule of its
model's, or refused (`parts.py`).
"""

from __future__ import annotations

import msgspec

from headworks.core.prompt_sizes import TEXT
from headworks.gateway.dialects.base import Fault, Limits, Parsed, Raws, Route, Unacceptable, assemble, read
from headworks.gateway.dialects.chat_fields import (
    Assistant,
    AudioPart,
    ChatFields,
    Developer,
    ImagePart,
    OfferedTool,
    RefusalPart,
    System,
    TextPart,
    User,
)
from headworks.gateway.dialects.fields import (
    DENSE_FROM_BYTES,
    NESTING_MAX,
    check_schema,
    composed_bytes,
    is_dense,
    kind_of,
    response_format_bytes,
    text_bytes,
)
from headworks.gateway.dialects.parts import of_chat, priced

MESSAGE_BYTES = 8
"""What a template adds to each message: its role and marks."""
INDENT = 4
TOOL_LEVELS = 3
"""A schema stands so deep in the list of tools."""
WRITTEN_BYTES_MAX = 4_000_000
"""Tools that may be written longer are not written to be measured: it would hold up everybody else."""
TOOL_BYTES = 64
"""What it adds to each tool: fields that were left out, as null."""


ROUTE: Route[ChatFields] = Route("/v1/chat/completions", ChatFields)


def parse(body: bytes, limits: Limits) -> Parsed | Fault:
    """What is asked for, or what is wrong with it."""
    try:
        asked, raws, forwarded = read(ROUTE, body)
        size_bytes, kind = prompt_size(asked, raws)
        parsed = assemble(ROUTE, asked, raws, forwarded, limits, size_bytes, kind, second_limit=asked.max_completion_tokens)
        return priced(parsed, of_chat(asked), limits) if _has_parts(asked) else parsed
    except Unacceptable as error:
        return error.fault


def _has_parts(asked: ChatFields) -> bool:
    for message in asked.messages:  # noqa: SIM110 (of each request, and a generator costs three thousand instructions)
        if type(message.content) is list:
            return True
    return False


def prompt_size(asked: ChatFields, raws: Raws) -> tuple[int, str]:
    """Bytes of everything that a template may write into the prompt, and the kind of most of it."""
    total = beyond_bytes = dense_bytes = tools_bytes = 0
    for message in asked.messages:
        content = message.content
        total += MESSAGE_BYTES
        if isinstance(content, str):
            size_bytes = len(content)
            if not content.isascii():
                size_bytes = composed_bytes(content)
                beyond_bytes += size_bytes - len(content)
            elif size_bytes >= DENSE_FROM_BYTES and is_dense(content):
                dense_bytes += size_bytes
            total += size_bytes
        elif content is not None:
            texts = [_part_text(part) for part in content]
            size_bytes = sum(map(text_bytes, texts))
            beyond_bytes += size_bytes - sum(map(len, texts))
            total += size_bytes
        if message.name is not None:
            total += text_bytes(message.name)
        if type(message) is Assistant:
            total += _assistant_bytes(message)
    if asked.tools is not None:
        tools_bytes = _tools_bytes(asked.tools, raws["tools"])
        total += tools_bytes
    if asked.response_format is not None:
        total += response_format_bytes(asked.response_format)
    if beyond_bytes or dense_bytes or tools_bytes:
        return total, kind_of(total, beyond_bytes, dense_bytes, tools_bytes)
    return total, TEXT


def without_examples(asked: ChatFields) -> list[int]:
    """The messages that are left without what stands before the last one of its user: instructions, and that one on."""
    messages = asked.messages
    last = max((index for index, message in enumerate(messages) if type(message) is User), default=0)
    return [index for index, message in enumerate(messages) if index >= last or type(message) in (System, Developer)]


def size_without_examples(asked: ChatFields, raws: Raws) -> int:
    """How large its prompt is then."""
    kept = [asked.messages[index] for index in without_examples(asked)]
    return prompt_size(msgspec.structs.replace(asked, messages=kept), raws)[0]


def _part_text(part: TextPart | RefusalPart | ImagePart | AudioPart) -> str:
    """What of it is text: of images and audio nothing (`parts.py`)."""
    if isinstance(part, TextPart):
        return part.text
    return part.refusal if isinstance(part, RefusalPart) else ""


def _assistant_bytes(message: Assistant) -> int:
    """What an earlier answer holds beside its text."""
    return sum(map(text_bytes, _assistant_texts(message)))


def _assistant_texts(message: Assistant) -> list[str]:
    texts = [text for text in (message.refusal, message.reasoning, message.reasoning_content) if text]
    for call in message.tool_calls or ():
        texts += call.id, call.function.name, call.function.arguments
    return texts


def _tools_bytes(tools: list[OfferedTool], raw: msgspec.Raw) -> int:
    """Tools are written into the prompt by the template, by many with each key on a line of its own."""
    for index, tool in enumerate(tools):
        if bytes(tool.function.parameters):
            check_schema(tool.function.parameters, f"tools[{index}].function.parameters")
    return tools_written_bytes(raw) + TOOL_BYTES * len(tools)


def tools_written_bytes(raw: msgspec.Raw) -> int:
    """What a template makes of them, exactly; of very many, or of very deep ones, the most that it can be."""
    written = bytes(raw)
    lines = written.count(b",") + 2 * (written.count(b"[") + written.count(b"{"))
    most = len(written) + lines * (2 + INDENT * (NESTING_MAX + TOOL_LEVELS))
    return most if most > WRITTEN_BYTES_MAX else len(tools_written(raw))


def tools_written(raw: msgspec.Raw) -> bytes:
    return msgspec.json.format(raw, indent=INDENT)


def texts(parsed: Parsed) -> tuple[list[str], int]:
    """What a tokenizer has to count, in the order of the prompt; and how many tokens its marks take at most."""
    asked = parsed.asked
    assert isinstance(asked, ChatFields)
    found: list[str] = []
    for message in asked.messages:
        content = message.content
        if isinstance(content, str):
            found.append(content)
        elif content is not None:
            found += map(_part_text, content)
        if message.name is not None:
            found.append(message.name)
        if type(message) is Assistant:
            found += _assistant_texts(message)
    if asked.tools is not None:
        found.append(tools_written(parsed.raws["tools"]).decode())
    if asked.response_format is not None and asked.response_format.json_schema is not None:
        found.append(bytes(asked.response_format.json_schema.schema).decode())
    return found, MESSAGE_BYTES * len(asked.messages) + TOOL_BYTES * len(asked.tools or ())
