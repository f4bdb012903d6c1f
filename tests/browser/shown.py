"""What stands on the page, and how it should be written: the second opinion to `gateway/dashboard/figures.js`."""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

READ = """() => ({
  version: document.body.dataset.version,
  figures: [...document.querySelectorAll("[data-of]")].filter(n => n.checkVisibility()).map(n =>
    ({of: JSON.parse(n.dataset.of), as: n.dataset.as, text: n.textContent})),
  loose: (() => {
    const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode())
      if (/[0-9]/.test(node.data) && !node.parentElement.closest(
          "[data-of], [data-name], [role=columnheader], noscript, script")) found.push(node.data);
    return found;
  })(),
})"""
"""Figures with the place they come from, and texts with digits that have none. Read in one go, between two looks."""
NOTHING = "–"


def fixed(value: float, places: int) -> str:
    """As JavaScript's toFixed: exact decimal of the double, halves away from zero."""
    return f"{Decimal(value).quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_UP):f}"


def grouped(value: float) -> str:
    return f"{Decimal(fixed(value, 0)):,}"


def seconds(value: float) -> str:
    return f"{fixed(value, 2 if value < 10 else 1 if value < 100 else 0)} s"


WRITTEN: dict[str, Callable[[Any], str]] = {
    "count": grouped,
    "ratio": lambda value: f"{fixed(100 * value, 0)}%",
    "rate": lambda value: fixed(value, 1) if value < 100 else grouped(value),
    "times": lambda value: fixed(value, 2),
    "seconds": seconds,
    "waited": lambda value: NOTHING if value < 0.005 else seconds(value),
    "milliseconds": lambda value: f"{fixed(1000 * value, 1)} ms",
    "clock": lambda value: str(value)[11:19],
    "list": lambda value: " ".join(value) or NOTHING,
    "words": lambda value: str(value).replace("_", " ") or NOTHING,
    "text": lambda value: str(value) or NOTHING,
}


def written(look: Any, place: list[Any], kind: str) -> str:
    value = look
    for name in place:
        value = value[name]
    return NOTHING if value is None else WRITTEN[kind](value)
