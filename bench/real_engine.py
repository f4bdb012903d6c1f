"""What the benches of a real engine do alike: find what it carries, keep a report in three forms, speak while they run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Report = dict[str, Any]


def saturation_per_s(carries: Callable[[float], bool], first_per_s: float, step_per_s: float) -> float:
    """The highest rate the engine carries: doubled until it fails, then the gap is halved down to the step."""
    good, bad = 0.0, first_per_s
    while carries(bad):
        good, bad = bad, bad * 2
    while bad - good > step_per_s:
        middle = (good + bad) / 2
        good, bad = (middle, bad) if carries(middle) else (good, middle)
    if not good:
        raise SystemExit("the engine does not carry one request a second within the SLO: is the machine busy?")
    return good


def told(
    report: Report,
    name: str,
    folder: Path,
    page: Callable[[Report], str],
    picture: Callable[[Report, Path], None],
    as_json: bool,
) -> int:
    """Kept as JSON, as a page and as a picture, and printed. The exit status: 1 where a target is missed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / f"{name}.md").write_text(page(report))
    picture(report, folder / f"{name}.png")
    print(json.dumps(report, indent=1) if as_json else page(report))
    return 0 if all(report["holds"].values()) else 1


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
