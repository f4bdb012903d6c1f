"""The server of the admin port: uvicorn, on a socket of ours."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn

UNTAKEN_MS_MAX = 30_000
"""A connection whose other side takes nothing of what it is sent is closed by the system after so long."""


class AdminServer(uvicorn.Server):
    """Leaves signals alone: this process drains on them, and the admin port is there until it has."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def admin_server(app: Any, tls: ssl.SSLContext | None = None) -> AdminServer:
    settings = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
        ssl_context_factory=None if tls is None else lambda config, default: tls,
    )
    return AdminServer(settings)


def admin_socket(host: str, port: int) -> socket.socket:
    """Listening."""
    return with_options(socket.create_server((host, port), reuse_port=False))


def with_options(listening: socket.socket) -> socket.socket:
    """Connections have them as well: a viewer that is stuck would else hold what is on its way to him for hours."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNTAKEN_MS_MAX)
    return listening
