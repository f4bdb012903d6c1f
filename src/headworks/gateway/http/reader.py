"""httptools at work: llhttp in its strict mode as second judge of a head, and as reader of chunks.

`head.py` has measured the head before it comes here; what llhttp refuses as well (names, values, lengths, folds) becomes
our own error. Fields are split by `head.py`, which costs less than a callback each; trailers reach nobody. A body of
stated length needs no parser: it is so many bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httptools

from headworks.gateway.http.limits import HttpError, malformed

_CHUNKS_FOLLOW = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


class _Judge:
    """Wants to hear nothing: the parser's verdict is all."""


_judge = _Judge()


def judge_head(head: bytes) -> None:
    """Accepts a whole head, and nothing after it, or raises. A parser that has refused is of no use, so each is new."""
    try:
        httptools.HttpRequestParser(_judge).feed_data(head)
    except httptools.HttpParserUpgrade as error:
        raise malformed("This port does not upgrade; leave the Upgrade field out.") from error
    except httptools.HttpParserError as error:
        raise malformed(f"The head cannot be read: {error}.") from error


class ChunkReader:
    """One chunked body's parser. Also the receiver of its callbacks (`on_body` …)."""

    __slots__ = ("_add", "_parser", "complete", "surplus")

    def __init__(self, add: Callable[[bytes], None]) -> None:
        self._add = add
        self.complete = False
        """The request's last byte was read."""
        self.surplus = False
        """Bytes came after it."""
        self._parser: Any = httptools.HttpRequestParser(self)
        self._parser.feed_data(_CHUNKS_FOLLOW)

    def close(self) -> None:
        """The parser holds our methods; without this, each body's memory would wait for the collector."""
        self._parser = None

    def read(self, received: bytes) -> HttpError | None:
        """Hands on what the chunks hold, piece by piece, and says where they cannot be read."""
        try:
            self._parser.feed_data(received)
        except httptools.HttpParserError as error:
            if not self.complete:
                return malformed(f"The chunked body cannot be read: {error}.")
            self.surplus = True
        return None

    # The parser's side.

    def on_message_begin(self) -> None:
        if self.complete:
            self.surplus = True

    def on_body(self, piece: bytes) -> None:
        self._add(piece)

    def on_message_complete(self) -> None:
        self.complete = True
