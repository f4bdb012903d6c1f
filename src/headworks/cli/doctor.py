"""`headworks doctor URL`: is this engine what headworks would take it for? Tried, not believed (F6)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from headworks.cli.init import asked_key, checked_address, could_not
from headworks.engines.base import EngineError
from headworks.tools.doctor import Order, examine
from headworks.tools.doctor_report import BROKEN, HOLDS, NOTE, UNKNOWN, Report

VERB = "doctor"
MARKS = {
    HOLDS: ("holds  ", "green"),
    BROKEN: ("BROKEN ", "bold red"),
    UNKNOWN: ("unknown", "yellow"),
    NOTE: ("note   ", "cyan"),
}


def doctor(
    url: Annotated[str, typer.Argument(metavar="URL", help="A live engine: http://HOST:PORT.")],
    watch: Annotated[float, typer.Option(min=0.5, max=86_400.0, help="Seconds to look at its load before anything.")] = 3.0,
    seconds: Annotated[float, typer.Option(min=5.0, max=3_600.0, help="What is not done by then is not measured.")] = 120.0,
    times: Annotated[int, typer.Option(min=1, max=1_000, help="Requests that are left half-way, to see them stop.")] = 20,
    streams: Annotated[int, typer.Option(min=0, max=512, help="Streams at once, to find its places; 0: none.")] = 64,
    passive: Annotated[bool, typer.Option("--passive", help="Only look; send no request.")] = False,
    busy_ok: Annotated[bool, typer.Option("--busy-ok", help="Send a few requests although others use it.")] = False,
    api_key: Annotated[str | None, typer.Option("--api-key", help="The engine's own key, as env:NAME.")] = None,
    ca: Annotated[str | None, typer.Option("--ca", help="Over https: a file with the authorities that verify it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Examine an engine: series, ids, usage, whether what is left really stops, and which flags to set.

    Exit: 0 nothing was found broken, 1 something is, 2 it could not be examined, or others use it.
    """
    address, key = checked_address(url, VERB), None if api_key is None else asked_key(api_key, VERB)
    order = Order(address, key, watch, seconds, times, streams, passive, busy_ok, ca)
    try:
        report = asyncio.run(examine(order, lambda line: None if as_json else typer.echo(f"{line} …", err=True)))
    except EngineError as error:
        could_not(f"{error}. Is an engine there, and ready?", VERB)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(told(report)), indent=2).decode())
    else:
        _print(report)
    if report.is_busy:
        raise typer.Exit(2)
    if not report.holds:
        raise typer.Exit(1)


def told(report: Report) -> dict[str, Any]:
    """The report in plain values."""
    return {"holds": report.holds, **asdict(report)}


def _print(report: Report) -> None:
    console = Console(highlight=False)
    for finding in report.findings:
        mark, style = MARKS[finding.outcome]
        console.print(Text.assemble((mark, style), "  ", (finding.check, "bold"), f": {finding.saw}"), soft_wrap=True)
        if finding.mend:
            console.print(Text(f"           → {finding.mend}"), soft_wrap=True)
    for line in (*_flags(report), *_conclusion(report)):
        console.print(Text(line), soft_wrap=True)


def _flags(report: Report) -> Iterator[str]:
    yield "\nFlags, as far as they can be seen:"
    for flag in report.flags:
        yield f"  {flag.name} = {'not visible' if flag.value is None else flag.value}   ({flag.how})"
        if flag.advice:
            yield f"      → {flag.advice}"


def _conclusion(report: Report) -> Iterator[str]:
    if report.evidence:
        proofs = ", ".join(report.evidence)
        yield f"\nBest evidence: {proofs}; a pool of it may ask for evidence_min: {report.evidence_min}. {report.took_s:.0f} s."
    elif not report.is_busy:
        yield f"\nNo evidence was gathered. {report.took_s:.0f} s."
    broken = [finding.check for finding in report.findings if finding.outcome == BROKEN]
    yield f"Broken: {', '.join(broken)}." if broken else "Nothing was found broken."
