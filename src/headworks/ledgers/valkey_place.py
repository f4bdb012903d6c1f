"""Who keeps the ledger now: the server itself, the primary that sentinels name, or the holder of the domain's cluster slot.

It is looked for again whenever a connection has ended: after a failover, or when a slot has moved, the next look finds who
has it now.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from headworks.config import ledger_url
from headworks.ledgers.errors import LedgerError
from headworks.ledgers.valkey_line import Door, StoreError, StoreLost, open_line


@dataclass(slots=True)
class Place:
    """Where to ask."""

    kind: str
    """`single`, `sentinel` or `cluster`."""
    doors: tuple[Door, ...]
    primary: str
    """What the sentinels call it."""

    def __str__(self) -> str:
        """For messages: without user and password."""
        return ", ".join(f"{door.host}:{door.port}" for door in self.doors)

    async def find(self, key: str) -> Door:
        """Who keeps this key now. Raises `StoreLost` if nobody says."""
        if self.kind == "single":
            return self.doors[0]
        failure = ""
        for door in self.doors:
            self.doors = (*self.doors[1:], door)  # who is silent, or sends us astray, is asked last the next time
            try:
                return await (self._of_sentinel(door) if self.kind == "sentinel" else _of_cluster(door, key))
            except StoreLost as error:
                failure = str(error)
        raise StoreLost(failure)

    async def _of_sentinel(self, door: Door) -> Door:
        """The entry is the primary's: sentinels without protection are the rule, and they hold no data."""
        told = await _asked(Door(door.host, door.port, tls=door.tls), "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.primary)
        if not isinstance(told, list):
            raise StoreLost(f"the sentinel {door.host}:{door.port} knows no {self.primary}")
        return door.at(told[0].decode(), int(told[1]))


async def _of_cluster(door: Door, key: str) -> Door:
    slot = await _asked(door, "CLUSTER", "KEYSLOT", key)
    told = await _asked(door, "CLUSTER", "SLOTS")
    assert isinstance(slot, int) and isinstance(told, list)
    for first, last, node, *_ in told:
        if first <= slot <= last:
            host = (node[0] or b"").decode()
            return door.at(door.host if host in ("", "?") else host, int(node[1]))
    raise StoreLost(f"nobody in the cluster has slot {slot}")


async def _asked(door: Door, *words: str) -> object:
    line = await open_line(door, lambda: None)
    try:
        return await line.asked(*words)
    except StoreError as error:
        raise StoreLost(str(error)) from error
    finally:
        line.close()


def place_of(url: str) -> Place:
    """The place a URL names. Raises `LedgerError`."""
    try:
        said = ledger_url.parse(url)
    except ValueError as error:
        raise LedgerError(f"The ledger's URL cannot be used: {error}") from None
    tls = ssl.create_default_context() if said.is_tls else None
    doors = tuple(Door(host, port, said.database, said.username, said.password, tls) for host, port in said.addresses)
    return Place(said.kind, doors, said.primary)
