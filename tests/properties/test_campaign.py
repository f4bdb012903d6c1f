"""Random small worlds in which everything goes wrong, and the planted ledgers that must not survive them.

`headworks sim --campaign --seeds 1000` runs more of the same. A seed that fails here is shown again by the command in the
message.
"""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest

from headworks.core.book import Book
from headworks.core.book_parts import Entry
from headworks.core.policy import Policy
from headworks.sim.campaign import Campaign, campaign, run_seed, run_world
from headworks.sim.campaign_worlds import small_world
from headworks.sim.compare import make_book
from headworks.sim.connection import Distance
from headworks.sim.faults import Fault
from headworks.sim.ledger import BookLike
from headworks.sim.simulation import MakeBook, Setup
from headworks.testing import planted

FIRST_SEED, SEEDS = 390, 80
"""Among these every rare thing happens."""


@cache
def done() -> Campaign:
    """The campaign of this test run, once."""
    return campaign(FIRST_SEED, SEEDS)


def with_book(kind: type[Book]) -> MakeBook:
    def make(policy: Policy) -> BookLike:
        return kind(lease_ms=round(policy.lease_s * 1000), remember_ms=round(policy.remember_s * 1000))

    return make


def caught(kind: type[Book], by: str = "", within: int = 150) -> str:
    """What the campaign says of a planted ledger: the first broken invariant that is told so, or nothing if none is."""
    for seed in range(1, within + 1):
        problem = run_seed(seed, with_book(kind))
        if problem.startswith(by) and problem:
            return problem
    return ""


def test_I1_to_I36_hold_after_every_event_of_every_seed_and_nothing_is_held_at_the_end() -> None:
    failed = [
        f"{problem}\n  again: headworks sim --campaign --histories usual --seed {seed}"
        for seed, problem in done().failed.items()
    ]
    assert failed == [], "\n".join(failed)
    assert done().seeds == SEEDS
    assert done().events > 100 * SEEDS


@pytest.mark.parametrize("seed", [232, 2494])
def test_A8_a_prompt_that_nobody_counted_holds_no_more_than_was_charged(seed: int) -> None:
    """Their tenants' limits are below what the bytes of a prompt come to, and a token is a byte there."""
    assert run_seed(seed) == ""


def test_I5_who_comes_back_at_the_end_of_its_hint_is_let_run_to_its_end() -> None:
    """It was told to be back in 58 s, obeyed, and ran when a liveness phase of 60 s was over."""
    assert run_seed(710081) == ""


@pytest.mark.parametrize(
    "what",
    [
        "late",
        "lost_command",
        "lost_answer",
        "twice",
        "cut_off",
        "orphaned",
        "reserve dead",
        "claim claimed",
        "claim attach",
        "claim replay",
        "grow granted",
        "grow recorded",
        "grow refused",
        "outcome completed kv_saturation",
        "ended by E0",
        "ended by E1",
        "ended by E3a",
        "ended by E3b",
        "ended by E4",
        "outcome completed",
        "outcome cancelled",
        "outcome expired queue_timeout",
        "outcome expired prefill_saturated",
        "outcome refused queue_full",
        "outcome refused ledger_unavailable",
        "outcome replayed",
        "outcome refused idempotency_in_progress",
        "outcome refused rate_limit_exceeded",
        "outcome refused insufficient_quota",
        "outcome failed upstream_lost",
        "outcome failed upstream_timeout",
        "outcome failed deadline_exceeded",
        "another store",
        "reassert ok",
        "reassert recorded",
    ],
)
def test_I43_the_campaign_meets_what_is_rare(what: str) -> None:
    assert done().reached.get(what, 0) >= 1


def test_I42_a_seed_decides_its_world_and_all_that_happens_in_it() -> None:
    for seed in (3, 17):
        first, second = Campaign(), Campaign()
        assert run_seed(seed, into=first) == run_seed(seed, into=second)
        assert first == second
    assert small_world(3).planned != small_world(4).planned


# Each planted bug is caught by what should catch it: the engines' memory where capacity is freed early, the ledger's own
# sums where they go wrong, and the promises it made where it breaks them.


def test_A5_planted_free_on_cancel_is_seen_in_the_engines_memory() -> None:
    assert "freed_early" in caught(planted.FreesOnCancel)


def test_A5_planted_cancel_that_frees_reserved_is_seen_in_the_engines_memory() -> None:
    assert "freed_early" in caught(planted.CancelFreesReserved)


def test_A5_planted_double_release_is_seen_in_the_sums() -> None:
    assert "the counter says" in caught(planted.ReleasesTwice)


def test_A1_planted_release_of_only_what_was_used_is_seen_in_the_sums() -> None:
    assert "the counter says" in caught(planted.ReleasesOnlyWhatWasUsed)


def test_A3_planted_check_then_charge_is_seen_in_the_limits() -> None:
    assert caught(planted.ChecksThenCharges, by="I2 ")


def test_A7_planted_expiry_that_frees_is_seen_in_the_engines_memory() -> None:
    assert "freed_early" in caught(planted.ExpiryFrees)


def test_A4_planted_missing_tombstone_is_seen_as_a_charge_after_the_stop() -> None:
    assert caught(planted.LeavesNoTombstone).startswith("rule 3 ")


class RunsKeysTwice(Book):
    """Lets a second execution of a key begin whatever became of the first."""

    def _may_follow(self, newest: Entry, fingerprint: str) -> bool:
        return True


def test_A6_planted_second_execution_of_a_key_is_seen() -> None:
    assert "two executions charged" in caught(RunsKeysTwice)


def far_engines(seed: int, make: MakeBook) -> Setup:
    """Connections take long to open, break often, and the engine is slow to notice: much is owned and not yet inside."""
    world = small_world(seed, make)
    breaks = [Fault(at_s, "connections_broken", name, ratio=0.5) for at_s in (0.6, 1.2, 1.8, 2.4) for name in world.engines]
    return dataclasses.replace(world, distance=Distance(0.5, 0.001, 0.002, notice_s=4.0), faults=breaks)


def test_A7_planted_counting_by_ownership_is_seen_in_the_engines_memory() -> None:
    seeds = range(1, 41)
    assert [run_world(far_engines(seed, make_book)) for seed in seeds] == [""] * len(seeds)
    problems = [run_world(far_engines(seed, with_book(planted.CountsWhatIsOwned))) for seed in seeds]
    assert any("freed_early" in problem for problem in problems)


def test_A7_planted_stamp_at_reserve_is_seen_in_the_engines_memory() -> None:
    assert "freed_early" in caught(planted.StampsAtReserve)


def test_A7_planted_refusal_of_stale_testimony_is_seen_at_once() -> None:
    assert caught(planted.RefusesStaleTestimony).startswith("rule 7 ")
