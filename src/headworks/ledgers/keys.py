"""Stored API keys: the table `keys` in the ledger's own SQLite file (H2).

A key is 256 random bits, shown once when it is issued. What stays is its HMAC-SHA-256 under a pepper that is not in the file
(`pepper.py`), what it may be used for and until when: whoever reads the file, or a backup of it, has no key; whoever can
only write to it cannot make one.

Keys have a connection of their own, beside whoever runs the ledger in the same file. Each change is one transaction, on
the disk when it returns, and numbered: a gateway that looks at the last number once a second sees what another process
changed. Times are Unix seconds, given by the caller.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hmac import digest
from pathlib import Path
from typing import Any

from headworks.ledgers.base import LedgerError
from headworks.ledgers.pepper import Pepper

ACTIVE_MAX = 2
"""Keys a tenant has at a time: one in use, and its successor while clients change over."""
ENDED_KEPT_MAX = 20
"""Keys of a tenant that have ended and are still listed; beyond, the oldest is forgotten."""
KEY_PREFIX = "hw-"
"""So that a key is known for what it is where it should not be: in a repository, in a chat."""
KEY_RANDOM_BYTES = 32
ID_RANDOM_BYTES = 6
BUSY_S_MAX = 1.0
"""How long another connection to the same file is waited for, by a gateway, which does nothing else meanwhile."""
VERB_BUSY_S_MAX = 10.0
"""The same by a verb, which has nothing else to do: others may each need a sync of a slow disk before it."""
ADMIN = ""
"""Whose keys open the admin port: nobody's among the tenants, whose names are never empty."""

_TABLE = """CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, hash BLOB NOT NULL UNIQUE, pepper_mark BLOB NOT NULL,
    classes TEXT, models TEXT, lifetime_s REAL, created_s REAL NOT NULL, expires_s REAL, revoked_s REAL,
    change INTEGER NOT NULL)"""
_INDEX = "CREATE INDEX IF NOT EXISTS keys_change ON keys (change)"
_SELECT = """SELECT
    id, tenant, hash, pepper_mark, classes, models, lifetime_s, created_s, expires_s, revoked_s FROM keys """
