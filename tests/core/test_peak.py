"""The future peak (D4): the formula against stepping through time, profiles, and how long answers are expected to be."""

from __future__ import annotations

from random import Random

import pytest

from headworks.core.lengths import KEPT, KNOWN, Lengths, TenantLengths, _edge, bucket_of
from headworks.core.peak import BUCKETS, Group, added, groups_of, peak_tokens, profile_of


def stepped(groups: list[Group]) -> int:
    """The same by brute force: a token for every sequence in each step, and whoever is through gives all back."""
    running = [[remaining, count, held] for remaining, count, held in groups]
    most = sum(held for _, _, held in running)
    running = [one for one in running if one[0]]
    while running:
        for one in running:
            if one[0]:
                one[0] -= 1
                one[2] += one[1]
        most = max(most, sum(held for _, _, held in running))
        running = [one for one in running if one[0]]
    return most


def drawn(random: Random) -> list[Group]:
    longest, most = random.choice(((3, 10), (60, 40), (400, 500)))
    return [
        (random.randint(0, longest), random.choice((1, 1, 1, 4)), random.randint(0, most)) for _ in range(random.randint(0, 25))
    ]


def test_D4_the_peak_is_what_stepping_through_time_finds() -> None:
    for seed in range(400):
        groups = drawn(Random(seed))
        assert peak_tokens(groups) == stepped(groups), f"seed {seed}: {groups}"


@pytest.mark.parametrize(
    ("groups", "peak"),
    [
        ([], 0),
        ([(0, 1, 50)], 50),
        ([(10, 1, 50)], 60),
        ([(10, 2, 50)], 70),
        ([(10, 1, 50), (100, 1, 50)], 150),  # at the end of the short one 120, at the end of the long one 150
        ([(10, 1, 500), (100, 1, 50)], 570),
        ([(7, 1, 10), (7, 1, 20), (7, 1, 30)], 81),  # all at the same instant
    ],
)
def test_D4_peaks_in_figures(groups: list[Group], peak: int) -> None:
    assert peak_tokens(groups) == peak


def test_D4_a_peak_only_grows_with_what_is_added_to_it() -> None:
    for seed in range(100):
        random = Random(seed)
        groups = drawn(random)
        peak = peak_tokens(groups)
        longer = [(remaining + random.randint(0, 5), count, held) for remaining, count, held in groups]
        assert peak_tokens(longer) >= peak, f"seed {seed}"
        assert peak_tokens([*groups, (random.randint(0, 50), 1, 7)]) >= peak + 7 * (not groups), f"seed {seed}"


def test_D4_others_are_counted_from_profiles_and_never_too_little() -> None:
    for seed in range(200):
        random = Random(seed)
        ours, theirs, others = drawn(random), drawn(random), drawn(random)
        profile = added(profile_of(theirs), profile_of(others))
        assert len(profile) == 2 * BUCKETS
        guessed, known = [*ours, *groups_of(profile)], [*ours, *theirs, *others]
        assert sum(held for _, _, held in guessed) >= sum(held for _, _, held in known)
        assert peak_tokens(guessed) >= peak_tokens(known), f"seed {seed}"


def test_D4_abucket_of_reaches_from_above_one_power_of_two_to_the_next() -> None:
    profile = profile_of([(0, 1, 5), (64, 1, 7), (65, 2, 20), (128, 1, 1), (100_000, 1, 3), (500_000, 1, 4)])
    assert groups_of(profile) == [(64, 2, 12), (128, 3, 21), (131_072, 2, 7)]
    assert groups_of(()) == []


# how long answers are


def test_D4_a_length_lies_in_itsbucket_of_and_abucket_of_is_a_quarter_of_an_octave() -> None:
    for tokens in (*range(5_000), 100_000, 262_143):
        bucket = bucket_of(tokens)
        assert _edge(bucket) <= tokens < _edge(bucket + 1)
        assert tokens < 16 or _edge(bucket + 1) <= 1.25 * _edge(bucket)
    assert bucket_of(1 << 40) == bucket_of(1 << 30), "the last one takes whatever is longer"


def test_D4_what_is_expected_more_is_the_mean_of_those_that_became_longer() -> None:
    random = Random(3)
    lengths, seen = Lengths(), [1 + int(random.expovariate(1 / 500)) for _ in range(500)]
    for tokens in seen:
        lengths.add(tokens)
    for made in (0, 10, 100, 500, 1_000):
        longer = [tokens for tokens in seen if tokens > made]
        assert lengths.more_tokens(made) == pytest.approx(sum(longer) / len(longer) - made, rel=0.15)


def test_D4_longer_than_all_that_was_seen_is_expected_to_double() -> None:
    lengths = Lengths()
    for _ in range(KNOWN):
        lengths.add(100)
    assert lengths.more_tokens(1_000) == 1_000


def test_D4_nothing_is_said_before_enough_have_ended() -> None:
    lengths = Lengths()
    for _ in range(KNOWN - 1):
        lengths.add(100)
    assert lengths.more_tokens(0) is None
    lengths.add(100)
    assert lengths.more_tokens(0) == pytest.approx(100, rel=0.15)


def test_D4_old_lengths_fade() -> None:
    lengths = Lengths()
    for _ in range(KEPT):
        lengths.add(1_000)
    for _ in range(3 * KEPT):
        lengths.add(10)
    more = lengths.more_tokens(0)
    assert more is not None and more < 200


def test_D4_a_tenant_nobody_knows_is_like_all_tenants_together() -> None:
    tenants = TenantLengths()
    for _ in range(KNOWN):
        tenants.of("known").add(1_000)
    assert tenants.of("new").more_tokens(0) == tenants.of("known").more_tokens(0)
    for _ in range(KNOWN):
        tenants.of("new").add(10)
    more = tenants.of("new").more_tokens(0)
    assert more is not None and more < 20


def test_D4_tenants_beyond_the_bound_share_one() -> None:
    tenants = TenantLengths()
    within = [tenants.of(f"tenant-{number}") for number in range(10_000)]
    assert within[0] is tenants.of("tenant-0") and within[0] is not within[1]
    assert tenants.of("one more") is tenants.of("another")
    assert tenants.of("one more") not in within
