"""`headworks top` on a terminal: four tables that follow one gateway. Needs textual, the extra `top`.

The screen owns no figures. Every `every_s` it asks for a look (`look`, called in a thread, since it waits for the network),
and draws what `top_table` makes of it. A look that fails is said and changes nothing else: the next may succeed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Footer, Static

from headworks.tools.top_figures import Figures
from headworks.tools.top_table import TABLES, heading, tables


class LookFailed(Exception):
    """The gateway could not be asked. The text says why and what would help."""


class Top(App[None]):
    """The screen."""

    CSS = """
    #heading { height: 1; background: $primary; color: $text; }
    #trouble { height: auto; color: $error; display: none; }
    .title { height: 1; margin-top: 1; text-style: bold; }
    DataTable { height: auto; max-height: 20; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "quit", "Quit"), Binding("p", "pause", "Pause or go on")]
    TITLE = "headworks top"

    def __init__(self, look: Callable[[], Figures], every_s: float) -> None:
        super().__init__()
        self._look = look
        self._every_s = every_s
        self._paused = False
        self.looks = 0
        """Looks that were drawn."""

    def compose(self) -> ComposeResult:
        yield Static("asking…", id="heading", markup=False)
        yield Static("", id="trouble", markup=False)
        with VerticalScroll():
            for name, title, _ in TABLES:
                yield Static(title, classes="title", markup=False)
                yield DataTable[Text](id=name, cursor_type="none", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        for name, _, columns in TABLES:
            self._table(name).add_columns(*columns)
        self._begin_look()
        self.set_interval(self._every_s, self._begin_look)

    def action_pause(self) -> None:
        self._paused = not self._paused

    def _begin_look(self) -> None:
        """One look at a time: while one is under way, the next begins with the next interval."""
        if not self._paused and not any(worker.is_running for worker in self.workers):
            self.run_worker(self._look_once(), exclusive=True)

    async def _look_once(self) -> None:
        trouble = self.query_one("#trouble", Static)
        try:
            figures = await asyncio.to_thread(self._look)
        except LookFailed as error:
            trouble.update(str(error))
            trouble.display = True
            return
        trouble.update("\n".join(figures.troubles))
        trouble.display = bool(figures.troubles)
        self._draw(figures)

    def _draw(self, figures: Figures) -> None:
        self.query_one("#heading", Static).update(heading(figures))
        for text in tables(figures):
            table = self._table(text.name)
            table.clear()
            for row in text.rows:
                table.add_row(*(Text(cell) for cell in row))
        self.looks += 1

    def _table(self, name: str) -> DataTable[Text]:
        return self.query_one(f"#{name}", DataTable)
