"""Where the ledger's server is: one server, the primary that sentinels name, or the holder of a cluster's slot.

    valkey://[USER:PASSWORD@]HOST:PORT[/DATABASE]        one server; valkeys:// over TLS
    valkey+sentinel://HOST:PORT,HOST:PORT/NAME[/DATABASE]
    valkey+cluster://HOST:PORT,HOST:PORT

`redis` may stand for `valkey` in each. A place is looked for again whenever a connection has ended: after a failover or
when a slot has moved, the next look finds who has it now.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from headworks.ledgers.errors import LedgerError
from headworks.ledgers.valkey_line import Door, StoreError, StoreLost, open_line

SCHEMES = {
    f"{name}{tls}{way}": (way.lstrip("+") or "single", bool(tls))
    for name in ("valkey", "redis")
    for tls in ("", "s")
    for way in ("", "+sentinel", "+cluster")
}
PORT, SENTINEL_PORT = 6379, 26379


@dataclass(slots=True)
class Place:
    """What the URL says."""

    kind: str
    """`single`, `sentinel` or `cluster`."""
    doors: tuple[Door, ...]
    primary: str = ""
    """What the sentinels call it."""

    def __str__(self) -> str:
        """For messages: never with a password."""
        return ", ".join(f"{door.host}:{door.port}" for door in self.doors)

    async def find(self, key: str) -> Door:
        """Who keeps this key now. Raises `StoreLost` if nobody says."""
        if self.kind == "single":
            return self.doors[0]
        failure = ""
        for door in self.doors:
            try:
                return await (self._of_sentinel(door) if self.kind == "sentinel" else self._of_cluster(door, key))
            except StoreLost as error:
                failure = str(error)
        raise StoreLost(failure)

    async def _of_sentinel(self, door: Door) -> Door:
        told = await _asked(Door(door.host, door.port, tls=door.tls), "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.primary)
        if not isinstance(told, list):
            raise StoreLost(f"the sentinel {door.host}:{door.port} knows no {self.primary}")
        return door.at(told[0].decode(), int(told[1]))

    async def _of_cluster(self, door: Door, key: str) -> Door:
        slot = await _asked(door, "CLUSTER", "KEYSLOT", key)
        told = await _asked(door, "CLUSTER", "SLOTS")
        assert isinstance(slot, int) and isinstance(told, list)
        for first, last, node, *_ in told:
            if first <= slot <= last:
                return door.at(node[0].decode() or door.host, int(node[1]))
        raise StoreLost(f"nobody in the cluster has slot {slot}")


async def _asked(door: Door, *words: str) -> object:
    line = await open_line(door, lambda: None)
    try:
        return await line.asked(*words)
    except StoreError as error:
        raise StoreLost(str(error)) from error
    finally:
        line.close()


def parse(url: str) -> Place:
    """The place a URL names. Raises `LedgerError` with what is wrong; the URL itself is not repeated, it may hold a password."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise LedgerError(f"The ledger URL is of no kind known here: {scheme}")
    kind, is_tls = SCHEMES[scheme]
    hosts, _, path = rest.partition("/")
    entry, _, addresses = hosts.rpartition("@")
    username, colon, password = entry.partition(":")
    tls = ssl.create_default_context() if is_tls else None
    words = path.split("/") if path else []
    primary = words.pop(0) if kind == "sentinel" and words else ""
    if kind == "sentinel" and not primary:
        raise LedgerError("The ledger URL of sentinels ends with the name of the primary: valkey+sentinel://HOST:PORT/NAME")
    database = _number(words[0], "database") if words else 0
    if len(words) > 1 or (kind == "cluster" and database):
        raise LedgerError("The ledger URL ends with the number of a database, and a cluster has only one")
    secret = unquote(password) if colon else None
    default = SENTINEL_PORT if kind == "sentinel" else PORT
    doors = []
    for address in addresses.split(","):
        host, port = _address(address, default)
        doors.append(Door(host, port, database, unquote(username) or None, secret, tls))
    if kind == "single" and len(doors) > 1:
        raise LedgerError("The ledger URL names several servers: valkey+cluster:// or valkey+sentinel:// say what they are")
    return Place(kind, tuple(doors), primary)


def _address(text: str, default_port: int) -> tuple[str, int]:
    try:
        split = urlsplit(f"//{text}")
        host, port = split.hostname, split.port
    except ValueError as error:
        raise LedgerError(f"The ledger URL has no address HOST:PORT: {error}") from error
    if not host:
        raise LedgerError("The ledger URL has no host")
    return host, port or default_port


def _number(text: str, what: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise LedgerError(f"The ledger URL's {what} is a number, not {text}")
    return int(text)
