"""What the URL of a shared ledger says: one server, the primary that sentinels name, or the holder of a cluster's slot.

    valkey://[USER:PASSWORD@]HOST[:PORT][/DATABASE]
    valkey+sentinel://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT]/NAME[/DATABASE]
    valkey+cluster://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT]

`valkeys` for `valkey` is over TLS. The servers may be Redis 7 as well. The sentence of a fault never repeats the URL, which may
hold a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

SHARED = re.compile(r"(valkeys?)(?:\+(sentinel|cluster))?://(\S+)")
PORT, SENTINEL_PORT = 6379, 26379


@dataclass(slots=True)
class LedgerPlace:
    """Where the servers are, and how to come in."""

    kind: str
    """`single`, `sentinel` or `cluster`."""
    is_tls: bool
    addresses: tuple[tuple[str, int], ...]
    database: int
    username: str | None
    password: str | None = field(repr=False)
    primary: str
    """What the sentinels call it."""


def is_shared(url: str) -> bool:
    """Whether several gateways may count in the ledger of this URL."""
    return url.startswith("valkey")


def without_secret(url: str) -> str:
    """For eyes."""
    scheme, slashes, rest = url.partition("://")
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}" if slashes else url


def parse(url: str) -> LedgerPlace:
    """Raises `ValueError` with what is wrong."""
    matched = SHARED.fullmatch(url)
    if matched is None:
        raise ValueError("valkey://HOST:PORT/0, valkeys://, valkey+sentinel://HOST:PORT/NAME or valkey+cluster:// is allowed")
    kind = matched[2] or "single"
    hosts, _, path = matched[3].partition("/")
    entry, _, addresses = hosts.rpartition("@")
    username, colon, password = entry.partition(":")
    words = path.split("/") if path else []
    primary = words.pop(0) if kind == "sentinel" and words else ""
    if kind == "sentinel" and not primary:
        raise ValueError("valkey+sentinel://HOST:PORT,HOST:PORT/NAME is allowed, NAME as the sentinels call the primary")
    if len(words) > 1 or (words and not re.fullmatch(r"[0-9]{1,5}", words[0])) or (words and kind == "cluster"):
        raise ValueError("at its end the number of a database is allowed, except for a cluster, which has only one")
    default = SENTINEL_PORT if kind == "sentinel" else PORT
    found = tuple(_address(address, default) for address in addresses.split(","))
    if kind == "single" and len(found) > 1:
        raise ValueError("one server is allowed; valkey+cluster:// and valkey+sentinel:// name several")
    secret = unquote(password) if colon else None
    return LedgerPlace(
        kind, matched[1] == "valkeys", found, int(words[0]) if words else 0, unquote(username) or None, secret, primary
    )


def _address(text: str, default_port: int) -> tuple[str, int]:
    try:
        split = urlsplit(f"//{text}")
        host, port = split.hostname, split.port
    except ValueError:
        host, port = None, None
    if not host or split.path:
        raise ValueError("HOST:PORT is allowed for each server")
    return host, port or default_port
