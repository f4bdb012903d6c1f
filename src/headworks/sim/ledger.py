"""A ledger at the far end of an unreliable line: its answers come late, twice, out of order, or never.

The book inside is the real one (or one with a planted bug). What is simulated is the way to it: a list of commands is
carried there, run in one go (with what others sent, if the line gathers calls), and the answers are carried back. Each
way takes its own time, so two calls overtake each other; each may be lost or repeated. A caller therefore learns that
its commands were run, or nothing at all, which is what a network between a gateway and its store does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol

from headworks.core.book_counters import Counters
from headworks.core.commands import Answer, Command
from headworks.core.fair import Wake
from headworks.core.types import Reservation, SessionRecord
from headworks.sim.world import World

Answered = Callable[[list[Answer]], None]


class BookLike(Protocol):
    """What the simulation needs of a book: run commands, audit itself, show its records and sessions."""

    counters: Counters

    def apply(self, commands: Sequence[Command], now_ms: int) -> list[Answer]: ...

    def check(self) -> list[str]: ...

    def records(self) -> Sequence[Reservation]: ...

    def sessions(self) -> Sequence[SessionRecord]: ...

    def limit(self, scope: str, unit: str) -> int | None: ...

    def take_wakes(self) -> list[Wake]: ...


@dataclass(slots=True)
class Line:
    """How bad the way to the ledger is. Ratios are per call and independent of each other."""

    latency_s: float = 0.0
    jitter_ratio: float = 0.0
    """Each way takes `latency_s` × (1 ± this)."""
    late_ratio: float = 0.0
    late_s: float = 1.0
    """A late message takes up to this much longer."""
    lost_command_ratio: float = 0.0
    lost_answer_ratio: float = 0.0
    twice_ratio: float = 0.0
    """The commands are run a second time, a moment later, and that answer comes too."""
    muted: tuple[str, ...] = ()
    """What is drawn as it was and does not happen: who leaves one fault out of a history wants the others where they were."""
    gather_s: float = 0.0
    """Calls that arrive within so much time of the first are run as one list, as a store does that coalesces them."""


class SimLedger:
    """A `LedgerStore` in virtual time. One object serves every gateway; it outlives them, as a store does."""

    guarantee = "Simulated: what the book holds survives every gateway; the line to it may lose or repeat anything."

    def __init__(self, world: World, book: BookLike, line: Line, seed: int) -> None:
        self.book = book
        self.epoch = 1
        """Which store answers. What was said to another one before, or by it, gets lost."""
        self.line = line
        self.clock_off_ms = 0
        """What its machine's clock has been set forward by."""
        self.applied = 0
        """Grows with each call that reached the book, so that a watcher knows when to look again."""
        self.seen: Callable[[Sequence[Command], Sequence[Answer]], None] | None = None
        """Told of every list that was run, for whoever watches."""
        self.woken: Callable[[Wake], None] | None = None
        """Told, after the way there, which gateway has the first claim on capacity of which pool that came free."""
        self.faults = {"late": 0, "lost_command": 0, "lost_answer": 0, "twice": 0, "cut_off": 0}
        self._world = world
        self._random = Random(f"ledger-{seed}")
        self._cut_off_until_s = -1.0
        self._gathered: list[tuple[tuple[Command, ...], Answered]] = []

    def apply(self, commands: Sequence[Command], answered: Answered, epoch: int = 1) -> None:
        """Send the commands on their way. `answered` is called later, perhaps twice, perhaps never.

        `epoch`: the store that the caller is connected to.
        """
        if self._is_cut_off():
            return
        if self._happens(self.line.lost_command_ratio, "lost_command"):
            return
        kept = tuple(commands)
        self._carry(lambda: self._arrive(kept, answered, epoch))
        if self._happens(self.line.twice_ratio, "twice"):
            self._carry(lambda: self._arrive(kept, answered, epoch))

    def now_ms(self) -> int:
        """The store's own clock. It starts at a day so that no age is ever measured against zero."""
        return 86_400_000 + int(self._world.now_s * 1000) + self.clock_off_ms

    def close(self) -> None:
        """Nothing is open."""

    def cut_off(self, for_s: float) -> None:
        """A partition: until it ends nothing gets through, in either direction."""
        self._cut_off_until_s = max(self._cut_off_until_s, self._world.now_s + for_s)

    def replace(self, book: BookLike) -> None:
        """Another store stands in its place from now on, and this is what it holds."""
        self.book = book
        self.epoch += 1
        self._gathered.clear()

    def mend(self) -> None:
        """Every fault of the line is over (the liveness phase of a campaign)."""
        self.line = Line(latency_s=self.line.latency_s, gather_s=self.line.gather_s)
        self._cut_off_until_s = -1.0

    def _arrive(self, commands: tuple[Command, ...], answered: Answered, epoch: int) -> None:
        if self._is_cut_off() or epoch != self.epoch:
            return
        self._gathered.append((commands, answered))
        if len(self._gathered) == 1:
            if self.line.gather_s:
                self._world.after(self.line.gather_s, self._run)
            else:
                self._run()

    def _run(self) -> None:
        """One list, in the order of arrival; each caller gets the answers to its own commands."""
        calls, self._gathered = self._gathered, []
        if not calls:  # the store they had reached is gone
            return
        commands = [command for call, _ in calls for command in call]
        answers = self.book.apply(commands, self.now_ms())
        self.applied += 1
        if self.seen is not None:
            self.seen(commands, answers)
        first = 0
        for call, answered in calls:
            self._answer(answers[first : first + len(call)], answered)
            first += len(call)
        for wake in self.book.take_wakes():
            self._carry(partial(self._wake, wake))

    def _wake(self, wake: Wake) -> None:
        if self.woken is not None and not self._is_cut_off():
            self.woken(wake)

    def _answer(self, answers: list[Answer], answered: Answered) -> None:
        if not self._happens(self.line.lost_answer_ratio, "lost_answer"):
            epoch = self.epoch
            self._carry(lambda: None if self._is_cut_off() or epoch != self.epoch else answered(answers))

    def _carry(self, delivery: Callable[[], None]) -> None:
        """One way. Without latency or faults it is next in turn, never at once: answers do not re-enter their caller."""
        line = self.line
        delay_s = line.latency_s
        if line.jitter_ratio:
            drawn_ratio = line.jitter_ratio * (2 * self._random.random() - 1)
            delay_s *= 1 if "jitter" in line.muted else 1 + drawn_ratio
        if self._happens(line.late_ratio, "late"):
            delay_s += line.late_s * self._random.random()
        self._world.after(delay_s, delivery)

    def _is_cut_off(self) -> bool:
        cut_off = self._world.now_s < self._cut_off_until_s
        self.faults["cut_off"] += cut_off
        return cut_off

    def _happens(self, ratio: float, fault: str) -> bool:
        happens = ratio > 0 and self._random.random() < ratio and fault not in self.line.muted
        self.faults[fault] += happens
        return happens
