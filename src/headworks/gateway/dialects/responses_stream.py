"""What an engine says in an answer of `/v1/responses`: read, ended here where it has to be, and put together.

The last event carries the whole answer, so one that is not streamed is exactly that event's (A8). An answer that is ended
here ends in the engine's own words: the items that it had finished, the one it was writing with its text so far, and the
answer of its first event, marked as incomplete.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from headworks.gateway.dialects.typed_stream import LENGTH, TypedStream, event_of
from headworks.gateway.engine_words import PromptDetails, WireUsage
from headworks.gateway.event_stream import ABORTED, UNFIT
from headworks.gateway.one_piece import OnePiece
from headworks.gateway.outlet import Outlet

LAST = frozenset({"response.completed", "response.incomplete"})
DELTA = ".delta"
INCOMPLETE = "incomplete"
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class _Used(msgspec.Struct, gc=False):
    input_tokens: _Count = 0
    output_tokens: _Count = 0
    input_tokens_details: PromptDetails | None = None

    def wire(self) -> WireUsage:
        return WireUsage(self.input_tokens, self.output_tokens, self.input_tokens_details)


class _Answer(msgspec.Struct, gc=False):
    status: str | None = None
    usage: _Used | None = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    response: msgspec.Raw = msgspec.Raw()
    item: msgspec.Raw = msgspec.Raw()
    output_index: int = 0
    delta: msgspec.Raw = msgspec.Raw()
    sequence_number: int = 0


_event = msgspec.json.Decoder(_Event).decode
_answer = msgspec.json.Decoder(_Answer).decode
_ENDS = {"completed": "stop", INCOMPLETE: LENGTH}
"""A status of an answer that has ended, and the word for it elsewhere. `cancelled` is no proof of an end (`event_stream`)."""


def _end_of(status: str | None) -> str:
    return _ENDS.get(status or "", ABORTED)


class ResponseStream(TypedStream):
    """One answer's events, and as much of it as it takes to end it here."""

    __slots__ = ("_first", "_item", "_items", "_number", "_text")

    def __init__(self) -> None:
        super().__init__()
        self._first = b""
        """The answer as its first event had it."""
        self._item = b""
        """The item that is being written, as it began."""
        self._items: list[bytes] = []
        """Those that are finished."""
        self._text: list[str] = []
        self._number = 0

    def _read(self, content: bytes) -> bool:
        event = _event(content)
        kind = event.type
        self._number = event.sequence_number
        if kind.endswith(DELTA):
            self.token_events += 1
            if kind == "response.output_text.delta":
                self._text.append(msgspec.json.decode(event.delta, type=str))
        elif kind in LAST:
            answer = _answer(event.response)
            self.done = True
            if answer.usage is not None:
                self.usage = answer.usage.wire()
            self._ended(_end_of(answer.status))
        elif kind in ("error", "response.failed"):
            self.error = content
            return False
        elif kind == "response.created":
            self._first = bytes(event.response)
        elif kind == "response.output_item.added":
            self._item, self._text = bytes(event.item), []
        elif kind == "response.output_item.done":
            self._items.append(bytes(event.item))
            self._item, self._text = b"", []
        return True

    def ending(self, prompt_tokens: int, output_tokens: int) -> bytes:
        try:
            return self._ended_here(prompt_tokens, output_tokens) if self._first else b""
        except UNFIT:  # nobody looked at all of what was kept
            return b""

    def _ended_here(self, prompt_tokens: int, output_tokens: int) -> bytes:
        answer: dict[str, Any] = msgspec.json.decode(self._first)
        items = [msgspec.json.decode(item) for item in self._items]
        written: list[tuple[str, dict[str, Any]]] = []
        if self._item:
            item: dict[str, Any] = msgspec.json.decode(self._item)
            written = self._close_item(item, len(items))
            items.append(item)
        answer |= {
            "status": INCOMPLETE,
            "incomplete_details": {"reason": "max_output_tokens"},
            "output": items,
            "usage": {
                "input_tokens": prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt_tokens + output_tokens,
            },
        }
        written.append(("response.incomplete", {"response": answer}))
        return b"".join(
            event_of(kind, {"type": kind, "sequence_number": self._number + 1 + index, **content})
            for index, (kind, content) in enumerate(written)
        )

    def _close_item(self, item: dict[str, Any], index: int) -> list[tuple[str, dict[str, Any]]]:
        """The events that end the item that is being written; a message has its text so far in it."""
        item["status"] = INCOMPLETE
        where = {"item_id": item.get("id"), "output_index": index}
        if item.get("type") != "message":
            return [("response.output_item.done", {"output_index": index, "item": item})]
        text = "".join(self._text)
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        item["content"] = [part]
        return [
            ("response.output_text.done", {**where, "content_index": 0, "text": text, "logprobs": []}),
            ("response.content_part.done", {**where, "content_index": 0, "part": part}),
            ("response.output_item.done", {"output_index": index, "item": item}),
        ]


class AssembledResponse(OnePiece):
    """Waits for the last event: the answer is in it."""

    __slots__ = ("_last",)

    def __init__(self, audience: Outlet) -> None:
        super().__init__(audience)
        self._last = b""

    def _read(self, content: bytes) -> None:
        self._last = content

    def _body(self) -> bytes:
        last = _event(self._last)
        return bytes(last.response) if last.type in LAST else b""


class ResponseSpeech:
    """How answers of this route are read (`typed_stream.Speech`)."""

    def stream(self) -> TypedStream:
        return ResponseStream()

    def whole(self, body: bytes) -> tuple[str, WireUsage | None]:
        answer = _answer(body)
        return _end_of(answer.status), None if answer.usage is None else answer.usage.wire()

    def assembled(self, audience: Outlet) -> Outlet:
        return AssembledResponse(audience)


SPEECH = ResponseSpeech()
