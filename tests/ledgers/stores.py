"""Stores as the suite wants them: with a clock that is moved by hand."""

from __future__ import annotations

import json

from headworks.core.book import Book
from headworks.core.seams import LedgerStore
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
