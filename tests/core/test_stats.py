"""The small instruments: what they say is what the standard library says of the same numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from random import Random

import pytest

from headworks.core.stats import Window, nearest

SEEDS = range(200)


@pytest.mark.parametrize(
    ("value", "whole"),
    [(0.0, 0), (0.49999999999999994, 0), (0.5, 0), (0.5000000000000001, 1), (1.5, 2), (2.5, 2), (3.5, 4), (102.99999, 103)],
)
def test_nearest_says_what_round_says(value: float, whole: int) -> None:
    assert (nearest(value), round(value)) == (whole, whole)


@pytest.mark.parametrize("seed", SEEDS)
def test_nearest_says_what_round_says_of_any_number(seed: int) -> None:
    random = Random(seed)
    for value in (
        random.random() * 10.0 ** random.randrange(16),
        random.randrange(1 << 30) + 0.5,
        random.randrange(1 << 52) / 2,
    ):
        assert nearest(value) == round(value), value


@pytest.mark.parametrize("seed", SEEDS)
def test_a_window_holds_its_last_values_in_order(seed: int) -> None:
    """Whichever of them are equal."""
    random, size = Random(seed), 1 + seed % 30
    window, kept = Window(size), deque[float](maxlen=size)
    for _ in range(4 * size):
        value = float(random.randrange(-5, 5)) if seed % 2 else random.gauss(0.0, 1.0)
        window.add(value)
        kept.append(value)
        sorted_values = sorted(kept)
        assert [window.quantile((place + 0.5) / len(kept)) for place in range(len(kept))] == sorted_values
        asked = random.choice(sorted_values) if random.random() < 0.5 else random.gauss(0.0, 3.0)
        longer = sorted_values[bisect_right(sorted_values, asked) :]
        assert window.count_above(asked) == len(longer)
        if longer:
            assert window.median_above(asked) == longer[(len(longer) - 1) // 2]
