"""`headworks top`: what one gateway is doing, as it does it: pools, tenants, classes, last decisions (F9).

Everything comes from `/admin/state` of the admin port, so it can be watched from wherever that port can be reached, a
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

from headworks.cli.admin_port import AdminOption, ConfigOption, JsonOption, Unasked, admin_port, could_not_ask
from headworks.tools.top_figures import Figures, Looks, State, StateError, state_of
from headworks.tools.top_table import heading, tables

WINDOW_S = 10.0
"""Rates and percentiles are over so long, so that a glance tells something."""


def top(
    admin: AdminOption = None,
    config: ConfigOption = None,
    every_s: Annotated[float, typer.Option("--every", min=0.1, max=60.0, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print that, and end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a gateway is doing: pools, tenants, classes, last decisions.

    With --json a line for each look, without end unless --once is said.
    Exit: 0 it was shown, 2 the gateway could not be asked.
    """
    port = admin_port(admin, config)

    def look() -> State:
        return state_of(port.look("/admin/state")[1])

    try:
        if once:
            _print(_twice(look, every_s), as_json)
        elif as_json:
            _lines(look, every_s)
        else:
            look()  # what is wrong is said on the terminal as it is, not on a screen that closes
            _screen(look, every_s)
    except (Unasked, StateError) as error:
        could_not_ask(str(error))


def _twice(look: Callable[[], State], every_s: float) -> Figures:
    """A rate needs two looks."""
    looks = Looks(WINDOW_S)
    looks.add(look())
    time.sleep(every_s)
    return looks.add(look())


def _lines(look: Callable[[], State], every_s: float) -> None:
    looks = Looks(WINDOW_S)
    while True:
        _print(looks.add(look()), True)
        time.sleep(every_s)


def _screen(look: Callable[[], State], every_s: float) -> None:
    if find_spec("textual") is None:
        could_not_ask("the screen needs textual: pip install 'headworks[top]'; --once and --json do without it.")
    from headworks.tools.top_screen import LookFailed, Top

    looks = Looks(WINDOW_S)

    def figures() -> Figures:
        try:
            return looks.add(look())
        except (Unasked, StateError) as error:
            raise LookFailed(str(error)) from None

    Top(figures, every_s).run()


def _print(figures: Figures, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(figures).decode())
        return
    console = Console(highlight=False)
    for line in (heading(figures), *figures.troubles):
        console.print(line, markup=False)
    for text in tables(figures):
        table = Table(title=text.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for column in text.columns:
            table.add_column(column, overflow="fold")  # half an id is of no use to anybody
        for row in text.rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)
