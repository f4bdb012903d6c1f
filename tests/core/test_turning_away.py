"""Refused before it is read: a client that has used up what it may (A2, B5, B15, decision 57)."""

from __future__ import annotations

from dataclasses import asdict, replace
from random import Random
from typing import Any

from headworks.core import events
from headworks.core.effects import Record, Reply, TurnedAway
from headworks.core.policy import Policy, QuotaPolicy, RatePolicy
from headworks.core.types import Decision, Request, RequestKey, Row
from tests.core.driver import Bench, policy

LONG = {"ttft_slo_s": None, "wait_s_max": 20.0}
RATE = "rate_limit_exceeded"
ONE_A_SECOND = RatePolicy(requests_per_s=1.0, burst_requests=1)
SEED = 11


def limited(**tenant: Any) -> Policy:
    return policy(interactive=LONG, tenant=tenant)


def knocks(bench: Bench, size_bytes: int = 400, **changed: Any) -> TurnedAway | None:
    """One more request of acme's, of which only the size is known."""
    fields: dict[str, Any] = {"id": "req", "key": RequestKey("acme", "req"), "key_given": False, "fingerprint": ""}
    fields |= {"client": "acme/key", "service_class": "interactive", "model": "m", "pool": "p", "prompt_bytes": size_bytes}
    fields |= {"prompt_tokens": None, "output_tokens_max": 1, "samples": 1, "stream": False, "prefix": (), "session": None}
    fields |= {"retry_count": 0, "arrived_s": bench.now_s, "start_by_s": float("inf"), "finish_by_s": bench.now_s + 55.0}
    turned = bench.gate.turn_away(Request(**(fields | changed)), bench.now_s)
    assert bench.gate.check() == [], "nothing that runs or waits was touched"
    return turned


def of_tenant(decision: Decision) -> list[Row]:
    """What was compared of it; how many tokens a request asks for is known better once it was read."""
    return [row for row in decision.rows if row[0] == "tenant" and row[4] != "tokens at once"]


def spent(**tenant: Any) -> Bench:
    """A tenant that has just been refused."""
    bench = Bench(limited(**tenant))
    bench.arrive(10)
    bench.arrive(10)
    bench.refusal()
    return bench


def test_B5_nobody_is_looked_at_before_one_of_his_was_refused() -> None:
    bench = Bench(limited(rate=ONE_A_SECOND))
    bench.arrive(10)
    assert list(bench.gate.shut) == []
    bench.arrive(10)
    assert list(bench.gate.shut) == ["acme/key"]


def test_B5_of_more_clients_than_are_kept_the_one_refused_longest_ago_is_forgotten() -> None:
    bench = Bench(limited(rate=ONE_A_SECOND))
    bench.arrive(10)
    for number in range(10_000):
        bench.arrive(10, client=f"acme/{number}")
    assert (len(bench.gate.shut), next(iter(bench.gate.shut))) == (10_000, "acme/0")
    bench.arrive(10, client="acme/0")
    bench.arrive(10, client="acme/new")
    shut = list(bench.gate.shut)
    assert (len(shut), shut[0], shut[-2:]) == (10_000, "acme/2", ["acme/0", "acme/new"])


def test_B5_over_his_rate_he_is_refused_before_he_is_read_with_numbers_and_a_slot() -> None:
    bench = spent(rate=ONE_A_SECOND)
    turned = knocks(bench)
    assert turned is not None
    decision = turned.decision
    assert (decision.reason, decision.decided_s, decision.gateway, decision.policy_version) == (RATE, 100.0, "g1", "v1")
    assert decision.rows == (
        ("tenant", "tenant:acme", 2.0, 1, "requests at once", "rate_limit_exceeded"),
        ("memory", "pool:p", 11, 40_000, "tokens", "queue_timeout"),
        ("compute", "pool:p", 2, 8, "requests", "queue_timeout"),
    ), "his own limit, and beside it what there was in the pool (A2)"
    assert decision.retry_after_s == 2.0, "after the one who was told a second (B2, B15)"
    assert turned.outcome().outcome == "refused"


def test_B5_when_there_is_something_to_be_had_again_he_is_read() -> None:
    bench = spent(rate=ONE_A_SECOND)
    bench.advance(1.0)
    assert knocks(bench) is None
    assert list(bench.gate.shut) == []
    bench.arrive(10)
    assert bench.decisions()[-1].outcome == "admit"


def test_B5_a_bucket_of_tokens_refuses_unread_only_where_not_even_one_is_left() -> None:
    bench = Bench(limited(rate=RatePolicy(tokens_per_s=100.0, burst_tokens=300)))
    bench.arrive(290)
    bench.arrive(11)
    assert bench.refusal().reason == "rate_limit_exceeded"
    assert knocks(bench) is None, "a smaller one would fit"
    bench.arrive(10)
    bench.arrive(1)
    bench.refusal()
    turned = knocks(bench, size_bytes=384)
    assert turned is not None
    verdict = turned.decision.rows[0]
    assert verdict == ("tenant", "tenant:acme", 300 + turned.decision.work.tokens, 300, "tokens at once", "rate_limit_exceeded")
    assert (turned.decision.work.basis, turned.decision.work.output_tokens) == ("bytes", 1), (
        "what it asks for is told by its size"
    )


