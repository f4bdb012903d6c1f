"""The simulated ledger: the same book, at the end of a line that delays, repeats and loses."""

from __future__ import annotations

from collections.abc import Sequence

from headworks.core.commands import Answer, Command, Heartbeat
from headworks.core.fair import Wake
from headworks.core.types import Owner, Reservation
from headworks.sim.ledger import Line, SimLedger
from headworks.sim.world import World

OWNER = Owner("gateway-0", "boot-1")


class CountingBook:
    """Answers a heartbeat with how many it has seen. A stand-in for what is behind the line, which is not tested here."""

    def __init__(self) -> None:
        self.beats: list[int] = []

    def apply(self, commands: Sequence[Command], now_ms: int) -> list[Answer]:
        for command in commands:
            assert isinstance(command, Heartbeat)
            self.beats.append(command.beat)
        return [Answer("heartbeat", "", "ok", sequence=len(self.beats)) for _ in commands]

    def check(self) -> list[str]:
        return []

    def records(self) -> Sequence[Reservation]:
        return ()

    def take_wakes(self) -> list[Wake]:
        return []


def _ask(
    line: Line, calls: int = 1, seed: int = 1, spacing_s: float = 0.0
) -> tuple[World, SimLedger, list[tuple[float, int, int]]]:
    """Ask `calls` heartbeats; what came back as (time, beat asked, sequence answered)."""
    world = World()
    ledger = SimLedger(world, CountingBook(), line, seed)
    heard: list[tuple[float, int, int]] = []

    def ask(beat: int) -> None:
        ledger.apply([Heartbeat(OWNER, beat)], lambda answers: heard.append((world.now_s, beat, answers[0].sequence)))

    for beat in range(calls):
        world.at(beat * spacing_s, lambda beat=beat: ask(beat))
    world.run(100.0)
    return world, ledger, heard


def test_G1_an_answer_takes_both_ways() -> None:
    _, _, heard = _ask(Line(latency_s=0.25))
    assert heard == [(0.5, 0, 1)]


def test_G1_an_answer_never_comes_before_the_call_has_returned() -> None:
    world = World()
    ledger = SimLedger(world, CountingBook(), Line(), 1)
    heard: list[int] = []
    world.at(0.0, lambda: (ledger.apply([Heartbeat(OWNER, 0)], lambda answers: heard.append(1)), heard.append(0)))
    world.run(1.0)
    assert heard == [0, 1]


def test_G1_a_lost_command_is_never_run_and_a_lost_answer_is_run_and_never_heard() -> None:
    _, ledger, heard = _ask(Line(lost_command_ratio=1.0))
    assert (ledger.applied, heard) == (0, [])
    _, ledger, heard = _ask(Line(lost_answer_ratio=1.0))
    assert (ledger.applied, heard) == (1, [])


def test_G1_a_repeated_call_runs_twice_and_is_answered_twice() -> None:
    _, ledger, heard = _ask(Line(twice_ratio=1.0))
    assert ledger.applied == 2
    assert [(beat, sequence) for _, beat, sequence in heard] == [(0, 1), (0, 2)]


def test_G1_calls_overtake_each_other_on_a_line_with_jitter() -> None:
    _, ledger, heard = _ask(Line(latency_s=0.1, jitter_ratio=0.9), calls=20, spacing_s=0.01)
    assert sorted(beat for _, beat, _ in heard) == list(range(20))
    assert [beat for _, beat, _ in heard] != list(range(20))
    assert isinstance(ledger.book, CountingBook)
    assert ledger.book.beats != list(range(20)), "commands themselves must overtake each other, not only answers"


def test_G1_a_partition_stops_both_directions_until_it_ends() -> None:
    world = World()
    ledger = SimLedger(world, CountingBook(), Line(latency_s=0.1), 1)
    heard: list[int] = []

    def ask(beat: int) -> None:
        ledger.apply([Heartbeat(OWNER, beat)], lambda answers: heard.append(beat))

    world.at(0.0, lambda: ask(0))  # run at 0.1, its answer would arrive at 0.2
    world.at(0.15, lambda: ledger.cut_off(1.0))
    world.at(0.5, lambda: ask(1))
    world.at(2.0, lambda: ask(2))
    world.run(5.0)
    assert ledger.applied == 2
    assert heard == [2]


def test_G1_the_same_seed_makes_the_same_faults() -> None:
    line = Line(0.01, 0.9, 0.3, 1.0, 0.2, 0.2, 0.2)
    first, second, other = (_ask(line, calls=50, seed=seed, spacing_s=0.01)[2] for seed in (7, 7, 8))
    assert first == second
    assert first != other
