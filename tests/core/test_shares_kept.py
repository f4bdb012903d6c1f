"""What is kept for a class, and what newcomers are told, in a pool that is shared by weights (D2, B2, B6, G4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headworks.core.policy import ClassPolicy
from headworks.core.shares import Rival, class_weights
from tests.core.shared_pool import BULK, INTERACTIVE, Counter, shared

# floors


def test_D2_a_floor_raises_the_weight_of_a_small_share() -> None:
    classes = {
        "interactive": ClassPolicy("interactive", share=18.0, floor_ratio=0.2),
        "batch": ClassPolicy("batch", share=1.0),
        "bulk": ClassPolicy("bulk", share=1.0, floor_ratio=0.24),
    }
    weights = class_weights(classes)
    assert weights["bulk"] / sum(weights.values()) == pytest.approx(0.24)
    assert weights["interactive"] / weights["batch"] == pytest.approx(18.0)


def test_D2_shares_above_their_floors_stay_as_they_are() -> None:
    classes = {"interactive": ClassPolicy("interactive", share=10.0, floor_ratio=0.2), "bulk": ClassPolicy("bulk", share=1.0)}
    assert class_weights(classes) == {"interactive": 10.0, "bulk": 1.0}


def test_D2_floors_that_fill_the_whole_are_the_weights() -> None:
    classes = {name: ClassPolicy(name, share=1.0, floor_ratio=ratio) for name, ratio in (("a", 0.7), ("b", 0.3))}
    weights = class_weights(classes)
    assert weights["a"] / weights["b"] == pytest.approx(7 / 3)


PROMISED = replace(INTERACTIVE, floor_ratio=0.25, ttft_slo_s=1.0, wait_s_max=0.5)


def test_D2_a_part_of_the_pool_is_kept_for_a_class_that_promises_a_first_token() -> None:
    counter = Counter(shared(PROMISED, BULK, active_requests_max=8))
    counter.arrive("interactive", "acme")
    counter.served(1)
    counter.arrive("bulk", "batchco", 20)
    counter.served(0)
    assert [who for who, *_ in counter.running] == ["bulk/batchco"] * 6
    counter.arrive("interactive", "acme", 2)
    counter.served(0)
    assert [who for who, *_ in counter.running][6:] == ["interactive/acme"] * 2


def test_D2_what_turns_bring_a_class_within_half_of_its_promise_is_not_kept_for_it() -> None:
    patient = replace(PROMISED, ttft_slo_s=20.0, wait_s_max=20.0)
    promised = replace(BULK, ttft_slo_s=900.0)
    counter = Counter(shared(patient, promised, active_requests_max=8))
    counter.arrive("interactive", "acme")
    counter.arrive("bulk", "batchco", 40)
    counter.served(0)
    assert len(counter.running) == 7, "of two places for it one is taken; nobody knows yet how quickly any comes free"
    for _ in range(8):  # one every tenth of a second
        counter.served(1)
        counter.arrive("bulk", "batchco", 3)
    counter.served(0)
    assert [who for who, *_ in counter.running] == ["bulk/batchco"] * 8
    waits = Counter(shared(patient, BULK, active_requests_max=8))
    waits.arrive("interactive", "acme")
    waits.arrive("bulk", "batchco", 40)
    waits.served(8)
    assert [who for who, *_ in waits.running] == ["bulk/batchco"] * 6, "from work that promises nothing all of it is kept"
    use = counter.bench.gate._desk.pools["p"].class_use("interactive")
    assert Rival(use, 0.25, 0.3, 1.0).comes_free(10.0, 0.1) == 1, "a tenth of a second of the half is for reading"
    assert Rival(use, 0.25, 0.3, 1.0).comes_free(10.0, 0.6) == 0
    assert Rival(use, 0.25, 0.3, 20.0).comes_free(10.0, 0.1) == 29
    assert Rival(use, 0.25, 0.3, 20.0).comes_free(None, 0.1) == 0


def test_D2_what_a_class_does_not_ask_for_is_lent_after_ten_seconds() -> None:
    counter = Counter(shared(PROMISED, BULK, active_requests_max=8))
    counter.arrive("interactive", "acme")
    counter.served(1)
    counter.bench.advance(9.8)
    counter.arrive("bulk", "batchco", 20)
    counter.served(0)
    assert len(counter.running) == 6
    counter.bench.advance(0.2)
    counter.arrive("bulk", "batchco")
    counter.served(0)
    assert len(counter.running) == 8


def test_D2_the_verdict_says_what_was_kept_for_others() -> None:
    counter = Counter(shared(PROMISED, BULK, active_requests_max=8))
    counter.arrive("interactive", "acme")
    counter.arrive("bulk", "batchco", 6)
    told = counter.decision("bulk", "batchco")
    (kept,) = [one for one in told.verdicts if one.unit == "requests beside what is kept"]
    assert (told.outcome, kept.check, kept.value, kept.limit, kept.passed) == ("queue", "fairness", 8, 7, False)


def test_D2_work_too_large_for_what_is_left_beside_the_kept_part_is_not_held_back_by_it() -> None:
    counter = Counter(shared(PROMISED, BULK, active_requests_max=8, active_tokens_max=1_000))
    counter.arrive("interactive", "acme")
    counter.served(1)
    counter.arrive("bulk", "batchco", tokens=900)
    counter.served(0)
    assert [who for who, *_ in counter.running] == ["bulk/batchco"]


def test_G4_long_prompts_of_work_that_can_wait_are_read_one_at_a_time_while_others_are_promised_a_first_token() -> None:
    counter = Counter(shared(PROMISED, BULK, active_requests_max=100))
    counter.arrive("interactive", "acme")
    counter.served(1)
    counter.arrive("bulk", "batchco", 5, tokens=3_000)
    assert counter.sent() == ["bulk/batchco"]
    counter.bench.first_byte(counter.running[0][1])
    assert counter.sent() == ["bulk/batchco"]
    counter.arrive("interactive", "acme", 3)
    assert counter.sent() == ["interactive/acme"] * 3
    told = counter.decision("bulk", "batchco", tokens=3_000)
    assert [(one.value, one.limit) for one in told.verdicts if one.unit == "prompt tokens being read"] == [(5_998, 2_048)]


def test_G4_short_prompts_are_read_together_up_to_one_step_of_an_engine() -> None:
    counter = Counter(shared(PROMISED, BULK, active_requests_max=100))
    counter.arrive("interactive", "acme")
    counter.served(1)
    counter.arrive("bulk", "batchco", 15, tokens=201)
    assert len(counter.sent()) == 10


def test_G4_alone_work_that_can_wait_is_not_paced() -> None:
    counter = Counter(shared(PROMISED, BULK, active_requests_max=100))
    counter.arrive("bulk", "batchco", 5, tokens=801)  # more than a step, less than it may have in hand
    assert len(counter.sent()) == 5


def refused_in_a_full_pool(**bulk: Any) -> Counter:
    """Eight places, all taken by bulk before anybody promised anything, and an interactive request that waited in vain."""
    counter = Counter(shared(PROMISED, replace(BULK, **bulk), active_requests_max=8))
    counter.arrive("bulk", "batchco", 20)
    assert len(counter.sent()) == 8
    counter.arrive("interactive", "acme")
    counter.bench.advance(0.6)
    assert counter.bench.decisions()[-1].reason == "queue_timeout"
    return counter


def test_G4_work_without_a_promise_keeps_to_its_share_for_three_seconds_after_one_with_a_promise_was_refused() -> None:
    counter = refused_in_a_full_pool()
    assert counter.served(4) == []  # four of eight are free, two of them kept; its share is one in eleven
    told = counter.decision("bulk", "batchco")
    (held,) = [one for one in told.verdicts if one.unit == "requests while others are refused"]
    assert (told.outcome, held.check, held.value, round(held.limit, 2), held.passed) == ("queue", "fairness", 5, 0.73, False)
    counter.bench.advance(2.7)
    counter.arrive("bulk", "batchco")
    assert counter.sent() == ["bulk/batchco"] * 2


def test_G4_one_request_without_a_promise_runs_whatever_its_share_is() -> None:
    counter = refused_in_a_full_pool()
    assert counter.served(8) == ["bulk/batchco"]


def test_G4_a_share_of_half_the_places_is_not_held_back_below_that() -> None:
    counter = refused_in_a_full_pool(share=10.0)
    assert counter.served(5) == ["bulk/batchco"]  # three run on


# what newcomers are told


def flooded(kind: str = "wfq") -> Counter:
    """Ten requests of 100 tokens a second, all bulk so far, a hundred more waiting."""
    counter = Counter(shared(replace(INTERACTIVE, ttft_slo_s=1.0, wait_s_max=0.5), BULK, kind=kind))
    counter.arrive("bulk", "batchco", 121)
    counter.served(20)
    return counter


def test_B2_an_interactive_newcomer_is_not_refused_for_the_bulk_it_will_pass() -> None:
    counter = flooded()
    told = counter.decision("interactive", "acme")
    assert (told.outcome, told.forecast.wait_s) == ("queue", 0.0)
    assert counter.served(1) == ["interactive/acme"]


def test_B2_a_free_place_that_was_kept_for_a_newcomer_is_not_waited_for_however_slowly_others_get_on() -> None:
    counter = Counter(shared(PROMISED, BULK, active_requests_max=8))
    counter.arrive("interactive", "acme")
    counter.served(1)
    counter.arrive("bulk", "batchco", 20)
    counter.sent()
    for _ in range(6):
        for _, execution, _ in counter.running:
            counter.bench.first_byte(execution)
        counter.bench.advance(1.1)
        counter.served(1)
    told = counter.decision("interactive", "acme")
    assert told.forecast.drain_tokens_per_s == pytest.approx(100 / 1.2)
    assert (told.outcome, told.forecast.basis, told.forecast.wait_most_s) == ("admit", "room", 0.0)


def test_B2_in_one_queue_the_same_newcomer_is_refused() -> None:
    counter = flooded("predictive_ttft")
    assert counter.decision("interactive", "acme").reason == "queue_delay_exceeded"


def test_B2_a_bulk_newcomer_waits_for_its_own_class_at_the_rate_that_class_gets() -> None:
    counter = flooded()
    assert counter.decision("bulk", "batchco").forecast.wait_s == pytest.approx(10.0)


def test_B2_until_its_own_rate_is_measured_a_class_counts_on_its_share() -> None:
    """The pool drains 1,000 tokens a second; ten elevenths of that are the interactive class's while bulk waits too."""
    counter = flooded()
    counter.arrive("interactive", "acme")
    told = counter.decision("interactive", "acme")
    assert told.forecast.wait_s == pytest.approx(100 / (1_000 * 10 / 11))


