"""Worlds whose ledger is lost once, empty or with its last moments: nobody admits before everybody has told what runs (A11).

The campaign has a quarter of such worlds. Here are those in which much runs when it happens, and gateways that do not wait.
"""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from headworks.core.gate import Gate
from headworks.core.policy import Policy
from headworks.core.recovery import Recovery
from headworks.sim.campaign import Campaign, run_world
from headworks.sim.campaign_worlds import small_world
from headworks.sim.compare import make_gate
from headworks.sim.faults import Fault
from headworks.sim.runner import GateLike
from headworks.sim.simulation import Setup

SEEDS = range(1, 16)


def losing(seed: int) -> Setup:
    """Three gateways, patient clients, and the store lost while they stream; nothing else goes wrong."""
    print(f"again: losing({seed})")
    world, random = small_world(seed), Random(f"losing-{seed}")
    kind = random.choice(("store_emptied", "store_rolled_back"))
    lost = Fault(1.6 + random.random() * 1.4, kind, for_s=random.choice((0.1, 0.5)))
    sources = [dataclasses.replace(one, temper=dataclasses.replace(one.temper, patience_s=60.0)) for one in world.sources]
    return dataclasses.replace(world, shared=True, gateways=3, faults=[lost], sources=sources)


class Impatient(Recovery):
    """Tells what runs, and admits at once."""

    @property
    def is_over(self) -> bool:
        return True

    def begin(self, *arguments: object) -> None:
        super().begin(*arguments)  # type: ignore[arg-type]
        self._desk.recovers = False


def impatient(policy: Policy, gateway: str, seed: int, boot: str) -> GateLike:
    gate = make_gate(policy, gateway, seed, boot)
    assert isinstance(gate, Gate)
    gate._boot.recovery = Impatient(gate._desk)
    return gate


def test_A11_whatever_runs_is_charged_in_the_next_store_before_anything_new_is_admitted() -> None:
    found = Campaign()
    assert [run_world(losing(seed), found) for seed in SEEDS] == [""] * len(SEEDS)
    assert found.reached["another store"] == len(SEEDS) and found.reached["reassert ok"] >= 5


def test_A11_planted_gateways_that_admit_at_once_are_seen_in_the_engines_memory() -> None:
    assert any("freed_early" in run_world(dataclasses.replace(losing(seed), make_gate=impatient)) for seed in SEEDS)


@pytest.mark.parametrize("seed", [168, 191, 227, 1739, 6394])
def test_A11_seeds_that_found_something(seed: int) -> None:
    """Growth that took what others had not told yet; a cancel that reached the next store before its owner told it."""
    assert run_world(small_world(seed)) == ""
