"""Every bound of the public port in one place, and the one exception it speaks in.

A bound without a name cannot be configured, and a peer without a bound is a way to spend our memory or our time. Each
number here is checked by `connection.py`, `body.py` or `server.py`; none is looked up anywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(slots=True)
class EdgeLimits:
    """How much, how many and how long, for each connection and for all together."""

    body_bytes_max: int = 8_388_608
    header_bytes_max: int = 32_768
    """The whole head, request line and empty line included. Also what chunk framing may cost beyond the body itself."""
    request_line_bytes_max: int = 8_192
    headers_max: int = 100
    header_s: float = 10.0
    """From connecting, or from the first byte of a later request, to the end of its head."""
    body_s: float = 30.0
    body_idle_s: float = 10.0
    idle_s: float = 75.0
    """Between two requests on one connection."""
    write_stall_s: float = 30.0
    """How long a client may leave the write buffer above its mark, and how long a closing connection may take to flush."""
    linger_s: float = 1.0
    linger_bytes_max: int = 65_536
    """Read and dropped after an answer that came before the end of the request."""
    connections_max: int = 10_000
    connections_per_address_max: int = 5_000
    """Half of all, so that one address never holds every place; a proxy in front is one address."""
    descriptors_max: int = 1 << 30
    """A connection with this descriptor or a higher one is not taken: they are numbered from below, and engines need some."""
    backlog: int = 1_024
    """Connections the kernel holds for us before they are accepted."""
    unread_bytes_max: int = 268_435_456
    """Bodies received and not yet taken by a handler, summed; beyond it their connections are not read."""
    write_buffer_bytes_max: int = 262_144
    paused_bytes_max: int = 1_048_576
    """What a handler may still write after it was told to pause; more means that nobody listens, so the client is let go."""


class HttpError(Exception):
    """An answer instead of a result: raised by the port for what it refuses, and by handlers before they have answered."""

    def __init__(self, status: int, code: str, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers


def malformed(message: str, status: int = 400) -> HttpError:
    """The refusal of a request whose bytes are wrong; retrying the same bytes never helps."""
    return HttpError(status, "invalid_request", message)
