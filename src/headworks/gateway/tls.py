"""TLS of both ports: the certificate at hand, exchanged while connections live, and the door before a handshake.

A certificate is a pair of files that something else renews. They are looked at again every few seconds and at each reload; a
pair that can be used is shown to whoever comes next, one that cannot changes nothing and is said once. TLS has no half-close,
so the end of a client's bytes is a client that has gone.

Before a handshake nothing is known of a peer, so the door bounds how many there are, for how long, and how many of one address.
Whoever speaks plain HTTP to it is told so, in plain HTTP: bytes in another protocol would read as noise.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable

from headworks.config.settings import TlsFiles

log = logging.getLogger("headworks.gateway")

LOOK_S = 5.0
HANDSHAKE_S = 10.0
"""For the first byte, and again for the handshake."""
CLOSE_S = 2.0
"""How long a peer may take to say that it has read the end."""
HANDSHAKES_MAX = 1_024
"""Peers before the end of their handshake, each some 40 KiB; half of them from one address."""
_HANDSHAKE_RECORD = b"\x16"
_PLAIN = b"This port speaks TLS: use https://.\n"
_PLAIN_ANSWER = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
    len(_PLAIN),
    _PLAIN,
)


class TlsError(Exception):
    """The files cannot be used as certificate and key. The text names them and says why."""


class Certificates:
    """The pair of files, and `context`, which shows what was last good in them. Raises `TlsError` if nothing is."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = self._looks()
        self._shown = self._loaded()
        self.context = self._loaded()
        self.context.sni_callback = self._show
        self._failed = ""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look at the files."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def close(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()

    def refresh(self) -> bool:
        """Take what the files hold now. Whether that can be used; if not, what was shown before goes on being shown."""
        self._seen = self._looks()
        try:
            self._shown = self._loaded()
        except TlsError as error:
            if str(error) != self._failed:
                self._failed = str(error)
                log.error("the certificate stays as it is: %s", error)
            return False
        self._failed = ""
        return True

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        if self._looks() != self._seen and self.refresh():
            log.warning("another certificate is shown from now on: %s", self._files.cert)

    def _show(self, handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        handshake.context = self._shown

    def _looks(self) -> tuple[object, ...]:
        """What tells one state of the files from another."""
        looks: list[object] = []
        for path in (self._files.cert, self._files.key):
            try:
                found = os.stat(path)
            except OSError:
                looks.append(None)
            else:
                looks.append((found.st_ino, found.st_size, found.st_mtime_ns))
        return tuple(looks)

    def _loaded(self) -> ssl.SSLContext:
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(files.cert, files.key, password=_no_password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
            raise TlsError(f"{files.cert} and {files.key} are no certificate and key: {why}") from None
        return context


class Door:
    """Lets sockets in that begin a handshake."""

    def __init__(self, context: ssl.SSLContext, wait_s: float = HANDSHAKE_S, handshakes_max: int = HANDSHAKES_MAX) -> None:
        self._context, self._wait_s, self._handshakes_max = context, wait_s, handshakes_max
        self._before: dict[str, int] = {}
        """Peers that have not finished their handshake, by address."""
        self.refused = 0

    async def let_in(self, protocol: Callable[[], asyncio.Protocol], accepted: socket.socket) -> None:
        """Make the connection of an accepted socket, or close it. Raises OSError where the handshake fails."""
        accepted.setblocking(False)
        address = str(accepted.getpeername()[0])
        held = self._before.get(address, 0)
        if held >= self._handshakes_max // 2 or sum(self._before.values()) >= self._handshakes_max:
            self.refused += 1
            accepted.close()
            return
        self._before[address] = held + 1
        try:
            await self._handshake(protocol, accepted)
        finally:
            self._before[address] -= 1
            if not self._before[address]:
                del self._before[address]

    async def _handshake(self, protocol: Callable[[], asyncio.Protocol], accepted: socket.socket) -> None:
        async with asyncio.timeout(self._wait_s):
            first = await _first_byte(accepted)
        if first == _HANDSHAKE_RECORD:
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, accepted, ssl=self._context, ssl_handshake_timeout=self._wait_s, ssl_shutdown_timeout=CLOSE_S
            )
            return
        if first:
            accepted.send(_PLAIN_ANSWER)
            accepted.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(CLOSE_S):  # closed with something unread it would be reset, and the answer lost
                while await asyncio.get_running_loop().sock_recv(accepted, 65_536):
                    pass
        accepted.close()


async def _first_byte(accepted: socket.socket) -> bytes:
    """Left where it is. Empty: the peer has closed."""
    loop = asyncio.get_running_loop()
    arrived = loop.create_future()
    loop.add_reader(accepted, lambda: None if arrived.done() else arrived.set_result(None))
    try:
        await arrived
    finally:
        loop.remove_reader(accepted)
    return accepted.recv(1, socket.MSG_PEEK)


def _no_password() -> str:
    """Asked for where a key is encrypted: nobody is there to type it."""
    raise ValueError("the key is encrypted; give one that is not, readable by this process alone")
