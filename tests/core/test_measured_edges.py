"""Measurements at their edges: nothing seen, no time passed, a page without a counter (C3, B7, B9, D4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headworks.core import events
from headworks.core.limit import RunningLimit
from headworks.core.memory import Memory
from headworks.core.policy import PoolPolicy, PressurePolicy, ReplicaPolicy
from headworks.core.pool import Pool
from headworks.core.predict import DrainRate, PrefillTime
from headworks.core.pressure import Hysteresis, Pressure
from headworks.core.reading import Reading
from headworks.core.types import ReplicaSample, Work
from tests.core.driver import Bench, policy


def test_C3_a_crowd_granted_in_one_instant_is_no_infinite_rate() -> None:
    """A gauge comes back and a hundred are granted at once: the rate stays that of the time it took, and of nothing less."""
    drain = DrainRate()
    for step in range(30):
        drain.granted(100, 1, True, step / 10)
    for _ in range(100):
        drain.granted(100, 1, True, 2.9)
    assert drain.tokens_per_s == pytest.approx(130 * 100 / 2.9, rel=0.05)
    assert (drain.requests_error_ratio or 0.0) < 3.0


def test_C3_a_long_stop_before_a_crowd_is_not_forgotten_by_it() -> None:
    drain = DrainRate()
    drain.granted(100, 1, True, 0.0)
    for _ in range(10):
        drain.granted(100, 1, True, 30.0)
    assert drain.tokens_per_s == pytest.approx(1_000 / 30.0)
    assert drain.requests_error_ratio is not None


def test_B7_a_stated_cap_on_tokens_does_not_keep_that_on_heavy_prompts_cold() -> None:
    settings = PoolPolicy("p", ("m",), (ReplicaPolicy("p/0"),), prefill_tokens_max=100_000, heavy_tokens=8_000)
    reading = Reading(settings, 2.0)
    assert reading.heavy_max == 1
    for _ in range(50):
        reading.observe(8_000, 0.1)
    assert reading.heavy_max == 3, "a quarter of it"


def test_B9_what_is_refused_asks_for_capacity_where_nothing_runs_at_all() -> None:
    pool = Pool(PoolPolicy("p", ("m",), (ReplicaPolicy("p/0"),), active_tokens_max=10_000, pressure=PressurePolicy()))
    pressure = Pressure(pool)
    pool.tokens_max = 10_000
    for second in range(30):
        pressure.refused(50_000)
        pressure.look(float(second))
    assert pressure.switch.scale_asked
    assert pressure.scale_wanted_ratio > 1.0


def test_B8_a_step_of_no_time_says_nothing() -> None:
    limit = RunningLimit(None)
    for _ in range(16):
        limit.pace.answered(0.0, 0.0)
    limit.look(8, 8, None, 0.05, 10.0)
    assert limit.value >= 1


def test_D4_a_page_without_the_counter_is_no_preemption() -> None:
    pool = Pool(PoolPolicy("p", ("m",), (ReplicaPolicy("p/0"),), over_commit=None))
    memory: Memory = next(iter(pool.replicas.values())).memory
    memory.ratio = 2.0
    seen = ReplicaSample("p/0", "1", 1.0, 1.0, (1,), 1, 0, 0.5, None, 500)
    assert not memory.sampled(seen, replace(seen, preemptions_total=None))
    assert not memory.sampled(replace(seen, preemptions_total=None), seen)
    assert memory.ratio == 2.0
    assert memory.sampled(seen, replace(seen, preemptions_total=501))


def test_B2_nobody_who_has_to_wait_is_taken_for_the_one_that_is_tried() -> None:
    prefill = PrefillTime()
    for step in range(20):
        prefill.observe(200, 3_000, 1.5, alone=False, now_s=step / 10)
    prefill.refused(200, 2.0)
    assert prefill.expected(200, None, False, 3.5) is not None
    assert prefill.expected(200, 3_000, False, 3.5) is None


def test_C3_what_a_tenant_finds_in_the_cache_outlasts_a_reload() -> None:
    settings = policy()
    bench = Bench(settings)
    bench.gate._desk.lane("acme", "interactive", "p").cached_ratio = 0.9
    bench.feed(events.PolicyChanged(replace(settings, number=2)))
    assert bench.gate._desk.lane("acme", "interactive", "p").cached_ratio == 0.9


def test_B9_what_runs_engages_pressure_and_what_is_wanted_asks_for_scale_never_the_other_way() -> None:
    wanted, used = Hysteresis(), Hysteresis()
    wanted.weigh(PressurePolicy(), 0.5, 0.9, 0.0)
    used.weigh(PressurePolicy(), 0.78, 0.5, 0.0)
    assert (wanted.engaged, wanted.scale_asked) == (False, True)
    assert (used.engaged, used.scale_asked) == (True, False)


def test_D4_a_large_one_is_not_judged_by_the_peak_of_a_small_one_before_it() -> None:
    bench = Bench(policy(pool={"over_commit": None}))
    lane = bench.gate._desk.lane("acme", "interactive", "p")
    memory = lane.pool.replicas["p/0"].memory
    small = Work(20, 10, 1, 0.0, kv_tokens=20, output_tokens=10, output_tokens_max=10)
    large = Work(2_000, 1_000, 1, 0.0, kv_tokens=2_000, output_tokens=1_000, output_tokens_max=1_000)
    memory.peak_with(small, lane.lengths, 0.0)
    first = memory.peak_with(small, lane.lengths, 0.0)
    assert memory.peak_with(large, lane.lengths, 0.0) > 10 * first


def test_B2_one_that_was_tried_stands_for_those_refused_meanwhile() -> None:
    """Half of the way to the truth with the first of them; as one among all it would be a fiftieth."""
    prefill = PrefillTime()
    for step in range(60):
        prefill.observe(200, 3_000, 2.0, alone=False, now_s=step / 50)
        prefill.observe(3_000, 200, 2.0, alone=False, now_s=step / 50)
    before = prefill.expected(200, 3_000, False, 1.2)
    prefill.refused(200, 1.2)
    prefill.sent(200, 2.3)
    prefill.observe(200, 3_000, 0.2, alone=False, now_s=2.5)
    after = prefill.expected(200, 3_000, False, 2.5)
    assert before is not None and after is not None
    assert before[0] - after[0] > 0.1
