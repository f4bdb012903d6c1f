"""A whole answer from a stream: for clients that want one piece of an answer that may have to grow (A8).

How far an answer is can only be seen while it is streamed. So the engine is asked for a stream, which is read here, and
the client gets the one body it asked for, with its own status if something goes wrong: nothing is sent before the end.

Only where that is exact. `dialects/fields.py` lists the fields of requests for which it is (`ASSEMBLED_EXACTLY`): a text a
choice, with its finish reason. Tool calls, log probabilities and echoed prompts are written differently in streams;
such requests are not streamed, and reserve all that they may write.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headworks.gateway.one_piece import OnePiece
from headworks.gateway.outlet import Outlet

WHOLE_OBJECTS = {"chat.completion.chunk": "chat.completion"}
"""What the whole is called, where it is not called the same."""


class _Part(msgspec.Struct, gc=False):
    """What an event says of one choice."""

    index: int = 0
    delta: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: Any = None


class _Chunk(msgspec.Struct, gc=False):
    """One event."""

    id: str = ""
    object: str = ""
    created: int = 0
    model: str = ""
    choices: list[_Part] = []
    usage: dict[str, Any] | None = None
    system_fingerprint: str | None = None


_decode = msgspec.json.Decoder(_Chunk).decode


class _Whole:
    """One choice, as far as it has come."""

    __slots__ = ("fields", "finish_reason", "pieces", "stop_reason")

    def __init__(self) -> None:
        self.pieces: dict[str, list[str]] = {}
        """Texts by the name of their field, in the order in which they came."""
        self.fields: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self.stop_reason: Any = None

    def add(self, part: _Part) -> None:
        if part.text is not None:
            self.pieces.setdefault("text", []).append(part.text)
        for name, value in (part.delta or {}).items():
            if name != "role" and type(value) is str:
                self.pieces.setdefault(name, []).append(value)
            elif value is not None:
                self.fields[name] = value
        if part.finish_reason is not None:
            self.finish_reason, self.stop_reason = part.finish_reason, part.stop_reason

    def choice(self, index: int, is_chat: bool) -> dict[str, Any]:
        """As it stands in a whole answer."""
        texts = {name: "".join(pieces) for name, pieces in self.pieces.items()}
        content: dict[str, Any] = {"text": texts.get("text", "")}
        if is_chat:
            content = {"message": {"role": "assistant", "content": None} | self.fields | texts}
        return {
            "index": index,
            **content,
            "logprobs": None,
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
        }


class Assembled(OnePiece):
    """The choices of a stream, put together."""

    __slots__ = ("_broken", "_choices", "_first", "_usage")

    def __init__(self, audience: Outlet) -> None:
        super().__init__(audience)
        self._first: _Chunk | None = None
        self._choices: dict[int, _Whole] = {}
        self._usage: dict[str, Any] | None = None
        self._broken = False

    def _read(self, content: bytes) -> None:
        if content == b"[DONE]" or self._broken:
            return
        try:
            chunk = _decode(content)
        except (msgspec.DecodeError, RecursionError):
            self._broken = True  # part of the answer, and nobody knows which
            return
        if self._first is None and chunk.choices:
            self._first = chunk
        for part in chunk.choices:
            whole = self._choices.get(part.index)
            if whole is None:
                whole = self._choices[part.index] = _Whole()
            whole.add(part)
        if chunk.usage is not None:
            self._usage = chunk.usage

    def _drop(self) -> None:
        self._choices.clear()

    def _body(self) -> bytes:
        first = self._first
        if first is None or self._broken:
            return b""
        is_chat = first.object in WHOLE_OBJECTS
        body: dict[str, Any] = {
            "id": first.id,
            "object": WHOLE_OBJECTS.get(first.object, first.object),
            "created": first.created,
            "model": first.model,
            "choices": [self._choices[index].choice(index, is_chat) for index in sorted(self._choices)],
            "system_fingerprint": first.system_fingerprint,
            "usage": self._usage,
        }
        return msgspec.json.encode(body)
