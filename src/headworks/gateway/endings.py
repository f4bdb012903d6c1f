"""How an answer that is ended here ends: as any other that has reached its limit (A8, `length`).

A client must not need to know that there is a gateway. So the last events are made in the words of the engine's own first
one, under the same id: a chunk with `finish_reason: length` for each choice that has none yet, the usage if it was
asked for, `[DONE]`. The tokens of that usage are those counted here, since the engine will not say any more: output by
its events, the prompt as it was estimated.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from headworks.gateway.event_stream import content_of

DONE = b"data: [DONE]\n\n"
LENGTH = "length"


def length_ending(opening: bytes, samples: int, finished: Collection[int], usage: tuple[int, int] | None) -> bytes:
    """The events that are still missing, or nothing if the first one (in `opening`) is of no form we know.

    `usage`: prompt and output tokens, if its client asked for them.
    """
    first = _first_chunk(opening)
    if first is None:
        return b""
    is_chat = "delta" in first["choices"][0]
    envelope = {name: value for name, value in first.items() if name not in ("choices", "usage")}
    events = [
        envelope | {"choices": [_last(index, is_chat)]} | ({} if usage is None else {"usage": None})
        for index in range(samples)
        if index not in finished
    ]
    if usage is not None:
        prompt_tokens, output_tokens = usage
        told = {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + output_tokens,
            "completion_tokens": output_tokens,
        }
        events.append(envelope | {"choices": [], "usage": told})
    return b"".join([b"data: %b\n\n" % msgspec.json.encode(event) for event in events]) + DONE


def _last(index: int, is_chat: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"delta": {}} if is_chat else {"text": ""}
    return {"index": index, **content, "logprobs": None, "finish_reason": LENGTH, "stop_reason": None}


def _first_chunk(opening: bytes) -> dict[str, Any] | None:
    """The first event that has a choice, as it was written."""
    for event in opening.replace(b"\r\n", b"\n").split(b"\n\n"):
        content = content_of(event)
        if content is None:
            continue
        try:
            chunk = msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError):
            continue
        if isinstance(chunk, dict) and isinstance(chunk.get("choices"), list) and chunk["choices"]:
            choice = chunk["choices"][0]
            if isinstance(choice, dict) and ("delta" in choice or "text" in choice):
                return chunk
    return None
