"""`headworks cost`: what the engines cost in a period, who caused it, what was wasted and what was saved (F7).

From the usage journal, a directory that the configuration names; no gateway needs to run. With --admin a gateway is asked
that does."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headworks.cli.admin_port import AdminOption, JsonOption, admin_port, could_not_ask
from headworks.gateway.statement_shown import Unnamed, as_csv, as_page, as_values, heading, parts_named, period_named, table

if TYPE_CHECKING:
    from headworks.gateway.statement import Statement

CONFIG_DEFAULT = Path("headworks.yaml")


def cost(
    period: Annotated[str | None, typer.Argument(help="2026-11, 2026-11-30 or 2026-11-30T14 (UTC); else this month.")] = None,
    by: Annotated[str, typer.Option("--by", help="What rows are told apart by: tenant, client, model, pool.")] = "tenant",
    usage: Annotated[Path | None, typer.Option("--usage", help="The usage journal's directory.")] = None,
    config: Annotated[Path, typer.Option("--config", help="The file that names it.")] = CONFIG_DEFAULT,
    admin: AdminOption = None,
    as_csv_too: Annotated[bool, typer.Option("--csv", help="Print it as CSV, all digits.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write it as a page as well.")] = None,
    as_json: JsonOption = False,
) -> None:
    """State what the engines of a period cost, and who caused how much of it.

    Exit: 0 it adds up, 1 it does not, or lines of the journal could not be read, 2 it could not be made.
    """
    try:
        parts, named = parts_named(by), period_named(period or time.strftime("%Y-%m", time.gmtime()))
    except Unnamed as error:
        could_not_ask(str(error))
    if admin is not None:
        if as_csv_too or html is not None:
            could_not_ask("--csv and --html read the journal; GET /admin/cost?format=csv or html has them of a gateway.")
        asked = urlencode({"period": named.name.removeprefix("month-"), "by": ",".join(parts)})
        shown = admin_port(admin, None).read(f"/admin/cost?{asked}", "rows", "pools")
        _print_json(shown)
        raise typer.Exit(1 if shown["differences"] or shown["unread_lines"] else 0)
    from headworks.gateway.statement import statement

    made = statement(_directory(usage, config), named, time.time())
    if html is not None:
        html.write_text(as_page(made, parts))
    if as_json:
        _print_json(as_values(made, parts))
    elif as_csv_too:
        typer.echo(as_csv(made, parts), nl=False)
    else:
        _print(made, parts)
    raise typer.Exit(1 if made.differences() or made.unread else 0)


def _directory(usage: Path | None, config: Path) -> Path:
    """Where the journal is."""
    if usage is None:
        from headworks.config import build
        from headworks.config.load import load

        loaded = load(str(config), os.environ, exposed_ok=True).config_or_raise()
        named = build.settings(loaded, os.environ).usage.directory
        if named is None:
            could_not_ask(f"{config} keeps no usage journal (usage.path: null).")
        usage = Path(named)
    if not usage.is_dir():
        could_not_ask(f"{usage} is no directory; a usage journal is the directory named by usage.path.")
    return usage


def _print(made: Statement, parts: tuple[str, ...]) -> None:
    head, *lines = table(made, parts)
    shown = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(head):
        shown.add_column(name, justify="left" if number < len(parts) else "right", no_wrap=True)
    for line in lines:
        shown.add_row(*map(Text, line))
    Console(highlight=False).print(shown)
    typer.echo(heading(made))


def _print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
