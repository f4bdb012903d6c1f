"""Growth (A8): an answer that may pass what is reserved asks before it does, and is ended where it may not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headworks.core import events
from headworks.core.book import Book
from headworks.core.commands import Answer, Grow, Shortfall
from headworks.core.effects import Abort, Ask, Run, Watch
from headworks.core.policy import QuotaPolicy
from tests.core.driver import Bench, capacity, policy

PATIENT = {"ttft_slo_s": None, "wait_s_max": 2.0}


def bench(
    *, limit: int | None = None, step: int = 64, tenant: int | None = None, quota: QuotaPolicy | None = None, **interactive: Any
) -> Bench:
    """A cold estimate of 200, steps of 64 asked 16 ahead."""
    settings = policy(
        interactive=PATIENT | interactive,
        tenant={"active_tokens_max": tenant, "quota": quota},
        pool={
            "growth": True,
            "output_tokens_cold": 200,
            "growth_step_tokens": step,
            "growth_ahead_tokens": 16,
            "active_tokens_max": limit,
        },
    )
    return Bench(settings)


def running(made: Bench, tokens: int = 4_100, output_tokens: int = 4_000, **changed: Any) -> str:
    """A request of which the engine has shown its first byte: 100 to read, 200 to write for certain and 4,000 at most."""
    made.arrive(tokens, output_tokens, **{"output_tokens_min": 200} | changed)
    execution = made.execution()
    made.first_byte(execution)
    return execution


def counts(made: Bench, execution: str, tokens: int) -> None:
    made.feed(events.Progressed(execution, tokens))


def grows(made: Bench) -> list[Grow]:
    return [command for ask in made.take(Ask) for command in ask.commands if isinstance(command, Grow)]


def watched(made: Bench) -> list[int]:
    return [effect.output_tokens for effect in made.take(Watch)]


def test_A8_the_estimate_is_reserved_and_the_engine_is_told_what_is_allowed() -> None:
    made = bench()
    made.arrive(4_100, 4_000)
    (run,) = made.take(Run)
    assert made.held() == 100 + 200
    assert (run.output_tokens_max, run.watch_tokens) == (4_000, 200 - 16)
    assert (run.decision.work.output_tokens, run.decision.work.output_tokens_max) == (200, 4_000)


def test_A8_more_is_asked_for_sixteen_tokens_before_the_bound() -> None:
    made = bench()
    execution = running(made)
    counts(made, execution, 183)
    assert grows(made) == [] and made.held() == 300
    counts(made, execution, 184)
    (asked,) = grows(made)
    assert (asked.execution, asked.step, {charge.amount for charge in asked.charges}) == (execution, 264, {64})
    assert made.held() == made.held("replica:p/0") == made.held("tenant:acme") == 364
    assert watched(made)[-1] == 264 - 16
    counts(made, execution, 248)
    assert made.held() == 428


def test_A8_what_is_asked_for_last_is_what_is_left_of_the_maximum() -> None:
    made = bench()
    execution = running(made, 330, 230)
    counts(made, execution, 184)
    assert made.held() == 330
    assert watched(made) == [248], "of the ask alone: all it may write is reserved, so nobody watches it any more"
    counts(made, execution, 230)
    assert grows(made) and made.take(Abort) == []


def test_A8_pool_full_ends_it_with_length_at_its_bound_and_the_pool_never_passes_its_limit() -> None:
    made = bench(limit=1_000)
    execution = running(made)
    for _ in range(2):
        made.arrive(350, 250)
    assert made.held() == 300 + 300 + 300
    made.arrive(90, 10)
    made.take(Run)
    assert made.held() == 990
    counts(made, execution, 184)
    assert made.held() == 990 and made.take(Abort) == []
    assert watched(made)[-1] == 200
    counts(made, execution, 200)
    (abort,) = made.take(Abort)
    assert (abort.execution, abort.as_length, abort.reason) == (execution, True, "kv_saturation")
    assert abort.shortfall == Shortfall("pool:p", "tokens", 1_054, 1_000)
    assert made.held() == 990, "it stays charged until it has stopped"


def test_A8_what_was_ended_is_freed_on_evidence_once_and_reported_as_ended_by_length() -> None:
    made = bench(limit=310)
    execution = running(made)
    counts(made, execution, 200)
    assert [abort.as_length for abort in made.take(Abort)] == [True]
    made.feed(events.EngineClosed(execution))
    for iterations in (100, 104):
        made.advance(0.02)
        made.sample(iterations=(iterations,), running=1)
    assert made.held() == 0
    (outcome,) = made.outcomes()
    assert (outcome.outcome, outcome.reason, outcome.evidence, outcome.in_slo) == ("completed", "kv_saturation", "E3a", False)
    assert outcome.usage is not None and (outcome.usage.output_tokens, outcome.usage.end) == (200, "length")
    assert (outcome.growths, outcome.growths_refused, outcome.grown_tokens) == (0, 1, 0)


def test_A8_growth_that_was_refused_asks_again_when_something_ends_before_anybody_who_waits() -> None:
    made = bench(limit=1_000)
    execution = running(made)
    other = running(made, 700, 100)
    made.arrive(700, 100)
    assert made.take(Run) == []
    counts(made, execution, 190)
    assert made.held() == 1_000
    made.complete(other)
    assert made.held() == 364 and made.take(Run) == [], "the one that waits needs 700 of the 636 that are left"
    counts(made, execution, 200)
    assert made.take(Abort) == []


def test_A8_stop_ends_it_with_an_error_that_names_the_limit() -> None:
    made = bench(tenant=350, on_growth_refused="stop")
    execution = running(made)
    counts(made, execution, 200)
    (abort,) = made.take(Abort)
    assert (abort.reason, abort.as_length) == ("tenant_capacity_exceeded", False)
    assert abort.shortfall == Shortfall("tenant:acme", "tokens", 364, 350)
    made.feed(events.EngineClosed(execution))
    for iterations in (100, 104):
        made.sample(iterations=(iterations,), running=1)
    (outcome,) = made.outcomes()
    assert (outcome.outcome, outcome.reason) == ("failed", "tenant_capacity_exceeded")


def test_A8_spare_passes_the_tenants_limit_at_the_pools_expense_while_that_has_room() -> None:
    made = bench(tenant=350, limit=400, on_growth_refused="spare")
    execution = running(made)
    counts(made, execution, 184)
    assert (made.held("tenant:acme"), made.held(), made.held("replica:p/0")) == (300, 364, 364)
    counts(made, execution, 264)
    (abort,) = made.take(Abort)
    assert (abort.as_length, abort.reason) == (True, "kv_saturation")
    assert (made.held("tenant:acme"), made.held()) == (300, 364)


def test_A8_samples_share_what_is_reserved_for_all_of_them() -> None:
    made = bench()
    made.arrive(4_100, 4_000, samples=3)
    (run,) = made.take(Run)
    made.first_byte(run.execution.id)
    assert (made.held(), run.watch_tokens) == (3 * 300, 3 * 184)
    counts(made, run.execution.id, 3 * 184 - 1)
    assert grows(made) == []
    counts(made, run.execution.id, 3 * 184)
    assert made.held() == 3 * 364


def test_A8_whole_memory_blocks_are_asked_for_and_none_where_the_last_has_room() -> None:
    settings = policy(
        interactive=PATIENT,
        pool={"growth": True, "output_tokens_cold": 200, "growth_step_tokens": 64, "growth_ahead_tokens": 16},
    )
    made = Bench(settings, capacities=(capacity(block_tokens=128),))
    execution = running(made)
    assert (made.held("tenant:acme"), made.held()) == (300, 384)
    counts(made, execution, 184)
    assert (made.held("tenant:acme"), made.held()) == (364, 384)
    counts(made, execution, 248)
    assert (made.held("tenant:acme"), made.held()) == (428, 512)


def test_A8_an_answer_in_one_piece_grows_only_where_it_can_be_put_together() -> None:
    made = bench()
    made.arrive(4_100, 4_000, stream=False)
    (run,) = made.take(Run)
    assert (made.held(), run.watch_tokens) == (4_100, 0)
    made.complete(run.execution.id)
    made.arrive(4_100, 4_000, stream=False, assembles=True)
    (run,) = made.take(Run)
    assert (made.held(), run.watch_tokens) == (300, 184)


def test_A8_an_engine_that_cannot_be_stopped_has_all_reserved() -> None:
    settings = policy(interactive=PATIENT, pool={"growth": True, "output_tokens_cold": 200})
    made = Bench(settings, capacities=(capacity(evidence=("E1",)),))
    made.arrive(4_100, 4_000)
    assert made.held() == 4_100


def test_A8_whose_client_does_not_read_holds_all_that_it_may_write() -> None:
    made = bench()
    execution = running(made)
    made.feed(events.ClientSlow(execution, True))
    assert made.held() == 4_100
    made.feed(events.ClientSlow(execution, False))
    counts(made, execution, 4_000)
    assert made.take(Abort) == []


def test_A8_whose_client_does_not_read_is_ended_at_once_where_that_is_refused() -> None:
    made = bench(limit=1_000)
    execution = running(made)
    counts(made, execution, 50)
    made.feed(events.ClientSlow(execution, True))
    assert [abort.as_length for abort in made.take(Abort)] == [True]


def test_A7_growth_is_asked_again_the_same_and_counted_once() -> None:
    made = bench()
    execution = running(made)
    made.lose_answers = True
    counts(made, execution, 184)
    made.lose_answers = False
    assert made.held() == 364
    made.advance(0.3)
    first, second = grows(made)
    assert first == second and made.held() == 364
    assert watched(made)[-1] == 248, "the answer that came at last moved the bound"


def test_A8_growth_that_is_never_answered_ends_it_before_one_step_is_passed() -> None:
    made = bench()
    execution = running(made)
    made.lose_asks = True
    counts(made, execution, 184)
    assert watched(made)[-1] == 200 + 64 - 16
    counts(made, execution, 247)
    assert made.take(Abort) == []
    counts(made, execution, 248)
    (abort,) = made.take(Abort)
    assert (abort.reason, abort.as_length) == ("ledger_unavailable", True)


def test_A7_a_growth_in_flight_while_its_client_leaves_changes_nothing_and_all_comes_back() -> None:
    made = bench()
    arrival = made.arrive(4_100, 4_000)
    execution = made.execution()
    made.first_byte(execution)
    made.lose_answers = True
    counts(made, execution, 184)
    made.feed(events.ClientGone(arrival))
    made.lose_answers = False
    made.advance(0.3)
    assert made.held() == 364, "the ledger had granted it"
    assert made.gate.snapshot(made.now_s)["pools"]["p"]["tokens"] == 300
    made.feed(events.EngineClosed(execution))
    for iterations in (100, 104):
        made.sample(iterations=(iterations,), running=1)
    made.advance(0.5)
    assert made.held() == 0
    assert len(grows(made)) == 1, "one that is left is not asked for again"


def test_A7_a_fenced_gateway_grows_nothing_and_its_answer_ends_at_its_bound() -> None:
    book = Book(lease_ms=5_000, remember_ms=3_600_000)
    settings = bench().gate._desk.policy
    made = Bench(settings, book=book)
    execution = running(made, finish_by_s=1_000.0)
    made.lose_asks = True
    made.advance(6.0)
    other = Bench(settings, book=book, boot="boot-2")
    other.now_s = made.now_s
    other.advance(0.1)  # the ledger sees that the first one's lease is over
    made.lose_asks = False
    counts(made, execution, 184)
    assert made.held() == 300
    counts(made, execution, 200)
    (abort,) = made.take(Abort)
    assert (abort.reason, abort.as_length, abort.shortfall) == ("ledger_unavailable", True, None)


def test_A8_a_late_answer_to_a_smaller_ask_moves_nothing() -> None:
    made = bench()
    execution = running(made)
    made.lose_asks = True
    counts(made, execution, 184)
    made.feed(events.ClientSlow(execution, True))
    made.feed(events.LedgerAnswered([Answer("grow", execution, "granted", 264)]))
    assert made.gate.snapshot(made.now_s)["pools"]["p"]["tokens"] == 300
    made.lose_asks = False
    made.advance(0.6)
    assert made.gate.snapshot(made.now_s)["pools"]["p"]["tokens"] == made.held() == 4_100
    made.complete(execution)
    assert made.held() == 0


def test_A8_the_outcome_tells_what_was_reserved_at_the_start_and_at_the_end() -> None:
    made = bench()
    execution = running(made)
    for tokens in (184, 248):
        counts(made, execution, tokens)
    made.complete(execution, prompt_tokens=100, output_tokens=300)
    (outcome,) = made.outcomes()
    assert (outcome.work.tokens, outcome.grown_tokens, outcome.growths, outcome.growths_refused) == (428, 128, 2, 0)
    assert outcome.work.tokens - outcome.grown_tokens == 300


def test_K08_a_guess_of_ours_makes_no_small_tenants_request_impossible() -> None:
    made = bench(tenant=300)
    made.arrive(4_100, 4_000)
    assert len(made.take(Run)) == 1
    assert made.held("tenant:acme") == 100 + (300 - 100) // 4
    made.arrive(4_300, 4_000)
    assert made.refusal().reason == "request_exceeds_capacity", "its prompt alone fills the limit"


@pytest.mark.parametrize(("certain", "reserved"), [(1_000, 1_000), (4_000, 4_000), (2**31 - 1, 4_000)])
def test_A8_what_the_client_makes_certain_is_reserved_from_the_start(certain: int, reserved: int) -> None:
    made = bench()
    made.arrive(4_100, 4_000, output_tokens_min=certain)
    assert made.held() == 100 + reserved


def test_A8_observing_refuses_no_growth() -> None:
    settings = replace(bench(limit=310).gate._desk.policy, observe=True)
    made = Bench(settings)
    execution = running(made)
    for tokens in (184, 248, 312):
        counts(made, execution, tokens)
    assert made.take(Abort) == [] and made.held() == 100 + 200 + 3 * 64


def test_A2_an_answer_that_grew_is_committed_to_its_quota_like_any_other() -> None:
    made = bench(quota=QuotaPolicy("day", tokens=10_000))
    execution = running(made)
    counts(made, execution, 184)
    assert grows(made) and made.held("quota:acme@day-1970-01-01") == 364
    shown = made.gate.snapshot(made.now_s)["tenants"]["acme"]["quota"]
    assert (shown["tokens_committed"], shown["tokens_outstanding"]) == (0, 364)
    made.complete(execution, prompt_tokens=100, output_tokens=250)
    assert made.held("quota:acme@day-1970-01-01") == 350
    assert (made.held(), made.gate.check(), made.book.check()) == (0, [], [])


@pytest.mark.parametrize("ends_by", ["length", "spare", "stop"])
def test_A2_an_answer_grows_only_as_far_as_its_quota_goes(ends_by: str) -> None:
    made = bench(quota=QuotaPolicy("day", tokens=400), on_growth_refused=ends_by)
    execution = running(made)
    counts(made, execution, 184)
    counts(made, execution, 248)
    assert made.held("quota:acme@day-1970-01-01") == 364, "428 would be more than 400"
    counts(made, execution, 264)
    (abort,) = made.aborts()
    assert (abort.reason, abort.as_length) == ("insufficient_quota", ends_by != "stop")
    assert abort.shortfall is not None and (abort.shortfall.value, abort.shortfall.limit) == (428, 400)
    made.feed(events.Evidence(execution, "E3a"))
    assert made.held("quota:acme@day-1970-01-01") == 364, "it used all of it"
    made.arrive(37)
    assert made.refusal().reason == "insufficient_quota"


def test_A2_growth_after_the_hour_belongs_to_the_hour_it_was_admitted_in() -> None:
    made = bench(quota=QuotaPolicy("hour", tokens=400))
    made.advance(3_599.0 - made.now_s)
    execution = running(made)
    made.advance(2.0)
    made.arrive(10)
    assert len(made.take(Run)) == 1
    for tokens in (184, 248, 312):
        counts(made, execution, tokens)
    assert made.take(Abort) == []
    assert made.held("quota:acme@hour-1970-01-01T01") == 10
    made.complete(execution, prompt_tokens=100, output_tokens=350)
    assert made.gate.snapshot(made.now_s)["tenants"]["acme"]["quota"]["tokens_outstanding"] == 10
