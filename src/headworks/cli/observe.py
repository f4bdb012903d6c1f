"""`headworks observe`: what a decision log has shown, in observe mode above all (F3).

Who would have been refused and why; limits that the traffic proposes, each as the value that would have refused so many, ready
to be pasted, and tried together by the code of `headworks plan`; and what became of copies that went to a second pool.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headworks.cli.admin_port import JsonOption, could_not_ask, print_json

CONFIG_DEFAULT = Path("headworks.yaml")


def observe(
    log: Annotated[Path | None, typer.Option("--log", help="The decision log. Default: log.decisions of --config")] = None,
    config: Annotated[Path, typer.Option("--config", help="The file that names it.")] = CONFIG_DEFAULT,
    refuse: Annotated[float, typer.Option("--refuse", min=0.0, max=50.0, help="Per cent each limit would have refused.")] = 1.0,
    since: Annotated[str, typer.Option(help="From this time on: UTC as in the log, 2026-11-30T12:00")] = "",
    until: Annotated[str, typer.Option(help="Up to this time")] = "",
    tries: Annotated[bool, typer.Option("--try/--no-try", help="Try the limits on the log, as `headworks plan` does.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Say who would have been refused, propose limits from the traffic, and tell what became of copies.

    Exit: 0 it can be relied on; 1 the log's own outcomes do not come out again, so what was tried cannot; 2 it was not made.
    """
    from headworks.tools.decision_log import LogError, lives
    from headworks.tools.observed import observed

    directory = log or _directory(config)
    try:
        found = observed(lives(directory, since, until), refuse / 100.0, tries)
    except LogError as error:
        could_not_ask(f"{directory}: {error}")
    except OSError as error:
        could_not_ask(f"{error.filename or directory} cannot be read: {error.strerror or error}")
    if as_json:
        print_json(found)
    else:
        _print(found)
    raise typer.Exit(0 if found["tried"] is None or found["tried"]["holds"] else 1)


def _directory(config: Path) -> Path:
    from headworks.config.load import load

    named = load(str(config), os.environ, exposed_ok=True).config_or_raise().log.decisions
    if named is None:
        could_not_ask(f"{config} keeps no decision log (log.decisions): name one with --log.")
    return Path(named)


def _print(found: dict[str, Any]) -> None:
    console, log = Console(highlight=False, width=max(100, Console().width)), found["log"]
    console.print(f"{log['arrivals']:,} requests in {log['seconds']:,.0f} s from {log['from_utc']} on.", soft_wrap=True)
    console.print(_decided(found["decided"]))
    console.print(f"Each limit alone would have refused {100 * found['refused_ratio']:g} %:\n", soft_wrap=True)
    console.print(found["yaml"], markup=False, soft_wrap=True)
    for one in found["not_proposed"]:
        console.print(f"No {one['key']}: {one['why']}.", markup=False, soft_wrap=True)
    if found["tried"] is not None:
        _print_tried(console, found["tried"])
    for one in found["copies"]:
        _print_copies(console, one)


def _decided(groups: list[dict[str, Any]]) -> Table:
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("tenant", "class"):
        table.add_column(title, no_wrap=True)
    for title in ("arrivals", "refused", "ran all the same"):
        table.add_column(title, justify="right")
    table.add_column("reasons")
    for one in groups:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in one["reasons"].items())
        counts = (f"{one[name]:,}" for name in ("arrivals", "refused", "ran_all_the_same"))
        table.add_row(escape(one["tenant"]), escape(one["class"]), *counts, reasons)
    return table


def _print_tried(console: Console, tried: dict[str, Any]) -> None:
    control = tried["control"]
    ratio = control["reproduced_ratio"]
    share = "nothing could be compared" if ratio is None else f"{100 * ratio:.2f} % of its outcomes are the same again"
    console.print(f"All of them together, tried on the log (under its own policy {share}):", soft_wrap=True)
    for name, one in tried["tenants"].items():
        ratio = one["refused"] / one["arrivals"] if one["arrivals"] else 0.0
        console.print(f"  {name}: {one['refused']:,} of {one['arrivals']:,} refused ({100 * ratio:.1f} %)", markup=False)


def _print_copies(console: Console, one: dict[str, Any]) -> None:
    console.print(f"\nCopies to pool {one['pool']}:", markup=False)
    for name, whose in (("refused", "of what was refused, or would have been"), ("admitted", "of the others")):
        its = one[name]
        outcomes = ", ".join(f"{outcome} {count:,}" for outcome, count in its["outcomes"].items()) or "none"
        times = "" if its["ttft_p95_s"] is None else f"; first token p50 {its['ttft_p50_s']:g} s, p95 {its['ttft_p95_s']:g} s"
        console.print(
            f"  {whose}: {its['copies']:,} ({outcomes}), in time {its['in_time']:,}{times}", markup=False, soft_wrap=True
        )
    for why, count in one["left_out"].items():
        console.print(f"  left out: {count:,} ({why})", markup=False)
