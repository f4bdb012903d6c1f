"""Two gateways, three requests, one crash: every order, as deep as a test may go (`scripts/small-scope` goes on)."""

from __future__ import annotations

import pytest

from headworks.core.book import Book
from headworks.testing import planted
from headworks.testing.small_scope import Contradiction, SmallWorld


def test_A4_every_order_of_three_requests_holds_within_four_steps() -> None:
    world = SmallWorld(names="xyz")
    assert world.search(depth_max=4, states_max=20_000), "everything was seen"
    assert world.states > 5_000


def test_A4_every_order_of_two_requests_holds_within_six_steps() -> None:
    world = SmallWorld(names="xy", twice=False)
    assert world.search(depth_max=6, states_max=20_000), "everything was seen"
    assert world.states > 500


@pytest.mark.parametrize(
    ("bug", "says"),
    [
        (planted.FreesOnCancel, "tokens are held for"),
        (planted.CancelFreesReserved, "tokens are held for"),
        (planted.ReleasesTwice, "the counter says"),
        (planted.LeavesNoTombstone, "had ended and is granted"),
        (planted.ExpiryFrees, "tokens are held for"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_A4_a_planted_bug_is_met_with_the_steps_that_lead_there(bug: type[Book], says: str) -> None:
    with pytest.raises(Contradiction, match=says) as found:
        SmallWorld(bug, names="xy").search(depth_max=7, states_max=20_000)
    assert 2 <= len(str(found.value).splitlines()) - 1 <= 8
