"""The memory store against the suite of all stores."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headworks.testing.suites.ledger import CASES
from headworks.testing.suites.ledger_subject import Opened
from tests.ledgers.stores import MemoryWorld


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.removeprefix("case_"))
def test_memory_store(case: Callable[[Opened], None]) -> None:
    case(MemoryWorld().opened())
