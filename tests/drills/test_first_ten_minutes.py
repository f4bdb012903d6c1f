"""`scripts/first-ten-minutes --fake`: everything the README promises of the first ten minutes, in its own words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_F2_F3_from_no_file_to_an_enforced_policy_by_the_readme_alone() -> None:
    command = [sys.executable, "scripts/first_ten_minutes.py", "--fake"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stdout[-3_000:] + ended.stderr[-2_000:]
    for promise in ("observing refuses nobody", "the plan says who would have been refused", "without a key nobody gets in"):
        assert f"holds: {promise}" in ended.stdout
