"""POST /v1/responses: OpenAI's second form of a chat, streamed as typed events or not.

Nothing is kept between requests: an engine that kept answers would give them to whoever names them, whichever tenant that is,
and a conversation that is named instead of sent could not be priced. So `store` is read as a wish that cannot be met and sent
as false, and what builds on it (`previous_response_id`, `conversation`, `background`) is refused by name.
"""

from __future__ import annotations

from headworks.gateway.dialects.base import Fault, Limits, Parsed, Route, Unacceptable, read, within
from headworks.gateway.dialects.chat import MESSAGE_BYTES
from headworks.gateway.dialects.fields import TOKENS_RANGE_MAX, check_schema, invalid, not_allowed
from headworks.gateway.dialects.parts import of_responses, priced
from headworks.gateway.dialects.responses_fields import InputImage, Item, Part, Refusal, ResponseFields
from headworks.gateway.dialects.sizes import flat_tools_bytes, flat_tools_text, size_of

ROUTE: Route[ResponseFields] = Route("/v1/responses", ResponseFields)
LIMIT_KEY = b'"max_output_tokens":'
STREAM_TAIL = b',"stream":true'
TAIL = b',"store":false'


def parse(body: bytes, limits: Limits) -> Parsed | Fault:
    """What is asked for, or what is wrong with it."""
    try:
        asked, raws, forwarded = read(ROUTE, body)
        if asked.background:
            raise not_allowed("background")
        stream = bool(asked.stream)
        if asked.stream_options is not None and not stream:
            raise invalid("stream_options needs stream to be true.", "stream_options")
        form = asked.text.format if asked.text is not None else None
        if form is not None and bytes(form.schema):
            check_schema(form.schema, "text.format.schema")
        found, marks_bytes = _texts(asked)
        tools_bytes = 0
        if asked.tools is not None:
            for index, tool in enumerate(asked.tools):
                if bytes(tool.parameters):
                    check_schema(tool.parameters, f"tools[{index}].parameters")
            tools_bytes = flat_tools_bytes(raws["tools"], len(asked.tools))
        size_bytes, kind = size_of(found, marks_bytes, tools_bytes)
        most = within(asked.max_output_tokens, limits)
        least = (TOKENS_RANGE_MAX if most is None else most) if asked.ignore_eos else 0
        parsed = Parsed(
            ROUTE.path,
            asked,
            raws,
            forwarded,
            asked.model,
            size_bytes,
            None,
            most,
            least,
            1,
            stream,
            True,
            LIMIT_KEY,
            not stream,
            kind,
            1,
            STREAM_TAIL,
            TAIL,
        )
        return priced(parsed, of_responses(asked), limits)
    except Unacceptable as error:
        return error.fault


def texts(parsed: Parsed) -> tuple[list[str], int]:
    """What a tokenizer has to count, and how many tokens its marks take at most."""
    asked = parsed.asked
    assert isinstance(asked, ResponseFields)
    found, marks_bytes = _texts(asked)
    if asked.tools is not None:
        found.append(flat_tools_text(parsed.raws["tools"]))
        marks_bytes += flat_tools_bytes(parsed.raws["tools"], len(asked.tools)) - len(found[-1])
    return found, marks_bytes


def _texts(asked: ResponseFields) -> tuple[list[str], int]:
    """Everything that may become a part of the prompt, but for the tools; and what a template adds to it."""
    found: list[str] = []
    marks_bytes = MESSAGE_BYTES
    if asked.instructions is not None:
        found.append(asked.instructions)
        marks_bytes += MESSAGE_BYTES
    if isinstance(asked.input, str):
        found.append(asked.input)
    else:
        marks_bytes += MESSAGE_BYTES * len(asked.input)
        for item in asked.input:
            found += _item_texts(item)
    form = asked.text.format if asked.text is not None else None
    if form is not None and bytes(form.schema):
        found.append(bytes(form.schema).decode())
    return found, marks_bytes


def _item_texts(item: Item) -> list[str]:
    found = [text for text in (item.call_id, item.name, item.arguments, item.encrypted_content) if text]
    for content in (item.content, item.output, item.summary):
        if isinstance(content, str):
            found.append(content)
        elif content is not None:
            found += map(_part_text, content)
    return found


def _part_text(part: Part) -> str:
    if isinstance(part, InputImage):
        return ""
    return part.refusal if isinstance(part, Refusal) else part.text
