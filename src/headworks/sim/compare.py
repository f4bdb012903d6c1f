"""From a scenario to its results: every case, every discipline, over the same requests.

The requests of a comparison are drawn once and offered to each discipline in turn. Results are plain values with sorted
keys; the same scenario and seed give the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from random import Random
from typing import Any

from headworks.core.book import Book
from headworks.core.gate import Gate
from headworks.core.policy import Policy, ReplicaPolicy
from headworks.sim import traces
from headworks.sim.baseline_published import RULES
from headworks.sim.baselines import Baseline
from headworks.sim.batching import ContinuousBatching
from headworks.sim.engine import EngineModel
from headworks.sim.expect import failures
from headworks.sim.fixed_rate import FixedRate
from headworks.sim.ledger import BookLike
from headworks.sim.presets import PRESETS
from headworks.sim.report import results
from headworks.sim.runner import GateLike
from headworks.sim.scenario import Comparison, EngineScenario, Scenario, ScenarioError, TrafficScenario
from headworks.sim.series import simulated
from headworks.sim.simulation import MakeGate, Setup, Simulation, Source
from headworks.sim.traffic import Planned, Prefixes, constant, poisson

POOL, MODEL = "main", "model"


def run(scenario: Scenario, seed: int, curves: bool = False) -> dict[str, Any]:
    """Everything the scenario asks for, under one seed, and which expectations do not hold."""
    own = compared(scenario.comparison(), seed, curves)
    baseline = own[scenario.baseline or next(iter(own))]
    found: dict[str, Any] = {
        "scenario": scenario.what,
        "seed": seed,
        "disciplines": own,
        "cases": {case: {"disciplines": compared(scenario.comparison(case), seed, curves)} for case in scenario.cases},
        **{key: value for key, value in baseline.items() if key.startswith(("queue_at_", "wait_est_at_"))},
    }
    found["failures"] = failures(scenario.expect, found)
    return found


def compared(comparison: Comparison, seed: int, curves: bool = False) -> dict[str, Any]:
    """The results of each discipline, by name; with the curves of its report, if they are wanted (`series`)."""
    planned = plan(comparison, seed)
    found: dict[str, Any] = {}
    for name in comparison.disciplines:
        simulation = Simulation(setup(comparison, name, planned, seed))
        simulation.run()
        found[name] = results(simulation)
        if curves:
            found[name]["series"] = simulated(simulation)
    return found


def as_json(found: object) -> str:
    """The one form results are written in."""
    return json.dumps(found, sort_keys=True, indent=2, ensure_ascii=False)


def setup(comparison: Comparison, discipline: str, planned: list[Planned], seed: int) -> Setup:
    """The world of one comparison with one discipline in it."""
    policy = policy_of(comparison, discipline)
    engines = {POOL: comparison.engines, **{name: beside.engines for name, beside in comparison.beside.items()}}
    return Setup(
        policy=policy,
        engines={
            replica.name: partial(engine_of, engines[name]) for name, pool in policy.pools.items() for replica in pool.replicas
        },
        sources=[_source(comparison, comparison.traffic[number], client) for number, client in _senders(comparison)],
        planned=planned,
        duration_s=comparison.duration_s,
        seed=seed,
        make_gate=_make_baseline(comparison, discipline) if comparison.is_baseline(discipline) else make_gate,
        make_book=make_book,
        context_tokens=comparison.context_tokens,
        line=comparison.line(),
        distance=comparison.distance(),
        gateways=comparison.gateways,
        faults=comparison.fault_list(),
        scaling=comparison.engines.autoscaler(),
    )


def make_gate(policy: Policy, gateway: str, seed: int, boot: str) -> GateLike:
    return Gate(policy, gateway, seed.to_bytes(16, "big"), boot)


def _make_baseline(comparison: Comparison, discipline: str) -> MakeGate:
    rule, tuning = RULES[comparison.disciplines[discipline]["kind"]], comparison.tuning(discipline)

    def made(policy: Policy, gateway: str, seed: int, boot: str) -> GateLike:
        return Baseline(rule(tuning, policy, seed), policy, boot)

    return made


def make_book(policy: Policy) -> BookLike:
    return Book(lease_ms=round(policy.lease_s * 1000), remember_ms=round(policy.remember_s * 1000))


def policy_of(comparison: Comparison, discipline: str) -> Policy:
    """The pool, and those beside it, under one discipline."""
    kind = comparison.discipline(discipline)
    pool = comparison.policy.pool_policy(
        name=POOL, models=(MODEL,), replicas=_replicas(POOL, comparison.engines), discipline=kind
    )
    beside = {
        name: one.pool_policy(name=name, models=(name,), replicas=_replicas(name, one.engines), discipline=kind)
        for name, one in comparison.beside.items()
    }
    tenants = comparison.policy.tenant_policies()
    for number, client in _senders(comparison):
        traffic = comparison.traffic[number]
        name = _tenant(traffic, client)
        tenants.setdefault(name, dataclasses.replace(tenants[traffic.tenant], name=name))
    return Policy(
        version="scenario",
        number=1,
        classes=comparison.policy.class_policies(),
        tenants=tenants,
        pools={POOL: pool, **beside},
        lease_s=comparison.policy.lease_s,
        ask_late_s=comparison.policy.ask_late_s,
    )


def _replicas(pool: str, engines: EngineScenario) -> tuple[ReplicaPolicy, ...]:
    return tuple(ReplicaPolicy(f"{pool}/{number}") for number in range(engines.replicas))


def engine_of(engines: EngineScenario) -> EngineModel:
    if engines.kind == "fixed_rate":
        return FixedRate(engines.fixed_rate())
    preset, changes = PRESETS[engines.preset](), dict(engines.settings)
    try:
        if "cost" in changes:
            changes["cost"] = dataclasses.replace(preset.cost, **changes["cost"])
        return ContinuousBatching(dataclasses.replace(preset, **changes))
    except TypeError as error:
        raise ScenarioError(f"engines.settings: {error}") from error


def plan(comparison: Comparison, seed: int) -> list[Planned]:
    """All requests of a comparison in the order in which they come."""
    places = {sender: place for place, sender in enumerate(_senders(comparison))}
    planned = [one for number in range(len(comparison.traffic)) for one in _requests(comparison, number, places, seed)]
    planned.sort(key=lambda one: (one.at_s, one.source))
    return planned


def _senders(comparison: Comparison) -> list[tuple[int, str]]:
    """Where requests come from: each traffic by its number, or each client of its trace."""
    found: list[tuple[int, str]] = []
    for number, traffic in enumerate(comparison.traffic):
        rows = traces.read(traffic.trace).rows if traffic.by_client else []
        found += [(number, client) for client in sorted({row.client for row in rows} or {""})]
    return found


def _tenant(traffic: TrafficScenario, client: str) -> str:
    return f"{traffic.tenant}-{client}" if client else traffic.tenant


def _requests(comparison: Comparison, number: int, places: Mapping[tuple[int, str], int], seed: int) -> Iterator[Planned]:
    traffic = comparison.traffic[number]
    random = Random(f"traffic-{number}-{seed}")
    prefixes = Prefixes(**traffic.prefixes) if traffic.prefixes else Prefixes(0, 0)
    for row in _offered(comparison, traffic, random, seed):
        place = places[number, row.client if traffic.by_client else ""]
        prefix = row.prefix or prefixes.draw(random)
        yield Planned(row.t_s, place, row.prompt_tokens, row.output_tokens, prefix)


def _offered(comparison: Comparison, traffic: TrafficScenario, random: Random, seed: int) -> Iterator[traces.Row]:
    until_s = comparison.duration_s
    if traffic.trace:
        recorded = traces.scaled(traces.read(traffic.trace), comparison.context_tokens)
        rate_per_s = traffic.rate_per_s or recorded.rate_per_s
        offer: Callable[..., list[traces.Row]] = traces.replayed if traffic.arrivals == "trace" else traces.poisson
        yield from offer(recorded, rate_per_s=rate_per_s, seconds=until_s, seed=seed)
        return
    prompt, output = traffic.lengths()
    segments = traffic.segments()
    times_s = constant(segments, until_s) if traffic.arrivals == "constant" else poisson(segments, until_s, random)
    for at_s in times_s:
        yield traces.Row(at_s, prompt.draw(random), output.draw(random))


def _source(comparison: Comparison, traffic: TrafficScenario, client: str) -> Source:
    tenant = _tenant(traffic, client)
    return Source(
        tenant=tenant,
        client=traffic.client or tenant,
        service_class=traffic.service_class,
        model=MODEL,
        pool=POOL,
        temper=comparison.temper(traffic),
        samples=traffic.samples,
        output_tokens_max=traffic.output_tokens_max,
        bytes_per_token=traffic.bytes_per_token,
        exact_prompt=traffic.exact_prompt,
        gateway=traffic.gateway,
        agents=traffic.agents_of(),
    )
