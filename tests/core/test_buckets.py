"""Token buckets with debt, returns promised one after the other, retry budgets: golden cases with the numbers written out."""

from __future__ import annotations

import pytest

from headworks.core.buckets import Bucket, RetryBudget, ReturnWindows


def golden() -> Bucket:
    """Rate 100/s, burst 100, debt ceiling 200."""
    return Bucket(100.0, 100, 200)


def granted(bucket: Bucket, amount: int, now_s: float) -> bool:
    """Ask and take, as a gate does."""
    fits = bucket.drawn_with(amount, now_s) <= bucket.limit
    if fits:
        bucket.draw(amount, now_s)
    return fits


def test_B5_300_at_once_are_granted_into_a_debt_of_200_and_one_more_is_free_after_10_ms() -> None:
    bucket = golden()
    assert granted(bucket, 300, 0.0)
    assert bucket.level(0.0) == -200.0
    assert not granted(bucket, 1, 0.0)
    assert bucket.wait_s(1, 0.0) == 0.01
    assert granted(bucket, 1, 0.01)


def test_B5_100_more_are_refused_after_half_a_second_and_granted_after_one() -> None:
    bucket = golden()
    assert granted(bucket, 300, 0.0)
    assert not granted(bucket, 100, 0.5)
    assert bucket.wait_s(100, 0.5) == 0.5
    assert granted(bucket, 100, 1.0)


def test_B5_undisturbed_the_debt_is_paid_after_two_seconds_and_it_is_full_after_three() -> None:
    bucket = golden()
    assert granted(bucket, 300, 0.0)
    assert bucket.level(1.99) == pytest.approx(-1.0)
    assert bucket.level(2.0) == 0.0
    assert bucket.full_s(0.0) == 3.0
    assert (bucket.level(3.0), bucket.level(30.0)) == (100.0, 100.0)


def test_B5_the_golden_case_holds_at_any_time_of_day() -> None:
    """Sums of times lose their last digits; nobody is refused for that, and nothing is given away."""
    for start_s in (812.3, 86_400.7, 1_234_567.89):
        bucket = golden()
        assert granted(bucket, 300, start_s)
        assert not granted(bucket, 1, start_s)
        assert granted(bucket, 1, start_s + 0.01)
        assert not granted(bucket, 100, start_s + 0.51)
        assert granted(bucket, 100, start_s + 1.01)


def test_A10_actuals_beyond_the_estimate_are_owed_even_past_the_ceiling() -> None:
    bucket = golden()
    bucket.draw(300, 0.0)
    bucket.give_back(300 - 700, 0.0)
    assert bucket.level(0.0) == -600.0
    assert bucket.wait_s(1, 0.0) == 4.01
    bucket.give_back(10_000, 0.0)
    assert bucket.level(0.0) == 100.0, "what comes back never fills it above its size"


def test_B15_a_hundred_refused_in_one_instant_are_told_a_hundred_times_apart_by_the_rate() -> None:
    bucket = Bucket(10.0, 1, 0)
    bucket.draw(1, 5.0)
    waits_s = [bucket.promise(1, 60.0, 5.0) for _ in range(100)]
    assert waits_s[:3] == [0.1, 0.2, 0.3]
    assert waits_s[99] == 10.0
    assert bucket.promise(1, 60.0, 14.95) == 0.1, "full by now, with one return still to come"


def test_B15_promises_are_bounded_and_whoever_comes_beyond_shares_the_last_ones_time() -> None:
    bucket = Bucket(1_000.0, 1, 0)
    bucket.draw(1, 0.0)
    waits_s = [bucket.promise(1, 60.0, 0.0) for _ in range(10_003)]
    assert waits_s[9_998:] == [9.999, 10.0, 10.001, 10.001, 10.001]


def test_B15_nothing_is_kept_for_who_is_told_not_to_come_back() -> None:
    bucket = Bucket(1.0, 1, 0)
    bucket.draw(1, 0.0)
    assert bucket.promise(61, 60.0, 0.0) == 61.0
    assert bucket.promise(1, 60.0, 0.0) == 1.0


def test_B5_a_return_that_is_due_first_is_over_first_whoever_was_told_so_before() -> None:
    bucket = Bucket(10.0, 100, 0)
    bucket.draw(400, 0.0)
    assert bucket.promise(100, 60.0, 0.0) == 40.0
    bucket.give_back(300, 0.0)  # what ran used less
    assert bucket.promise(10, 60.0, 0.0) == 11.0
    assert bucket.promise(50, 60.0, 12.0) == 5.0, "it is full, and only the first is still to come"


def test_a_size_that_is_not_stated_is_ten_seconds_of_the_rate_and_at_least_one() -> None:
    assert Bucket(25.0, None, 0).limit == 250
    assert Bucket(0.01, None, 0).limit == 1


def test_a_changed_bucket_keeps_what_was_drawn() -> None:
    bucket = golden()
    bucket.draw(250, 0.0)
    bucket.change(10.0, 500, 0, 1.0)
    assert bucket.level(1.0) == 500 - 150.0
    bucket.change(10.0, 100, 0, 1.0)
    assert bucket.level(1.0) == -50.0


def test_B15_retries_are_a_tenth_of_first_attempts_and_a_few_are_free() -> None:
    budget = RetryBudget(0.1)
    for _ in range(50):
        budget.first(100.0)
    assert [budget.spend(100.0) for _ in range(6)] == [(1, 5.0), (2, 5.0), (3, 5.0), (4, 5.0), (5, 5.0), (6, 5.0)]
    assert budget.spend(100.0) == (6, 5.0), "what is refused is not counted"
    quiet = RetryBudget(0.1)
    assert [quiet.spend(100.0) for _ in range(4)] == [(1, 3.0), (2, 3.0), (3, 3.0), (4, 3.0)]


def test_B15_a_retry_budget_forgets_after_a_minute() -> None:
    budget = RetryBudget(0.1)
    for _ in range(3):
        budget.spend(100.0)
    assert budget.spend(130.0) == (4, 3.0)
    assert budget.spend(160.0) == (1, 3.0)


def test_B15_a_slot_is_kept_once_in_its_second_or_the_next() -> None:
    windows = ReturnWindows()
    windows.give(104.5, 100.0)
    assert not windows.keep(103.5)
    assert windows.keep(103.95), "a tenth of a second early is in time"
    assert not windows.keep(104.5)
    windows.give(104.5, 100.0)
    assert not windows.keep(106.0)
    windows.give(104.5, 100.0)
    windows.give(104.7, 100.0)
    assert [windows.keep(105.9) for _ in range(3)] == [True, True, True], "one of them was never used"
    assert not windows.keep(105.9)


def test_B15_windows_are_bounded_by_the_horizon() -> None:
    windows = ReturnWindows()
    for now_s in range(1000):
        windows.give(now_s + 60.0, float(now_s))
    assert len(windows._due) <= 62
