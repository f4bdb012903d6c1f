"""One HTTP/1.1 answer, read as its bytes arrive. Framing only: no sockets, no clock, no meaning of the body.

Written by hand over `bytes.find` and two expressions because a relay wants what parsers throw away: whether a read
consists of whole chunked frames. Such a read is passed on as it came, with one write and no re-framing. What does not
follow RFC 9112 to the letter raises `BrokenAnswer`: after that nobody can say where the next answer would begin.
"""

from __future__ import annotations

import re
from functools import lru_cache

from headworks.engines.base import Listener, Passage

HEAD_BYTES_MAX = 32_768
HEADERS_MAX = 100
INTERIM_ANSWERS_MAX = 8
CHUNK_LINE_BYTES_MAX = 4_096
TRAILER_BYTES_MAX = 8_192
BODY_LINE_BYTES_MAX = 10_000_000

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [^\r\n\0]*)?")
_HEADER_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*)")
_LENGTH_DIGITS_MAX = 15
_CHUNK_LINE_EXTENDED = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(;[^\r\n\0]*)?\r\n")
_CHUNK_LINE_BEGUN = re.compile(rb"[0-9A-Fa-f]{1,8}[ \t]*(;[^\r\n\0]*)?\r?")
_ABOUT_FRAMING = frozenset(
    b"connection content-length keep-alive proxy-connection proxy-authenticate te trailer transfer-encoding upgrade".split()
)
_LINES_KEPT_MAX = 512
_lines: dict[bytes, tuple[tuple[bytes, bytes], bool]] = {}
"""A header line → the header, and whether it concerns the connection or the framing."""
_HEADS_KEPT_MAX = 256
_HEAD_KEPT_BYTES_MAX = 1_024
_Head = tuple[int, list[tuple[bytes, bytes]], int, int, bool]
"""Status, headers, how the body ends and after how many bytes, and whether the connection may be used again."""
_heads: dict[bytes, _Head] = {}
"""A whole head → what it says. Answers of one second differ in little but their length, and those of a stream in nothing.

So the list of headers is handed to many listeners, and none may change it.
"""

# How the body ends; `_HEAD` and `_OVER` stand beside them so that one comparison tells what to do with a read. Each has a
# line of its own, by which the compiler knows it for a constant.
_HEAD = 0
_CHUNKED = 1
_COUNTED = 2
_UNTIL_CLOSE = 3
_OVER = 4
# Where a chunked body stands.
_SIZE = 0
_PAYLOAD = 1
_PAYLOAD_END = 2
_TRAILER = 3


class BrokenAnswer(Exception):
    """What came is not an HTTP/1.1 answer, or passes a limit. The text says which."""


FRAME_BYTES_MAX = 4_096
"""Longer frames are walked through; their bytes cost more than that."""


def _frame_heads() -> tuple[bytes, ...]:
    heads = [bytes(FRAME_BYTES_MAX)] * FRAME_BYTES_MAX
    for size_bytes in range(1, FRAME_BYTES_MAX - len(b"fff\r\n\r\n")):
        head = b"%x\r\n" % size_bytes
        heads[len(head) + size_bytes + len(b"\r\n")] = head
    return tuple(heads)


FRAME_HEADS = _frame_heads()
"""How a read of so many bytes begins if it is one whole frame; where no frame is so long, what no read begins with."""


@lru_cache(_LINES_KEPT_MAX)
def _read_status_line(line: bytes) -> tuple[int, bool]:
    """The status, and whether the server speaks HTTP/1.0."""
    found = _STATUS_LINE.fullmatch(line)
    if found is None:
        raise BrokenAnswer(f"a first line that is no HTTP/1.1 status line: {line[:40]!r}")
    return int(found[2]), found[1] == b"0"


