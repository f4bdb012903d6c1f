"""What `headworks top` shows, of one look at `/admin/snapshot`: the same figures as the page of the admin port.

Amounts, rates and percentiles are the gateway's own (`gateway/looks.py`); here they are only put into rows. Where nothing
happened lately a figure is None: nothing seen is not zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec


class StateError(ValueError):
    """What came is not the state of a gateway of this version."""


class ReplicaState(msgspec.Struct):
    """One engine, as far as it is shown."""

    state: str
    breaker: str = ""
    evidence: list[str] = []
    unproved: int = 0
    running: int | None = None
    limit_running: int | None = None
    waiting: int | None = None
    kv_used_ratio: float | None = None
    step_s: float | None = None
    sample_age_s: float | None = None


class LineState(msgspec.Struct):
    """What one tenant has waiting in one class."""

    requests: int
    tokens: int
    head_waited_s: float
    wait_s: float | None = None


class EnginesState(msgspec.Struct):
    """The engines of a pool together."""

    all: int
    ready: int
    running: int | None = None
    waiting: int | None = None
    kv_used_ratio: float | None = None


class OrphansState(msgspec.Struct):
    """Work nobody watches that is charged still."""

    requests: int = 0
    tokens: int = 0
    oldest_s: float | None = None


class PoolState(msgspec.Struct):
    """One pool."""

    queued_requests: int
    queued_tokens: int
    tokens: int
    tokens_limit: int | None
    requests: int
    requests_limit: int
    drain_tokens_per_s: float | None
    replicas: dict[str, ReplicaState]
    queue: dict[str, LineState]
    engines: EnginesState
    orphans: OrphansState


class TenantState(msgspec.Struct):
    """One tenant."""

    tokens: int
    tokens_max: int | None
    requests: int
    requests_max: int | None
    queued_requests: int
    admitted_per_s: float | None = None
    refused_per_s: float | None = None
    reserved_over_used_ratio: float | None = None
    covered_ratio: float | None = None


class ClassState(msgspec.Struct):
    """One class."""

    promises: dict[str, float | None]
    queued_requests: int = 0
    arrivals_per_s: float | None = None
    refused_per_s: float | None = None
    good_per_s: float | None = None
    good_lately_ratio: float | None = None
    ttft_p95_s: float | None = None


class Counted(msgspec.Struct):
    """How often something was, since the gateway began and of late."""

    total: int = 0
    per_s: float | None = None


class TokensState(msgspec.Struct):
    """Tokens written for somebody, and for nobody."""

    output_per_s: float | None = None
    wasted_per_s: float | None = None
    wasted_ratio: float | None = None


class Decided(msgspec.Struct):
    """One of the last decisions."""

    utc: str
    id: str
    tenant: str
    service_class: str = msgspec.field(name="class")
    outcome: str = ""
    reason: str = ""
    tokens: int = 0
    waited_s: float = 0.0


class State(msgspec.Struct):
    """One look."""

    version: int
    span_s: float
    """Rates are over this time."""
    utc: str
    gateway: str
    mode: str
    policy_version: str
    ledger_available: bool
    pools: dict[str, PoolState]
    tenants: dict[str, TenantState]
    classes: dict[str, ClassState]
    decided: dict[str, Counted]
    refusals: dict[str, Counted]
    tokens: TokensState
    decisions: list[Decided]
    obstacles: list[str] = []
    """What keeps it from taking work."""
    troubles: list[str] = []
    """What could not be written down."""


@dataclass(slots=True)
class FlowRow:
    """What comes and goes, over all pools."""

    admitted_per_s: float | None
    queued_per_s: float | None
    refused_per_s: float | None
    output_tokens_per_s: float | None
    wasted_tokens_per_s: float | None
    wasted_ratio: float | None


@dataclass(slots=True)
class PoolRow:
    """One pool now. Engines' own figures are sums; a ratio is the fullest's."""

    pool: str
    running: int
    running_max: int
    reserved_tokens: int
    reserved_tokens_max: int | None
    waiting: int
    waiting_tokens: int
    engines_ready: int
    engines: int
    engine_running: int | None
    engine_waiting: int | None
    kv_used_ratio: float | None
    drain_tokens_per_s: float | None
    orphans: int
    orphan_tokens: int
    orphan_oldest_s: float | None


@dataclass(slots=True)
class ClassRow:
    """One class lately. Goodput: arrivals that were kept every promise, of those not refused for their tenant's limits."""

    service_class: str
    arrivals_per_s: float | None
    refused_per_s: float | None
    good_per_s: float | None
    good_ratio: float | None
    ttft_p95_s: float | None
    ttft_promise_s: float | None
    waiting: int


@dataclass(slots=True)
class LineRow:
    """What waits: how long its first has, and what a newcomer to it would wait."""

    service_class: str
    tenant: str
    pool: str
    waiting: int
    waiting_tokens: int
    head_waited_s: float
    wait_s: float | None


@dataclass(slots=True)
class TenantRow:
    """One tenant: what it uses now of its limits, and what was decided for it lately."""

    tenant: str
    tokens: int
    tokens_max: int | None
    running: int
    running_max: int | None
    waiting: int
    admitted_per_s: float | None
    refused_per_s: float | None
    reserved_over_used_ratio: float | None
    """Tokens set aside to those used, since the gateway began."""
    covered_ratio: float | None
    """Answers that stayed within what was reserved for them."""


