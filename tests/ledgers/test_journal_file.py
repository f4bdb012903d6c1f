"""The file of the ledger: who owns it, what is no ledger, what is torn, and what happens when it takes nothing more."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headworks.core.commands import Answer, Cancel, Heartbeat, Start, Stop
from headworks.ledgers import journal_file
from headworks.ledgers.errors import LedgerError
from headworks.ledgers.journal import open_journal
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, REMEMBER_MS, RESTARTED, WHOLE, Ledger, reserve, used
from tests.ledgers.stores import JournalWorld

SCOPES = {"pool:pool": WHOLE, "tenant:acme": WHOLE}


def refusal(path: Path) -> str:
    """What a start on this file says."""
    with pytest.raises(LedgerError) as caught:
        open_journal(str(path), LEASE_MS, REMEMBER_MS, lambda: 0)
    return str(caught.value)


# who owns it


def test_A9_a_second_process_is_told_who_owns_the_file_and_what_to_use(world: JournalWorld) -> None:
    text = refusal(world.path)
    assert f"in use by process {os.getpid()}" in text
    assert "Valkey" in text
    world.store.close()
    world.open()


def test_A9_the_lock_ends_with_its_process_however_that_ends(tmp_path: Path) -> None:
    path = tmp_path / "owned.db"
    child = os.fork()
    if not child:
        open_journal(str(path), LEASE_MS, REMEMBER_MS, lambda: 0)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    open_journal(str(path), LEASE_MS, REMEMBER_MS, lambda: 0).close()


def test_A9_another_name_of_the_same_file_is_the_same_file(world: JournalWorld, tmp_path: Path) -> None:
    other = tmp_path / "link.db"
    other.symlink_to(world.path)
    assert "in use by process" in refusal(other)


def test_H2_nobody_else_on_the_machine_can_read_it(world: JournalWorld) -> None:
    Ledger(world.opened()).open(SCOPES)
    assert {oct(path.stat().st_mode & 0o777) for path in world.path.parent.glob("0.db*")} == {"0o600"}


# what is no ledger


def test_A9_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    before = path.read_bytes()
    assert refusal(path) == f"{path} is a database of something else, not a ledger: name another file"
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"pools: {}\n" * 200, os.urandom(8192), b"SQLite format 3\x00" + bytes(4080)])
def test_A9_what_is_no_database_is_said_to_be_damaged_or_none(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_bytes(content)
    text = refusal(path)
    assert "damaged or no ledger" in text or "something else" in text
    assert path.read_bytes() == content


def test_A9_an_empty_file_becomes_a_ledger_and_so_does_one_with_keys_in_it(tmp_path: Path) -> None:
    for name in ("empty", "keys"):
        path = tmp_path / f"{name}.db"
        path.touch()
        if name == "keys":
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute("CREATE TABLE keys (id TEXT)")
        open_journal(str(path), LEASE_MS, REMEMBER_MS, lambda: 0).close()


def test_A9_a_place_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    assert "No such file or directory" in refusal(tmp_path / "nowhere" / "x.db")


def filled(world: JournalWorld) -> Path:
    """A ledger with a hundred records, closed."""
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    ledger.ask(*(reserve(f"x{number}", 10) for number in range(100)))
    world.store.close()
    return world.path


@pytest.mark.parametrize("ratio", [0.2, 0.5, 0.9])
def test_A9_a_truncated_file_is_refused_with_what_would_help(ratio: float, world: JournalWorld) -> None:
    path = filled(world)
    os.truncate(path, int(path.stat().st_size * ratio))
    assert "headworks ledger restore FILE" in refusal(path)


def test_A9_a_damaged_page_is_refused_with_what_would_help(world: JournalWorld) -> None:
    path = filled(world)
    content = bytearray(path.read_bytes())
    for place in range(4096, len(content), 512):
        content[place : place + 64] = b"\xff" * 64
    path.write_bytes(content)
    assert "headworks ledger restore FILE" in refusal(path)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE snapshot SET book = x'00'",
        "UPDATE snapshot SET book = substr(book, 1, 40)",
        "INSERT INTO journal (runs) VALUES (x'ff')",
        "INSERT INTO journal (runs) VALUES (x'919300919144726170')",
        "DELETE FROM snapshot",
    ],
)
def test_A9_a_row_that_says_nothing_is_refused_or_empty_and_never_half_read(change: str, world: JournalWorld) -> None:
    path = filled(world)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(change)
    if change.startswith("DELETE"):
        store = open_journal(str(path), LEASE_MS, REMEMBER_MS, lambda: 0)
        assert store.book.records() == []
        store.close()
    else:
        assert "headworks ledger restore FILE" in refusal(path)


def test_H4_a_journal_that_another_version_decides_otherwise_is_not_replayed(world: JournalWorld) -> None:
    """The row says that a reserve was granted; this book, without the heartbeat before it, would not grant it."""
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    ledger.ask(reserve("x", 10))
    path = world.left_behind()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM journal WHERE number = (SELECT min(number) FROM journal)")
    assert "row 1 promised 1 times, and 0 times when replayed" in refusal(path)


# versions


def test_H4_a_newer_schema_is_refused_politely_and_unchanged(world: JournalWorld) -> None:
    path = filled(world)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    assert re.search(r"written by a newer version \(schema 99; this one knows \d+\)", refusal(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("schema", [0, -1, -(2**31)])
def test_A9_a_schema_that_never_was_is_damage_and_no_fault_of_ours(schema: int, world: JournalWorld) -> None:
    """Found by fuzzing: one changed byte of the file's header was a `KeyError`."""
    path = filled(world)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {schema:d}")
    before = path.read_bytes()
    assert f"is damaged or no ledger (schema {schema}, which there never was)" in refusal(path)
    assert path.read_bytes() == before
    assert list(path.parent.glob("*.schema-*")) == [], "nothing was put aside for an upgrade that there is not"