def test_A2_a_quota_that_is_used_up_and_a_frozen_tenant_are_refused_unread() -> None:
    bench = Bench(limited(quota=QuotaPolicy("day", tokens=20)))
    bench.arrive(20)
    bench.arrive(1)
    assert bench.refusal().reason == "insufficient_quota"
    turned = knocks(bench)
    assert turned is not None and turned.decision.reason == "insufficient_quota"
    assert turned.decision.retry_after_s is not None and turned.decision.retry_after_s > 0.0
    bench = Bench(limited(frozen=True))
    bench.arrive(1)
    assert bench.refusal().reason == "tenant_frozen"
    turned = knocks(bench)
    assert turned is not None and (turned.decision.reason, turned.decision.retry_after_s) == ("tenant_frozen", None)


def test_B15_a_retry_before_its_slot_spends_the_budget_and_one_in_it_keeps_it() -> None:
    limits = {"rate": RatePolicy(requests_per_s=0.5, burst_requests=1), "retry_ratio": 0.1}
    bench = spent(**limits)  # told to come back in two seconds
    told = [turned for _ in range(4) if (turned := knocks(bench, retry_count=1))]
    assert [turned.retry_kind for turned in told] == ["early", "early", "early", "over_budget"]
    assert [turned.decision.reason for turned in told] == [RATE, RATE, RATE, "retry_budget_exceeded"]
    bench.advance(1.9)
    kept = knocks(bench, retry_count=1)
    assert kept is not None and kept.retry_kind == "ticket_kept"


def test_B5_whatever_else_decides_is_left_to_those_who_read() -> None:
    bench = spent(rate=ONE_A_SECOND)
    bench.feed(events.Drain(bench.now_s + 5.0))
    assert knocks(bench) is None, "draining is another answer"
    bench = spent(rate=ONE_A_SECOND)
    bench.feed(events.PolicyChanged(replace(limited(rate=ONE_A_SECOND), observe=True)))
    assert knocks(bench) is None, "nobody is refused there"
    bench = spent(rate=ONE_A_SECOND)
    bench.feed(events.PolicyChanged(limited()))
    assert knocks(bench) is None, "there is no such limit any more"


def test_F3_who_is_observed_is_read_though_one_of_his_was_refused_before() -> None:
    bench = spent(rate=ONE_A_SECOND)
    assert knocks(bench) is not None
    observed = limited(rate=ONE_A_SECOND)
    observed.tenants["acme"] = replace(observed.tenants["acme"], observe=True)
    bench.feed(events.PolicyChanged(observed))
    assert knocks(bench) is None


def test_B5_unread_and_read_he_is_told_the_same_of_his_limits() -> None:
    """Random limits and moments: whoever is turned away would have been refused, for that reason and with those numbers."""
    random, told = Random(SEED), 0
    for _ in range(300):
        tokens_per_s, debt = random.choice(((None, 0), (40.0, 0), (40.0, 20)))
        rate = RatePolicy(
            tokens_per_s=tokens_per_s,
            burst_tokens=60 if tokens_per_s else None,
            debt_tokens_max=debt,
            requests_per_s=random.choice((0.5, 3.0)),
            burst_requests=3,
        )
        limits = limited(rate=rate, client_rate=random.choice((None, ONE_A_SECOND)))
        read, unread = benches = [Bench(limits), Bench(limits)]
        unread.gate.shut["acme/key"] = None
        for _ in range(random.randrange(1, 6)):
            tokens, pause_s = random.randrange(1, 40), random.choice((0.0, 0.1, 0.7))
            for bench in benches:
                bench.arrive(tokens)
                bench.advance(pause_s)
        turned = knocks(unread, size_bytes=7)
        if turned is None:
            continue
        told += 1
        read.take(Reply)
        read.arrive(1, prompt_bytes=7, prompt_tokens=None)
        away, decision = turned.decision, read.refusal()
        assert (away.reason, away.retry_after_s) == (decision.reason, decision.retry_after_s), f"seed {SEED}"
        assert of_tenant(away) == of_tenant(decision)
    assert told > 50, "it was about something"


def test_F2_its_decision_and_its_outcome_are_those_of_any_refusal_but_for_what_nobody_foresaw() -> None:
    bench = spent(rate=ONE_A_SECOND)
    turned = knocks(bench)
    assert turned is not None
    bench.take(Record)
    bench.arrive(10, prompt_bytes=400, prompt_tokens=None, stream=False)
    records = [effect.record for effect in bench.take(Record)]
    by_kind = {type(record): asdict(record) for record in records}
    unlike = {"id", "key", "rows", "forecast", "work", "retry_after_s"}
    decision, outcome = asdict(turned.decision), asdict(turned.outcome())
    assert {name for name, value in by_kind[Decision].items() if value != decision[name]} <= unlike
    unlike = {"id", "key", "work", "request", "predicted_ttft_s", "predicted_total_s"}
    assert {name for name, value in by_kind[type(turned.outcome())].items() if value != outcome[name]} <= unlike
