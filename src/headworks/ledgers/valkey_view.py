"""What stands in a shared ledger at one instant: to be shown, and to be audited like every other book (`ledger show|audit`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from headworks.core.book_audit import audit, differences
from headworks.core.book_counters import Counters
from headworks.core.book_parts import Boot, Entry
from headworks.core.book_proof import Replica
from headworks.core.book_table import CHARGED
from headworks.core.types import Charge, Owner, RequestKey, Reservation, Usage
from headworks.ledgers.valkey_script import look_script

SCRIPT = look_script()

ENTRY = ("state", "key", "fingerprint", "owner", "reserved_by", "usage", "evidence", "forget_ms", "ended_ms", "seen")
"""Of one that has ended; the others have these as well:"""
LIVE = (
    *("was", "pool", "replica", "incarnation", "charges", "flow", "weights", "cost_tokens", "steps", "reserved_ms"),
    *("started_ms", "running_sequence", "closing_sequence", "closing_ms"),
)
"""In the order in which `records.lua` writes them."""


BOOT, COUNTER, REPLICA = 9, 4, 14
"""Values of one record of each kind."""
READER, FOREIGN = 2, 7
"""Their places in a replica's."""
UNDERFLOWS = 7
"""Its place in the book's own."""
_decode = msgspec.msgpack.Decoder().decode


class View:
    """The answer of `look.lua`, as the book's own parts."""

    def __init__(self, told: Sequence[Any]) -> None:
        book, boots, owned, replicas, inside, records, counters, keys, orphans = told
        self.counters = Counters()
        for name, blob in _pairs(counters):
            self._count(name, _values(blob, COUNTER))
        self.counters.underflows = _decode(book)[UNDERFLOWS] if book else 0
        self.entries = {name.decode(): _entry(name.decode(), blob) for name, blob in _pairs(records)}
        self.boots: dict[Owner, Boot] = {}
        for name, blob in _pairs(boots):
            boot = Boot(_owner(name.decode()))
            boot.alive = _values(blob, BOOT)[1]
            self.boots[boot.owner] = boot
        for name, executions in owned:
            self._listed(self.boots[_owner(name.decode())].entries, executions)
        self.replicas = {name.decode(): Replica(name.decode()) for name, _ in _pairs(replicas)}
        self._told = {name.decode(): _values(blob, REPLICA) for name, blob in _pairs(replicas)}
        for name, executions in inside:
            self._listed(self.replicas[name.decode()].entries, executions)
        self.orphans: dict[str, Entry] = {}
        self._listed(self.orphans, orphans)
        self.keys = {_key(name.decode()): execution.decode() for name, execution in _pairs(keys)}

    def charged(self) -> list[Reservation]:
        """Every execution that holds capacity."""
        return [entry.reservation() for entry in self.entries.values() if entry.state in CHARGED]

    def held(self, scope: str, unit: str) -> int:
        """What is charged there."""
        return self.counters.held(scope, unit)

    def check(self) -> list[str]:
        """Every counter and list against the records. What has ended is judged as far as it was looked at."""
        return audit(self.counters, self.entries, self.boots, self.replicas, self.orphans, self.keys)

    def differences(self) -> dict[str, int]:
        """As `Book.differences`."""
        return differences(self.counters, self.entries)

    def foreign_loads(self) -> dict[str, int]:
        """By replica that is sampled: 1 while the store has found load above all that was charged (F10)."""
        return {name: int(bool(values[FOREIGN])) for name, values in self._told.items() if values[READER]}

    def _count(self, name: bytes, values: Sequence[Any]) -> None:
        unit, _, scope = name.decode().partition("\0")
        (counter,) = self.counters.find([Charge(scope, unit, 0)])
        counter.held, counter.committed, counter.limit, counter.excess = values

    def _listed(self, into: dict[str, Entry], executions: Iterable[bytes]) -> None:
        """A name without a record is listed all the same: the audit says so."""
        for execution in executions:
            name = execution.decode()
            into[name] = self.entries.get(name) or Entry.of(name, "", None, "", Owner("", ""))


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _values(blob: bytes, count: int) -> list[Any]:
    """So many values packed one after another, with nothing around them."""
    found: list[Any] = _decode(bytes([0xDC, 0, count]) + blob)
    return found


def _owner(name: str) -> Owner:
    gateway, _, boot = name.partition("\0")
    return Owner(gateway, boot)


def _key(name: str) -> RequestKey:
    tenant, _, request_id = name.partition("\0")
    return RequestKey(tenant, request_id)


def _entry(execution: str, blob: bytes) -> Entry:
    try:
        values = _values(blob, len(ENTRY) + len(LIVE))
    except msgspec.DecodeError:
        values = _values(blob, len(ENTRY))
    entry = Entry.of(execution, values[0], None, "", _owner(values[3]))
    for name, value in zip((*ENTRY, *LIVE), values, strict=False):
        setattr(entry, name, _READ[name](value) if name in _READ and value is not None else value)
    return entry


_READ: dict[str, Any] = {
    "key": _key,
    "owner": _owner,
    "reserved_by": _owner,
    "usage": lambda told: msgspec.convert(told, Usage),
    "charges": lambda told: tuple(map(Charge._make, told)),
    "flow": tuple,
    "weights": tuple,
    "steps": dict.fromkeys,
}
