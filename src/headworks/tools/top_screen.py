"""`headworks top` on a terminal: tables that follow one gateway. Needs textual, the extra `top`.

The screen owns no figures. Every `every_s` it asks for a look (`look`, called in a thread, since it waits for the network),
and draws what `top_table` makes of it. A look that fails is said, with since when what is shown is old, and changes nothing
else: the next may succeed. Enter on a decision tells its story. Its list stands still while somebody is in it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import ClassVar, Literal

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from headworks.tools.top_figures import Figures
from headworks.tools.top_table import TABLES, TableText, bars, flow, heading, tables

LATELY = 48
"""Looks that are drawn as bars."""
WORDS = ("pool", "class", "tenant", "engine", "state", "breaker", "stop evidence", "reason", "UTC", "decided", "id", "engines")
"""Columns of words; all others are figures and stand to the right."""


class LookFailed(Exception):
    """The gateway could not be asked. The text says why and what would help."""


class Top(App[None]):
    """The screen."""

    CSS = """
    #heading { height: 1; background: $primary; color: $text; padding: 0 1; }
    #heading.stale { background: $error; }
    #trouble { height: auto; color: $error; display: none; padding: 0 1; }
    #flow { height: 4; margin: 1 0 0 1; }
    .title { height: 1; margin: 1 0 0 1; text-style: bold; }
    DataTable { height: auto; max-height: 24; }
    Story { align: center middle; }
    #story { width: 90%; max-width: 110; height: auto; max-height: 80%; padding: 1 2; }
    #story { background: $surface; border: round $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("p", "pause", "Pause or go on"),
        Binding("d", "decisions", "Decisions, Enter: story"),
        Binding("escape", "leave", "Leave the list", show=False),
    ]
    TITLE = "headworks top"

    def __init__(self, look: Callable[[], Figures], every_s: float, story: Callable[[str], list[str]] | None = None) -> None:
        """`story`: what became of a request, in sentences; called in a thread as `look` is."""
        super().__init__()
        self._look = look
        self._story = story
        self._every_s = every_s
        self._paused = False
        self._lately: dict[str, deque[float | None]] = {}
        self._newest: Figures | None = None
        self._shown: list[str] = []
        """Ids of the decisions that are drawn, in their rows."""
        self.looks = 0
        """Looks that were drawn."""

    def compose(self) -> ComposeResult:
        yield Static("asking…", id="heading", markup=False)
        yield Static("", id="trouble", markup=False)
        with VerticalScroll(can_focus=True):
            yield Static("", id="flow", markup=False)
            for name, title, _ in TABLES:
                yield Static(title, classes="title", id=f"title-{name}", markup=False)
                yield DataTable[Text](id=name, cursor_type="row" if name == "decisions" else "none", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        for name, _, columns in TABLES:
            table = self._table(name)
            table.can_focus = name == "decisions"
            table.add_columns(*(Text(column, justify=_justify(column)) for column in columns))
        self._begin_look()
        self.set_interval(self._every_s, self._begin_look)

    # what may be pressed

    def action_pause(self) -> None:
        self._paused = not self._paused
        if self._newest is not None:
            self._head(self._newest, "   PAUSED" if self._paused else "")

    def action_decisions(self) -> None:
        self._table("decisions").focus()

    def action_leave(self) -> None:
        self.set_focus(None)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if self._story is not None and event.cursor_row < len(self._shown):
            self.run_worker(self._tell(self._shown[event.cursor_row]), group="story", exclusive=True)

    async def _tell(self, name: str) -> None:
        assert self._story is not None
        try:
            lines = await asyncio.to_thread(self._story, name)
        except LookFailed as error:
            lines = [str(error)]
        self.push_screen(Story("\n\n".join(line for line in lines if line)))

    # looking

    def _begin_look(self) -> None:
        """One look at a time: while one is under way, the next begins with the next interval."""
        if not self._paused and not any(worker.is_running and worker.group == "look" for worker in self.workers):
            self.run_worker(self._look_once(), group="look", exclusive=True)

    async def _look_once(self) -> None:
        try:
            figures = await asyncio.to_thread(self._look)
        except LookFailed as error:
            since = f"stale since {self._newest.utc[11:19]} UTC. " if self._newest is not None else ""
            self._trouble(f"{since}{error}")
            self.screen_stack[0].query_one("#heading").add_class("stale")
            return
        self._newest = figures
        self._trouble("\n".join(figures.troubles))
        self._draw(figures)

    def _trouble(self, text: str) -> None:
        trouble = self.screen_stack[0].query_one("#trouble", Static)
        trouble.update(text)
        trouble.display = bool(text)

    def _head(self, figures: Figures, more: str = "") -> None:
        head = self.screen_stack[0].query_one("#heading", Static)
        head.remove_class("stale")
        head.update(heading(figures) + more)

    def _draw(self, figures: Figures) -> None:
        self._head(figures)
        self.screen_stack[0].query_one("#flow", Static).update(self._flow(figures))
        for text in tables(figures):
            self._draw_table(text, figures)
        self.looks += 1

    def _draw_table(self, text: TableText, figures: Figures) -> None:
        table = self._table(text.name)
        is_held = text.name == "decisions" and table.has_focus
        table.display = self.screen_stack[0].query_one(f"#title-{text.name}").display = bool(text.rows)
        if is_held:
            return
        if text.name == "decisions":
            self._shown = [decided.id for decided in reversed(figures.decisions)]
        table.clear()
        for row in text.rows:
            table.add_row(*(Text(cell, justify=_justify(name)) for name, cell in zip(text.columns, row, strict=True)))

    def _flow(self, figures: Figures) -> str:
        lines = []
        for name, figure, value in flow(figures.flow):
            lately = self._lately.setdefault(name, deque(maxlen=LATELY))
            lately.append(value)
            lines.append(f"{name:<12}{bars(list(lately)):>{LATELY}}  {figure}")
        return "\n".join(lines)

    def _table(self, name: str) -> DataTable[Text]:
        """Of the screen below, whatever is in front of it."""
        return self.screen_stack[0].query_one(f"#{name}", DataTable)


class Story(ModalScreen[None]):
    """What became of one request."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close"),
        Binding("enter", "dismiss", "Close"),
        Binding("q", "dismiss", "Close"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="story"):
            yield Static(self._text, markup=False)


def _justify(column: str) -> Literal["left", "right"]:
    return "left" if column in WORDS else "right"
