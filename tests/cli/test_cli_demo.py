"""`headworks demo`: when it says that it was better."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from load_figures_made import made

from headworks.cli.demo import is_better


@pytest.mark.parametrize(
    ("before", "after", "better"),
    [
        ((1.0, 0.4), (6.0, 0.1), True),
        ((6.0, 0.1), (6.0, 0.1), False),
        ((6.0, 0.1), (1.0, 0.0), False),
        ((1.0, 0.1), (6.0, 0.2), False),
        ((1.0, None), (6.0, None), True),
    ],
)
def test_better_is_more_good_answers_and_no_more_waste(
    before: tuple[float, float | None], after: tuple[float, float | None], better: bool
) -> None:
    assert is_better(made(*before), made(*after)) is better


def test_the_demo_runs_by_itself_and_its_status_is_its_result() -> None:
    command = [sys.executable, "-m", "headworks.cli.main", "demo", "--seconds", "5", "--json"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=90)
    result = json.loads(found.stdout)
    assert found.returncode == (0 if result["holds"] else 1), found.stderr
    assert result["before"]["offered"] == result["after"]["offered"] > 50
    assert result["before"]["ends"].get("refused", 0) == 0
    assert result["before"]["wasted_basis"] == result["after"]["wasted_basis"] == "engine"
