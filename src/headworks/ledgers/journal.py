"""The embedded durable ledger: the book in memory, every command in a journal (A9; design section 5, "Embedded ledger").

    apply(commands) → the book decides at once → the row of this turn is committed → the promises are answered

*Before the first upstream byte.* An answer that lets work start (a granted reserve or grow) is held back until the batch with
its command is committed. A batch is everything that was asked in one turn of the loop: one row, one transaction. All other
answers are given at once; their commands ride with the next batch, a heartbeat's at the latest, a second later. Losing
one of those to a kill leaves work charged, never free.

*Again.* A journal replayed at the times it was written makes the same book, with the lease it was written under. What was
charged is then orphaned and stays charged until there is evidence: an engine seen empty, counted, or in a new incarnation.
Every start writes a snapshot, so that a journal is never replayed across two lives.

*When nothing can be written* (disk full, I/O error) the store is lost for new work: reserves and grows are not run, a heartbeat
is not answered, so the gate refuses. What runs goes on; that it ended is run, answered and kept to be written. Each
heartbeat tries again, and with the first that is committed everything is as before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from headworks.core.book import Book
from headworks.core.commands import Answer, Claim, Command, Grow, Heartbeat, Reserve
from headworks.ledgers.errors import LedgerError, WriteError
from headworks.ledgers.journal_file import Contents, JournalFile
from headworks.ledgers.journal_rows import Run, decode, promises

log = logging.getLogger("headworks.ledgers")

SNAPSHOT_ROWS = 10_000
SNAPSHOT_AGAIN_ROWS = 1_000
"""A snapshot that could not be written is tried again so many rows later."""
COMMANDS_KEPT_MAX = 100_000
"""Commands that wait to be written while nothing can be. Past it they are not run: the gate asks them again."""
COMMANDS_WRITTEN_AT = 512
"""So many riders are written without waiting for company."""
ENDED_AT = 256
"""So many that have ended under a client's key are kept at a time."""
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, AssertionError, ArithmeticError, RecursionError)
"""What reading a book raises where something else stands than was written."""
CHARGING = (Reserve, Grow, Claim)
"""Commands that take something. What only gives back is never turned away."""

GUARANTEE = {
    False: "Exact for this process; a killed process forgets nothing that was admitted; a power loss may forget the last "
    "moments, and work that still runs is then found by its engine load.",
    True: "Exact for this process; neither a killed process nor a power loss forgets anything that was admitted.",
}

Answered = Callable[[list[Answer]], None]
Soon = Callable[[Callable[[], object]], object]


