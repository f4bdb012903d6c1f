"""The usage of several answers to one request, where the engine has each of them say what it alone used (llama.cpp).

Clients, quotas and bills want one figure: every prompt once, the output of all answers. In a stream each answer states its own
part when it ends, so the parts are added up, and the client that asked for a usage is shown their sum with the last one.
An answer in one piece states the first answer's part only. So it is put together from a stream wherever that is exact; where it
is not (tool calls, log probabilities), the first one's word is supposed of all, and marked as not exact.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headworks.engines.base import Engine
from headworks.gateway.assembly import Assembled
from headworks.gateway.dialects.base import Parsed
from headworks.gateway.engine_words import PromptDetails, Supposed, WireUsage
from headworks.gateway.event_stream import EventStream, content_of, read_answer
from headworks.gateway.outlet import Outlet


def speech(engine: Engine, parsed: Parsed) -> EachUsage | None:
    """How the answers to this request are read, if this engine has each say its own."""
    if not engine.usage_each:
        return None
    return EachUsage(parsed.samples, parsed.prompts, parsed.include_usage_asked or not parsed.stream)


class EachUsage:
    """See the module (`dialects.typed_stream.Speech`)."""

    def __init__(self, samples: int, prompts: int, include_usage_asked: bool) -> None:
        self._samples, self._prompts = samples, prompts
        self._include_usage_asked = include_usage_asked

    def stream(self) -> EventStream:
        return _EachStream(self._samples, self._prompts, self._include_usage_asked)

    def whole(self, body: bytes) -> tuple[str, WireUsage | None]:
        reason, first = read_answer(body)
        if first is None:
            return reason, None
        return reason, Supposed(first.prompt_tokens * self._prompts, first.completion_tokens * self._samples)

    def assembled(self, audience: Outlet) -> Outlet:
        return Assembled(audience)


class _EachStream(EventStream):
    """Adds up what its answers say, and tells the sum in the place of the last part."""

    __slots__ = ("_cached_tokens", "_output_tokens", "_prompt_tokens", "_share", "_shows", "_stated")

    def __init__(self, samples: int, prompts: int, include_usage_asked: bool) -> None:
        super().__init__(samples, True)
        self._shows = include_usage_asked
        self._share = samples // prompts
        """So many answers have one prompt, and each of them states it."""
        self._stated = self._prompt_tokens = self._cached_tokens = self._output_tokens = 0

    def _sift(self, whole: bytes, boundary: bytes) -> bytes:
        kept: list[bytes] = []
        for event in whole[: -len(boundary)].split(boundary):
            before, self.usage = self.usage, None
            passes = self._look(event)
            if self.usage is None:
                self.usage = before
            elif passes:
                self._add(self.usage)
                event = self._retold(event)
            if passes and event:
                kept.append(event)
            if self.error is not None:
                break
        kept.append(b"")
        return boundary.join(kept)

    def _add(self, part: WireUsage) -> None:
        details = part.prompt_tokens_details
        self._stated += 1
        self._prompt_tokens += part.prompt_tokens
        self._cached_tokens += (details.cached_tokens or 0) if details is not None else 0
        self._output_tokens += part.completion_tokens
        kind = WireUsage if self._stated == self._samples else Supposed
        cached = PromptDetails(self._cached_tokens // self._share)
        self.usage = kind(self._prompt_tokens // self._share, self._output_tokens, cached)

    def _retold(self, event: bytes) -> bytes:
        """The event that stated a part, without it, or with the sum; nothing where nothing else was in it."""
        try:
            fields: dict[str, Any] = msgspec.json.decode(content_of(event) or b"{}")
        except (msgspec.DecodeError, RecursionError):
            return event  # what we read of it was in order, and what else there is, is its client's business
        del fields["usage"]
        if self._shows and self._stated == self._samples and self.usage is not None:
            usage = self.usage
            fields["usage"] = {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
                "prompt_tokens_details": usage.prompt_tokens_details,
            }
        return b"data: " + msgspec.json.encode(fields) if fields.get("choices") or "usage" in fields else b""
