"""The screen of `headworks top` as it was drawn before: `top.txt` is what a terminal of 120 by 66 shows of one look."""

from __future__ import annotations

import asyncio
import re
from html import unescape
from pathlib import Path

from headworks.tools.top_figures import figures, state_of
from headworks.tools.top_screen import LookFailed, Top
from headworks.tools.top_table import bars
from tests.console.look_made import LOOK, STORY

DRAWN = Path(__file__).parent / "top.txt"
PIECE = re.compile(
    r'<text class="[^"]*" x="([\d.]+)" y="[\d.]+" textLength="[\d.]+" clip-path="url\(#[\w-]+-line-(\d+)\)">(.*?)</text>'
)
CELL_WIDTH = 12.2


def text_of(svg: str) -> str:
    """The characters of a screen, line by line."""
    lines: dict[int, str] = {}
    for x, number, piece in PIECE.findall(svg):
        column = round(float(x) / CELL_WIDTH)
        lines[int(number)] = lines.get(int(number), "").ljust(column) + unescape(piece).replace("\N{NO-BREAK SPACE}", " ")
    return "\n".join(lines.get(number, "").rstrip() for number in range(max(lines) + 1)) + "\n"


def top() -> Top:
    return Top(lambda: figures(state_of(LOOK)), 3_600.0, lambda name: [f"{name}:", *STORY])


async def drawn(screen: Top) -> None:
    for _ in range(500):
        if screen.looks:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nothing was drawn")


def test_F9_the_screen_is_drawn_as_it_was() -> None:
    async def steps() -> None:
        screen = top()
        async with screen.run_test(size=(120, 66)) as pilot:
            await drawn(screen)
            await pilot.pause()
            assert text_of(screen.export_screenshot()) == DRAWN.read_text()

    asyncio.run(steps())


def test_F9_enter_on_a_decision_tells_its_story_and_the_list_stands_still_meanwhile() -> None:
    async def steps() -> None:
        screen = top()
        async with screen.run_test(size=(120, 66)) as pilot:
            await drawn(screen)
            await pilot.press("d", "down", "down", "enter")
            await screen.workers.wait_for_complete()
            await pilot.pause()
            shown = text_of(screen.export_screenshot())
            assert "req_8e2edcaf2f7251:" in shown and "61 requests of class bulk would be waiting" in shown
            table, looks = screen._table("decisions"), screen.looks
            await screen._look_once()
            assert (screen.looks, table.cursor_row) == (looks + 1, 2)
            await pilot.press("escape")
            await pilot.pause()
            assert len(screen.screen_stack) == 1
            await pilot.press("escape")
            assert screen.focused is None

    asyncio.run(steps())


def test_F9_a_screen_that_hears_nothing_says_since_when() -> None:
    async def steps() -> None:
        screen = top()
        async with screen.run_test(size=(120, 30)) as pilot:
            await drawn(screen)
            screen._look = unreachable
            await screen._look_once()
            await pilot.pause()
            shown = text_of(screen.export_screenshot())
            assert "stale since 09:00:42 UTC. it cannot be reached" in shown
            assert "33,200 of 43,080" in shown, "what was seen last stays"

    asyncio.run(steps())


def unreachable() -> None:
    raise LookFailed("it cannot be reached")


def test_F9_bars_are_as_high_as_their_values_and_blank_where_nobody_knew() -> None:
    assert bars([0.0, 1.0, 2.0, None, 7.0]) == "▁▂▃ █"
    assert bars([0.0, 0.0, None]) == "▁▁ "
    assert bars([]) == ""
