"""Each advisory of docs/advisories.md has its tests, and they have cases (reliability of peers, H3)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CASES_MIN = 100


def named() -> dict[str, list[str]]:
    """Advisory → its tests."""
    rows = [
        line.split("|")[1:4] for line in (ROOT / "docs" / "advisories.md").read_text().splitlines() if line.startswith("| ")
    ]
    return {row[0].strip(): re.findall(r"`(test_\w+)`", row[2]) for row in rows[1:]}


def test_every_advisory_has_tests_that_exist() -> None:
    found = named()
    there = {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert len(found) == 30
    missing = {advisory: tests for advisory, tests in found.items() if not tests or not set(tests) <= there}
    assert missing == {}


def test_they_have_a_hundred_cases_and_more(request: pytest.FixtureRequest) -> None:
    """Of what was collected, so only where all was: a run of this file alone does not know."""
    names = {name for tests in named().values() for name in tests}
    cases = [item for item in request.session.items if getattr(item, "originalname", item.name) in names]
    if {getattr(item, "originalname", item.name) for item in cases} != names:
        pytest.skip("not all of them were collected")
    assert len(cases) >= CASES_MIN
