"""The five checks, cheapest first. All are computed for the record; the first that fails is the one reported (B1).

1 tenant: what the tenant holds in tokens and requests. 2 memory: KV tokens reserved, and the engine's own gauge.
3 compute: places in the running batch. 4 fairness: the bounds of the queue. 5 time: the predicted first token.
Each says what it compared with what. None decides what is done about it: that is `core/decide.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from headworks.core.policy import ClassPolicy, TenantPolicy
from headworks.core.pool import Pool
from headworks.core.types import Forecast, Request, Verdict, Work


@dataclass(slots=True)
class Situation:
    """The facts the checks compare, gathered once for a request."""

    request: Request
    work: Work
    pool: Pool
    service_class: ClassPolicy
    tenant: TenantPolicy
    tenant_tokens: int
    tenant_requests: int
    forecast: Forecast
    kv_used_ratio: float | None


def verdicts(situation: Situation) -> tuple[Verdict, ...]:
    """Every check's answer, in the order in which failures are reported."""
    found: list[Verdict] = []
    _tenant(situation, found)
    _memory(situation, found)
    _compute(situation, found)
    _queue(situation, found)
    _time(situation, found)
    return tuple(found)


def _tenant(situation: Situation, found: list[Verdict]) -> None:
    tenant, work = situation.tenant, situation.work
    if tenant.active_tokens_max is not None:
        value = situation.tenant_tokens + work.tokens
        found.append(_within("tenant", f"tenant:{tenant.name}", value, tenant.active_tokens_max, "tokens", TENANT))
    if tenant.active_requests_max is not None:
        value = situation.tenant_requests + work.sequences
        found.append(_within("tenant", f"tenant:{tenant.name}", value, tenant.active_requests_max, "requests", TENANT))


def _memory(situation: Situation, found: list[Verdict]) -> None:
    pool = situation.pool
    limit = pool.tokens_limit()
    if limit is not None:
        value = pool.tokens + situation.work.kv_tokens
        found.append(_within("memory", f"pool:{pool.name}", value, limit, "tokens", "queue_timeout"))
    kv_used = situation.kv_used_ratio
    if kv_used is not None:
        limit_ratio = pool.policy.kv_ratio_max
        found.append(_within("memory", f"pool:{pool.name}", round(kv_used, 4), limit_ratio, "kv_ratio", "kv_saturation"))


def _compute(situation: Situation, found: list[Verdict]) -> None:
    pool = situation.pool
    limit = pool.requests_limit()
    if limit is not None:
        value = pool.requests + situation.work.sequences
        found.append(_within("compute", f"pool:{pool.name}", value, limit, "requests", "queue_timeout"))


def _queue(situation: Situation, found: list[Verdict]) -> None:
    discipline = situation.pool.policy.discipline
    if discipline.unbounded:
        return
    queue, name = situation.pool.queue, situation.service_class.name
    scope = f"class:{name}"
    limit = situation.service_class.queue_requests_max
    if discipline.queue_max is not None:
        limit = min(limit, discipline.queue_max)
    found.append(_within("fairness", scope, queue.class_requests(name) + 1, limit, "queued requests", "queue_full"))
    bytes_after = queue.class_bytes(name) + situation.request.prompt_bytes
    found.append(_within("fairness", scope, bytes_after, situation.service_class.queue_bytes_max, "queued bytes", "queue_full"))
    tenant_limit = situation.tenant.queue_requests_max
    if tenant_limit is not None:
        waiting = queue.tenant_requests(name, situation.tenant.name) + 1
        found.append(
            _within("fairness", f"tenant:{situation.tenant.name}", waiting, tenant_limit, "queued requests", "queue_full")
        )


def _time(situation: Situation, found: list[Verdict]) -> None:
    forecast, service_class = situation.forecast, situation.service_class
    scope = f"pool:{situation.pool.name}"
    if forecast.ttft_s is not None and service_class.ttft_slo_s is not None:
        found.append(_within("time", scope, forecast.ttft_s, service_class.ttft_slo_s, "s to first token", DELAY))
    if forecast.wait_s is not None and not situation.pool.policy.discipline.unbounded:
        limit_s = min(service_class.wait_s_max, situation.request.start_by_s - situation.request.arrived_s)
        found.append(_within("time", scope, forecast.wait_s, limit_s, "s waiting", DELAY))


TENANT = "tenant_capacity_exceeded"
DELAY = "queue_delay_exceeded"


def _within(check: str, scope: str, value: float, limit: float, unit: str, reason: str) -> Verdict:
    passed = value <= limit
    return Verdict(check, scope, value, limit, unit, passed, "" if passed else reason)