@dataclass(slots=True)
class EngineRow:
    """One engine: whether it serves, what can prove that its work has stopped, and what it holds."""

    engine: str
    state: str
    breaker: str
    evidence: list[str]
    unproved: int
    running: int | None
    running_max: int | None
    waiting: int | None
    kv_used_ratio: float | None
    step_s: float | None
    sample_age_s: float | None


@dataclass(slots=True)
class RefusalRow:
    """Requests that did not run, for one reason."""

    reason: str
    per_s: float | None
    total: int


@dataclass(slots=True)
class Figures:
    """One screen."""

    version: int
    utc: str
    gateway: str
    mode: str
    policy_version: str
    ledger_available: bool
    span_s: float
    flow: FlowRow
    pools: list[PoolRow]
    classes: list[ClassRow]
    queue: list[LineRow]
    tenants: list[TenantRow]
    engines: list[EngineRow]
    refusals: list[RefusalRow]
    decisions: list[Decided]
    troubles: list[str]
    """What is wrong, a sentence each."""


def state_of(value: Any) -> State:
    """A decoded answer of `/admin/snapshot`, checked. Raises `StateError`."""
    try:
        return msgspec.convert(value, State)
    except msgspec.ValidationError as error:
        raise StateError(f"what the admin port says is not understood ({error}); is it a headworks of this version?") from None


def figures(now: State) -> Figures:
    """A look as rows."""
    lines = [_line(name, flow, line) for name, pool in now.pools.items() for flow, line in pool.queue.items()]
    lines.sort(key=lambda row: (-row.waiting_tokens, row.pool, row.service_class, row.tenant))
    return Figures(
        now.version,
        now.utc,
        now.gateway,
        now.mode,
        now.policy_version,
        now.ledger_available,
        now.span_s,
        _flow(now),
        [_pool(name, pool) for name, pool in now.pools.items()],
        [_class(name, one) for name, one in now.classes.items()],
        lines,
        [_tenant(name, tenant) for name, tenant in now.tenants.items()],
        [_engine(name, replica) for pool in now.pools.values() for name, replica in pool.replicas.items()],
        [RefusalRow(reason, one.per_s, one.total) for reason, one in now.refusals.items()],
        now.decisions,
        [*now.obstacles, *now.troubles],
    )


def _flow(now: State) -> FlowRow:
    admitted, queued, refused = (now.decided.get(outcome, Counted()) for outcome in ("admit", "queue", "refuse"))
    tokens = now.tokens
    wasted = tokens.wasted_per_s, tokens.wasted_ratio
    return FlowRow(admitted.per_s, queued.per_s, refused.per_s, tokens.output_per_s, *wasted)


def _pool(name: str, pool: PoolState) -> PoolRow:
    return PoolRow(
        pool=name,
        running=pool.requests,
        running_max=pool.requests_limit,
        reserved_tokens=pool.tokens,
        reserved_tokens_max=pool.tokens_limit,
        waiting=pool.queued_requests,
        waiting_tokens=pool.queued_tokens,
        engines_ready=pool.engines.ready,
        engines=pool.engines.all,
        engine_running=pool.engines.running,
        engine_waiting=pool.engines.waiting,
        kv_used_ratio=pool.engines.kv_used_ratio,
        drain_tokens_per_s=pool.drain_tokens_per_s,
        orphans=pool.orphans.requests,
        orphan_tokens=pool.orphans.tokens,
        orphan_oldest_s=pool.orphans.oldest_s,
    )


def _class(name: str, now: ClassState) -> ClassRow:
    return ClassRow(
        service_class=name,
        arrivals_per_s=now.arrivals_per_s,
        refused_per_s=now.refused_per_s,
        good_per_s=now.good_per_s,
        good_ratio=now.good_lately_ratio,
        ttft_p95_s=now.ttft_p95_s,
        ttft_promise_s=now.promises.get("ttft_s"),
        waiting=now.queued_requests,
    )


def _line(pool: str, flow: str, line: LineState) -> LineRow:
    service_class, _, tenant = flow.partition("/")
    return LineRow(service_class, tenant, pool, line.requests, line.tokens, line.head_waited_s, line.wait_s)


def _tenant(name: str, now: TenantState) -> TenantRow:
    return TenantRow(
        tenant=name,
        tokens=now.tokens,
        tokens_max=now.tokens_max,
        running=now.requests,
        running_max=now.requests_max,
        waiting=now.queued_requests,
        admitted_per_s=now.admitted_per_s,
        refused_per_s=now.refused_per_s,
        reserved_over_used_ratio=now.reserved_over_used_ratio,
        covered_ratio=now.covered_ratio,
    )


def _engine(name: str, now: ReplicaState) -> EngineRow:
    return EngineRow(
        engine=name,
        state=now.state,
        breaker=now.breaker,
        evidence=now.evidence,
        unproved=now.unproved,
        running=now.running,
        running_max=now.limit_running,
        waiting=now.waiting,
        kv_used_ratio=now.kv_used_ratio,
        step_s=now.step_s,
        sample_age_s=now.sample_age_s,
    )
