"""One picture of one or several runs of the load driver: what clients got each second, and when first tokens came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headworks.tools.load import Run
from headworks.tools.load_engine import LoadError
from headworks.tools.load_figures import end_of, figures

COLOURS = {
    "good": "#2a7f62",
    "late": "#e0a030",
    "refused": "#9db4c0",
    "left": "#c8553d",
    "cut": "#7d3c98",
    "overdue": "#7d3c98",
    "unconnected": "#444444",
}


def draw(runs: list[tuple[str, Run]], path: Path) -> None:
    """Write a PNG, a column a run: above calls by outcome and second of arrival, below times to first token."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LoadError("pictures need matplotlib: pip install 'headworks[plot]'") from error
    figure = Figure(figsize=(max(7.0, 4.6 * len(runs)), 6.2), layout="constrained")
    axes: Any = figure.subplots(2, len(runs), squeeze=False, sharex="col", sharey="row")
    for column, (title, run) in enumerate(runs):
        _outcomes(axes[0][column], run, title)
        _first_tokens(axes[1][column], run)
    axes[0][0].set_ylabel("calls a second")
    axes[1][0].set_ylabel("time to first token, s")
    handles, labels = _legend(axes[0])
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=110)


def _outcomes(axis: Any, run: Run, title: str) -> None:
    seconds = max(1, round(run.plan.seconds))
    counts = {end: [0] * seconds for end in COLOURS}
    for call in run.calls:
        counts[end_of(call, run.plan.ttft_slo_s)][min(int(call.row.t_s), seconds - 1)] += 1
    below = [0] * seconds
    for end, series in counts.items():
        if any(series):
            axis.bar(range(seconds), series, width=1.0, align="edge", bottom=below, color=COLOURS[end], label=end)
            below = [low + high for low, high in zip(below, series, strict=True)]
    made = figures(run)
    axis.set_title(f"{title}\n{run.rate_per_s:.1f}/s offered, {made.goodput_per_s:.1f}/s good", fontsize=10)


def _first_tokens(axis: Any, run: Run) -> None:
    slo_s = run.plan.ttft_slo_s
    for call in run.calls:
        for attempt in call.attempts:
            if attempt.first_token_s:
                axis.plot(
                    attempt.started_s - run.started_s,
                    attempt.ttft_s,
                    ".",
                    markersize=3,
                    color=COLOURS["good" if attempt.end == "complete" and attempt.ttft_s <= slo_s else "late"],
                )
    axis.axhline(slo_s, color="black", linewidth=0.8, linestyle="--")
    axis.set_ylim(0, max(run.plan.patience_s, slo_s) * 1.05)
    axis.set_xlabel("seconds")


def _legend(axes: Any) -> tuple[list[Any], list[str]]:
    """Each outcome once, in the order of the colours."""
    seen: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            seen.setdefault(label, handle)
    labels = [end for end in COLOURS if end in seen]
    return [seen[label] for label in labels], labels
