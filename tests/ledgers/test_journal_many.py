"""The store in a file with more in it than its counters are swept at (A9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from headworks.core.commands import Answer, Heartbeat, SetLimits
from headworks.core.types import Charge
from headworks.ledgers.base import open_ledger
from headworks.testing.suites.ledger_subject import FIRST, reserve


@pytest.mark.parametrize("limited", range(5))
def test_A9_more_tenants_than_counters_are_swept_at_once_are_recovered(limited: int, tmp_path: Path) -> None:
    """Counters nobody limits are swept away when there are many: never those of a charge that is being put back.

    How many limits there are moves the place in a charge at which the sweep comes.
    """
    settings = {"lease_ms": 5_000, "remember_ms": 60_000, "clock_ms": lambda: 1_000}
    store = open_ledger(f"sqlite:{tmp_path}/many.db", **settings)  # type: ignore[arg-type]
    answers: list[Answer] = []
    asked = [reserve(f"x{number}", 1, charges=as_the_gate_charges(f"t{number}")) for number in range(2_200)]
    limits = tuple(Charge(f"tenant:limited-{number}", "tokens", 100) for number in range(limited))
    store.apply([Heartbeat(FIRST), SetLimits("v", 1, limits), *asked], answers.extend)
    assert {answer.outcome for answer in answers[2:]} == {"granted"}
    store.close()
    again = open_ledger(f"sqlite:{tmp_path}/many.db", **settings)  # type: ignore[arg-type]
    assert (len(again.book.charged()), again.book.held("pool:pool", "tokens"), again.book.check()) == (2_200, 2_200, [])
    again.close()


def as_the_gate_charges(tenant: str) -> tuple[Charge, ...]:
    """Tokens and sequences of every scope."""
    scopes = (f"tenant:{tenant}", "pool:pool", "replica:pool/0")
    return tuple(Charge(scope, unit, 1) for scope in scopes for unit in ("tokens", "requests"))
