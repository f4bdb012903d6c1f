"""The store in a file: against the suite of all stores, and what it alone promises (A9)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from headworks.core.book import Book
from headworks.core.commands import Answer, Cancel, Command, Heartbeat, Held, SetLimits, Stop, Unmark
from headworks.core.types import Charge, Reservation
from headworks.ledgers import journal
from headworks.ledgers.base import LedgerError, open_ledger
from headworks.ledgers.journal_rows import decode
from headworks.testing.suites.ledger import CASES
from headworks.testing.suites.ledger_histories import History
from headworks.testing.suites.ledger_subject import (
    FIRST,
    LEASE_MS,
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


def rows(path: Path) -> list[list[Command]]:
    """The commands of each row in the file, as another process would see them."""
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT runs FROM journal ORDER BY number").fetchall()
    connection.close()
    return [[command for run in decode(row) for command in run.commands] for (row,) in found]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.removeprefix("case_"))
def test_journal_store(case: Callable[[Opened], None], world: JournalWorld) -> None:
    case(world.opened())


def test_A9_sqlite_url_opens_a_store_that_says_what_it_survives(tmp_path: Path) -> None:
    said = {}
    for power in (False, True):
        store = open_ledger(
            f"sqlite:{tmp_path}/{power}.db", lease_ms=5_000, remember_ms=60_000, clock_ms=lambda: 7, power=power
        )
        said[power] = store.guarantee
        assert store.now_ms() == 7
        assert isinstance(store, journal.JournalStore)
        (synchronous,) = store._file._connection.execute("PRAGMA synchronous").fetchone()
        assert synchronous == (2 if power else 1), "FULL syncs each batch, NORMAL none"
        store.close()
    assert said[False] == (
        "Exact for this process; a killed process forgets nothing that was admitted; a power loss may forget the last "
        "moments, and work that still runs is then found by its engine load."
    )
    assert "neither a killed process nor a power loss" in said[True]


# when it is written


def test_A9_no_promise_before_it_is_written_and_a_turn_is_one_row(world: JournalWorld) -> None:
    given: list[Answer] = []
    store = world.store
    store.apply([Heartbeat(FIRST)], given.extend)
    world.settle()
    before = len(rows(world.path))
    for name in ("x", "y", "z"):
        store.apply([reserve(name, 10)], given.extend)
    assert [answer.verb for answer in given] == ["heartbeat"], "promised before it was durable"
    assert len(rows(world.path)) == before
    world.settle()
    assert [answer.outcome for answer in given] == ["ok", "granted", "granted", "granted"]
    (row,) = rows(world.path)[before:]
    assert [command.execution for command in row] == ["x", "y", "z"]  # type: ignore[union-attr]


def test_A9_what_only_frees_is_answered_at_once_and_rides_with_the_next_batch(world: JournalWorld) -> None:
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    ledger.ask(reserve("x", 10))
    before, given = len(rows(world.path)), []
    world.store.apply([Stop("x", FIRST, "E1", "completed", used(8))], given.extend)
    assert [answer.state for answer in given] == ["COMPLETED"]
    world.settle()
    assert len(rows(world.path)) == before
    ledger.ask(reserve("y", 10))
    assert [type(command).__name__ for command in rows(world.path)[-1]] == ["Stop", "Reserve"]


def test_A9_a_heartbeat_takes_with_it_what_has_waited(world: JournalWorld) -> None:
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    ledger.ask(reserve("x", 10), Cancel("x", FIRST))
    world.store.apply([Stop("x", FIRST, "E3a", "cancelled", None)], lambda answers: None)
    ledger.ask(Heartbeat(FIRST))
    assert [type(command).__name__ for command in rows(world.path)[-1]] == ["Stop", "Heartbeat"]


def test_A9_five_hundred_riders_are_written_without_company(world: JournalWorld) -> None:
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    ledger.ask(*(reserve(f"x{number}", 1) for number in range(512)))
    before = len(rows(world.path))
    for number in range(512):
        if number == 511:
            assert len(rows(world.path)) == before
        world.store.apply([Stop(f"x{number}", FIRST, "E1", "completed", None)], lambda answers: None)
        world.settle()
    assert [len(row) for row in rows(world.path)[before:]] == [512]


def test_A9_what_was_not_written_is_forgotten_as_charged_never_as_free(world: JournalWorld) -> None:
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    ledger.ask(reserve("ended", 10), reserve("runs", 20))
    world.store.apply([Stop("ended", FIRST, "E1", "completed", None)], lambda answers: None)
    unheard: list[Answer] = []
    world.store.apply([reserve("unpromised", 40)], unheard.extend)
    book = world.killed().book
    assert unheard == []
    assert {record.execution: record.state for record in book.charged()} == {"ended": "ORPHANED", "runs": "ORPHANED"}
    assert book.held("pool:pool", "tokens") == 30


# starting again


def test_A9_a_killed_process_forgets_nothing_and_the_rest_is_orphaned_until_there_is_evidence(world: JournalWorld) -> None:
    ledger = Ledger(world.opened())
    ledger.open({**SCOPES, "pool:pool": 100})
    ledger.ask(reserve("x", 60), reserve("y", 30))
    ledger.store = world.killed()
    assert {record.execution: record.state for record in world.store.book.records()} == {"x": "ORPHANED", "y": "ORPHANED"}
    ledger.ask(Heartbeat(RESTARTED))
    assert ledger.outcome(reserve("z", 20, owner=RESTARTED)) == "refused"
    assert ledger.outcome(reserve("z", 10, owner=FIRST)) == "fenced", "the life that is over may take nothing more"
    ledger.ask(Stop("x", RESTARTED, "E3a", "cancelled", None), Stop("y", RESTARTED, "E3a", "cancelled", None))
    assert ledger.held("pool:pool", RESTARTED) == 0


def test_A9_limits_of_the_life_before_do_not_outrank_those_of_this_one(world: JournalWorld) -> None:
    """A process counts its policies from 1: after ten reloads and a restart its first one has to hold."""
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    ledger.ask(SetLimits("policy-11", 11, (Charge("pool:pool", "tokens", 100),)), Heartbeat(FIRST))
    ledger.store = world.killed()
    assert ledger.outcome(SetLimits("policy-1", 1, (Charge("pool:pool", "tokens", 50),))) == "ok"
    ledger.ask(Heartbeat(RESTARTED))
    assert ledger.outcome(reserve("x", 60, owner=RESTARTED)) == "never"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("snapshot_rows", "ended_at"), [(7, 256), (10_000, 256), (20, 2)])
def test_A9_a_replayed_journal_is_the_same_book(
    seed: int, snapshot_rows: int, ended_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random histories of every command there is, killed again and again. To see one again: `History(seed)`."""
    monkeypatch.setattr(journal, "ENDED_AT", ended_at)
    world = JournalWorld(tmp_path, snapshot_rows=snapshot_rows)
    ledger, history = Ledger(world.opened()), History(seed)
    for number in range(240):
        world.advance(history.step_ms())
        history.heard(ledger.ask(*history.commands()))
        if number % 40 == 39:
            world.store.write()
            before = world.store.book
            ledger.store = world.killed()
            assert_same(before, world.store.book, f"History({seed}), list {number}")
    world.store.close()


