"""The report of `goodput.py` as a page, and which of its targets are missed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

GOODPUT_MIN = {"2": 0.95, "3": 0.95, "5": 0.90}
BOUNDS = {"late_ratio": 0.02, "false_refusal_ratio": 0.05, "reserved_over_used": 2.3, "preemptions_per_1000": 1.0}
COLUMNS = (
    ("goodput\n÷ peak", "goodput_of_peak", "{:.3f}"),
    ("requests\n÷ peak", "requests_of_peak", "{:.3f}"),
    ("wishes served", "success_ratio", "{:.1%}"),
    ("attempts", "attempts", "{:.2f}"),
    ("wasted", "wasted_ratio", "{:.1%}"),
    ("false refusals", "false_refusal_ratio", "{:.1%}"),
    ("the same, nothing preempted", "false_refusal_unpreempting_ratio", "{:.1%}"),
    ("late", "late_ratio", "{:.1%}"),
    ("reserved ÷ used", "reserved_over_used", "{:.2f}"),
    ("preemptions /1,000", "preemptions_per_1000", "{:.1f}"),
)


def missed(report: dict[str, Any]) -> list[str]:
    """One line for each target that headworks misses; targets of figures that were not asked for are not judged."""
    found = []
    for place, policies in _compared(report):
        ours = policies.get("headworks", {})
        for k, figures in ours.items():
            least = GOODPUT_MIN.get(k, 0.0)
            if figures["goodput_of_peak"] < least:
                found.append(f"{place}, k = {k}: goodput {figures['goodput_of_peak']:.3f} of peak, not {least}")
            for name, others in policies.items():
                theirs = others[k]["goodput_of_peak"] if k in others else 0.0
                if not name.startswith("headworks") and name != "oracle" and theirs >= figures["goodput_of_peak"]:
                    found.append(f"{place}, k = {k}: {name} is ahead with {theirs:.3f}")
            for key, most in BOUNDS.items() if place in report["traces"] else ():
                if figures[key] is not None and figures[key] > most:
                    found.append(f"{place}, k = {k}: {key} {figures[key]:.3f}, not {most}")
    return found


def _compared(report: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from report["traces"].items()
    for variation, traces in report["variations"].items():
        for trace, policies in traces.items():
            yield f"{trace} with {variation}", policies


def page(report: dict[str, Any]) -> str:
    """Markdown."""
    today = datetime.now(UTC).date().isoformat()
    lines = [
        "# Goodput past saturation",
        "",
        f"Measured {today} by `bench/goodput.py` in virtual time, engine model `{report['engine']}`, {report['seeds']} seeds,",
        f"{report['requests']} requests at saturation in what is counted, and {report['seconds']:g} s of it at least;",
        f"{report['refusals']} refusals of a run are tried again. How everything is defined and decided stands in",
        "the head of the bench; why, in [decision 20](decisions/0020-goodput.md). `k` is the load ÷ the measured saturation.",
        "A peak is low where bursts or a few long prompts keep 99 % of the promises only at a low rate: then more than 1 is",
        "possible past it.",
        "`oracle` knows every output. Intervals over the seeds are in what `--json` prints.",
        "",
    ]
    for trace, found in report["saturation"].items():
        tokens_per_s = found["peak"]["goodput_tokens_per_s"]
        lines.append(f"- {trace}: saturation {found['requests_per_s']:.2f} requests/s, peak {tokens_per_s:,.0f} tokens/s")
    for place, policies in _compared(report):
        lines += ["", f"## {place}", "", *_table(policies)]
    lines += ["", "## Targets that are missed", "", *([f"- {one}" for one in missed(report)] or ["None."])]
    return "\n".join(lines) + "\n"


def picture(report: dict[str, Any], path: Path) -> None:
    """Goodput against load, a panel for each trace and a line for each policy."""
    from matplotlib.figure import Figure

    traces = report["traces"]
    figure = Figure(figsize=(3.2 * len(traces), 3.6), layout="constrained")
    axes: Any = figure.subplots(1, len(traces), squeeze=False, sharey=True)
    for axis, (trace, policies) in zip(axes[0], traces.items(), strict=True):
        for name, by_k in policies.items():
            style = {"headworks": "o-", "oracle": "k--"}.get(name, ".-")
            faint = 1.0 if name in ("headworks", "oracle") else 0.45
            loads, goodputs = [float(k) for k in by_k], [one["goodput_of_peak"] for one in by_k.values()]
            axis.plot([1.0, *loads], [1.0, *goodputs], style, alpha=faint, label=name)
        axis.set_title(trace, fontsize=9)
        axis.set_xlabel("offered ÷ saturation")
        axis.set_ylim(bottom=0)
    axes[0][0].set_ylabel("goodput ÷ peak")
    axes[0][-1].legend(frameon=False, fontsize=6)
    figure.savefig(path, dpi=110)


def _table(policies: dict[str, Any]) -> Iterator[str]:
    yield "| k | policy | " + " | ".join(heading.replace("\n", " ") for heading, _, _ in COLUMNS) + " |"
    yield "|---|---|" + "---:|" * len(COLUMNS)
    multiples = sorted({k for by_k in policies.values() for k in by_k}, key=float)
    for k in multiples:
        shown = [name for name in policies if k in policies[name]]
        for name in sorted(shown, key=lambda one: (one != "oracle", -policies[one][k]["goodput_of_peak"])):
            cells = [_cell(form, policies[name][k][key]) for _, key, form in COLUMNS]
            yield f"| {k} | {name} | " + " | ".join(cells) + " |"


def _cell(form: str, value: float | None) -> str:
    return "" if value is None else form.format(value)
