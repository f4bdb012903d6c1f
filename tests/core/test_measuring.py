"""Stats, prediction, return slots, the adaptive limit, the clock proof: each alone, with the numbers written out."""

from __future__ import annotations

import random

import pytest

from headworks.core.evidence import ClockProof, iteration_s
from headworks.core.limit import RunningLimit
from headworks.core.predict import DrainRate, PrefillTime
from headworks.core.slots import ReturnSlots
from headworks.core.stats import FittedLine, FittedPlane, Window
from headworks.core.types import ReplicaSample


def test_window_quantile_is_the_smallest_value_that_covers_the_ratio() -> None:
    window = Window(4)
    for value in (5.0, 1.0, 4.0, 2.0, 3.0):  # 5.0 has left the window of four
        window.add(value)
    assert [window.quantile(ratio) for ratio in (0.0, 0.25, 0.5, 0.51, 0.75, 1.0)] == [1.0, 1.0, 2.0, 3.0, 3.0, 4.0]


def test_window_agrees_with_sorting_on_random_histories() -> None:
    seed = 20261129
    print(f"python -m pytest tests/core/test_measuring.py  # seed {seed}")
    rng = random.Random(seed)
    window, plain = Window(50), []
    for _ in range(500):
        value = rng.choice([0.1, 0.2, 0.3, rng.random()])
        window.add(value)
        plain = [*plain, value][-50:]
        assert window.quantile(0.95) == sorted(plain)[-(-95 * len(plain) // 100) - 1]


def test_line_finds_intercept_and_slope() -> None:
    line = FittedLine(keep_ratio=1.0)
    for x in (100, 200, 400):
        line.add(x, 0.05 + 0.001 * x)
    assert line.at(1000) == pytest.approx(1.05)


def test_line_never_falls_with_more_work_and_never_goes_below_zero() -> None:
    falling, steep = FittedLine(keep_ratio=1.0), FittedLine(keep_ratio=1.0)
    for x in (1, 2, 3):
        falling.add(x, 10.0 - x)
        steep.add(x + 10, float(x))
    assert falling.at(5) == falling.at(1) == pytest.approx(8.0)
    assert steep.at(0) == 0.0
    assert steep.at(12) == pytest.approx(12 * (11 + 24 + 39) / (121 + 144 + 169))


def test_B2_drain_rate_counts_only_gaps_in_which_work_waited() -> None:
    drain = DrainRate()
    drain.granted(100, 1, backlogged=False, now_s=0.0)
    drain.granted(100, 1, backlogged=True, now_s=50.0)  # the 50 s before were idle: they say nothing
    for step in range(1, 5):
        drain.granted(100, 1, backlogged=True, now_s=50.0 + 0.1 * step)
    assert drain.requests_per_s == pytest.approx(10.0)
    assert drain.tokens_per_s == pytest.approx(1000.0)


def test_C4_drain_rate_is_unknown_not_zero_before_it_was_measured() -> None:
    drain = DrainRate()
    for step in range(4):
        drain.granted(100, 1, backlogged=True, now_s=0.1 * step)
    assert drain.tokens_per_s is None  # three gaps are not enough


def test_drain_rate_forgets_a_gap_whose_queue_emptied_by_leaving_clients() -> None:
    drain = DrainRate()
    for step in range(5):
        drain.granted(100, 1, backlogged=True, now_s=0.1 * step)
    drain.emptied()
    drain.granted(100, 1, backlogged=True, now_s=100.0)
    assert drain.requests_per_s == pytest.approx(10.0)


def upper_s(prefill: PrefillTime, prompt_tokens: int, ahead_tokens: int, *, alone: bool, now_s: float) -> float:
    """What is fitted and what 95 % of its like stayed under beyond that; 0.0 where nothing is known."""
    expected = prefill.expected(prompt_tokens, ahead_tokens, alone, now_s)
    if expected is None:
        return 0.0
    fitted_s, beyond = expected
    return fitted_s + (beyond.quantile(0.95) if beyond is not None and len(beyond) else 0.0)


def test_prefill_time_covers_what_recent_requests_took_beyond_the_line() -> None:
    prefill = PrefillTime()
    for step in range(100):
        prefill.observe(100, 0, 0.1 if step % 2 else 0.3, alone=False, now_s=step / 10)
    assert 0.28 <= upper_s(prefill, 100, 0, alone=False, now_s=10.0) <= 0.33


def test_prefill_time_under_load_does_not_keep_an_idle_engine_idle() -> None:
    prefill = PrefillTime()
    prefill.observe(100, 0, 0.02, alone=True, now_s=1.0)
    for _ in range(50):
        prefill.observe(100, 0, 3.0, alone=False, now_s=1.0)
    assert upper_s(prefill, 100, 0, alone=False, now_s=2.0) >= 2.8
    assert upper_s(prefill, 100, 0, alone=True, now_s=2.0) == pytest.approx(0.02)


def test_prefill_time_under_load_is_forgotten_when_nobody_measures_it_any_more() -> None:
    prefill = PrefillTime()
    prefill.observe(100, 0, 0.02, alone=True, now_s=1.5)
    for _ in range(50):
        prefill.observe(100, 0, 3.0, alone=False, now_s=1.0)
    assert upper_s(prefill, 100, 0, alone=False, now_s=6.8) >= 2.8
    assert upper_s(prefill, 100, 0, alone=False, now_s=7.0) == pytest.approx(0.02)
    for _ in range(10):
        prefill.observe(100, 0, 0.1, alone=False, now_s=8.0)
    assert upper_s(prefill, 100, 0, alone=False, now_s=8.0) == pytest.approx(0.1)


def test_B2_one_slow_answer_of_an_idle_engine_does_not_refuse_for_ever() -> None:
    """A first answer takes seconds on many engines; whoever is refused by it cannot show that it was the only one."""
    prefill = PrefillTime()
    prefill.observe(100, 0, 5.0, alone=True, now_s=1.0)
    assert upper_s(prefill, 100, 0, alone=True, now_s=2.0) == pytest.approx(5.0)
    assert upper_s(prefill, 100, 0, alone=True, now_s=4.1) == 0.0
    prefill.observe(100, 0, 0.02, alone=True, now_s=4.2)
    assert upper_s(prefill, 100, 0, alone=True, now_s=4.3) == pytest.approx(0.02)


def test_B2_slots_come_one_after_another_at_the_drain_rate() -> None:
    slots = ReturnSlots()
    given = [slots.give(4.5, 100, 1000.0, 60.0, 0.0) for _ in range(3)]
    assert given == pytest.approx([4.5, 4.6, 4.7])


def test_B15_slots_past_the_horizon_book_no_work() -> None:
    slots = ReturnSlots()
    assert slots.give(100.0, 100, 1000.0, 60.0, 0.0) == pytest.approx(100.0)
    assert slots.give(1.0, 100, 1000.0, 60.0, 0.0) == pytest.approx(1.0)


def test_slots_are_open_until_they_are_due_and_a_little_longer() -> None:
    slots = ReturnSlots()
    slots.give(1.0, 500, 1000.0, 60.0, 0.0)
    assert slots.give(1.0, 100, 1000.0, 60.0, 2.9) == pytest.approx(1.5)
    assert slots.give(1.0, 100, 1000.0, 60.0, 20.0) == pytest.approx(1.0)


def test_B8_a_cold_limit_doubles_while_it_is_used_and_first_tokens_come_in_time() -> None:
    limit = RunningLimit(None)
    assert limit.value == 8
    for _ in range(100):
        limit.first_token(0.1, 1.0, running=5, now_s=0.0)
    assert limit.value == 8  # five running: the application is the limit
    for _ in range(8):
        limit.first_token(0.1, 1.0, running=limit.value, now_s=0.0)
    assert limit.value == 16


def test_B8_the_places_an_engine_states_are_never_passed() -> None:
    limit = RunningLimit(None)
    limit.hold(4)
    assert limit.value == 4
    for _ in range(100):
        limit.first_token(0.1, 1.0, running=limit.value, now_s=0.0)
    assert limit.value == 4
    limit.hold(None)
    assert limit.value == 8  # and what was seen with four running says nothing of more
    fixed = RunningLimit(2)
    fixed.hold(4)
    assert fixed.value == 2
    fixed.fix(9)
    assert fixed.value == 4


def test_B8_limit_steps_down_when_the_first_token_is_late_and_creeps_up_from_then_on() -> None:
    limit = RunningLimit(None)
    for _ in range(32):
        limit.first_token(0.1, 1.0, running=limit.value, now_s=0.0)
    assert limit.value == 40
    limit.first_token(0.9, 1.0, running=40, now_s=1.0)
    assert limit.value == 36
    limit.first_token(0.9, 1.0, running=40, now_s=1.1)  # once in half a second is enough
    assert limit.value == 36
    for _ in range(37):
        limit.first_token(0.1, 1.0, running=36, now_s=2.0)
    assert limit.value == 37


def test_B8_answers_in_one_piece_raise_the_limit_only_while_nothing_waits_in_the_engine() -> None:
    limit = RunningLimit(None)
    limit.ended(running=8)
    limit.first_token(99.0, None, running=9, now_s=0.0)  # of a class without a promise
    assert limit.value == 10
    limit = RunningLimit(None)
    limit.ended(running=8)
    limit.sampled(running=9, waiting=5, now_s=0.0)
    limit.ended(running=9)
    assert limit.value == 9


def test_B8_limit_is_what_the_engine_runs_when_requests_wait_inside_it() -> None:
    limit = RunningLimit(None)
    for _ in range(24):
        limit.first_token(0.1, 1.0, running=limit.value, now_s=0.0)
    for now_s in (0.0, 0.5):
        limit.sampled(running=16, waiting=9, now_s=now_s)
    assert limit.value == 32
    limit.sampled(running=16, waiting=9, now_s=1.0)
    assert limit.value == 16


def test_stated_limit_is_used_as_it_is() -> None:
    limit = RunningLimit(8)
    limit.first_token(9.0, 1.0, running=8, now_s=0.0)
    assert limit.value == 8


def sample(begun_s: float, iterations: tuple[int, ...] | None, load: int | None, incarnation: str = "a") -> ReplicaSample:
    return ReplicaSample(
        "p/0", incarnation, begun_s, begun_s + 0.01, iterations, load, 0 if load is not None else None, 0.1, None, 0
    )


def test_A5_clock_proof_needs_four_iterations_after_a_scrape_begun_after_the_close() -> None:
    proof = ClockProof(closed_s=10.0, began=True)
    assert not proof.seen(sample(9.99, (100,), 3))  # begun before: may show the past
    assert not proof.seen(sample(10.0, (104,), 3))  # the first that counts
    assert not proof.seen(sample(10.1, (107,), 3))
    assert proof.seen(sample(10.2, (108,), 3))


def test_A5_frozen_clock_proves_nothing() -> None:
    proof = ClockProof(closed_s=10.0, began=True)
    assert not any(proof.seen(sample(10.0 + step, (100,), 3)) for step in range(50))


def test_A5_an_empty_engine_needs_no_iterations() -> None:
    proof = ClockProof(closed_s=10.0, began=True)
    assert not proof.seen(sample(10.0, (100,), 0))
    assert proof.seen(sample(10.1, (100,), 0))


def test_A5_every_rank_must_advance_or_be_empty() -> None:
    def ranks(begun_s: float, iterations: tuple[int, int], loads: tuple[int, int]) -> ReplicaSample:
        return ReplicaSample("p/0", "a", begun_s, begun_s, iterations, sum(loads), 0, 0.1, None, 0, loads)

    proof = ClockProof(closed_s=0.0, began=True)
    assert not proof.seen(ranks(0.0, (100, 100), (1, 1)))
    assert not proof.seen(ranks(0.1, (110, 103), (1, 1)))
    assert proof.seen(ranks(0.2, (111, 103), (1, 0)))


def test_A5_another_incarnation_begins_the_proof_again() -> None:
    proof = ClockProof(closed_s=0.0, began=True)
    assert not proof.seen(sample(0.0, (100,), 2, "a"))
    assert not proof.seen(sample(0.1, (200,), 2, "b"))
    assert not proof.seen(sample(0.2, (203,), 2, "b"))
    assert proof.seen(sample(0.3, (204,), 2, "b"))


def test_B3_missing_counter_is_not_a_proof() -> None:
    proof = ClockProof(closed_s=0.0, began=True)
    assert not any(proof.seen(sample(float(step), None, 0)) for step in range(5))


def test_A5_emptiness_of_before_its_first_step_proves_nothing() -> None:
    proof = ClockProof(closed_s=10.0, began=False)
    assert not proof.seen(sample(10.0, (100,), 0))
    assert not proof.seen(sample(10.1, (100,), 0))  # the gauges may be older than the execution
    assert not proof.seen(sample(10.2, (101,), 0))  # that step may have begun before the execution was taken in
    assert proof.seen(sample(10.3, (102,), 0))


def test_fitted_plane_finds_what_each_counts_and_leaves_out_what_would_be_negative() -> None:
    plane, alike, falling = FittedPlane(1.0), FittedPlane(1.0), FittedPlane(1.0)
    for x, z in ((1, 0), (2, 5), (3, 1), (4, 7), (5, 2)):
        plane.add(x, z, 0.5 + 2.0 * x + 0.25 * z)
        alike.add(x, 0.0, 3.0 * x)
        falling.add(x, z, 10.0 + x - z / 4)
    assert (plane.intercept, plane.a, plane.b) == pytest.approx((0.5, 2.0, 0.25))
    assert alike.at(1.0, 1.0) == pytest.approx(6.0), "one of them never varied: both count alike"
    assert falling.b == 0.0 and falling.a > 0.0


def test_B2_an_engine_that_lets_short_prompts_pass_is_not_taken_for_one_that_reads_in_order() -> None:
    """Documents take their seconds, a question beside them hardly any: that is no reason to refuse questions."""
    prefill = PrefillTime()
    for step in range(40):
        prefill.observe(3_000, 200, 1.5, alone=False, now_s=step / 10)
        prefill.observe(200, 3_000, 0.2 + 0.02 * (step % 2), alone=False, now_s=step / 10)
    assert upper_s(prefill, 200, 3_000, alone=False, now_s=4.0) == pytest.approx(0.21, abs=0.05)
    assert upper_s(prefill, 3_000, 200, alone=False, now_s=4.0) == pytest.approx(1.5, abs=0.05)


def test_B2_a_size_that_is_refused_is_tried_now_and_then_and_seldom_where_that_was_right() -> None:
    """Documents keep the fit fresh. That questions pass them now is found out by one of them, not by nobody."""
    prefill = PrefillTime()
    for step in range(20):
        prefill.observe(200, 3_000, 1.5, alone=False, now_s=step / 10)
    documents(prefill, 2.0, 8.0)
    assert upper_s(prefill, 200, 3_000, alone=False, now_s=8.0) > 1.0, "nobody was refused: there is nothing to try"
    prefill.refused(200, 8.0)
    prefill.refused(200, 8.9)
    assert upper_s(prefill, 200, 3_000, alone=False, now_s=8.9) > 1.0
    assert prefill.expected(200, 3_000, False, 9.0) is None, "one is let in, a second after the first was refused"
    prefill.sent(200, 9.0)
    prefill.refused(200, 9.1)
    assert upper_s(prefill, 200, 3_000, alone=False, now_s=9.2) > 1.0, "one, and no more while it is on its way"
    prefill.observe(200, 3_000, 2.5, alone=False, now_s=10.0)
    assert upper_s(prefill, 200, 3_000, alone=False, now_s=11.0) > 1.0, "as late as foreseen: the next after 2 s"
    assert prefill.expected(200, 3_000, False, 11.1) is None
    prefill.sent(200, 11.1)
    for _ in range(3):
        prefill.observe(200, 3_000, 0.1, alone=False, now_s=11.2)
        prefill.refused(200, 11.2)
        prefill.sent(200, 12.3)
    assert upper_s(prefill, 200, 3_000, alone=False, now_s=12.4) < 1.0, "they pass, and three were enough to see it"


def documents(prefill: PrefillTime, from_s: float, to_s: float) -> None:
    """One every tenth of a second."""
    for tenth in range(round(10 * from_s), round(10 * to_s) + 1):
        prefill.observe(3_000, 200, 1.5, alone=False, now_s=tenth / 10)


def test_an_iterations_time_is_counted_between_the_middles_of_two_looks() -> None:
    """Looks at 10 to 10.4 s and at 10.5 to 12.5 s, made in their middles: 1.3 s for 13 steps. Their begins are 0.5 s apart."""
    quick = ReplicaSample("pool/0", "1", 10.0, 10.4, (100,), 1, 0, None, None, None)
    slow = ReplicaSample("pool/0", "1", 10.5, 12.5, (113,), 1, 0, None, None, None)
    assert iteration_s(quick, slow) == pytest.approx(0.1)
    assert iteration_s(slow, quick) is None, "the clock did not go on"
    assert iteration_s(None, slow) is None


def test_C3_where_prompts_take_ten_seconds_to_be_read_five_without_a_first_token_are_no_news() -> None:
    """It was forgotten after three whatever they take; then nobody who waited there had any time set aside for being read."""
    slow, quick = PrefillTime(), PrefillTime()
    for step in range(12):
        slow.observe(40_000, 0, 10.0, alone=False, now_s=5.0 * step)
        quick.observe(400, 0, 0.1, alone=False, now_s=0.1 * step)
    known = slow.expected(40_000, 0, alone=False, now_s=60.0)
    assert known is not None
    assert known[0] == pytest.approx(10.0, rel=0.01)
    assert quick.expected(400, 0, alone=False, now_s=4.0) is not None
    assert quick.expected(400, 0, alone=False, now_s=4.2) is None, "3 s after the last at 1.1"
    assert slow.expected(40_000, 0, alone=False, now_s=55.0 + 21.0) is None, "twice what they take"
