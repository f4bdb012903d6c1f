"""The kinds of histories a campaign can be made of, by the names the command line knows them by."""

from __future__ import annotations

from collections.abc import Callable

from headworks.sim.campaign_goals import GOALS
from headworks.sim.campaign_histories import big_world, short_world
from headworks.sim.campaign_worlds import small_world
from headworks.sim.fault_matrix import goals, matrix_world
from headworks.sim.simulation import MakeBook, Setup

HISTORIES: dict[str, Callable[[int, MakeBook], Setup]] = {
    "short": short_world,
    "usual": small_world,
    "big": big_world,
    "matrix": matrix_world,
}


def goals_of(histories: str) -> tuple[str, ...]:
    """What a large campaign of them must have met."""
    return goals() if histories == "matrix" else GOALS
