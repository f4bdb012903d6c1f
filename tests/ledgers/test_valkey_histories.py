"""The script beside the book, command by command: answers to the last field, and from time to time all that stands in both.

The histories are those of the suite, gone on from what a gateway would know; tags and virtual times are compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headworks.core.book import Book
from headworks.testing import servers
from headworks.testing.suites.ledger_histories import History
from headworks.testing.suites.ledger_subject import LEASE_MS, REMEMBER_MS
from tests.ledgers.valkey_plain import PlainLedger, Wire, differences

pytestmark = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())
LISTS = 400
LOOK_EVERY = 25


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with servers.single() as server:
        one = Wire(server.port)
        yield one
        one.close()


def follow(wire: Wire, seed: int, records_max: int, lists: int = LISTS) -> None:
    """One history on both."""
    script = PlainLedger(wire, f"history-{seed}-{records_max}", records_max=records_max)
    book, history, now_ms = Book(LEASE_MS, REMEMBER_MS, records_max=records_max), History(seed), 0
    for number in range(lists):
        now_ms += history.step_ms()
        commands = history.commands()
        where = f"list {number}: again with follow(wire, {seed}, {records_max})"
        answers, wanted = script.apply(commands, now_ms), book.apply(commands, now_ms)
        for command, answer, expected in zip(commands, answers, wanted, strict=True):
            assert answer == expected, f"{where}: {command}\n  answered {answer}\n  not      {expected}"
        assert script.take_wakes() == book.take_wakes(), where
        history.heard(wanted)
        if number % LOOK_EVERY == LOOK_EVERY - 1:
            assert differences(script, book) == [], where


@pytest.mark.parametrize("seed", range(1, 13))
def test_A3_the_script_answers_as_the_book(wire: Wire, seed: int) -> None:
    follow(wire, seed, 1_000_000)


@pytest.mark.parametrize("seed", range(101, 104))
def test_A3_the_script_forgets_as_the_book_when_it_is_full(wire: Wire, seed: int) -> None:
    follow(wire, seed, 15)


def test_A7_a_clock_that_steps_back_moves_no_lease(wire: Wire) -> None:
    """The store's machine is set back by an hour: the book's time goes on from where it was."""
    script, book, history = PlainLedger(wire, "back"), Book(LEASE_MS, REMEMBER_MS), History(7)
    for number in range(60):
        now_ms = 5_000_000 + 10 * number - (3_600_000 if number >= 30 else 0)
        commands = history.commands()
        assert script.apply(commands, now_ms) == book.apply(commands, now_ms), number
    assert differences(script, book) == []
