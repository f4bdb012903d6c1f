"""The file of the embedded ledger: an SQLite database in WAL mode that one process owns.

    journal   a row for each batch of commands, in order, since the snapshot
    snapshot  one row: the book when the journal was last empty, and the times it counted with
    ended     rows of executions that have ended under a client's key, a few hundred each, written as they come; the snapshot
              says up to which row they are part of it, since of what came later the journal tells

Other tables in the file belong to others (`keys`) and are left alone; a backup has them too.

*Owned.* The lock is a file beside the database, locked by `flock`, which ends with the process however it ends. It cannot be
the database itself: SQLite's own locks would be lost when any other handle on that file is closed.

*Written.* `synchronous=NORMAL`: a batch is in the kernel's hands when its commit returns, so a killed process loses nothing;
a power loss may lose the last moments, and never tears the file. With `power` (`FULL`) each batch is synced.

*Bounded.* A snapshot empties the journal. The log of the database is carried into the file by a thread with a connection of
its own, so that nobody waits for the disk; only past `LOG_BYTES_MAX` the writer has to wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from headworks.ledgers.errors import LedgerError, WriteError
from headworks.ledgers.journal_rows import Run, encode

log = logging.getLogger("headworks.ledgers")

APPLICATION_ID = 0x68775F31
"""Marks the file as ours in its header."""
SCHEMA = 1
Upgrade = Callable[[sqlite3.Connection], None]
UPGRADES: Mapping[int, Upgrade] = {}
"""From which schema → how to get to the next one."""
OTHERS_TABLES = frozenset({"keys"})
"""Tables that may have been made in an empty file before it became a ledger."""
TABLES = """
CREATE TABLE journal (number INTEGER PRIMARY KEY, runs BLOB NOT NULL);
CREATE TABLE snapshot (number INTEGER PRIMARY KEY CHECK (number = 1), book BLOB NOT NULL);
CREATE TABLE ended (number INTEGER PRIMARY KEY, forget_ms INTEGER NOT NULL, records BLOB NOT NULL);
"""
NO_ROW = (TypeError, ValueError, OverflowError)
"""What becomes of a value that has no bytes. A ledger that holds one cannot be written any more, and has to say so."""
BUSY_S = 1.0
"""How long a write waits for another connection of the file."""
CARRY_BUSY_S = 0.1
"""A checkpoint that waits for a reader makes the writer wait with it: not for long, it comes again."""
ENDED_UPTO = "ended_upto"
ALL_ROWS = 1 << 62
"""Of a snapshot that does not say so: none was kept ahead of it."""
PAGE_BYTES = 4096
CHECKPOINT_BYTES = 4 << 20
LOG_BYTES_MAX = 64 << 20


class Lock:
    """That this process owns the file. Given up by `release`, or by the end of the process."""

    def __init__(self, path: Path) -> None:
        name = f"{os.path.realpath(path)}-lock"
        try:
            self._handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(f"The ledger {path} cannot be locked: {name}: {error.strerror}") from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._handle, 20, 0).decode("ascii", "replace").strip()
            os.close(self._handle)
            raise LedgerError(
                f"The ledger {path} is in use by process {owner or 'unknown'}. One process owns an embedded ledger: stop the "
                "other, give this one another file, or share a Valkey server between gateways (ledger.url: valkey://HOST:6379/0)"
            ) from error
        os.truncate(self._handle, 0)
        os.pwrite(self._handle, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let another process have it."""
        os.close(self._handle)


def connect(path: Path, schema: int = SCHEMA, upgrades: Mapping[int, Upgrade] = UPGRADES) -> sqlite3.Connection:
    """A connection to a sound ledger of this schema: made if there is none, upgraded if it is older, else `LedgerError`."""
    try:
        if not path.exists():  # before SQLite makes it, so that nobody else can read it
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
        connection = sqlite3.connect(os.path.abspath(path), timeout=BUSY_S, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"The ledger {path} cannot be opened: {error}") from error
    try:
        _make_if_empty(connection, path, schema)
        judge(connection, path, schema)
        _upgrade(connection, path, schema, upgrades)
        if _pragma(connection, "journal_mode=WAL") != "wal":
            raise LedgerError(f"The ledger {path} needs a local disk: its file system has no shared memory for SQLite's log")
    except sqlite3.Error as error:
        connection.close()
        raise LedgerError(_unsound(path, str(error))) from error
    except LedgerError:
        connection.close()
        raise
    return connection