class JournalStore:
    """A `LedgerStore` over one `Book` and one file.

    `soon` runs a call at the end of the loop's present turn; without one every list is a batch of its own. `lost` is told when
    the file takes nothing any more.
    """

    def __init__(
        self,
        book: Book,
        file: JournalFile,
        clock_ms: Callable[[], int],
        guarantee: str,
        soon: Soon | None = None,
        lost: Callable[[], None] = lambda: None,
        snapshot_rows: int = SNAPSHOT_ROWS,
    ) -> None:
        self.book = book
        self.guarantee = guarantee
        self.is_lost = False
        self._file = file
        self._clock_ms = clock_ms
        self._soon = soon or (lambda call: call())
        self._tell_lost = lost
        self._runs: list[Run] = []
        """What has been run and not been written."""
        self._commands = 0
        """How many commands that is."""
        self._held: list[tuple[list[Answer], Answered]] = []
        """Answers that wait for it to be written."""
        self._is_asked = False
        """A write is due at the end of this turn."""
        self._applying = False
        self._closed = False
        self._rows = 0
        self._rows_max = self._snapshot_rows = snapshot_rows
        self._ended_count = book.ended_count

    def apply(self, commands: Sequence[Command], answered: Answered) -> None:
        """Run the commands; answer at once, or, where work is let start, when they are durable."""
        assert not self._applying, "apply was called from inside its own answer"
        if self.is_lost or self._closed:
            self._apply_lost(commands, answered)
            return
        answers, count = self._run(commands)
        if count:
            self._held.append((answers, answered))
            self._write_soon()
            return
        if self._commands >= COMMANDS_WRITTEN_AT or any(answer.verb == "heartbeat" for answer in answers):
            self._write_soon()
        self._answer(answers, answered)

    def _run(self, commands: Sequence[Command]) -> tuple[list[Answer], int]:
        now_ms = self._clock_ms()
        answers = self.book.apply(commands, now_ms)
        count = promises(answers)
        self._runs.append(Run(now_ms, commands, count))
        self._commands += len(commands)
        return answers, count

    def _answer(self, answers: list[Answer], answered: Answered) -> None:
        self._applying = True
        try:
            answered(answers)
        finally:
            self._applying = False

    # writing

    def _write_soon(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            self._soon(self.write)

    def write(self) -> bool:
        """Commit everything that has been run, then give the answers that waited for it. False if it cannot be written."""
        self._is_asked = False
        if self._closed:
            return False
        if self._runs:
            try:
                self._commit()
            except WriteError as error:
                self._lose(error)
                return False
        if self.is_lost:
            self.is_lost = False
            log.warning("the ledger %s is written again", self._file.path)
        held, self._held = self._held, []
        for answers, answered in held:
            answered(answers)
        return True

    def _commit(self) -> None:
        """As a row; or, now and then, as a snapshot that makes all rows needless."""
        if self._rows < self._rows_max or not self._snapshot():
            self._file.append(self._runs)
            self._rows += 1
        self._runs = []
        self._commands = 0
        if self.book.ended_count - self._ended_count >= ENDED_AT:
            self._keep_ended()

    def _keep_ended(self) -> None:
        """A few hundred at a time, or the next snapshot would have to make rows of all of them at once."""
        count, ended = self.book.ended_count, self.book.ended(self._ended_count)
        try:
            if ended:
                self._file.keep(ended)
        except WriteError as error:
            log.warning("what has ended is kept later in the ledger %s: %s", self._file.path, error)
            return
        self._ended_count = count

    def _snapshot(self) -> bool:
        """False if it could not be written: the rows are still there then, and still good."""
        book = self.book
        try:
            self._file.replace(snapshot_of(book), book.ended(self._ended_count), book.now_ms)
        except WriteError as error:
            log.warning("no snapshot of the ledger %s could be written: %s", self._file.path, error)
            self._rows_max = self._rows + SNAPSHOT_AGAIN_ROWS
            return False
        self._ended_count = book.ended_count
        self._rows, self._rows_max = 0, self._snapshot_rows
        return True

    def _lose(self, error: WriteError) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        log.error("the ledger %s cannot be written (%s): nothing new is admitted until it can", self._file.path, error)
        self._tell_lost()

    def _apply_lost(self, commands: Sequence[Command], answered: Answered) -> None:
        """Nothing is taken and nobody is told that he lives, until a heartbeat finds that it can be written again."""
        beats = any(isinstance(command, Heartbeat) for command in commands)
        if beats and self.write():
            self.apply(commands, answered)
            return
        full = self._commands + len(commands) > COMMANDS_KEPT_MAX
        if self._closed or full or any(isinstance(command, CHARGING) for command in commands):
            return
        answers, _ = self._run(commands)
        if not beats:
            self._answer(answers, answered)

    # the rest

    def now_ms(self) -> int:
        """The store's clock."""
        return self._clock_ms()

    def close(self) -> None:
        """Write what is left, as a snapshot, so that the next start has nothing to replay. Nothing is answered after it."""
        if self._closed:
            return
        if not self._snapshot() and self._runs:
            try:
                self._file.append(self._runs)
            except WriteError as error:
                log.error("the last commands of the ledger %s are not written: %s", self._file.path, error)
        self._closed = True
        self._file.close()


def open_journal(
    path: str,
    lease_ms: int,
    remember_ms: int,
    clock_ms: Callable[[], int],
    *,
    power: bool = False,
    soon: Soon | None = None,
    lost: Callable[[], None] = lambda: None,
    snapshot_rows: int = SNAPSHOT_ROWS,
) -> JournalStore:
    """The ledger in this file, recovered. Raises `LedgerError`."""
    file = JournalFile(path, power)
    try:
        read = file.read()
        book = recovered(read, lease_ms, remember_ms, clock_ms())
        file.replace(snapshot_of(book), book.ended(0), book.now_ms, read)
    except WriteError as error:
        file.close()
        raise LedgerError(f"The ledger {path} cannot be written: {error}") from error
    except LedgerError:
        file.close()
        raise
    return JournalStore(book, file, clock_ms, GUARANTEE[power], soon, lost, snapshot_rows)


def snapshot_of(book: Book) -> dict[str, object]:
    """What goes into the snapshot's row: the book, and the times it counts with, since a replay must count with them too."""
    return {"lease_ms": book.lease_ms, "remember_ms": book.remember_ms, "book": book.snapshot(with_ended=False)}


def recovered(contents: Contents, lease_ms: int, remember_ms: int, now_ms: int) -> Book:
    """The book as it was, everything charged an orphan, counting with these times from now on. Raises `LedgerError`."""
    before = contents.snapshot
    if before is None:
        before = {"lease_ms": lease_ms, "remember_ms": remember_ms, "book": None}
    try:
        book = Book(before["lease_ms"], before["remember_ms"])
        if before["book"] is not None:
            book.restore(before["book"], ended=contents.ended, replay=True)
        _replay(book, contents)
        book.apply((), now_ms)
        book.orphan_all()
    except DAMAGED as error:
        raise LedgerError(_cannot_be_replayed(contents, f"{type(error).__name__}: {error}")) from error
    differences = book.check()
    if differences:
        raise LedgerError(_cannot_be_replayed(contents, differences[0]))
    book.lease_ms, book.remember_ms = lease_ms, remember_ms
    return book


def _replay(book: Book, contents: Contents) -> None:
    for number, row in enumerate(contents.rows, 1):
        for run in decode(row):
            found = promises(book.apply(run.commands, run.at_ms))
            if found != run.promises:
                raise ValueError(f"row {number} promised {run.promises} times, and {found} times when replayed")


def _cannot_be_replayed(contents: Contents, fault: str) -> str:
    return (
        f"The ledger {contents.path} cannot be replayed ({fault}). If another version was killed on it, start and stop that "
        "one once; else restore a backup (headworks ledger restore FILE), or move it away: work that still runs is then "
        "found by its engine's load"
    )
