"""HTTP/1.1 for the fake engine: one connection, requests one after the other, whole or streamed answers.

What matters here is how a connection *ends*, because evidence of stopping rests on it. A client's FIN while it is being
served, half-closed or not, is a client that has gone: the application is told, and unless it says otherwise this side
is closed at once.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol, cast

import httptools

PIPELINED_MAX = 16
BODY_BYTES_MAX = 32 * 1024 * 1024


@dataclass(slots=True)
class HttpRequest:
    """One request, complete."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class Application(Protocol):
    """Who answers."""

    connections: set[HttpConnection]
    keep_alive_s: float

    def handle(self, request: HttpRequest, connection: HttpConnection) -> None:
        """Answer now or later through the connection's methods."""
        ...


@dataclass(slots=True, eq=False)
class HttpConnection(asyncio.Protocol):
    """One client connection."""

    application: Application
    gone: bool = False
    mute: bool = False
    """A process that is dying and whose sockets nobody serves: no byte, no FIN."""
    on_gone: Callable[[], bool] | None = None
    """Set while a request is served; called once when its client leaves. True: keep this side open and go on."""
    _transport: asyncio.Transport | None = None
    _parser: httptools.HttpRequestParser | None = None
    _target: bytes = b""
    _headers: dict[str, str] = field(default_factory=dict)
    _body: bytearray = field(default_factory=bytearray)
    _waiting: deque[HttpRequest] = field(default_factory=deque)
    _serving: bool = False
    _keep_alive: bool = True
    _idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have no asyncio base class, only its methods.
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self.application.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self.mute:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.reset()
        except httptools.HttpParserError:
            self._keep_alive = False
            self.respond(400, b"Invalid HTTP request received.", "text/plain; charset=utf-8")

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._target, self._headers = b"", {}
        self._body = bytearray()

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > BODY_BYTES_MAX:
            self.reset()

    def on_message_complete(self) -> None:
        assert self._parser is not None
        method, self._keep_alive = self._parser.get_method().decode(), self._parser.should_keep_alive()
        self._waiting.append(HttpRequest(method, self._target.decode("latin-1"), self._headers, bytes(self._body)))
        if len(self._waiting) > PIPELINED_MAX:
            self.reset()
        elif not self._serving:
            self._serve_next()

    def _serve_next(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._waiting and not self.gone:
            self._serving = True
            self.application.handle(self._waiting.popleft(), self)
        elif not self.gone:
            self._idle = asyncio.get_running_loop().call_later(self.application.keep_alive_s, self.close)

    # Answers.

    def respond(self, status: int, body: bytes, content_type: str = "application/json", *more: tuple[str, str]) -> None:
        """A whole answer."""
        self._write(_head(status, [("content-length", str(len(body))), ("content-type", content_type), *more]) + body)
        self._answered()

    def start_stream(self, *more: tuple[str, str]) -> None:
        """The head of a stream of events."""
        kind = ("content-type", "text/event-stream; charset=utf-8")
        self._write(_head(200, [kind, *more, ("transfer-encoding", "chunked")]))

    def send(self, events: list[bytes]) -> None:
        """Each event in a chunk of its own, all in one write."""
        self._write(b"".join([b"%x\r\n%b\r\n" % (len(event), event) for event in events]))

    def end_stream(self) -> None:
        self._write(b"0\r\n\r\n")
        self._answered()

    def _answered(self) -> None:
        self._serving, self.on_gone = False, None
        if not self._keep_alive or self.gone:
            self.close()
            return
        self._serve_next()

    def _write(self, payload: bytes) -> None:
        if self._transport is not None and not self.mute and not self._transport.is_closing():
            self._transport.write(payload)

    # Ends.

    def eof_received(self) -> bool:
        return self.mute or self._left()

    def connection_lost(self, exc: Exception | None) -> None:
        self._left()
        self._transport = None
        self._parser = None
        self.application.connections.discard(self)
        if self._idle is not None:
            self._idle.cancel()

    def _left(self) -> bool:
        """The client has gone. Returns whether this side stays open."""
        self.gone = True
        told, self.on_gone = self.on_gone, None
        return told() if told is not None else False

    def close(self) -> None:
        """Close this side."""
        if self._transport is not None and not self.mute:
            self._transport.close()

    def garble(self) -> None:
        """Something that is not HTTP, then the end."""
        self._write(b"\x16\x03\x01 this is not an answer\r\n\x00\xff\r\n\r\n")
        self.close()

    def reset(self) -> None:
        """Broken, not closed: the peer sees a reset."""
        if self._transport is not None and not self._transport.is_closing():
            linger_none = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_none)
            self._transport.abort()


def _head(status: int, headers: list[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"date: {formatdate(usegmt=True)}", "server: uvicorn"]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
