"""Sockets that a service manager opened before this process: systemd's socket activation (`LISTEN_FDS`).

While a gateway restarts, its clients wait in the backlog of a socket that stays, and none of them is refused. Such a socket is
taken only where the configuration says that this process listens: what may be reached from where was checked for that address.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from headworks.config.address import Address

FIRST_DESCRIPTOR = 3
PUBLIC, ADMIN = NAMES = ("public", "admin")
"""As `FileDescriptorName=` of the socket units says."""


class InheritedError(OSError):
    """What was handed over is not what the configuration names. The text says both."""


def inherited(environment: MutableMapping[str, str]) -> dict[str, list[socket.socket]]:
    """The sockets handed to this very process, by name. They are handed over once: the variables are gone then."""
    meant_for, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    if meant_for != str(os.getpid()) or not count.isdecimal():
        return {}
    found: dict[str, list[socket.socket]] = {}
    for place in range(int(count)):
        name = names[place] if place < len(names) else ""
        one = socket.socket(fileno=FIRST_DESCRIPTOR + place)
        one.set_inheritable(False)
        if name not in NAMES:
            raise InheritedError(None, f"a socket named {name!r} was handed over; FileDescriptorName= is {' or '.join(NAMES)}")
        found.setdefault(name, []).append(one)
    return found


def checked(sockets: list[socket.socket], key: str, configured: Address) -> list[socket.socket]:
    """The same, if each listens where the configuration says. Raises `InheritedError`."""
    for one in sockets:
        bound = one.getsockname()
        said = f"{bound[0]}:{bound[1]}" if isinstance(bound, tuple) else str(bound)
        allowed = {(configured.host, configured.port), ("127.0.0.1" if configured.host == "localhost" else "", configured.port)}
        if not isinstance(bound, tuple) or (bound[0], bound[1]) not in allowed:
            wanted = f"{configured.host}:{configured.port}"
            raise InheritedError(None, f"the socket that was handed over listens on {said}, and server.{key} is {wanted}")
    return sockets