def assert_same(before: Book, after: Book, where: str) -> None:
    """The book of the next life is that of the last one with everything charged orphaned."""
    held = {(one.scope, one.unit): one.held for one in before.counters.all() if one.held}
    assert {(one.scope, one.unit): one.held for one in after.counters.all() if one.held} == held, where
    assert {record.state for record in after.charged()} <= {"ORPHANED"}, where
    assert after.check() == [], where
    before.orphan_all()
    expected, found = (json.loads(json.dumps(book.snapshot())) for book in (before, after))
    for value in (expected, found):
        value["limits"]["limits"].sort()
    for part in ("limits", "pools", "replicas", "orphans"):
        assert found[part] == expected[part], f"{where}: {part}"
    assert keyed(after) == keyed(before), where


def keyed(book: Book) -> dict[tuple[str, str], Reservation | None]:
    """What each client's key is answered from."""
    return {(tenant, name): book.find(execution) for tenant, name, execution in book.snapshot()["keys"]}


def test_A9_a_journal_is_replayed_with_the_lease_it_was_written_under(world: JournalWorld) -> None:
    """With a lease of 50 ms the boot would have lapsed between its heartbeats, and its reserve would have been fenced."""
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    world.advance(1_000)
    ledger.ask(reserve("x", 10))
    book = world.killed(lease_ms=50).book
    assert book.held("pool:pool", "tokens") == 10
    assert book.lease_ms == 50


