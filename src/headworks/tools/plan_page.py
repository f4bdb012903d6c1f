"""The HTML report of a plan: the control, what would be otherwise, the curves of log and plan, and examples in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from headworks.sim.page import Cell, document, number, paragraph, section, table, tiles
from headworks.sim.report_page import sections_of

FIRST_FIGURES = (
    ("admitted", "admitted", ""),
    ("refused", "refused", ""),
    ("in time", "in_time", ""),
    ("late", "late", ""),
    ("first token p95", "ttft_p95_s", "s"),
)
"""Title, key, unit: the columns of a terminal."""
FIGURES = (*FIRST_FIGURES, ("first token p50", "ttft_p50_s", "s"), ("client left", "left", ""), ("tokens", "tokens", ""))
"""The columns of the page."""
TENANTS_MAX = 50


def plan_page(found: Mapping[str, Any]) -> str:
    """Of what `plan` found; its examples have their stories."""
    log, series = found["log"], found["series"]
    title = f"Plan: policy {found['policy_version']}"
    lead = (
        f"{number(log['arrivals'])} requests of a decision log from {log['from_utc'][:19].replace('T', ' ')} UTC on "
        f"({number(log['seconds'], 's', 0)} of {number(log['lives'])} gateway {'life' if log['lives'] == 1 else 'lives'}), "
        f"decided about again under policy {found['policy_version']}; in the log it was {', '.join(log['policy_versions'])}."
    )
    parts = [paragraph(control_sentence(found), "holds" if found["holds"] else "warn"), _tiles(found)]
    parts.append(section("By class", _table("class", found["classes"] | found["all"])))
    parts.append(section("By tenant", _table("tenant", first_tenants(found["tenants"]))))
    if found["changes"]:
        parts.append(section("What comes out otherwise", _changes(found["changes"])))
    parts += sections_of(series["curves"], series["ttft_slo_s"], series["duration_s"])
    if found["examples"]:
        parts.append(section("Examples", *(_example(one) for one in found["examples"])))
    parts.append(section("What this rests on", paragraph(RESTS_ON)))
    return document(title, lead, *parts)


RESTS_ON = (
    "The plan is made by the gate that runs in production, told of the same arrivals at the same instants. What ran in the log "
    "keeps its length and its times, scaled where its engine has another number of executions inside; what did not run is like "
    "answers of its tenant and class. Nobody arrives who did not, and whoever came back comes back. Where a policy "
    "fills an engine further than the log ever saw, its times are extrapolated."
)


def control_sentence(found: Mapping[str, Any]) -> str:
    """Printed before anything else."""
    control = found["control"]
    ratio = control["reproduced_ratio"]
    if ratio is None:
        return "Control: nothing in this log could be compared."
    told = (
        f"Control: under the log's own policy {number(control['reproduced'])} of {number(control['compared'])} outcomes "
        f"({number(ratio, '%')}) are the same again"
    )
    least = number(control["reproduced_min"], "%")
    return f"{told}." if found["holds"] else f"{told}, less than {least}: what follows is not to be relied on."


def first_tenants(tenants: Mapping[str, Any]) -> dict[str, Any]:
    """Those for whom most is otherwise."""
    ranked = sorted(tenants.items(), key=lambda item: (-item[1]["changed"], -item[1]["arrivals"], item[0]))
    return dict(ranked[:TENANTS_MAX])


def both(figures: Mapping[str, Any], key: str, unit: str) -> str:
    """A figure of the log and of the plan, their unit once; and one figure where they are the same."""
    logged, planned = (number(figures[side][key]) for side in ("log", "plan"))
    return f"{logged if logged == planned else f'{logged} → {planned}'}{f' {unit}' if unit else ''}"


def _tiles(found: Mapping[str, Any]) -> str:
    figures = found["all"]["all"]
    return tiles(
        [
            ("come out otherwise", f"{number(found['changed'])} of {number(figures['arrivals'])}"),
            ("in time, log → plan", both(figures, "in_time", "")),
            ("refused, log → plan", both(figures, "refused", "")),
            ("late, log → plan", both(figures, "late", "")),
            ("tokens, log → plan", both(figures, "tokens", "")),
        ]
    )


def _table(head: str, groups: Mapping[str, Any]) -> str:
    rows = [
        [
            *(Cell(name, is_number=False), Cell(number(figures["arrivals"])), Cell(number(figures["changed"]))),
            *(Cell(both(figures, key, unit)) for _, key, unit in FIGURES),
        ]
        for name, figures in groups.items()
    ]
    return table([head, "arrivals", "otherwise", *(title for title, _, _ in FIGURES)], rows)


def _changes(changes: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [Cell(one["logged"], is_number=False), Cell(one["planned"], is_number=False), Cell(number(one["arrivals"]))]
        for one in changes
    ]
    return table(["in the log", "in the plan", "arrivals"], rows)


def _example(one: Mapping[str, Any]) -> str:
    stories = (("In the log", one["logged_story"]), ("In the plan", one["planned_story"]))
    told = "".join(f"<h4>{title}</h4>{''.join(paragraph(line) for line in lines if line)}" for title, lines in stories)
    head = f"{one['id']}, tenant {one['tenant']}: {one['logged']} → {one['planned']}"
    return f"<article class=story><h3>{escape(head)}</h3>{told}</article>"
