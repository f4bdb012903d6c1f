"""What has ended under a client's key outlives the process that ran it, at a cost that no moment feels (A6, A9)."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from headworks.core.commands import Claim, Heartbeat, Stop
from headworks.core.seams import LedgerStore
from headworks.core.types import Owner, RequestKey
from headworks.ledgers.base import open_ledger
from headworks.testing.suites.ledger_subject import (
    FIRST,
    LEASE_MS,
    REMEMBER_MS,
    RESTARTED,
    SECOND,
    WHOLE,
    Ledger,
    Opened,
    reserve,
    used,
)
from tests.ledgers.stores import JournalWorld

SCOPES = {"pool:pool": WHOLE, "tenant:acme": WHOLE}


def test_A6_an_answer_given_before_a_restart_is_remembered_and_of_a_minted_one_its_name(tmp_path: Path) -> None:
    world = JournalWorld(tmp_path, snapshot_rows=3)
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    for number in range(12):
        key = RequestKey("acme", f"order-{number}")
        ledger.ask(Claim(f"x{number}", key, "same", FIRST), reserve(f"x{number}", 10, key=key), reserve(f"m{number}", 10))
        ledger.ask(Stop(f"x{number}", FIRST, "E1", "completed", used(8)), Stop(f"m{number}", FIRST, "E1", "completed", None))
        ledger.ask(Heartbeat(FIRST))
    for _ in range(2):
        ledger.store = world.killed()
        ledger.ask(Heartbeat(RESTARTED))
        for number in (0, 11):
            answer = ledger.one(Claim("again", RequestKey("acme", f"order-{number}"), "same", RESTARTED))
            assert (answer.outcome, answer.execution, answer.usage) == ("replay", f"x{number}", used(8))
    assert len([one for one in world.store.book.records() if one.execution.startswith("x")]) == 12
    assert {one.state for one in world.store.book.records() if one.execution.startswith("m")} == {"STOPPED"}
    assert ledger.outcome(reserve("m0", 10, owner=RESTARTED)) == "dead", "of the others the names are enough"
    world.advance(600_000)
    ledger.store = world.killed()
    assert world.store.book.records() == []
    world.store.close()


def test_A6_what_ends_under_keys_is_kept_a_few_hundred_at_a_time_and_once(tmp_path: Path) -> None:
    """A snapshot that had to make rows of all of them at once stopped the loop for as long as that takes."""
    world = JournalWorld(tmp_path)
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)

    def complete(numbers: range, owner: Owner) -> None:
        for number in numbers:
            key, execution = RequestKey("acme", f"order-{number}"), f"x{number}"
            ledger.ask(Claim(execution, key, "same", owner), reserve(execution, 10, owner=owner, key=key))
            ledger.ask(Stop(execution, owner, "E1", "completed", used(8)))

    complete(range(700), FIRST)
    assert [len(row) for row in kept(world.path)] == [256, 256]
    ledger.store = world.killed()
    assert [len(row) for row in kept(world.path)] == [699], "the last end was not written yet; all others once"
    ledger.ask(Heartbeat(RESTARTED))
    complete(range(700, 1_000), RESTARTED)
    ledger.ask(Heartbeat(RESTARTED))
    world.store.close()
    assert [len(row) for row in kept(world.path)] == [699, 256, 44]
    ledger.store = world.open()
    ledger.ask(Heartbeat(SECOND))
    for number in (0, 255, 256, 698, 700, 999):
        assert ledger.outcome(Claim("again", RequestKey("acme", f"order-{number}"), "same", SECOND)) == "replay"
    world.advance(REMEMBER_MS + 1)
    world.store.close()
    world.open().close()
    assert kept(world.path) == [], "what is forgotten leaves the file as well"


def test_A6_a_file_whose_snapshot_does_not_say_how_far_it_speaks_is_read_whole(world: JournalWorld) -> None:
    ledger, key = Ledger(world.opened()), RequestKey("acme", "order-1")
    ledger.open(SCOPES)
    ledger.ask(Claim("x", key, "same", FIRST), reserve("x", 10, key=key), Stop("x", FIRST, "E1", "completed", used(8)))
    world.store.close()
    with sqlite3.connect(world.path) as connection:
        snapshot = msgspec.msgpack.decode(connection.execute("SELECT book FROM snapshot").fetchone()[0])
        assert snapshot.pop("ended_upto") == 1
        connection.execute("UPDATE snapshot SET book = ?", (msgspec.msgpack.encode(snapshot),))
    ledger.store = world.open()
    ledger.ask(Heartbeat(SECOND))
    assert ledger.outcome(Claim("again", key, "same", SECOND)) == "replay"


def kept(path: Path) -> list[list[Any]]:
    """What stands in the file of what has ended."""
    with sqlite3.connect(path) as connection:
        return [msgspec.msgpack.decode(row) for (row,) in connection.execute("SELECT records FROM ended ORDER BY number")]


def test_A6_a_lowered_remember_s_makes_no_key_run_again_after_restarts(tmp_path: Path) -> None:
    url, now_ms = f"sqlite:{tmp_path}/ledger.db", 1_000

    def complete(execution: str, remember_ms: int) -> None:
        store = open_ledger(url, lease_ms=LEASE_MS, remember_ms=remember_ms, clock_ms=lambda: now_ms)
        ledger, key = Ledger(as_opened(store)), RequestKey("acme", execution)
        ledger.open(SCOPES)
        ledger.ask(Claim(execution, key, "same", FIRST), reserve(execution, 10, key=key))
        ledger.ask(Stop(execution, FIRST, "E1", "completed", used(8)))
        store.close()

    def outcome(execution: str) -> str:
        store = open_ledger(url, lease_ms=LEASE_MS, remember_ms=60_000, clock_ms=lambda: now_ms)
        ledger = Ledger(as_opened(store))
        ledger.open(SCOPES)
        found = ledger.outcome(Claim("again", RequestKey("acme", execution), "same", FIRST))
        store.close()
        return found

    complete("before", 3_600_000)
    complete("after", 60_000)
    for _ in range(2):
        assert (outcome("before"), outcome("after")) == ("replay", "replay")


def as_opened(store: LedgerStore) -> Opened:
    """A store whose time a test keeps itself."""
    return Opened(store, lambda ms: None, lambda: None, lambda: store, lambda: store, list)
