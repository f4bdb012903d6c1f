"""Money after everything went wrong: the campaign's random worlds, with their journals, against a second reckoning (F7)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from headworks.core.effects import Outcome
from headworks.core.policy import Policy
from headworks.core.quota import Period
from headworks.gateway.avoided import ran
from headworks.gateway.statement import statement
from headworks.gateway.usage import UsageJournal
from headworks.sim.campaign_worlds import small_world
from headworks.sim.simulation import Simulation

DAY_S = 1_796_083_200
"""2026-12-01T00:00:00Z, when the worlds begin."""
PER_H = 5_120_000_000_000
"""$5,120 an hour: a world lasts for seconds, and there shall be cents in it."""


def priced(policy: Policy) -> Policy:
    return replace(policy, pools={name: replace(pool, nanomoney_per_h=PER_H) for name, pool in policy.pools.items()})


def by_millisecond(outcomes: Iterable[Outcome], engines: int, ends_ms: int) -> Counter[str]:
    """The same division done the slow way: each millisecond of each engine among the sequences that are inside it."""
    stays: dict[str, list[tuple[int, int, int, str]]] = {}
    for one in outcomes:
        assert one.sent_s is not None
        stay = round((DAY_S + one.sent_s) * 1000), round((DAY_S + one.ended_s) * 1000), one.work.sequences, one.key.tenant
        stays.setdefault(one.replica, []).append(stay)
    cost: Counter[str] = Counter()
    for inside_engine in stays.values():
        for at_ms in range(DAY_S * 1000, ends_ms):
            inside = [(weight, tenant) for begins, ends, weight, tenant in inside_engine if begins <= at_ms < ends]
            whole = sum(weight for weight, _ in inside)
            for weight, tenant in inside:
                cost[tenant] += PER_H / 3_600_000 * weight / whole  # type: ignore[assignment]
    return cost


SEEDS = range(1, 21)
"""A world has few executions; all of them together have some."""


def test_F7_after_a_faulty_run_the_journals_are_the_statement_and_the_statement_is_the_cost_of_the_pools(
    tmp_path: Path,
) -> None:
    """Gateways are killed and their last lines lost, engines restart, hang and go deaf; two gateways write side by side."""
    assert sum(stated(seed, tmp_path / str(seed)) for seed in SEEDS) > 50, "hardly anything ran"


def stated(seed: int, directory: Path) -> int:
    """One world: how many executions its journals have."""
    print(f"seed {seed}: PYTHONPATH=tests/properties python -c 'from test_money import *; stated({seed}, Path(\"x\"))'")
    setup = small_world(seed)
    policy = priced(setup.policy)
    simulation = Simulation(setup)
    simulation.run()
    ends_s = int(simulation.world.now_s) + 1
    journals = [
        UsageJournal(directory, policy, utc_s=lambda: float(DAY_S), offset_s=float(DAY_S), flush_s=3600.0) for _ in range(2)
    ]
    outcomes = [one.outcome for one in simulation.arrivals.values() if one.outcome is not None]
    sent = [one for one in outcomes if ran(one)]
    for number, outcome in enumerate(outcomes):
        journals[number % 2].write(outcome)
    for journal in journals:
        journal.close()
    found = statement(directory, Period("world", DAY_S, DAY_S + ends_s), DAY_S + 86_400.0)
    assert found.differences() == [] and found.unread == 0
    engines = sum(len(pool.replicas) for pool in policy.pools.values())
    caused, idle = found.total.cost_nanomoney, sum(pool.idle_nanomoney for pool in found.pools.values())
    assert caused + idle == pytest.approx(engines * PER_H * ends_s / 3600, abs=engines)
    assert found.total.executions == len(sent)
    lines = [json.loads(line) for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]
    for column in ("billed_tokens", "billed_nanomoney", "output_tokens", "avoided_requests"):
        assert getattr(found.total, column) == sum(line.get(column, 0) for line in lines)
    slowly = by_millisecond(sent, engines, (DAY_S + ends_s) * 1000)
    by_tenant: Counter[str] = Counter()
    for about, row in found.rows.items():
        by_tenant[about[0]] += row.cost_nanomoney
    assert {name: by_tenant[name] / 1e9 for name in slowly} == pytest.approx(
        {name: cost / 1e9 for name, cost in slowly.items()}, abs=0.0001
    )
    return len(sent)
