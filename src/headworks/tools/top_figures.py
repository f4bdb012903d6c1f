"""What `headworks top` shows, from two looks at `/admin/state`: amounts now, and rates between the looks.

The gateway gives totals since its start; a rate is what was added between two looks over the time between them. The 95th
percentile of first tokens is read from a histogram's buckets in the same way, and is as fine as they are. Where nothing
happened between the looks, a figure is None: nothing seen is not zero.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

LOOKS_MAX = 600
PERCENTILE_RATIO = 0.95


class StateError(ValueError):
    """What came is not the state of a gateway of this version."""


class ReplicaState(msgspec.Struct):
    """One engine, as far as it is shown."""

    state: str
    running: int | None = None
    waiting: int | None = None
    kv_used_ratio: float | None = None


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


class TenantState(msgspec.Struct):
    """One tenant."""

    tokens: int
    tokens_max: int | None
    requests: int
    requests_max: int | None
    queued_requests: int
    admitted_total: int
    refused_total: int
    reserved_over_used_ratio: float | None = None
    covered_ratio: float | None = None


class ClassState(msgspec.Struct):
    """One class."""

    promises: dict[str, float | None]
    arrivals_total: int
    refused_total: int
    refused_for_own_limits_total: int
    good_total: int
    ttft_counts: list[int]


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

    at_s: float
    utc: str
    gateway: str
    boot: str
    mode: str
    policy_version: str
    ledger_available: bool
    pools: dict[str, PoolState]
    tenants: dict[str, TenantState]
    classes: dict[str, ClassState]
    ttft_bounds_s: list[float]
    decisions: list[Decided]
    troubles: list[str] = []
    """What could not be written down."""


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
class ClassRow:
    """One class lately. Goodput: arrivals that were kept every promise, of those not refused for their tenant's limits."""

    service_class: str
    arrivals_per_s: float | None
    refused_per_s: float | None
    good_per_s: float | None
    good_ratio: float | None
    ttft_p95_s: float | None
    ttft_promise_s: float | None


@dataclass(slots=True)
class Figures:
    """One screen."""

    utc: str
    gateway: str
    mode: str
    policy_version: str
    ledger_available: bool
    span_s: float
    """Between the two looks: rates are over this time."""
    pools: list[PoolRow]
    tenants: list[TenantRow]
    classes: list[ClassRow]
    decisions: list[Decided]
    troubles: list[str]


def state_of(value: Any) -> State:
    """A decoded answer of `/admin/state`, checked. Raises `StateError`."""
    try:
        return msgspec.convert(value, State)
    except msgspec.ValidationError as error:
        raise StateError(f"what the admin port says is not understood ({error}); is it a headworks of this version?") from None


class Looks:
    """The looks of the last `window_s`. Another boot of the gateway counts from nothing, so older looks are dropped then."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._looks: deque[State] = deque(maxlen=LOOKS_MAX)

    def add(self, state: State) -> Figures:
        """What to show now."""
        if self._looks and self._looks[-1].boot != state.boot:
            self._looks.clear()
        self._looks.append(state)
        while len(self._looks) > 2 and state.at_s - self._looks[1].at_s >= self._window_s:
            self._looks.popleft()
        return figures(self._looks[0], state)


def figures(before: State, now: State) -> Figures:
    """Amounts now, rates since `before`."""
    span_s = now.at_s - before.at_s
    return Figures(
        now.utc,
        now.gateway,
        now.mode,
        now.policy_version,
        now.ledger_available,
        span_s,
        [_pool(name, pool) for name, pool in now.pools.items()],
        [_tenant(name, before.tenants.get(name), tenant, span_s) for name, tenant in now.tenants.items()],
        [_class(name, before.classes.get(name), one, span_s, now.ttft_bounds_s) for name, one in now.classes.items()],
        now.decisions,
        now.troubles,
    )


def _pool(name: str, pool: PoolState) -> PoolRow:
    replicas = list(pool.replicas.values())
    return PoolRow(
        pool=name,
        running=pool.requests,
        running_max=pool.requests_limit,
        reserved_tokens=pool.tokens,
        reserved_tokens_max=pool.tokens_limit,
        waiting=pool.queued_requests,
        waiting_tokens=pool.queued_tokens,
        engines_ready=sum(replica.state == "ready" for replica in replicas),
        engines=len(replicas),
        engine_running=_known_sum([replica.running for replica in replicas]),
        engine_waiting=_known_sum([replica.waiting for replica in replicas]),
        kv_used_ratio=max((r.kv_used_ratio for r in replicas if r.kv_used_ratio is not None), default=None),
        drain_tokens_per_s=pool.drain_tokens_per_s,
    )


def _tenant(name: str, before: TenantState | None, now: TenantState, span_s: float) -> TenantRow:
    return TenantRow(
        tenant=name,
        tokens=now.tokens,
        tokens_max=now.tokens_max,
        running=now.requests,
        running_max=now.requests_max,
        waiting=now.queued_requests,
        admitted_per_s=_rate(before.admitted_total if before else 0, now.admitted_total, span_s),
        refused_per_s=_rate(before.refused_total if before else 0, now.refused_total, span_s),
        reserved_over_used_ratio=now.reserved_over_used_ratio,
        covered_ratio=now.covered_ratio,
    )


def _class(name: str, before: ClassState | None, now: ClassState, span_s: float, bounds_s: Sequence[float]) -> ClassRow:
    was = before or ClassState({}, 0, 0, 0, 0, [0] * len(now.ttft_counts))
    counted = (now.arrivals_total - now.refused_for_own_limits_total) - (was.arrivals_total - was.refused_for_own_limits_total)
    seen = [later - earlier for later, earlier in zip(now.ttft_counts, was.ttft_counts, strict=True)]
    return ClassRow(
        service_class=name,
        arrivals_per_s=_rate(was.arrivals_total, now.arrivals_total, span_s),
        refused_per_s=_rate(was.refused_total, now.refused_total, span_s),
        good_per_s=_rate(was.good_total, now.good_total, span_s),
        good_ratio=(now.good_total - was.good_total) / counted if counted > 0 else None,
        ttft_p95_s=quantile_s(bounds_s, seen, PERCENTILE_RATIO),
        ttft_promise_s=now.promises.get("ttft_s"),
    )


def quantile_s(bounds_s: Sequence[float], counts: Sequence[int], ratio: float) -> float | None:
    """A quantile of what fell into buckets, on a straight line inside its bucket; beyond the last bound, that bound."""
    total = sum(counts)
    if total <= 0:
        return None
    wanted, below, lower_s = ratio * total, 0, 0.0
    for bound_s, count in zip(bounds_s, counts, strict=False):
        if count and below + count >= wanted:
            return lower_s + (bound_s - lower_s) * (wanted - below) / count
        below, lower_s = below + count, bound_s
    return bounds_s[-1]


def _rate(before: float, now: float, span_s: float) -> float | None:
    return max(0.0, now - before) / span_s if span_s > 0 else None


def _known_sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
