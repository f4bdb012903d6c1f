"""A tenant over its quota counts for less among those that wait, and for as much as before soon after it behaves (B13)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headworks.core import events
from headworks.core.commands import Reserve
from headworks.core.demotion import TOLD_MAX, Demotion, Usage30, quota_rates, told_of_tenants
from headworks.core.effects import Ask, Run
from headworks.core.policy import PricePolicy, QuotaPolicy, RatePolicy, TenantPolicy
from headworks.core.tenant import TenantUse
from headworks.core.types import Budget, Usage
from tests.core.driver import Bench, policy
from tests.core.test_gate_store import empty, standing, together

QUOTA = RatePolicy(tokens_per_s=100.0)


def bench_of(prices: dict[str, PricePolicy] | None = None, **acme: Any) -> Bench:
    made = policy(kind="wfq", interactive={"ttft_slo_s": None}, pool={"active_requests_max": 100})
    acme = {"rate": QUOTA, "demotes": True, "share": 5.0, **acme}
    tenants = {"acme": TenantPolicy("acme", **acme), "batchco": TenantPolicy("batchco", share=5.0)}
    return Bench(replace(made, tenants=tenants, prices=prices or {}))


def runs(bench: Bench, tokens: int, used: int = 0, **changed: Any) -> tuple[float, float]:
    """One request from its arrival to its end, with the weights that the ledger was told."""
    bench.arrive(tokens, **changed)
    (run,) = bench.take(Run)
    weights = [one.weights for ask in bench.take(Ask) for one in ask.commands if isinstance(one, Reserve)]
    bench.first_byte(run.execution.id)
    bench.complete(run.execution.id, used or tokens - 1, 1 if not used else 0)
    return weights[-1]


def test_B13_golden_at_ten_times_its_quota_a_tenth_within_30_s_and_all_of_it_within_60_s_of_behaving() -> None:
    bench = bench_of()
    seen = [runs(bench, 1_000)[1]]
    for _ in range(29):
        bench.advance(1.0)
        seen.append(runs(bench, 1_000)[1])
    assert seen[0] == 5.0
    assert seen == sorted(seen, reverse=True)
    assert bench.gate.snapshot(bench.now_s)["tenants"]["acme"]["weight_ratio"] == pytest.approx(0.1)
    behaving = []
    for _ in range(60):
        bench.advance(1.0)
        behaving.append(runs(bench, 100)[1] / 5.0)
    assert behaving[0] == pytest.approx(0.1, rel=0.1)
    assert behaving[-1] == 1.0 and min(behaving[31:]) >= 0.9


def test_B13_it_is_not_refused_for_what_it_is_demoted_for() -> None:
    """The same tenant without `demote` is refused at its 1,001st token."""
    bench = bench_of(quota=QuotaPolicy(period="hour", tokens=500))
    for _ in range(20):
        bench.arrive(400)
    assert len(bench.take(Run)) == 20
    refused = bench_of(demotes=False)
    refused.arrive(1_000)
    refused.arrive(1)
    assert refused.refusal().reason == "rate_limit_exceeded"


def test_B13_other_limits_refuse_all_the_same() -> None:
    bench = bench_of(rate=RatePolicy(tokens_per_s=100.0, requests_per_s=1.0, burst_requests=2))
    for _ in range(3):
        bench.arrive(10)
    assert len(bench.take(Run)) == 2
    assert bench.refusal().reason == "rate_limit_exceeded"


def test_B13_what_was_estimated_is_corrected_by_what_was_used() -> None:
    """30 requests of 1,000 that used 10 each: 300 tokens in half a minute are within 100 a second."""
    bench = bench_of()
    for _ in range(30):
        runs(bench, 1_000, used=10)
    assert bench.gate.snapshot(bench.now_s)["tenants"]["acme"]["weight_ratio"] == 1.0


def test_B13_what_never_ran_does_not_count() -> None:
    bench = bench_of()
    bench.arrive(30_000)
    bench.feed(events.NotSent(bench.execution(), "connect"))
    assert bench.gate.snapshot(bench.now_s)["tenants"]["acme"]["weight_ratio"] == 1.0


def test_B13_a_second_attempt_counts_once() -> None:
    bench = bench_of()
    bench.arrive(6_000)
    bench.feed(events.NotSent(bench.execution(), "late"))
    assert len(bench.take(Run)) == 1
    assert bench.gate.snapshot(bench.now_s)["tenants"]["acme"]["weight_ratio"] == pytest.approx(0.5)


def test_B13_the_quota_rate_is_the_rate_or_else_the_periods() -> None:
    day = QuotaPolicy(period="day", tokens=864_000, nanomoney=86_400)
    assert quota_rates(TenantPolicy("a", rate=QUOTA, quota=day)) == (100.0, None)
    assert quota_rates(TenantPolicy("a", quota=day)) == (10.0, 1.0)
    assert quota_rates(TenantPolicy("a", rate=RatePolicy(requests_per_s=1.0), quota=day)) == (10.0, 1.0)
    assert quota_rates(TenantPolicy("a")) == (None, None)


def test_B13_a_quota_in_money_demotes_by_what_was_paid() -> None:
    """0.36 an hour are 0.0001 a second; 60 tokens at 100 for a million come to twice that over half a minute."""
    bench = bench_of(
        {"m": PricePolicy(100.0, 100.0, 100.0)}, rate=None, quota=QuotaPolicy(period="hour", nanomoney=360_000_000)
    )
    runs(bench, 60)
    assert bench.gate.snapshot(bench.now_s)["tenants"]["acme"]["weight_ratio"] == pytest.approx(0.5)


def test_B13_the_record_says_what_it_weighs() -> None:
    bench = bench_of()
    runs(bench, 6_000)
    bench.arrive(10)
    (row,) = [one for one in bench.decisions()[-1].verdicts if one.unit.startswith("share")]
    assert (row.check, row.scope, row.value, row.limit, row.passed) == ("fairness", "tenant:acme", 2.5, 5.0, True)


def test_B13_a_reload_demotes_and_promotes() -> None:
    bench = bench_of(demotes=False, rate=None)
    settings = bench.gate._desk.policy
    for number, demotes, ratio in ((2, True, 1 / 6), (3, False, 1.0)):
        tenants = {**settings.tenants, "acme": replace(settings.tenants["acme"], rate=QUOTA, demotes=demotes)}
        bench.feed(events.PolicyChanged(replace(settings, version=f"v{number}", number=number, tenants=tenants)))
        if demotes:
            runs(bench, 18_000)
        assert bench.gate.snapshot(bench.now_s)["tenants"]["acme"]["weight_ratio"] == pytest.approx(ratio)


def test_B13_the_window_slides_a_second_at_a_time_and_forgets() -> None:
    meter = Usage30(10.0)
    meter.draw(300, 0.0)
    assert [meter.rate_per_s(at_s) for at_s in (0.5, 29.9, 30.0)] == [10.0, 10.0, 0.0]
    meter.draw(60, 31.0)
    meter.give_back(90, 32.0)
    assert meter.rate_per_s(32.0) == 0.0, "never below zero"
    assert meter.rate_per_s(1_000.0) == 0.0
    assert Demotion().ratio(0.0) == 1.0


def test_B13_turns_follow_the_weight() -> None:
    """Both want all there is; acme used six times its quota: of what is served from then on it has about a sixth."""
    bench = bench_of(share=5.0)
    bench.gate._desk.pools["p"].change_policy(replace(bench.gate._desk.pools["p"].policy, active_requests_max=1), None)
    runs(bench, 18_000)
    for _ in range(40):
        bench.arrive(100)
        bench.arrive(100, tenant="batchco")
    served = {"acme": 0, "batchco": 0}
    for _ in range(35):
        (run,) = bench.take(Run)
        served[run.decision.key.tenant] += 1
        bench.first_byte(run.execution.id)
        bench.feed(events.Stopped(run.execution.id, Usage(99, 0, 1, 0.0, "stop", True), False))
        bench.advance(0.01)
    assert 4 <= served["acme"] <= 7


def test_B13_whose_quota_is_nothing_weighs_next_to_nothing() -> None:
    """`money: 0` with `demote`: what is left when everybody else has had theirs."""
    bench = bench_of({"m": PricePolicy(1.0, 1.0, 1.0)}, rate=None, quota=QuotaPolicy(nanomoney=0))
    seen = [runs(bench, 1_000)[1], runs(bench, 1_000)[1]]
    assert seen == pytest.approx([5.0, 5.0e-6])


def test_B13_a_session_is_opened_by_the_weight_its_tenant_has_now() -> None:
    bench = bench_of()
    for _ in range(30):
        bench.advance(1.0)
        runs(bench, 1_000)
    opens = {"session": "session:acme/key/1", "opens": Budget(1_000, 60.0), "prompt_tokens": 0, "output_tokens_max": 0}
    bench.arrive(1, **opens)
    weights = [one.weights for ask in bench.take(Ask) for one in ask.commands if isinstance(one, Reserve)]
    assert weights[-1][1] == pytest.approx(0.5)


def test_B13_gateways_of_one_ledger_weigh_a_tenant_by_what_all_of_them_granted() -> None:
    """Two grant 100 tokens a second each, which is its rate: together it is twice that, and weighs half at both."""
    book = empty()
    tenants = {"acme": TenantPolicy("acme", rate=QUOTA, demotes=True, share=5.0)}
    settings = replace(policy(kind="wfq", interactive={"ttft_slo_s": None}, pool={"active_requests_max": 100}), tenants=tenants)
    fleet = [standing(book, f"boot-{number}", settings) for number in range(2)]
    together(3.0, *fleet)
    for _ in range(30):
        for bench in fleet:
            runs(bench, 100)
        together(1.0, *fleet)
    assert [ratio_of(bench) for bench in fleet] == pytest.approx([0.5, 0.5], rel=0.07)
    assert [runs(bench, 1)[1] for bench in fleet] == pytest.approx([2.5, 2.5], rel=0.07)
    alone = fleet[0]
    alone.advance(9.0)  # the lease of the other is over
    assert ratio_of(alone) == 1.0
    together(31.0, *fleet)
    assert [ratio_of(bench) for bench in fleet] == [1.0, 1.0]


def ratio_of(bench: Bench) -> float:
    ratio: float = bench.gate.snapshot(bench.now_s)["tenants"]["acme"]["weight_ratio"]
    return ratio


def test_B13_a_heartbeat_tells_of_a_bounded_number_of_tenants_those_granted_most() -> None:
    uses = [TenantUse(TenantPolicy(f"t{number}", rate=QUOTA, demotes=True)) for number in range(TOLD_MAX + 10)]
    for number, use in enumerate(uses):
        assert use.demotion is not None and use.demotion.tokens is not None
        use.demotion.tokens.draw(number, 1.0)
    told = list(told_of_tenants(uses, 1.0))
    assert told[0] == (f"granted:t{TOLD_MAX + 9}", (TOLD_MAX + 9, 0))
    assert len(told) == TOLD_MAX
