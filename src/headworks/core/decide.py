"""From a request to its decision: estimate → work → forecast → verdicts → what is done about it.

Nothing here keeps a life or asks a ledger: it looks, and says.
"""

from __future__ import annotations

from headworks.core.checks import Situation, verdicts
from headworks.core.disciplines import Discipline
from headworks.core.estimate import Estimator, work_of
from headworks.core.life import Life
from headworks.core.policy import ClassPolicy, Policy, TenantPolicy
from headworks.core.pool import Pool, Replica
from headworks.core.reasons import REASONS
from headworks.core.types import Charge, Decision, Forecast, Request, Verdict, Work

WAITS = frozenset({"queue_timeout", "tenant_capacity_exceeded", "kv_saturation"})
"""Failed checks that time may cure: the request queues. The others refuse when they concern a request that must wait."""


class TenantUse:
    """What one tenant holds through this gateway."""

    __slots__ = ("policy", "requests", "tokens")

    def __init__(self, policy: TenantPolicy) -> None:
        self.policy = policy
        self.tokens = 0
        self.requests = 0


class Decider:
    """Looks at requests with today's policy and measurements."""

    def __init__(self, policy: Policy, gateway: str) -> None:
        self.policy = policy
        self.gateway = gateway
        self.estimator = Estimator()

    def look(self, request: Request, number: int, pool: Pool, tenant: TenantUse, discipline: Discipline, now_s: float) -> Life:
        """A new life with its work, forecast and verdicts."""
        capacity = pool.capacity_for()
        estimate = self.estimator.estimate(request, capacity, pool.policy.output_tokens_cold)
        work = work_of(request, estimate, capacity, 0.0)
        service_class = self.policy.classes[request.service_class]
        forecast = forecast_of(work, pool, tenant, discipline, now_s)
        life = Life(request, number, estimate, work, forecast)
        # A discipline that does not drop late work is told no deadline at all: neither the clock nor the head of its
        # queue may send a request away, or the naive baseline is not naive.
        naive = pool.policy.discipline.unbounded or not pool.policy.discipline.drop_late
        life.start_by_s = start_by_s(request, service_class, forecast.prefill_s, naive)
        life.verdicts = self.judge(life, pool, tenant, now_s)
        return life

    def judge(self, life: Life, pool: Pool, tenant: TenantUse, now_s: float) -> tuple[Verdict, ...]:
        """All checks as things stand now."""
        return verdicts(
            Situation(
                request=life.request,
                work=life.work,
                pool=pool,
                service_class=self.policy.classes[life.request.service_class],
                tenant=tenant.policy,
                tenant_tokens=tenant.tokens,
                tenant_requests=tenant.requests,
                forecast=life.forecast,
                kv_used_ratio=pool.kv_used_ratio(now_s),
            )
        )

    def refusal(self, life: Life, pool: Pool, discipline: Discipline) -> str:
        """The code with which this newcomer is refused at once, or "" when it may run or wait."""
        never = self._never(life, pool)
        if never is not None:
            life.verdicts = (*life.verdicts, never)
            return never.reason
        failed = {verdict.reason for verdict in life.verdicts if not verdict.passed}
        if not failed:
            return ""
        must_wait = bool(failed & WAITS) or pool.queue.requests > 0
        if "tenant_capacity_exceeded" in failed:
            service_class = self.policy.classes[life.request.service_class]
            if service_class.on_tenant_full == "refuse":
                return "tenant_capacity_exceeded"
        if discipline.refuses_predicted and "queue_delay_exceeded" in failed:
            return "queue_delay_and_kv_saturation" if "kv_saturation" in failed else "queue_delay_exceeded"
        if "queue_full" in failed and must_wait and not discipline.drops_oldest:
            return "queue_full"
        return ""

    def _never(self, life: Life, pool: Pool) -> Verdict | None:
        """The verdict that no amount of waiting can cure (K08)."""
        largest = pool.largest_tokens()
        if largest is not None and life.work.kv_tokens > largest:
            return Verdict("memory", f"pool:{pool.name}", life.work.kv_tokens, largest, "tokens", False, NEVER)
        tenant = self.policy.tenants[life.request.key.tenant]
        if tenant.active_tokens_max is not None and life.work.tokens > tenant.active_tokens_max:
            value, limit = life.work.tokens, tenant.active_tokens_max
            return Verdict("tenant", f"tenant:{tenant.name}", value, limit, "tokens", False, NEVER)
        if tenant.active_requests_max is not None and life.work.sequences > tenant.active_requests_max:
            value, limit = life.work.sequences, tenant.active_requests_max
            return Verdict("tenant", f"tenant:{tenant.name}", value, limit, "requests", False, NEVER)
        return None

    def decision(self, life: Life, outcome: str, reason: str, pool: Pool, now_s: float) -> Decision:
        """The record of what was decided, with a return slot where the reason gives one."""
        request = life.request
        retry_after_s = None
        if outcome == "refuse" and REASONS[reason].retry == "ticket":
            wait_s = wait_of(pool, pool.queue.tokens, now_s)
            drain = pool.drain.tokens_per_s()
            retry_after_s = pool.slots.give(wait_s, life.work.tokens, drain, self.policy.horizon_s, now_s)
        elif outcome == "refuse" and REASONS[reason].retry == "soon":
            retry_after_s = 1.0
        return Decision(
            id=request.id,
            key=request.key,
            outcome=outcome,
            reason=reason,
            verdicts=life.verdicts,
            forecast=life.forecast,
            work=life.work,
            retry_after_s=retry_after_s,
            position=pool.queue.requests if outcome == "queue" else 0,
            degraded="",
            decided_s=now_s,
            waited_s=max(0.0, now_s - request.arrived_s),
            gateway=self.gateway,
            policy_version=self.policy.version,
            service_class=request.service_class,
            model=request.model,
            pool=request.pool,
        )


