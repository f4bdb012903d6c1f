"""The outlook that is kept (D4): the same figures as adding everything up anew, at a price that does not follow what runs."""

from __future__ import annotations

from math import sqrt
from random import Random
from typing import Any

import pytest

from headworks.core import events
from headworks.core.effects import Run
from headworks.core.lengths import KNOWN, Lengths
from headworks.core.peak import AHEAD_TOKENS, SPREADS, Outlook, Part, certainly
from headworks.core.replica import Replica
from headworks.core.running import CHANGED_MAX, LOOK_EVERY_S, Running
from headworks.core.types import Usage, Work
from tests.core.driver import Bench, capacity, policy

NEXT = Work(100, 10, 1, 0.0, kv_tokens=100, output_tokens=90, output_tokens_max=90)
Alike = tuple[tuple[float, ...], list[int]]
"""Chances, and what each of those alike holds."""


def plain_peak(everybody: list[Alike]) -> float:
    """The formula of `core/peak.py`, from nothing."""
    peaks = []
    for place, tokens in enumerate(AHEAD_TOKENS):
        mean = variance = 0.0
        all_run_on = sum(one + tokens for _, held in everybody for one in held)
        for runs, held in everybody:
            for one in held if place < len(runs) else ():
                mean += runs[place] * (one + tokens)
                variance += runs[place] * (1.0 - runs[place]) * (one + tokens) ** 2
        peaks.append(min(mean + SPREADS * sqrt(variance), all_run_on) if variance else mean)
    return max(peaks)


def drawn(random: Random) -> Alike:
    shares = sorted((random.random() for _ in range(random.randint(0, len(AHEAD_TOKENS) - 1))), reverse=True)
    return (1.0, *shares), [random.randint(1, 5_000) for _ in range(random.choice((1, 1, 1, 4)))]


@pytest.mark.parametrize("seed", range(20))
def test_D4_after_any_coming_going_and_running_on_the_peak_is_that_of_the_plain_formula(seed: int) -> None:
    random, outlook = Random(seed), Outlook()
    inside: list[tuple[Part, Alike]] = []
    for _ in range(300):
        what = random.random()
        if what < 0.4 or not inside:
            runs, held = drawn(random)
            inside.append((outlook.add(runs, len(held), sum(held), sum(one * one for one in held)), (runs, held)))
        elif what < 0.75:
            outlook.remove(inside.pop(random.randrange(len(inside)))[0])
        else:
            made = random.randint(0, 300)
            outlook.tokens += made
            inside = [(part, (runs, [one + made for one in alike])) for part, (runs, alike) in inside]
        plain = plain_peak([alike for _, alike in inside])
        assert outlook.peak_tokens() == pytest.approx(plain, rel=1e-6, abs=1.0), f"seed {seed}"
        runs, held = drawn(random)
        joined = plain_peak([*(alike for _, alike in inside), (runs, [held[0]] * len(held))])
        with_it = outlook.peak_with(runs, len(held), held[0] * len(held))
        assert with_it == pytest.approx(joined, rel=1e-6, abs=1.0), f"seed {seed}"


def bench(**changed: Any) -> Bench:
    settings = policy(
        interactive={"ttft_slo_s": None, "wait_s_max": 100.0, "gateway_s": 1_000.0},
        pool={"active_requests_max": 64, "over_commit": 2.5, "guards_peak": True, "growth": True, **changed},
    )
    return Bench(settings, capacities=(capacity(kv_tokens=30_000, block_tokens=16),))


def replica(one: Bench) -> Replica:
    return one.gate._desk.pools["p"].replicas["p/0"]


def anew(one: Bench) -> int:
    """The same by one that begins now."""
    fresh = Running(replica(one), one.gate._desk.runs)
    fresh.brought_up(one.now_s)
    return fresh.peak_with(NEXT, one.gate._desk.pools["p"].lengths.of("acme"))


def kept(one: Bench) -> int:
    return replica(one).memory.peak_with(NEXT, one.gate._desk.pools["p"].lengths.of("acme"), one.now_s)


def there(one: Bench) -> set[str]:
    return {life.execution.id for life, _ in replica(one).memory.running.of_ours(one.now_s)}


def happens(one: Bench, random: Random, sent: list[str]) -> None:
    """One arrival, answer, step of an answer, client that leaves, or end."""
    sent += [run.execution.id for run in one.take(Run)]
    what = random.random()
    if what < 0.35 or not sent:
        one.arrive(random.randint(600, 3_000), random.choice((10, 500)), stream=random.random() < 0.8)
        return
    execution = random.choice(sent)
    life = one.gate._desk.runs.get(execution)
    if life is None:
        sent.remove(execution)
    elif what < 0.55:
        one.first_byte(execution)
    elif what < 0.75:
        one.feed(events.Progressed(execution, life.output_tokens + random.randint(1, 60)))
    elif what < 0.8 and life.subscribers:
        one.feed(events.ClientGone(life.subscribers[0]))
    else:
        sent.remove(execution)
        one.complete(execution, 10, random.randint(1, 1_000))


