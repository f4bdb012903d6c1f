"""Reading an engine's event stream while it passes: how far it is, how it ends, what it used. Bytes in, bytes out.

Almost every piece is a few token events and leaves as the very object that came in: with one sample, a piece whose
events each say `"finish_reason":null` and that ends on an event boundary cannot hold anything else of interest, since
a quote inside generated text is always escaped. Only other pieces are taken apart. An event that is split across reads
is held until it is whole, so that whatever is written to a client ends on an event boundary.

`[DONE]` alone is no success: an engine that died says an error event and then `[DONE]`. A choice that ended with
`abort` has not ended as far as anybody knows: the word comes from the engine's front, before its scheduler acted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from headworks.engines.base import Passage
from headworks.gateway.engine_words import Piece, WireUsage, decode_piece

TAIL_BYTES_MAX = 256
EVENT_BYTES_MAX = 10 * 1024 * 1024
"""A single event is no longer than a body may be (an echoed prompt), with room for escapes."""

_LF, _CRLF = b"\n\n", b"\r\n\r\n"
_FRAME_END = b"\n\n\r\n"
_REASON = b'"finish_reason":'
_UNFINISHED = b'"finish_reason":null'
ABORTED = "abort"
UNREADABLE = "unreadable"
UNFIT = (msgspec.MsgspecError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""What is raised where words of an engine's that were kept are put together, and are not of the form that they should have."""
NO_PROOF = {
    ABORTED: "the engine says it aborted, which is no proof that it did",
    UNREADABLE: "what came is no JSON: somebody else's page, or a part of an answer",
}
"""How an answer in one piece may end without an end of what was asked for (E1), and why it is none."""


class EventStream:
    """One answer's events. `take` is given what came and returns what the client gets of it."""

    # fmt: off
    __slots__ = (
        "_boundary", "_carry", "_hide_usage", "_left", "_passage", "_samples", "done", "error", "finished", "token_events",
        "usage",
    )
    # fmt: on

    def __init__(self, samples: int, include_usage_asked: bool) -> None:
        self._samples = samples
        self._hide_usage = not include_usage_asked
        self._boundary = _LF
        self._carry = bytearray()
        self._passage: Passage | None = None
        self._left = 0
        """What was left of the passage when it was last looked at; the difference has gone to the client since."""
        self.token_events = 0
        """Events with a choice in them, so about as many as tokens."""
        self.finished: dict[int, str] = {}
        """Choice → its finish reason."""
        self.usage: WireUsage | None = None
        self.done = False
        """`[DONE]` came."""
        self.error: bytes | None = None
        """The error event that came instead of an end. Nothing after it is passed on."""

    def take(self, payload: bytes) -> bytes:
        """The same object where nothing is held or hidden."""
        if self._samples == 1 and not self._carry:
            events = payload.count(_LF)
            if payload.count(_UNFINISHED) == events and payload.endswith(_LF):
                self.token_events += events
                return payload
        return self._take_apart(payload)

    def let_pass(self, frame: bytes, left: int, write: Callable[[bytes], None]) -> Passage | None:
        """Leave for frames like this one to pass unseen, if it holds one line, of one token.

        What stands from `"finish_reason":null` on is the same in every token's event of a stream. So a later frame of one
        line that ends in the very same bytes tells of a token and of nothing else.
        """
        begin = frame.rfind(_UNFINISHED)
        if self._samples != 1 or self._carry or begin < 0 or len(frame) - begin > TAIL_BYTES_MAX:
            return None
        tail = frame[begin:]
        if not tail.endswith(_FRAME_END) or tail.find(b"\n") != len(tail) - len(_FRAME_END):
            return None
        passage = self._passage
        if passage is None:
            passage = self._passage = Passage()
        passage.tail, passage.write = tail, write
        passage.left = self._left = left
        return passage

    def count_passed(self) -> bool:
        """Count the frames that have passed unseen. Whether there were any since the last count."""
        if self._passage is None or self._passage.left == self._left:
            return False
        self.token_events += self._left - self._passage.left
        self._left = self._passage.left
        return True

    def let_none_pass(self) -> None:
        """From now on every frame is to be seen again. What has passed must have been counted."""
        if self._passage is not None:
            self._passage.left = self._left = 0

    def close(self) -> bytes:
        """The stream is over: an event that lacks only its empty line counts."""
        rest = bytes(self._carry).rstrip(b"\r\n")
        self._carry.clear()
        if not rest or self.error is not None:
            return b""
        return self._sift(rest + self._boundary, self._boundary)

    @property
    def complete(self) -> bool:
        """Every choice has ended by itself."""
        if self.error is not None or len(self.finished) < self._samples:
            return False
        return ABORTED not in self.finished.values()

    @property
    def first_reason(self) -> str:
        """How the first of the choices that have ended did."""
        return self.finished[min(self.finished)]

    def _take_apart(self, payload: bytes) -> bytes:
        if self.error is not None:
            return b""
        searched = max(0, len(self._carry) - 3)
        self._carry += payload
        boundary = self._boundary
        cut = self._carry.rfind(boundary, searched)
        if cut < 0 and _CRLF in self._carry[searched:]:
            boundary = self._boundary = _CRLF
            cut = self._carry.rfind(boundary, searched)
        if cut < 0:
            if len(self._carry) > EVENT_BYTES_MAX:
                self.error = b"an event is longer than %d bytes" % EVENT_BYTES_MAX
            return b""
        end = cut + len(boundary)
        whole = bytes(self._carry[:end])
        del self._carry[:end]
        return self._sift(payload if whole == payload else whole, boundary)

    def _sift(self, whole: bytes, boundary: bytes) -> bytes:
        """Look at each event; leave out what the client did not ask for, and everything from an error on."""
        kept: list[bytes] = []
        events = whole[: -len(boundary)].split(boundary)
        for event in events:
            if self._look(event):
                kept.append(event)
            if self.error is not None:
                break
        if len(kept) == len(events):
            return whole
        kept.append(b"")
        return boundary.join(kept)

    def _look(self, event: bytes) -> bool:
        """Learn from one event. False: not for the client."""
        content = content_of(event)
        if content is None:
            return True
        if content == b"[DONE]":
            self.done = True
            return True
        try:
            piece = decode_piece(content)
        except (msgspec.DecodeError, RecursionError):
            return True  # not of a form we know: the client's business, and no sign of an end
        if piece.error is not None:
            self.error = content
            return False
        if piece.usage is not None:
            self.usage = piece.usage
        if not piece.choices:
            return piece.usage is None or not self._hide_usage
        self.token_events += 1
        for choice in piece.choices:
            if choice.finish_reason is not None:
                self.finished[choice.index] = choice.finish_reason
        return True


