"""Any order of events on every store there is: the oracle, the engine, and a plain book beside it, agree after each.

Each planted bug is put in front of the same witnesses, and must be found. A store that is asked beside the plain book has to
answer as that does, to the last field; the one in a file is killed and started again in between.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from headworks.core.book import Book
from headworks.core.commands import Answer, Command
from headworks.core.types import Reservation
from headworks.testing import planted, servers
from headworks.testing.suites.ledger_subject import LEASE_MS, REMEMBER_MS
from tests.ledgers.stores import JournalWorld
from tests.properties.fleet import Fleet


def machine(book: type[Book]) -> Callable[[], RuleBasedStateMachine]:
    return type("Fleet", (Fleet,), {"kind": book})


QUICK = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
FEWER = settings(QUICK, max_examples=30)
"""Of stores that write, or are asked over a socket."""
SEARCH = settings(QUICK, max_examples=2_000, report_multiple_bugs=False, print_blob=False, phases=[Phase.generate])
"""Until the bug is found, and no longer: what the shortest history would be is of no interest here."""


def test_A4_book_agrees_with_the_oracle_and_the_engine() -> None:
    run_state_machine_as_test(machine(Book), settings=QUICK)


@pytest.mark.parametrize("bug", planted.PLANTED, ids=lambda bug: bug.__name__)
def test_planted_bug_is_seen_by_the_witnesses(bug: type[Book]) -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine(bug), settings=SEARCH)


# other stores


class Journal:
    """The store in a file, asked as a book is, with the plain book beside it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fleet-"))
        self._world = JournalWorld(self._folder, snapshot_rows=20)
        self._beside = Book(LEASE_MS, REMEMBER_MS)

    def apply(self, commands: Sequence[Command], now_ms: int) -> list[Answer]:
        self._world.now_ms = now_ms
        given: list[list[Answer]] = []
        self._world.store.apply(commands, given.append)
        self._world.settle()
        assert given == [self._beside.apply(commands, now_ms)]
        return given[0]

    def kill(self) -> None:
        """Once all is written: what a kill may forget of the last moments is told in `test_journal_kills.py`."""
        self._world.store.write()
        self._world.killed()
        kept = json.dumps(self._beside.snapshot(with_ended=False))  # nobody gave a key
        self._beside = Book(LEASE_MS, REMEMBER_MS)
        self._beside.restore(json.loads(kept))

    def close(self) -> None:
        self._world.store.close()
        shutil.rmtree(self._folder)

    def __getattr__(self, name: str) -> Any:
        """To be looked at as a book."""
        return getattr(self._world.store.book, name)


class InAFile(Fleet):
    """A fleet of one gateway after the other: its process is killed, and its next life finds the file."""

    def open_book(self) -> Journal:
        return Journal()

    @rule()
    def is_killed(self) -> None:
        self.book.kill()

    def teardown(self) -> None:
        self.book.close()


def test_A9_the_store_in_a_file_agrees_with_the_oracle_and_the_engine_over_kills() -> None:
    run_state_machine_as_test(InAFile, settings=FEWER)


@pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())
def test_A3_the_script_agrees_with_the_oracle_and_the_engine() -> None:
    from tests.ledgers.valkey_plain import PlainLedger, Wire

    domains = count(1)

    class Script:
        """The script on a real server, likewise."""

        def __init__(self, wire: Wire) -> None:
            self._ledger = PlainLedger(wire, f"fleet-{next(domains)}")
            self._beside = Book(LEASE_MS, REMEMBER_MS)
            self._view = self._ledger.look()

        def apply(self, commands: Sequence[Command], now_ms: int) -> list[Answer]:
            answers = self._ledger.apply(commands, now_ms)
            assert answers == self._beside.apply(commands, now_ms)
            self._view = self._ledger.look()
            return answers

        def records(self) -> list[Reservation]:
            return [entry.reservation() for entry in self._view.entries.values()]

        def check(self) -> list[str]:
            return self._view.check()

        def held(self, scope: str, unit: str) -> int:
            return self._view.held(scope, unit)

    with servers.single() as server:
        wire = Wire(server.port)
        run_state_machine_as_test(type("Shared", (Fleet,), {"open_book": lambda self: Script(wire)}), settings=FEWER)
        wire.close()
