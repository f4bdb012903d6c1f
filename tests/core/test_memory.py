"""Reserving beyond an engine's memory (D4): the ratio that is learnt, and the future peak that guards it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headworks.core import events
from headworks.core.commands import Heartbeat
from headworks.core.effects import Run
from headworks.core.memory import PEAK_RATIO, QUIET_REQUESTS, RATIO_MAX
from headworks.core.peak import groups_of
from headworks.core.replica import Replica
from headworks.core.running import LOOK_EVERY_S
from headworks.core.types import Work
from tests.core.driver import Bench, capacity, policy

KV_TOKENS = 10_000
PATIENT = {"ttft_slo_s": None, "wait_s_max": 100.0, "gateway_s": 1_000.0}
NEXT = Work(100, 10, 1, 0.0, kv_tokens=100, output_tokens=90, output_tokens_max=90)


def bench(over_commit: float | None = None, **pool: Any) -> Bench:
    settings = policy(interactive=PATIENT, pool={"active_requests_max": 256, "over_commit": over_commit, **pool})
    return Bench(settings, capacities=(capacity(kv_tokens=KV_TOKENS),))


def replica(one: Bench) -> Replica:
    return one.gate._desk.pools["p"].replicas["p/0"]


def clocked(one: Bench, iterations: int, **more: Any) -> None:
    one.sample(iterations=(iterations,), running=1, **more)


def answered(one: Bench, count: int, tokens: int) -> None:
    """So many answers of that length, one after the other."""
    for _ in range(count):
        one.arrive(10 + tokens, tokens)
        execution = one.execution()
        one.first_byte(execution)
        one.complete(execution, 10, tokens)


def full(one: Bench, tokens: int = 5_000, count: int = 2) -> list[str]:
    """Requests that reserve so much each, all for output but ten tokens; sent, and their first byte seen."""
    for _ in range(count):
        one.arrive(tokens, tokens - 10)
    sent = [run.execution.id for run in one.take(Run)]
    for execution in sent:
        one.first_byte(execution)
    return sent


# the ratio


def test_D4_auto_begins_at_one_and_rises_a_twentieth_a_second_while_the_sum_is_in_the_way() -> None:
    one = bench()
    answered(one, 20, 10)
    full(one)
    assert one.book.limit("replica:p/0", "tokens") == one.book.limit("pool:p", "tokens") == KV_TOKENS
    one.advance(3.0)
    assert replica(one).memory.ratio == 1.0, "nobody was in anybody's way"
    one.arrive(1_000, 990)
    one.advance(2.5)
    assert replica(one).memory.ratio == pytest.approx(1.1)
    assert one.book.limit("replica:p/0", "tokens") == one.book.limit("pool:p", "tokens") == int(KV_TOKENS * 1.1)
    assert len(one.take(Run)) == 1, "and with that it went in"
    one.advance(5.0)
    assert replica(one).memory.ratio == pytest.approx(1.1), "it rises no further than is wanted"


def test_D4_auto_ends_at_two_and_a_half() -> None:
    one = bench()
    full(one)
    one.arrive(9_000, 8_990)
    one.arrive(9_000, 8_990)
    one.arrive(9_000, 8_990)
    memory = replica(one).memory
    for second in range(60):
        memory._is_pressed = True
        memory.beat(1_000.0 + second)
    assert memory.ratio == RATIO_MAX


def test_D4_a_preemption_takes_half_of_the_excess_and_nothing_rises_for_a_thousand_answers() -> None:
    one = bench()
    clocked(one, 1, preemptions_total=5)
    memory = replica(one).memory
    memory.ratio = 1.8
    one.advance(0.5)
    clocked(one, 2, preemptions_total=7)
    assert memory.ratio == pytest.approx(1.4)
    assert memory.preemptions == 2
    assert replica(one).tokens_max == int(KV_TOKENS * memory.ratio)
    one.advance(1.1)
    assert one.book.limit("replica:p/0", "tokens") == int(KV_TOKENS * memory.ratio)
    for _ in range(QUIET_REQUESTS - 1):
        memory.ended()
    memory._is_pressed = True
    assert not memory.beat(1_000.0)
    memory.ended()
    memory._is_pressed = True
    assert memory.beat(1_001.0)
    assert memory.ratio == pytest.approx(1.45)


def test_D4_a_restarted_engine_counts_its_preemptions_from_nothing() -> None:
    one = bench()
    clocked(one, 1, preemptions_total=0)
    replica(one).memory.ratio = 2.0
    clocked(one, 1, preemptions_total=3, incarnation="b")
    assert replica(one).memory.ratio == 2.0
    clocked(one, 2, preemptions_total=4, incarnation="b")
    assert replica(one).memory.ratio == 1.5


def test_D4_a_stated_over_commit_stays_what_it_is() -> None:
    one = bench(1.5)
    assert one.book.limit("replica:p/0", "tokens") == 15_000
    clocked(one, 1, preemptions_total=0)
    clocked(one, 2, preemptions_total=9)
    full(one)
    one.arrive(9_000, 8_990)
    one.advance(5.0)
    assert one.book.limit("replica:p/0", "tokens") == 15_000


def test_K08_no_over_commit_makes_a_request_possible_that_the_engine_can_never_hold() -> None:
    one = bench(2.5)
    one.arrive(KV_TOKENS + 1, 100)
    assert one.refusal().reason == "request_exceeds_capacity"
    one.arrive(KV_TOKENS, 100)
    assert len(one.take(Run)) == 1


# the future peak


def test_D4_beyond_the_memory_goes_what_the_future_peak_has_room_for_and_no_more() -> None:
    """Two that have just begun come to about 2,000 each, and this one to 6,000 at the same time: more than may be planned."""
    one = bench(2.5)
    answered(one, 20, 2_000)
    full(one)
    one.arrive(6_000, 2_000)
    assert one.take(Run) == []
    told = one.decisions()[-1]
    assert (told.outcome, told.reason) == ("queue", "kv_saturation")
    verdict = next(verdict for verdict in told.verdicts if verdict.unit == "kv_peak_ratio")
    assert (verdict.check, verdict.limit, verdict.passed) == ("memory", PEAK_RATIO, False)
    assert verdict.value == pytest.approx((2_010 + 2_010 + 6_000) / KV_TOKENS, rel=0.1)


def test_D4_answers_that_have_come_far_leave_room_again() -> None:
    """How far they are is known from the engine's clock: a token with each step."""
    one = bench(2.5, kv_ratio_max=1.0)
    answered(one, 20, 2_000)
    clocked(one, 0)
    full(one)
    one.advance(1.0)
    clocked(one, 100)
    one.arrive(6_000, 2_000)
    assert one.take(Run) == []
    one.advance(17.0)
    clocked(one, 1_800)
    assert len(one.take(Run)) == 1, "2,010 + 2,010 + 4,000 + 200 when they end, and 6,000 when this one does"


