"""The script by itself: one blocking connection, a clock that comes with each call, and what stands in the store."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import hiredis

from headworks.core.book import Book
from headworks.core.commands import Answer, Command, Unmark
from headworks.core.fair import Wake
from headworks.core.types import Owner
from headworks.ledgers import valkey_view
from headworks.ledgers.valkey_script import named, script
from headworks.ledgers.valkey_view import View
from headworks.ledgers.valkey_wire import Answers, Asked, Words, encode_asked, read_reply
from headworks.testing.suites.ledger_subject import LEASE_MS, REMEMBER_MS

PUBLISH = 'call("SPUBLISH", ROOT .. ":turn:" .. owner, whose)'
KEEP = 'call("RPUSH", ROOT .. ":wakes", owner .. "\\0" .. whose)'
CLOCK = 'local function clock_ms() return tonumber(redis.call("GET", ROOT .. ":clock") or "0") end'
BODY = script(CLOCK).text.partition("\n")[2].partition("\n")[2]
SCRIPT = named(BODY.replace(PUBLISH, KEEP))
OTHER = named(BODY.replace(PUBLISH, KEEP) + "-- another version\n")
"""The same, as far as it goes; but neither knows what the other one has in memory."""
assert KEEP in SCRIPT.text


class Wire:
    """One blocking connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._reader = hiredis.Reader()

    def ask(self, *words: bytes | str | int) -> Any:
        self._socket.sendall(hiredis.pack_command(words))
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(1 << 20))
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        self._socket.close()


class PlainLedger:
    """One domain of a server."""

    def __init__(self, wire: Wire, domain: str, *, records_max: int = 1_000_000) -> None:
        self.root = f"headworks:{{{domain}}}"
        self._wire = wire
        self._words = Words()
        self._answers = Answers()
        self.script = SCRIPT
        for one in (SCRIPT, OTHER):
            wire.ask("FUNCTION", "LOAD", "REPLACE", one.text)
        self._asked = Asked(None, "run", LEASE_MS, REMEMBER_MS, records_max)
        self._asked.epoch = read_reply(self._call([], 0)).epoch

    def apply(self, commands: Sequence[Command], now_ms: int) -> list[Answer]:
        return self._answers.read(read_reply(self._call(commands, now_ms), len(commands)), commands)

    def _call(self, commands: Sequence[Command], now_ms: int) -> bytes:
        asked = encode_asked(self._asked)
        self._wire.ask("SET", f"{self.root}:clock", now_ms)
        told: bytes = self._wire.ask("FCALL", self.script.name, 1, self.root, asked, *self._words.of(commands))
        return told

    def take_wakes(self) -> list[Wake]:
        """Who was told of free capacity since the last time this was asked."""
        told = [one.decode().split("\0") for one in self._wire.ask("LRANGE", f"{self.root}:wakes", 0, -1)]
        self._wire.ask("DEL", f"{self.root}:wakes")
        return [Wake(Owner(gateway, boot), pool, (name, tenant)) for gateway, boot, pool, name, tenant in told]

    def look(self) -> View:
        return View(self._wire.ask("EVAL", valkey_view.SCRIPT, 1, self.root, "all"))

    def tags(self, pool: str) -> dict[str, Any]:
        """Virtual times and tags of a pool, as `differences` compares them."""
        names = {"": self._level(pool)}
        prefix = f"{self.root}:level:{pool}\0".encode()
        for key in self._wire.ask("KEYS", f"{self.root}:level:{pool}*"):
            if key.startswith(prefix):
                name = key[len(prefix) :].decode()
                names[name] = self._level(f"{pool}\0{name}")
        return names

    def _level(self, name: str) -> tuple[float, dict[str, float], list[tuple[float, str]]]:
        flat = self._wire.ask("HGETALL", f"{self.root}:level:{name}")
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        finish = {field[1:].decode(): float(tag) for field, tag in fields.items() if field.startswith(b"=")}
        waiting = [field[1:].decode() for field, state in fields.items() if field.startswith(b"+") and state == b"w"]
        turns = sorted((finish[flow], flow) for flow in waiting)
        return float(fields.get(b"virtual", 0)), finish, turns


def differences(ledger: PlainLedger, book: Book) -> list[str]:
    """Where what stands in the store is not what stands in the book. Of what has ended only what is asked about is kept."""
    for pool, turns in book._turns.items():  # both look now at what has gone stale
        stale = [Unmark(("no", "flow"), pool, Owner("no", "boot"))]
        ledger.apply(stale, book.now_ms)
        book.apply(stale, book.now_ms)
        turns._expire(book.now_ms)
    view = ledger.look()
    found = [f"audit: {said}" for said in view.check()]
    there = {name: entry.reservation() for name, entry in view.entries.items()}
    here = {record.execution: record for record in book.records()}
    if there.keys() != here.keys():
        found.append(f"records: {sorted(there.keys() ^ here.keys())}")
    for name in there.keys() & here.keys():
        one, other = there[name], here[name]
        same = (
            one == other
            if one.state in ("CLAIMED", "RESERVED", "RUNNING", "CANCELLING", "ORPHANED")
            else (
                (one.state, one.key, one.fingerprint, one.owner, one.usage, one.evidence, one.ended_ms)
                == (other.state, other.key, other.fingerprint, other.owner, other.usage, other.evidence, other.ended_ms)
            )
        )
        if not same:
            found.append(f"{one}\n is not {other}")
    for counter in book.counters.all():
        told = view.counters.find([(counter.scope, counter.unit, 0)])[0]
        both = [(one.held, one.committed, one.limit) for one in (told, counter)]
        if both[0] != both[1]:
            found.append(f"{counter.scope} {counter.unit}: {both}")
    for pool, turns in book._turns.items():
        levels = {"": turns.classes, **turns.tenants}
        wanted = {name: (level.virtual, dict(level.finish), list(level.in_turn())) for name, level in levels.items()}
        stands = ledger.tags(pool)
        for name in wanted:
            if stands.get(name) != wanted[name]:
                found.append(f"pool {pool}, level {name}: {stands.get(name)}, not {wanted[name]}")
    return found
