"""Stock OpenAI clients that are refused at once come back as a schedule (B15, K52): the real SDK before the real gateway.

In virtual time, so what else the machine does changes nothing. In a process of its own, as its clock is that loop's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "retry_wave.py"
CAPACITY_PER_S = 10.0
LONG = pytest.mark.skipif("HEADWORKS_DRILLS" not in os.environ, reason="a minute: HEADWORKS_DRILLS=1 runs it")


def wave(*flags: str) -> tuple[int, dict[str, Any]]:
    """Its exit code and its figures. In plain Python: a compiled clock is not to be replaced."""
    command = [sys.executable, str(BENCH), "--json", *flags]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "HEADWORKS_PURE": "1"})
    assert ran.stdout, ran.stderr
    return ran.returncode, json.loads(ran.stdout)


def test_B15_stock_clients_refused_at_once_come_back_one_after_the_other_and_are_all_served() -> None:
    code, found = wave("--clients", "40")
    assert (code, found["came_to"], found["kinds"]) == (0, {"served": 40}, {"ticket_kept": found["refused_first"]})
    assert found["refused_first"] >= 30, "or there was no wave"
    assert found["returns_per_s_max"] <= 1.2 * CAPACITY_PER_S
    assert found["settled_s"] <= 2 * 40 / CAPACITY_PER_S


def test_B15_without_their_slots_the_same_clients_come_back_as_a_wave() -> None:
    """The negative control: it is the hints that spread them."""
    code, found = wave("--clients", "40", "--no-slots")
    assert code == 1
    assert found["returns_per_s_max"] >= 30 > 1.2 * CAPACITY_PER_S
    assert found["came_to"]["served"] < 40


@LONG
def test_K52_what_60_s_cannot_hold_is_told_not_to_retry() -> None:
    code, found = wave("--clients", "700")
    assert code == 0, found
    within = int(60 * found["drain_per_s"])
    assert found["came_to"]["served"] + found["came_to"]["sent away"] == 700
    assert found["came_to"]["served"] >= 0.9 * within
    assert found["returns_per_s_max"] <= 1.2 * CAPACITY_PER_S
    assert found["settled_s"] < 2 * within / CAPACITY_PER_S
