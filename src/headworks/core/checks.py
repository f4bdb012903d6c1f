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


Row = tuple[str, str, float, float, str, str]
"""Check, scope, value, limit, unit, and the reason if the value passes the limit."""
_new = tuple.__new__


def verdicts(request: Request, work: Work, lane: Lane, forecast: Forecast, now_s: float) -> tuple[Verdict, ...]:
    """Every check's answer, in the order in which failures are reported."""
    rows: list[Row] = []
    if lane.limits_tenant:
        _tenant(rows, work, lane)
    _memory_and_compute(rows, work, lane, now_s)
    if not lane.pool.policy.discipline.unbounded:
        _queue(rows, request, lane)
    _time(rows, request, lane, forecast)
    # One is made for every check of every request: `Verdict(...)` itself would cost three times as much.
    return tuple(
        [
            _new(Verdict, (check, scope, value, limit, unit, value <= limit, "" if value <= limit else reason))
            for check, scope, value, limit, unit, reason in rows
        ]
    )


def _tenant(rows: list[Row], work: Work, lane: Lane) -> None:
    policy, tenant = lane.tenant_policy, lane.tenant
    if policy.active_tokens_max is not None:
        rows.append(("tenant", lane.tenant_scope, tenant.tokens + work.tokens, policy.active_tokens_max, "tokens", TENANT_FULL))
    if policy.active_requests_max is not None:
        value = tenant.requests + work.sequences
        rows.append(("tenant", lane.tenant_scope, value, policy.active_requests_max, "requests", TENANT_FULL))


def _memory_and_compute(rows: list[Row], work: Work, lane: Lane, now_s: float) -> None:
    pool, scope = lane.pool, lane.pool_scope
    if pool.tokens_max is not None:
        rows.append(("memory", scope, pool.tokens + work.kv_tokens, pool.tokens_max, "tokens", POOL_FULL))
    kv_used = pool.kv_used_ratio(now_s)
    if kv_used is not None:  # missing is not zero: no verdict, and the ledger's sum stands alone
        rows.append(("memory", scope, kv_used, pool.policy.kv_ratio_max, "kv_ratio", MEMORY_FULL))
    requests_max = pool.requests_limit()
    if requests_max is not None:
        rows.append(("compute", scope, pool.requests + work.sequences, requests_max, "requests", POOL_FULL))


def _queue(rows: list[Row], request: Request, lane: Lane) -> None:
    queue, service_class = lane.pool.queue, lane.service_class
    name, scope = service_class.name, lane.class_scope
    rows.append(("fairness", scope, queue.class_requests(name) + 1, lane.queue_max, "queued requests", QUEUE_FULL))
    queued_bytes = queue.class_bytes(name) + request.prompt_bytes
    rows.append(("fairness", scope, queued_bytes, service_class.queue_bytes_max, "queued bytes", QUEUE_FULL))
    tenant_max = lane.tenant_policy.queue_requests_max
    if tenant_max is not None:
        waiting = queue.flow_requests(lane.flow) + 1
        rows.append(("fairness", lane.tenant_scope, waiting, tenant_max, "queued requests", QUEUE_FULL))


def _time(rows: list[Row], request: Request, lane: Lane, forecast: Forecast) -> None:
    promise_s = lane.service_class.ttft_slo_s
    if forecast.ttft_s is not None and promise_s is not None:
        rows.append(("time", lane.pool_scope, forecast.ttft_s, promise_s, "s to first token", DELAY))
    if forecast.wait_s is not None and not lane.pool.policy.discipline.unbounded:
        limit_s = min(lane.service_class.wait_s_max, request.start_by_s - request.arrived_s)
        rows.append(("time", lane.pool_scope, forecast.wait_s, limit_s, "s waiting", DELAY))
