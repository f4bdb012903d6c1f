"""`headworks top`: what one gateway is doing, as it does it: pools, classes, what waits, tenants, engines, decisions (F9).

Everything comes from `/admin/snapshot` of the admin port, so it can be watched from wherever that port can be reached, a
terminal over SSH included. The screen needs textual (`pip install 'headworks[top]'`); `--once` and `--json` do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headworks.cli.admin_port import AdminOption, AdminPort, ConfigOption, JsonOption, Unasked, admin_port, could_not_ask
from headworks.tools.top_figures import Figures, StateError, figures, state_of
from headworks.tools.top_table import heading, tables


def top(
    admin: AdminOption = None,
    config: ConfigOption = None,
    every_s: Annotated[float, typer.Option("--every", min=0.1, max=60.0, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print that, and end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a gateway is doing: pools, classes, what waits, tenants, engines, last decisions and their stories.

    With --json a line for each look, without end unless --once is said.
    Exit: 0 it was shown, 2 the gateway could not be asked.
    """
    port = admin_port(admin, config)

    def look() -> Figures:
        return figures(state_of(port.look("/admin/snapshot")[1]))

    try:
        if once:
            _print(_twice(look, every_s), as_json)
        elif as_json:
            _lines(look, every_s)
        else:
            look()  # what is wrong is said on the terminal as it is, not on a screen that closes
            _screen(look, port, every_s)
    except (Unasked, StateError) as error:
        could_not_ask(str(error))


def _twice(look: Callable[[], Figures], every_s: float) -> Figures:
    """The gateway has a rate when it is looked at for the second time."""
    look()
    time.sleep(every_s)
    return look()


def _lines(look: Callable[[], Figures], every_s: float) -> None:
    while True:
        _print(look(), True)
        time.sleep(every_s)


def _screen(look: Callable[[], Figures], port: AdminPort, every_s: float) -> None:
    if find_spec("textual") is None:
        could_not_ask("the screen needs textual: pip install 'headworks[top]'; --once and --json do without it.")
    from headworks.tools.top_screen import LookFailed, Top

    def seen() -> Figures:
        try:
            return look()
        except (Unasked, StateError) as error:
            raise LookFailed(str(error)) from None

    def story(name: str) -> list[str]:
        try:
            status, found = port.look(f"/admin/explain/{name}")
        except Unasked as error:
            raise LookFailed(str(error)) from None
        return (
            list(found["story"]) if status == 200 else [f"Nothing is known of {name}: is a decision log kept (log.decisions)?"]
        )

    Top(seen, every_s, story).run()


def _print(figures: Figures, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(figures).decode())
        return
    console = Console(highlight=False)
    for line in (heading(figures), *figures.troubles):
        console.print(line, markup=False)
    for text in tables(figures):
        if not text.rows:
            continue
        table = Table(title=text.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for column in text.columns:
            table.add_column(column, overflow="fold")  # half an id is of no use to anybody
        for row in text.rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)
