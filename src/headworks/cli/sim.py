"""`headworks sim SCENARIO`: run an overload in virtual time, compare disciplines, and say whether it came out as stated.

`headworks sim --campaign --seeds N` runs random small worlds with faults and checks every invariant after every event.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headworks.cli.campaign import run_campaign, show_history
from headworks.sim.compare import as_json, run
from headworks.sim.report_page import simulated_page
from headworks.sim.scenario import ScenarioError, load
from headworks.sim.traces import NAMES, TraceError, attribution, read, summary

SEEDS_MAX = 10_000_000
COLUMNS = (
    ("admitted", "admitted", "{:d}"),
    ("refused", "refused", "{:d}"),
    ("useful\n/s", "useful_per_s", "{:.2f}"),
    ("goodput\n/s", "goodput_per_s", "{:.2f}"),
    ("wasted", "wasted_ratio", "{:.1%}"),
    ("first token\np95", "ttft_p95_s", "{:.2f} s"),
    ("longest\nqueue", "queue_max", "{:d}"),
)


def sim(
    scenario: Annotated[Path | None, typer.Argument(help="A scenario file, as in scenarios/")] = None,
    seed: Annotated[int | None, typer.Option(help="Default: the scenario's own; 1 for a campaign")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=SEEDS_MAX, help="Run so many, one after the other from SEED on")] = 1,
    with_campaign: Annotated[bool, typer.Option("--campaign", help="Random worlds with faults instead of a scenario")] = False,
    histories: Annotated[str, typer.Option(help="Of a campaign: short, usual, big or matrix")] = "short",
    processes: Annotated[int | None, typer.Option(min=1, max=256, help="Of a campaign: as many as processors")] = None,
    keep: Annotated[str | None, typer.Option(help="Of one seed of a campaign: nothing but these parts, told in lines")] = None,
    with_traces: Annotated[bool, typer.Option("--traces", help="List the recorded traces that scenarios can name")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a report with curves into this file")] = None,
) -> None:
    """Run a scenario in virtual time and compare its disciplines.

    Exit: 0 when every expectation (or invariant) holds, 1 when one does not, 2 when it could not be run.
    """
    if (scenario is not None) + with_campaign + with_traces != 1 or (html is not None and scenario is None):
        typer.echo("headworks sim: give a scenario file, or --campaign, or --traces; --html goes with a scenario", err=True)
        raise typer.Exit(2)
    if with_traces:
        _traces(json)
    elif with_campaign and keep is not None:
        show_history(1 if seed is None else seed, histories, keep)
    elif with_campaign:
        run_campaign(1 if seed is None else seed, seeds, histories, processes, json)
    else:
        assert scenario is not None
        _scenario(scenario, seed, seeds, json, html)


def _scenario(path: Path, seed: int | None, seeds: int, json: bool, html: Path | None) -> None:
    try:
        scenario = load(path)
        first = scenario.seed if seed is None else seed
        found = [run(scenario, number, json or html is not None) for number in range(first, first + seeds)]
    except (ScenarioError, TraceError) as error:
        typer.echo(f"headworks sim: {error}", err=True)
        raise typer.Exit(2) from error
    if html is not None:
        write_page(html, simulated_page(found[0], scenario))
    if json:
        typer.echo(as_json(found[0] if seeds == 1 else {"runs": found}))
    else:
        for one in found:
            _tables(one)
    failures = [f"seed {one['seed']}: {failure}" for one in found for failure in one["failures"]]
    for failure in failures:
        typer.echo(f"does not hold: {failure}", err=True)
    raise typer.Exit(1 if failures else 0)


def write_page(path: Path, text: str) -> None:
    """A report, or the end of the verb with 2."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        typer.echo(f"headworks: {path} cannot be written: {error.strerror or error}", err=True)
        raise typer.Exit(2) from None


def _tables(found: dict[str, Any]) -> None:
    console = Console()
    for title, inner in ((f"{found['scenario']} (seed {found['seed']})", found), *found["cases"].items()):
        console.print(_table(title, inner["disciplines"]))
        for more in (_classes(inner["disciplines"]), _pairs(inner["disciplines"])):
            if more.row_count:
                console.print(more)


def _table(title: str, disciplines: dict[str, Any]) -> Table:
    table = Table(title=escape(title), box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("discipline", no_wrap=True)
    for heading, _, _ in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, one in disciplines.items():
        cells = [form.format(one[key]) if one[key] is not None else "none" for _, key, form in COLUMNS]
        table.add_row(escape(name), *cells)
    return table


def _plain_table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _classes(disciplines: dict[str, Any]) -> Table:
    """What each class got, where there are several."""
    columns = "arrivals", "useful", "in time", "first token\np95", "longest\nanswer", "worst 10 s\n÷ floor"
    table = _plain_table("discipline, class", *columns)
    for name, one in disciplines.items():
        for service_class, ours in one["classes"].items() if len(one["classes"]) > 1 else ():
            floor = one["fairness"]["floors"].get(service_class, {}).get("worst_by_floor")
            seconds = [_cell("{:.2f} s", ours[key]) for key in ("ttft_p95_s", "answered_s_max")]
            counts = [str(ours["arrivals"]), str(ours["useful"]), _cell("{:.1%}", ours["goodput_ratio"])]
            table.add_row(escape(f"{name}, {service_class}"), *counts, *seconds, _cell("{:.2f}", floor))
    return table


def _pairs(disciplines: dict[str, Any]) -> Table:
    """How far two flows came apart while both waited."""
    table = _plain_table("discipline, flows", "difference", "bound", "difference\n÷ bound", "service\n÷ bound")
    for name, one in disciplines.items():
        for flows, pair in one["fairness"]["pairs"].items():
            amounts = [f"{pair[key]:,.0f}" for key in ("difference", "bound")]
            ratios = [f"{pair[key]:.2f}" for key in ("difference_by_bound", "service_by_bound")]
            table.add_row(escape(f"{name}, {flows}"), *amounts, *ratios)
    return table


def _cell(form: str, value: float | None) -> str:
    return "none" if value is None else form.format(value)


def _traces(json: bool) -> None:
    """What comes with the package: names, sizes, whose work it is and under which licence."""
    if json:
        typer.echo(as_json({name: summary(read(name)) for name in NAMES}))
        return
    table = _plain_table("trace", "requests", "/s", "prompt\np50", "p99", "output\np50", "p99", "clients")
    for name in NAMES:
        one = summary(read(name))
        prompts = [f"{one[key]:,d}" for key in ("prompt_tokens_p50", "prompt_tokens_p99")]
        outputs = [f"{one[key]:,d}" for key in ("output_tokens_p50", "output_tokens_p99")]
        table.add_row(name, f"{one['requests']:,d}", f"{one['rate_per_s']:.2f}", *prompts, *outputs, f"{one['clients'] or ''}")
    Console().print(table)
    typer.echo(attribution())
