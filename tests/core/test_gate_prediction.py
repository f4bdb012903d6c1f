"""What the gate predicts, and what it does about it: waits, first tokens, the engine's own gauges."""

from __future__ import annotations

import pytest

from headworks.core import events
from headworks.core.effects import Abort, Run
from headworks.core.types import Decision, Verdict
from tests.core.driver import Bench, drained_at, policy

LONG = {"ttft_slo_s": None, "wait_s_max": 2.0}


def verdict(decision: Decision, check: str, unit: str) -> Verdict:
    (found,) = [one for one in decision.verdicts if one.check == check and one.unit == unit]
    return found


def test_B2_W_est_is_45_over_10_and_the_refusal_carries_both_reasons() -> None:
    settings = policy(
        interactive={"wait_s_max": 60.0, "ttft_slo_s": 1.0}, pool={"active_requests_max": 1}, kind="fifo", drop_late=False
    )
    bench = Bench(settings)
    drained_at(bench, per_s=10.0, tokens=100, waiting=45)
    bench.feed(events.PolicyChanged(_predictive(settings)))
    bench.sample(running=32, waiting=0, kv_used_ratio=0.88, iterations=(5,))
    bench.effects.clear()
    bench.arrive(100)
    refused = bench.refusal()
    assert refused.forecast.wait_s == pytest.approx(4.5)
    assert refused.reason == "queue_delay_and_kv_saturation"
    assert refused.retry_after_s == pytest.approx(4.5)  # sent as Retry-After: 5
    assert (verdict(refused, "memory", "kv_ratio").value, verdict(refused, "memory", "kv_ratio").limit) == (0.88, 0.85)


def _predictive(settings: object) -> object:
    from dataclasses import replace

    from headworks.core.policy import DisciplinePolicy, Policy

    assert isinstance(settings, Policy)
    pool = replace(settings.pools["p"], discipline=DisciplinePolicy("predictive_ttft"))
    return replace(settings, version="v2", number=2, pools={"p": pool})


def test_B3_waiting_inside_the_engine_counts_and_kv_below_the_gate_passes() -> None:
    settings = policy(
        interactive={"wait_s_max": 60.0, "ttft_slo_s": 1.0}, pool={"active_requests_max": 1}, kind="fifo", drop_late=False
    )
    bench = Bench(settings)
    drained_at(bench, per_s=10.0, tokens=100, waiting=0)
    bench.feed(events.PolicyChanged(_predictive(settings)))
    bench.sample(running=40, waiting=60, kv_used_ratio=0.82, iterations=(5,))
    bench.effects.clear()
    bench.arrive(100)
    refused = bench.refusal()
    assert refused.forecast.wait_s == pytest.approx(6.0)
    assert refused.reason == "queue_delay_exceeded"
    assert verdict(refused, "memory", "kv_ratio").passed
    assert refused.retry_after_s == pytest.approx(6.0)


def test_B2_a_pool_whose_drain_rate_nobody_knows_lets_five_wait_and_no_crowd() -> None:
    bench = Bench(
        policy(interactive={"wait_s_max": 1.0, "ttft_slo_s": 1.0}, pool={"active_requests_max": 1}, kind="predictive_ttft")
    )
    for _ in range(1 + 5):
        bench.arrive(100)
    assert [decision.outcome for decision in bench.decisions()] == ["admit", "queue", "queue", "queue", "queue", "queue"]
    bench.arrive(100)
    refused = bench.refusal()
    assert refused.reason == "queue_delay_exceeded"
    blind = verdict(refused, "time", "requests waiting at an unknown rate")
    assert (blind.value, blind.limit) == (6, 5)


