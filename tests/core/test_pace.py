"""The running limit by tokens: the knee of a step, and what follows it (B8). The engine here is a formula."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headworks.core.control import token_promise_s
from headworks.core.limit import RunningLimit
from headworks.core.pace import Pace
from headworks.core.policy import ClassPolicy, PoolPolicy, ReplicaPolicy
from headworks.core.pool import Pool
from headworks.core.types import ReplicaSample
from tests.core.driver import Bench, policy
from tests.core.shared_pool import Counter, shared

PROMISE_S = 0.035


def linear(running: float) -> float:
    """35 ms at 32."""
    return 0.010 + 0.025 * running / 32


def looked(
    limit: RunningLimit, step_s: Callable[[float], float], looks: int, demand: int = 10_000, first_tokens: int = 0
) -> list[int]:
    """Looks half a second apart at an engine that runs as many as it may or as many as want to; the limit after each."""
    found = []
    for _ in range(looks):
        now_s = limit._looked_s + 0.5
        running = min(limit.value, demand)
        limit.reached = demand > limit.value
        limit.look(running, running, step_s(running), PROMISE_S, now_s)
        for _ in range(first_tokens):
            limit.first_token(0.1, 1.0, running, now_s)
        found.append(limit.value)
    return found


# the knee


def test_B8_the_knee_is_where_the_fitted_step_reaches_99_hundredths_of_the_promise() -> None:
    pace = Pace()
    for running in (8, 12, 16, 20):
        pace.saw(running, linear(running), elapsed_s=0.5, clocked=True)
    assert pace.is_fitted
    assert pace.slope_s == pytest.approx(0.025 / 32)
    assert pace.knee(PROMISE_S) == pytest.approx((0.99 * 0.035 - 0.010) / (0.025 / 32))  # 31.6


def test_B8_before_the_slope_was_measured_the_knee_is_that_of_a_line_through_the_origin() -> None:
    pace = Pace()
    assert pace.knee(PROMISE_S) is None
    pace.saw(8, 0.016, elapsed_s=0.5, clocked=True)
    assert not pace.is_fitted
    assert pace.knee(PROMISE_S) == pytest.approx(8 + (0.99 * 0.035 - 0.016) / 0.002)


def test_B8_one_odd_step_is_passed_over_and_two_are_another_engine() -> None:
    pace = Pace()
    for running in (8, 12, 16, 20, 24):
        pace.saw(running, linear(running), elapsed_s=0.5, clocked=True)
    before = pace.knee(PROMISE_S)
    pace.saw(24, 0.2, elapsed_s=0.5, clocked=True)
    assert pace.knee(PROMISE_S) == before
    pace.saw(24, 2 * linear(24), elapsed_s=0.5, clocked=True)
    assert not pace.is_fitted  # what was fitted is forgotten
    assert pace.knee(PROMISE_S) == pytest.approx(24 * 0.99 * 0.035 / (2 * linear(24)))


def test_B8_uneven_answers_need_more_room_and_several_tokens_a_step_less() -> None:
    uneven, several = Pace(), Pace()
    for _ in range(100):
        for number in range(20):
            uneven.answered(0.020 if number < 18 else 0.025, 2.0)
            several.answered(0.008, 0.8)
        uneven.saw(16, 0.020, elapsed_s=0.5, clocked=True)
        several.saw(16, 0.020, elapsed_s=0.5, clocked=True)
    assert uneven.spread == pytest.approx(1.25, abs=0.01)
    assert uneven.knee(PROMISE_S) == pytest.approx(16 + (0.99 * 0.035 / 1.25 - 0.020) / 0.00125, abs=0.2)  # 22.2
    assert several.spread == pytest.approx(0.4, abs=0.01)


def long_answers() -> Pace:
    """Answers take a minute; 20 ms a step with 16 running."""
    pace = Pace()
    for _ in range(200):
        pace.answered(0.020, 60.0)
    for _ in range(50):
        pace.saw(16, 0.020, elapsed_s=0.5, clocked=True)
    return pace


def test_B8_what_is_slow_for_a_moment_breaks_no_promise_of_answers_that_take_a_minute() -> None:
    promise_s, short = 0.022, Pace()
    short.saw(16, 0.020, elapsed_s=0.5, clocked=True)
    for pace, is_slow in ((long_answers(), False), (short, True)):
        for _ in range(6):
            pace.saw(16, 0.025, elapsed_s=0.5, clocked=True)
        assert pace.is_slow(promise_s) == is_slow


def test_B8_an_engine_is_another_one_when_it_was_for_a_quarter_of_an_answer() -> None:
    pace = long_answers()
    for _ in range(29):
        pace.saw(16, 0.040, elapsed_s=0.5, clocked=True)
    assert pace.step_s(16) == pytest.approx(0.020)
    pace.saw(16, 0.040, elapsed_s=0.5, clocked=True)
    assert pace.step_s(16) == pytest.approx(0.040)


def test_B8_an_engine_that_reads_long_prompts_is_the_same_engine() -> None:
    """Fifteen seconds of steps ten times as long: of 50 tokens a second 5 + 45 · (59/60)³⁰ = 32 are left, and not 5."""
    for reads, knee in ((True, 14.9), (False, 2.4)):
        pace = long_answers()
        for _ in range(30):
            pace.saw(16, 0.200, elapsed_s=0.5, clocked=True, reads=reads)
        assert pace.knee(0.030) == pytest.approx(knee, abs=0.3)


def test_B8_steps_that_read_long_prompts_say_nothing_of_how_much_one_sequence_more_costs() -> None:
    pace = Pace()
    for running in (8, 12, 16, 20, 24):
        pace.saw(running, linear(running), elapsed_s=0.5, clocked=True)
    for _ in range(10):
        for running, step_s in ((16, 0.100), (24, 0.200)):
            pace.saw(running, step_s, elapsed_s=0.5, clocked=True, reads=True)
    assert pace.slope_s == pytest.approx(0.025 / 32)


def test_B8_what_a_token_takes_is_time_by_tokens_and_not_the_mean_of_steps_over_time() -> None:
    """Half a time in steps of 10 ms, half of it in steps of 50 ms: six tokens in a tenth of a second."""
    pace = Pace()
    for _ in range(200):
        pace.answered(0.017, 10.0)
    for _ in range(400):
        for step_s in (0.010, 0.050):
            pace.saw(16, step_s, elapsed_s=0.05, clocked=True, reads=True)
    assert pace.step_s(16) == pytest.approx(0.1 / 6, rel=0.02)


def test_B8_a_slope_that_noise_could_have_made_is_not_believed() -> None:
    pace = Pace()
    for _ in range(10):
        for running, step_s in ((14, 0.0195), (16, 0.024), (18, 0.0205), (16, 0.016)):
            pace.saw(running, step_s, elapsed_s=0.5, clocked=True)
    assert not pace.is_fitted


# the limit


def test_B8_only_what_was_unread_at_two_looks_in_a_row_is_a_long_read() -> None:
    """Of answers that take a minute: a quarter of that in steps of 0.2 s is another engine, unless it read all the while."""
    for unread_tokens, stays in (((8192, 8192), True), ((8192, 0), False), ((8191, 8191), False)):
        limit = RunningLimit(None)
        for _ in range(200):
            limit.pace.answered(0.020, 60.0)
        for number in range(40):
            limit.look(16, 16, 0.020 if number < 6 else 0.200, PROMISE_S, 0.5 * number, unread_tokens[number % 2])
        assert (limit.pace.step_s(16.0) < PROMISE_S) == stays, unread_tokens


def test_B8_the_limit_finds_the_knee_from_below_and_stays() -> None:
    limit = RunningLimit(None)
    limit.look(0, 0, None, PROMISE_S, 0.0)
    found = looked(limit, linear, 60)
    assert max(found) <= 32
    assert min(found[16:]) >= 29


def test_B8_a_limit_without_feedback_does_not() -> None:
    """The negative control."""
    limit = RunningLimit(64)
    assert set(looked(limit, linear, 60)) == {64}
    assert linear(64) > PROMISE_S


def test_B8_when_the_knee_halves_the_limit_is_there_within_ten_looks() -> None:
    limit = RunningLimit(None)
    limit.look(0, 0, None, PROMISE_S, 0.0)
    looked(limit, linear, 60)
    slow = looked(limit, lambda running: 0.010 + 0.025 * running / 16, 40)
    assert all(12 <= value <= 16 for value in slow[10:])
    quick = looked(limit, linear, 60)
    assert all(28 <= value <= 32 for value in quick[40:])


def test_B8_the_limit_is_frozen_while_the_application_is_the_limit() -> None:
    limit = RunningLimit(None)
    limit.look(0, 0, None, PROMISE_S, 0.0)
    assert set(looked(limit, linear, 40, demand=6)) == {8}


def test_B8_a_step_that_nearly_all_is_fixed_part_is_no_reason_to_stay_small() -> None:
    limit = RunningLimit(None)
    limit.look(0, 0, None, PROMISE_S, 0.0)
    found = looked(limit, lambda running: 0.028 + 0.007 * running / 32, 60)
    assert min(found[30:]) >= 26


def test_B8_where_a_line_through_the_origin_would_stop_it_one_more_at_a_time_measures_the_slope() -> None:
    limit = RunningLimit(None)
    limit.look(0, 0, None, PROMISE_S, 0.0)
    found = looked(limit, lambda running: 0.030 + 0.005 * running / 32, 60)
    assert min(found[30:]) >= 26


def test_B8_after_a_late_first_token_the_limit_creeps_back_while_somebody_waits_for_it() -> None:
    limit = RunningLimit(None)
    for _ in range(32):
        limit.first_token(0.1, 1.0, running=limit.value, now_s=0.0)
    limit.first_token(0.9, 1.0, running=40, now_s=0.0)
    for look in range(1, 41):
        limit.look(36, 36, None, None, look / 2)
    assert limit.value == 36
    for look in range(41, 61):
        limit.reached = True
        limit.look(36, 36, None, None, look / 2)
    assert limit.value == 78  # 36 · 1.04²⁰, twenty seconds after the last trouble


def test_B8_a_late_first_token_while_few_run_is_hardly_the_limits_fault() -> None:
    limit = RunningLimit(None)
    for _ in range(32):
        limit.first_token(0.1, 1.0, running=limit.value, now_s=0.0)
    limit.first_token(0.9, 1.0, running=4, now_s=1.0)
    assert limit.value == 28


def test_B8_a_promise_one_sequence_alone_would_break_does_not_strangle_the_engine() -> None:
    """A model whose every step takes longer than its class promises: fewer at once would not be quicker."""
    limit = RunningLimit(None)
    limit.look(0, 0, None, PROMISE_S, 0.0)
    found = looked(limit, lambda running: 0.045 + 0.010 * running / 32, 60, first_tokens=4)
    assert min(found) >= 4
    assert found[-1] >= 32
    assert limit.occupancy_ratio(16) is None


def test_B8_without_a_clock_the_answers_tell() -> None:
    limit = RunningLimit(None)
    limit.look(None, 0, None, PROMISE_S, 0.0)
    for round_s in range(60):
        for _ in range(20):
            limit.pace.answered(linear(limit.value), 2.0)
        limit.reached = True
        limit.look(None, limit.value, None, PROMISE_S, float(round_s))
    assert 28 <= limit.value <= 32
    assert limit.pace.since_s == 59.0  # answers that began before the last change do not count


def test_B8_a_first_token_as_late_as_its_prompt_is_long_is_not_the_limits_fault() -> None:
    limit, crowded = RunningLimit(None), RunningLimit(None)
    for _ in range(20):
        limit.first_token(1.0, 1.0, running=8, now_s=0.0, prompt_tokens=10_000)
    assert limit.value >= 8
    for _ in range(12):
        crowded.first_token(0.1, 1.0, running=crowded.value, now_s=0.0, prompt_tokens=1_000)
    assert crowded.value == 20
    crowded.first_token(1.0, 1.0, running=20, now_s=1.0, prompt_tokens=1_000)
    assert crowded.value == 18


def test_B4_occupancy_is_what_runs_over_the_knee_once_it_was_measured() -> None:
    limit = RunningLimit(None)
    limit.look(0, 0, None, PROMISE_S, 0.0)
    assert limit.occupancy_ratio(8) is None
    looked(limit, linear, 60)
    assert limit.occupancy_ratio(15) == pytest.approx(15 / 31.6, abs=0.02)


# who promises


def test_B8_the_tightest_promise_of_the_classes_that_ask_counts() -> None:
    quick = ClassPolicy("interactive", share=10.0, tpot_slo_s=0.035)
    calm = ClassPolicy("batch", share=3.0, tpot_slo_s=0.1)
    counter = Counter(shared(quick, calm, active_requests_max=10))
    desk = counter.bench.gate._desk
    pool, classes = desk.pools["p"], desk.policy.classes
    assert token_promise_s(pool, classes, counter.bench.now_s) == 0.035  # nobody has asked yet: all of them
    counter.arrive("batch", "acme")
    assert token_promise_s(pool, classes, counter.bench.now_s) == 0.1
    counter.arrive("interactive", "acme")
    assert token_promise_s(pool, classes, counter.bench.now_s) == 0.035
    assert token_promise_s(pool, classes, counter.bench.now_s + 600.1) is None
    assert token_promise_s(pool, {"bulk": ClassPolicy("bulk")}, counter.bench.now_s) is None


def test_B8_steps_and_answers_reach_the_limit_through_the_gate() -> None:
    bench = Bench(policy(interactive={"tpot_slo_s": PROMISE_S, "wait_s_max": 60.0, "ttft_slo_s": None}))
    bench.sample()
    for _ in range(12):
        bench.arrive(100, stream=True)
    pool = bench.gate._desk.pools["p"]
    assert pool.requests_limit() == 8
    for look in range(1, 4):  # half a second apart; 25 steps in between: 20 ms each with 8 running
        bench.advance(0.5)
        bench.sample(iterations=(25 * look,), running=8)
    pace = pool.replicas["p/0"].limit.pace
    assert pace.step_s(8) == pytest.approx(0.020)
    assert pool.requests_limit() > 8


def test_B8_where_every_first_token_is_late_that_is_not_taken_for_the_time_it_takes_to_read() -> None:
    limit = RunningLimit(None)
    for _ in range(24):
        limit.first_token(0.1, 1.0, running=limit.value, now_s=0.0, prompt_tokens=1_000)
    assert limit.value == 32
    for second in range(1, 101):
        limit.first_token(1.0, 1.0, running=limit.value, now_s=float(second), prompt_tokens=1_000)
    assert limit.value == 1


def test_B8_only_a_prompt_of_known_size_that_was_alone_says_how_quickly_tokens_are_read() -> None:
    """0.1 ms a token by prompts that found nothing before them. 10,000 of them take the whole second, and that is no fault."""
    limit = RunningLimit(None)
    for _ in range(20):
        limit.first_token(0.1, 1.0, running=8, now_s=0.0, prompt_tokens=1_000)
    for _ in range(40):  # 4,000 bytes of 1,000 tokens; and the last of 40,000, most of which had been read
        limit.first_token(0.1, 1.0, running=8, now_s=0.0, prompt_tokens=4_000, is_sized=False)
        limit.first_token(0.1, 1.0, running=8, now_s=0.0, prompt_tokens=100, ahead_tokens=40_000)
    before = limit.value
    limit.first_token(1.0, 1.0, running=before, now_s=1.0, prompt_tokens=2_000, ahead_tokens=8_000)
    grown = limit.value
    assert grown > before
    limit.first_token(1.0, 1.0, running=grown, now_s=2.0, prompt_tokens=2_000, ahead_tokens=1_000)
    assert limit.value < grown


def test_B8_what_waits_inside_to_be_read_is_no_sign_that_places_are_missing() -> None:
    """Five of ours wait in the engine, and five of ours have not begun: three looks at them lower nothing."""
    pool = Pool(PoolPolicy("p", ("m",), (ReplicaPolicy("p/0"),)))
    replica = pool.replicas["p/0"]
    replica.opening = 5
    for second in range(1, 5):
        replica.sampled(ReplicaSample("p/0", "1", second, second, (second,), 3, 5, 0.1, None, 0), float(second))
    assert replica.limit.value == 8
    replica.opening = 2
    for second in range(5, 9):
        replica.sampled(ReplicaSample("p/0", "1", second, second, (second,), 3, 5, 0.1, None, 0), float(second))
    assert replica.limit.value == 3


def test_B8_what_came_behind_others_is_not_taken_for_a_slow_reading() -> None:
    limit = RunningLimit(None)
    for _ in range(20):
        limit.first_token(0.5, 1.0, running=limit.value, now_s=0.0, prompt_tokens=100, ahead_tokens=40_000)
    before = limit.value
    limit.first_token(0.9, 1.0, running=before, now_s=1.0, prompt_tokens=1_000)
    limit.first_token(0.9, 1.0, running=before, now_s=2.0, prompt_tokens=200, ahead_tokens=800)
    assert limit.value > before, "0.9 s for 1,000 tokens is all that is known of reading so far"
    limit.first_token(0.9, 1.0, running=limit.value, now_s=3.0, prompt_tokens=100)
    assert limit.value < before + 2
