"""Where to listen: a host and a port, as they are written in a file and on the command line."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass


@dataclass(slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int
    """0: the system chooses."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    def after(self, steps: int) -> Address:
        """So many ports further; where the system chooses it goes on choosing."""
        return Address(self.host, self.port + steps if self.port else 0)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address:
    """`HOST:PORT` or `[IPV6]:PORT` taken apart. Raises `ValueError`."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]+)):(\d{1,5})", text)
    if found is None or int(found[3]) > 65_535:
        raise ValueError(text)
    if found[1]:
        ipaddress.IPv6Address(found[1])
    return Address(found[1] or found[2], int(found[3]))


def is_loopback(host: str) -> bool:
    """Whether a host name or address stays on this machine. A name other than localhost is not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
