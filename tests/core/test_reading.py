"""Prompts that are being read (B7): who is let in beside whom, what the record says, and what the caps are by themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headworks.core import events
from headworks.core.commands import Reserve, Start
from headworks.core.effects import Ask, Run
from headworks.core.lane import Lane
from headworks.core.policy import ClassPolicy, PoolPolicy
from headworks.core.reading import Reading
from headworks.core.types import Charge, Verdict, Work
from tests.core.driver import Bench, policy
from tests.core.shared_pool import shared

SLOW = {"ttft_slo_s": 10.0, "wait_s_max": 5.0}
CAPS = {"active_requests_max": 64, "heavy_tokens": 1_000, "heavy_prefills_max": 2, "prefill_tokens_max": 5_000}


def bench(**pool: Any) -> Bench:
    return Bench(policy(interactive=SLOW, pool={**CAPS, **pool}))


def read(one: Bench) -> tuple[int, int]:
    """Tokens and heavy prompts that the ledger holds as being read; the gate must think the same."""
    held = one.held("replica:p/0", "prefill_tokens"), one.held("replica:p/0", "heavy_prefills")
    shown = one.gate.snapshot(one.now_s)["pools"]["p"]["replicas"]["p/0"]
    assert held == (shown["reading_tokens"], shown["reading_heavy"])
    return held


def test_B7_a_third_heavy_prompt_waits_for_the_first_token_of_one_before_it() -> None:
    one = bench()
    for _ in range(3):
        one.arrive(1_501)
    first, _ = (run.execution.id for run in one.take(Run))
    assert read(one) == (3_000, 2)
    waiting = one.decisions()[-1]
    assert (waiting.outcome, waiting.reason) == ("queue", "prefill_saturated")
    heavy = Verdict("compute", "pool:p", 3, 2, "heavy prompts", False, "prefill_saturated")
    tokens = Verdict("compute", "pool:p", 4_500, 5_000, "prompt tokens", True, "")
    assert [verdict for verdict in waiting.verdicts if "prompt" in verdict.unit] == [tokens, heavy]
    one.advance(1.0)
    one.first_byte(first)
    assert len(one.take(Run)) == 1, "at the first token, not at the end"
    assert read(one) == (3_000, 2)


def test_B7_prompt_tokens_are_capped_however_short_each_prompt_is() -> None:
    one = bench()
    for _ in range(12):
        one.arrive(501)
    assert len(one.take(Run)) == 10
    assert read(one) == (5_000, 0)
    assert one.decisions()[-2].reason == "prefill_saturated"


def test_B7_who_waited_for_it_in_vain_is_told_so_with_the_numbers() -> None:
    one = bench(heavy_prefills_max=1)
    one.arrive(3_001)
    one.arrive(3_001)
    one.advance(6.0)
    refused = one.refusal()
    assert (refused.outcome, refused.reason) == ("refuse", "prefill_saturated")
    failed = {(verdict.unit, verdict.value, verdict.limit) for verdict in refused.verdicts if not verdict.passed}
    assert {("heavy prompts", 2, 1), ("prompt tokens", 6_000, 5_000)} <= failed
    assert refused.retry_after_s is not None


def test_B7_a_prompt_longer_than_the_cap_is_read_alone() -> None:
    one = bench()
    one.arrive(101)
    (before,) = one.take(Run)
    one.arrive(9_001)
    assert one.take(Run) == []
    one.first_byte(before.execution.id)
    (long,) = one.take(Run)
    assert read(one) == (9_000, 1)
    verdict = next(verdict for verdict in one.decisions()[-1].verdicts if verdict.unit == "prompt tokens")
    assert verdict.reason in ("", "prefill_saturated")
    one.arrive(101)
    assert one.take(Run) == []
    one.first_byte(long.execution.id)
    assert len(one.take(Run)) == 1


def test_B7_short_prompts_pass_a_heavy_one_that_waits_and_it_still_gets_its_turn() -> None:
    """A flow whose head may not be read yet holds nobody up; the ledger counts who passed it (D2)."""
    promised = ClassPolicy("interactive", share=1.0, ttft_slo_s=60.0, wait_s_max=1_000.0)
    bulk = ClassPolicy("bulk", share=1.0, ttft_slo_s=60.0, wait_s_max=1_000.0)
    one = Bench(shared(promised, bulk, active_requests_max=64, prefill_tokens_max=5_000, heavy_prefills_max=8))
    one.arrive(51, service_class="interactive", tenant="batchco")
    heavy = one.arrive(4_991, service_class="bulk")
    sent = [run.execution.id for run in one.take(Run)]
    served: list[str] = []
    while heavy not in served:
        one.arrive(51, service_class="interactive", tenant="batchco")
        one.advance(0.01)
        runs = one.take(Run)
        served += [run.id for run in runs]
        sent += [run.execution.id for run in runs]
        if len(sent) > 1 or not runs:  # one is always being read, as long as anybody else is let in
            one.first_byte(sent.pop(0))
        assert len(served) < 100, "it would never be read"
    assert 10 < len(served) < 20, "sixteen may pass it"


def test_B7_what_is_cancelled_before_its_first_token_is_read_until_it_is_proved_stopped() -> None:
    one = bench(heavy_prefills_max=1)
    gone = one.arrive(3_001)
    execution = one.execution()
    one.feed(events.ClientGone(gone))
    assert read(one) == (3_000, 1)
    one.feed(events.Evidence(execution, "E3a"))
    assert read(one) == (0, 0)


def test_B7_what_was_never_sent_is_not_read() -> None:
    one = bench()
    one.arrive(3_001)
    one.feed(events.NotSent(one.execution(), "busy"))
    one.advance(0.1)
    assert read(one) == (3_000, 1), "its second attempt, and nothing of the first"


def test_B7_an_answer_in_one_piece_is_read_as_a_stream_so_that_its_first_token_is_seen() -> None:
    one = bench()
    for assembles, watched in ((True, 8), (False, 0)):
        one.arrive(1_008, 8, stream=False, assembles=assembles)
        assert one.take(Run)[0].watch_tokens == watched
    assert read(one) == (2_000, 2)


def test_B7_a_start_that_ends_a_reading_is_told_at_once_and_any_other_with_the_next_ask() -> None:
    one = bench(prefill_tokens_max=None)
    one.arrive(1_501)
    one.arrive(51)
    heavy, light = (run.execution.id for run in one.take(Run))
    one.take(Ask)
    one.first_byte(light)
    assert one.take(Ask) == []
    one.first_byte(heavy)
    starts = [command for ask in one.take(Ask) for command in ask.commands if isinstance(command, Start)]
    assert {command.execution for command in starts} == {heavy, light}


def test_B7_short_prompts_are_not_counted_under_auto_and_every_one_under_a_stated_cap() -> None:
    for pool, charged in (({"prefill_tokens_max": None}, [False, False, True]), ({}, [True, True, True])):
        one = bench(**pool)
        found = []
        for tokens in (20, 124, 125):
            one.take(Ask)
            one.arrive(tokens + 1)
            (command,) = (command for ask in one.take(Ask) for command in ask.commands if isinstance(command, Reserve))
            found.append(("replica:p/0", "prefill_tokens", tokens) in command.charges)
        assert found == charged


def test_B7_in_observe_mode_nothing_is_held_back() -> None:
    one = Bench(replace(policy(interactive=SLOW, pool=CAPS), observe=True))
    for _ in range(5):
        one.arrive(3_001)
    assert len(one.take(Run)) == 5


def two_gateways(**pool: Any) -> tuple[Bench, Bench]:
    first = bench(heavy_prefills_max=1, **pool)
    second = Bench(policy(interactive=SLOW, pool={**CAPS, "heavy_prefills_max": 1, **pool}), book=first.book, boot="boot-2")
    return first, second


def test_B7_what_another_gateway_reads_is_in_the_way_and_told_as_that() -> None:
    first, second = two_gateways()
    first.arrive(3_001)
    second.arrive(3_001)
    assert second.take(Run) == []
    second.advance(6.0)
    assert second.refusal().reason == "prefill_saturated"


def test_B7_a_first_token_wakes_the_gateway_that_waits_for_it() -> None:
    first, second = two_gateways()
    first.arrive(3_001)
    second.arrive(3_001)
    first.book.take_wakes()
    first.first_byte(first.execution())
    ((owner, pool, _),) = first.book.take_wakes()
    assert (owner.boot, pool) == ("boot-2", "p")
    second.feed(events.Freed("p"))
    assert len(second.take(Run)) == 1


# the caps by themselves

AUTO = PoolPolicy("p", ("m",), ())


def work(prompt_tokens: int) -> Work:
    return Work(prompt_tokens + 1, prompt_tokens, 1, 0.0, prompt_tokens + 1, 1)


def lane() -> Lane:
    """Of a tenant of whom nothing is known."""
    gate = Bench(policy(interactive=SLOW)).gate
    return gate._desk.lane("acme", "interactive", "p")


def test_B7_auto_is_what_the_engine_reads_within_the_smallest_promise() -> None:
    reading = Reading(AUTO, 1.0)
    assert (reading.tokens_max, reading.heavy_max, reading.from_tokens) == (8_192, 1, 512)
    assert reading.observe(10_000, 0.5)
    assert reading.tokens_per_s == 20_000
    assert (reading.tokens_max, reading.heavy_max) == (20_000, 1)
    assert reading.limits("replica:p/0") == (
        Charge("replica:p/0", "prefill_tokens", 20_000),
        Charge("replica:p/0", "heavy_prefills", 1),
    )


def test_B7_auto_follows_the_engine_down_and_up_again_and_tells_only_what_matters() -> None:
    reading = Reading(AUTO, 1.0)
    reading.observe(40_000, 1.0)
    assert not reading.observe(40_000, 1.02), "two in a hundred are not told to the ledger"
    assert (reading.tokens_max, reading.heavy_max) == (40_000, 2)
    told = [reading.observe(40_000, 4.0) for _ in range(60)]
    assert 3 <= sum(told) <= 8
    assert reading.tokens_max == pytest.approx(10_000, rel=0.3)
    for _ in range(100):
        reading.observe(40_000, 1.0)
    assert reading.tokens_max == pytest.approx(40_000, rel=0.25)


def test_B7_short_prompts_say_nothing_of_a_rate() -> None:
    reading = Reading(AUTO, 1.0)
    assert not reading.observe(511, 0.01)
    assert reading.tokens_per_s is None


def test_B7_no_automatic_cap_is_less_than_a_step_of_an_engine() -> None:
    reading = Reading(AUTO, 0.01)
    reading.observe(1_000, 1.0)
    assert (reading.tokens_max, reading.heavy_max) == (2_048, 1)


def test_B7_classes_that_promise_less_have_half_of_an_automatic_cap_and_all_of_a_stated_one() -> None:
    reading = Reading(AUTO, 1.0)
    reading.observe(20_000, 1.0)
    reading.begin((("r", "prefill_tokens", 6_000),))
    assert reading.has_room(4_000, None) and reading.has_room(4_000, 5.0)
    assert not reading.has_room(4_001, None) and not reading.has_room(4_001, 5.0)
    assert reading.has_room(14_000, 1.0) and not reading.has_room(14_001, 1.0)
    assert [row[2:4] for row in reading.rows(4_001, 5.0, "p")] == [(10_001, 10_000)]
    stated = Reading(replace(AUTO, prefill_tokens_max=10_000), 1.0)
    stated.begin((("r", "prefill_tokens", 6_000),))
    assert stated.has_room(4_000, None) and stated.has_room(4_000, 1.0)


def test_B7_a_prompt_nobody_counted_counts_as_what_such_prompts_come_to_and_as_its_bound_beside_a_stated_cap() -> None:
    here, bound = lane(), Work(4_001, 4_000, 1, 0.0, 4_001, 1, "bytes")
    for _ in range(20):
        here.lengths.prompts.add(bound, 1_000)
    assert Reading(AUTO, 1.0).size(bound, here) == 1_000
    assert Reading(replace(AUTO, prefill_tokens_max=10_000), 1.0).size(bound, here) == 4_000
    assert Reading(replace(AUTO, heavy_prefills_max=1), 1.0).size(bound, here) == 4_000
    short = Work(1_601, 1_600, 1, 0.0, 1_601, 1, "bytes")
    assert Reading(AUTO, 1.0).size(short, here) == 0, "400 tokens are no eighth of a heavy prompt"


def test_B7_where_nobody_is_promised_a_first_token_there_is_no_cap() -> None:
    reading = Reading(AUTO, None)
    reading.observe(10_000, 0.5)
    assert reading.size(work(1_000_000), lane()) == 0 and reading.charges(0, "r") == ()
    assert reading.limits("r") == ()
    stated = Reading(replace(AUTO, heavy_prefills_max=3), None)
    assert stated.size(work(4_095), lane()) == 0
    assert stated.charges(stated.size(work(4_096), lane()), "r") == (("r", "prefill_tokens", 4_096), ("r", "heavy_prefills", 1))
    assert stated.limits("r") == (("r", "heavy_prefills", 3),)


def test_B7_the_ledger_is_told_of_new_caps_with_the_next_beat() -> None:
    one = Bench(policy(interactive={"ttft_slo_s": 1.0}, pool={"active_requests_max": 8}))
    assert one.book.limit("replica:p/0", "prefill_tokens") == 8_192
    one.arrive(10_001)
    execution = one.execution()
    one.advance(0.25)
    one.first_byte(execution)
    assert one.book.limit("replica:p/0", "prefill_tokens") == 8_192
    one.advance(1.1)
    assert one.book.limit("replica:p/0", "prefill_tokens") == 40_000
    assert one.book.limit("replica:p/0", "heavy_prefills") == 2


def test_B7_a_reload_changes_the_caps_for_whoever_comes() -> None:
    one = bench(heavy_prefills_max=1)
    one.arrive(3_001)
    one.arrive(1_501)
    assert len(one.take(Run)) == 1
    one.feed(events.PolicyChanged(replace(policy(interactive=SLOW, pool={**CAPS, "heavy_prefills_max": 4}), number=2)))
    assert len(one.take(Run)) == 1
    assert one.book.limit("replica:p/0", "heavy_prefills") == 4
    assert read(one) == (4_500, 2)
