"""Every cell of the fault matrix that a virtual world can have: nothing breaks, and what was to go wrong went wrong.

`headworks sim --campaign --histories matrix --seeds 35000` is a thousand seeds of each; here are as many as a test may take.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headworks.core.book import Book
from headworks.core.policy import Policy
from headworks.sim.campaign import Campaign, run_world
from headworks.sim.fault_matrix import CELLS, goals, matrix_world, world_of
from headworks.sim.ledger import BookLike
from headworks.testing import planted

SEEDS = range(1, 11)
PAGE = Path(__file__).parents[2] / "docs" / "faults.md"


@pytest.mark.parametrize("cell", CELLS)
def test_I1_to_I36_hold_in_every_cell_of_the_matrix(cell: str) -> None:
    found = Campaign()
    broken = {seed: problem for seed in SEEDS if (problem := run_world(world_of(cell, seed), found))}
    assert broken == {}, f"again: headworks sim --campaign --histories matrix --seed {_seeds(cell, broken)}"
    assert found.reached.get(CELLS[cell].goal, 0) >= 1, "it did not go wrong"


def _seeds(cell: str, broken: dict[int, str]) -> list[int]:
    return [seed * len(CELLS) + list(CELLS).index(cell) for seed in broken]


def test_I43_the_command_goes_through_the_cells_in_turn() -> None:
    assert [matrix_world(7 * len(CELLS) + place).planned for place, _ in enumerate(CELLS)] == [
        world_of(cell, 7).planned for cell in CELLS
    ]
    assert len(CELLS) == 35 and len(goals()) >= 25


def make_planted(policy: Policy) -> BookLike:
    return planted.ExpiryFrees(lease_ms=round(policy.lease_s * 1000), remember_ms=round(policy.remember_s * 1000))


@pytest.mark.parametrize("cell", ["killed_d", "killed_e", "stopped_e"])
def test_A7_a_planted_expiry_that_frees_does_not_survive_a_strike(cell: str) -> None:
    assert issubclass(planted.ExpiryFrees, Book)
    assert any("freed_early" in run_world(world_of(cell, seed, make_planted)) for seed in range(1, 60))


def test_every_cell_stands_in_the_page() -> None:
    told = PAGE.read_text()
    assert [cell for cell in CELLS if f"`{cell}`" not in told] == []