def _read_head(head: bytes) -> _Head | None:
    """Understand one head, without its empty line; None when it only announces another (1xx)."""
    lines = head.split(b"\r\n")
    status, http_1_0 = _read_status_line(lines[0])
    if len(lines) > HEADERS_MAX + 1:
        raise BrokenAnswer(f"more than {HEADERS_MAX} headers")
    if status == 101:
        raise BrokenAnswer("status 101, which nobody asked for")
    if status < 200:
        return None
    del lines[0]
    kept: list[tuple[bytes, bytes]] = []
    length = coding = None
    connection: list[bytes] = []
    for line in lines:
        header, about_framing = _lines.get(line) or _learn_line(line)
        if about_framing:
            name, value = header
            if name == b"content-length":
                length = value if length is None else b"repeated"
                kept.append(header)
            elif name == b"transfer-encoding":
                coding = value if coding is None else b"repeated"
            elif name == b"connection":
                connection += [token.strip(b" \t") for token in value.lower().split(b",")]
        else:
            kept.append(header)
    framing, length_bytes = _UNTIL_CLOSE, 0
    if coding is not None:
        if length is not None or http_1_0 or coding.lower() != b"chunked":
            raise BrokenAnswer("an ambiguous length: Transfer-Encoding other than one chunked, or beside Content-Length")
        framing = _CHUNKED
    elif length is not None:
        if not length.isdigit() or len(length) > _LENGTH_DIGITS_MAX:
            raise BrokenAnswer("a Content-Length that is not one number")
        length_bytes = int(length)
        framing = _COUNTED if length_bytes else _OVER
    if status in (204, 304):
        framing = _OVER
    reusable = not http_1_0 or b"keep-alive" in connection
    if connection:
        reusable = reusable and b"close" not in connection
        kept = [header for header in kept if header[0] not in connection]
    known = (status, kept, framing, length_bytes, reusable)
    if len(head) <= _HEAD_KEPT_BYTES_MAX:
        if len(_heads) >= _HEADS_KEPT_MAX:
            _heads.clear()
        _heads[head] = known
    return known


def _learn_line(line: bytes) -> tuple[tuple[bytes, bytes], bool]:
    """Take a line apart. An engine says the same few lines all day, so what was found is kept."""
    found = _HEADER_LINE.fullmatch(line)
    if found is None:
        raise BrokenAnswer(f"a malformed header line: {line[:40]!r}")
    name = found[1].lower()
    learnt = (name, found[2].rstrip(b" \t")), name in _ABOUT_FRAMING
    if len(_lines) >= _LINES_KEPT_MAX:
        _lines.clear()
    _lines[line] = learnt
    return learnt


