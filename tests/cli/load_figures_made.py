"""Figures of a demo nobody ran, where only a few of them matter."""

from __future__ import annotations

from headworks.tools.load_figures import Figures, Spread
from headworks.tools.load_figures import Half as HalfOfRun
from headworks.tools.two_tenants import Half

NONE = Spread(0, None, None, None, None)


def figures(good: int, ttft_p95_s: float | None) -> Figures:
    half = HalfOfRun(0, 0.0, 0.0, NONE, None)
    ttft = NONE if ttft_p95_s is None else Spread(good, ttft_p95_s, ttft_p95_s, ttft_p95_s, ttft_p95_s)
    return Figures(
        *("http://engine", "trace", "tiny", 4096, 1, "poisson", 10.0, 2.0, 1.0, "none"),
        *(24.0, 240, 240, 0, good, good / 10.0, good / 240),
        *({}, {}, ttft, NONE, 0, 0, 0, None, None, "engine", half, None, 0.0, 0.0),
    )


def made(good: int, ttft_p95_s: float | None, flood_took_s: float | None) -> Half:
    return Half(figures(good, ttft_p95_s), figures(40, 1.0), flood_took_s, 0.0, 0.0, 0.0)
