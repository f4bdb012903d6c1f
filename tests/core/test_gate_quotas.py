"""Quotas through the gate's one method: committed, outstanding and asked (A2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headworks.core import events
from headworks.core.book import Book
from headworks.core.effects import Run
from headworks.core.policy import PricePolicy, QuotaPolicy
from headworks.core.types import Charge
from tests.core.driver import Bench, policy
from tests.core.test_gate_rates import LONG, limited, serve, verdict

DAY = QuotaPolicy("day", tokens=1_000)
SCOPE = "quota:acme@day-1970-01-01"


def test_A2_committed_outstanding_and_asked_are_held_to_the_quota() -> None:
    bench = Bench(limited(quota=DAY))
    bench.arrive(400)
    serve(bench, prompt_tokens=250, output_tokens=50)
    bench.arrive(500)
    assert len(bench.take(Run)) == 1
    bench.arrive(201)
    decision = bench.refusal()
    assert decision.reason == "insufficient_quota"
    quota = verdict(decision, "tokens a day")
    assert (quota.value, quota.limit, quota.passed) == (300 + 500 + 201, 1_000, False)
    assert decision.retry_after_s == 86_400 - bench.now_s, "the next period"
    assert bench.held(SCOPE) == 800
    assert bench.book.counters.committed(SCOPE, "tokens") == 300
    bench.arrive(200)
    assert len(bench.take(Run)) == 1


def test_A2_the_ledger_has_the_last_word_on_a_quota() -> None:
    """Two gateways, each of which sees half of it: what the second asks is refused by the ledger, at once and for good."""
    book = Book(lease_ms=5_000, remember_ms=3_600_000)
    first = Bench(limited(quota=DAY), book=book)
    first.arrive(600)
    assert len(first.take(Run)) == 1
    second = Bench(limited(quota=DAY), book=book, boot="boot-2")
    second.arrive(600)
    decision = second.refusal()
    assert decision.reason == "insufficient_quota"
    assert [(one.value, one.passed) for one in decision.verdicts if one.unit == "tokens a day"] == [(600, True), (1_200, False)]
    assert book.held(SCOPE, "tokens") == 600
    second.arrive(400)
    assert len(second.take(Run)) == 1


def test_A2_two_that_waited_together_do_not_pass_a_quota_together() -> None:
    bench = Bench(policy(interactive=LONG, tenant={"quota": DAY}, pool={"active_requests_max": 1}))
    bench.arrive(100)
    for _ in range(2):
        bench.arrive(500)
    serve(bench, prompt_tokens=100, output_tokens=100)
    serve(bench, prompt_tokens=400, output_tokens=100)
    assert bench.refusal().reason == "insufficient_quota"
    assert bench.book.counters.committed(SCOPE, "tokens") == 700


def test_A2_a_period_that_ends_leaves_nothing_and_its_late_work_is_not_the_next_ones() -> None:
    bench = Bench(limited(quota=QuotaPolicy("hour", tokens=1_000)))
    bench.arrive(900)
    late = bench.execution()
    bench.first_byte(late)
    bench.now_s = 3_600.0
    bench.feed(events.Tick())
    bench.arrive(900)
    assert len(bench.take(Run)) == 1
    assert bench.held("quota:acme@hour-1970-01-01T01") == 900
    bench.complete(late, 800, 100)
    assert bench.held("quota:acme@hour-1970-01-01T01") == 900
    assert bench.held("quota:acme@hour-1970-01-01T00") == 0
    bench.arrive(101)
    assert bench.refusal().reason == "insufficient_quota"


@pytest.mark.parametrize(("bill", "committed"), [("used", 320), ("reserved", 400)])
def test_A2_cancelled_work_bills_what_was_used_or_reserved(bill: str, committed: int) -> None:
    bench = Bench(limited(quota=replace(DAY, bill=bill)))
    request = bench.arrive(400, output_tokens=100)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.feed(events.Progressed(execution, 20))
    bench.feed(events.ClientGone(request))
    assert bench.held(SCOPE) == 400, "outstanding until there is evidence"
    bench.feed(events.Evidence(execution, "E3a"))
    assert bench.book.counters.committed(SCOPE, "tokens") == committed
    assert bench.held(SCOPE) == committed


def test_A2_what_never_ran_is_not_billed_under_either_rule() -> None:
    bench = Bench(limited(quota=replace(DAY, bill="reserved")))
    request = bench.arrive(400)
    bench.feed(events.NotSent(bench.execution(), "busy"))
    bench.feed(events.ClientGone(request))
    assert bench.held(SCOPE) == 0


def test_A2_a_quota_of_money_is_held_by_the_prices_of_models() -> None:
    rules = limited(quota=QuotaPolicy("day", nanomoney=100_000))
    prices = {"m": PricePolicy(prompt_per_mtoken=0.1, cached_per_mtoken=0.1, output_per_mtoken=0.4)}
    bench = Bench(replace(rules, prices=prices))
    bench.arrive(500, output_tokens=100)  # 400 × 100 + 100 × 400 billionths
    assert bench.held(SCOPE, "nanomoney") == 80_000
    bench.arrive(200, output_tokens=10)
    decision = bench.refusal()
    money = verdict(decision, "money a day")
    assert (decision.reason, money.value, money.limit) == ("insufficient_quota", 0.000103, 0.0001)


def test_A2_what_was_used_before_a_restart_counts_and_is_told_to_the_ledger_once() -> None:
    bench = Bench(limited(quota=DAY))
    for _ in range(2):
        bench.feed(events.UsageRead((Charge(SCOPE, "tokens", 700), Charge(SCOPE, "nanomoney", 5))))
        assert bench.held(SCOPE) == 700
    bench.arrive(301)
    assert bench.refusal().reason == "insufficient_quota"
    bench.arrive(300)
    serve(bench, prompt_tokens=100, output_tokens=100)
    bench.feed(events.PolicyChanged(replace(limited(quota=DAY), number=2)))
    assert bench.held(SCOPE) == 900


def test_A2_work_that_the_ledger_ended_by_itself_is_committed_with_the_next_heartbeat() -> None:
    bench = Bench(limited(quota=DAY))
    bench.arrive(400, output_tokens=100)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.feed(events.Progressed(execution, 50))
    bench.sample(running=1)
    bench.advance(0.1)
    bench.sample(incarnation="b")
    assert bench.held(SCOPE) == 0
    bench.advance(1.1)
    assert bench.book.counters.committed(SCOPE, "tokens") == 350


def test_A2_lost_limits_of_a_new_period_are_told_again() -> None:
    bench = Bench(limited(quota=DAY))
    bench.feed(events.UsageRead(()))
    bench.lose_asks = True
    bench.feed(events.PolicyChanged(replace(limited(quota=replace(DAY, tokens=500)), number=2)))
    assert bench.book.limit(SCOPE, "tokens") == 1_000
    bench.lose_asks = False
    bench.advance(1.1)
    assert bench.book.limit(SCOPE, "tokens") == 500


def test_A2_a_reload_is_checked_against_what_waits() -> None:
    bench = Bench(policy(interactive=LONG, tenant={"quota": DAY}, pool={"active_requests_max": 1}))
    bench.arrive(100)
    waiting = bench.arrive(500)
    tighter = policy(interactive=LONG, tenant={"quota": replace(DAY, tokens=550)}, pool={"active_requests_max": 1})
    bench.feed(events.PolicyChanged(replace(tighter, number=2)))
    decision = bench.refusal()
    assert (decision.id, decision.reason) == (waiting, "insufficient_quota")


def test_A2_a_reload_that_refuses_full_tenants_reaches_what_waits_for_its_tenant() -> None:
    bench = Bench(policy(interactive=LONG, tenant={"active_tokens_max": 550}))
    bench.arrive(100)
    bench.arrive(500)
    assert bench.decisions()[-1].outcome == "queue"
    refusing = policy(interactive={**LONG, "on_tenant_full": "refuse"}, tenant={"active_tokens_max": 550})
    bench.feed(events.PolicyChanged(replace(refusing, number=2)))
    assert bench.refusal().reason == "tenant_capacity_exceeded"


def test_A2_K26_a_snapshot_shows_committed_and_outstanding_apart() -> None:
    bench = Bench(limited(quota=DAY))
    bench.arrive(400)
    serve(bench, prompt_tokens=250, output_tokens=50)
    bench.arrive(500)
    quota = bench.gate.snapshot(bench.now_s)["tenants"]["acme"]["quota"]
    assert (quota["period"], quota["tokens_max"]) == ("day-1970-01-01", 1_000)
    assert (quota["tokens_committed"], quota["tokens_outstanding"]) == (300, 500)
