"""Curves, areas and shares as SVG inside a page (`page.py`).

What is drawn can be read without seeing it: each figure has a title, a sentence that says what its lines do, and its numbers
in a table behind it. Lines differ by dash as well as by colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from headworks.sim.page import Cell, number, table

WIDTH, HEIGHT = 640, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 30
"""The margins of a drawing, in its own units."""
DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 4 1 4")
COLOURS = len(DASHES)
TICKS = 4
"""Steps of the scale, at least; and a few more where that makes rounder numbers."""
UNITS = {"s": ", s", "%": ", %", "/s": ", requests a second"}
ROWS_MAX = 120
BAR, GAP = 1000, 1.5
SHARES = 13
"""Colours of shares."""


@dataclass(slots=True)
class Line:
    """One curve; None where there is nothing to show."""

    name: str
    values: Sequence[float | None]


@dataclass(slots=True)
class Chart:
    """Curves over one axis of time, which begins at 0."""

    title: str
    unit: str
    """`/s`, `s`, `%` or empty; with `%` values are ratios."""
    step_s: float
    lines: Sequence[Line]
    stacked: bool = False
    """The lines are parts of a whole and lie on each other."""
    tones: Sequence[str] = ()
    """Names of colours, where they mean something."""
    limit: tuple[str, float] | None = None
    """A level to compare them with, and its name."""
    reach: Sequence[float] = ()
    """Values the scale has to reach as well, where charts are to be compared."""


def figure(chart: Chart) -> str:
    """A chart with its title, its legend and its numbers."""
    drawn = [line for line in chart.lines if any(value is not None for value in line.values)]
    label = f"{chart.title}{UNITS.get(chart.unit, '')}"
    if not drawn:
        return f"<figure><figcaption>{escape(label)}</figcaption><p class=none>Nothing to show.</p></figure>"
    tones = _tones(chart)
    said = "; ".join(_said(line, chart) for line in drawn)
    return (
        f"<figure><figcaption>{escape(label)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{escape(label)}</title><desc>{escape(said)}</desc>'
        f"{_drawing(chart, tones)}</svg>"
        f"{_legend(chart, tones)}<details><summary>Numbers</summary>{_numbers(chart)}</details></figure>"
    )


def _tones(chart: Chart) -> list[str]:
    return list(chart.tones) or [f"c{number % COLOURS}" for number in range(len(chart.lines))]


def _said(line: Line, chart: Chart) -> str:
    """What somebody would say who looked at it."""
    known = [(value, place) for place, value in enumerate(line.values) if value is not None]
    most, place = max(known)
    mean = sum(value for value, _ in known) / len(known)
    unit = chart.unit
    at = f"{place * chart.step_s:,.0f} s"
    return f"{line.name}: {number(mean, unit)} on average, at most {number(most, unit)} at {at}"


def _drawing(chart: Chart, tones: Sequence[str]) -> str:
    values = _stacked(chart.lines) if chart.stacked else [list(line.values) for line in chart.lines]
    reach = [value for one in values for value in one if value is not None]
    highest = max(0.0, *reach, *chart.reach, 0.0 if chart.limit is None else chart.limit[1])
    step = _nice(highest / TICKS)
    top = step * max(1, math.ceil(highest / step - 1e-9))
    whole_s = max(chart.step_s, chart.step_s * max(len(line.values) for line in chart.lines))
    parts = [_axes(step, top, whole_s, chart.unit)]
    if chart.stacked:
        below: list[float | None] = [0.0] * len(values[0])
        for own, tone in zip(values, tones, strict=True):
            parts.append(_area(own, below, tone, top, whole_s, chart.step_s))
            below = own
    else:
        for place, (own, tone) in enumerate(zip(values, tones, strict=True)):
            dash = DASHES[place % len(DASHES)]
            parts.append(_curve(own, tone, dash, top, whole_s, chart.step_s))
    if chart.limit is not None:
        parts.append(_level(*chart.limit, top))
    return "".join(parts)


def _level(name: str, value: float, top: float) -> str:
    y = _y(value, top)
    line = f'<line class=limit x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text class=tick x="{WIDTH - RIGHT - 4}" y="{y - 4:.1f}" text-anchor="end">{escape(name)}</text>'


def _stacked(lines: Sequence[Line]) -> list[list[float | None]]:
    """Each line on top of those before it."""
    found: list[list[float | None]] = []
    heights = [0.0] * len(lines[0].values)
    for line in lines:
        heights = [height + (value or 0.0) for height, value in zip(heights, line.values, strict=True)]
        found.append(list(heights))
    return found


def _nice(highest: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    if highest <= 0.0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return next(step * power for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * power >= highest * 0.999)


def _axes(step: float, top: float, whole_s: float, unit: str) -> str:
    parts = []
    for place in range(round(top / step) + 1):
        y = _y(place * step, top)
        parts.append(f'<line class=grid x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class=tick x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_tick(place * step, step, unit)}</text>'
        )
    step_s = _nice(whole_s / 6)
    for place in range(int(whole_s / step_s + 1e-9) + 1):
        x = _x(place * step_s, whole_s)
        at = _clock(place * step_s)
        parts.append(f'<text class=tick x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{at}</text>')
    return "".join(parts)


def _tick(value: float, step: float, unit: str) -> str:
    """With as many digits as its neighbours need to differ."""
    scale = 100.0 if unit == "%" else 1.0
    digits = max(0, -math.floor(math.log10(step * scale) + 1e-9))
    if digits == 0 and step * scale % 1.0:  # steps of 2.5
        digits = 1
    return f"{scale * value:,.{digits}f}"


def _clock(at_s: float) -> str:
    """Seconds up to some minutes, then minutes, then hours."""
    if at_s < 600 or at_s % 60:
        return f"{at_s:,.10g} s"
    return f"{at_s / 60:,.0f} min" if at_s < 36_000 else f"{at_s / 3600:,.1f} h"


def _x(at_s: float, whole_s: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * at_s / whole_s


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(1.0, value / top)


def _curve(values: Sequence[float | None], tone: str, dash: str, top: float, whole_s: float, step_s: float) -> str:
    """Broken where there is nothing; a value with nothing beside it is a dot."""
    parts: list[str] = []
    pen = "M"
    for place, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        x, y = _x((place + 0.5) * step_s, whole_s), _y(value, top)
        parts.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
        alone = (place == 0 or values[place - 1] is None) and (place + 1 == len(values) or values[place + 1] is None)
        if alone:
            parts.append("h.01")
    return f'<path class="curve {tone}" d="{"".join(parts)}"{_dashed(dash)}/>'


def _area(
    above: Sequence[float | None], below: Sequence[float | None], tone: str, top: float, whole_s: float, step_s: float
) -> str:
    """Steps, as what is shown was counted in parts of time."""
    up = [
        f"L{_x(at * step_s, whole_s):.1f} {_y(value or 0.0, top):.1f}"
        for place, value in enumerate(above)
        for at in (place, place + 1)
    ]
    down = [
        f"L{_x(at * step_s, whole_s):.1f} {_y(below[place] or 0.0, top):.1f}"
        for place in reversed(range(len(below)))
        for at in (place + 1, place)
    ]
    return f'<path class="area {tone}" d="M{up[0][1:]}{"".join(up[1:])}{"".join(down)}Z"/>'


def _legend(chart: Chart, tones: Sequence[str]) -> str:
    if len(chart.lines) == 1 and not chart.tones:
        return ""
    keys = []
    for place, (line, tone) in enumerate(zip(chart.lines, tones, strict=True)):
        if chart.stacked:
            keys.append((line.name, f'<rect class="area {tone}" width="14" height="10" y="1"/>'))
        else:
            keys.append((line.name, f'<path class="curve {tone}" d="M0 6h24"{_dashed(DASHES[place % len(DASHES)])}/>'))
    return _keys(keys, 14 if chart.stacked else 24)


def _keys(keys: Sequence[tuple[str, str]], wide: int) -> str:
    """Names, each with its mark."""
    key = f'<svg class=key viewBox="0 0 {wide} 12" width="{wide}" height="12" aria-hidden="true">'
    return f"<ul class=legend>{''.join(f'<li>{key}{mark}</svg>{escape(name)}</li>' for name, mark in keys)}</ul>"


def _dashed(dash: str) -> str:
    return f' stroke-dasharray="{dash}"' if dash else ""


def _numbers(chart: Chart) -> str:
    count = max(len(line.values) for line in chart.lines)
    every = max(1, math.ceil(count / ROWS_MAX))
    rows = [
        [Cell(f"{place * chart.step_s:,.10g} s"), *(Cell(number(line.values[place], chart.unit)) for line in chart.lines)]
        for place in range(0, count, every)
    ]
    return table(["from", *(line.name for line in chart.lines)], rows)


def shares(title: str, rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> str:
    """Bars of one length, each cut into the parts of its whole; parts of one name have one colour."""
    totals: dict[str, float] = {}
    for _, parts in rows:
        for name, value in parts:
            totals[name] = totals.get(name, 0.0) + value
    names = sorted(totals, key=lambda name: -totals[name])
    tones = {name: f"t{place % SHARES}" for place, name in enumerate(names)}
    bars, lines = [], []
    for row, parts in rows:
        whole = sum(value for _, value in parts) or 1.0
        own = dict(parts)
        ratios = {name: own[name] / whole for name in names if name in own}
        bars.append(f"<dt>{escape(row)}</dt><dd>{_bar(row, ratios, tones)}</dd>")
        lines.append([Cell(row, is_number=False), *(Cell(number(ratios.get(name), "%")) for name in names)])
    keys = _keys([(name, f'<rect class="{tones[name]}" width="14" height="10" y="1"/>') for name in names], 14)
    return (
        f"<figure><figcaption>{escape(title)}</figcaption><dl class=bars>{''.join(bars)}</dl>{keys}"
        f"<details><summary>Numbers</summary>{table(['', *names], lines)}</details></figure>"
    )


def _bar(row: str, ratios: dict[str, float], tones: dict[str, str]) -> str:
    said = "; ".join(f"{name} {number(ratio, '%')}" for name, ratio in ratios.items())
    cut, x = [], 0.0
    for name, ratio in ratios.items():
        wide = max(0.0, BAR * ratio - GAP)
        told = escape(f"{name}: {number(ratio, '%')}")
        cut.append(f'<rect class="{tones[name]}" x="{x:.1f}" width="{wide:.1f}" height="22"><title>{told}</title></rect>')
        x += BAR * ratio
    title = escape(f"{row}: {said}")
    return f'<svg class=bar viewBox="0 0 {BAR} 22" preserveAspectRatio=none role=img><title>{title}</title>{"".join(cut)}</svg>'
