"""kill -9 at every step of a scripted history (A9): the process is real, and so is its end.

A child plays the history on a store in a file. It is killed at one step: before the step's batch is committed, after it, or
after what was promised has been heard. The parent then starts on the file that was left, and looks.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headworks.core.book import Book
from headworks.core.book_table import CHARGED
from headworks.core.commands import (
    Adopt,
    Answer,
    Cancel,
    Claim,
    Command,
    Grow,
    Heartbeat,
    PutIncarnation,
    PutSample,
    SetLimits,
    Start,
    Stop,
    TakeReader,
)
from headworks.core.types import Charge, RequestKey
from headworks.ledgers import journal
from headworks.ledgers.journal import JournalStore, open_journal
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, REMEMBER_MS, RESTARTED, reserve, used

KEY = RequestKey("acme", "order-1")
GROWTH = (Charge("tenant:acme", "tokens", 5), Charge("pool:pool", "tokens", 5), Charge("replica:pool/0", "tokens", 5))
STEPS: tuple[tuple[Command, ...], ...] = (
    (SetLimits("policy-1", 1, (Charge("pool:pool", "tokens", 100),)), Heartbeat(FIRST)),
    (PutIncarnation("pool/0", FIRST, "life-1", (), 0),),
    (Claim("keyed", KEY, "same", FIRST),),
    (reserve("keyed", 10, key=KEY), reserve("plain", 20)),
    (Start("keyed", FIRST),),
    (reserve("unsent", 30), Start("plain", FIRST)),
    (Grow("plain", FIRST, 1, GROWTH),),
    (Stop("unsent", FIRST, "E0", "cancelled", None), PutIncarnation("pool/0", FIRST, "life-1", ("plain",), 1)),
    (Cancel("plain", FIRST),),
    (Stop("keyed", FIRST, "E1", "completed", used(8)), reserve("last", 40)),
    (Heartbeat(FIRST),),
    (Stop("plain", FIRST, "E3a", "cancelled", used(9)),),
    (reserve("after", 1),),
)
MOMENTS = ("before", "written", "heard")


def play(store: JournalStore, turns: list[Callable[[], object]], until: int, moment: str, heard: Callable[[int], None]) -> None:
    """The history up to a step; there the process ends as `moment` says."""
    for number, commands in enumerate(STEPS):
        answers: list[Answer] = []
        store.apply(commands, answers.extend)
        if number == until and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if number == until and moment == "written":
            store._held.clear()  # nobody will hear of it any more
        while turns:
            turns.pop()()
        if number == until and moment == "written":
            os.kill(os.getpid(), signal.SIGKILL)
        assert len(answers) == len(commands)
        heard(number)
        if number == until:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(path: Path, until: int, moment: str) -> int:
    """How many steps the child had been answered when it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            turns: list[Callable[[], object]] = []
            store = open_journal(str(path), LEASE_MS, REMEMBER_MS, lambda: 1_000, soon=turns.append, snapshot_rows=4)
            play(store, turns, until, moment, lambda number: os.write(writing, b"%c" % number) and None)
        finally:
            os._exit(1)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    with os.fdopen(reading, "rb") as pipe:
        return len(pipe.read())


def expected(steps: int) -> Book:
    """A plain book after so many steps."""
    book = Book(LEASE_MS, REMEMBER_MS)
    for commands in STEPS[:steps]:
        book.apply(commands, 1_000)
    return book


def charges(book: Book) -> dict[str, tuple[Charge, ...]]:
    return {record.execution: record.charges for record in book.charged()}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("until", range(len(STEPS)))
def test_A9_kill_at_every_step(until: int, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "ENDED_AT", 1 + until % 2)  # so that what has ended is ahead of its snapshot, or not
    path = tmp_path / "killed.db"
    heard = killed(path, until, moment)
    store = open_journal(str(path), LEASE_MS, REMEMBER_MS, lambda: 2_000)
    book = store.book
    assert book.check() == []
    assert {record.state for record in book.records() if record.state in CHARGED} <= {"ORPHANED"}
    # What stands there is the history up to some step, which is none before the last one that promised something.
    promised = max((number + 1 for number in range(heard) if promises(number)), default=0)
    possible = [charges(expected(steps)) for steps in range(promised, until + 2)]
    assert charges(book) in possible
    assert_all_is_freed_by_evidence(store)
    store.close()


def promises(number: int) -> bool:
    return any(isinstance(command, type(reserve("x", 1)) | Grow | Heartbeat) for command in STEPS[number])


def assert_all_is_freed_by_evidence(store: JournalStore) -> None:
    """Charged until the engine has been looked at and found empty; then exactly nothing."""

    def ask(*commands: Command) -> list[Answer]:
        given: list[Answer] = []
        store.apply(commands, given.extend)
        return given

    before = charges(store.book)
    ask(SetLimits("policy-1", 1, (Charge("pool:pool", "tokens", 100),)), Heartbeat(RESTARTED))
    (adopted,) = ask(Adopt(RESTARTED))
    assert {record.execution for record in adopted.records} == before.keys()
    number = ask(PutIncarnation("pool/0", RESTARTED, "life-1", (), 0))[0].incarnation
    ask(PutIncarnation("pool/0", RESTARTED, "life-1", (), number))
    assert charges(store.book) == before, "time and adoption free nothing"
    for now_ms in range(3_000, 2_000 + LEASE_MS + 1, 1_000):  # what showed no byte may be on its way for a lease
        store._clock_ms = lambda at_ms=now_ms: at_ms
        ask(Heartbeat(RESTARTED))
    (seat,) = ask(TakeReader("pool/0", RESTARTED))
    ask(PutSample("pool/0", RESTARTED, "life-1", 0, seat.sequence))
    assert store.book.charged() == []
    assert {counter.scope: counter.held for counter in store.book.counters.all() if counter.held} == {}
    assert store.book.check() == []