class AnswerReader:
    """Reads one answer after another from one connection and tells the listener of each."""

    # fmt: off
    __slots__ = (
        "_framing", "_held", "_interim_count", "_left_bytes", "_line_bytes", "_listener", "_phase", "passage", "reusable",
    )
    # fmt: on

    def __init__(self) -> None:
        self.passage: Passage | None = None
        """What the listener answered to the last read, if that was one whole frame."""
        self.reusable = False
        """After a complete answer: another request may follow on this connection."""
        self._framing = _OVER
        self._listener: Listener | None = None

    def begin(self, listener: Listener) -> None:
        """A request was sent; its answer comes next."""
        self.reusable = True
        self._listener = listener
        self._framing = _HEAD
        self._phase = _SIZE
        self._held = b""
        self._interim_count = 0
        self._left_bytes = 0
        self._line_bytes = 0

    def end(self) -> None:
        """Nobody listens any more: a connection that is idle holds nothing of the answer it brought."""
        self._listener = None

    def feed(self, received: bytes) -> bool:
        """Take what was read; True when the answer is complete by its own framing."""
        self.passage = None
        framing = self._framing
        if framing == _CHUNKED:
            return self._feed_chunked(received)
        if framing == _HEAD:
            return self._feed_head(received)
        if framing == _COUNTED:
            return self._feed_counted(received)
        if framing == _UNTIL_CLOSE:
            self._tell(None, received)
            return False
        raise BrokenAnswer("bytes that no request asked for")

    def end_of_stream(self) -> bool:
        """The server closed; True when that is how this answer says it is complete."""
        return self._framing == _UNTIL_CLOSE

    # The head.

    def _feed_head(self, received: bytes) -> bool:
        rest = self._held + received if self._held else received
        while True:
            buffer = rest
            text, ended, rest = buffer.partition(b"\r\n\r\n")
            if len(text) > HEAD_BYTES_MAX:
                raise BrokenAnswer(f"a head over {HEAD_BYTES_MAX} bytes")
            if not ended:
                self._held = buffer
                return False
            self._held = b""
            head = _heads.get(text) or _read_head(text)
            if head is not None:
                break
            self._interim_count += 1
            if self._interim_count > INTERIM_ANSWERS_MAX:
                raise BrokenAnswer(f"more than {INTERIM_ANSWERS_MAX} interim answers")
        status, headers, framing, length_bytes, self.reusable = head
        listener = self._listener
        assert listener is not None, "what is read belongs to a request"
        listener.on_head(status, headers, framing == _CHUNKED)
        if framing == _COUNTED and len(rest) == length_bytes < BODY_LINE_BYTES_MAX:
            # Most whole answers come in one read.
            self._framing = _OVER
            listener.on_body(None, rest)
            return True
        self._left_bytes = length_bytes
        self._framing = framing
        if framing == _OVER:
            return self._complete(rest)
        return self.feed(rest) if rest else False

    # The body.

    def _feed_counted(self, received: bytes) -> bool:
        left_bytes = self._left_bytes - len(received)
        if left_bytes > 0:
            self._left_bytes = left_bytes
            self._tell(None, received)
            return False
        if left_bytes == 0:
            self._tell(None, received)
            return self._complete(b"")
        self._tell(None, received[: self._left_bytes])
        return self._complete(received[self._left_bytes :])

    def _feed_chunked(self, received: bytes) -> bool:
        # An engine that writes one event a step gives exactly one frame a read: this path is what a stream costs.
        if self._phase == _SIZE and not self._held and len(received) < FRAME_BYTES_MAX:
            head = FRAME_HEADS[len(received)]
            if received.startswith(head) and received.endswith(b"\r\n"):
                self.passage = self._tell(received, received[len(head) : -2])
                return False
        return self._walk_frames(received)

    def _walk_frames(self, received: bytes) -> bool:
        """The general case: frames cut anywhere, several in a read, extensions, the last chunk, trailers."""
        buffer = self._held + received if self._held else received
        self._held = b""
        passable = self._phase == _SIZE
        payloads: list[bytes] = []
        position = frames_end = 0
        while position < len(buffer):
            if self._phase == _SIZE:
                line = _CHUNK_LINE_EXTENDED.match(buffer, position)
                if line is None:
                    self._hold_chunk_line(buffer[position:])
                    break
                passable = passable and line[2] is None
                self._left_bytes = int(line[1], 16)
                self._phase = _PAYLOAD if self._left_bytes else _TRAILER
                position = line.end()
            elif self._phase == _PAYLOAD:
                payload = buffer[position : position + self._left_bytes]
                payloads.append(payload)
                position += len(payload)
                self._left_bytes -= len(payload)
                if not self._left_bytes:
                    self._phase = _PAYLOAD_END
            elif self._phase == _PAYLOAD_END:
                if not b"\r\n".startswith(buffer[position : position + 2]):
                    raise BrokenAnswer("a chunk longer than its size")
                if position + 2 > len(buffer):
                    self._held = b"\r"
                    break
                position = frames_end = position + 2
                self._phase = _SIZE
            else:
                return self._end_chunked(buffer, position, buffer[:frames_end] if passable else None, payloads)
        if payloads:
            raw = buffer[:frames_end] if passable and self._phase in (_SIZE, _TRAILER) else None
            self._tell(raw, b"".join(payloads))
        return False

    def _hold_chunk_line(self, begun: bytes) -> None:
        if _CHUNK_LINE_BEGUN.fullmatch(begun) is None or len(begun) > CHUNK_LINE_BYTES_MAX:
            raise BrokenAnswer(f"a chunk without a size: {begun[:40]!r}")
        self._held = begun

    def _end_chunked(self, buffer: bytes, position: int, raw: bytes | None, payloads: list[bytes]) -> bool:
        """After the zero chunk: an empty line, or trailers and then an empty line, all of it dropped."""
        if payloads:
            self._tell(raw, b"".join(payloads))
        if buffer.startswith(b"\r\n", position):
            return self._complete(buffer[position + 2 :])
        end = buffer.find(b"\r\n\r\n", position)
        if (end if end >= 0 else len(buffer)) - position > TRAILER_BYTES_MAX:
            raise BrokenAnswer(f"trailers over {TRAILER_BYTES_MAX} bytes")
        if end >= 0:
            return self._complete(buffer[end + 4 :])
        self._held = buffer[position:]
        return False

    def _tell(self, raw: bytes | None, payload: bytes) -> Passage | None:
        if payload.endswith(b"\n"):
            self._line_bytes = 0
        else:
            # A line that is begun and ended within one read is shorter than a read: only what stays open counts.
            newline = payload.rfind(b"\n")
            self._line_bytes = len(payload) - newline - 1 if newline >= 0 else self._line_bytes + len(payload)
            if self._line_bytes > BODY_LINE_BYTES_MAX:
                raise BrokenAnswer(f"a line over {BODY_LINE_BYTES_MAX} bytes in the body")
        assert self._listener is not None, "what is read belongs to a request"
        return self._listener.on_body(raw, payload)

    def _complete(self, leftover: bytes) -> bool:
        self._framing = _OVER
        if leftover:
            self.reusable = False
        return True
