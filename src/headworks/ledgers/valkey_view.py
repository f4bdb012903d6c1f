"""What stands in a shared ledger at one instant: to be shown, and to be audited like every other book (`ledger show|audit`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec

from headworks.core.book_audit import audit, differences
from headworks.core.book_counters import Counter, Counters
from headworks.core.book_parts import Boot, Entry
from headworks.core.book_proof import Replica
from headworks.core.book_sessions import TOKENS, OpenSession
from headworks.core.book_table import CHARGED, ORPHANED, RESERVED
from headworks.core.commands import Floor
from headworks.core.types import Charge, Owner, RequestKey, Reservation, SessionRecord
from headworks.ledgers.valkey_script import look_script
from headworks.ledgers.valkey_wire import PART, charges_of, read_usage

SCRIPT = look_script()

HEAD = ("came", "reserved_ms", "changes")
"""Of a live record, after the number of its values and before the words of its `Reserve`."""
BODY = ("code", "execution", "key", "fingerprint", "owner", "shape", "cost_tokens", "waiting_tokens", "more", "slots_tokens")
"""After them come the amounts."""
CHANGES = (
    *("state", "was", "seen", "owner", "entered", "orphaned", "started_ms", "running_sequence", "closing_sequence"),
    *("closing_ms", "incarnation", "steps"),
)
ENDED = ("forget_ms", "key", "state", "fingerprint", "owner", "usage", "evidence", "ended_ms")
"""In the order in which `records.lua` writes them."""
BOOK, BOOT, COUNTER, REPLICA, SESSION = 11, 9, 4, 14, 11
"""Values of one record of each kind."""
FLOORED = 9
"""Of a counter that a floor speaks of."""
ALIVE = 1
"""Its place in a boot's."""
READER, FOREIGN = 2, 7
"""Their places in a replica's."""
NOW_MS, UNDERFLOWS = 0, 7
"""Their places in the book's own."""
_decode = msgspec.msgpack.Decoder().decode


class View:
    """The answer of `look.lua`, as the book's own parts."""

    def __init__(self, told: Sequence[Any]) -> None:
        book, boots, replicas, live, counters, ended, keys, sessions = told
        self.counters = Counters()
        kept = [self._count(name, blob) for name, blob in _pairs(counters)]
        self.counters.set_floors(tuple(floor for floor, _, _ in kept if floor is not None))
        for _, counter, kept_amount in kept:
            counter.kept = kept_amount
        of_book = _values(book, BOOK) if book else [0] * BOOK
        self._now_ms, self.counters.underflows = of_book[NOW_MS], of_book[UNDERFLOWS]
        self.boots: dict[Owner, Boot] = {}
        for name, blob in _pairs(boots):
            boot = Boot(_owner(name.decode()))
            boot.alive = _values(blob, BOOT)[ALIVE]
            self.boots[boot.owner] = boot
        self.replicas = {name.decode(): Replica(name.decode()) for name, _ in _pairs(replicas)}
        self._told = {name.decode(): _values(blob, REPLICA) for name, blob in _pairs(replicas)}
        found = [_live(name.decode(), blob) for name, blob in _pairs(live)]
        self.entries = {one.entry.execution: one.entry for one in sorted(found, key=attrgetter("came"))}
        self.entries.update((name.decode(), _ended(name.decode(), blob)) for name, blob in _pairs(ended))
        self.orphans: dict[str, Entry] = {}
        for one in sorted(found, key=attrgetter("came")):
            self.boots[one.entry.owner].entries[one.entry.execution] = one.entry
        for one in sorted(found, key=attrgetter("entered")):
            if one.entry.state in CHARGED:
                self.replicas[one.entry.replica].entries[one.entry.execution] = one.entry
        for one in sorted(found, key=attrgetter("orphaned")):
            if one.entry.state == ORPHANED:
                self.orphans[one.entry.execution] = one.entry
        self.sessions = {name.decode(): _session(name.decode(), _values(blob, SESSION)) for name, blob in _pairs(sessions)}
        self.keys = {_key(name.decode()): execution.decode() for name, execution in _pairs(keys)}

    def charged(self) -> list[Reservation]:
        """Every execution that holds capacity."""
        return [entry.reservation() for entry in self.entries.values() if entry.state in CHARGED]

    def held(self, scope: str, unit: str) -> int:
        """What is charged there."""
        return self.counters.held(scope, unit)

    def open_sessions(self) -> list[SessionRecord]:
        """Every session that is open."""
        return [
            one.told(self.counters.held(one.scope, TOKENS), self._now_ms) for one in self.sessions.values() if not one.ended
        ]

    def check(self) -> list[str]:
        """Every counter and list against the records. What has ended is judged as far as it was looked at."""
        return audit(self.counters, self.entries, self.boots, self.replicas, self.orphans, self.keys, self.sessions)

    def differences(self) -> dict[str, int]:
        """As `Book.differences`."""
        return differences(self.counters, self.entries, self.sessions)

    def foreign_loads(self) -> dict[str, int]:
        """By replica that is sampled: 1 while the store has found load above all that was charged (F10)."""
        return {name: int(bool(values[FOREIGN])) for name, values in self._told.items() if values[READER]}

    def _count(self, name: bytes, blob: bytes) -> tuple[Floor | None, Counter, int]:
        """Its floor, if it has one, itself, and what is said to be kept of it: the audit adds that up again."""
        unit, _, scope = name.decode().partition("\0")
        (counter,) = self.counters.find([Charge(scope, unit, 0)])
        try:
            values = _values(blob, FLOORED)
        except msgspec.DecodeError:
            values = [*_values(blob, COUNTER), 0, "", 0, 0, ""]
        counter.held, counter.committed, counter.limit, counter.excess, floor, within, _, kept, _ = values
        told = Floor(scope, unit, floor, within.partition("\0")[2]) if floor else None
        return told, counter, kept