def test_A9_time_goes_on_after_the_machine_has_been_started_again(world: JournalWorld) -> None:
    """The clock of a machine begins again at nought; the ledger's does not."""
    world.advance(1_000_000)
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    ledger.ask(reserve("x", 10))
    world.now_ms = 5
    ledger.store = world.killed()
    ledger.ask(Heartbeat(RESTARTED))
    assert world.store.book.now_ms >= 1_000_000
    world.advance(LEASE_MS)
    assert ledger.outcome(reserve("y", 10, owner=RESTARTED)) == "fenced", "leases end by the time that has passed since"


def test_A9_a_snapshot_empties_the_journal_and_is_as_good(tmp_path: Path) -> None:
    world = JournalWorld(tmp_path, snapshot_rows=10)
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    longest = 0
    for number in range(100):
        ledger.ask(reserve(f"x{number}", 1))
        longest = max(longest, len(rows(world.path)))
    assert longest == 10
    assert world.killed().book.held("pool:pool", "tokens") == 100
    assert len(rows(world.path)) == 0, "every start begins with a snapshot"
    world.store.close()


def test_A9_a_clean_end_leaves_nothing_to_replay_and_no_log(world: JournalWorld) -> None:
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    ledger.ask(reserve("x", 10))
    world.store.close()
    assert rows(world.path) == []
    assert not Path(f"{world.path}-wal").exists() or Path(f"{world.path}-wal").stat().st_size == 0
    assert world.open().book.held("pool:pool", "tokens") == 10


def test_A9_after_its_end_a_store_answers_nothing(world: JournalWorld) -> None:
    world.store.close()
    world.store.apply([Heartbeat(FIRST), Held(FIRST)], lambda answers: pytest.fail("answered"))
    world.settle()


def test_A9_two_boots_and_their_riders_survive_together(world: JournalWorld) -> None:
    ledger = Ledger(world.opened())
    ledger.open(SCOPES, FIRST, SECOND)
    ledger.ask(reserve("a", 1, owner=FIRST), reserve("b", 2, owner=SECOND))
    assert {record.owner for record in world.killed().book.charged()} == {FIRST, SECOND}


def test_A9_an_unknown_kind_is_refused_with_what_would_help() -> None:
    with pytest.raises(LedgerError, match="sqlite:PATH"):
        open_ledger("sqlite:", lease_ms=5_000, remember_ms=60_000, clock_ms=lambda: 0)


def test_A9_what_nobody_waits_for_is_written_with_the_512th_command(world: JournalWorld) -> None:
    """Ends and starts ride along with what lets work start; where nothing does, they do not pile up."""
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    world.settle()
    before = len(rows(world.path))
    unmark = Unmark(("interactive", "acme"), "pool", FIRST)
    world.store.apply([unmark] * 511, lambda answers: None)
    world.settle()
    assert len(rows(world.path)) == before
    world.store.apply([unmark], lambda answers: None)
    world.settle()
    assert [len(row) for row in rows(world.path)[before:]] == [512]
