"""The result of the comparison as a page of the documentation and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from proxies import ALL, PEERS

NAMES = {
    "headworks": "headworks",
    "nginx": "nginx",
    "haproxy": "HAProxy",
    "envoy": "Envoy",
    "vllm_router": "vllm-router",
    "sglang_router": "sglang-router",
    "fastapi_httpx": "FastAPI + httpx",
    "litellm": "LiteLLM",
}
COLUMNS = {
    "cpu_us_per_request": ("CPU a request, µs", "{:,.1f}"),
    "cpu_us_per_request_32k": ("32 KB, µs", "{:,.1f}"),
    "cpu_us_per_chunk": ("CPU a chunk, µs", "{:,.1f}"),
    "added_chunk_p50_us": ("chunk later p50, µs", "{:,.0f}"),
    "added_chunk_p99_us": ("p99, µs", "{:,.0f}"),
    "added_p50_us": ("alone, later p50, µs", "{:,.0f}"),
    "rss_mib": ("idle, MiB", "{:,.0f}"),
    "kib_per_stream": ("a stream, KiB", "{:,.1f}"),
    "left_calm": ("left", "{:,.0f}"),
    "left_overload": ("left, overload", "{:,.0f}"),
}
PANELS = ("cpu_us_per_request", "cpu_us_per_chunk", "added_p50_us", "kib_per_stream")
OURS_COLOUR, COLOUR = "#2a7f62", "#7a8b99"


def page(report: dict[str, Any]) -> str:
    """Two tables: what each proxy costs, and what is claimed."""
    shown = [name for name in ALL if report.get(name)]
    columns = [column for column in COLUMNS if any(column in report[name] for name in shown)]
    short = ", short ones" if report["is_quick"] else ""
    lines = [
        "# Beside what a user would put in its place",
        "",
        f"Measured {report['measured']} by `bench/peers.py` on {report['cores']} cores: the proxy on one, engine and",
        f"generator on the other; headworks as {report['runs_as']}. Medians of {report['rounds']} rounds in turn{short};",
        f"other work took {report['other_work_cores']:g} cores meanwhile. headworks runs as in production: keys, three",
        "tenants, classes, fair queue, growing reservations, decision log, usage journal, metrics. How each figure is defined",
        "stands in the head of the bench. FastAPI is full with 500 streams, and LiteLLM was given 10.",
        "",
        "| | " + " | ".join(COLUMNS[column][0] for column in columns) + " |",
        "|---|" + "--:|" * len(columns),
    ]
    for name in shown:
        cells = (COLUMNS[column][1].format(report[name][column]) if column in report[name] else "–" for column in columns)
        lines.append(f"| {NAMES[name]} | " + " | ".join(cells) + " |")
    lines += ["", "| claim | seen | must | stretch | |", "|---|--:|--:|--:|---|"]
    for text, claim in report["claims"].items():
        sign = "≥" if claim["at_least"] else "≤"
        verdict = "stretch" if claim["stretch"] else "holds" if claim["must"] else "**MISSED**"
        lines.append(f"| {text} | {claim['value']:g} | {sign} {claim['bar']:g} | {sign} {claim['stretch_bar']:g} | {verdict} |")
    lines += ["", *(f"- Not measured: {what}: {why}" for what, why in report["missing"].items())]
    return "\n".join([*lines, f"Versions: {versions()}.", "", "![What each proxy costs](peers.png)", ""])


def versions() -> str:
    """As they are pinned; the system's own are those of its release."""
    pins = (line for path in sorted(PEERS.glob("*.txt")) for line in path.read_text().split())
    return ", ".join([*(pin.replace("==", " ") for pin in pins), "nginx and HAProxy as Debian 12 has them"])


def picture(report: dict[str, Any], path: Path) -> None:
    """A bar for each proxy, on scales that have room for all."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.4), layout="constrained")
    axes: Any = figure.subplots(1, len(PANELS))
    for axis, column in zip(axes, PANELS, strict=True):
        rows = [(NAMES[name], report[name][column]) for name in reversed(ALL) if column in report.get(name, {})]
        colours = [OURS_COLOUR if name == "headworks" else COLOUR for name, _ in rows]
        bars = axis.barh([name for name, _ in rows], [value for _, value in rows], color=colours)
        axis.bar_label(bars, fmt="{:,.3g}", fontsize=7, padding=2)
        axis.set_title(COLUMNS[column][0], fontsize=10)
        axis.set_xscale("log")
        axis.margins(x=0.25)
        axis.tick_params(labelsize=8)
    figure.savefig(path, dpi=110)
