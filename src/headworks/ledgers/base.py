"""Opening a ledger by its URL."""

from __future__ import annotations

from collections.abc import Callable

from headworks.core.book import Book
from headworks.core.seams import LedgerStore
from headworks.ledgers.memory import MemoryStore

KINDS = ("memory:",)


class LedgerError(Exception):
    """The ledger cannot be opened. The text says what was asked and what would help."""


def open_ledger(url: str, *, lease_ms: int, remember_ms: int, clock_ms: Callable[[], int]) -> LedgerStore:
    """The store behind this URL, ready for commands. `clock_ms` is the clock of stores that have none of their own."""
    if url.split(":", 1)[0] == "memory":
        return MemoryStore(Book(lease_ms, remember_ms), clock_ms)
    raise LedgerError(f"The ledger URL {url} is of no kind known here; use one of: {', '.join(KINDS)}")
