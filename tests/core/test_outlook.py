"""What will be held at once where lengths are known by chance only (D4)."""

from __future__ import annotations

from random import Random

import pytest

from headworks.core.lengths import KNOWN, Lengths
from headworks.core.peak import AHEAD_TOKENS, Outlook, certainly, peak_tokens


def test_D4_each_counts_by_its_chance_to_go_on_and_two_spreads_are_kept_free() -> None:
    """Four of 100 tokens each: 400 now; 528 after 32 steps, if all go on; after 45 each with one half, so 290 ± 145."""
    outlook = Outlook()
    outlook.add((1.0, 1.0, 0.5), 4, 400, 40_000.0)
    assert AHEAD_TOKENS[:3] == (0, 32, 45)
    assert outlook.peak_tokens() == 290 + 2 * 145
    outlook = Outlook()
    outlook.add((1.0, 1.0, 0.1), 4, 400, 40_000.0)  # 58 ± 87 after 45
    assert outlook.peak_tokens() == 528


def test_D4_a_newcomer_is_added_and_not_kept() -> None:
    outlook = Outlook()
    outlook.add(certainly(32), 1, 100, 10_000.0)
    assert outlook.peak_with(certainly(64), 1, 50) == 132 + 82
    assert outlook.peak_tokens() == 132


def test_D4_what_is_known_for_certain_comes_to_the_peak_and_at_most_half_an_octave_more() -> None:
    for seed in range(200):
        random = Random(seed)
        groups = [(random.randint(0, 3_000), 1, random.randint(0, 500)) for _ in range(random.randint(1, 30))]
        outlook = Outlook()
        for remaining, count, held in groups:
            outlook.add(certainly(remaining), count, held, 0.0)
        longer = [(max(32, int(1.45 * remaining)) if remaining else 0, count, held) for remaining, count, held in groups]
        assert peak_tokens(groups) <= outlook.peak_tokens() <= peak_tokens(longer), f"seed {seed}"


def test_D4_of_the_longer_ones_the_share_that_goes_on_is_what_was_seen() -> None:
    lengths, random = Lengths(), Random(5)
    seen = [1 + int(random.expovariate(1 / 500)) for _ in range(500)]
    for tokens in seen:
        lengths.add(tokens)
    for made in (0, 200, 800):
        longer = [tokens for tokens in seen if tokens > made]
        shares = lengths.goes_on(made, (0, 100, 500))
        assert shares == pytest.approx(
            [sum(one > made + more for one in longer) / len(longer) for more in (0, 100, 500)], abs=0.05
        )


def test_D4_longer_than_all_that_was_seen_goes_on_until_it_has_doubled() -> None:
    lengths = Lengths()
    for _ in range(KNOWN - 1):
        lengths.add(100)
    assert lengths.goes_on(0, (0,)) is None, "too few have ended"
    lengths.add(100)
    assert lengths.goes_on(1_000, (0, 999, 1_000)) == [1.0, 1.0, 0.0]


def test_D4_the_memory_that_is_then_held_seldom_passes_the_outlook_and_means_would_keep_a_third_too_much() -> None:
    """Eighty answers of which nobody knows the end, drawn from what is known of their like, on to their ends, 200 times."""
    random, lengths = Random(11), Lengths()
    for _ in range(500):
        lengths.add(1 + int(random.expovariate(1 / 600)))
    made = [int(random.expovariate(1 / 600)) for _ in range(80)]
    outlook = Outlook()
    for tokens in made:
        outlook.add((1.0, *(lengths.goes_on(tokens, AHEAD_TOKENS[:-1]) or ())), 1, 1_000 + tokens, (1_000.0 + tokens) ** 2)
    passed = sum(
        peak_tokens((int(random.expovariate(1 / 600)), 1, 1_000 + tokens) for tokens in made) > outlook.peak_tokens()
        for _ in range(200)
    )
    assert passed <= 10
    by_means = peak_tokens((lengths.more_tokens(tokens) or 0, 1, 1_000 + tokens) for tokens in made)
    assert outlook.peak_tokens() < by_means / 1.15
