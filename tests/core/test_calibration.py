"""Bounds cover what they say: the level steers itself, whatever the times do (C3)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from headworks.core.calibration import STEP, TAIL_MAX, TAIL_MIN, Calibration
from headworks.core.stats import Window

SEED = 20261130
WARM, SPAN = 200, 500


def spans(missed: list[bool]) -> tuple[float, float]:
    """The least and the largest coverage over any 500 in a row, after 200."""
    counted = missed[WARM:]
    shares = [1.0 - sum(counted[first : first + SPAN]) / SPAN for first in range(len(counted) - SPAN + 1)]
    return min(shares), max(shares)


def times(kind: str) -> Iterator[float]:
    rng = random.Random(f"{SEED} {kind}")
    for number in range(3_000):
        scale = {"steady": 1.0, "slower": 2.0 if 1_000 <= number < 1_600 else 1.0, "drifting": 1.0 + number / 1_000}[kind]
        yield scale * rng.lognormvariate(0.0, 0.5)


def covered(kind: str, steered: bool) -> tuple[float, float]:
    """Bounds of a window of the last hundred, at the level that steers itself or at 90 %."""
    calibration, window, missed = Calibration(0.9), Window(100), []
    for took_s in times(kind):
        if len(window) >= 20:
            tail = calibration.tail_ratio if steered else 0.1
            late = took_s > window.quantile(1.0 - max(0.0, tail))
            calibration.saw(late)
            missed.append(late)
        window.add(took_s)
    return spans(missed)


@pytest.mark.parametrize("kind", ["steady", "slower", "drifting"])
def test_C3_the_bound_covers_88_to_92_of_any_500_after_200(kind: str) -> None:
    print(f"python -m pytest tests/core/test_calibration.py  # seed {SEED}")
    least, most = covered(kind, steered=True)
    assert 0.88 <= least <= most <= 0.92


def test_C3_a_fixed_level_does_not_cover_what_changes() -> None:
    least, most = covered("slower", steered=False)
    assert least < 0.88 or most > 0.92


def test_C3_what_was_missed_is_the_change_of_the_tail() -> None:
    calibration, rng, missed = Calibration(0.9), random.Random(SEED), 0
    before = calibration.tail_ratio
    for _ in range(400):
        late = rng.random() < max(0.0, calibration.tail_ratio)
        missed += late
        calibration.saw(late)
    assert TAIL_MIN < calibration.tail_ratio < TAIL_MAX, "it has not been stopped"
    assert missed - 0.1 * 400 == pytest.approx((before - calibration.tail_ratio) / STEP)


def test_C3_a_burst_of_misses_is_not_paid_for_by_endless_caution() -> None:
    calibration = Calibration(0.9)
    for _ in range(1_000):
        calibration.saw(True)
    assert calibration.tail_ratio == TAIL_MIN
    kept = 0
    while calibration.tail_ratio < 0.1:
        calibration.saw(False)
        kept += 1
    assert kept == 70  # (0.6 + 0.1) ÷ (0.1 · 0.1)


def test_C3_with_many_outstanding_a_miss_moves_the_level_less() -> None:
    few, many = Calibration(0.9), Calibration(0.9)
    few.saw(True, outstanding=20)
    many.saw(True, outstanding=200)
    assert few.tail_ratio == pytest.approx(0.1 - 0.1 * 0.9)
    assert many.tail_ratio == pytest.approx(0.1 - 2.0 / 200 * 0.9)


def test_C3_a_reload_that_wants_more_covered_moves_the_level_by_as_much() -> None:
    calibration = Calibration(0.9)
    for _ in range(4):
        calibration.saw(False)
    assert calibration.tail_ratio == pytest.approx(0.14)
    calibration.aim(0.95)
    assert (calibration.tail_ratio, calibration.coverage) == (pytest.approx(0.09), 0.95)


def test_C3_the_coverage_told_is_of_the_last_500() -> None:
    calibration = Calibration(0.9)
    for number in range(700):
        calibration.saw(number < 300)
    assert (calibration.seen, calibration.missed) == (500, 100)
