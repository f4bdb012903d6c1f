"""Alert rules, their runbooks and the boards: all of it asks for metrics that exist, and alerts fire and clear (F4)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headworks.gateway.metrics_table import CLOSED, METRICS, PREFIX

ROOT = Path(__file__).resolve().parent.parent
DASHBOARDS = ROOT / "dashboards"
BOARDS = ("on-call", "tenant", "capacity")
PROMTOOL = shutil.which("promtool", path=f"{ROOT / '.venv/bin'}:/usr/local/bin:/usr/bin")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool here; scripts/promtool fetches it on Debian")
SCRAPED = {"job", "instance", "le"}
"""Labels that a scrape adds, and that of buckets."""
RUNBOOK_PARTS = ("## What it means", "## Look at", "## Do", "## Not this")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DASHBOARDS / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str]]:
    """(where, expression) of every panel of every board."""
    for name in BOARDS:
        for panel in json.loads((DASHBOARDS / f"{name}.json").read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield f"{name}: {panel['title']}", target["expr"]


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *words], cwd=DASHBOARDS, capture_output=True, text=True, timeout=60)


def metric_of(name: str) -> str:
    """The metric a series belongs to: a histogram has several."""
    name = name.removeprefix(PREFIX)
    return name if name in METRICS else re.sub("_(bucket|sum|count)$", "", name)


def asked(expression: str) -> list[tuple[str, dict[str, str]]]:
    """(metric, label → value that must equal) of every selector."""
    found = []
    for name, matchers in re.findall(r"(headworks_\w+)(?:\{([^}]*)\})?", expression):
        equal = dict(re.findall(r'(\w+)="([^"$]*)"', matchers))
        found.append((name, equal | dict.fromkeys(re.findall(r"(\w+)(?:=~|!=|!~)", matchers), "")))
    return found


def test_F4_alerts_and_boards_ask_for_metrics_and_labels_that_exist() -> None:
    expressions = [(rule["alert"], rule["expr"]) for rule in rules()] + list(queries())
    assert len(expressions) > 45
    for where, expression in expressions:
        selectors = asked(expression)
        assert selectors, where
        for name, labels in selectors:
            metric = METRICS[metric_of(name)]
            assert labels.keys() <= SCRAPED | set(metric.labels), where
            for label, value in labels.items():
                assert not value or label not in CLOSED or value in CLOSED[label], (where, label, value)
        ours = {label for name, _ in selectors for label in METRICS[metric_of(name)].labels}
        for grouped in re.findall(r"by \(([^)]*)\)", expression):
            assert set(grouped.split(", ")) <= SCRAPED | ours, where


def test_F4_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    named = {rule["annotations"]["runbook_url"] for rule in rules()}
    assert named == {f"docs/runbooks/{path.name}" for path in (ROOT / "docs/runbooks").glob("*.md") if path.name != "index.md"}
    for rule in rules():
        text = (ROOT / rule["annotations"]["runbook_url"]).read_text()
        assert text.startswith(f"# {rule['alert']}\n"), rule["alert"]
        assert all(part in text for part in RUNBOOK_PARTS), rule["alert"]
        assert f"runbooks/{Path(rule['annotations']['runbook_url']).name}" in (ROOT / "docs/operating.md").read_text()


def test_F4_every_alert_is_drilled() -> None:
    drills = yaml.safe_load((DASHBOARDS / "alerts_test.yaml").read_text())["tests"]
    looks = [look for drill in drills for look in drill["alert_rule_test"]]
    fires = {look["alertname"] for look in looks if look["exp_alerts"]}
    clears = {look["alertname"] for look in looks if not look["exp_alerts"]}
    assert fires == clears == {rule["alert"] for rule in rules()}


@needs_promtool
def test_F4_every_alert_fires_in_its_drill_and_clears() -> None:
    checked = promtool("check", "rules", "alerts.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    drilled = promtool("test", "rules", "alerts_test.yaml")
    assert drilled.returncode == 0, drilled.stdout + drilled.stderr


@needs_promtool
def test_F4_every_query_of_the_boards_parses(tmp_path: Path) -> None:
    """As rules, with Grafana's own words replaced: Prometheus itself says whether it can read them."""
    made = [
        {"record": f"query:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, (_, expression) in enumerate(queries())
    ]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "boards", "rules": made}]}))
    checked = promtool("check", "rules", str(path))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_F4_boards_can_be_imported_anywhere() -> None:
    for name in BOARDS:
        board = json.loads((DASHBOARDS / f"{name}.json").read_text())
        assert (board["id"], board["uid"]) == (None, f"headworks-{name}")
        panels = [panel for panel in board["panels"] if panel["type"] != "row"]
        assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
        assert all(panel["description"] and panel["fieldConfig"]["defaults"]["unit"] for panel in panels)
        taken = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]}
        assert len(taken) == len(board["panels"])
