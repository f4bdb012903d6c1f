"""httptools at work: llhttp in its strict mode as second judge of a head, and as reader of a body.

One parser a connection. `head.py` has measured the head before it comes here; what llhttp refuses as well (names, values,
lengths, folds, chunks) becomes our own error here. Fields are split by `head.py`, which costs less than a callback each;
trailers reach nobody. Bodies of stated length are cut to it before they are fed, so the parser
never sees a byte that is not the request's.
"""

from __future__ import annotations

from typing import Any

import httptools

from headworks.gateway.http.body import RequestBody
from headworks.gateway.http.limits import malformed


class RequestReader:
    """Also the receiver of its parser's callbacks (`on_body` …)."""

    __slots__ = ("_body", "_parser", "complete", "surplus")

    def __init__(self) -> None:
        self._body: RequestBody | None = None
        self.complete = False
        """The request's last byte was read."""
        self.surplus = False
        """Bytes came after it."""
        self._parser: Any = httptools.HttpRequestParser(self)

    def close(self) -> None:
        """The parser holds our methods; without this, each connection's memory would wait for the collector."""
        self._parser = self._body = None

    def read_head(self, head: bytes) -> None:
        """Accepts a whole head, and nothing after it, or raises."""
        self._body = None
        self.complete = self.surplus = False
        try:
            self._parser.feed_data(head)
        except httptools.HttpParserUpgrade as error:
            raise malformed("This port does not upgrade; leave the Upgrade field out.") from error
        except httptools.HttpParserError as error:
            raise malformed(f"The head cannot be read: {error}.") from error

    def read_body(self, received: bytes, body: RequestBody) -> None:
        """Adds what was received to the body; errors are the body's, so that whoever reads it gets them."""
        self._body = body
        body.wire_bytes += len(received)
        if body.length_bytes is not None and body.wire_bytes > body.length_bytes:
            self.surplus = True
            received = received[: body.length_bytes - body.received_bytes]
        try:
            self._parser.feed_data(received)
        except httptools.HttpParserError as error:
            if self.complete:
                self.surplus = True
            else:
                body.fail(malformed(f"The chunked body cannot be read: {error}."))
        if body.length_bytes is None:
            body.check_framing()
        if self.complete:
            body.finish()

    # The parser's side.

    def on_message_begin(self) -> None:
        if self.complete:
            self.surplus = True

    def on_body(self, piece: bytes) -> None:
        if self._body is not None:
            self._body.add(piece)

    def on_message_complete(self) -> None:
        self.complete = True