@pytest.mark.parametrize(
    "book", [[1, 2, 3], 7, "x", {}, {"lease_ms": 1}, {"lease_ms": 1, "remember_ms": 1, "book": [1]}], ids=repr
)
def test_A9_a_snapshot_that_is_none_is_told_in_a_sentence(book: object, world: JournalWorld) -> None:
    """Found by fuzzing: an `AttributeError` where it was a list."""
    path = filled(world)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE snapshot SET book = ?", (msgspec.msgpack.encode(book),))
    text = refusal(path)
    assert "restore a backup" in text and str(path) in text


def test_H4_an_older_schema_is_upgraded_step_by_step_and_kept_as_it_was(world: JournalWorld) -> None:
    path = filled(world)
    steps = {
        journal_file.SCHEMA: lambda connection: connection.execute("ALTER TABLE journal ADD COLUMN one TEXT"),
        journal_file.SCHEMA + 1: lambda connection: connection.execute("ALTER TABLE journal ADD COLUMN two TEXT"),
    }
    newer = journal_file.SCHEMA + 2
    with contextlib.closing(journal_file.connect(path, newer, steps)) as connection:  # type: ignore[arg-type]
        names = [row[1] for row in connection.execute("PRAGMA table_info(journal)")]
        assert names == ["number", "runs", "one", "two"]
        assert connection.execute("PRAGMA user_version").fetchone() == (newer,)
        assert journal_file.Contents(connection, path).snapshot["book"]["entries"]
    kept = f"{path}.schema-{journal_file.SCHEMA}"
    assert os.stat(kept).st_mode & 0o777 == 0o600, "the hashes of keys are in it too"
    store = open_journal(kept, LEASE_MS, REMEMBER_MS, lambda: 0)
    assert len(store.book.charged()) == 100
    store.close()


def test_H4_a_disk_without_room_for_the_copy_keeps_no_half_of_it(world: JournalWorld) -> None:
    """Else it would stand in the way of the next start, as if it were worth keeping."""
    path = filled(world)
    steps = {journal_file.SCHEMA: lambda connection: connection.execute("ALTER TABLE journal ADD COLUMN one TEXT")}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        with pytest.raises(LedgerError, match="could not be copied"):
            journal_file.connect(path, journal_file.SCHEMA + 1, steps)  # type: ignore[arg-type]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(path.parent.glob("*.schema-*")) == []
    journal_file.connect(path, journal_file.SCHEMA + 1, steps).close()  # type: ignore[arg-type]


def test_H4_an_upgrade_that_fails_changes_nothing(world: JournalWorld) -> None:
    path = filled(world)
    steps = {journal_file.SCHEMA: lambda connection: connection.execute("ALTER TABLE missing ADD COLUMN one TEXT")}
    with pytest.raises(LedgerError, match="is as it was: no such table"):
        journal_file.connect(path, journal_file.SCHEMA + 1, steps)  # type: ignore[arg-type]
    with pytest.raises(LedgerError, match="is as it was: no such table"):  # and once more: it left nothing in its way
        journal_file.connect(path, journal_file.SCHEMA + 1, steps)  # type: ignore[arg-type]
    assert len(world.open().book.charged()) == 100


# a torn log


def carried(world: JournalWorld) -> None:
    """The log has been carried into the file, as far as it went when that began."""
    running = world.store._file._checkpoints._running
    assert running is not None
    running.result(10)


