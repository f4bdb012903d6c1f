"""`headworks demo`: when it says that it was better, and that it tells what it measured."""

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
        ((20, 3.0, 15.0), (70, 0.5, 18.0), True),
        ((20, None, 15.0), (70, 0.5, 18.0), True),
        ((70, 0.5, 15.0), (70, 0.4, 15.0), False),
        ((20, 0.5, 15.0), (70, 0.6, 15.0), False),
        ((20, 3.0, 15.0), (70, 0.5, None), False),
        ((70, 0.5, 15.0), (20, 0.4, 15.0), False),
    ],
)
def test_better_is_a_better_chat_and_no_document_left_out(
    before: tuple[int, float | None, float | None], after: tuple[int, float | None, float | None], better: bool
) -> None:
    assert is_better(made(*before), made(*after)) is better


def test_the_demo_runs_by_itself_and_its_status_is_its_result() -> None:
    command = [sys.executable, "-m", "headworks.cli.main", "demo", "--seconds", "6", "--json"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=110)
    result = json.loads(found.stdout)
    assert found.returncode == (0 if result["holds"] else 1), found.stderr
    before, after = result["before"], result["after"]
    for tenant in ("chat", "flood"):
        assert before[tenant]["offered"] == after[tenant]["offered"] > 10
        assert before[tenant]["ends"].get("refused", 0) == 0
    assert before["flood_took_s"] is not None
    assert before["engine_waiting_requests_max"] > 10
