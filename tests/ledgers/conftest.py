"""A store in a file for each test, closed after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ledgers.stores import JournalWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[JournalWorld]:
    made = JournalWorld(tmp_path)
    yield made
    made.store.close()
