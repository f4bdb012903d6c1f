"""Each planted bug is caught: the case that guards against it fails with the bug, and passes without.

These are the witnesses that the suite can fail. The bugs that free capacity too early are caught a second time, by what
the simulated engines hold (tests/properties, tests/sim).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headworks.core.book import Book
from headworks.testing import planted
from headworks.testing.suites import ledger, ledger_evidence, ledger_sessions
from headworks.testing.suites.ledger_subject import Opened
from tests.ledgers.stores import MemoryWorld


def assert_caught(bug: type[Book], case: Callable[[Opened], None]) -> None:
    case(MemoryWorld().opened())
    with pytest.raises(AssertionError):
        case(MemoryWorld(bug).opened())


def test_planted_free_on_cancel() -> None:
    assert_caught(planted.FreesOnCancel, ledger.case_A5_cancel_releases_once)


def test_planted_cancel_frees_reserved() -> None:
    assert_caught(planted.CancelFreesReserved, ledger.case_A5_cancel_of_a_reserved_one_frees_nothing)


def test_planted_release_twice() -> None:
    assert_caught(planted.ReleasesTwice, ledger.case_A5_cancel_releases_once)


def test_planted_release_only_what_was_used() -> None:
    assert_caught(planted.ReleasesOnlyWhatWasUsed, ledger.case_A1_worked_example)


def test_planted_check_then_charge() -> None:
    assert_caught(planted.ChecksThenCharges, ledger.case_A3_two_gateways_one_grant)


def test_planted_expiry_frees() -> None:
    assert_caught(planted.ExpiryFrees, ledger.case_A7_lapse_orphans_and_frees_nothing)


def test_planted_late_reserve_after_cancel() -> None:
    assert_caught(planted.LeavesNoTombstone, ledger.case_A5_reserve_after_its_cancel_is_dead)


def test_planted_E3_by_ownership() -> None:
    assert_caught(planted.CountsWhatIsOwned, ledger_evidence.case_E3b_owned_is_not_inside)


def test_planted_E4_by_the_stamp_at_reserve() -> None:
    assert_caught(planted.StampsAtReserve, ledger_evidence.case_E4_only_what_was_seen_inside_ends_with_its_engine)


def test_planted_stale_testimony_refused() -> None:
    assert_caught(planted.RefusesStaleTestimony, ledger.case_A7_testimony_of_a_fenced_owner_counts)


def test_planted_a_session_returns_again() -> None:
    assert_caught(planted.ReturnsAgain, ledger_sessions.case_B14_twelve_calls_charge_nothing_more_and_the_rest_comes_back_once)


def test_every_planted_bug_has_its_test() -> None:
    assert len(planted.PLANTED) == 11