def living(boots: Sequence[bytes]) -> list[Owner]:
    """The gateways whose leases hold, as far as the ledger has looked."""
    return [_owner(name.decode()) for name, blob in _pairs(boots) if _values(blob, BOOT)[ALIVE]]


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _values(blob: bytes, count: int) -> list[Any]:
    """So many values packed one after another, with nothing around them."""
    found: list[Any] = _decode(bytes([0xDC, *count.to_bytes(2, "big")]) + blob)
    return found


def _owner(name: str) -> Owner:
    gateway, _, boot = name.partition("\0")
    return Owner(gateway, boot)


def _key(name: str) -> RequestKey:
    tenant, _, request_id = name.partition("\0")
    return RequestKey(tenant, request_id)


def _session(scope: str, values: Sequence[Any]) -> OpenSession:
    _, shape, tokens, spent_tokens, unspent_tokens, returned_tokens, ended, *times_ms = values
    pool, _, service_class, tenant, class_weight, tenant_weight, *names = shape.split(PART)
    scopes = tuple(name.partition("\0")[2] for name in names)
    weights = (float(class_weight), float(tenant_weight))
    session = OpenSession(scope, pool, (service_class, tenant), weights, scopes)
    session.tokens, session.spent_tokens, session.unspent_tokens = tokens, spent_tokens, unspent_tokens
    session.returned_tokens, session.ended = returned_tokens, ended
    session.idle_ms, session.idle_until_ms, session.until_ms, session.forget_ms = times_ms
    return session


@dataclass(slots=True)
class _Live:
    """A record of what is claimed or charged, and where it stands in the lists it is in."""

    entry: Entry
    came: int
    entered: int = 0
    orphaned: int = 0


def _live(execution: str, blob: bytes) -> _Live:
    _, came, reserved_ms, changes, *body = _values(blob, _count(blob))
    told = dict(zip(BODY, body, strict=False))
    key = _key(told["key"]) if told["key"] else None
    entry = Entry.of(execution, RESERVED, key, told["fingerprint"], _owner(told["owner"]))
    entry.reserved_ms, entry.cost_tokens = reserved_ms, told["cost_tokens"]
    if told["shape"]:
        pool, replica, service_class, tenant, class_weight, tenant_weight, *names = told["shape"].split(PART)
        entry.pool, entry.replica, entry.charges = pool, replica, charges_of(names, body[len(BODY) :])
        entry.flow = (service_class, tenant) if service_class else None
        entry.weights = (float(class_weight), float(tenant_weight))
    found = _Live(entry, came, came)
    for name, value in zip(CHANGES, changes or (), strict=False):
        if name == "owner":
            entry.owner = _owner(value)
        elif name == "steps":
            entry.steps = dict.fromkeys(value)
        else:
            setattr(found if name in ("entered", "orphaned") else entry, name, value)
    return found


def _count(blob: bytes) -> int:
    """The first value says how many there are."""
    if blob[0] < 0x80:
        return blob[0]
    return int.from_bytes(blob[1:2] if blob[0] == 0xCC else blob[1:3], "big")


def _ended(execution: str, blob: bytes) -> Entry:
    told = dict(zip(ENDED, _values(blob, len(ENDED)), strict=True))
    key = _key(told["key"]) if told["key"] else None
    entry = Entry.of(execution, told["state"], key, told["fingerprint"], _owner(told["owner"]))
    entry.forget_ms, entry.ended_ms, entry.evidence = told["forget_ms"], told["ended_ms"], told["evidence"]
    entry.usage = read_usage(told["usage"])
    return entry
