"""What an engine says in an answer of `/v1/messages`: read, ended here where it has to be, and put together.

`message_start` has the prompt's tokens, `message_delta` how it ended and what was used, `message_stop` closes. A `stop_reason`
of null is what an engine says of an answer that it aborted, which is no proof that it did. `ping` passes, and counts nothing.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from headworks.gateway.dialects.typed_stream import LENGTH, TypedStream, event_of
from headworks.gateway.engine_words import PromptDetails, WireUsage
from headworks.gateway.event_stream import ABORTED, UNFIT
from headworks.gateway.one_piece import OnePiece
from headworks.gateway.outlet import Outlet

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
MAX_TOKENS = "max_tokens"
_ENDS = {"end_turn": "stop", "stop_sequence": "stop", MAX_TOKENS: LENGTH, "tool_use": "tool_calls"}


class _Used(msgspec.Struct, gc=False):
    """Of a prompt Anthropic counts apart what was in the cache already and what was put there."""

    input_tokens: _Count | None = None
    output_tokens: _Count | None = None
    cache_read_input_tokens: _Count | None = None
    cache_creation_input_tokens: _Count | None = None

    def wire(self, before: WireUsage | None) -> WireUsage:
        """What is said here, and where nothing is said what was said `before`."""
        cached = self.cache_read_input_tokens or 0
        if self.input_tokens is None:
            prompt_tokens = 0 if before is None else before.prompt_tokens
            details = None if before is None else before.prompt_tokens_details
        else:
            prompt_tokens = self.input_tokens + cached + (self.cache_creation_input_tokens or 0)
            details = PromptDetails(cached) if cached else None
        return WireUsage(prompt_tokens, self.output_tokens or 0, details)


class _Head(msgspec.Struct, gc=False):
    stop_reason: str | None = None
    usage: _Used | None = None


class _Delta(msgspec.Struct, gc=False):
    stop_reason: str | None = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    index: int = 0
    message: _Head | None = None
    delta: _Delta | None = None
    usage: _Used | None = None


_event = msgspec.json.Decoder(_Event).decode
_head = msgspec.json.Decoder(_Head).decode


def _end_of(stop_reason: str | None) -> str:
    """A reason that is not known here is one all the same; none is none."""
    return ABORTED if stop_reason is None else _ENDS.get(stop_reason, "stop")


class MessageStream(TypedStream):
    """One answer's events."""

    __slots__ = ("_block", "_started")

    def __init__(self) -> None:
        super().__init__()
        self._block: int | None = None
        """The block that is being written."""
        self._started = False

    def _read(self, content: bytes) -> bool:
        event = _event(content)
        kind = event.type
        if kind == "content_block_delta":
            self.token_events += 1
        elif kind == "content_block_start":
            self._block = event.index
        elif kind == "content_block_stop":
            self._block = None
        elif kind == "message_start":
            self._started = True
            if event.message is not None and event.message.usage is not None:
                self.usage = event.message.usage.wire(None)
        elif kind == "message_delta":
            if event.usage is not None:
                self.usage = event.usage.wire(self.usage)
            self._ended(_end_of(event.delta.stop_reason if event.delta is not None else None))
        elif kind == "message_stop":
            self.done = True
        elif kind == "error":
            self.error = content
            return False
        return True

    def ending(self, prompt_tokens: int, output_tokens: int) -> bytes:
        if not self._started:
            return b""
        written = []
        if self._block is not None:
            written.append(event_of("content_block_stop", {"type": "content_block_stop", "index": self._block}))
        if 0 not in self.finished:
            usage = {"input_tokens": prompt_tokens, "output_tokens": output_tokens}
            delta = {"stop_reason": MAX_TOKENS, "stop_sequence": None}
            written.append(event_of("message_delta", {"type": "message_delta", "delta": delta, "usage": usage}))
        written.append(event_of("message_stop", {"type": "message_stop"}))
        return b"".join(written)


class AssembledMessage(OnePiece):
    """Puts a message together of its blocks, which are text and thinking: others are written differently in streams."""

    __slots__ = ("_blocks", "_broken", "_message", "_stopped")

    def __init__(self, audience: Outlet) -> None:
        super().__init__(audience)
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, tuple[dict[str, Any], dict[str, list[str]]]] = {}
        """Each as it began, and the pieces of its fields."""
        self._stopped = self._broken = False

    def _read(self, content: bytes) -> None:
        try:
            event: dict[str, Any] = msgspec.json.decode(content)
            kind = event["type"]
            if kind == "message_start":
                self._message = dict(event["message"])
            elif kind == "content_block_start":
                self._blocks[event["index"]] = dict(event["content_block"]), {}
            elif kind == "content_block_delta":
                pieces = self._blocks[event["index"]][1]
                for name, text in event["delta"].items():
                    if name != "type":
                        pieces.setdefault(name, []).append(text)
            elif kind == "message_delta":
                self._message |= {name: value for name, value in event["delta"].items() if value is not None}
                self._message["usage"] = (self._message.get("usage") or {}) | (event.get("usage") or {})
            elif kind == "message_stop":
                self._stopped = True
        except UNFIT:
            self._broken = True  # part of the answer, and nobody knows which

    def _body(self) -> bytes:
        if self._broken or not self._stopped or not self._message:
            return b""
        content = []
        for _, (block, pieces) in sorted(self._blocks.items(), key=_index):
            content.append(block | {name: block.get(name, "") + "".join(texts) for name, texts in pieces.items()})
        self._message["content"] = content or [{"type": "text", "text": ""}]
        return msgspec.json.encode(self._message)


def _index(entry: tuple[int, object]) -> int:
    return entry[0]


class MessageSpeech:
    """How answers of this route are read (`typed_stream.Speech`)."""

    def stream(self) -> TypedStream:
        return MessageStream()

    def whole(self, body: bytes) -> tuple[str, WireUsage | None]:
        head = _head(body)
        return _end_of(head.stop_reason), None if head.usage is None else head.usage.wire(None)

    def assembled(self, audience: Outlet) -> Outlet:
        return AssembledMessage(audience)


SPEECH = MessageSpeech()
