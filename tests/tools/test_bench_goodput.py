"""The goodput bench runs, says what its head promises, and judges by the stated targets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from goodput_figures import over_seeds  # noqa: E402
from goodput_page import missed, page  # noqa: E402

KEYS = {
    "goodput_of_peak",
    "requests_of_peak",
    "success_ratio",
    "attempts",
    "wasted_ratio",
    "false_refusal_ratio",
    "false_refusal_unpreempting_ratio",
    "late_ratio",
    "reserved_over_used",
    "preemptions_per_1000",
    "ttft_p99_s",
}


def test_G2_the_bench_compares_headworks_with_others_and_the_oracle() -> None:
    words = ["--json", "--quick", "--requests", "30", "--policy", "headworks,oracle,no_control,tail_drop"]
    ran = subprocess.run(
        [sys.executable, BENCH / "goodput.py", *words], capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode in (0, 1), ran.stderr
    report = json.loads(ran.stdout)
    policies = report["traces"]["servegen_mlarge_1h"]
    assert list(policies) == ["headworks", "oracle", "no_control", "tail_drop"]
    for figures in policies.values():
        assert figures["3"].keys() == KEYS
        assert figures["3"]["ttft_p99_s"].keys() == {"interactive", "batch", "bulk"}
    # Three times what it can carry, and all of it let in: most of what the engine does is for nobody.
    assert policies["no_control"]["3"]["goodput_of_peak"] < policies["headworks"]["3"]["goodput_of_peak"]
    assert policies["oracle"]["3"]["late_ratio"] < 0.05


def figures(goodput_ratio: float, late_ratio: float = 0.0) -> dict[str, Any]:
    return {**dict.fromkeys(KEYS), "goodput_of_peak": goodput_ratio, "late_ratio": late_ratio}


def report(**policies: dict[str, Any]) -> dict[str, Any]:
    shown = {name: {"5": one} for name, one in policies.items()}
    return {
        "engine": "a100_8b",
        "seeds": 1,
        "requests": 1,
        "seconds": 200.0,
        "refusals": 60,
        "saturation": {},
        "traces": {"code": shown},
        "variations": {},
    }


def test_G2_a_target_is_missed_by_too_little_by_being_behind_and_by_being_late() -> None:
    assert missed(report(headworks=figures(0.90), tail_drop=figures(0.89), oracle=figures(1.2))) == []
    assert missed(report(headworks=figures(0.89))) == ["code, k = 5: goodput 0.890 of peak, not 0.9"]
    assert missed(report(headworks=figures(0.91), vtc=figures(0.92))) == ["code, k = 5: vtc is ahead with 0.920"]
    assert missed(report(headworks=figures(0.91, 0.021))) == ["code, k = 5: late_ratio 0.021, not 0.02"]
    assert "- code, k = 5: goodput 0.890 of peak, not 0.9" in page(report(headworks=figures(0.89)))


def test_G2_intervals_are_those_of_the_mean_by_students_distribution() -> None:
    """1, 2, 3: mean 2, standard deviation 1, so 4.30 ÷ √3 on either side."""
    found = over_seeds([{"a": 1.0, "b": {"c": 1.0}}, {"a": 2.0, "b": {"c": 1.0}}, {"a": 3.0, "b": {"c": 1.0}}])
    assert found["a"] == 2.0
    assert found["intervals"]["a"] == [pytest.approx(2 - 4.30 / 3**0.5), pytest.approx(2 + 4.30 / 3**0.5)]
    assert found["b"] == {"c": 1.0} and found["intervals"]["b"] == {"c": [1.0, 1.0]}
    assert over_seeds([{"a": 1.0, "b": None}]) == {"a": 1.0, "b": None}
