"""Copies of a ledger file, and back (H4).

A backup is one plain file with every table, taken in one step while the gateway goes on; it holds what had been committed by
then. It is judged by reading it as a start would: a backup that cannot be recovered is no backup.

A restored ledger is older than the engines: what it holds as charged is orphaned until they have been looked at, and what
was admitted after the backup is unknown to it. So it is only restored while no gateway runs, since connections that have
closed leave nothing behind in an engine for long.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headworks.core.book import Book
from headworks.core.book_table import TERMINAL
from headworks.ledgers.errors import LedgerError
from headworks.ledgers.journal import recovered
from headworks.ledgers.journal_file import BUSY_S, Contents, Lock, judge

ASIDE = ".before-restore"
ASIDES_MAX = 100
LOG_SUFFIXES = ("-wal", "-shm")


@dataclass(slots=True)
class Kept:
    """What a file holds, as a start from it would find it."""

    file: str
    charged: int
    """Executions that are charged: orphans after a start."""
    remembered: int
    """Executions that have ended and are remembered, for clients that repeat their key."""
    tokens: dict[str, int]
    """Tokens charged, by pool."""


def backup(ledger: Path, to: Path) -> Kept:
    """Copy the ledger into a new file. Raises `LedgerError`; then there is no such file."""
    if to.exists():
        raise LedgerError(f"{to} exists: name a new file for the backup")
    with _copied(ledger, to) as copy:
        kept = looked_into(copy, ledger)
        _put(copy, to)
    return kept


def restore(ledger: Path, source: Path) -> Kept:
    """Put a backup in the ledger's place; what stood there is moved aside. Raises `LedgerError`, and nothing is changed."""
    ledger = Path(os.path.realpath(ledger))  # or a link would be replaced, and what it led to be a second ledger
    lock = Lock(ledger)
    try:
        with _copied(source, ledger) as copy:
            kept = looked_into(copy, source)
            _sync(copy)
            aside = _aside(ledger)
            try:
                for suffix in ("", *LOG_SUFFIXES):
                    _move(f"{ledger}{suffix}", f"{aside}{suffix}")
                _put(copy, ledger)
            except OSError:
                for suffix in ("", *LOG_SUFFIXES):
                    _move(f"{aside}{suffix}", f"{ledger}{suffix}")
                raise
    finally:
        lock.release()
    return kept


def _aside(ledger: Path) -> str:
    """A name at which nothing stands yet, not even the log of an earlier one."""
    names = (f"{ledger}{ASIDE}", *(f"{ledger}{ASIDE}-{number}" for number in range(2, ASIDES_MAX)))
    for name in names:
        if not any(os.path.exists(f"{name}{suffix}") for suffix in ("", *LOG_SUFFIXES)):
            return name
    raise LedgerError(f"{ASIDES_MAX - 1} ledgers were moved aside beside {ledger} already: remove some of them")


def _move(standing: str, to: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.replace(standing, to)


@contextlib.contextmanager
def _copied(source: Path, beside: Path) -> Iterator[Path]:
    """A copy of a whole ledger in one file, in the directory of `beside`."""
    if not source.is_file():
        raise LedgerError(f"There is no ledger {source}")
    copy = beside.with_name(f"{beside.name}.{os.getpid()}.partial")
    try:
        os.close(os.open(copy, os.O_CREAT | os.O_EXCL, 0o600))
        with _opened(source) as connection, contextlib.closing(sqlite3.connect(copy)) as target:
            judge(connection, source)
            connection.backup(target)
            target.execute("PRAGMA journal_mode=DELETE")
        yield copy
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"{source} cannot be copied to {beside}: {error}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            copy.unlink()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """For reading. A database that a gateway is using, or was killed on, has a log that only a writer may read."""
    address = f"{path.absolute().as_uri()}?mode=rw"
    with contextlib.closing(sqlite3.connect(address, uri=True, timeout=BUSY_S, isolation_level=None)) as connection:
        yield connection


def looked_into(path: Path, named: Path) -> Kept:
    """What a start from this file would find. Raises `LedgerError` where it would. `named`: what it is called in messages."""
    with _opened(path) as connection:
        contents = Contents(connection, named)
    book = recovered(contents, *_times(contents), 0)
    remembered = sum(record.key is not None and record.state in TERMINAL for record in book.records())
    return Kept(str(named), len(book.charged()), remembered, _tokens(book))


def _times(contents: Contents) -> tuple[int, int]:
    if contents.snapshot is None:
        raise LedgerError(f"{contents.path} has no snapshot: no gateway has ever been started on it")
    return contents.snapshot["lease_ms"], contents.snapshot["remember_ms"]


def _tokens(book: Book) -> dict[str, int]:
    pools = {record.replica.rpartition("/")[0] for record in book.charged()}
    return {pool: book.held(f"pool:{pool}", "tokens") for pool in sorted(pools)}


def _put(copy: Path, to: Path) -> None:
    """In one step, and on the disk before anybody is told so."""
    _sync(copy)
    os.replace(copy, to)
    _sync(to.absolute().parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