_INSERT = """INSERT INTO keys
    (id, tenant, hash, pepper_mark, classes, models, lifetime_s, created_s, expires_s, revoked_s, change)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_REVOKE = "UPDATE keys SET revoked_s = ?, change = ? WHERE id = ? AND revoked_s IS NULL"
_SHORTEN = "UPDATE keys SET expires_s = min(coalesce(expires_s, ?), ?), change = ? WHERE id = ?"
_FORGET = """DELETE FROM keys WHERE id IN (
    SELECT id FROM keys WHERE tenant = ? AND (revoked_s IS NOT NULL OR expires_s <= ?)
    ORDER BY created_s DESC, id LIMIT -1 OFFSET ?)"""


class KeyStoreError(LedgerError):
    """Stored keys cannot be read or written. The text says why and what would help."""


@dataclass(slots=True)
class StoredKey:
    """One key as it is kept. `classes` and `models` None: all that its tenant may use."""

    id: str
    tenant: str
    """`ADMIN` for one that opens the admin port and nothing else."""
    hash: bytes = field(repr=False)
    pepper_mark: bytes = field(repr=False)
    """Of the pepper it was hashed under."""
    classes: tuple[str, ...] | None
    models: tuple[str, ...] | None
    lifetime_s: float | None
    """What it was issued for; it may have to end before, once it has a successor."""
    created_s: float
    expires_s: float | None
    revoked_s: float | None

    def state(self, now_s: float) -> str:
        """`active`, `expired` or `revoked`."""
        if self.revoked_s is not None:
            return "revoked"
        return "active" if self.expires_s is None or now_s < self.expires_s else "expired"


@dataclass(slots=True)
class Wanted:
    """What a new key shall be good for."""

    tenant: str
    classes: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    lifetime_s: float | None = None


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

    def find(self, name: str) -> StoredKey | None:
        """The key of that id."""
        with _translated(self.path):
            connection = self._there()
            return None if connection is None else next(iter(_read(connection, "WHERE id = ?", name)), None)

    def pepper(self, now_s: float) -> bytes:
        """What keys are hashed under. Raises `KeyStoreError` if it is not what those that are good were hashed under."""
        good = [key for key in self.kept() if key.state(now_s) == "active"]
        pepper = self._pepper.load() if good else self._pepper.load_or_make()
        if pepper is None:
            raise KeyStoreError(
                f"{self.path} holds keys, and their pepper {self._pepper.path} is missing: no key can be known without it. "
                "Put it back from where it was kept, or revoke these keys and issue new ones."
            )
        self._check_marks(good, _mark(pepper))
        return pepper

    def issue(
        self, wanted: Wanted, now_s: float, old: str | None = None, old_ends_s: float = 0.0
    ) -> tuple[str, StoredKey] | None:
        """Make a key: the key itself, which nobody can be shown again, and what is kept of it.

        `old`: the key it succeeds, which then ends at `old_ends_s`. None, and nothing is changed, if the tenant would have
        more than `ACTIVE_MAX`.
        """
        pepper = self.pepper(now_s)
        secret = KEY_PREFIX + secrets.token_urlsafe(KEY_RANDOM_BYTES)
        ends_s = None if wanted.lifetime_s is None else now_s + wanted.lifetime_s
        made = StoredKey(
            secrets.token_hex(ID_RANDOM_BYTES), wanted.tenant, digest(pepper, secret.encode(), "sha256"), _mark(pepper),
            wanted.classes, wanted.models, wanted.lifetime_s, now_s, ends_s, None,
        )  # fmt: skip
        with self._changing() as (connection, change):
            if old is not None:
                _end(connection, change, old, old_ends_s, now_s)
            good = [key for key in _read(connection) if key.state(now_s) == "active"]
            self._check_marks(good, made.pepper_mark)
            if sum(key.tenant == made.tenant for key in good) >= ACTIVE_MAX:
                connection.rollback()
                return None
            connection.execute(_INSERT, _row(made, change))
            connection.execute(_FORGET, (made.tenant, now_s, ENDED_KEPT_MAX))
        return secret, made

    def revoke(self, name: str, now_s: float) -> None:
        """End a key now. One that has been revoked stays as it is."""
        with self._changing() as (connection, change):
            connection.execute(_REVOKE, (now_s, change, name))

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
        """All keys that are good are hashed under one pepper. Where none is good any more, a new one may begin."""
        if any(key.pepper_mark != mark for key in good):
            raise KeyStoreError(
                f"Keys in {self.path} were hashed under another pepper than that in {self._pepper.origin}. "
                "Put the right one back, or revoke these keys and issue new ones."
            )


def _mark(pepper: bytes) -> bytes:
    """Tells one pepper from another, and nothing about it."""
    return digest(pepper, b"headworks keys", "sha256")[:8]


def _end(connection: sqlite3.Connection, change: int, name: str, ends_s: float, now_s: float) -> None:
    """Let a key end at that time, unless it ends before."""
    if ends_s <= now_s:
        connection.execute(_REVOKE, (now_s, change, name))
    else:
        connection.execute(_SHORTEN, (ends_s, ends_s, change, name))


def _read(connection: sqlite3.Connection, which: str = "", *values: str) -> list[StoredKey]:
    return [_key(row) for row in connection.execute(_SELECT + which, values)]


def _key(row: tuple[Any, ...]) -> StoredKey:
    name, tenant, hashed, mark, classes, models, *times = row
    return StoredKey(name, tenant, hashed, mark, _names(classes), _names(models), *times)


def _row(key: StoredKey, change: int) -> tuple[Any, ...]:
    """In the order of `_INSERT`."""
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
