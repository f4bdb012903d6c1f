"""The Grafana boards of `dashboards/`: classic JSON that every Grafana imports. Made of `board_panels.py` by `scripts/docs`."""

from __future__ import annotations

import json
from typing import Any

from board_panels import BOARDS, Board, Panel

HEIGHT, WIDTH = 8, 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def pages() -> dict[str, str]:
    """File name → text."""
    return {f"{one.uid.removeprefix('headworks-')}.json": json.dumps(board(one), indent=1) + "\n" for one in BOARDS}


def board(one: Board) -> dict[str, Any]:
    """One board: no id, so that the same file can be imported anywhere, and a fixed address."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in one.rows:
        panels.append(
            placed({"type": "row", "title": title, "collapsed": False, "panels": []}, len(panels) + 1, 0, top, WIDTH, 1)
        )
        top, left = top + 1, 0
        for each in row:
            if left + each.width > WIDTH:
                top, left = top + HEIGHT, 0
            panels.append(placed(panel(each), len(panels) + 1, left, top, each.width, HEIGHT))
            left += each.width
        top += HEIGHT
    return {
        "id": None,
        "uid": one.uid,
        "title": one.title,
        "description": one.description,
        "tags": ["headworks"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"type": "dashboards", "title": "headworks", "tags": ["headworks"], "asDropdown": True, "includeVars": True}],
        "templating": {"list": [source(), *(variable(name, query) for name, query in one.variables)]},
        "panels": panels,
    }


def placed(made: dict[str, Any], number: int, left: int, top: int, width: int, height: int) -> dict[str, Any]:
    """A panel in the grid, which is 24 wide."""
    return made | {"id": number, "gridPos": {"x": left, "y": top, "w": width, "h": height}}


def panel(one: Panel) -> dict[str, Any]:
    """One question, drawn over time."""
    steps: list[dict[str, Any]] = [{"color": "text", "value": None}]
    if one.limit is not None:
        steps.append({"color": "orange", "value": one.limit})
    defaults: dict[str, Any] = {
        "unit": one.unit,
        "min": None if one.title.startswith("Observed") else 0,
        "thresholds": {"mode": "absolute", "steps": steps},
        "custom": {
            "lineWidth": 1,
            "fillOpacity": 8,
            "showPoints": "never",
            "thresholdsStyle": {"mode": "dashed" if one.limit is not None else "off"},
        },
    }
    return {
        "type": one.kind,
        "title": one.title,
        "description": one.description,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": query.expression, "legendFormat": query.legend}
            for number, query in enumerate(one.queries)
        ],
    }


def source() -> dict[str, Any]:
    """Which Prometheus: the board names none."""
    return {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"}


def variable(name: str, query: str) -> dict[str, Any]:
    """Several at once, all of them at first."""
    return {
        "type": "query",
        "name": name,
        "datasource": SOURCE,
        "query": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }
