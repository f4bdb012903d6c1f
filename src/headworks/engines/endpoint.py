"""Where an engine lives: its URL taken apart once, its name resolved once, and the requests that can be sent there.

The address that answered is kept for every later connection, requests and metrics alike: two connections that reach two
engines behind one name would make every proof about "the engine" worthless. Only a failed connect resolves anew.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from headworks.engines.base import EngineError
from headworks.engines.request_head import PostHeads

ADDRESSES_TRIED_MAX = 4
# Dead peers are found within 30 + 3 × 10 s even where nothing is being sent.
_KEEPALIVE_OPTIONS = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class Endpoint:
    """One engine's origin: how to connect to it and how to address a request to it."""

    def __init__(self, url: str, api_key: str | None = None, ca: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
            raise EngineError(f"{url!r} is no engine address: expected http://HOST:PORT or https://HOST:PORT")
        self.url = url
        self.tls = _verifying(url, ca) if parts.scheme == "https" else None
        self.tls_failure = ""
        """Why the last handshake failed, for whoever reports that there is no connection."""
        self._host = parts.hostname
        self._port = parts.port or (443 if self.tls else 80)
        self._path_before = parts.path.rstrip("/")
        self.pinned: tuple[str, int] | None = None
        """Where it answered, for as long as it can be reached there."""
        self._pinning = asyncio.Lock()
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._always = f"Host: {host}:{self._port}\r\n"
        if api_key:
            # Bound to this origin: the key is in no header that another endpoint ever sends.
            self._always += f"Authorization: Bearer {api_key}\r\n"
        written = self._path_before + self._host + (api_key or "")
        if " " in written or not (written.isascii() and written.isprintable()):
            raise EngineError(f"the address or the key of {url!r} has characters that cannot stand in a request")
        self.heads = PostHeads(self._path_before, self._always)
        self.post = self.heads.head
        """The head of an execution's request, by its name, path and body."""

    def get(self, path: str) -> bytes:
        """The head of a look at the engine."""
        return f"GET {self._path_before}{path} HTTP/1.1\r\n{self._always}Accept: */*\r\n\r\n".encode("ascii")

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Open one connection to the pinned address, or to the first that answers. Raises OSError."""
        if self.pinned is None:
            # One at a time, so that connections opened together do not pin two engines.
            async with self._pinning:
                if self.pinned is None:
                    self.pinned = await self._connect_to_first(protocol)
                    return
        try:
            await self._connect_to(self.pinned, protocol)
        except (OSError, asyncio.CancelledError):
            self.pinned = None
            raise

    async def _connect_to_first(self, protocol: Callable[[], asyncio.Protocol]) -> tuple[str, int]:
        failure = OSError(f"{self._host} has no usable address")
        for address in await self._addresses():
            try:
                await self._connect_to(address, protocol)
            except OSError as error:
                failure = error
            else:
                return address
        raise failure

    async def _addresses(self) -> list[tuple[str, int]]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        addresses = [(str(sockaddr[0]), int(sockaddr[1])) for *_, sockaddr in found]
        return [address for address in addresses[:ADDRESSES_TRIED_MAX] if _is_usable(address[0])]

    async def _connect_to(self, address: tuple[str, int], protocol: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        server_name = self._host if self.tls else None
        host, port = address
        try:
            transport, _ = await loop.create_connection(protocol, host, port, ssl=self.tls, server_hostname=server_name)
        except ssl.SSLError as error:
            self.tls_failure = getattr(error, "verify_message", "") or error.reason or str(error)
            raise
        self.tls_failure = ""
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds_or_count in _KEEPALIVE_OPTIONS:
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds_or_count)


def _verifying(url: str, ca: str | None) -> ssl.SSLContext:
    """Certificates are verified, with their names: by the authorities in a file, or by the system's."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # ssl.SSLError is one too
        why = error.strerror or str(error)
        raise EngineError(f"{ca} holds no certificate authorities for {url}: {why}") from None


def _is_usable(address: str) -> bool:
    """Link-local is where clouds serve machine credentials: no engine lives there, and a name may have been bent to it."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    chosen = mapped or parsed
    return not (chosen.is_link_local or chosen.is_multicast or chosen.is_unspecified)
