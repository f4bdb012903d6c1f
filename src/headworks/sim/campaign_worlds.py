"""The random worlds of a campaign: everything about each is drawn from its seed.

Tiny engines, impatient clients who come back, a ledger whose answers are late, lost and repeated, engines that restart, hang
and go deaf, gateways that are killed and started again. `campaign_histories.py` cuts short and long histories from them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any

from headworks.core.policy import (
    ClassPolicy,
    DisciplinePolicy,
    Policy,
    PoolPolicy,
    QuotaPolicy,
    RatePolicy,
    ReplicaPolicy,
    TenantPolicy,
)
from headworks.sim.agents import Agents
from headworks.sim.batching import ContinuousBatching
from headworks.sim.clients import Temper
from headworks.sim.compare import MODEL, POOL, make_book, make_gate
from headworks.sim.connection import Distance
from headworks.sim.engine import EngineModel
from headworks.sim.faults import Fault
from headworks.sim.ledger import Line
from headworks.sim.presets import tiny
from headworks.sim.simulation import MakeBook, Setup, Source
from headworks.sim.traffic import Planned

FAULTY_S = 4.0
"""Faults and arrivals fall into this much time; then comes the liveness phase."""
HANG_S_MAX = 1.2
"""Less than the shortest lease. An engine that hangs for longer in the very first step of an execution which is then
cancelled looks empty all the while: counting takes it for stopped after a lease. That is a stated limit of E3b."""
KINDS = (
    "engine_restart",
    "engine_hang",
    "aborts_ignored",
    "connections_broken",
    "scrapes_refused",
    "ledger_cut_off",
    "gateway_kill",
    "gateway_drain",
    "reload",
)
DISCIPLINES = ("fifo", "fifo_tail_drop", "lifo_drop_head", "predictive_ttft")
SHARING = ("wfq", "wfq", "class_priority")


def small_world(seed: int, make: MakeBook = make_book) -> Setup:
    """Everything about one world, drawn from its seed."""
    random = Random(f"campaign-{seed}")
    replicas = random.choice((1, 1, 2))
    policy = _growing(_policy(random, replicas), Random(f"campaign-growth-{seed}"))
    policy = _crowded(_with_limits(policy, Random(f"limits-{seed}")), Random(f"crowded-{seed}"))
    sources = [_source(random, tenant) for tenant in policy.tenants]
    _share(Random(f"shares-{seed}"), policy, sources)
    engine = _engine(random)
    setup = Setup(
        policy=policy,
        engines={replica.name: engine for replica in policy.pools[POOL].replicas},
        sources=sources,
        planned=some_requests(random, len(sources)),
        duration_s=FAULTY_S,
        seed=seed,
        make_gate=make_gate,
        make_book=make,
        context_tokens=160,
        line=_line(random),
        distance=_distance(random),
        gateways=random.choice((1, 1, 2)),
        faults=some_faults(random, replicas),
    )
    setup = _with_sessions(setup, Random(f"agents-{seed}"))
    return _with_a_store(_with_one_that_leaves(setup, Random(f"leaves-{seed}")), Random(f"store-{seed}"))


def _with_sessions(setup: Setup, random: Random) -> Setup:
    """In every fourth world agents work in sessions, which are used up, left behind, closed twice, and used after their end."""
    if random.random() >= 0.25:
        return setup
    pool = dataclasses.replace(
        setup.policy.pools[POOL],
        sessions_ratio_max=random.choice((0.4, 0.7, 1.0)),
        session_idle_s=random.choice((0.3, 1.2, 8.0)),
    )
    agents = Agents(
        calls=random.choice((2, 4, 7)),
        think_s=random.choice((0.0, 0.05, 0.4)),
        session_tokens=random.choice((48, 112, 160)),
        lasts_s=random.choice((0.6, 3.0, 30.0)),
        closes=random.choice((0, 1, 2, 3)),
        late_calls=random.choice((0, 1)),
    )
    number = len(setup.sources)
    source = dataclasses.replace(random.choice(setup.sources), agents=agents, output_tokens_max=random.choice((8, 16)))
    planned = [
        Planned(
            random.choice((0.0, 0.7, 1.9)) + random.random() * 0.2, number, random.randint(1, 24), random.randint(1, 20), ()
        )
        for _ in range(random.randint(2, 5))
    ]
    return dataclasses.replace(
        setup,
        policy=dataclasses.replace(setup.policy, pools={POOL: pool}),
        sources=[*setup.sources, source],
        planned=[*setup.planned, *planned],
    )


def _with_one_that_leaves(setup: Setup, random: Random) -> Setup:
    """In half of the worlds with two engines one of them drains for a while, or is withdrawn and added again."""
    engines = list(setup.engines)
    if len(engines) < 2 or random.random() >= 0.5:
        return setup
    kind, target = random.choice(("replica_drained", "replica_withdrawn")), random.choice(engines)
    leaves = Fault(random.random() * FAULTY_S * 0.75, kind, target, random.choice((0.05, 0.6, 1.5, 3.0)))
    return dataclasses.replace(setup, faults=sorted([*setup.faults, leaves], key=lambda fault: fault.at_s))


def _with_a_store(setup: Setup, random: Random) -> Setup:
    """In every fourth world the ledger is a store of several gateways, which is lost once, with all or its last moments."""
    if random.random() >= 0.25:
        return setup
    lost = Fault(
        at_s=random.choice((0.9, 1.5, 2.1, 3.1)) + random.random() * 0.3,
        kind=random.choice(("store_emptied", "store_rolled_back")),
        for_s=random.choice((0.05, 0.3, 1.0)),
    )
    faults = sorted([*setup.faults, lost], key=lambda fault: fault.at_s)
    return dataclasses.replace(setup, shared=True, gateways=random.choice((1, 2, 2, 3)), faults=faults)


def _distance(random: Random) -> Distance:
    return Distance(
        connect_s=random.choice((0.0, 0.004, 0.5)),
        latency_s=random.choice((0.0, 0.001, 0.01)),
        scrape_s=random.choice((0.002, 0.02)),
        notice_s=random.choice((0.1, 4.0)),
    )


def _engine(random: Random) -> Callable[[], EngineModel]:
    settings = tiny()
    # A slow engine makes streams that outlast leases and partitions; virtual time costs nothing.
    cost = dataclasses.replace(settings.cost, base_s=random.choice((0.01, 0.05, 0.1)))
    settings = dataclasses.replace(
        settings,
        cost=cost,
        running_max=random.choice((2, 4)),
        kv_blocks=random.choice((11, 20)),
        queued_max=random.choice((None, None, 4)),
        abort_lag_steps=random.choice((0, 1)),
        report_tokens=4,
    )
    return lambda: ContinuousBatching(settings)


def _policy(random: Random, replicas: int) -> Policy:
    service_class = ClassPolicy(
        name="interactive",
        ttft_slo_s=random.choice((None, 0.5, 2.0)),
        wait_s_max=random.choice((0.2, 1.0)),
        queue_requests_max=random.choice((2, 100)),
        gateway_s=random.choice((2.0, 20.0)),
        first_byte_s=random.choice((0.5, 5.0)),
        idle_s=random.choice((0.5, 5.0)),
        on_tenant_full=random.choice(("queue", "refuse")),
    )
    discipline = DisciplinePolicy(
        kind=random.choice(DISCIPLINES),
        queue_max=random.choice((None, 3)),
        propagate_cancel=random.random() < 0.9,
        drop_late=random.random() < 0.9,
    )
    pool = PoolPolicy(
        name=POOL,
        models=(MODEL,),
        replicas=tuple(ReplicaPolicy(f"{POOL}/{number}") for number in range(replicas)),
        active_requests_max=random.choice((None, 3)),
        discipline=discipline,
        observe_every_s=random.choice((0.25, 0.5)),
        unconfirmed_every_s=0.05,
    )
    limit = random.choice((None, 200))
    tenants = ("acme", "batchco") if random.random() < 0.5 else ("acme",)
    return Policy(
        version="campaign",
        number=1,
        classes={"interactive": service_class},
        tenants={name: TenantPolicy(name, active_tokens_max=limit) for name in tenants},
        pools={POOL: pool},
        lease_s=random.choice((1.6, 2.5)),
        ask_late_s=0.1,
    )


def _growing(policy: Policy, random: Random) -> Policy:
    """Half of the worlds reserve less than is allowed. Drawn apart, so that the other half is what it was before."""
    if random.random() < 0.5:
        return policy
    pool = dataclasses.replace(
        policy.pools[POOL],
        growth=True,
        growth_step_tokens=16,
        growth_ahead_tokens=6,
        output_tokens_cold=random.choice((8, 16)),
    )
    choice = random.choice(("length", "spare", "stop"))
    classes = {name: dataclasses.replace(one, on_growth_refused=choice) for name, one in policy.classes.items()}
    return dataclasses.replace(policy, pools={POOL: pool}, classes=classes)


def _share(random: Random, policy: Policy, sources: list[Source]) -> None:
    """Half of the worlds are shared by two classes, by weights or strictly by class."""
    if random.random() < 0.5:
        return
    pool, usual = policy.pools[POOL], policy.classes["interactive"]
    kind = random.choice(SHARING)
    policy.pools[POOL] = dataclasses.replace(pool, discipline=dataclasses.replace(pool.discipline, kind=kind))
    policy.classes["interactive"] = dataclasses.replace(usual, share=10.0, floor_ratio=random.choice((0.0, 0.4)))
    policy.classes["bulk"] = dataclasses.replace(usual, name="bulk", ttft_slo_s=None, wait_s_max=random.choice((0.5, 3.0)))
    for number, source in enumerate(sources):
        if random.random() < 0.5:
            sources[number] = dataclasses.replace(source, service_class="bulk")
    sources.append(dataclasses.replace(sources[0], service_class="bulk"))


def _with_limits(policy: Policy, random: Random) -> Policy:
    """In every fourth world tenants have rates, retry budgets and quotas, tight enough to be met."""
    if random.random() >= 0.25:
        return policy
    rate = RatePolicy(tokens_per_s=random.choice((40.0, 400.0)), burst_tokens=random.choice((100, 400)), debt_tokens_max=100)
    client_rate = RatePolicy(requests_per_s=5.0, burst_requests=random.choice((1, 4)))
    quota = QuotaPolicy("hour", tokens=random.choice((150, 400, 800)), bill=random.choice(("used", "reserved")))
    limits: dict[str, Any] = {"rate": rate, "client_rate": client_rate, "retry_ratio": 0.1, "quota": quota}
    kept = {name: limit for name, limit in limits.items() if random.random() < 0.6}
    tenants = {name: dataclasses.replace(tenant, **kept) for name, tenant in policy.tenants.items()}
    return dataclasses.replace(policy, tenants=tenants)


def _crowded(policy: Policy, random: Random) -> Policy:
    """In half of the worlds prompts are counted while they are read, and memory is promised beyond what there is."""
    if random.random() < 0.5:
        return policy
    pool = dataclasses.replace(
        policy.pools[POOL],
        heavy_tokens=random.choice((8, 24)),
        heavy_prefills_max=random.choice((None, 1, 2)),
        prefill_tokens_max=random.choice((None, 30, 60)),
        over_commit=random.choice((None, 1.0, 2.0)),
    )
    return dataclasses.replace(policy, pools={POOL: pool})


def _source(random: Random, tenant: str) -> Source:
    temper = Temper(
        patience_s=random.choice((float("inf"), 0.3, 1.0)),
        leave_ratio=random.choice((0.0, 0.3, 0.7)),
        hidden_ratio=random.choice((0.0, 0.5)),
        retries_max=random.choice((0, 2)),
        retries_after_leaving=random.random() < 0.5,
        key_ratio=random.choice((0.0, 0.5, 1.0)),
    )
    return Source(
        tenant=tenant,
        client=f"{tenant}-client",
        service_class="interactive",
        model=MODEL,
        pool=POOL,
        temper=temper,
        samples=random.choice((1, 1, 2)),
        output_tokens_max=random.choice((16, 48)),
        bytes_per_token=random.choice((1.0, 2.0)),
        exact_prompt=random.random() < 0.5,
    )


def some_requests(random: Random, sources: int) -> list[Planned]:
    """A handful of requests, bunched, so that there is something to refuse and something to cancel."""
    count = random.randint(6, 18)
    times_s = sorted(random.choice((0.05, 0.8, 2.0, 3.0)) + random.random() * random.choice((0.01, 0.5)) for _ in range(count))
    return [Planned(at_s, random.randrange(sources), random.randint(1, 48), random.randint(1, 60), ()) for at_s in times_s]


def _line(random: Random) -> Line:
    return Line(
        latency_s=random.choice((0.0, 0.001, 0.005)),
        jitter_ratio=random.choice((0.0, 0.9)),
        late_ratio=random.choice((0.0, 0.1)),
        late_s=random.choice((0.2, 2.0)),
        lost_command_ratio=random.choice((0.0, 0.1)),
        lost_answer_ratio=random.choice((0.0, 0.1)),
        twice_ratio=random.choice((0.0, 0.1)),
        gather_s=random.choice((0.0, 0.02)),
    )


def some_faults(random: Random, replicas: int) -> list[Fault]:
    found: list[Fault] = []
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        kind = random.choice(KINDS)
        target = "0" if kind.startswith("gateway") else f"{POOL}/{random.randrange(replicas)}"
        length_s = random.choice((0.05, 0.6, 1.5, 3.0))
        if kind == "engine_hang":
            length_s = min(length_s, HANG_S_MAX)
        found.append(Fault(random.random() * FAULTY_S * 0.75, kind, target, length_s, random.choice((0.5, 1.0))))
    found.sort(key=lambda fault: fault.at_s)
    return found
