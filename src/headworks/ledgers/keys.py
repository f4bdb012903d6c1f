"""Stored API keys in a file: the table `keys` in the ledger's own SQLite file (H2; the rules are in `key_rules.py`).

Keys have a connection of their own, beside whoever runs the ledger in the same file. Each change is one transaction, on
the disk when it returns, and numbered: a gateway that looks at the last number once a second sees what another process
changed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headworks.ledgers import key_rules
from headworks.ledgers.key_rules import Change, KeyStoreError, StoredKey, Wanted
from headworks.ledgers.pepper import Pepper

BUSY_S_MAX = 1.0
"""How long another connection to the same file is waited for, by a gateway, which does nothing else meanwhile."""
VERB_BUSY_S_MAX = 10.0
"""The same by a verb, which has nothing else to do: others may each need a sync of a slow disk before it."""
_TABLE = """CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, hash BLOB NOT NULL UNIQUE, pepper_mark BLOB NOT NULL,
    classes TEXT, models TEXT, lifetime_s REAL, created_s REAL NOT NULL, expires_s REAL, revoked_s REAL,
    change INTEGER NOT NULL)"""
_INDEX = "CREATE INDEX IF NOT EXISTS keys_change ON keys (change)"
_SELECT = """SELECT
    id, tenant, hash, pepper_mark, classes, models, lifetime_s, created_s, expires_s, revoked_s FROM keys """
_WRITE = """INSERT OR REPLACE INTO keys
    (id, tenant, hash, pepper_mark, classes, models, lifetime_s, created_s, expires_s, revoked_s, change)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_FORGET = "DELETE FROM keys WHERE id = ?"