def test_D4_without_the_guard_the_sum_stands_alone() -> None:
    one = bench(2.5, guards_peak=False)
    answered(one, 20, 2_000)
    full(one)
    one.arrive(6_000, 2_000)
    assert len(one.take(Run)) == 1


def test_D4_below_the_memory_nobody_looks_at_the_peak() -> None:
    one = bench(2.5)
    full(one, 4_900, 2)
    assert not replica(one).memory.running.is_kept
    assert not any(verdict.unit == "kv_peak_ratio" for decision in one.decisions() for verdict in decision.verdicts)


def test_D4_what_is_granted_counts_for_the_next_at_once() -> None:
    """Ten that arrive at one instant: each is looked at beside those that went before it, not beside those of a moment ago."""
    one = bench(2.5)
    answered(one, 20, 900)
    for _ in range(10):
        one.arrive(2_000, 1_900)
    sent = len(one.take(Run))
    assert 8 <= sent <= 9, "about 1,000 each, and 9,500 may be planned with"


def test_D4_what_is_being_stopped_still_holds_what_it_has_and_writes_no_more() -> None:
    one = bench(2.5, growth=False)
    answered(one, 20, 2_000)
    first, _ = full(one)
    one.feed(events.Progressed(first, 1_000))
    lives = dict(one.gate._desk.runs)
    memory = replica(one).memory
    before, _ = groups_of(memory.profile(one.now_s))
    both_tokens = memory.peak_with(NEXT, lives[first].lane.lengths, one.now_s)
    one.feed(events.ClientGone(lives[first].request.id))
    stopped, _ = groups_of(memory.profile(one.now_s))
    assert before[0] > 64 and stopped[:2] == (64, 1), "the lowest bucket there is"
    one.advance(LOOK_EVERY_S)
    assert memory.peak_with(NEXT, lives[first].lane.lengths, one.now_s) <= both_tokens - 1_000, "it would have come to 2,000"


