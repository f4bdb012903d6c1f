"""A history that breaks an invariant, made as short as it stays broken, and told line by line.

A history has named *parts*: requests (`r3`), faults (`f0`), armed points, and what the line to the ledger does (`late`, ...).
Parts are left out, many at once and then one by one, as long as the same invariant breaks (Zeller's ddmin).
Each try is a whole run from the seed, so what is left is shown again by its seed and its parts alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from functools import partial

from headworks.core.commands import Adopt, Answer, Command, Heartbeat, Held, PutSample, TakeReader
from headworks.sim.campaign import HANG_S, ends_within, run_world
from headworks.sim.compare import make_book
from headworks.sim.histories import HISTORIES
from headworks.sim.points import Points, points_of
from headworks.sim.simulation import MakeBook, Setup, Simulation

LINE_PARTS = ("jitter", "late", "lost_command", "lost_answer", "twice")
TRIES_MAX = 400
"""Runs that one history is worth; what is left by then is what is told."""
LINES_MAX = 60
DULL = (Adopt, Heartbeat, PutSample, TakeReader)
"""Commands that come all the time and are told only when they end something."""


@dataclasses.dataclass(slots=True)
class Shortened:
    """What is left of a broken history."""

    seed: int
    histories: str
    problem: str
    parts: list[str]
    parts_before: int
    lines: list[str]

    @property
    def again(self) -> str:
        """The command that shows it."""
        size = "" if self.histories == "short" else f" --histories {self.histories}"
        return f'headworks sim --campaign{size} --seed {self.seed} --keep "{" ".join(self.parts)}"'


def invariant_of(problem: str) -> str:
    """What broke, without the time and the figures: `I5`, `auditor freed_early`, `rule 3`."""
    name, _, said = problem.partition(" at ")
    return f"{name} {said.rsplit(': ', 1)[-1]}" if name == "auditor" else name


def parts_of(setup: Setup) -> list[str]:
    """The names of everything that can be left out."""
    points = points_of(setup.make_runner)
    requests = [f"r{number}" for number in range(len(setup.planned))]
    faults = [f"f{number}" for number in range(len(setup.faults))]
    return [*requests, *faults, *(points.armed if points is not None else ()), *_of_the_line(setup)]


def _of_the_line(setup: Setup) -> list[str]:
    return [name for name in LINE_PARTS if getattr(setup.line, f"{name}_ratio")]


def only(setup: Setup, parts: Collection[str]) -> Setup:
    """The same history with nothing but these parts. What is kept is called what it was called."""
    planned = [dataclasses.replace(one, number=number) for number, one in enumerate(setup.planned) if f"r{number}" in parts]
    faults = [one for number, one in enumerate(setup.faults) if f"f{number}" in parts]
    line = dataclasses.replace(setup.line, muted=tuple(name for name in _of_the_line(setup) if name not in parts))
    points = points_of(setup.make_runner)
    make_runner = setup.make_runner
    if points is not None:
        armed = {name: ratio for name, ratio in points.armed.items() if name in parts}
        make_runner = partial(make_runner.func, Points(armed, points.seed))  # type: ignore[attr-defined]
    return dataclasses.replace(setup, planned=planned, faults=faults, line=line, make_runner=make_runner)


def shorten(seed: int, problem: str, histories: str = "short", make: MakeBook = make_book) -> Shortened:
    """Leave out what can be left out of the history of this seed, which broke with `problem`."""
    wanted, tries, last = invariant_of(problem), 0, problem
    all_parts = parts_of(HISTORIES[histories](seed, make))

    def breaks(parts: Sequence[str]) -> bool:
        nonlocal tries, last
        tries += 1
        with ends_within(HANG_S[histories]):
            found = run_world(only(HISTORIES[histories](seed, make), parts))
        if found and invariant_of(found) == wanted:
            last = found
            return True
        return False

    parts = _shortest(all_parts, breaks, lambda: tries < TRIES_MAX)
    with ends_within(HANG_S[histories]):
        lines = told(only(HISTORIES[histories](seed, make), parts))
    return Shortened(seed, histories, last, parts, len(all_parts), lines)


def _shortest(parts: list[str], breaks: Callable[[Sequence[str]], bool], may_try: Callable[[], bool]) -> list[str]:
    """Halves first, then quarters, until no single part can be left out."""
    size = max(1, len(parts) // 2)
    while may_try():
        before = len(parts)
        for first in range(0, len(parts), size):
            without = parts[:first] + parts[first + size :]
            if len(without) < len(parts) and may_try() and breaks(without):
                parts = without
                break
        else:
            if size == 1:
                return parts
            size = max(1, size // 2)
        if len(parts) < before:
            size = max(1, min(size, len(parts) // 2))
    return parts


def told(setup: Setup) -> list[str]:
    """What happened, at most `LINES_MAX` lines, the last ones: commands with their answers, faults, arrivals and their ends."""
    lines: list[tuple[float, int, str]] = []

    def say(at_s: float, text: str) -> None:
        lines.append((at_s, len(lines), f"{at_s:9.4f} s  {text}"))

    run: list[Simulation] = []

    def listen(simulation: Simulation) -> None:
        run.append(simulation)
        seen = simulation.ledger.seen

        def overhear(commands: Sequence[Command], answers: Sequence[Answer]) -> None:
            for command, answer in zip(commands, answers, strict=True):
                if not isinstance(command, Held) and (not isinstance(command, DULL) or answer.records):
                    say(simulation.world.now_s, _line_of(command, answer))
            if seen is not None:
                seen(commands, answers)

        simulation.ledger.seen = overhear

    problem = run_world(setup, begun=listen)
    for fault in setup.faults:
        say(1.0 + fault.at_s, f"fault {fault.kind} {fault.target} for {fault.for_s} s")
    for arrival in run[0].arrivals.values():
        attempt = arrival.attempt
        say(attempt.arrived_s, f"{attempt.id} arrives")
        if attempt.left_s is not None:
            say(attempt.left_s, f"{attempt.id} leaves")
        if attempt.ended_s is not None:
            say(attempt.ended_s, f"{attempt.id} ended {attempt.end} {attempt.reason}".rstrip())
    lines.sort()
    return [*[text for _, _, text in lines][-LINES_MAX:], f"broken: {problem}" if problem else "nothing is broken"]


def _line_of(command: Command, answer: Answer) -> str:
    name = answer.execution[:6] or getattr(command, "scope", "")
    evidence = getattr(command, "evidence", "")
    owner = getattr(command, "owner", None)
    ends = " ".join(f"{one.execution[:6]}={one.state}/{one.evidence}" for one in answer.records)
    told = (owner.boot if owner is not None else "", answer.verb, name, evidence, "→", answer.outcome, answer.state, ends)
    return " ".join(part for part in told if part)
