"""A store that comes back and is away again before everybody was back: the shares are still those of the whole fleet (K34)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from headworks.core.book import Book
from headworks.core.commands import Answer, Command, Heartbeat, SetLimits
from headworks.core.types import Charge, Owner
from headworks.ledgers.memory import MemoryStore
from headworks.ledgers.shares import SharesStore

LEASE_MS = 5_000
ME, OTHER = Owner("g", "me"), Owner("g", "other")
LIMIT = SetLimits("v1", 1, (Charge("pool:p", "tokens", 1_000),))


class Flapping:
    """One gateway's shares over a store that comes and goes. Another gateway was listed at first."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._is_away = False
        self.book = self._empty()
        self.shares = SharesStore(LEASE_MS, 3_600_000, lambda: self.now_ms)
        self.shares.store = self  # type: ignore[assignment]
        self.shares.changed("first")
        self.book.apply([Heartbeat(OTHER)], 0)
        self.beat()

    def _empty(self) -> Book:
        return Book(LEASE_MS, 3_600_000)

    def apply(self, commands: Sequence[Command], answered: Callable[[list[Answer]], None]) -> None:
        if not self._is_away:
            MemoryStore(self.book, lambda: self.now_ms).apply(commands, answered)

    def beat(self) -> None:
        self.shares.apply([Heartbeat(ME, 1)], lambda answers: None)

    def lose(self) -> None:
        self._is_away = True
        assert self.shares.lost()

    def come_back(self, *, empty: bool) -> None:
        self._is_away = False
        if empty:
            self.book = self._empty()
            self.shares.changed("second")
        self.beat()

    def part(self) -> int | None:
        self.shares.apply([Heartbeat(ME, 2), LIMIT], lambda answers: None)
        assert self.shares._alone is not None
        return self.shares._alone.limit("pool:p", "tokens")


@pytest.mark.parametrize("empty", [True, False], ids=["another store", "the same store"])
def test_K34_who_was_of_the_fleet_counts_for_another_lease_after_a_flap(empty: bool) -> None:
    gateway = Flapping()
    gateway.lose()
    assert gateway.part() == 500
    gateway.now_ms = 60_000
    gateway.come_back(empty=empty)
    gateway.now_ms += LEASE_MS
    gateway.beat()
    gateway.lose()
    assert gateway.part() == 500, "the other one may be about to come back, and goes on with its half"


def test_K34_who_has_not_come_back_for_a_lease_counts_no_more() -> None:
    gateway = Flapping()
    gateway.lose()
    gateway.now_ms = 60_000
    gateway.come_back(empty=True)
    gateway.now_ms += LEASE_MS + 1
    gateway.beat()
    gateway.lose()
    assert gateway.part() == 1_000
