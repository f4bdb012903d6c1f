"""Opening a ledger by its URL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headworks.config import ledger_url
from headworks.core.book import Book
from headworks.core.fair import Flow
from headworks.core.types import Owner
from headworks.ledgers.errors import LedgerError as LedgerError
from headworks.ledgers.journal import JournalStore, Soon, open_journal
from headworks.ledgers.key_rules import Keyring
from headworks.ledgers.keys import BUSY_S_MAX, FileKeys, KeyStore
from headworks.ledgers.memory import MemoryStore

if TYPE_CHECKING:
    from headworks.ledgers.valkey import ValkeyStore

KINDS = ("memory:", "sqlite:PATH", "valkey://HOST:PORT/0", "valkey+sentinel://HOST:PORT/NAME", "valkey+cluster://HOST:PORT")
NEEDS_EXTRA = "A shared ledger needs the extra: pip install 'headworks[valkey]'"

EmbeddedStore = MemoryStore | JournalStore
"""Stores whose book is in this process: `book` may be looked at between two commands."""


@dataclass(slots=True)
class Told:
    """Who hears of what happens to a store."""

    lost: Callable[[], None] = lambda: None
    changed: Callable[[str], None] = lambda epoch: None
    """A shared store: another epoch answers; also the first one."""
    woken: Callable[[str, Flow | None], None] = lambda pool, flow: None
    """A shared store: capacity came free in a pool, and this flow of this gateway has the first claim, if it says which."""


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


def open_shared(
    url: str, domain: str, owner: Owner, *, lease_ms: int, remember_ms: int, clock_s: Callable[[], float], told: Told
) -> ValkeyStore:
    """The ledger that this URL's server keeps for every gateway of the domain. It looks for the server once it is started."""
    try:
        from headworks.ledgers.valkey import ValkeyStore
        from headworks.ledgers.valkey_place import place_of
    except ImportError as error:
        raise LedgerError(f"{NEEDS_EXTRA} ({error})") from error
    place = place_of(url)
    return ValkeyStore(place, domain, lease_ms=lease_ms, remember_ms=remember_ms, clock_s=clock_s, owner=owner, told=told)


def open_keys(url: str, domain: str, pepper: str | None, *, busy_s_max: float = BUSY_S_MAX) -> Keyring | None:
    """The stored keys beside the ledger of this URL; None where there can be none. For a verb, or a file."""
    kind, _, path = url.partition(":")
    if kind == "sqlite":
        return FileKeys(KeyStore(path, pepper, busy_s_max))
    if not ledger_url.is_shared(url) or pepper is None:
        return None
    try:
        from headworks.ledgers.valkey_keys import ValkeyKeys, Visit
        from headworks.ledgers.valkey_place import place_of
    except ImportError as error:
        raise LedgerError(f"{NEEDS_EXTRA} ({error})") from error
    root = f"headworks:{{{domain}}}"
    visit = Visit(place_of(url), root)
    return ValkeyKeys(ledger_url.without_secret(url), root, pepper, visit.ask, visit.close)


def shared_keys(url: str, store: ValkeyStore, pepper: str) -> Keyring:
    """The stored keys of a shared ledger, asked for over a gateway's own connection to it."""
    from headworks.ledgers.valkey_keys import ValkeyKeys

    return ValkeyKeys(ledger_url.without_secret(url), store.root, pepper, store.ask)