def judge(connection: sqlite3.Connection, path: Path, schema: int = SCHEMA) -> None:
    """Raise `LedgerError` unless this is a sound ledger of this schema or an older one."""
    try:
        if _pragma(connection, "application_id") != APPLICATION_ID:
            raise LedgerError(f"{path} is a database of something else, not a ledger: name another file")
        found = _pragma(connection, "user_version")
        if found > schema:
            raise LedgerError(
                f"The ledger {path} was written by a newer version (schema {found}; this one knows {schema}): run that one, or "
                "restore the backup that was made before its upgrade"
            )
        fault = _pragma(connection, "quick_check(1)")
        if fault != "ok":
            raise LedgerError(_unsound(path, fault))
    except sqlite3.Error as error:
        raise LedgerError(_unsound(path, str(error))) from error


def _make_if_empty(connection: sqlite3.Connection, path: Path, schema: int) -> None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if _pragma(connection, "application_id") != 0 or tables - OTHERS_TABLES:
        return
    connection.executescript(
        f"BEGIN IMMEDIATE; {TABLES} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {schema}; COMMIT;"
    )


def _upgrade(connection: sqlite3.Connection, path: Path, schema: int, upgrades: Mapping[int, Upgrade]) -> None:
    """Step by step, all or nothing, with a copy of what was there before."""
    found = _pragma(connection, "user_version")
    if found == schema:
        return
    if any(number not in upgrades for number in range(found, schema)):
        raise LedgerError(_unsound(path, f"schema {found}, which there never was"))
    kept = Path(f"{path}.schema-{found}")
    try:
        os.close(os.open(kept, os.O_CREAT | os.O_EXCL, 0o600))  # it holds the hashes of keys
    except FileExistsError:
        raise LedgerError(f"{kept} exists, of an earlier upgrade: move it away") from None
    try:
        with contextlib.closing(sqlite3.connect(kept)) as copy:
            connection.backup(copy)
    except sqlite3.Error as error:
        kept.unlink()
        raise LedgerError(
            f"The ledger {path} could not be copied to {kept} before its upgrade, and is as it was: {error}"
        ) from error
    connection.execute("BEGIN IMMEDIATE")
    try:
        for number in range(found, schema):
            upgrades[number](connection)
        connection.execute(f"PRAGMA user_version = {schema:d}")
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        connection.execute("ROLLBACK")
        kept.unlink()
        text = f"The ledger {path} could not be upgraded from schema {found} to {schema}, and is as it was: {error}"
        raise LedgerError(text) from error
    log.warning("the ledger %s was upgraded from schema %d to %d; what it was is in %s", path, found, schema, kept)


def _pragma(connection: sqlite3.Connection, text: str) -> Any:
    return connection.execute(f"PRAGMA {text}").fetchone()[0]


def _unsound(path: Path, fault: str) -> str:
    return (
        f"The ledger {path} is damaged or no ledger ({fault}): restore a backup (headworks ledger restore FILE), or move it "
        "away; work that still runs is then found by its engine's load"
    )


