"""One connection to a store server: words out, replies back in order, as many under way as one likes.

The protocol's replies are parsed and its commands packed by hiredis; the rest of a client is not needed here: the ledger
speaks to one server at a time, counts its own calls and must know exactly which process it speaks to.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import hiredis

from headworks.ledgers.errors import LedgerError

UNDER_WAY_MAX = 1024
_INCOMPLETE = object()


class StoreError(Exception):
    """The server answered a command with an error."""


class StoreLost(ConnectionError):
    """The connection is over, or the server is not one to work with now."""


Answered = Callable[[object], None]


@dataclass(slots=True)
class Door:
    """Where a server is and how to come in."""

    host: str
    port: int
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None

    def at(self, host: str, port: int) -> Door:
        """The same way in, elsewhere."""
        return Door(host, port, self.database, self.username, self.password, self.tls)


class Line(asyncio.Protocol):
    """A connection. `over` is called once, when nothing more will come."""

    def __init__(self, over: Callable[[], None], said: Answered = lambda message: None) -> None:
        self._over = over
        self._said = said
        """Told of messages that answer nothing (of a subscription)."""
        self._reader = hiredis.Reader(notEnoughData=_INCOMPLETE, encoding=None)
        self._waiting: deque[Answered] = deque()
        self._futures: list[asyncio.Future[object]] = []
        self._transport: asyncio.Transport | None = None
        self.is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while not self.is_over:
                reply = self._reader.gets()
                if reply is _INCOMPLETE:
                    return
                self._take(reply)
        except hiredis.ProtocolError:
            self.close()

    def _take(self, reply: object) -> None:
        if isinstance(reply, list) and reply and reply[0] in (b"smessage", b"message"):
            self._said(reply)
        elif self._waiting:
            self._waiting.popleft()(reply)
        else:  # nothing was asked: this is no server of ours
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.close()

    def ask(self, words: tuple[bytes | str | int, ...], answered: Answered) -> None:
        """Send; `answered` gets the reply, an error included, and is not called when the connection ends before."""
        if self.is_over or self._transport is None:
            return
        assert len(self._waiting) < UNDER_WAY_MAX, "too much is under way"
        self._waiting.append(answered)
        self._transport.write(hiredis.pack_command(cast(Any, words)))  # its stub knows one word only

    async def asked(self, *words: bytes | str | int) -> object:
        """Send and wait. Raises `StoreError`, `StoreLost`."""
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        if self.is_over:
            raise StoreLost("the connection is over")
        self._futures.append(future)
        self.ask(words, lambda reply: None if future.done() else future.set_result(reply))
        try:
            reply = await future
        finally:
            self._futures.remove(future)
        if isinstance(reply, Exception):
            raise StoreError(str(reply))
        return reply

    def finish(self) -> None:
        """Let what was sent go out, and close."""
        transport = self._transport
        self._transport = None
        if transport is not None and transport.can_write_eof():
            transport.write_eof()  # closed with replies unread it would be reset, and the server drop what it has not read
        elif transport is not None:
            transport.close()
        self.close()

    def close(self) -> None:
        """No reply will come any more."""
        if self.is_over:
            return
        self.is_over = True
        self._waiting.clear()
        if self._transport is not None:
            self._transport.abort()
        for future in self._futures:
            if not future.done():
                future.set_exception(StoreLost("the connection is over"))
        self._over()


async def open_line(door: Door, over: Callable[[], None], said: Answered = lambda message: None) -> Line:
    """Connect and come in. Raises `StoreLost` if nobody is there, `LedgerError` if we are not let in."""
    loop = asyncio.get_running_loop()
    try:
        _, line = await loop.create_connection(lambda: Line(over, said), door.host, door.port, ssl=door.tls)
    except ssl.SSLCertVerificationError as error:
        raise LedgerError(f"The ledger's server {door.host}:{door.port} is not trusted: {error.verify_message}") from error
    except OSError as error:
        raise StoreLost(f"{door.host}:{door.port}: {error.strerror or error}") from error
    try:
        await _come_in(line, door)
    except BaseException:
        line.close()
        raise
    return line


async def _come_in(line: Line, door: Door) -> None:
    try:
        if door.password is not None:
            await line.asked("AUTH", *([door.username] if door.username else []), door.password)
        if door.database:
            await line.asked("SELECT", door.database)
        await line.asked("PING")
    except StoreError as error:
        kind = str(error).partition(" ")[0]
        if kind in ("NOAUTH", "WRONGPASS", "NOPERM", "ERR"):
            said = str(error) if kind != "ERR" else "ERR"  # an unknown command is repeated with its words: the password
            raise LedgerError(f"The ledger's server {door.host}:{door.port} does not let us in: {said}") from None
        raise StoreLost(kind) from None
