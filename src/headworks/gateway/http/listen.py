"""Listening sockets: every address of a host, or a Unix path, with options that accepted connections inherit.

Options are set here once, not once a connection: no delay, and probes that notice a vanished peer (first after 30 s, then
every 10 s, three times).
"""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path


async def listen_on_port(host: str, port: int) -> list[socket.socket]:
    """One socket an address, IPv6 apart from IPv4, so that a peer's address always reads as what it is."""
    loop = asyncio.get_running_loop()
    name = None if host == "*" else host
    found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            if port == 0 and sockets:  # All addresses of one host share the port that the first one was given.
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            _set_options(listening)
            listening.bind(address)
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets


def _set_options(listening: socket.socket) -> None:
    listening.setblocking(False)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if listening.family == socket.AF_INET6:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)


def listen_on_path(path: str) -> socket.socket:
    """Takes over a path that nobody listens on any more; one that is in use, or is no socket, is an error."""
    place = Path(path)
    if place.exists() and stat.S_ISSOCK(place.stat().st_mode) and not _answers(path):
        place.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.bind(path)
    except OSError:
        listening.close()
        raise
    return listening


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(path) == 0
