"""The three sizes of a campaign's histories, each decided by its seed alone.

A *short* one can be read: at most `EVENTS_MAX` things come from outside (requests and their repetitions, clients who leave,
faults), and at most `LIVE_MAX` of the requests can be alive at once. It is a third of a *usual* one, with what only short ones
have: points armed in the gateway's shell (`points.py`), keys that clients share, ledgers that are restored. A *big* one is a
usual one for ten times as long, with everything going wrong again and again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from random import Random

from headworks.sim.campaign_worlds import FAULTY_S, small_world, some_faults, some_requests
from headworks.sim.compare import POOL, make_book
from headworks.sim.faults import Fault
from headworks.sim.points import POINTS, ArmedRunner, Points
from headworks.sim.simulation import MakeBook, Setup

SHORT_S = 1.6
"""Faults and arrivals of a short history fall into this much time."""
WISHES_MAX = 7
"""Requests that somebody will want in a short history; each may be sent three times, and left as often."""
AGENTS_MAX = 2
EVENTS_MAX = 60
LIVE_MAX = 16
BIG_TIMES = 10
ARMED_RATIO = {
    "death": 0.01,
    "pause": 0.01,
    "late_wakeup": 0.1,
    "spare_tick": 0.1,
    "freed_for_nothing": 0.05,
    "answers_again": 0.1,
}
"""How often a point fires where it is armed."""


def short_world(seed: int, make: MakeBook = make_book) -> Setup:
    """A history small enough to be read."""
    usual, random = small_world(seed, make), Random(f"short-{seed}")
    scale = SHORT_S / FAULTY_S
    agents = {number for number, source in enumerate(usual.sources) if source.agents is not None}
    wishes = [one for one in usual.planned if one.source not in agents]
    tasks = [one for one in usual.planned if one.source in agents]
    kept = random.sample(wishes, min(len(wishes), random.randint(3, WISHES_MAX - 2 * bool(tasks))))
    kept += random.sample(tasks, min(len(tasks), AGENTS_MAX))
    kept.sort(key=lambda one: one.at_s)
    planned = [dataclasses.replace(one, at_s=one.at_s * scale, number=number) for number, one in enumerate(kept)]
    faults = [dataclasses.replace(one, at_s=one.at_s * scale) for one in usual.faults]
    for number, source in enumerate(usual.sources):
        temper, agents_of = source.temper, source.agents
        if temper.key_ratio and random.random() < 0.5:
            temper = dataclasses.replace(temper, shared_key_ratio=random.choice((0.3, 0.8)))
        if agents_of is not None:
            agents_of = dataclasses.replace(agents_of, calls=min(agents_of.calls, 3))
            temper = dataclasses.replace(temper, retries_max=min(temper.retries_max, 1))
        usual.sources[number] = dataclasses.replace(source, temper=temper, agents=agents_of)
    faults += _of_the_ledger(usual, random)
    faults.sort(key=lambda fault: fault.at_s)
    return dataclasses.replace(usual, planned=planned, faults=faults, duration_s=SHORT_S, make_runner=_armed(random, seed))


def _of_the_ledger(usual: Setup, random: Random) -> list[Fault]:
    """In a quarter of them the ledger starts again from what it has stored."""
    if random.random() >= 0.25:
        return []
    alone = usual.gateways == 1 and not usual.shared
    kind = random.choice(("ledger_restored", "process_killed") if alone else ("ledger_restored",))
    return [Fault(random.random() * SHORT_S, kind, "0", random.choice((0.05, 0.6)))]


def _armed(random: Random, seed: int) -> Callable[..., ArmedRunner]:
    """Each point is armed in about a third of the histories."""
    armed = {point: ARMED_RATIO[point] for point in POINTS if random.random() < 0.33}
    return partial(ArmedRunner, Points(armed, seed))


def big_world(seed: int, make: MakeBook = make_book) -> Setup:
    """Ten times as long, on the policy and the engines of the usual one."""
    usual, random = small_world(seed, make), Random(f"big-{seed}")
    planned, faults = list(usual.planned), list(usual.faults)
    replicas = len(usual.policy.pools[POOL].replicas)
    sources = [number for number, source in enumerate(usual.sources) if source.agents is None]
    for part in range(1, BIG_TIMES):
        later_s = part * FAULTY_S
        planned += [
            dataclasses.replace(one, at_s=one.at_s + later_s, source=sources[one.source])
            for one in some_requests(random, len(sources))
        ]
        faults += [dataclasses.replace(one, at_s=one.at_s + later_s) for one in some_faults(random, replicas)]
    return dataclasses.replace(usual, planned=planned, faults=faults, duration_s=FAULTY_S * BIG_TIMES)
