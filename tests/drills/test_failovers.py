"""The store is lost three ways amid live requests, a few times each (A11); `failovers.py` is the command for many rounds."""

from __future__ import annotations

import os

import pytest
from failovers import KINDS, drills

from headworks.testing import servers

pytestmark = [
    pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not()),
    pytest.mark.skipif("HEADWORKS_DRILLS" not in os.environ, reason="a minute: HEADWORKS_DRILLS=1 runs it"),
]


def test_A11_failovers_amid_live_requests_are_never_above_the_limit_and_leave_nothing_stuck() -> None:
    seen = drills(6, 100, print)
    assert sorted(seen) == sorted(KINDS)
    assert [kind for kind, one in seen.items() if not one["holds"]] == []