def test_B2_a_tenant_with_nothing_waiting_does_not_wait_for_the_queue_of_another() -> None:
    counter = flooded()
    assert counter.decision("bulk", "acme").forecast.wait_s == 0.0
    assert counter.decision("bulk", "acme").forecast.wait_s == pytest.approx(2 * 100 / 1_000)


def test_B2_return_slots_of_a_class_are_not_behind_those_of_another() -> None:
    short = replace(BULK, queue_requests_max=100, wait_s_max=1_000.0)
    counter = Counter(shared(replace(INTERACTIVE, queue_requests_max=1), short))
    counter.arrive("bulk", "batchco", 101)
    counter.served(20)
    counter.arrive("bulk", "batchco", 20)
    first = counter.decision("bulk", "batchco")
    second = counter.decision("bulk", "batchco")
    assert (first.reason, second.reason) == ("queue_full", "queue_full")
    assert second.retry_after_s == pytest.approx((first.retry_after_s or 0.0) + 0.1)
    counter.arrive("interactive", "acme")
    refused = counter.decision("interactive", "acme")
    assert refused.reason == "queue_full"
    assert refused.retry_after_s == pytest.approx(100 / (1_000 * 10 / 11))


def test_B6_a_tenants_queue_is_tighter_than_its_classs() -> None:
    counter = Counter(shared(tenants={"acme": {"queue_requests_max": 2}, "batchco": {"queue_bytes_max": 1_000}}))
    counter.arrive("bulk", "acme", 3)
    full = counter.decision("bulk", "acme")
    assert (full.outcome, full.reason) == ("refuse", "queue_full")
    counter.arrive("bulk", "batchco", 2)
    full = counter.decision("bulk", "batchco")
    (row,) = [one for one in full.verdicts if one.scope == "tenant:batchco" and one.unit == "queued bytes"]
    assert (full.reason, row.value, row.limit) == ("queue_full", 1_200, 1_000)


