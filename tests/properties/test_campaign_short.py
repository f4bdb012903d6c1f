"""Short histories: small enough to be read, with points armed in the gateway's shell, and made shorter when they break.

`headworks sim --campaign --seeds 100000` is the size per change; here are as many as a test may take.
"""

from __future__ import annotations

import json
from functools import cache

import pytest

import headworks
from headworks.cli.main import run
from headworks.core.book import Book
from headworks.core.policy import Policy
from headworks.sim.campaign import HANG_S, Campaign, campaign, campaign_of, run_seed, run_world
from headworks.sim.campaign_goals import GOALS, OF_THE_MATRIX, missed
from headworks.sim.campaign_histories import EVENTS_MAX, LIVE_MAX, short_world
from headworks.sim.compare import make_book
from headworks.sim.faults import KINDS
from headworks.sim.histories import HISTORIES
from headworks.sim.ledger import BookLike
from headworks.sim.points import POINTS, points_of
from headworks.sim.shrinking import LINES_MAX, Shortened, invariant_of, only, parts_of, shorten
from headworks.sim.simulation import Simulation
from headworks.testing import planted

FIRST_SEED, SEEDS = 1, 160


@cache
def done() -> Campaign:
    return campaign(FIRST_SEED, SEEDS, histories="short")


def test_I1_to_I36_hold_after_every_event_of_every_short_history() -> None:
    failed = [f"{problem}\n  again: headworks sim --campaign --seed {seed}" for seed, problem in done().failed.items()]
    assert failed == [], "\n".join(failed)
    assert done().seeds == SEEDS


@pytest.mark.parametrize("point", POINTS)
def test_I43_every_armed_point_fires(point: str) -> None:
    assert done().reached.get(f"armed {point}", 0) >= 1


def test_I43_a_goal_that_was_not_met_is_named() -> None:
    assert missed({}) == list(GOALS)
    assert missed(dict.fromkeys(GOALS, 1)) == []
    assert missed(dict.fromkeys(GOALS, 1) | {"ticket kept": 0}) == ["ticket kept"]
    assert {f"fault {kind}" for kind in KINDS} - set(GOALS) == {f"fault {kind}" for kind in OF_THE_MATRIX}, (
        "a fault that can be drawn is a goal"
    )


def test_a_short_history_is_short() -> None:
    """Things that come from outside, and requests that are alive at once, of the histories of this run."""
    events, live = 0, 0
    for seed in range(1, 60):
        simulation = Simulation(short_world(seed))
        most = Most(simulation)
        simulation.world.watch = most.look
        simulation.run()
        attempts = [arrival.attempt for arrival in simulation.arrivals.values()]
        left = sum(attempt.left_s is not None for attempt in attempts)
        events = max(events, len(attempts) + left + len(simulation.setup.faults))
        live = max(live, most.live)
    assert 12 <= events <= EVENTS_MAX
    assert 3 <= live <= LIVE_MAX


class Most:
    """How much was charged at once."""

    def __init__(self, simulation: Simulation) -> None:
        self.live = 0
        self._simulation = simulation

    def look(self) -> None:
        book = self._simulation.ledger.book
        assert isinstance(book, Book)
        self.live = max(self.live, len(book.charged()))


def test_I42_a_short_history_with_armed_points_is_decided_by_its_seed() -> None:
    for seed in (3, 8, 17):
        first, second = Campaign(), Campaign()
        assert run_seed(seed, into=first, histories="short") == run_seed(seed, into=second, histories="short")
        assert first == second


def test_several_processes_find_what_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headworks.sim.campaign.CHUNK_SEEDS", 4)
    assert campaign_of(5, 14, "short", 2) == campaign_of(5, 14, "short", 1)


def test_a_big_history_is_ten_times_a_usual_one() -> None:
    found = Campaign()
    assert run_seed(11, into=found, histories="big") == ""
    big, usual = HISTORIES["big"](11, make_book), HISTORIES["usual"](11, make_book)
    assert len(big.planned) > 5 * len(usual.planned) and big.duration_s == 10 * usual.duration_s


# shrinking


def with_bug(policy: Policy) -> BookLike:
    return planted.FreesOnCancel(round(policy.lease_s * 1000), round(policy.remember_s * 1000))


@cache
def shortened() -> list[tuple[str, Shortened]]:
    """The first six histories that the planted bug breaks, and what is left of them."""
    found: list[tuple[str, Shortened]] = []
    seed = 0
    while len(found) < 6:
        seed += 1
        assert seed < 200, "the planted bug was not met"
        problem = run_seed(seed, with_bug, histories="short")
        if problem:
            found.append((problem, shorten(seed, problem, make=with_bug)))
    return found