def test_D4_nobody_is_expected_to_write_more_than_its_client_allows() -> None:
    """Its tenant's answers come to 2,000 tokens, and this one may be 90: that is an instant that is looked at."""
    one = bench(2.5)
    answered(one, 20, 2_000)
    lengths = one.gate._desk.pools["p"].lengths.of("acme")
    assert replica(one).memory.peak_with(NEXT, lengths, one.now_s) == 10 + 90


# what others have there


def beats(one: Bench) -> list[Heartbeat]:
    return [command for effect in one.effects for command in getattr(effect, "commands", ()) if isinstance(command, Heartbeat)]


def test_D4_a_gateway_tells_what_runs_for_it_and_learns_what_runs_for_others() -> None:
    first = bench(2.5)
    answered(first, 20, 2_000)
    second = Bench(
        policy(interactive=PATIENT, pool={"active_requests_max": 256, "over_commit": 2.5}),
        capacities=(capacity(kv_tokens=KV_TOKENS),),
        book=first.book,
        boot="boot-2",
    )
    first.advance(1.1)  # now it knows that there are two
    full(first, 4_000, 2)
    first.advance(1.1)
    told = dict(beats(first)[-1].profiles)["p/0"]
    assert [(count, remaining) for remaining, count, _ in groups_of(told)] == [(2, 2_048)]
    second.now_s = first.now_s
    second.advance(1.1)
    assert replica(second).memory.others == groups_of(told)
    assert replica(first).memory.others == []
    second.arrive(9_000, 2_000)
    assert second.take(Run) == [], "9,000, and 2,000 of each of the two when it ends"
    replica(second).memory.learn_others(())
    second.advance(0.2)
    second.sample()
    assert len(second.take(Run)) == 1, "by its own it would have had room"


def test_D4_alone_a_gateway_tells_nothing() -> None:
    one = bench(2.5)
    full(one)
    one.effects.clear()
    one.advance(2.2)
    assert {beat.profiles for beat in beats(one)} == {()}


def test_D4_without_over_commit_lengths_are_not_kept() -> None:
    one = bench(1.0)
    answered(one, 25, 50)
    assert one.gate._desk.pools["p"].lengths.of("acme").more_tokens(0) is None


def test_D4_a_reload_states_or_frees_the_ratio() -> None:
    one = bench(1.0)
    settings = policy(interactive=PATIENT, pool={"active_requests_max": 256, "over_commit": 2.0})
    one.feed(events.PolicyChanged(replace(settings, number=2)))
    assert one.book.limit("replica:p/0", "tokens") == 20_000


def test_D4_a_lower_limit_reaches_the_ledger_only_as_fast_as_what_is_reserved_goes_down() -> None:
    """Otherwise one preemption would end every answer that has to grow until the excess is gone."""
    one = bench(guards_peak=False)
    clocked(one, 1, preemptions_total=0)
    replica(one).memory.ratio = 2.0
    one.gate._desk.pools["p"].learn_capacity()
    one.advance(1.1)
    sent = full(one, 4_000, 4)
    assert (len(sent), one.book.limit("replica:p/0", "tokens")) == (4, 20_000)
    clocked(one, 2, preemptions_total=1)
    one.arrive(100, 90)
    assert one.take(Run) == [], "16,000 are reserved and 15,000 may be by a newcomer"
    one.advance(1.1)
    assert one.book.limit("replica:p/0", "tokens") == one.book.limit("pool:p", "tokens") == 16_000 + KV_TOKENS // 50
    one.complete(sent[0], 10, 3_990)
    one.advance(1.1)
    assert one.book.limit("replica:p/0", "tokens") == 15_000
    assert len(one.take(Run)) == 1