def test_position_is_that_in_the_own_flow() -> None:
    counter = Counter(shared())
    counter.arrive("bulk", "batchco", 30)
    assert counter.decision("interactive", "acme").position == 1
    assert counter.decision("interactive", "acme").position == 2


def test_D2_the_prompt_of_an_answer_in_one_piece_is_taken_as_read_when_it_is_sent() -> None:
    """It shows its first byte at its end: until then it would hold back every other prompt."""
    counter = Counter(shared(PROMISED, BULK, active_requests_max=8))
    pool = counter.bench.gate._desk.pools["p"]
    counter.arrive("bulk", "batchco", tokens=1_000)
    assert pool.reading_tokens == 999
    counter.arrive("bulk", "batchco", tokens=1_000, stream=False)
    assert pool.reading_tokens == 999


# a limit that is found (B8), a part of which is kept


def test_B8_whoever_waits_for_what_is_kept_for_others_has_reached_the_limit() -> None:
    """Bulk never gets to the last places, so by them alone the limit would stay for ever what it was at the first of it."""
    counter = Counter(shared(PROMISED, BULK, active_requests_max=None))
    counter.arrive("interactive", "acme")
    counter.served(1)
    counter.arrive("bulk", "batchco", 60)
    counter.served(30)
    limit = counter.bench.gate._desk.pools["p"].single.limit
    assert limit.value >= 24, "8, and one more for nearly each that began in time"
    assert len(counter.running) < limit.value, "and still a part is kept"


def test_B8_a_limit_of_which_less_than_half_is_taken_has_shown_nothing() -> None:
    counter = Counter(shared(PROMISED, BULK, active_requests_max=None))
    pool = counter.bench.gate._desk.pools["p"]
    counter.arrive("bulk", "batchco", 3)
    pool.wants_places()
    assert not pool.single.limit.reached
    counter.arrive("bulk", "batchco", 1)
    pool.wants_places()
    assert pool.single.limit.reached