def test_B2_a_first_token_is_foreseen_behind_the_prompts_that_are_being_read() -> None:
    pool = {"active_requests_max": 99, "buffer_ratio": 1.0}  # no margin while too few were seen: what is fitted is shown
    bench = Bench(policy(interactive={"wait_s_max": 1.0, "ttft_slo_s": 1.0}, pool=pool, kind="predictive_ttft"))
    bench.arrive(1_000, stream=True)  # goes on decoding, so that nobody after it is alone
    bench.first_byte(bench.execution())
    for tokens, took_s in ((500, 0.1), (1_000, 0.2), (500, 0.1), (1_000, 0.2), (500, 0.1), (1_000, 0.2)):
        bench.arrive(tokens, stream=True)
        bench.advance(took_s)
        bench.first_byte(bench.execution())
    bench.arrive(1_000, stream=True)
    for _ in range(3):
        bench.arrive(1_000, stream=True)
    # In tokens as at the beginning of a prompt (core/unread.py) 500 are 503, 1,000 are 1,012 and 2,000 are 2,050: so the line
    # through what was seen takes 0.1965 ms for each, and 1.2 ms besides.
    seen_s = [decision.forecast.prefill_s for decision in bench.decisions()[-3:]]
    assert seen_s == pytest.approx([0.3988, 0.5976, 0.7965], abs=0.001)
    bench.arrive(2_000, stream=True)
    refused = bench.refusal()
    assert (refused.reason, refused.forecast.ttft_s) == (
        "queue_delay_exceeded",
        pytest.approx(1.199, abs=0.001),
    )


def test_B2_a_wait_past_the_horizon_is_not_retryable() -> None:
    settings = policy(
        interactive={"wait_s_max": 600.0, "ttft_slo_s": 1.0, "queue_requests_max": 5_000},
        pool={"active_requests_max": 1},
        kind="fifo",
        drop_late=False,
    )
    bench = Bench(settings)
    drained_at(bench, per_s=10.0, tokens=100, waiting=1_000)
    bench.feed(events.PolicyChanged(_predictive(settings)))
    bench.effects.clear()
    bench.arrive(100)
    assert bench.refusal().retry_after_s == pytest.approx(100.0)


def test_B3_over_the_kv_gate_a_request_waits_for_it_to_clear() -> None:
    bench = Bench(policy(interactive=LONG))
    bench.sample(kv_used_ratio=0.9)
    bench.arrive(100)
    assert bench.take(Run) == []
    bench.advance(0.5)
    bench.sample(kv_used_ratio=0.8)
    assert len(bench.take(Run)) == 1


def test_B3_waited_on_the_kv_gate_in_vain_is_told_so() -> None:
    bench = Bench(policy(interactive=LONG))
    bench.sample(kv_used_ratio=0.9)
    bench.arrive(100)
    for _ in range(5):
        bench.advance(0.5)
        bench.sample(kv_used_ratio=0.9)
    assert bench.refusal().reason == "kv_saturation"


def test_B3_a_stalled_engine_gets_nothing_and_missing_gauges_are_not_zero() -> None:
    bench = Bench(policy(interactive=LONG))
    bench.sample(iterations=(7,), running=3)
    for _ in range(11):
        bench.advance(0.5)
        bench.sample(iterations=(7,), running=3)
    bench.arrive(100)
    assert bench.refusal().reason == "no_replica"
    bench.sample(iterations=(8,), running=3, kv_used_ratio=None)
    bench.arrive(100)
    assert len(bench.take(Run)) == 1
    assert not [one for one in bench.decisions()[-1].verdicts if one.unit == "kv_ratio"]


def test_B6_deadline_at_ingress_is_the_smallest_of_three() -> None:
    from headworks.core.decide import start_by_s

    for wait_s_max, expected_s in ((60.0, 0.985), (0.5, 0.5)):
        bench = Bench(policy(interactive={"wait_s_max": wait_s_max}))
        bench.arrive(100)
        (life,) = bench.gate._desk.runs.values()
        assert start_by_s(life, 0.015) - life.request.arrived_s == pytest.approx(expected_s)


def test_B6_queue_is_bounded_and_a_full_one_says_so() -> None:
    bench = Bench(policy(interactive={**LONG, "queue_requests_max": 2}, pool={"active_requests_max": 1}))
    for _ in range(3):
        bench.arrive(100)
    assert bench.effects and not bench.take(Abort)
    bench.arrive(100)
    refused = bench.refusal()
    assert refused.reason == "queue_full"
    assert (verdict(refused, "fairness", "queued requests").value, verdict(refused, "fairness", "queued requests").limit) == (
        3,
        2,
    )
