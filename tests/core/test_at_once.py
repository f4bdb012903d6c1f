"""An answer in one piece is told once; it must come to the same as its first byte and its end told one after the other."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from headworks.core import events
from headworks.core.effects import Ask, Record, Run
from headworks.core.types import Usage
from tests.core.driver import Bench, capacity, policy

SEEDS = range(5)
STEPS = 120


def history(seed: int, tells: Callable[[Bench, str, Usage, bool], None]) -> tuple[Bench, list[Any]]:
    """A random day of a small pool; `tells` says that an answer came, all of it."""
    chance = random.Random(seed)
    settings = policy(
        kind=chance.choice(("wfq", "predictive_ttft")),
        pool={"active_requests_max": 4, "heavy_tokens": 8_192},  # no prompt here is counted while it is read (B7)
        tenant={"active_tokens_max": 3_000},
        interactive={"wait_s_max": 2.0},
    )
    bench, running, kept = Bench(settings, capacities=(capacity(kv_tokens=6_000),)), [], []
    for _ in range(STEPS):
        what = chance.random()
        if what < 0.5:
            tenant = chance.choice(("acme", "batchco"))
            bench.arrive(chance.randint(10, 900), 5, tenant=tenant, stream=chance.random() < 0.2)
        elif what < 0.8 and running:
            run = running.pop(chance.randrange(len(running)))
            tells(bench, run.execution.id, Usage(chance.randint(1, 500), 0, 5, 0.1, "stop", True), chance.random() < 0.1)
        elif what < 0.85 and running:
            bench.feed(events.ClientGone(running[0].id))
        elif what < 0.9:
            bench.sample(running=len(running))
        else:
            bench.advance(chance.random())
        running += bench.take(Run)
        kept += [effect for effect in bench.effects if isinstance(effect, Ask | Record)]
        bench.effects.clear()
    return bench, kept


@pytest.mark.parametrize("seed", SEEDS)
def test_E1_an_answer_told_at_once_comes_to_the_same_as_told_in_two(seed: int) -> None:
    print(f"again: pytest tests/core/test_at_once.py -k 'two[{seed}]'")
    at_once, kept_at_once = history(seed, told_at_once)
    in_two, kept_in_two = history(seed, told_in_two)
    assert kept_at_once == kept_in_two
    assert at_once.gate.snapshot(at_once.now_s) == in_two.gate.snapshot(in_two.now_s)
    assert at_once.book.snapshot() == in_two.book.snapshot()
    assert any(isinstance(one, Record) for one in kept_at_once)


def told_at_once(bench: Bench, execution: str, usage: Usage, failed: bool) -> None:
    life = bench.gate._desk.runs.get(execution)
    if failed or (life is not None and life.streamed):  # neither of these is told at once
        told_in_two(bench, execution, usage, failed)
    else:
        bench.feed(events.Stopped(execution, usage, failed, at_once=True))


def told_in_two(bench: Bench, execution: str, usage: Usage, failed: bool) -> None:
    if not failed:
        bench.feed(events.FirstByte(execution))
    bench.feed(events.Stopped(execution, usage, failed))


def test_E1_the_first_byte_of_what_came_at_once_has_a_time() -> None:
    bench = Bench(policy())
    bench.arrive(100, stream=False)
    bench.advance(0.3)
    bench.feed(events.Stopped(bench.execution(), Usage(99, 0, 1, 0.3, "stop", True), False, at_once=True))
    (outcome,) = bench.outcomes()
    assert outcome.first_byte_s == outcome.ended_s == 100.3
    assert bench.held() == 0


def test_B7_what_was_held_for_reading_a_prompt_comes_back_with_an_answer_told_at_once() -> None:
    bench = Bench(policy(kind="predictive_ttft"))
    bench.arrive(1_000, stream=False)
    assert bench.held("replica:p/0", "prefill_tokens") == 999
    bench.feed(events.Stopped(bench.execution(), Usage(999, 0, 1, 0.3, "stop", True), False, at_once=True))
    assert bench.held("replica:p/0", "prefill_tokens") == 0