def read_answer(body: bytes, samples: int = 0) -> tuple[str, WireUsage | None]:
    """How a whole answer ended, and what was used; one of no form we know has ended, and says nothing, if it is JSON at all.

    `samples`: how many choices were asked for, where that is known.
    """
    answer = _read_end(body) if samples == 1 else None
    if answer is None:
        try:
            answer = decode_piece(body)
        except msgspec.ValidationError:
            return "stop", None
        except (msgspec.DecodeError, RecursionError):
            return UNREADABLE, None
    reason = "stop"
    for choice in reversed(answer.choices):
        reason = choice.finish_reason or "stop"
        if reason == ABORTED:
            break
    return reason, answer.usage


def _read_end(body: bytes) -> Piece | None:
    """The same of one choice's end, where all that is asked stands there: most of an answer is text that says nothing of this.

    A quote within a text is escaped, so a field's name and its colon stand nowhere but where that field is. And what follows
    closes what the answer opened, and nothing beside it, only if that field is one of a choice.
    """
    begin = body.rfind(_REASON)
    if begin < 0 or not body.startswith(b"{"):
        return None
    try:
        answer = decode_piece(b'{"choices":[{' + body[begin:])
    except (msgspec.DecodeError, RecursionError):
        return None
    return None if answer.usage is None else answer


def error_status(content: bytes) -> int:
    """The status an error event stands for, if it says one."""
    try:
        error: Any = msgspec.json.decode(content)["error"]
        status = error.get("code")
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError, AttributeError):
        return 500
    return status if type(status) is int and 400 <= status < 600 else 500


def content_of(event: bytes) -> bytes | None:
    """What an event carries; None for a comment, such as a keep-alive."""
    if event.startswith(b"data:") and b"\n" not in event:
        return event[5:].strip()
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
