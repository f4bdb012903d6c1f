"""The five checks, cheapest first. All are computed for the record; the first that fails is the one reported (B1).

1 tenant: what the tenant holds in tokens and requests. 2 memory: KV tokens reserved, the future peak, and the engine's own
gauge. 3 compute: places in the running batch, and long prompts being read. 4 fairness: the bounds of the queue. 5 time: the
predicted first token. Each says what it compared with what. None decides what is done about it: that is `core/decide.py`.
"""

from __future__ import annotations

from headworks.core.floors import RESERVED
from headworks.core.forecast import places_of, whole_answer_s
from headworks.core.lane import Lane
from headworks.core.memory import PEAK_RATIO
from headworks.core.types import LIMIT, VALUE, Forecast, Request, Row, Work

TENANT_FULL = "tenant_capacity_exceeded"
POOL_FULL = "queue_timeout"
"""What a request that finds the pool full is told in the end, if nothing is freed in its time."""
MEMORY_FULL = "kv_saturation"
QUEUE_FULL = "queue_full"
DELAY = "queue_delay_exceeded"
BLIND_MAX = 5
"""While nothing is known of how fast a pool drains, so many may wait for it with a promise to keep: enough to measure it."""


class Compared:
    """Rows, and whether all of them passed: numbers of one kind are compared before they become objects."""

    __slots__ = ("passed", "rows")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.passed = True

    def count(self, check: str, scope: str, value: int, limit: int, unit: str, reason: str) -> None:
        """One of whole numbers."""
        self.rows.append((check, scope, value, limit, unit, reason))
        if value > limit:
            self.passed = False

    def add(self, row: Row) -> None:
        """One that was made elsewhere."""
        self.rows.append(row)
        if row[VALUE] > row[LIMIT]:
            self.passed = False

    def measure(self, check: str, scope: str, value: float, limit: float, unit: str, reason: str) -> None:
        """One of times or ratios."""
        self.rows.append((check, scope, value, limit, unit, reason))
        if value > limit:
            self.passed = False


def compare(request: Request, work: Work, lane: Lane, forecast: Forecast, now_s: float) -> Compared:
    """Every check's answer, in the order in which failures are reported."""
    pool, pool_scope, unbounded = lane.pool, lane.pool_scope, lane.unbounded
    promise_s = lane.ttft_slo_s
    rows = Compared()
    # 1 tenant
    tenant, tokens_max, requests_max = lane.tenant, lane.tenant_tokens_max, lane.tenant_requests_max
    if tokens_max is not None:
        rows.count("tenant", lane.tenant_scope, tenant.tokens + work.tokens, tokens_max, "tokens", TENANT_FULL)
    if requests_max is not None:
        rows.count("tenant", lane.tenant_scope, tenant.requests + work.sequences, requests_max, "requests", TENANT_FULL)
    # 2 memory; a missing gauge is not zero: no verdict, and the ledger's sum stands alone
    if pool.tokens_max is not None:
        rows.count("memory", pool_scope, pool.tokens + work.kv_tokens, pool.tokens_max, "tokens", POOL_FULL)
        if pool.tokens + work.kv_tokens > pool.unguarded_tokens:
            _peak(rows, work, lane, now_s)
    if pool.policy.floors:
        left = pool.left_tokens(request.model)
        if left is not None:
            rows.count("memory", f"model:{request.model}", work.kv_tokens, left, "tokens", RESERVED)
    kv_used = pool.kv_used_ratio(now_s)
    if kv_used is not None:
        rows.measure("memory", pool_scope, kv_used, lane.kv_ratio_max, "kv_ratio", MEMORY_FULL)
    # 3 compute
    rows.count("compute", pool_scope, pool.requests + work.sequences, pool.requests_limit(), "requests", POOL_FULL)
    if lane.token_promise is not None:
        places = places_of(pool, lane.token_promise)
        if places is not None:
            rows.count("compute", pool_scope, pool.requests + work.sequences, places, lane.token_promise.unit, POOL_FULL)
    if work.prefill_tokens >= pool.reads_from_tokens:
        _reading(rows, work, lane)
    # 4 fairness
    if not unbounded:
        queued = pool.queue.of_class(lane.class_name)
        rows.count("fairness", lane.class_scope, queued.requests + 1, lane.queue_max, "queued requests", QUEUE_FULL)
        queued_bytes = queued.bytes + request.prompt_bytes
        rows.count("fairness", lane.class_scope, queued_bytes, lane.queue_bytes_max, "queued bytes", QUEUE_FULL)
        if lane.limits_tenant_queue:
            _tenant_queue(rows, request, lane)
    # 5 time
    if forecast.wait_most_s is not None and not unbounded:
        limit_s = request.start_by_s - request.arrived_s
        if lane.wait_s_max < limit_s:
            limit_s = lane.wait_s_max
        if promise_s is not None and promise_s - forecast.prefill_s < limit_s:
            limit_s = promise_s - forecast.prefill_s
        rows.measure("time", pool_scope, forecast.wait_most_s, limit_s, "s waiting at most", DELAY)
    if forecast.wait_s is None and promise_s is not None and not unbounded:
        waiting = pool.queue.requests if lane.share is None else pool.queue.of_class(lane.class_name).requests
        if waiting:  # where nobody waits, no rate has to be known
            rows.count("time", pool_scope, waiting + 1, BLIND_MAX, "requests waiting at an unknown rate", DELAY)
    if forecast.total_s is not None and lane.e2e_slo_s is not None:
        whole_s = whole_answer_s(work, lane, forecast, lane.e2e_slo_s)
        if whole_s is not None:
            rows.measure("time", pool_scope, whole_s, lane.e2e_slo_s, "s to the whole answer", DELAY)
    if forecast.wait_s is not None and promise_s is not None:
        ttft_s = forecast.wait_s + forecast.prefill_s
        rows.measure("time", pool_scope, ttft_s, promise_s, "s to first token", DELAY)
    return rows


def _tenant_queue(rows: Compared, request: Request, lane: Lane) -> None:
    policy, line = lane.tenant_policy, lane.pool.queue.line(lane.flow)
    if policy.queue_requests_max is not None:
        most = policy.queue_requests_max
        rows.count("fairness", lane.tenant_scope, line.requests + 1, most, "queued requests", QUEUE_FULL)
    if policy.queue_bytes_max is not None:
        queued_bytes = line.bytes + request.prompt_bytes
        rows.count("fairness", lane.tenant_scope, queued_bytes, policy.queue_bytes_max, "queued bytes", QUEUE_FULL)


def _peak(rows: Compared, work: Work, lane: Lane, now_s: float) -> None:
    """What is reserved goes beyond the memory: the future peak has to stay within it, on some engine (D4)."""
    peaks = [
        one.memory.peak_with(work, lane.lengths, now_s) / one.memory.kv_tokens
        for one in lane.pool.replicas.values()
        if one.memory.kv_tokens and one.memory.ratio > 1.0
    ]
    if peaks:
        rows.measure("memory", lane.pool_scope, min(peaks), PEAK_RATIO, "kv_peak_ratio", MEMORY_FULL)


def _reading(rows: Compared, work: Work, lane: Lane) -> None:
    """Beside the prompts that the engine which reads least has in hand (B7)."""
    reading = lane.pool.reads_least().reading
    tokens = reading.size(work, lane)
    if tokens:
        for row in reading.rows(tokens, lane.service_class.ttft_slo_s, lane.pool_scope):
            rows.add(row)
