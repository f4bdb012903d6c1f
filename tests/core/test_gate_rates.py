"""Rates, retry budgets and quotas through the gate's one method (A2, A10, B5, B15)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headworks.core import events
from headworks.core.commands import Start
from headworks.core.effects import Alarm, Judged, Run
from headworks.core.policy import Policy, RatePolicy
from headworks.core.types import Decision, Owner, Verdict
from tests.core.driver import Bench, policy

LONG = {"ttft_slo_s": None, "wait_s_max": 20.0}
TOKENS = RatePolicy(tokens_per_s=100.0, burst_tokens=100, debt_tokens_max=200)
REQUESTS = RatePolicy(requests_per_s=1.0, burst_requests=2)


def limited(**tenant: Any) -> Policy:
    return policy(interactive=LONG, tenant=tenant)


def verdict(decision: Decision, unit: str, scope: str = "tenant:acme") -> Verdict:
    (found,) = [one for one in decision.verdicts if one.unit == unit and one.scope == scope]
    return found


def refused(bench: Bench) -> tuple[str, float | None]:
    decision = bench.refusal()
    return decision.reason, decision.retry_after_s


def serve(bench: Bench, prompt_tokens: int = 1, output_tokens: int = 1) -> None:
    """Let the one that was sent run to its end."""
    execution = bench.execution()
    bench.first_byte(execution)
    bench.complete(execution, prompt_tokens, output_tokens)


# rates


def test_B5_the_golden_bucket_through_the_gate() -> None:
    bench = Bench(limited(rate=TOKENS))
    bench.arrive(300)
    assert len(bench.take(Run)) == 1
    bench.arrive(1)
    assert refused(bench) == ("rate_limit_exceeded", 0.01)
    bench.advance(0.5)
    bench.arrive(100)
    assert refused(bench) == ("rate_limit_exceeded", 0.5)
    bench.advance(0.5)
    bench.arrive(100)
    assert len(bench.take(Run)) == 1


def test_A2_the_rate_verdict_stands_beside_the_pools_in_one_record() -> None:
    bench = Bench(limited(rate=TOKENS))
    bench.arrive(300)
    bench.arrive(1)
    decision = bench.refusal()
    rate = verdict(decision, "tokens at once")
    assert (rate.value, rate.limit, rate.passed, rate.reason) == (301, 300, False, "rate_limit_exceeded")
    (memory,) = [one for one in decision.verdicts if one.check == "memory" and one.unit == "tokens"]
    assert (memory.value, memory.limit, memory.passed) == (301, 40_000, True)


def test_A10_the_bucket_is_charged_actual_tokens_at_the_end() -> None:
    bench = Bench(limited(rate=TOKENS))
    bench.arrive(300)
    serve(bench, prompt_tokens=20, output_tokens=30)
    bench.arrive(250)
    assert len(bench.take(Run)) == 1, "50 of the 300 were used"
    bench.arrive(1)
    assert bench.refusal().reason == "rate_limit_exceeded"


def test_A10_more_than_the_estimate_is_owed() -> None:
    bench = Bench(limited(rate=TOKENS))
    bench.arrive(100)
    serve(bench, prompt_tokens=20, output_tokens=480)
    bench.arrive(1)
    assert refused(bench) == ("rate_limit_exceeded", 2.01)  # 400 owed, 200 may be: 201 must come back


def test_B5_what_waited_and_never_ran_gives_everything_back() -> None:
    bench = Bench(policy(interactive={**LONG, "wait_s_max": 0.1}, tenant={"rate": TOKENS}, pool={"active_requests_max": 1}))
    bench.arrive(10)
    waiting = bench.arrive(290)
    bench.arrive(1)
    assert bench.refusal().reason == "rate_limit_exceeded", "what waits has drawn"
    bench.feed(events.ClientGone(waiting))
    gone_too_late = bench.arrive(290)
    bench.advance(0.2)
    assert bench.refusal().id == gone_too_late
    bench.arrive(290)
    assert bench.decisions()[-1].outcome == "queue"


def test_B5_what_was_sent_and_left_before_a_byte_has_cost_its_prompt() -> None:
    bench = Bench(limited(rate=TOKENS))
    request = bench.arrive(300, output_tokens=100)
    execution = bench.execution()
    bench.feed(events.ClientGone(request))
    bench.feed(events.Evidence(execution, "E3a"))
    bench.arrive(101)
    assert bench.refusal().reason == "rate_limit_exceeded"
    bench.arrive(100)
    assert len(bench.take(Run)) == 1


def test_B5_what_the_ledger_saw_running_does_not_give_its_rates_back_as_unsent() -> None:
    bench = Bench(limited(rate=TOKENS))
    request = bench.arrive(300, output_tokens=100)
    execution = bench.execution()
    bench.book.apply([Start(execution, Owner("g1", "boot-1"))], int(bench.now_s * 1000))
    bench.feed(events.ClientGone(request))
    bench.feed(events.NotSent(execution, "gone"))
    assert [alarm.name for alarm in bench.take(Alarm)] == ["stop_refused"]
    bench.arrive(1)
    assert bench.refusal().reason == "rate_limit_exceeded", "it may still run"
    bench.feed(events.Evidence(execution, "E3b"))
    bench.arrive(101)
    assert bench.refusal().reason == "rate_limit_exceeded"
    bench.arrive(100)
    assert len(bench.take(Run)) == 1, "its prompt of 200 has been read"


def test_B5_another_attempt_of_the_same_arrival_draws_nothing_again() -> None:
    bench = Bench(limited(rate=TOKENS))
    bench.arrive(300)
    bench.feed(events.NotSent(bench.execution(), "busy"))
    bench.advance(0.1)
    serve(bench, prompt_tokens=20, output_tokens=30)
    bench.arrive(260)
    assert len(bench.take(Run)) == 1, "300 were drawn once and corrected to 50, and 10 have come back"


def test_B5_requests_are_counted_one_each_and_per_client_apart() -> None:
    bench = Bench(limited(client_rate=REQUESTS))
    for _ in range(2):
        bench.arrive(10)
    bench.arrive(10)
    decision = bench.refusal()
    assert (decision.reason, decision.retry_after_s) == ("rate_limit_exceeded", 1.0)
    assert verdict(decision, "requests at once", "client:acme/key").value == 3
    bench.take(Run)
    bench.arrive(10, client="acme/other")
    assert len(bench.take(Run)) == 1
    bench.advance(1.0)
    bench.arrive(10)
    assert len(bench.take(Run)) == 1


def test_B5_over_a_minute_nobody_is_told_to_come_back_but_the_time_is_known() -> None:
    bench = Bench(limited(rate=RatePolicy(tokens_per_s=1.0, burst_tokens=100)))
    bench.arrive(100)
    bench.arrive(61)
    assert refused(bench) == ("rate_limit_exceeded", 61.0)


def test_K08_more_than_a_bucket_can_ever_hold_gets_a_permanent_answer() -> None:
    bench = Bench(limited(rate=TOKENS))
    bench.arrive(301)
    decision = bench.refusal()
    assert (decision.reason, decision.retry_after_s) == ("request_exceeds_capacity", None)
    bench.arrive(300)
    assert len(bench.take(Run)) == 1


def test_F3_observing_draws_only_what_would_have_been_let_in() -> None:
    bench = Bench(replace(limited(rate=TOKENS), observe=True))
    for _ in range(3):
        bench.arrive(300)
    assert len(bench.take(Run)) == 3
    assert [one.reason for one in bench.decisions() if one.outcome == "refuse"] == ["rate_limit_exceeded"] * 2
    bench.advance(2.0)
    bench.arrive(200)
    assert bench.decisions()[-1].outcome == "admit", "as if only the first had run"


def test_a_reload_changes_a_bucket_and_keeps_what_was_drawn() -> None:
    bench = Bench(limited(rate=TOKENS))
    bench.arrive(300)
    bench.take(Run)
    wider = replace(TOKENS, debt_tokens_max=250)
    bench.feed(events.PolicyChanged(replace(limited(rate=wider), number=2)))
    bench.arrive(51)
    assert bench.refusal().reason == "rate_limit_exceeded"
    bench.arrive(50)
    assert len(bench.take(Run)) == 1


# retries


def test_B15_a_retry_over_the_budget_is_refused_with_a_slot_and_counted_as_such() -> None:
    bench = Bench(limited(retry_ratio=0.1))
    for _ in range(3):
        bench.arrive(10, retry_count=1)
    bench.arrive(10, retry_count=1)
    decision = bench.refusal()
    assert decision.reason == "retry_budget_exceeded"
    assert decision.retry_after_s is not None
    over = verdict(decision, "retries in a minute", "client:acme/key")
    assert (over.value, over.limit, over.passed) == (4, 3, False)
    assert bench.outcomes()[-1].retry_kind == "over_budget"
    bench.arrive(10)
    assert bench.decisions()[-1].outcome == "admit", "a first attempt is no retry"


def test_B15_a_return_in_its_window_costs_nothing_once() -> None:
    bench = Bench(limited(retry_ratio=0.0, rate=RatePolicy(requests_per_s=1.0, burst_requests=5)))
    for _ in range(3):
        bench.arrive(10, retry_count=1)
    bench.arrive(10, retry_count=1)
    assert refused(bench)[0] == "retry_budget_exceeded"
    for _ in range(2):
        bench.arrive(10)
    bench.arrive(10)
    assert refused(bench) == ("rate_limit_exceeded", 1.0)
    bench.effects.clear()
    bench.advance(1.0)
    bench.arrive(10, retry_count=1)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.complete(execution)
    assert bench.outcomes()[-1].retry_kind == "ticket_kept"
    bench.advance(3.0)
    bench.arrive(10, retry_count=2)
    assert bench.refusal().reason == "retry_budget_exceeded", "the slots have been used up or are past"


def test_B15_an_early_return_is_seen_as_one_without_any_budget() -> None:
    bench = Bench(policy())
    bench.arrive(10, retry_count=1)
    serve(bench)
    assert bench.outcomes()[-1].retry_kind == "early"


# what runs elsewhere


def passes(bench: Bench, tokens: int, *, is_spent: bool = False) -> Decision:
    """Ask for so much as one that runs elsewhere."""
    bench.feed(events.PassedBy(bench.request(tokens, output_tokens=0), is_spent))
    (judged,) = bench.take(Judged)
    return judged.decision


def test_H5_what_runs_elsewhere_draws_for_good_and_what_is_refused_draws_nothing() -> None:
    bench = Bench(limited(rate=TOKENS))
    assert passes(bench, 250).outcome == "admit"
    refusal = passes(bench, 100)
    assert (refusal.reason, refusal.retry_after_s) == ("rate_limit_exceeded", 0.5)
    assert passes(bench, 50).outcome == "admit"
    assert not bench.take(Run), "nothing of it runs here"
    bench.arrive(1)
    assert refused(bench) == ("rate_limit_exceeded", 0.01)


def test_H5_what_is_reported_as_spent_is_drawn_into_any_debt() -> None:
    bench = Bench(limited(rate=TOKENS))
    passes(bench, 1_000, is_spent=True)
    bench.arrive(1)
    assert refused(bench) == ("rate_limit_exceeded", 7.01)
