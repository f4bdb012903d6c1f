"""What goes wrong, and when: the fault model of the simulated world as a list of values.

Each fault is one row: a time, a kind, a target and how long. They are put into the world's list before the run, so a
run with faults is as repeatable as one without. Ratios of lost, late and repeated ledger messages are no faults with a
time; they belong to the line (`sim/ledger.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headworks.core.book import Book
from headworks.core.events import PolicyChanged
from headworks.core.policy import ReplicaPolicy

if TYPE_CHECKING:
    from headworks.sim.simulation import Simulation


PROMOTED_S = 0.3
"""So long nobody answers until a replica has been promoted."""


@dataclass(slots=True)
class Fault:
    """One thing that goes wrong. `target` is a replica's name or a gateway's number; empty where there is none."""

    at_s: float
    kind: str
    target: str = ""
    for_s: float = 1.0
    ratio: float = 1.0
    """`connections_broken`: share of the open ones. `engine_slow`: how many times slower. `reload`: of the limits."""


def schedule(faults: list[Fault], zero_s: float, simulation: Simulation) -> None:
    """Put every fault into the world's list; the scenario's time begins at `zero_s`."""
    for fault in faults:
        simulation.world.at(zero_s + fault.at_s, _bound(fault, simulation))


def _bound(fault: Fault, simulation: Simulation) -> Callable[[], None]:
    return lambda: KINDS[fault.kind](simulation, fault)


def _engine_restart(simulation: Simulation, fault: Fault) -> None:
    """The engine's process dies; another one answers after `for_s`, and the gateways learn what it can hold."""
    replica = simulation.replicas[fault.target]
    replica.restart(fault.for_s)
    simulation.world.after(fault.for_s, lambda: simulation.describe(fault.target))


def _engine_hang(simulation: Simulation, fault: Fault) -> None:
    simulation.replicas[fault.target].hang(fault.for_s)


def _engine_slow(simulation: Simulation, fault: Fault) -> None:
    simulation.replicas[fault.target].slow(fault.ratio, fault.for_s)


def _aborts_ignored(simulation: Simulation, fault: Fault) -> None:
    simulation.replicas[fault.target].ignore_aborts(fault.for_s)


def _connections_broken(simulation: Simulation, fault: Fault) -> None:
    simulation.replicas[fault.target].break_connections(fault.ratio)


def _scrapes_refused(simulation: Simulation, fault: Fault) -> None:
    simulation.replicas[fault.target].refuse_scrapes(fault.for_s)


def _ledger_cut_off(simulation: Simulation, fault: Fault) -> None:
    """A partition. Each gateway notices that its connection broke."""
    simulation.ledger.cut_off(fault.for_s)
    for runner in simulation.runners:
        if runner is not None:
            runner.lose_ledger()


def _store_emptied(simulation: Simulation, fault: Fault) -> None:
    """The store dies, and comes back with nothing in it."""
    simulation.lose_ledger(fault.for_s)


def _store_rolled_back(simulation: Simulation, fault: Fault) -> None:
    """A replica is promoted that lacks what was acknowledged in the last `for_s`."""
    book = simulation.ledger.book
    assert isinstance(book, Book)
    kept = book.snapshot()
    simulation.world.after(fault.for_s, lambda: simulation.lose_ledger(PROMOTED_S, kept))


def _store_clock_forward(simulation: Simulation, fault: Fault) -> None:
    """The clock of the store's machine is set, by `for_s`."""
    simulation.ledger.clock_off_ms += round(fault.for_s * 1000)


def _store_clock_back(simulation: Simulation, fault: Fault) -> None:
    simulation.ledger.clock_off_ms -= round(fault.for_s * 1000)


def _ledger_restored(simulation: Simulation, fault: Fault) -> None:
    """The ledger goes on from what it wrote down, as if nothing had happened: what is stored is what was held (I8)."""
    _restore(simulation, replay=True)


def _process_killed(simulation: Simulation, fault: Fault) -> None:
    """kill -9 of a gateway that has its ledger in its own process: what is in the file is orphaned when it starts again."""
    if simulation.runners[int(fault.target)] is not None:
        _gateway_kill(simulation, fault)
        _restore(simulation, replay=False)


def _restore(simulation: Simulation, *, replay: bool) -> None:
    old, book = simulation.ledger.book, simulation.setup.make_book(simulation.policy)
    assert isinstance(old, Book) and isinstance(book, Book)
    book.restore(old.snapshot(), replay=replay)
    simulation.ledger.book = book
    simulation.ledger.applied += 1


def _gateway_kill(simulation: Simulation, fault: Fault) -> None:
    """kill -9, and a new process of the same name after `for_s`."""
    number = int(fault.target)
    if simulation.runners[number] is not None:
        simulation.kill(number)
        simulation.world.after(fault.for_s, lambda: simulation.boot(number))


def _gateway_drain(simulation: Simulation, fault: Fault) -> None:
    """An orderly restart with `for_s` for what runs."""
    simulation.drain(int(fault.target), fault.for_s)


def _replica_drained(simulation: Simulation, fault: Fault) -> None:
    """It ends what it has; after `for_s` it gets work again."""
    _change_replica(simulation, fault.target, lambda one: replace(one, drains=True))
    simulation.world.after(fault.for_s, lambda: _change_replica(simulation, fault.target, lambda one: one))


def _replica_withdrawn(simulation: Simulation, fault: Fault) -> None:
    """The configuration names it no more; after `for_s` it does, as one that was added."""
    _change_replica(simulation, fault.target, lambda one: None)

    def add() -> None:
        _change_replica(simulation, fault.target, lambda one: one)
        simulation.describe(fault.target)

    simulation.world.after(fault.for_s, add)


def _change_replica(simulation: Simulation, target: str, change: Callable[[ReplicaPolicy], ReplicaPolicy | None]) -> None:
    """Every gateway gets a new policy, in which this replica is what `change` makes of it as it was at the beginning."""
    old, name = simulation.policy, target.rsplit("/", 1)[0]
    now = {one.name: one for one in old.pools[name].replicas}
    now.pop(target, None)
    first = simulation.setup.policy.pools[name].replicas
    wanted = [change(one) if one.name == target else now.get(one.name) for one in first]
    pool = replace(old.pools[name], replicas=tuple(one for one in wanted if one is not None))
    version = f"reload-{old.number}"
    simulation.policy = replace(old, version=version, number=old.number + 1, pools={**old.pools, name: pool})
    for runner in simulation.runners:
        if runner is not None:
            runner.tell(PolicyChanged(simulation.policy))


def _reload(simulation: Simulation, fault: Fault) -> None:
    simulation.reload(fault.ratio)


KINDS: dict[str, Callable[[Simulation, Fault], None]] = {
    "engine_restart": _engine_restart,
    "engine_hang": _engine_hang,
    "engine_slow": _engine_slow,
    "aborts_ignored": _aborts_ignored,
    "connections_broken": _connections_broken,
    "scrapes_refused": _scrapes_refused,
    "ledger_cut_off": _ledger_cut_off,
    "store_emptied": _store_emptied,
    "store_rolled_back": _store_rolled_back,
    "store_clock_forward": _store_clock_forward,
    "store_clock_back": _store_clock_back,
    "ledger_restored": _ledger_restored,
    "process_killed": _process_killed,
    "gateway_kill": _gateway_kill,
    "gateway_drain": _gateway_drain,
    "replica_drained": _replica_drained,
    "replica_withdrawn": _replica_withdrawn,
    "reload": _reload,
}
