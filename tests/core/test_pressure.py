"""Pressure, its two switches, who is held back by it, and the gates of classes (B4, B9, F4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headworks.core.class_gates import FirstTokens
from headworks.core.effects import Run
from headworks.core.policy import ClassPolicy, GatePolicy, PressurePolicy
from headworks.core.pressure import Hysteresis
from headworks.core.shares import shed_rank_ratio
from headworks.core.types import Decision, Verdict
from tests.core.driver import Bench, policy
from tests.core.shared_pool import Counter, shared

INTERACTIVE = ClassPolicy("interactive", share=10.0, floor_ratio=0.2, ttft_slo_s=1.0, wait_s_max=0.5)
BATCH = ClassPolicy("batch", share=3.0, ttft_slo_s=None, wait_s_max=30.0)
BULK = ClassPolicy("bulk", share=1.0, ttft_slo_s=None, wait_s_max=300.0)


def asked(**pool: object) -> Counter:
    """A pool of three classes with plenty of places, in which interactive work has just asked."""
    counter = Counter(shared(INTERACTIVE, BATCH, BULK, **{"active_requests_max": 100, **pool}))
    counter.arrive("interactive", "acme")
    counter.sent()
    return counter


def started(counter: Counter) -> list[str]:
    """Which of the three classes a newcomer of is sent at once."""
    for service_class in ("bulk", "batch", "interactive"):
        counter.arrive(service_class, "batchco")
    return [who.partition("/")[0] for who in counter.sent()]


def verdict(decision: Decision, unit: str) -> Verdict:
    (found,) = [one for one in decision.verdicts if one.unit == unit]
    return found


# the switches


def test_B9_golden_pressure_engages_above_75_and_releases_below_65_held_30_s_while_scaling_is_asked_above_80() -> None:
    switch, seen = Hysteresis(), []
    for at_s, utilisation in ((0.0, 0.70), (10.0, 0.76), (20.0, 0.81), (30.0, 0.64), (60.0, 0.64)):
        switch.weigh(PressurePolicy(), utilisation, utilisation, at_s)
        seen.append((int(switch.engaged), int(switch.scale_asked)))
    assert seen == [(0, 0), (1, 0), (1, 1), (1, 0), (0, 0)]


def test_B9_a_moment_above_the_release_starts_its_thirty_seconds_anew() -> None:
    switch, seen = Hysteresis(), []
    for at_s, utilisation in ((0.0, 0.8), (1.0, 0.6), (20.0, 0.66), (21.0, 0.6), (50.9, 0.6), (51.0, 0.6)):
        switch.weigh(PressurePolicy(), utilisation, utilisation, at_s)
        seen.append(switch.engaged)
    assert seen == [True, True, True, True, True, False]


def test_B9_thresholds_are_strict_and_scaling_has_a_band_of_its_own() -> None:
    switch, seen = Hysteresis(), []
    for at_s, utilisation in enumerate((0.75, 0.80, 0.801, 0.76, 0.75, 0.79)):
        switch.weigh(PressurePolicy(), utilisation, utilisation, float(at_s))
        seen.append((switch.engaged, switch.scale_asked))
    assert seen == [(False, False), (True, False), (True, True), (True, True), (True, False), (True, False)]


def test_B9_utilisation_is_the_largest_of_reserved_compute_and_memory() -> None:
    bench = Bench(policy(pool={"active_tokens_max": 1_000}))
    found = []
    for tokens, kv, compute in ((300, 0.1, 0.2), (0, 0.5, 0.2), (0, 0.5, 0.7), (600, 0.5, 0.7)):
        if tokens:
            bench.arrive(tokens)
        bench.sample(kv_used_ratio=kv, compute_used_ratio=compute)
        found.append(bench.gate.snapshot(bench.now_s)["pools"]["p"]["pressure"]["utilisation_ratio"])
    assert found == [0.3, 0.5, 0.7, 0.9]


def test_B9_pressure_is_seen_and_released_by_the_samples_alone() -> None:
    bench = Bench(policy())
    bench.sample(kv_used_ratio=0.76)
    assert bench.gate.snapshot(bench.now_s)["pools"]["p"]["pressure"]["engaged"]
    for _ in range(61):
        bench.advance(0.5)
        bench.sample(kv_used_ratio=0.64)
        seen = bench.gate.snapshot(bench.now_s)["pools"]["p"]["pressure"]
        assert seen["engaged"] == (bench.now_s < 130.5)


# shed order


def test_B4_shed_order_is_that_of_the_shares_smallest_first() -> None:
    classes = {one.name: one for one in (INTERACTIVE, BATCH, BULK)}
    assert [shed_rank_ratio(one, classes) for one in (BULK, BATCH, INTERACTIVE)] == [0.0, 0.5, 1.0]
    assert shed_rank_ratio(BULK, {"bulk": BULK}) == 1.0


@pytest.mark.parametrize(
    ("kv", "starts"),
    [
        (0.79, ["bulk", "batch", "interactive"]),
        (0.81, ["batch", "interactive"]),
        (0.83, ["interactive"]),
        (0.86, []),
    ],
)
def test_B4_memory_pressure_holds_bulk_above_80_batch_half_way_and_everybody_above_the_gate(
    kv: float, starts: list[str]
) -> None:
    counter = asked()
    counter.bench.sample(kv_used_ratio=kv, running=1)
    assert started(counter) == starts


@pytest.mark.parametrize(
    ("compute", "starts"),
    [
        (0.84, ["bulk", "batch", "interactive"]),
        (0.86, ["batch", "interactive"]),
        (0.93, ["interactive"]),
        (1.0, ["interactive"]),
    ],
)
def test_B4_compute_pressure_holds_bulk_above_85_and_batch_half_way_to_all_of_it(compute: float, starts: list[str]) -> None:
    counter = asked()
    counter.bench.sample(compute_used_ratio=compute, kv_used_ratio=0.2, running=1)
    assert started(counter) == starts


def test_B4_where_nobody_asks_for_a_first_token_nobody_is_held() -> None:
    counter = Counter(shared(INTERACTIVE, BATCH, BULK, active_requests_max=100))
    counter.bench.sample(kv_used_ratio=0.83, compute_used_ratio=0.99)
    counter.arrive("bulk", "batchco")
    counter.arrive("batch", "batchco")
    assert counter.sent() == ["bulk/batchco", "batch/batchco"]


def test_B4_a_class_below_its_floor_is_not_held() -> None:
    counter = Counter(shared(INTERACTIVE, replace(BULK, floor_ratio=0.02), active_requests_max=100))
    counter.arrive("interactive", "acme")
    counter.bench.sample(kv_used_ratio=0.82)
    counter.arrive("bulk", "batchco", 3)
    assert counter.sent() == ["interactive/acme", "bulk/batchco", "bulk/batchco"]


def test_B4_what_is_held_starts_when_pressure_falls() -> None:
    counter = asked()
    counter.bench.sample(kv_used_ratio=0.82, running=1)
    counter.arrive("bulk", "batchco")
    assert counter.sent() == []
    counter.bench.advance(0.5)
    counter.bench.sample(kv_used_ratio=0.79, running=1, iterations=(1,))
    assert counter.sent() == ["bulk/batchco"]


@pytest.mark.parametrize(
    ("sample", "unit", "reason"),
    [
        ({"compute_used_ratio": 0.9, "kv_used_ratio": 0.1}, "compute_ratio under pressure by exporter", "compute_saturation"),
        ({"compute_used_ratio": 0.2, "kv_used_ratio": 0.82}, "kv_ratio under pressure", "kv_saturation"),
        ({"kv_used_ratio": 0.82}, "kv_ratio under pressure with compute unknown", "kv_saturation"),
    ],
)
def test_B4_the_verdict_names_the_source_and_an_unknown_one_says_that_memory_stands_alone(
    sample: dict[str, float], unit: str, reason: str
) -> None:
    counter = Counter(shared(INTERACTIVE, replace(BULK, wait_s_max=2.0), active_requests_max=100))
    counter.arrive("interactive", "acme")
    counter.bench.sample(running=1, **sample)
    told = counter.decision("bulk", "batchco")
    assert (told.outcome, told.reason) == ("queue", reason)
    assert not verdict(told, unit).passed
    for step in range(5):
        counter.bench.advance(0.5)
        counter.bench.sample(running=1, iterations=(step,), **sample)
    refused = counter.bench.refusal()
    assert refused.reason == reason
    assert not verdict(refused, unit).passed


def test_B4_an_old_value_of_the_exporter_is_unknown() -> None:
    bench = Bench(policy())
    bench.sample(compute_used_ratio=0.99, kv_used_ratio=0.1)
    bench.advance(2.1)
    bench.gate._desk.pools["p"].pressure.look(bench.now_s)
    seen = bench.gate.snapshot(bench.now_s)["pools"]["p"]["pressure"]
    assert (seen["compute_ratio"], seen["compute_source"], seen["kv_ratio"]) == (None, "unknown", 0.1)


# gates of a class


def test_B4_a_class_gate_refuses_newcomers_while_it_holds_and_nobody_who_waits() -> None:
    gated = replace(BATCH, refuse_when=GatePolicy(waiting_requests=1))
    counter = Counter(shared(INTERACTIVE, gated, active_requests_max=1))
    counter.arrive("batch", "acme", 3)
    told = counter.decision("batch", "batchco")
    assert (told.outcome, told.reason) == ("refuse", "class_gate")
    assert told.retry_after_s is not None
    gate = verdict(told, "requests waiting")
    assert (gate.scope, gate.value, gate.limit) == ("class:batch", 2, 1)
    assert counter.decision("interactive", "acme").outcome == "queue"  # another class has no gate
    counter.served(2)
    assert counter.decision("batch", "batchco").outcome == "queue"  # one waits, which the gate allows


def test_B4_what_waits_inside_the_engine_counts_at_the_gate() -> None:
    bench = Bench(policy(interactive={"ttft_slo_s": None, "refuse_when": GatePolicy(waiting_requests=10)}))
    bench.sample(running=4, waiting=11)
    bench.arrive(100)
    assert bench.refusal().reason == "class_gate"
    bench.sample(running=4, waiting=10, iterations=(1,))
    bench.arrive(100)
    assert len(bench.take(Run)) == 1


def test_B4_a_gate_on_compute_needs_somebody_who_knows_it() -> None:
    bench = Bench(policy(interactive={"ttft_slo_s": None, "refuse_when": GatePolicy(compute_ratio=0.9)}))
    bench.sample(compute_used_ratio=None)
    bench.arrive(100)
    assert len(bench.take(Run)) == 1
    bench.sample(compute_used_ratio=0.93)
    bench.arrive(100)
    refused = bench.refusal()
    assert refused.reason == "class_gate"
    assert (verdict(refused, "compute_ratio by exporter").value, verdict(refused, "compute_ratio by exporter").limit) == (
        0.93,
        0.9,
    )


def test_B4_a_gate_on_first_tokens_closes_above_its_percentile_and_opens_when_nothing_is_seen() -> None:
    bench = Bench(policy(interactive={"ttft_slo_s": None, "refuse_when": GatePolicy(ttft_p95_s=1.0)}))
    for _ in range(5):
        bench.arrive(100, stream=True)
    bench.advance(1.5)
    for run in bench.take(Run):
        bench.first_byte(run.execution.id)
    bench.arrive(100)
    refused = bench.refusal()
    assert refused.reason == "class_gate"
    assert verdict(refused, "s to 95 of 100 first tokens").value == pytest.approx(1.5)
    bench.advance(10.1)
    bench.arrive(100)
    assert len(bench.take(Run)) == 1


def test_B4_first_tokens_are_the_95th_percentile_of_the_last_ten_seconds() -> None:
    seen = FirstTokens()
    for number in range(4):
        seen.add(9.0, float(number))
    assert seen.slow_s(4.0) is None  # too few to tell
    for number in range(100):
        seen.add((number + 1) / 100, 20.0)
    assert seen.slow_s(20.0) == 0.95
    assert seen.slow_s(30.1) is None


# what the autoscaler is told


def test_F4_what_was_refused_for_want_of_capacity_is_demand() -> None:
    bench = Bench(policy(interactive={"queue_requests_max": 0}, pool={"active_requests_max": 4, "active_tokens_max": 1_000}))
    bench.sample()
    for _ in range(4):
        bench.arrive(100)
    assert pressed(bench) == (400, 0)
    for _ in range(10):
        bench.arrive(100)
        bench.arrive(100, retry_count=1)  # has been counted when it first came
    bench.advance(10.0)
    bench.sample()
    seen = bench.gate.snapshot(bench.now_s)["pools"]["p"]["pressure"]
    assert seen["demanded_tokens"] == pytest.approx(400 + 1_000)
    assert seen["scale_wanted_ratio"] == pytest.approx(3.5 / 0.8)  # all four places are taken, and fourteen were wanted


def pressed(bench: Bench) -> tuple[float, float]:
    pool = bench.gate.snapshot(bench.now_s)["pools"]["p"]
    return pool["pressure"]["demanded_tokens"], pool["queued_requests"]


def test_F4_a_pool_wants_less_only_well_below_what_it_has() -> None:
    bench = Bench(policy(pool={"active_tokens_max": 1_000}))
    found = []
    for kv in (0.4, 0.7, 0.81, 0.9):
        bench.sample(kv_used_ratio=kv)
        found.append(bench.gate.snapshot(bench.now_s)["pools"]["p"]["pressure"]["scale_wanted_ratio"])
    assert found == pytest.approx([0.5, 1.0, 0.81 / 0.8, 0.9 / 0.8])
