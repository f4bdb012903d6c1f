"""The ledger's own audit: every counter and every list recomputed from the records (A4, K07, K15).

It finds a book that contradicts itself. It cannot find capacity that was freed too early, since the book then agrees with
itself; that takes a second witness, which in simulation is what the engines physically hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headworks.core.book_counters import Counters
from headworks.core.book_parts import Boot, Entry
from headworks.core.book_proof import Replica
from headworks.core.book_sessions import TOKENS, OpenSession
from headworks.core.book_table import CHARGED, CLAIMED, MOVES, ORPHANED, TERMINAL
from headworks.core.types import Owner, RequestKey


def audit(
    counters: Counters,
    entries: Mapping[str, Entry],
    boots: Mapping[Owner, Boot],
    replicas: Mapping[str, Replica],
    orphans: Mapping[str, Entry],
    keys: Mapping[RequestKey, str],
    sessions: Mapping[str, OpenSession],
) -> list[str]:
    """A sentence for each difference."""
    return [
        *_of_counters(counters, entries, sessions),
        *_of_sessions(counters, sessions),
        *_of_states(entries, boots),
        *_of_lists(entries, boots, replicas, orphans),
        *_of_keys(entries, keys),
    ]


def differences(counters: Counters, entries: Mapping[str, Entry], sessions: Mapping[str, OpenSession]) -> dict[str, int]:
    """By kind of scope: how far its counters are from the sum of their parts, added up without signs."""
    parts: dict[tuple[str, str], int] = {}
    for session in sessions.values():
        for scope in session.scopes:
            parts[scope, TOKENS] = parts.get((scope, TOKENS), 0) + session.unspent_tokens
    for entry in entries.values():
        if entry.state in CHARGED:
            for scope, unit, amount in entry.charges:
                parts[scope, unit] = parts.get((scope, unit), 0) + amount
    found: dict[str, int] = {}
    for counter in counters.all():
        kind = counter.scope.partition(":")[0]
        apart = abs(counter.held - counter.committed - parts.pop((counter.scope, counter.unit), 0))
        found[kind] = found.get(kind, 0) + apart
    for (scope, _), without in parts.items():
        kind = scope.partition(":")[0]
        found[kind] = found.get(kind, 0) + abs(without)
    return found


def _of_counters(counters: Counters, entries: Mapping[str, Entry], sessions: Mapping[str, OpenSession]) -> Iterator[str]:
    charged: dict[tuple[str, str], int] = {}
    largest: dict[tuple[str, str], int] = {}
    for entry in entries.values():
        if entry.state in CHARGED:
            for scope, unit, amount in entry.charges:
                charged[scope, unit] = charged.get((scope, unit), 0) + amount
                largest[scope, unit] = max(largest.get((scope, unit), 0), amount)
                if amount < 0:
                    yield f"{entry.execution} is charged {amount} {unit} on {scope}"
    kept: dict[tuple[str, str], int] = {}
    for floor in counters.floors:
        unused = max(0, floor.amount - counters.held(floor.scope, floor.unit))
        kept[floor.within, floor.unit] = kept.get((floor.within, floor.unit), 0) + unused
    for session in sessions.values():
        for scope in session.scopes:
            charged[scope, TOKENS] = charged.get((scope, TOKENS), 0) + session.unspent_tokens
    for counter in counters.all():
        if counter.kept != kept.get((counter.scope, counter.unit), 0):
            yield f"{counter.scope} {counter.unit}: {counter.kept} are kept free, by the floors {kept}"
        parts = charged.pop((counter.scope, counter.unit), 0) + counter.committed
        if counter.held != parts:
            yield f"{counter.scope} {counter.unit}: the counter says {counter.held}, its parts {parts}"
        if counter.held < 0:
            yield f"{counter.scope} {counter.unit} is below zero: {counter.held}"
        alone = counter.is_read and counter.held == largest.get((counter.scope, counter.unit))
        if counter.held > max(counter.limit, counter.excess) and not alone:
            yield f"{counter.scope} {counter.unit}: {counter.held} held, {counter.limit} allowed, no excess recorded"
    if counters.underflows:
        yield f"counters fell below zero {counters.underflows} times"
    for (scope, unit), parts in charged.items():
        if parts:
            yield f"{scope} {unit}: no counter for {parts}"


def _of_sessions(counters: Counters, sessions: Mapping[str, OpenSession]) -> Iterator[str]:
    """tokens = spent + live + unspent, as long as it is open; nothing of it is unspent after its end (B14)."""
    for session in sessions.values():
        tokens, spent, unspent = session.tokens, session.spent_tokens, session.unspent_tokens
        live = counters.held(session.scope, TOKENS)
        if unspent != (0 if session.ended else max(0, tokens - spent - live)):
            yield f"{session.scope}: {unspent} unspent, of {tokens} spent {spent} and live {live}, {session.ended or 'open'}"
        if not 0 <= spent <= tokens or session.returned_tokens > tokens - spent:
            yield f"{session.scope}: {spent} of {tokens} spent, {session.returned_tokens} returned"


def _of_states(entries: Mapping[str, Entry], boots: Mapping[Owner, Boot]) -> Iterator[str]:
    for entry in entries.values():
        if entry.state not in MOVES or not entry.state:
            yield f"{entry.execution} is in no known state: {entry.state}"
        if entry.state in CHARGED and entry.state != ORPHANED and not boots[entry.owner].alive:
            yield f"{entry.execution} is {entry.state} though the lease of its owner is over"
        if entry.state not in TERMINAL and entry.forget_ms:
            yield f"{entry.execution} is {entry.state} and due to be forgotten"
        if entry.state in TERMINAL and not entry.forget_ms:
            yield f"{entry.execution} is {entry.state} and would be remembered for ever"


def _of_lists(
    entries: Mapping[str, Entry],
    boots: Mapping[Owner, Boot],
    replicas: Mapping[str, Replica],
    orphans: Mapping[str, Entry],
) -> Iterator[str]:
    """Whatever is listed must stand in the records and belong there, and the other way round."""
    owned = {name: boot.owner for boot in boots.values() for name in boot.entries}
    placed = {name: replica.name for replica in replicas.values() for name in replica.entries}
    for name, entry in entries.items():
        charged = entry.state in CHARGED
        if owned.pop(name, None) != (entry.owner if charged or entry.state == CLAIMED else None):
            yield f"{name} is {entry.state} and listed under the wrong boot or none"
        if placed.pop(name, None) != (entry.replica if charged else None):
            yield f"{name} is {entry.state} and listed on the wrong replica or none"
        if (name in orphans) != (entry.state == ORPHANED):
            yield f"{name} is {entry.state} and wrongly listed among the orphans or missing there"
    for name in [*owned, *placed]:
        yield f"{name} is listed and has no record"


def _of_keys(entries: Mapping[str, Entry], keys: Mapping[RequestKey, str]) -> Iterator[str]:
    """One execution of a key at a time; save those a ledger was only told of, which run whatever it thinks of that."""
    running: dict[RequestKey, str] = {}
    for entry in entries.values():
        if entry.key is not None and entry.state in CHARGED and entry.flow is not None:
            if entry.key in running:
                yield f"key {entry.key} has two executions charged: {running[entry.key]} and {entry.execution}"
            running[entry.key] = entry.execution
    for key, execution in keys.items():
        if execution not in entries:
            yield f"key {key} points at {execution}, which is forgotten"
