"""The fault matrix: what may go wrong × when, each cell a world of its own that is drawn from a seed.

A cell takes a short history (`campaign_histories.py`) and lets its one thing go wrong in it, by itself in half of the seeds and
beside whatever else that history had in the others. `goal` is what must have been noted for the thing to have happened.

    headworks sim --campaign --histories matrix --seeds 35000

goes through the cells in turn. What no virtual world has (bytes, files, sockets) is tried at the edge and by real processes:
docs/faults.md has the whole table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from headworks.sim.batching import ContinuousBatching
from headworks.sim.campaign_histories import SHORT_S, short_world
from headworks.sim.compare import POOL, make_book
from headworks.sim.faults import Fault
from headworks.sim.ledger import Line
from headworks.sim.moments import MOMENTS, StruckRunner
from headworks.sim.points import Points
from headworks.sim.presets import tiny
from headworks.sim.runner import SimRunner
from headworks.sim.simulation import MakeBook, Setup

Change = Callable[[Setup, Random], Setup]
FIRE_RATIO = 0.5
"""A moment strikes at the first request that comes to it, or at the second, or ..."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One thing that goes wrong."""

    change: Change
    goal: str


def world_of(name: str, seed: int, make: MakeBook = make_book) -> Setup:
    """The history of this seed in which the cell's thing goes wrong."""
    world, random = short_world(seed, make), Random(f"cell-{name}-{seed}")
    if random.random() < 0.5:
        line = Line(latency_s=world.line.latency_s, gather_s=world.line.gather_s)
        world = dataclasses.replace(world, faults=[], line=line, make_runner=SimRunner)
    return CELLS[name].change(world, random)


