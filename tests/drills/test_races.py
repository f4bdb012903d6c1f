"""Processes race for the same capacity on a real store: what they heard is held against the book (A3, K20, K30).

`HEADWORKS_RACE=8x12500 pytest tests/drills/test_races.py` is the race of 8 processes for 10⁵ turns.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path

import pytest

from headworks.core.book import Book
from headworks.core.commands import Heartbeat, Reserve, SetLimits, Stop
from headworks.core.types import Charge, Owner
from headworks.testing import servers
from headworks.testing.history import Asked, NoWitness, held_at_most, witness
from headworks.testing.tcp_fault_proxy import Faults, threaded

pytestmark = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())

RACER = Path(__file__).with_name("racer.py")
RACERS, ROUNDS = (int(part) for part in os.environ.get("HEADWORKS_RACE", "4x300").split("x"))
LIMIT_TOKENS, LIMIT_REQUESTS = 900, 3
LIMITS = (
    Charge("pool:race", "tokens", LIMIT_TOKENS),
    Charge("pool:race", "requests", LIMIT_REQUESTS),
    Charge("sessions:race", "tokens", 700),
)


def raced(
    place: Path,
    rounds: int,
    *urls: str,
    meanwhile: Callable[[], None] = lambda: None,
    once: Sequence[str] = (),
    older: Mapping[str, str] | None = None,
) -> list[Asked]:
    """What all processes asked and heard. The last of the ways to the store is everybody's who has none of their own.

    `older`: what every second process finds in its environment.
    """
    files = [place / f"{number}.pickle" for number in range(RACERS)]
    ways = [urls[min(number, len(urls) - 1)] for number in range(RACERS)]
    children = [
        subprocess.Popen(
            [sys.executable, str(RACER), way, str(number), str(rounds), str(file), *once],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(older if older and number % 2 else {})},
        )
        for number, (way, file) in enumerate(zip(ways, files, strict=True))
    ]
    try:
        assert [child.stdout.readline() for child in children if child.stdout] == ["ready\n"] * RACERS
        meanwhile()
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        while any(child.poll() is None for child in children):
            meanwhile()
            with contextlib.suppress(subprocess.TimeoutExpired):
                children[0].wait(0.05)
                children[-1].wait(0.05)
        assert [child.returncode for child in children] == [0] * RACERS
    finally:
        for child in children:
            child.kill()
            child.wait(5)
    return [asked for file in files for asked in pickle.loads(file.read_bytes())]


def limited(url: str) -> list[Asked]:
    """The limits, told as one more process."""
    import asyncio

    from headworks.ledgers.valkey import ValkeyStore
    from headworks.ledgers.valkey_place import place_of

    async def tell() -> list[Asked]:
        owner = Owner("racer", "judge")
        store = ValkeyStore(place_of(url), "race", lease_ms=600_000, remember_ms=600_000, clock_s=time.monotonic, owner=owner)
        store.start()
        one = Asked(-1, [Heartbeat(owner), SetLimits("v", 1, LIMITS)], time.monotonic())
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answered(answers: list[object]) -> None:
            one.answers, one.heard_s = answers, time.monotonic()  # type: ignore[assignment]
            heard.set_result(None)

        store.apply(one.commands, answered)
        await asyncio.wait_for(heard, 10)
        store.close()
        return [one]

    return asyncio.run(tell())


def held_for_certain(history: list[Asked]) -> tuple[int, int]:
    """Tokens and requests that were certainly held at one instant, at most, by the clocks of those who held them."""
    stops = {one.commands[0].execution: one.asked_s for one in reversed(history) if isinstance(one.commands[0], Stop)}
    grants = [
        (one.heard_s or 0.0, stops[command.execution], command.cost_tokens)
        for one in history
        for command in one.commands
        if isinstance(command, Reserve) and one.answers and one.answers[0].outcome in ("granted", "recorded")
    ]
    assert len(grants) > RACERS
    return held_at_most(grants), held_at_most([(begin_s, end_s, 1) for begin_s, end_s, _ in grants])


def test_A3_K30_processes_that_race_never_hold_more_than_the_limits_and_have_a_witness(tmp_path: Path) -> None:
    with servers.single() as store:
        history = limited(store.url) + raced(tmp_path, ROUNDS, store.url)
    tokens, requests = held_for_certain(history)
    assert tokens <= LIMIT_TOKENS and requests <= LIMIT_REQUESTS
    refused = [one for one in history if one.answers and one.answers[0].outcome == "refused"]
    assert len(refused) > 10, "they were in each other's way"
    assert len(witness(history, Book(600_000, 600_000))) == len(history)


def test_A3_with_answers_lost_on_the_way_there_is_still_a_witness_and_nothing_runs_twice(tmp_path: Path) -> None:
    with servers.single() as store, threaded("127.0.0.1", store.port, seed=5) as line:
        history = limited(store.url)
        torn = f"valkey://127.0.0.1:{line.port}/0"
        turns = cycle((Faults(cut_after_bytes=0), *(Faults(),) * 2))  # however fast they are: the first answers are lost
        history += raced(tmp_path, 200, torn, store.url, meanwhile=lambda: setattr(line, "answers", next(turns)))
    tokens, requests = held_for_certain(history)
    assert tokens <= LIMIT_TOKENS and requests <= LIMIT_REQUESTS
    lost = [one for one in history if not one.answers]
    assert lost, "some answers were lost"
    order = witness(history, Book(600_000, 600_000))
    assert len(order) >= len(history) - len(lost)


def test_A3_a_history_of_which_one_word_is_changed_has_no_witness(tmp_path: Path) -> None:
    with servers.single() as store:
        history = limited(store.url) + raced(tmp_path, 20, store.url)
    granted = next(one for one in history if one.answers and one.answers[0].outcome == "granted")
    assert granted.answers is not None
    granted.answers[0].outcome, granted.answers[0].state = "refused", ""
    with pytest.raises(NoWitness, match="was answered refused"):
        witness(history, Book(600_000, 600_000))


def test_B14_processes_that_race_for_sessions_have_a_witness_also_with_answers_lost(tmp_path: Path) -> None:
    """Opened, called in, closed and closed again: each was told what one ledger would have said, to the token."""
    with servers.single() as store, threaded("127.0.0.1", store.port, seed=7) as line:
        history = limited(store.url)
        torn = f"valkey://127.0.0.1:{line.port}/0"
        turns = cycle((Faults(cut_after_bytes=0), *(Faults(),) * 2))
        told = lambda: setattr(line, "answers", next(turns))  # noqa: E731
        history += raced(tmp_path, 60, torn, store.url, meanwhile=told, once=("sessions",))
    outcomes = [one.answers[0].outcome for one in history if one.answers]
    assert outcomes.count("opened") > 50 and outcomes.count("refused") > 10
    assert [one for one in history if not one.answers], "some answers were lost"
    witness(history, Book(600_000, 600_000))
