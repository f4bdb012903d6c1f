"""What stands before a prompt in an engine (C3), and the last moment of one that waits for its turn (B6)."""

from __future__ import annotations

import pytest

from headworks.core import events
from headworks.core.effects import Run
from headworks.core.lane import Lane
from headworks.core.life import Life
from headworks.core.replica import Replica
from headworks.core.types import Work
from headworks.core.unread import to_read_tokens
from tests.core.driver import Bench, policy

ONE_SECOND = {"ttft_slo_s": 1.0, "wait_s_max": 1.0}


def work(prompt_tokens: int, basis: str = "exact") -> Work:
    return Work(prompt_tokens + 1, prompt_tokens, 1, 0.0, prompt_tokens + 1, 1, basis)


def lane() -> Lane:
    return Bench(policy(interactive=ONE_SECOND)).gate._desk.lane("acme", "interactive", "p")


def test_C3_a_token_of_a_long_prompt_takes_longer_than_one_of_a_short_one() -> None:
    here = lane()
    assert to_read_tokens(work(100), here) == 100
    # Each is compared with all before it: with 40,000 tokens the last one takes twice as long as the first.
    assert to_read_tokens(work(40_000), here) == 60_000
    here.cached_ratio = 0.5  # and it is the second half that is left to read
    assert to_read_tokens(work(40_000), here) == 35_000


def test_C3_a_prompt_that_nobody_counted_stands_for_what_such_prompts_come_to() -> None:
    here = lane()
    for _ in range(19):
        here.lengths.prompts.add(work(4_000, "bytes"), 1_000)
    assert to_read_tokens(work(400, "bytes"), here) == 402, "too few are known"
    here.lengths.prompts.add(work(4_000, "bytes"), 1_000)
    assert to_read_tokens(work(400, "bytes"), here) == 100
    assert to_read_tokens(work(400, "learnt"), here) == 402, "others are known by others"


def test_C3_those_that_are_asked_for_in_one_instant_stand_behind_each_other() -> None:
    one = Bench(policy(interactive=ONE_SECOND, pool={"active_requests_max": 4}))
    one.lose_answers = True
    one.arrive(4_001)
    pool = one.gate._desk.pools["p"]
    assert pool.single is not None and pool.single.unread_tokens == 4_200, "it is asked for, and not sent yet"
    one.lose_answers = False
    one.advance(1.0)
    first = one.execution()
    one.arrive(4_001)
    assert pool.single.unread_tokens == 8_400
    assert [life.ahead_tokens for life in one.gate._desk.runs.values()] == [0, 4_200]
    one.first_byte(first)
    assert pool.single.unread_tokens == 4_200
    one.feed(events.ClientGone("r2"))
    one.complete(one.execution())
    assert pool.single.unread_tokens == 0


def full() -> tuple[Bench, Replica, Life, str]:
    """An engine of two places, both taken, whose prompts of 1,000 tokens take 0.2 s, one that waits, and what it waits for."""
    pool = {"active_requests_max": 2, "buffer_ratio": 1.0}
    one = Bench(policy(interactive=ONE_SECOND, pool=pool, kind="predictive_ttft"))
    one.arrive(1_001)
    one.first_byte(one.execution())
    for _ in range(8):
        one.arrive(1_001)
        one.advance(0.2)
        execution = one.execution()
        one.first_byte(execution)
        one.complete(execution, prompt_tokens=1_000)
    one.arrive(1_001)
    one.advance(0.2)
    running = one.execution()
    one.first_byte(running)
    one.arrive(1_001)
    pool_of = one.gate._desk.pools["p"]
    (life,) = pool_of.queue.lives()
    assert pool_of.single is not None
    assert life.start_by_s == pytest.approx(one.now_s + 0.8, abs=0.01)
    return one, pool_of.single, life, running


def test_B6_one_that_waited_is_not_sent_when_what_is_there_by_now_makes_it_late() -> None:
    one, replica, life, running = full()
    said_s = life.start_by_s
    one.advance(0.6)
    for _ in range(200):  # meanwhile reading has become three times as slow
        replica.prefill.observe(1_012, 0, 0.6, False, one.now_s)
    one.complete(running, prompt_tokens=1_000)
    assert one.now_s < said_s, "by what was said when it came it would be in time"
    assert one.take(Run) == []
    assert one.refusal().reason == "queue_timeout"


def test_B6_one_whose_time_seems_over_waits_on_when_what_is_there_by_now_lets_it_be_in_time() -> None:
    one, replica, life, running = full()
    said_s = life.start_by_s
    for _ in range(200):
        replica.prefill.observe(1_012, 0, 0.05, False, one.now_s)
    one.advance(0.85)
    one.complete(running, prompt_tokens=1_000)
    assert one.now_s > said_s
    assert len(one.take(Run)) == 1