NEVER = "request_exceeds_capacity"


def charges_of(request: Request, work: Work, replica: str) -> tuple[Charge, ...]:
    """What a reserve charges: plain tokens to the tenant, whole memory blocks to pool and replica, sequences to all."""
    tenant, pool = f"tenant:{request.key.tenant}", f"pool:{request.pool}"
    return (
        Charge(tenant, "tokens", work.tokens),
        Charge(tenant, "requests", work.sequences),
        Charge(pool, "tokens", work.kv_tokens),
        Charge(pool, "requests", work.sequences),
        Charge(f"replica:{replica}", "tokens", work.kv_tokens),
        Charge(f"replica:{replica}", "requests", work.sequences),
    )


def forecast_of(work: Work, pool: Pool, tenant: TenantUse, discipline: Discipline, now_s: float) -> Forecast:
    """W_est + t_prefill for a newcomer (B2)."""
    replica, _ = pool.place(work, now_s)
    has_room = replica is not None and not pool.queue.requests and _tenant_fits(tenant, work)
    if has_room and not _waiting_inside(pool, now_s):
        wait_s: float | None = 0.0
        basis = "room"
    else:
        wait_s = wait_of(pool, discipline.ahead_tokens(pool.queue), now_s)
        basis = "unknown" if wait_s is None else "drain"
    prefill_s = _prefill_s(work, pool, replica)
    ttft_s = None if wait_s is None else wait_s + prefill_s
    return Forecast(wait_s, prefill_s, ttft_s, None, pool.drain.tokens_per_s(), pool.policy.buffer_ratio, basis)


def wait_of(pool: Pool, ahead_tokens: int, now_s: float) -> float | None:
    """W_est: what waits here and inside the engines, ÷ the rate at which it drains. None while that is not known."""
    tokens_per_s, requests_per_s = pool.drain.tokens_per_s(), pool.drain.requests_per_s()
    if not tokens_per_s or not requests_per_s:
        return None
    return ahead_tokens / tokens_per_s + _waiting_inside(pool, now_s) / requests_per_s


def _waiting_inside(pool: Pool, now_s: float) -> int:
    """Requests waiting inside the engines that are not ours on their way in: they will run before a newcomer."""
    return sum(max(0, replica.waiting(now_s) - replica.opening) for replica in pool.replicas.values())


def _tenant_fits(tenant: TenantUse, work: Work) -> bool:
    policy = tenant.policy
    if policy.active_tokens_max is not None and tenant.tokens + work.tokens > policy.active_tokens_max:
        return False
    return policy.active_requests_max is None or tenant.requests + work.sequences <= policy.active_requests_max


def _prefill_s(work: Work, pool: Pool, replica: Replica | None) -> float:
    """On the replica it would go to; while none has room, the quickest."""
    replicas = [replica] if replica is not None else list(pool.replicas.values())
    prompt_tokens = work.prefill_tokens
    return min((one.prefill.upper_s(prompt_tokens, alone=not one.requests) for one in replicas), default=0.0)


def start_by_s(request: Request, service_class: ClassPolicy, prefill_s: float, unbounded: bool) -> float:
    """The last instant at which starting still helps (B6): min(TTFT promise − t_prefill, wait limit, the client's own)."""
    if unbounded:
        return float("inf")
    wait_s = service_class.wait_s_max
    if service_class.ttft_slo_s is not None:
        wait_s = min(wait_s, service_class.ttft_slo_s - prefill_s)
    client_s = request.start_by_s - prefill_s
    return min(request.arrived_s + max(0.0, wait_s), client_s)
