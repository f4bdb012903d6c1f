"""Opening the ledger that the settings name, and telling the gate what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from headworks.config.ledger_url import is_shared
from headworks.config.settings import Settings
from headworks.core import events
from headworks.core.seams import LedgerStore
from headworks.core.types import Owner
from headworks.gateway import clock
from headworks.ledgers.base import EmbeddedStore, Told, open_keys, open_ledger, open_shared, shared_keys
from headworks.ledgers.key_rules import Keyring
from headworks.ledgers.shares import SharesStore

if TYPE_CHECKING:
    from headworks.ledgers.valkey import ValkeyStore

Feed = Callable[[events.Event], None]
ClockMs = Callable[[], int]


def opened(
    settings: Settings, owner: Owner, feed: Feed, clock_ms: ClockMs
) -> tuple[LedgerStore, EmbeddedStore | None, ValkeyStore | None]:
    """What the gate asks; and behind it either a store whose book is in this process, or one that gateways share.

    `clock_ms`: what a book in this process counts by.
    """
    if not is_shared(settings.ledger_url):
        embedded = _embedded(settings, feed, clock_ms)
        return embedded, embedded, None
    shares = _shares(settings, feed, clock_ms) if settings.when_lost == "share" else None
    shared = _shared(settings, owner, feed, shares)
    if shares is None:
        return shared, None, shared
    shares.store = shared
    return shares, None, shared


def keyring(settings: Settings, shared: ValkeyStore | None) -> Keyring | None:
    """Where API keys are stored beside this ledger; None: nowhere."""
    pepper = None if settings.keys_secret is None else settings.keys_secret.reveal()
    if shared is None:
        return open_keys(settings.ledger_url, settings.domain, pepper)
    return None if pepper is None else shared_keys(settings.ledger_url, shared, pepper)


def _embedded(settings: Settings, feed: Feed, clock_ms: ClockMs) -> EmbeddedStore:
    return open_ledger(
        settings.ledger_url,
        lease_ms=int(settings.lease_s * 1000),
        remember_ms=int(settings.remember_s * 1000),
        clock_ms=clock_ms,
        power=settings.durability == "power",
        soon=_soon,
        lost=lambda: feed(events.LedgerLost()),
    )


def _soon(call: Callable[[], object]) -> object:
    """At the end of this turn of the loop: what is read from all sockets in one turn is one batch of the ledger."""
    return asyncio.get_running_loop().call_soon(call)


def _shares(settings: Settings, feed: Feed, clock_ms: ClockMs) -> SharesStore:
    lease_ms, remember_ms = int(settings.lease_s * 1000), int(settings.remember_s * 1000)
    return SharesStore(lease_ms, remember_ms, clock_ms, lambda epoch: feed(events.StoreChanged(epoch)))


def _shared(settings: Settings, owner: Owner, feed: Feed, shares: SharesStore | None) -> ValkeyStore:
    def lost() -> None:
        if shares is None or not shares.lost():
            feed(events.LedgerLost())

    def changed(epoch: str) -> None:
        if shares is not None:
            shares.changed(epoch)
        else:
            feed(events.StoreChanged(epoch))

    return open_shared(
        settings.ledger_url,
        settings.domain,
        owner,
        lease_ms=int(settings.lease_s * 1000),
        remember_ms=int(settings.remember_s * 1000),
        clock_s=clock.now_s,
        told=Told(lost, changed, lambda pool, flow: feed(events.Freed(pool, flow))),
    )
