"""The HTML report of what is compared: disciplines of a scenario, or a log and what a plan makes of it.

Everything in it stands in `--json` as well: its tables are the results, its curves are `series`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headworks.sim.drawing import Chart, Line, figure, shares
from headworks.sim.page import Cell, document, number, section, table
from headworks.sim.scenario import Comparison, Scenario
from headworks.sim.series import ENDS

TONES = ("good", "late", "refused", "left", "failed")
"""Colours of `ENDS`."""
COLUMNS = (
    ("arrivals", "arrivals", ""),
    ("admitted", "admitted", ""),
    ("refused", "refused", ""),
    ("useful", "useful_per_s", "/s"),
    ("goodput", "goodput_per_s", "/s"),
    ("work for nobody", "wasted_ratio", "%"),
    ("first token p50", "ttft_p50_s", "s"),
    ("first token p95", "ttft_p95_s", "s"),
    ("first token p99", "ttft_p99_s", "s"),
    ("longest queue", "queue_max", ""),
)
CLASS_COLUMNS = (
    ("arrivals", "arrivals", ""),
    ("useful", "useful", ""),
    ("in time", "goodput_ratio", "%"),
    ("first token p50", "ttft_p50_s", "s"),
    ("first token p95", "ttft_p95_s", "s"),
    ("longest answer", "answered_s_max", "s"),
)

Columns = Sequence[tuple[str, str, str]]


def simulated_page(found: Mapping[str, Any], scenario: Scenario) -> str:
    """Of a scenario's results under one seed, with their series."""
    comparison = scenario.comparison()
    sections = _compared("", found["disciplines"], comparison)
    for case, inner in found["cases"].items():
        sections += _compared(case, inner["disciplines"], scenario.comparison(case))
    failures = found["failures"]
    holds = "Every expectation of the scenario holds." if not failures else f"Does not hold: {'; '.join(failures)}."
    lead = f"{comparison.duration_s:g} s in virtual time, seed {found['seed']}, by headworks sim. {holds}"
    return document(found["scenario"], lead, *sections)


def _compared(case: str, disciplines: Mapping[str, Any], comparison: Comparison) -> list[str]:
    """One world and the disciplines that were tried in it."""
    limits = {name: one.ttft_slo_s for name, one in comparison.policy.class_policies().items()}
    tables = [rows_of("discipline", COLUMNS, disciplines)]
    if len(limits) > 1:
        classes = {f"{name}, {kind}": one for name, found in disciplines.items() for kind, one in found["classes"].items()}
        tables.append(rows_of("discipline, class", CLASS_COLUMNS, classes))
    curves = {name: one["series"] for name, one in disciplines.items()}
    return [section(case.replace("_", " ") or "Results", *tables), *sections_of(curves, limits, comparison.duration_s)]


def rows_of(head: str, columns: Columns, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """A table with a row for each."""
    cells = [
        [Cell(name, is_number=False), *(Cell(number(one[key], unit)) for _, key, unit in columns)] for name, one in rows.items()
    ]
    return table([head, *(title for title, _, _ in columns)], cells)


def sections_of(curves: Mapping[str, Mapping[str, Any]], limits: Mapping[str, float | None], duration_s: float) -> list[str]:
    """The curves of each, on common scales: what became of arrivals, queues and engines, first tokens, tenants."""
    names = list(curves)
    first = curves[names[0]]
    top = max(sum(at) for one in curves.values() for at in zip(*(one["per_s"][end] for end in ENDS), strict=True))
    arrivals = []
    for name, one in curves.items():
        parts = [Line(end, one["per_s"][end]) for end in ENDS]
        arrivals.append(figure(Chart(name, "/s", one["bin_s"], parts, stacked=True, tones=TONES, reach=[top])))
    engines = [
        figure(Chart(title, unit, first["bin_s"], [Line(name, curves[name][key]) for name in names]))
        for title, key, unit in (
            ("Waiting at the gateway", "waiting", ""),
            ("Sent to an engine and not ended", "running", ""),
            ("Memory in use, as the engines say", "kv_used_ratio", "%"),
        )
    ]
    found = [section("What became of those that came", *arrivals, columns=True)]
    found.append(section("Queue and engines", *engines, columns=True))
    found.append(section("Time to first token, the 95th of 100", *_first_tokens(curves, limits), columns=True))
    tenants = [(name, list(one["tokens_by_tenant"].items())) for name, one in curves.items()]
    if any(len(parts) > 1 for _, parts in tenants):
        found.append(section("Tenants", shares("Tokens used of the engines, by tenant", tenants)))
    return found


def _first_tokens(curves: Mapping[str, Mapping[str, Any]], limits: Mapping[str, float | None]) -> list[str]:
    classes = list(dict.fromkeys(name for one in curves.values() for name in one["ttft_p95_s"]))
    step_s = next(iter(curves.values()))["bin_s"]
    found = []
    for kind in classes:
        limit_s = limits.get(kind)
        lines = [Line(name, one["ttft_p95_s"].get(kind, ())) for name, one in curves.items()]
        lines = [line for line in lines if line.values]
        limit = None if limit_s is None else (f"promised: {limit_s:g} s", limit_s)
        found.append(figure(Chart(kind, "s", step_s, lines, limit=limit)))
    return found