def test_A9_a_log_torn_anywhere_leaves_a_moment_of_the_history_and_no_other(world: JournalWorld) -> None:
    """As a power loss may leave it: what comes back is the history up to some instant, and the book is sound."""
    ledger = Ledger(world.opened())
    carried(world)  # what is in the file itself has been synced before, and so had the log it came from
    ledger.open(SCOPES)
    for number in range(30):
        ledger.ask(reserve(f"x{number:02}", 1))
    size = Path(f"{world.path}-wal").stat().st_size
    seen = set()
    for cut in [*range(0, size, size // 60), size]:
        path = world.left_behind()
        os.truncate(f"{path}-wal", cut)
        if cut % 2:
            with open(f"{path}-wal", "ab") as log:
                log.write(os.urandom(700))
        store = open_journal(str(path), LEASE_MS, REMEMBER_MS, lambda: 0)
        found = sorted(record.execution for record in store.book.charged())
        assert found == [f"x{number:02}" for number in range(len(found))], f"cut at {cut} of {size}"
        assert store.book.held("pool:pool", "tokens") == len(found)
        seen.add(len(found))
        store.close()
    assert min(seen) == 0
    assert max(seen) == 30
    assert len(seen) > 15


# nothing can be written


@contextlib.contextmanager
def full(world: JournalWorld, how: str) -> Iterator[None]:
    """A disk that takes nothing more, as SQLite sees it: by a quota on its pages, or by an error of the system."""
    if how == "quota":
        connection = world.store._file._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            while True:  # rows without a command, until the last page is full
                connection.execute("INSERT INTO journal (runs) VALUES (x'90')")
        yield
        connection.execute("PRAGMA max_page_count = 1000000")
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{world.path}-wal").stat().st_size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("how", ["quota", "error"])
def test_A9_on_a_full_disk_reserves_fail_closed_stops_are_kept_and_it_heals_by_itself(how: str, world: JournalWorld) -> None:
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    ledger.ask(reserve("runs", 20), reserve("ends", 30), Start("ends", FIRST))
    late: list[Answer] = []
    beats: list[Answer] = []
    with full(world, how):
        world.store.apply([reserve("late", 40)], late.extend)
        world.settle()
        assert late == [], "nothing may start that would be forgotten"
        assert world.lost == 1
        world.store.apply([reserve("never", 80)], late.extend)
        world.settle()
        assert late == []
        assert world.store.book.find("never") is None
        stopped = ledger.one(Stop("ends", FIRST, "E1", "completed", used(25)))
        assert (stopped.state, stopped.usage) == ("COMPLETED", used(25))
        assert ledger.one(Cancel("runs", FIRST)).state == "CANCELLING"
        world.store.apply([Heartbeat(FIRST)], beats.extend)
        assert beats == [], "a gateway that is told it lives would go on admitting"
        assert world.lost == 1
        left = world.left_behind()
    killed = open_journal(str(left), LEASE_MS, REMEMBER_MS, lambda: 0)
    assert sorted(record.execution for record in killed.book.charged()) == ["ends", "runs"]
    killed.close()
    assert ledger.one(Heartbeat(FIRST)).outcome == "ok"
    assert [answer.outcome for answer in late] == ["granted"], "the promise, once it is kept"
    assert ledger.outcome(reserve("next", 1)) == "granted"
    ledger.store = world.killed()
    ledger.ask(Heartbeat(RESTARTED))
    assert {record.execution: record.state for record in world.store.book.records()} == {
        "runs": "ORPHANED",
        "ends": "COMPLETED",
        "late": "ORPHANED",
        "next": "ORPHANED",
    }


def test_A9_a_value_that_has_no_bytes_closes_the_ledger_instead_of_being_forgotten(world: JournalWorld) -> None:
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    world.store.apply([Stop("x", FIRST, "E1", "completed", used(1 << 70))], lambda answers: None)
    world.store.apply([reserve("y", 1)], lambda answers: pytest.fail("promised"))
    world.settle()
    assert (world.lost, world.store.is_lost) == (1, True)


def test_A9_what_waits_on_a_full_disk_is_bounded(world: JournalWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headworks.ledgers.journal.COMMANDS_KEPT_MAX", 50)
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    ledger.ask(reserve("x", 1))
    given: list[Answer] = []
    with full(world, "quota"):
        world.store.apply([reserve("late", 40)], lambda answers: None)
        world.settle()
        for number in range(100):
            world.store.apply([Cancel(f"unknown-{number}", FIRST)], given.extend)
        assert len(given) == 49
    assert ledger.one(Heartbeat(FIRST)).outcome == "ok"


def test_A9_a_snapshot_that_does_not_fit_leaves_the_rows(tmp_path: Path) -> None:
    """The journal goes on as rows, and is as good."""
    world = JournalWorld(tmp_path, snapshot_rows=5)
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    world.store._file._connection.execute(
        "CREATE TEMP TRIGGER none BEFORE INSERT ON main.snapshot BEGIN SELECT RAISE(ABORT, 'no room'); END"
    )
    for number in range(20):
        ledger.ask(reserve(f"x{number}", 1))
    assert world.lost == 0
    assert world.killed().book.held("pool:pool", "tokens") == 20
    world.store.close()


def test_A9_the_log_is_carried_into_the_file_while_it_is_written(world: JournalWorld) -> None:
    ledger = Ledger(world.opened())
    ledger.open(SCOPES)
    before = world.path.stat().st_size
    text = "x" * 20_000
    for number in range(300):
        ledger.ask(Heartbeat(FIRST, unvouched=(text,)), reserve(f"x{number}", 1))
    carried(world)
    assert world.path.stat().st_size > before + 3_000_000
    assert Path(f"{world.path}-wal").stat().st_size < 64 << 20
