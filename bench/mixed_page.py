"""The mixed bench's result as a page of the documentation and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLOURS = {"alone": "#7a8b99", "direct": "#c8553d", "valve": "#e0a030", "headworks": "#2a7f62"}


def page(report: dict[str, Any]) -> str:
    """The table as a page of the documentation."""
    saturation = f", saturation of chat alone {report['saturation_per_s']:.1f}/s" if report["saturation_per_s"] else ""
    valve = f" The valve's best value was `--max-num-queued-reqs {report['valve']}`." if report["valve"] else ""
    lines = [
        "# Conversations beside a flood of documents",
        "",
        f"Measured {report['measured']} by `bench/mixed.py` on {report['cores']} cores shared by engine, gateway and load:",
        f"vLLM on the CPU (`{report['engine_flags']}`),",
        f"chat of 200 + 64 tokens at {report['chat_rate_per_s']:.1f}/s{saturation};",
        "after five seconds 50 documents of 3,000 + 512 tokens within one second, which ask again when they are refused.",
        f"Medians of {report['rounds']} rounds of {report['seconds']:g} s.{valve}",
        "How each figure is defined stands in the head of the bench.",
        "",
        "| way | chat good/s | chat first token p50 / p95 / p99, s | good work, tokens/s | documents | longest answer, s "
        "| bulk share, least in 10 s | engine waiting |",
        "|---|--:|--:|--:|---|--:|--:|--:|",
    ]
    for way, row in report["medians"].items():
        times = " / ".join(number(row[f"chat_ttft_p{percent}_s"], "{:.2f}") for percent in (50, 95, 99))
        ends = ", ".join(f"{count} {end}" for end, count in sorted(row["documents_ends"].items())) or "–"
        lines.append(
            f"| {way} | {row['chat_good_per_s']:.2f} | {times} | {row['good_tokens_per_s']:.0f} | {ends} "
            f"| {row['documents_last_answer_s']:.0f} | {number(row['bulk_share_min'], '{:.0%}')} "
            f"| {number(row['waiting_requests_mean'], '{:.1f}')} |"
        )
    lines += ["", *(f"- {'holds' if held else 'MISSED'}: {claim}" for claim, held in report["holds"].items())]
    return "\n".join([*lines, "", "![What each way gave](mixed.png)", ""])


def number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def picture(report: dict[str, Any], path: Path) -> None:
    """Chat's goodput and first token, and all good work, a bar a way."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    panels = (
        ("chat_good_per_s", "chat good, 1/s"),
        ("chat_ttft_p95_s", "chat first token p95, s"),
        ("good_tokens_per_s", "good work, tokens/s"),
    )
    axes: Any = figure.subplots(1, len(panels))
    for axis, (name, title) in zip(axes, panels, strict=True):
        rows = [(way, row[name]) for way, row in report["medians"].items() if row and row[name] is not None]
        axis.bar([way for way, _ in rows], [value for _, value in rows], color=[COLOURS[way] for way, _ in rows])
        axis.set_title(title, fontsize=10)
        axis.set_ylim(bottom=0)
    figure.savefig(path, dpi=110)
