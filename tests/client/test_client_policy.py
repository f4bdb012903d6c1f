"""When to ask again, as pure rules (F8)."""

from __future__ import annotations

import pytest

from headworks.client.policy import Course, OverloadError, RetryPolicy, hint_s_of
from headworks.client.throttle import Throttle

NOW_S = 1_796_040_000.0  # 2026-11-30 12:00:00 UTC


def course(draw: float = 0.5, retries: int = 0, repeatable: bool = False, **policy: float) -> Course:
    return Course(RetryPolicy(**policy), lambda: draw, retries, repeatable)  # type: ignore[arg-type]


def waits(one: Course, status: int, headers: dict[str, str], times: int = 5) -> list[float | None]:
    return [one.wait_s_after_answer(status, headers, NOW_S) for _ in range(times)]


def test_F8_three_retries_by_a_factor_of_one_and_a_half() -> None:
    assert waits(course(), 503, {}) == [0.5, 0.75, 1.125, None, None]


@pytest.mark.parametrize(("draw", "expected"), [(0.0, [0.4, 0.6, 0.9]), (1.0, [0.6, 0.9, 1.35])])
def test_F8_spread_by_a_fifth_to_either_side(draw: float, expected: list[float]) -> None:
    assert waits(course(draw), 429, {}, 3) == pytest.approx(expected)


@pytest.mark.parametrize("draw", [0.0, 0.5, 1.0])
def test_F8_never_earlier_than_the_hint_and_not_later_where_it_is_longer(draw: float) -> None:
    assert waits(course(draw), 429, {"retry-after-ms": "4480", "retry-after": "5"}, 3) == [4.48, 4.48, 4.48]


def test_F8_a_hint_shorter_than_the_own_wait_does_not_shorten_it() -> None:
    assert waits(course(), 429, {"retry-after-ms": "10"}, 3) == [0.5, 0.75, 1.125]


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
def test_F8_what_is_asked_again_is_what_stock_sdks_ask_again(status: int) -> None:
    assert waits(course(), status, {}, 1) == [0.5]
    assert waits(course(), status, {"x-should-retry": "false"}, 1) == [None]


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 422])
def test_F8_what_no_retry_can_cure_stands(status: int) -> None:
    assert waits(course(), status, {}, 1) == [None]
    assert waits(course(), status, {"x-should-retry": "true"}, 1) == [0.5]


def test_F8_what_was_answered_is_never_asked_again() -> None:
    assert waits(course(), 200, {"x-should-retry": "true"}, 1) == [None]


def test_F8_the_own_wait_is_bounded_as_hints_are() -> None:
    assert waits(course(1.0, retries=2_000, retries_max=3_000), 503, {}, 1) == [60.0]


def test_F8_a_hint_above_the_cap_is_an_overload_error_with_the_hint() -> None:
    headers = {"retry-after-ms": "61000", "retry-after": "60", "x-should-retry": "false", "x-overload-reason": "queue_full"}
    with pytest.raises(OverloadError) as caught:
        course().wait_s_after_answer(429, headers, NOW_S)
    assert (caught.value.hint_s, caught.value.status, caught.value.is_local) == (61.0, 429, False)
    assert str(caught.value) == "refused (queue_full): to come back in 61 s, and 60 s are waited for at most"
    assert waits(course(hint_s_max=61.0), 429, {"retry-after-ms": "61000"}, 1) == [61.0]


def test_F8_retries_of_a_library_above_count() -> None:
    assert waits(course(retries=2), 503, {}, 2) == [1.125, None]
    assert waits(course(retries=7), 503, {}, 1) == [None]


def test_F8_a_lost_connection_is_repeated_where_that_is_harmless() -> None:
    assert course().wait_s_after_loss(was_sent=False) == 0.5
    assert course().wait_s_after_loss(was_sent=True) is None
    assert course(repeatable=True).wait_s_after_loss(was_sent=True) == 0.5


@pytest.mark.parametrize(
    ("headers", "hint_s"),
    [
        ({}, None),
        ({"retry-after": "5"}, 5.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after-ms": "4480.5", "retry-after": "5"}, 4.4805),
        ({"retry-after-ms": "soon", "retry-after": "5"}, 5.0),
        ({"retry-after-ms": "nan", "retry-after": "inf"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:07 GMT"}, 7.0),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "Mon, 99 Nov 2026 12:00:07 GMT"}, None),
        ({"retry-after": "Mon, 99999999999999999999 Nov 2026 12:00:07 GMT"}, None),
    ],
)
def test_F8_hints_in_every_form(headers: dict[str, str], hint_s: float | None) -> None:
    assert hint_s_of(headers, NOW_S) == hint_s


def throttle_after(*accepted: bool) -> Throttle:
    throttle = Throttle(accepts_ratio=2.0, window_s=120.0)
    for one in accepted:
        throttle.note(one, 0.0)
    return throttle


@pytest.mark.parametrize(
    ("accepts", "refusals", "ratio"),
    [
        (0, 0, 0.0),
        (10, 0, 0.0),
        (10, 10, 0.0),  # 20 − 2 × 10
        (10, 20, 10 / 31),  # (30 − 20) ÷ 31
        (0, 9, 0.9),  # 9 ÷ 10
        (1, 99, 98 / 101),
    ],
)
def test_F8_the_throttles_formula(accepts: int, refusals: int, ratio: float) -> None:
    assert throttle_after(*[True] * accepts, *[False] * refusals).reject_ratio(0.0) == pytest.approx(ratio)


def test_F8_the_throttle_forgets_after_its_window() -> None:
    throttle = throttle_after(*[False] * 9)
    assert throttle.reject_ratio(119.0) == 0.9
    throttle.note(False, 119.0)
    assert throttle.reject_ratio(124.9) == 10 / 11
    assert throttle.reject_ratio(125.0) == 0.5, "what was noted in the first 5 s, a slot, is gone; the last one stays"
    assert throttle.reject_ratio(244.0) == 0.0
    assert len(throttle._slots) == 0
