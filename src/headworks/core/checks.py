"""The five checks, cheapest first. All are computed for the record; the first that fails is the one reported (B1).

1 tenant: what the tenant holds in tokens and requests. 2 memory: KV tokens reserved, and the engine's own gauge.
3 compute: places in the running batch. 4 fairness: the bounds of the queue. 5 time: the predicted first token.
Each says what it compared with what. None decides what is done about it: that is `core/decide.py`.
"""

from __future__ import annotations

from headworks.core.lane import Lane
from headworks.core.types import Forecast, Request, Verdict, Work

TENANT_FULL = "tenant_capacity_exceeded"
POOL_FULL = "queue_timeout"
"""What a request that finds the pool full is told in the end, if nothing is freed in its time."""
MEMORY_FULL = "kv_saturation"
QUEUE_FULL = "queue_full"
DELAY = "queue_delay_exceeded"


def verdicts(request: Request, work: Work, lane: Lane, forecast: Forecast, now_s: float) -> tuple[Verdict, ...]:
    """Every check's answer, in the order in which failures are reported."""
    found: list[Verdict] = []
    _tenant(found, work, lane)
    _memory_and_compute(found, work, lane, now_s)
    if not lane.pool.policy.discipline.unbounded:
        _queue(found, request, lane)
    _time(found, request, lane, forecast)
    return tuple(found)


def _tenant(found: list[Verdict], work: Work, lane: Lane) -> None:
    policy, tenant = lane.tenant_policy, lane.tenant
    if policy.active_tokens_max is not None:
        _within(
            found, "tenant", lane.tenant_scope, tenant.tokens + work.tokens, policy.active_tokens_max, "tokens", TENANT_FULL
        )
    if policy.active_requests_max is not None:
        value = tenant.requests + work.sequences
        _within(found, "tenant", lane.tenant_scope, value, policy.active_requests_max, "requests", TENANT_FULL)


def _memory_and_compute(found: list[Verdict], work: Work, lane: Lane, now_s: float) -> None:
    pool, scope = lane.pool, lane.pool_scope
    tokens_max = pool.tokens_max
    if tokens_max is not None:
        _within(found, "memory", scope, pool.tokens + work.kv_tokens, tokens_max, "tokens", POOL_FULL)
    kv_used = pool.kv_used_ratio(now_s)
    if kv_used is not None:  # missing is not zero: no verdict, and the ledger's sum stands alone
        _within(found, "memory", scope, kv_used, pool.policy.kv_ratio_max, "kv_ratio", MEMORY_FULL)
    requests_max = pool.requests_limit()
    if requests_max is not None:
        _within(found, "compute", scope, pool.requests + work.sequences, requests_max, "requests", POOL_FULL)


def _queue(found: list[Verdict], request: Request, lane: Lane) -> None:
    queue, service_class = lane.pool.queue, lane.service_class
    name = service_class.name
    limit = service_class.queue_requests_max
    queue_max = lane.pool.policy.discipline.queue_max
    if queue_max is not None and queue_max < limit:
        limit = queue_max
    _within(found, "fairness", lane.class_scope, queue.class_requests(name) + 1, limit, "queued requests", QUEUE_FULL)
    value = queue.class_bytes(name) + request.prompt_bytes
    _within(found, "fairness", lane.class_scope, value, service_class.queue_bytes_max, "queued bytes", QUEUE_FULL)
    tenant_limit = lane.tenant_policy.queue_requests_max
    if tenant_limit is not None:
        waiting = queue.flow_requests(lane.flow) + 1
        _within(found, "fairness", lane.tenant_scope, waiting, tenant_limit, "queued requests", QUEUE_FULL)


def _time(found: list[Verdict], request: Request, lane: Lane, forecast: Forecast) -> None:
    promise_s = lane.service_class.ttft_slo_s
    if forecast.ttft_s is not None and promise_s is not None:
        _within(found, "time", lane.pool_scope, forecast.ttft_s, promise_s, "s to first token", DELAY)
    if forecast.wait_s is not None and not lane.pool.policy.discipline.unbounded:
        limit_s = min(lane.service_class.wait_s_max, request.start_by_s - request.arrived_s)
        _within(found, "time", lane.pool_scope, forecast.wait_s, limit_s, "s waiting", DELAY)


def _within(found: list[Verdict], check: str, scope: str, value: float, limit: float, unit: str, reason: str) -> None:
    if value <= limit:
        found.append(Verdict(check, scope, value, limit, unit, True, ""))
    else:
        found.append(Verdict(check, scope, value, limit, unit, False, reason))