class Contents:
    """What a ledger file holds, read once."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.path = path
        try:
            found = connection.execute("SELECT book FROM snapshot").fetchone()
            self.snapshot: dict[str, Any] | None = _section(found[0]) if found else None
            self.ended_upto: int = (self.snapshot or {}).get(ENDED_UPTO, ALL_ROWS)
            """The last row of `ended` that the snapshot speaks of."""
            self.ended: list[Any] = [
                record
                for (records,) in connection.execute(
                    "SELECT records FROM ended WHERE number <= ? ORDER BY number", (self.ended_upto,)
                )
                for record in _sections(records)
            ]
            self.rows: list[bytes] = [row for (row,) in connection.execute("SELECT runs FROM journal ORDER BY number")]
        except (sqlite3.Error, msgspec.MsgspecError, *NO_ROW, RecursionError) as error:
            raise LedgerError(_unsound(path, str(error))) from error


_section = msgspec.msgpack.Decoder(dict[str, Any]).decode
_sections = msgspec.msgpack.Decoder(list[dict[str, Any]]).decode


class JournalFile:
    """The file while it is owned, for one writer."""

    def __init__(self, path: str, power: bool = False) -> None:
        self.path = Path(path)
        self._lock = Lock(self.path)
        try:
            self._connection = connect(self.path)
        except LedgerError:
            self._lock.release()
            raise
        self._connection.execute(f"PRAGMA synchronous={'FULL' if power else 'NORMAL'}")
        self._connection.execute("PRAGMA wal_autocheckpoint=0")
        self._cursor = self._connection.cursor()
        self._checkpoints = Checkpoints(self.path)

    def read(self) -> Contents:
        """Everything in it."""
        return Contents(self._connection, self.path)

    def append(self, runs: Sequence[Run]) -> None:
        """One row, durable when this returns. Raises `WriteError`, and then nothing of it is there."""
        try:
            row = encode(runs)
            self._cursor.execute("INSERT INTO journal (runs) VALUES (?)", (row,))
        except (sqlite3.Error, *NO_ROW) as error:
            raise WriteError(str(error)) from error
        self._checkpoints.wrote(PAGE_BYTES + len(row))

    def keep(self, ended: Sequence[Any]) -> None:
        """Some of what has ended, ahead of the snapshot that will speak of it. Raises `WriteError`."""
        try:
            self._checkpoints.wrote(PAGE_BYTES + _insert_ended(self._cursor.execute, ended))
        except (sqlite3.Error, *NO_ROW) as error:
            raise WriteError(str(error)) from error

    def replace(self, snapshot: dict[str, Any], ended: Sequence[Any], now_ms: int, read: Contents | None = None) -> None:
        """A snapshot instead of everything in the journal, and what has ended and is not kept yet; in one step.

        `read`: the book comes of this. What was kept later than its snapshot has been replayed since, and is among `ended`.
        """
        try:
            with self._transaction() as write:
                write("DELETE FROM journal")
                write("DELETE FROM ended WHERE forget_ms <= ?", (now_ms,))
                if read is not None:
                    write("DELETE FROM ended WHERE number > ?", (read.ended_upto,))
                if ended:
                    _insert_ended(write, ended)
                (upto,) = write("SELECT coalesce(max(number), 0) FROM ended").fetchone()
                book = msgspec.msgpack.encode({**snapshot, ENDED_UPTO: upto})
                write("INSERT OR REPLACE INTO snapshot (number, book) VALUES (1, ?)", (book,))
        except (sqlite3.Error, *NO_ROW) as error:
            raise WriteError(str(error)) from error
        self._checkpoints.wrote(CHECKPOINT_BYTES)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        self._cursor.execute("BEGIN IMMEDIATE")
        try:
            yield self._cursor.execute
            self._cursor.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # a full disk has rolled it back already
                self._cursor.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Carry the log into the file and let go of it."""
        self._checkpoints.close()
        with contextlib.suppress(sqlite3.Error):  # a full disk: the log stays, and is read when the file is opened again
            self._cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()
        self._lock.release()


def _insert_ended(write: Callable[..., sqlite3.Cursor], ended: Sequence[Any]) -> int:
    """One row. Returns its size in bytes."""
    records = msgspec.msgpack.encode(ended)
    write("INSERT INTO ended (forget_ms, records) VALUES (?, ?)", (max(one["forget_ms"] for one in ended), records))
    return len(records)


class Checkpoints:
    """Carries SQLite's log into the file, in a thread, once enough has been written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written_bytes = 0
        self._thread = ThreadPoolExecutor(1, "headworks-ledger")
        self._running: Future[None] | None = None

    def wrote(self, count_bytes: int) -> None:
        """About so much has been added to the log."""
        self._written_bytes += count_bytes
        if self._written_bytes >= CHECKPOINT_BYTES and (self._running is None or self._running.done()):
            self._written_bytes = 0
            self._running = self._thread.submit(self._carry)

    def _carry(self) -> None:
        """Without making the writer wait; but a log that is never read to its end, as it always grows, has to stop once."""
        try:
            with contextlib.closing(sqlite3.connect(self._path, timeout=CARRY_BUSY_S, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous=NORMAL")
                _, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                if pages * PAGE_BYTES > LOG_BYTES_MAX:
                    connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        except sqlite3.Error as error:
            log.warning("the log of the ledger %s could not be carried into it: %s", self._path, error)

    def close(self) -> None:
        """Wait for the one that runs."""
        self._thread.shutdown()
