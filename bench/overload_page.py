"""The overload bench's result as a page of the documentation and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLOURS = {"direct": "#c8553d", "valve": "#e0a030", "headworks": "#2a7f62"}


def page(report: dict[str, Any]) -> str:
    """The table as a page of the documentation."""
    valve = f" The valve's best value was `--max-num-queued-reqs {report['valve']}`." if report["valve"] else ""
    lines = [
        "# Overload of a real engine",
        "",
        f"Measured {report['measured']} by `bench/overload.py` on {report['cores']} cores shared by engine, gateway and load:",
        "vLLM on the CPU, 16 sequences, lengths of azure2023_conv scaled to its context, Poisson arrivals,",
        f"patience {report['patience_s']:g} s, first-token SLO {report['ttft_slo_s']:g} s, no retries.",
        f"Saturation {report['saturation_per_s']:.1f}/s.{valve}",
        f"Medians of {report['rounds']} rounds of {report['seconds']:g} s.",
        "How each figure is defined stands in the head of the bench and in `tools/load_figures.py`.",
        "",
        "| offered | way | goodput/s | second half/s | first token p50 / p95 / p99, s | wasted tokens | engine waiting "
        "| refusal p99, ms |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in report["medians"]:
        times = " / ".join(number(row[f"ttft_p{percent}_s"], "{:.2f}") for percent in (50, 95, 99))
        lines.append(
            f"| {row['multiple']:g}× ({row['offered_per_s']:.1f}/s) | {row['way']} | {row['goodput_per_s']:.1f} "
            f"| {row['second_half_goodput_per_s']:.1f} | {times} | {number(row['wasted_ratio'], '{:.1%}')} "
            f"| {number(row['waiting_requests_mean'], '{:.1f}')} | {number(row['refusal_p99_s'], '{:.1f}', 1000)} |"
        )
    lines += ["", *(f"- {'holds' if held else 'MISSED'}: {claim}" for claim, held in report["holds"].items())]
    return "\n".join([*lines, "", "![Goodput, first token and waste against load](overload.png)", ""])


def number(value: float | None, form: str, times: float = 1.0) -> str:
    return "–" if value is None else form.format(value * times)


def picture(report: dict[str, Any], path: Path) -> None:
    """Goodput, first token and waste against the multiple of saturation, a line a way."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    panels = (
        ("goodput_per_s", "goodput, 1/s", 1.0),
        ("ttft_p99_s", "first token p99, s", 1.0),
        ("wasted_ratio", "wasted tokens, %", 100.0),
    )
    axes: Any = figure.subplots(1, len(panels))
    for axis, (name, title, times) in zip(axes, panels, strict=True):
        for way, colour in COLOURS.items():
            rows = [row for row in report["medians"] if row["way"] == way and row[name] is not None]
            if rows:
                axis.plot([row["multiple"] for row in rows], [row[name] * times for row in rows], "o-", color=colour, label=way)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("offered ÷ saturation")
        axis.set_ylim(bottom=0)
    axes[0].axhline(report["saturation_per_s"], color="black", linewidth=0.8, linestyle="--", label="saturation")
    axes[1].axhline(report["ttft_slo_s"], color="black", linewidth=0.8, linestyle="--")
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)
