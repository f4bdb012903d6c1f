"""A campaign: many small random worlds in which everything goes wrong, each checked after every event.

A seed decides the world (`campaign_histories.py`). At the end of each every fault is mended, and within a bounded time nothing
may be held any more (the liveness phase). A seed that breaks an invariant is made as short as it can be
(`shrinking.py`) and printed as the command that shows it again. What is rare has to have happened: `GOALS` names it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from headworks.core.book_table import TERMINAL
from headworks.sim.campaign_goals import note_goals
from headworks.sim.compare import make_book
from headworks.sim.histories import HISTORIES
from headworks.sim.invariants import Broken, Watch
from headworks.sim.points import points_of
from headworks.sim.simulation import MakeBook, Setup, Simulation

LIVENESS_S = 150.0
"""At most: it ends when nothing is charged. A client may be told to come back in 60 s, wait for its turn, and then run."""
HANG_S = {"short": 5.0, "usual": 15.0, "big": 120.0, "matrix": 15.0}
"""By the size of the histories: a hundred times what one takes."""
CHUNK_SEEDS = 100
"""Seeds that a process takes at a time."""
FAILED_MAX = 10
"""After so many seeds that break something the rest is left."""


@dataclass(slots=True)
class Campaign:
    """What a number of seeds came to."""

    seeds: int = 0
    events: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)
    """Rare things that happened, and in how many places."""

    def add(self, other: Campaign) -> None:
        """What another process found."""
        self.seeds += other.seeds
        self.events += other.events
        self.failed |= other.failed
        for what, times in other.reached.items():
            self.reached[what] = self.reached.get(what, 0) + times


def campaign(
    first: int, seeds: int, make: MakeBook = make_book, stop_at: int = FAILED_MAX, histories: str = "usual"
) -> Campaign:
    """Run this many seeds, beginning with `first`; after `stop_at` failures the rest is left."""
    found = Campaign()
    for seed in range(first, first + seeds):
        problem = run_seed(seed, make, found, histories)
        found.seeds += 1
        if problem:
            found.failed[seed] = problem
            if len(found.failed) >= stop_at:
                break
    return found


def campaign_of(first: int, seeds: int, histories: str, processes: int) -> Campaign:
    """The same in several processes. Each seed is a world of its own, so who runs it is no matter."""
    if processes <= 1 or seeds <= CHUNK_SEEDS:
        return campaign(first, seeds, histories=histories)
    found, chunks = Campaign(), list(_chunks(first, seeds))
    with ProcessPoolExecutor(processes) as pool:
        for one in pool.map(partial(_chunk, histories), chunks):
            found.add(one)
            if len(found.failed) >= FAILED_MAX:
                pool.shutdown(cancel_futures=True)
                break
    return found


def _chunks(first: int, seeds: int) -> Iterator[tuple[int, int]]:
    for start in range(first, first + seeds, CHUNK_SEEDS):
        yield start, min(CHUNK_SEEDS, first + seeds - start)


def _chunk(histories: str, chunk: tuple[int, int]) -> Campaign:
    return campaign(*chunk, histories=histories)


def run_seed(seed: int, make: MakeBook = make_book, into: Campaign | None = None, histories: str = "usual") -> str:
    """One world. The broken invariant's sentence, or nothing."""
    with ends_within(HANG_S[histories]):
        return run_world(HISTORIES[histories](seed, make), into)


class Hung(Exception):
    """A history took far longer than any history takes: something in it goes round and round."""


@contextmanager
def ends_within(cpu_s: float) -> Iterator[None]:
    """`Hung` is raised in whatever goes on for longer. Only in a process's first thread, and not inside of compiled loops."""

    def hung(*_: object) -> None:
        raise Hung(f"it goes on after {cpu_s:g} s of processor time")

    before = signal.signal(signal.SIGVTALRM, hung)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def run_world(setup: Setup, into: Campaign | None = None, begun: Callable[[Simulation], object] | None = None) -> str:
    """Any world under the watch, with faults for its duration and then without. `begun` is shown it before anything happens."""
    simulation = Simulation(setup)
    watch = Watch(simulation)
    if begun is not None:
        begun(simulation)
    simulation.world.watch = watch.look
    problem = ""
    try:
        simulation.begin()
        simulation.world.run(simulation.end_s)
        _mend(simulation)
        simulation.world.run(simulation.end_s + LIVENESS_S, partial(_is_settled, simulation))
        watch.at_the_end()
    except Broken as broken:
        problem = str(broken)
    except Exception as error:  # whatever it is: a history may not crash what it is about
        problem = f"crash at {simulation.world.now_s:.6f} s: {type(error).__name__}: {error}"
    if into is not None:
        into.events += simulation.world.done
        note_goals(simulation, watch)
        for what, count in [*watch.reached.items(), *simulation.ledger.faults.items()]:
            into.reached[what] = into.reached.get(what, 0) + count
    return problem


def _mend(simulation: Simulation) -> None:
    """No more faults; a gateway that is still dead is started, and every engine can be asked again."""
    simulation.ledger.mend()
    points = points_of(simulation.setup.make_runner)
    if points is not None:
        points.disarm()
    for name, replica in simulation.replicas.items():
        replica.mend()
        simulation.describe(name)


def _is_settled(simulation: Simulation) -> bool:
    book = simulation.ledger.book
    if not simulation.is_over() or not all(one.ended for one in book.sessions()):
        return False
    return all(record.state in TERMINAL for record in book.records())
