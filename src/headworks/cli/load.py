"""`headworks load URL`: offer recorded traffic to a server and tell what its clients got."""

from __future__ import annotations

import asyncio
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from headworks.sim.traces import NAMES, TraceError
from headworks.tools import load as driver
from headworks.tools.load_engine import LoadError
from headworks.tools.load_figures import Figures, Spread, figures

KEY_VARIABLE = "HEADWORKS_API_KEY"


class Arrivals(StrEnum):
    """When calls start."""

    POISSON = "poisson"
    TRACE = "trace"


class Retries(StrEnum):
    """Whether a refused client asks again."""

    NONE = "none"
    SDK = "sdk"


class Api(StrEnum):
    """Which route is called."""

    CHAT = "chat"
    COMPLETIONS = "completions"


def load(
    url: Annotated[str, typer.Argument(help="The server's base URL, as http://127.0.0.1:8080")],
    trace: Annotated[str, typer.Option(help=f"{', '.join(NAMES)}, or a CSV file: t_s,input_tokens,output_tokens")] = NAMES[0],
    rate: Annotated[str, typer.Option(help="Requests a second, or a multiple of the trace's own rate: 2x")] = "1x",
    seconds: Annotated[float, typer.Option(min=1.0, help="How long load is offered")] = 30.0,
    arrivals: Annotated[Arrivals, typer.Option(help="trace: its own, stretched to the rate")] = Arrivals.POISSON,
    patience: Annotated[float, typer.Option(min=0.01, help="Seconds without a first token before a client leaves")] = 2.0,
    ttft_slo: Annotated[float, typer.Option(min=0.001, help="Seconds to the first token that count as good")] = 1.0,
    limit: Annotated[
        float, typer.Option(min=0.1, help="Seconds for an answer, and for asking again, before a client leaves")
    ] = 60.0,
    retries: Annotated[Retries, typer.Option(help="sdk: as the stock OpenAI client does")] = Retries.NONE,
    api: Annotated[Api, typer.Option(help="The route to call")] = Api.CHAT,
    exact: Annotated[bool, typer.Option(help="Ask for exact output lengths with ignore_eos")] = True,
    model: Annotated[str | None, typer.Option(help="Default: the first one served")] = None,
    context: Annotated[int | None, typer.Option(min=64, help="Context in tokens. Default: as served, else 4096")] = None,
    header: Annotated[list[str] | None, typer.Option("--header", "-H", help="Name: value, repeatable")] = None,
    engine_metrics: Annotated[str | None, typer.Option(help="The engine's base URL, to read its gauges and tokens")] = None,
    seed: Annotated[int, typer.Option(help="Arrivals, lengths and words")] = 1,
    salt: Annotated[str, typer.Option(help="Starts every prompt. Default: made from the clock")] = "",
    png: Annotated[Path | None, typer.Option(help="Write a picture (needs matplotlib)")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON")] = False,
) -> None:
    """Offer recorded traffic to a server and tell what its clients got.

    The key, if one is needed, is read from HEADWORKS_API_KEY. Exit: 0 when the run was made, 2 when it could not be.
    """
    try:
        rate_per_s, rate_times = driver.rate_of(rate)
        plan = driver.Plan(
            url=url,
            trace=trace,
            rate_per_s=rate_per_s,
            rate_times=rate_times,
            seconds=seconds,
            arrivals=arrivals,
            patience_s=patience,
            ttft_slo_s=ttft_slo,
            limit_s=limit,
            retries=retries,
            chat=api is Api.CHAT,
            exact=exact,
            model=model,
            context_tokens=context,
            headers=_headers(header or []),
            engine_metrics=engine_metrics,
            seed=seed,
            salt=salt,
        )
        _report(_run(plan, quiet=json or not sys.stderr.isatty()), json, png)
    except (LoadError, TraceError) as error:
        typer.echo(f"headworks load: {error}", err=True)
        raise typer.Exit(2) from error


def _headers(given: list[str]) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    if os.environ.get(KEY_VARIABLE):
        pairs.append(("Authorization", f"Bearer {os.environ[KEY_VARIABLE]}"))
    for line in given:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise LoadError(f"--header {line}: Name: value")
        pairs.append((name.strip(), value.strip()))
    return tuple(pairs)


def _run(plan: driver.Plan, quiet: bool) -> driver.Run:
    if quiet:
        return _loop(plan, lambda progress: None)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[seen]}"), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("load", total=plan.seconds, seen="")

        def show(now: driver.Progress) -> None:
            seen = f"sent {now.sent}  complete {now.complete}  refused {now.refused}  other {now.other}"
            bar.update(task, completed=min(now.elapsed_s, plan.seconds), seen=seen)

        return _loop(plan, show)


def _loop(plan: driver.Plan, show: driver.OnProgress) -> driver.Run:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(driver.run(plan, show))
    return uvloop.run(driver.run(plan, show))


def _report(run: driver.Run, json: bool, png: Path | None) -> None:
    """The figures first: a picture that cannot be written must not cost the run."""
    made = figures(run)
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(made), indent=1).decode())
    else:
        _print(made)
    if png:
        from headworks.tools.load_picture import draw

        try:
            draw([(run.plan.url, run)], png)
        except OSError as error:
            raise LoadError(f"--png {png}: {error.strerror or error}") from error


def _print(made: Figures) -> None:
    table = Table(title=f"{made.trace} against {made.url}: {made.rate_per_s:.2f}/s for {made.seconds:g} s", show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, value in _rows(made):
        table.add_row(name, value)
    Console().print(table)


def _rows(made: Figures) -> list[tuple[str, str]]:
    half, engine = made.second_half, made.engine
    rows = [
        ("offered", f"{made.offered} calls, {made.attempts} attempts"),
        ("goodput", f"{made.goodput_per_s:.2f}/s, {made.goodput_ratio:.1%} of the offered"),
        ("goodput, second half", f"{half.goodput_per_s:.2f}/s, {half.slo_met_ratio:.1%} of the offered"),
        ("clients", ", ".join(f"{name} {count}" for name, count in made.ends.items())),
        ("answers", ", ".join(f"{name}: {count}" for name, count in made.answers.items())),
        ("first token p50 / p95 / p99", _times(made.ttft)),
        ("refusal p50 / p95 / p99", _times(made.refusal)),
        (f"wasted tokens (seen by {made.wasted_basis})", _share(made.wasted_ratio)),
        ("wasted work, prompts included", _share(made.wasted_work_ratio)),
    ]
    if engine:
        rows.append(("engine waiting, mean / most", f"{engine.waiting_requests_mean:.2f} / {engine.waiting_requests_max:.0f}"))
        rows.append(("engine running, mean", f"{engine.running_requests_mean:.2f}"))
    rows.append(("driver late p99, its CPU", f"{made.send_lag_p99_s * 1000:.1f} ms, {made.generator_cpu_ratio:.1%} of a core"))
    return rows


def _times(times: Spread) -> str:
    if times.p50_s is None or times.p95_s is None or times.p99_s is None:
        return "none"
    return " / ".join(f"{value:.3f} s" for value in (times.p50_s, times.p95_s, times.p99_s))


def _share(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:.1%}"
