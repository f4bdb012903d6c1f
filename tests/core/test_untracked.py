"""What the ledger holds and nobody tracks is found in parts as well as whole, and no part is long."""

from __future__ import annotations

import pytest

from headworks import IS_COMPILED
from headworks.core import untracked
from headworks.core.book import Book
from headworks.core.commands import Held, Reserve, Stop
from headworks.core.effects import Ask, Run
from headworks.core.events import LedgerAnswered
from headworks.core.types import Owner
from headworks.core.untracked import LIST_S, PARTS
from tests.core.driver import Bench, capacity
from tests.core.shared_pool import shared

MANY = 64


class Listing(Bench):
    """Notes how long each list was that the ledger made."""

    lists: list[tuple[str, int]]

    def _perform(self, effect: object) -> None:
        if isinstance(effect, Ask):
            asked = [command.part for command in effect.commands if isinstance(command, Held)]
            super()._perform(effect)
            lengths = [
                len(answer.records)
                for event in list(self._events)
                if isinstance(event, LedgerAnswered)
                for answer in event.answers
                if answer.verb == "held"
            ]
            self.lists += zip(asked, lengths[-len(asked) :] if asked else [], strict=True)
        else:
            super()._perform(effect)  # type: ignore[arg-type]


def busy(monkeypatch: pytest.MonkeyPatch, listed_max: int) -> tuple[Listing, set[str]]:
    """A gateway with `MANY` streams, and their names."""
    if IS_COMPILED and listed_max < MANY:
        pytest.skip("compiled code has the limit in it, and keeps to its own")
    monkeypatch.setattr(untracked, "LISTED_MAX", listed_max)
    Listing.lists = []
    bench = Listing(shared(active_requests_max=MANY + 1), capacities=(capacity(kv_tokens=10_000_000),))
    for _ in range(MANY):
        bench.arrive(100, finish_by_s=1e9)
    runs = {run.execution.id for run in bench.take(Run)}
    for execution in runs:
        bench.first_byte(execution)
    bench.lists.clear()
    return bench, runs


def test_K15_where_much_runs_the_list_comes_in_parts_and_all_of_them_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, runs = busy(monkeypatch, MANY - 1)
    bench.advance(LIST_S)
    bench.lists.clear()
    bench.advance(LIST_S + 0.01)
    assert {part for part, _ in bench.lists} == set(PARTS)
    assert dict(bench.lists) == {part: sum(name[0] == part for name in runs) for part in PARTS}


def test_K15_where_little_runs_it_comes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = busy(monkeypatch, MANY)
    bench.advance(2 * LIST_S)
    assert set(bench.lists) == {("", MANY)}


@pytest.mark.parametrize("listed_max", [MANY - 1, 2 * MANY])
def test_K15_what_nobody_tracks_is_given_back_when_two_lists_have_shown_it(
    monkeypatch: pytest.MonkeyPatch, listed_max: int
) -> None:
    bench, runs = busy(monkeypatch, listed_max)
    stray = stray_of(bench.book, runs)
    bench.advance(LIST_S)
    assert not stopped(bench)
    bench.advance(2 * LIST_S)
    assert stopped(bench) == [stray]
    assert bench.book.check() == []


def stray_of(book: Book, runs: set[str]) -> str:
    """Something else the ledger holds under the same boot."""
    name, [like] = "f" * 32, [entry for entry in book._entries.values() if entry.execution == min(runs)]
    charges = tuple(like.charges)
    owner = Owner("g1", "boot-1")
    asked = Reserve(
        name, None, "", owner, "p", "p/0", ("interactive", "acme"), (1.0, 1.0), 100, charges, 0, False, "v1", 0, "", None
    )
    [answer] = book.apply([asked], book.now_ms)
    assert answer.outcome == "granted", answer
    return name


def stopped(bench: Bench) -> list[str]:
    return [command.execution for effect in bench.take(Ask) for command in effect.commands if isinstance(command, Stop)]
