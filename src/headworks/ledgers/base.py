"""Opening a ledger by its URL."""

from __future__ import annotations

from collections.abc import Callable

from headworks.core.book import Book
from headworks.ledgers.errors import LedgerError as LedgerError
from headworks.ledgers.journal import JournalStore, Soon, open_journal
from headworks.ledgers.memory import MemoryStore

KINDS = ("memory:", "sqlite:PATH")

EmbeddedStore = MemoryStore | JournalStore
"""Stores whose book is in this process: `book` may be looked at between two commands."""


def open_ledger(
    url: str,
    *,
    lease_ms: int,
    remember_ms: int,
    clock_ms: Callable[[], int],
    power: bool = False,
    soon: Soon | None = None,
    lost: Callable[[], None] = lambda: None,
) -> EmbeddedStore:
    """The store behind this URL, ready for commands. `clock_ms` is the clock of stores that have none of their own.

    For a ledger in a file: `power` has every batch survive a power loss; `soon` runs a call at the end of the present turn
    of the loop (none: each list is written by itself); `lost` is told when the file takes nothing any more.
    """
    kind, _, path = url.partition(":")
    if kind == "memory":
        return MemoryStore(Book(lease_ms, remember_ms), clock_ms)
    if kind == "sqlite" and path:
        return open_journal(path, lease_ms, remember_ms, clock_ms, power=power, soon=soon, lost=lost)
    raise LedgerError(f"The ledger URL {url} is of no kind known here; use one of: {', '.join(KINDS)}")