class KeyStore:
    """The keys in one file. Nothing is created before the first key is issued."""

    def __init__(self, path: str, given_pepper: str | None = None, busy_s_max: float = BUSY_S_MAX) -> None:
        self.path = os.path.realpath(path)
        self._pepper = Pepper(self.path, given_pepper)
        self._busy_s_max = busy_s_max
        self._connection: sqlite3.Connection | None = None

    def changes(self) -> int:
        """The number of the last change; 0 where there are no keys yet."""
        with _translated(self.path):
            connection = self._there()
            return 0 if connection is None else connection.execute("SELECT max(change) FROM keys").fetchone()[0] or 0

    def kept(self) -> list[StoredKey]:
        """All that are kept, by tenant, the oldest first."""
        with _translated(self.path):
            connection = self._there()
            return [] if connection is None else _read(connection, "ORDER BY tenant, created_s, id")

    def pepper(self, now_s: float) -> bytes:
        """What keys are hashed under. Raises `KeyStoreError` if it is not what those that are good were hashed under."""
        good = [key for key in self.kept() if key.state(now_s) == "active"]
        pepper = self._pepper.load() if good else self._pepper.load_or_make()
        if pepper is None:
            raise KeyStoreError(
                f"{self.path} holds keys, and their pepper {self._pepper.path} is missing: no key can be known without it. "
                "Put it back from where it was kept, or revoke these keys and issue new ones."
            )
        self._check_marks(good, key_rules.mark(pepper))
        return pepper

    def issue(
        self, wanted: Wanted, now_s: float, old: str | None = None, old_ends_s: float = 0.0
    ) -> tuple[str, StoredKey] | None:
        """Make a key: the key itself, which nobody can be shown again, and what is kept of it.

        `old`: the key it succeeds, which then ends at `old_ends_s`. None, and nothing is changed, if the tenant would have
        more than `ACTIVE_MAX`.
        """
        secret, new = key_rules.made(wanted, self.pepper(now_s), now_s)
        with self._changing() as (connection, number):
            kept = _read(connection)
            self._check_marks([key for key in kept if key.state(now_s) == "active"], new.pepper_mark)
            change = key_rules.added(kept, new, now_s, old, old_ends_s)
            if change is None:
                connection.rollback()
                return None
            _write(connection, change, number)
        return secret, new

    def revoke(self, name: str, now_s: float) -> None:
        """End a key now. One that has been revoked stays as it is."""
        with self._changing() as (connection, number):
            change = key_rules.revoked(_read(connection), name, now_s)
            if change is not None:
                _write(connection, change, number)

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _there(self) -> sqlite3.Connection | None:
        """The file, if it has keys."""
        if self._connection is None and not os.path.exists(self.path):
            return None
        connection = self._open()
        found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'keys'").fetchone()
        return None if found is None else connection

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            address = Path(self.path).as_uri() + "?mode=rw"
            self._connection = sqlite3.connect(address, uri=True, timeout=self._busy_s_max, isolation_level=None)
            self._connection.execute("PRAGMA synchronous=FULL")  # a revocation must not be forgotten with the power
            self._connection.execute("PRAGMA wal_autocheckpoint=0")  # whoever runs the ledger does that, in a thread
        return self._connection

    def _make(self) -> None:
        """Made with its log under another name and then linked, so that nobody works on half of one, and the first one stays.

        To begin a log SQLite needs the file for itself, and does not wait until it has it.
        """
        made = f"{self.path}.{secrets.token_hex(4)}"
        os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        try:
            with contextlib.closing(sqlite3.connect(made)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
            with contextlib.suppress(FileExistsError):  # another process was first: that one is the file
                os.link(made, self.path)
        finally:
            os.unlink(made)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[tuple[sqlite3.Connection, int]]:
        """One transaction and its number. Left without an error it is committed, unless it was rolled back."""
        with _translated(self.path):
            if self._connection is None and not os.path.exists(self.path):
                self._make()
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.execute(_TABLE)
                connection.execute(_INDEX)
                last = connection.execute("SELECT max(change) FROM keys").fetchone()[0]
                yield connection, (last or 0) + 1
                if connection.in_transaction:
                    connection.commit()
            finally:
                if connection.in_transaction:
                    connection.rollback()

    def _check_marks(self, good: Sequence[StoredKey], mark: bytes) -> None:
        key_rules.check_marks(good, mark, self.path, self._pepper.origin)


class FileKeys:
    """A `Keyring` in a file. Each call is a moment's work, so nobody else gets the loop meanwhile."""

    stale_s_max = math.inf

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self.name = store.path

    async def changes(self) -> str:
        return str(self._store.changes())

    async def kept(self) -> list[StoredKey]:
        return self._store.kept()

    async def pepper(self, now_s: float) -> bytes:
        return self._store.pepper(now_s)

    async def issue(
        self, wanted: Wanted, now_s: float, old: str | None = None, old_ends_s: float = 0.0
    ) -> tuple[str, StoredKey] | None:
        return self._store.issue(wanted, now_s, old, old_ends_s)

    async def revoke(self, name: str, now_s: float) -> None:
        self._store.revoke(name, now_s)

    async def close(self) -> None:
        self._store.close()


def _write(connection: sqlite3.Connection, change: Change, number: int) -> None:
    connection.executemany(_WRITE, [_row(key, number) for key in change.written])
    connection.executemany(_FORGET, [(name,) for name in change.forgotten])


def _read(connection: sqlite3.Connection, which: str = "", *values: str) -> list[StoredKey]:
    return [_key(row) for row in connection.execute(_SELECT + which, values)]


def _key(row: tuple[Any, ...]) -> StoredKey:
    name, tenant, hashed, mark, classes, models, *times = row
    return StoredKey(name, tenant, hashed, mark, _names(classes), _names(models), *times)


def _row(key: StoredKey, change: int) -> tuple[Any, ...]:
    """In the order of `_WRITE`."""
    scopes = (None if names is None else json.dumps(names) for names in (key.classes, key.models))
    times = (key.lifetime_s, key.created_s, key.expires_s, key.revoked_s)
    return key.id, key.tenant, key.hash, key.pepper_mark, *scopes, *times, change


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(json.loads(text))


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    """SQLite's and the system's errors as ours."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        busy = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
        advice = " A gateway that has it open can be asked through its admin port (--admin URL)." if busy else ""
        raise KeyStoreError(f"The keys in {path} cannot be used: {error}.{advice}") from error
