"""A reload's new quotas and limits reach what already waits (A2)."""

from __future__ import annotations

from dataclasses import replace

from headworks.core import events
from headworks.core.policy import QuotaPolicy
from tests.core.driver import Bench, policy

LONG = {"ttft_slo_s": None, "wait_s_max": 20.0}
DAY = QuotaPolicy("day", tokens=1_000)


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
