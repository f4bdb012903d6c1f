"""Stores as the suite wants them: with a clock that is moved by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from headworks.core.book import Book
from headworks.core.seams import LedgerStore
from headworks.ledgers.journal import JournalStore, open_journal
from headworks.ledgers.memory import MemoryStore
from headworks.testing.suites.ledger_subject import LEASE_MS, REMEMBER_MS, Opened


class MemoryWorld:
    """A memory store over one kind of book. Its process restarts through a snapshot carried as JSON."""

    def __init__(self, kind: type[Book] = Book) -> None:
        self._kind = kind
        self._now_ms = 0
        self._book = kind(LEASE_MS, REMEMBER_MS)

    def opened(self) -> Opened:
        """For the suite."""
        store = self._store()
        return Opened(store, self._advance, lambda: None, self._reopen, self._fresh, lambda: self._book.check())

    def _store(self) -> LedgerStore:
        return MemoryStore(self._book, lambda: self._now_ms)

    def _advance(self, by_ms: int) -> None:
        self._now_ms += by_ms

    def _reopen(self) -> LedgerStore:
        kept = json.dumps(self._book.snapshot())
        self._book = self._kind(LEASE_MS, REMEMBER_MS)
        self._book.restore(json.loads(kept))
        return self._store()

    def _fresh(self) -> LedgerStore:
        self._book = self._kind(LEASE_MS, REMEMBER_MS)
        return self._store()


class JournalWorld:
    """A store in a file, whose process is killed and started again as often as a test wants.

    What a killed process leaves is what stands in its files at that instant, so a kill is a copy of them.
    """

    def __init__(self, directory: Path, *, snapshot_rows: int = 10_000) -> None:
        self.now_ms = 0
        self.lost = 0
        """How often the store said that it cannot write."""
        self._directory = directory
        self._snapshot_rows = snapshot_rows
        self._calls: list[Callable[[], object]] = []
        self._lives = 0
        self.path = directory / "0.db"
        self.store = self.open()

    def opened(self) -> Opened:
        """For the suite."""
        return Opened(self.store, self.advance, self.settle, self.killed, self._fresh, lambda: self.store.book.check())

    def open(self, lease_ms: int = LEASE_MS, remember_ms: int = REMEMBER_MS) -> JournalStore:
        """A start on the file as it is."""
        self.store = open_journal(
            str(self.path),
            lease_ms,
            remember_ms,
            lambda: self.now_ms,
            soon=lambda call: self._calls.append(call),
            lost=self._note_lost,
            snapshot_rows=self._snapshot_rows,
        )
        return self.store

    def advance(self, by_ms: int) -> None:
        self.now_ms += by_ms

    def settle(self) -> None:
        """The end of the loop's turn."""
        calls, self._calls = self._calls, []
        for call in calls:
            call()

    def left_behind(self) -> Path:
        """A copy of what a kill would leave now. First the file, then its log: the log has all that is being carried over."""
        self._lives += 1
        copy = self._directory / f"{self._lives}.db"
        shutil.copyfile(self.path, copy)
        shutil.copyfile(f"{self.path}-wal", f"{copy}-wal")
        return copy

    def killed(self, lease_ms: int = LEASE_MS) -> JournalStore:
        """Killed and started again."""
        self.close()
        return self.open(lease_ms)

    def close(self) -> None:
        """The killed process is gone with everything it had not written; its file is as it was."""
        copy = self.left_behind()
        self._calls.clear()
        self.store.close()
        self.path = copy

    def _fresh(self) -> LedgerStore:
        self.store.close()
        self._lives += 1
        self.path = self._directory / f"{self._lives}.db"
        return self.open()

    def _note_lost(self) -> None:
        self.lost += 1