def matrix_world(seed: int, make: MakeBook = make_book) -> Setup:
    """The cells in turn."""
    return world_of(tuple(CELLS)[seed % len(CELLS)], seed // len(CELLS), make)


def goals() -> tuple[str, ...]:
    """What a campaign through all cells must have met."""
    return tuple(dict.fromkeys(cell.goal for cell in CELLS.values()))


def _struck(point: str, world: Setup, random: Random) -> Setup:
    points = Points({point: FIRE_RATIO}, random.randrange(1 << 30))
    return dataclasses.replace(
        world, make_runner=partial(StruckRunner, points), gateways=max(world.gateways, random.choice((1, 2)))
    )


def _with(world: Setup, *faults: Fault) -> Setup:
    return dataclasses.replace(world, faults=sorted([*world.faults, *faults], key=lambda fault: fault.at_s))


def _fault(kind: str, lengths_s: tuple[float, ...], ratio: float, world: Setup, random: Random) -> Setup:
    engines = tuple(world.engines)
    target = "0" if kind.startswith("gateway") else random.choice(engines)
    return _with(world, Fault(random.random() * SHORT_S, kind, target, random.choice(lengths_s), ratio))


def _lost(kind: str, world: Setup, random: Random) -> Setup:
    """A store that several gateways share."""
    return _fault(kind, (0.05, 0.3, 1.0), 1.0, dataclasses.replace(world, shared=True, gateways=random.choice((2, 3))), random)


def _line(world: Setup, random: Random, **ratios: Any) -> Setup:
    return dataclasses.replace(world, line=dataclasses.replace(world.line, **ratios))


def _answers_lost(world: Setup, random: Random) -> Setup:
    return _line(world, random, lost_answer_ratio=0.3)


def _twice(world: Setup, random: Random) -> Setup:
    return _line(world, random, twice_ratio=0.5, jitter_ratio=0.9, late_ratio=0.2, late_s=0.2)


def _slow(world: Setup, random: Random) -> Setup:
    return _line(world, random, late_ratio=0.3, late_s=2.0, jitter_ratio=0.5)


def _tempered(world: Setup, **temper: Any) -> Setup:
    sources = [
        one if one.agents else dataclasses.replace(one, temper=dataclasses.replace(one.temper, **temper))
        for one in world.sources
    ]
    return dataclasses.replace(world, sources=sources)


def _leave(hidden_ratio: float, world: Setup, random: Random) -> Setup:
    return _tempered(world, leave_ratio=1.0, hidden_ratio=hidden_ratio, patience_s=float("inf"))


def _at_once(world: Setup) -> Setup:
    planned = [dataclasses.replace(one, at_s=0.1) for one in world.planned]
    return dataclasses.replace(world, planned=planned)


def _one_key(world: Setup, random: Random) -> Setup:
    """Callers who give up and ask again under their key, at another gateway, while the first attempt runs."""
    world = _tempered(world, key_ratio=1.0, shared_key_ratio=0.5, retries_max=2, patience_s=0.3, leave_ratio=0.0)
    sources = [
        one if one.agents else dataclasses.replace(one, temper=dataclasses.replace(one.temper, retries_after_leaving=True))
        for one in world.sources
    ]
    return _at_once(dataclasses.replace(world, sources=sources, gateways=2))


def _storm(world: Setup, random: Random) -> Setup:
    return _at_once(_tempered(world, retries_max=2, leave_ratio=0.0, patience_s=float("inf")))


def _full(world: Setup, random: Random) -> Setup:
    """An engine that has room for fewer than its gateways believe, and says 503."""
    settings = dataclasses.replace(tiny(), running_max=2, queued_max=1, kv_blocks=20, report_tokens=4)
    return _at_once(dataclasses.replace(world, engines=dict.fromkeys(world.engines, lambda: ContinuousBatching(settings))))


def _two_engines(kind: str, world: Setup, random: Random) -> Setup:
    """One of two leaves in the middle, and comes again."""
    replicas = tuple(dataclasses.replace(world.policy.pools[POOL].replicas[0], name=f"{POOL}/{number}") for number in range(2))
    pools = {POOL: dataclasses.replace(world.policy.pools[POOL], replicas=replicas)}
    make = next(iter(world.engines.values()))
    policy = dataclasses.replace(world.policy, pools=pools)
    world = dataclasses.replace(world, policy=policy, engines={one.name: make for one in replicas})
    return _with(world, Fault(random.random() * SHORT_S, kind, f"{POOL}/1", random.choice((0.05, 0.6, 1.5))))


def _of(kind: str, *lengths_s: float) -> Cell:
    return Cell(partial(_fault, kind, lengths_s, 1.0), f"fault {kind}")


CELLS: dict[str, Cell] = {
    **{point: Cell(partial(_struck, point), f"armed {point}") for point in MOMENTS},
    "two_gateways_one_key": Cell(_one_key, "claim attach"),
    "answers_lost": Cell(_answers_lost, "lost_answer"),
    "twice_and_out_of_order": Cell(_twice, "twice"),
    "client_leaves": Cell(partial(_leave, 0.0), "outcome cancelled"),
    "client_vanishes": Cell(partial(_leave, 1.0), "client vanished"),
    "ledger_cut_off": _of("ledger_cut_off", 0.3, 1.5, 3.0),
    "ledger_slow": Cell(_slow, "late"),
    "store_emptied": Cell(partial(_lost, "store_emptied"), "fault store_emptied"),
    "store_rolled_back": Cell(partial(_lost, "store_rolled_back"), "fault store_rolled_back"),
    "store_clock_forward": _of("store_clock_forward", 60.0, 1_800.0),
    "store_clock_back": _of("store_clock_back", 60.0, 3_600.0),
    "engine_killed": _of("engine_restart", 0.6, 3.0),
    "engine_restarts_at_once": _of("engine_restart", 0.0, 0.05),
    "engine_hangs": _of("engine_hang", 0.6, 1.2),
    "engine_ignores_aborts": _of("aborts_ignored", 1.5, 6.0),
    "engine_full": Cell(_full, "engine busy"),
    "metrics_dead": _of("scrapes_refused", 1.5, 6.0),
    "engine_ten_times_slower": Cell(partial(_fault, "engine_slow", (1.0, 3.0), 10.0), "fault engine_slow"),
    "engine_ten_times_faster": Cell(partial(_fault, "engine_slow", (1.0, 3.0), 0.1), "fault engine_slow"),
    "connections_broken": _of("connections_broken", 1.0),
    "limits_cut": Cell(partial(_fault, "reload", (1.0,), 0.1), "fault reload"),
    "rolling_restart": _of("gateway_drain", 0.05, 0.6, 3.0),
    "retry_storm": Cell(_storm, "tried again"),
    "engine_drained": Cell(partial(_two_engines, "replica_drained"), "fault replica_drained"),
    "engine_withdrawn": Cell(partial(_two_engines, "replica_withdrawn"), "fault replica_withdrawn"),
}
"""By its name in docs/faults.md."""
