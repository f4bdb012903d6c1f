"""The quantile that corrects itself, and when the size of a prompt says more than who sent it (C2)."""

from __future__ import annotations

import random

import pytest

from headworks.core.output_lengths import Lengths, OutputLengths, bin_of

SEED = 20261130


def add(group: Lengths, tokens: int, quantile: float = 0.95) -> None:
    """What was said was reserved."""
    group.add(tokens, group.tokens is not None and tokens > group.tokens, quantile)


def told(lengths: list[int], quantile: float = 0.95) -> Lengths:
    group = Lengths(300, 20, quantile)
    for tokens in lengths:
        add(group, tokens, quantile)
    return group


def test_C2_nineteen_answers_say_nothing_and_twenty_do() -> None:
    assert told([10] * 19).tokens is None
    assert told([10] * 20).tokens == 10


def test_C2_what_was_missed_widens_and_what_was_not_narrows_the_quantile() -> None:
    lengths = [37 * number % 101 for number in range(1, 101)]
    group = told(lengths * 3)
    said = []
    for tokens in (100, 100, 100, *[1] * 60):
        add(group, tokens)
        said.append(group.tokens)
    assert (said[0], said[2]) == (98, 100)
    assert said[-1] is not None and said[-1] <= 97


def test_A10_what_was_within_it_for_ever_is_not_saved_up() -> None:
    group = told([10] * 10_000)
    needed = 0
    while group.tokens == 10:
        add(group, 500)
        needed += 1
    assert needed == 5, "0.1 is the most that may be missing; 0.1 - 5 x 0.019 is less than 2 of 300"


def drifting(seed: int) -> list[int]:
    """Two thousand answers whose median doubles, falls back and jumps."""
    draw = random.Random(seed)
    medians = [*(50 * 2 ** (number / 500) for number in range(1_000)), *[50.0] * 500, *[400.0] * 500]
    return [max(1, round(draw.lognormvariate(0.0, 0.9) * median)) for median in medians]


@pytest.mark.parametrize("seed", range(SEED, SEED + 5))
def test_C2_coverage_holds_over_any_five_hundred_while_lengths_drift(seed: int) -> None:
    print(f"pytest tests/core/test_output_lengths.py -k drift  # seed {seed}")
    group, within = told([50] * 20), []
    for tokens in drifting(seed):
        assert group.tokens is not None
        within.append(tokens <= group.tokens)
        add(group, tokens)
    shares = [sum(within[start : start + 500]) / 500 for start in range(0, len(within) - 499, 100)]
    assert min(shares) >= 0.93


def test_C2_a_quantile_that_does_not_correct_itself_fails_where_this_one_holds() -> None:
    """The negative control: the same window without the correction."""
    group, within = told([50] * 20), []
    for tokens in drifting(SEED):
        within.append(tokens <= group._window.quantile(0.95))
        add(group, tokens)
    assert min(sum(within[start : start + 500]) / 500 for start in range(0, len(within) - 499, 100)) < 0.92


def test_C2_the_rest_of_an_answer_is_said_anew_from_those_that_became_longer() -> None:
    group = told([*[10] * 60, 100, 200, 300, 400, 500])
    assert group.half_of_longer(10) == 300
    assert group.half_of_longer(100) == 300
    assert group.half_of_longer(150) == 300
    assert group.half_of_longer(200) is None, "three are too few"


@pytest.mark.parametrize(
    ("prompt_bytes", "size"), [(0, 0), (511, 0), (512, 1), (1_023, 1), (1_024, 2), (32_767, 6), (32_768, 7), (8_388_608, 7)]
)
def test_C2_sizes_are_powers_of_two(prompt_bytes: int, size: int) -> None:
    assert bin_of(prompt_bytes) == size


def mixed(by_size: bool) -> tuple[OutputLengths, int]:
    """Half its prompts are short and answered at length, the other half the other way round, or not."""
    draw = random.Random(SEED)
    outputs, reserved = OutputLengths(0.95), 0
    for number in range(4_000):
        prompt_bytes = draw.choice((300, 6_000))
        long = prompt_bytes == 300 if by_size else draw.random() < 0.5
        if number >= 1_000:
            reserved += outputs.expected(prompt_bytes) or 0
        tokens = max(1, round(draw.lognormvariate(0.0, 0.4) * (400 if long else 20)))
        outputs.add(tokens, prompt_bytes, tokens > (outputs.expected(prompt_bytes) or 256), 0.95)
    return outputs, reserved


def test_C2_where_the_size_of_a_prompt_tells_the_length_of_the_answer_less_is_reserved() -> None:
    apart, reserved = mixed(by_size=True)
    _, at_random = mixed(by_size=False)
    short, long = apart.expected(6_000), apart.expected(300)
    assert short is not None and long is not None
    assert 30 <= short <= 60 and 650 <= long <= 1_100
    assert reserved < 0.7 * at_random


def test_C2_where_it_tells_nothing_all_answers_of_the_tenant_are_gone_by() -> None:
    outputs, _ = mixed(by_size=False)
    assert outputs.expected(300) == outputs.expected(6_000)


def test_C2_a_size_never_seen_is_expected_to_be_as_the_tenant() -> None:
    outputs, _ = mixed(by_size=True)
    whole = outputs.expected(100_000)
    assert whole is not None and whole > 600


def test_C2_sizes_that_are_gone_by_do_not_keep_the_whole_from_being_right_again() -> None:
    """While a size says what is reserved, misses are its own; the tenant's whole goes on by what it would have said."""
    outputs, _ = mixed(by_size=True)
    draw = random.Random(SEED + 1)
    before = outputs._all._missing_ratio
    for _ in range(400):
        outputs.add(draw.randrange(1, 20), 6_000, False, 0.95)
    assert outputs._all._missing_ratio > before


def test_A10_how_often_it_was_within_is_counted() -> None:
    outputs = OutputLengths(0.95)
    for tokens in (10, 10, 11, 10):
        outputs.add(tokens, 100, tokens > 10, 0.95)
    assert (outputs.answers, outputs.missed) == (4, 1)


def test_C2_what_is_still_written_tells_of_a_tenant_nobody_knows() -> None:
    outputs = OutputLengths(0.95)
    assert outputs.guess() == 0
    outputs.reached(500, first=True)
    outputs.reached(564, first=False)
    assert (outputs.passed, outputs.guess()) == (1, 4 * 564)
    outputs.add(580, 100, True, 0.95)
    assert outputs.guess() == 580, "it was this one, and it has ended"
    for _ in range(3):
        outputs.add(10, 100, False, 0.95)
    outputs.reached(700, first=True)
    assert (outputs.passed, outputs.answers, outputs.guess()) == (2, 4, 580), "most stay within what is reserved"