@pytest.mark.parametrize("seed", range(10))
def test_D4_through_a_gates_life_what_is_kept_is_what_one_that_begins_anew_finds(seed: int) -> None:
    """No clock: each is looked at every `LOOK_EVERY_S`, so then both know the same of it. Who came or went counts at once."""
    one, random, sent = bench(), Random(seed), list[str]()
    memory = replica(one).memory
    for _ in range(400):
        happens(one, random, sent)
        kept(one)
        assert set(memory.running._parts) >= there(one), f"seed {seed}"
        if random.random() < 0.3:
            one.advance(LOOK_EVERY_S + 0.01)
            lengths = one.gate._desk.pools["p"].lengths.of("acme")
            lengths._chances.clear()  # those that were kept may be a sixteenth behind
            for part in list(memory.running._due_s):
                memory.running._look(part, one.now_s)
            assert kept(one) == pytest.approx(anew(one), rel=1e-6, abs=2.0), f"seed {seed}"
            assert set(memory.running._parts) == there(one), f"seed {seed}"


def test_D4_with_a_clock_answers_run_on_by_themselves_until_half_as_long_again() -> None:
    one = bench()
    for _ in range(KNOWN):
        one.arrive(1_000, 990)
        execution = one.execution()
        one.first_byte(execution)
        one.complete(execution, 10, 2_000)
    one.sample(iterations=(100,), running=2)
    one.arrive(1_000, 990, stream=True)
    execution = one.execution()
    one.advance(1.0)
    one.sample(iterations=(150,), running=2)
    one.first_byte(execution)
    iteration_s = replica(one).iteration_s
    assert iteration_s == pytest.approx(0.02)
    first = kept(one)
    looked_s = dict(replica(one).memory.running._due_s)
    one.now_s += 0.16
    assert kept(one) == pytest.approx(first + 8, abs=1), "eight iterations, and nobody was looked at"
    assert replica(one).memory.running._due_s == looked_s


def test_D4_where_nobody_asks_any_more_nothing_piles_up() -> None:
    one = bench()
    kept(one)
    running = replica(one).memory.running
    assert running.is_kept
    for _ in range(CHANGED_MAX):
        one.arrive(100, 10)
        execution = one.execution()
        one.complete(execution, 10, 10)
    assert not running.is_kept
    assert (running._changed, running._parts, running._due, running._due_s) == ([], {}, [], {})
    assert kept(one) == anew(one) == 10 + 15 + 32, "all of its like ended at ten tokens, so none comes to 45"


def test_D4_chances_are_kept_until_a_sixteenth_of_what_is_known_is_new() -> None:
    lengths = Lengths()
    for _ in range(64):
        lengths.add(100)
    before = lengths.chances(50)
    assert before is not None and before[:3] == (1.0, *(lengths.goes_on(52, AHEAD_TOKENS[:2]) or ()))
    for _ in range(4):
        lengths.add(1_000)
        assert lengths.chances(50) is before
    lengths.add(1_000)
    after = lengths.chances(50)
    assert after is not None and after != before and after[-1] <= after[3] <= 1.0
    assert certainly(0) == (1.0,)


def test_D4_prompts_nobody_counted_hold_what_such_prompts_come_to_and_not_their_bound() -> None:
    """1,032 are charged for 1,000 bytes, and stay charged; twenty of them, of any tenants, came to 250 tokens."""
    one = bench()
    for _ in range(KNOWN - 1):
        one.arrive(1, 1, prompt_bytes=1_000, prompt_tokens=None, output_tokens_max=90)
        execution = one.execution()
        one.first_byte(execution)
        one.complete(execution, 250, 60)
    lengths = one.gate._desk.pools["p"].lengths.of("acme")
    lengths.saw(Usage(250, 0, 60, 0.1, "stop", True), Work(1_122, 1_032, 1, 0.0, 1_136, 90, "bytes", 90))
    bound = Work(1_122, 1_032, 1, 0.0, kv_tokens=1_136, output_tokens=90, basis="bytes", output_tokens_max=90)
    assert lengths.prompts.tokens(bound) == 250
    assert lengths.prompts.tokens(NEXT) == 10, "that was counted"
    one.arrive(1, 1, prompt_bytes=1_000, prompt_tokens=None, output_tokens_max=90)
    assert one.held("replica:p/0") >= 1_032
    assert kept(one) <= 2 * (10 + 90 + 15) + 250
