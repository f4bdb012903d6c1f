"""Figures of a run nobody made, where only two of them matter."""

from __future__ import annotations

from headworks.tools.load_figures import Figures, Half, Spread

NONE = Spread(0, None, None, None, None)


def made(goodput_per_s: float, wasted_ratio: float | None) -> Figures:
    half = Half(0, 0.0, 0.0, NONE, None)
    return Figures(
        *("http://engine", "trace", "tiny", 4096, 1, "poisson", 10.0, 2.0, 1.0, "none"),
        *(24.0, 240, 240, 0, int(goodput_per_s * 10), goodput_per_s, goodput_per_s / 24.0),
        *({}, {}, NONE, NONE, 0, 0, 0, wasted_ratio, wasted_ratio, "engine", half, None, 0.0, 0.0),
    )
