"""The memory store against the suite of all stores."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headworks.core.book import Book
from headworks.core.commands import Answer, Heartbeat, SetLimits, Stop
from headworks.core.types import Charge
from headworks.ledgers.base import LedgerError, open_ledger
from headworks.ledgers.memory import MemoryStore
from headworks.testing.suites.ledger import CASES
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, REMEMBER_MS, SECOND, Opened, reserve
from tests.ledgers.stores import MemoryWorld


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.removeprefix("case_"))
def test_memory_store(case: Callable[[Opened], None]) -> None:
    case(MemoryWorld().opened())


def test_memory_url_opens_a_store_that_says_what_it_survives() -> None:
    store = open_ledger("memory:", lease_ms=5_000, remember_ms=60_000, clock_ms=lambda: 7)
    assert store.now_ms() == 7
    assert store.guarantee.startswith("Exact for this process and gone with it")
    store.close()


def test_unknown_url_is_refused_with_what_would_help() -> None:
    with pytest.raises(LedgerError, match="memory:"):
        open_ledger("postgres://there", lease_ms=5_000, remember_ms=60_000, clock_ms=lambda: 0)


def test_answers_come_before_apply_returns_and_apply_is_not_reentered() -> None:
    store = MemoryWorld().opened().store
    given: list[list[Answer]] = []
    store.apply([Heartbeat(FIRST)], given.append)
    assert [answer.verb for answers in given for answer in answers] == ["heartbeat"]
    with pytest.raises(AssertionError, match="inside its own answer"):
        store.apply([Heartbeat(FIRST)], lambda answers: store.apply([Heartbeat(FIRST)], given.append))


def test_D1_freed_capacity_wakes_the_gateway_whose_turn_it_is() -> None:
    book, woken = Book(LEASE_MS, REMEMBER_MS), []
    store = MemoryStore(book, lambda: 0, woken.append)
    limits = SetLimits("policy-1", 1, (Charge("pool:pool", "tokens", 100),))
    store.apply([limits, Heartbeat(FIRST), Heartbeat(SECOND), reserve("x", 100)], len)
    store.apply([reserve("y", 100, owner=SECOND)], len)
    assert woken == []
    store.apply([Stop("x", FIRST, "E1", "completed", None)], len)
    assert woken == [(SECOND, "pool", ("interactive", "acme"))]
