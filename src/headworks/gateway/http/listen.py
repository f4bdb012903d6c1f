"""Listening sockets: every address of a host, with options that accepted connections inherit.

Options are set here once, not once a connection: no delay, and probes that notice a vanished peer. Accepting is ours as well:
uvloop takes one connection at a turn, so that beside a busy loop the last of 32 new clients waited 2.6 s (2026-11-29)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

from headworks.gateway.http.limits import EdgeLimits

LetIn = Callable[[Callable[[], Any], socket.socket], Coroutine[Any, Any, Any]]
ACCEPTED_PER_TURN_MAX = 64
_PROBES = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
PAUSE_S = 0.1
"""How long nothing is accepted after the system had no descriptor, or no memory, for one more connection."""


class Listener:
    """Accepts from one socket. `make` makes a protocol for a peer: its address. `let_in`: over TLS."""

    def __init__(self, listening: socket.socket, limits: EdgeLimits, make: Callable[[str], Any], let_in: LetIn | None) -> None:
        self._listening, self._connection, self._descriptors_max = listening, make, limits.descriptors_max
        self._loop = asyncio.get_running_loop()
        self._let_in = let_in or self._loop.connect_accepted_socket
        self._connecting: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._spare: int | None = None
        """A descriptor to give up when there is no other, so that peers hear at once that they are not served."""
        listening.setblocking(False)
        listening.listen(limits.backlog)
        self._go_on()

    def close(self) -> None:
        """Accepts no more. Connections that are being made find the port closed."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()
        self._give_up_spare()

    def _go_on(self) -> None:
        try:
            if self._spare is None:
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            self._loop.add_reader(self._listening, self._accept)
        except OSError:
            self._starve()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_PER_TURN_MAX):
            try:
                accepted, address = self._listening.accept()
                if accepted.fileno() >= self._descriptors_max:
                    accepted.close()
                    raise OSError("no descriptor to spare")
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._starve()
                return
            task = self._loop.create_task(self._connect(accepted, address[0]))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket, peer: str) -> None:
        try:
            await self._let_in(lambda: self._connection(peer), accepted)
        except OSError:
            accepted.close()

    def _starve(self) -> None:
        """There is no descriptor for one more, or none to spare: closes those who wait now, and accepts nobody for a while."""
        self._give_up_spare()
        with contextlib.suppress(OSError):
            for _ in range(ACCEPTED_PER_TURN_MAX):
                self._listening.accept()[0].close()
        self._loop.remove_reader(self._listening)
        self._pause = self._loop.call_later(PAUSE_S, self._go_on)

    def _give_up_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None


async def listen_on_port(host: str, port: int, shared: bool = False) -> list[socket.socket]:
    """One socket an address, IPv6 apart from IPv4: a peer's address reads as what it is. `shared`: beside other processes."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(None if host == "*" else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    with contextlib.ExitStack() as opened:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            if port == 0 and sockets:  # All addresses of one host share the port that the first one was given.
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            listening = opened.enter_context(socket.socket(family, kind, protocol))
            set_options(listening, shared)
            if family == socket.AF_INET6:  # of a socket that is bound it cannot be said any more
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            sockets.append(listening)
        opened.pop_all()
    return sockets


def set_options(listening: socket.socket, shared: bool) -> None:
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in _PROBES:
        if hasattr(socket, option):
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def reset_on_close(accepted: socket.socket) -> None:
    """Its end will be a reset, which no peer can take for the end of an answer."""
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
