"""The chart by Helm itself (H4): what it renders is what is shipped as plain manifests, and it refuses what it should.

Helm's own library, from a wheel: `scripts/tools helm` installs it beside everything else.
"""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_deploy import ALL_ON, CHART, MAKE, ROOT, WRONG_VALUES

PYTHON = ROOT / "build" / "tools-helm" / "bin" / "python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no Helm: scripts/tools helm installs its library")
WAYS: dict[str, dict[str, Any]] = {"as shipped": {}, "all on": ALL_ON, "open": {"networkPolicy": {"enabled": False}}}
ASK = """
import json, sys
import helm_python
asked = json.load(sys.stdin)
lint = helm_python.lint(asked["chart"], strict=True)
told = {"version": helm_python.helm_sdk_version(), "lint": lint, "rendered": [], "refused": []}
with helm_python.Chart.load(asked["chart"]) as chart:
    for values in asked["values"]:
        told["rendered"].append(chart.render(values, name="headworks", namespace="serving"))
    for values in asked["wrong"]:
        try:
            chart.render(values, name="headworks", namespace="serving")
            told["refused"].append(None)
        except helm_python.HelmValuesError as error:
            told["refused"].append(str(error))
json.dump(told, sys.stdout)
"""


@cache
def told() -> Any:
    asked = {"chart": str(CHART), "values": list(WAYS.values()), "wrong": [over for over, _ in WRONG_VALUES]}
    ran = subprocess.run([PYTHON, "-c", ASK], input=json.dumps(asked), capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("way", WAYS)
def test_H4_helm_makes_the_very_objects_of_the_plain_manifests(way: str) -> None:
    made = told()["rendered"][list(WAYS).index(way)]
    by_helm = {Path(name).name: list(yaml.safe_load_all(text)) for name, text in made.items() if text.strip()}
    notes = by_helm.pop("NOTES.txt")
    assert notes
    assert by_helm == {name: list(yaml.safe_load_all(text)) for name, text in MAKE.rendered(WAYS[way]).items()}


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    assert told()["version"].startswith("v4.")
    assert [one for one in told()["lint"]["messages"] if one["severity"] > 1] == [] and told()["lint"]["errors"] == []


def test_helm_refuses_values_that_would_not_work() -> None:
    assert [None for one in told()["refused"] if one is None] == []
    assert "'sqlite:headworks.db' does not match pattern" in told()["refused"][0]
    assert "additional properties 'replicaCount' not allowed" in told()["refused"][2]
