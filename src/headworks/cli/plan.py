"""`headworks plan NEW.yaml`: a decision log once more, by another configuration (G2).

Its first line is the control: under the log's own policy, how many outcomes are the same again. Then who would have come out
otherwise, by class and tenant, and the first of them in words.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headworks.config import build, load
from headworks.core.policy import Policy
from headworks.gateway import decisions
from headworks.gateway.story import story
from headworks.sim.page import number
from headworks.tools.decision_log import LogError, lives
from headworks.tools.plan import plan as made
from headworks.tools.plan_page import FIRST_FIGURES, both, control_sentence, first_tenants, plan_page

REFERENCE = re.compile(r"\benv:([A-Za-z_][A-Za-z0-9_]*)")
LEDGER_URL = re.compile(r"^ledger:(?:(?!^\S)[\s\S])*?\burl:\s*[\"']?env:([A-Za-z_][A-Za-z0-9_]*)", re.MULTILINE)
"""The one address that may be kept out of the file: any ledger will do, since nothing is asked of it."""
SHOWN_TENANTS = 10
COLUMNS_MIN = 100
"""A table of two figures a cell needs them, wherever it is printed."""


def plan(
    new: Annotated[Path, typer.Argument(metavar="NEW.yaml", help="The configuration to try.")],
    log: Annotated[Path | None, typer.Option("--log", help="The decision log. Default: log.decisions of that file")] = None,
    since: Annotated[str, typer.Option(help="From this time on: UTC as in the log, 2026-11-30T12:00")] = "",
    until: Annotated[str, typer.Option(help="Up to this time")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a report with curves into this file")] = None,
) -> None:
    """Decide a decision log once more, by another configuration, and say who would have come out otherwise.

    Exit: 0 the log's own policy reproduces its outcomes, so the plan can be relied on; 1 it does not; 2 it could not be made.
    """
    policy, directory = policy_of(new)
    directory = log or directory
    if directory is None:
        _could_not(f"{new} keeps no decision log (log.decisions): name one with --log.")
    try:
        found = made(lives(directory, since, until), policy)
        stories = [story(decisions.find(directory, example["id"])) for example in found["examples"]]
    except LogError as error:
        _could_not(f"{directory}: {error}")
    except OSError as error:
        _could_not(f"{error.filename or directory} cannot be read: {error.strerror or error}")
    for example, logged in zip(found["examples"], stories, strict=True):
        example["logged_story"] = logged
        example["planned_story"] = story(example["lines"])[1:]  # what was asked is told already
    if html is not None:
        try:
            html.write_text(plan_page(found), encoding="utf-8")
        except OSError as error:
            _could_not(f"{html} cannot be written: {error.strerror or error}")
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        _print(found)
    raise typer.Exit(0 if found["holds"] else 1)


def policy_of(path: Path) -> tuple[Policy, Path | None]:
    """The policy of a file, and where it logs decisions. Secrets need not be there: nothing here asks an engine or a client."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        _could_not(f"{path} cannot be read: {error}")
    named = REFERENCE.findall(text)
    environment: Mapping[str, str] = {
        **{name: f"not-known-to-this-plan-{place:08d}" for place, name in enumerate(named)},
        **dict.fromkeys(LEDGER_URL.findall(text), "memory:"),
    }
    config = load.load(str(path), {**environment, **os.environ}, exposed_ok=True).config_or_raise()
    directory = config.log.decisions
    return build.policy(config, number=2), None if directory is None else Path(directory)


def _could_not(why: str) -> NoReturn:
    typer.echo(f"headworks plan: {why}", err=True)
    raise typer.Exit(2)


# for people


def _print(found: dict[str, Any]) -> None:
    console = Console(highlight=False, width=max(COLUMNS_MIN, Console().width))
    console.print(control_sentence(found), soft_wrap=True, markup=False)
    for one in found["control"]["differences"] if not found["holds"] else ():
        console.print(f"  {number(one['arrivals'])} × {one['logged']}, and again: {one['planned']}", markup=False)
    figures = found["all"]["all"]
    console.print(
        f"Under policy {found['policy_version']} {number(found['changed'])} of {number(figures['arrivals'])} requests "
        "come out otherwise. Where two figures stand: in the log → in the plan.",
        soft_wrap=True,
    )
    console.print(_table("class", found["classes"] | found["all"]))
    tenants = first_tenants(found["tenants"])
    console.print(_table("tenant", dict(list(tenants.items())[:SHOWN_TENANTS])))
    if found["changes"]:
        console.print(_changes(found["changes"]))
    shown = {(one["logged"], one["planned"]): one for one in reversed(found["examples"])}
    for one in reversed(shown.values()):  # the first of each kind; all are in --json and in the page
        console.print(f"\n{one['id']}: {one['logged']} → {one['planned']}", style="bold", markup=False)
        for line in (*one["logged_story"], "Under the new policy:", *one["planned_story"]):
            console.print(line, markup=False, soft_wrap=True)


def _table(head: str, groups: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(head, no_wrap=True)
    for title in ("arrivals", "otherwise", *(title for title, _, _ in FIRST_FIGURES)):
        table.add_column(title, justify="right", no_wrap=True)
    for name, figures in groups.items():
        own = [number(figures["arrivals"]), number(figures["changed"])]
        table.add_row(escape(name), *own, *(both(figures, key, unit) for _, key, unit in FIRST_FIGURES))
    return table


def _changes(changes: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("in the log")
    table.add_column("in the plan")
    table.add_column("arrivals", justify="right")
    for one in changes:
        table.add_row(escape(one["logged"]), escape(one["planned"]), number(one["arrivals"]))
    return table