def test_a_broken_history_is_shortened_and_breaks_the_same_way() -> None:
    for problem, short in shortened():
        assert invariant_of(short.problem) == invariant_of(problem) == "auditor freed_early"
        assert invariant_of(run_world(only(short_world(short.seed, with_bug), short.parts))) == "auditor freed_early"
        assert run_world(only(short_world(short.seed, make_book), short.parts)) == "", "the bug is what breaks it"
        for part in short.parts:
            rest = only(short_world(short.seed, with_bug), [one for one in short.parts if one != part])
            assert invariant_of(run_world(rest)) != "auditor freed_early", f"{part} is not needed"
        assert len(short.lines) <= LINES_MAX + 1 and any("cancel" in line for line in short.lines)
        assert short.lines[-1] == f"broken: {short.problem}"
        assert short.again == f'headworks sim --campaign --seed {short.seed} --keep "{" ".join(short.parts)}"'


def test_a_shortened_history_is_short() -> None:
    """One client who leaves is enough for this bug; a few histories need a fault to bring it about."""
    sizes = sorted(len(short.parts) for _, short in shortened())
    assert (sizes[0], sizes[-1]) == (1, 3), sizes
    assert all(short.parts_before >= 8 for _, short in shortened())


def test_what_is_kept_of_a_history_is_what_it_was() -> None:
    setup = short_world(4)
    whole, none = only(setup, parts_of(setup)), only(short_world(4), ())
    assert (whole.planned, whole.faults, whole.line) == (setup.planned, setup.faults, setup.line)
    assert (none.planned, none.faults, none.line.muted) == ([], [], ("late", "lost_answer", "twice"))
    points = points_of(none.make_runner)
    assert points is not None and points.armed == {}
    one = only(short_world(4), ("r2",)).planned
    assert one == [setup.planned[2]] and one[0].number == 2


class Crashing(Book):
    """Raises where it is asked to stop something."""

    def _end(self, *arguments: object) -> object:  # type: ignore[override]
        raise KeyError("planted")


def test_a_crash_is_a_violation_and_no_end_of_the_campaign() -> None:
    found = campaign(1, 20, lambda policy: Crashing(2000, 60_000), stop_at=2, histories="short")
    assert len(found.failed) == 2
    assert all(problem.startswith("crash at ") and "KeyError: 'planted'" in problem for problem in found.failed.values())


class Turning(Book):
    """Never comes to an end of it."""

    def _end(self, *arguments: object) -> object:  # type: ignore[override]
        while True:
            self.sequence += 1


@pytest.mark.skipif(headworks.IS_COMPILED, reason="a signal does not reach into compiled loops")
def test_a_history_that_goes_round_for_ever_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HANG_S, "short", 0.3)
    found = campaign(1, 20, lambda policy: Turning(2000, 60_000), stop_at=1, histories="short")
    assert [problem.partition(" s: ")[2] for problem in found.failed.values()] == [
        "Hung: it goes on after 0.3 s of processor time"
    ]


# seeds that found something


@pytest.mark.parametrize("seed", [158, 475, 484, 2275, 4023, 4109, 9977, 11329, 21416, 26892, 28239, 38066])
def test_seeds_that_found_something(seed: int) -> None:
    """158: a gate that went round for ever between two engines, one with room and one in time, since mended too.

    28239, 38066: what was asked for while its policy was changed waited for ever once it came back; the gate was mended.
    475: an orphan whose engine was out of the file when it was adopted; the gate was mended. 2275: an older copy of a shared
    ledger came back, and what an answer had grown by since it was taken was not charged any more; the book was mended. Others
    taught the watch:

    484: growth is heard of after a pause. 4023: a session that was closed at another gateway is told to the next store, before
    the next heartbeat told its own. 4109: testimony makes a tombstone final. 9977: a limit is
    lowered behind the first grants of a tenant, in one list. 11329: what nobody listens to may write on, also where the store
    that it was charged in is gone. 21416: what is only buried frees nothing. 26892: a copy that came back has its own limits.
    """
    assert run_seed(seed, histories="short") == ""


def test_the_command_prints_four_keys_and_shows_a_history_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "--campaign", "--seeds", "3", "--json"]) == 0, "three seeds miss goals, and that is no failure"
    found = json.loads(capsys.readouterr().out)
    assert sorted(found) == ["missed_goals", "reached", "seeds", "violations"]
    assert (found["seeds"], found["violations"]) == (3, [])
    assert run(["sim", "--campaign", "--seed", "484", "--keep", "r1 pause"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "nothing is broken"
    assert any(line.endswith("r1.0 arrives") for line in lines) and not any("r2.0" in line for line in lines)
    assert run(["sim", "--campaign", "--histories", "tall"]) == 2
    assert run(["sim", "--campaign", "--seed", "484", "--keep", "r99"]) == 2
