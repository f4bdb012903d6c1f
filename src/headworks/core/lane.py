"""What is the same for all requests of one tenant, class and pool, looked up once: limits, names, weights.

A lane belongs to one version of the policy; a reload makes new ones. What runs keeps the lane it was asked for in, what
waits is moved to the new one. Usage counters live in objects that outlast the lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headworks.core.book_counters import OBSERVED
from headworks.core.class_gates import ClassGates
from headworks.core.commands import Opening
from headworks.core.disciplines import ORDERED, WEIGHED
from headworks.core.fair import ONE_FLOW
from headworks.core.fallback import Cascade
from headworks.core.forecast import tails_of
from headworks.core.policy import ClassPolicy, Policy, TenantPolicy
from headworks.core.pool import Pool
from headworks.core.predict import TokenPromise
from headworks.core.shares import Share
from headworks.core.tenant import TenantUse, is_metered
from headworks.core.types import Row, Work

if TYPE_CHECKING:
    from headworks.core.session_use import SessionUse


class Lane:
    """One (tenant, class, pool)."""

    __slots__ = (
        "answers",
        "borrows",
        "by_deadline",
        "cached_ratio",
        "cascade",
        "class_name",
        "class_scope",
        "e2e_slo_s",
        "flow",
        "gates",
        "is_paced",
        "keeps",
        "kv_ratio_max",
        "lengths",
        "limits_tenant_queue",
        "metered",
        "observed_scope",
        "observes",
        "opens",
        "policy_version",
        "pool",
        "pool_scope",
        "queue_bytes_max",
        "queue_max",
        "reserve",
        "reserves",
        "service_class",
        "session",
        "session_scope",
        "share",
        "tails",
        "tenant",
        "tenant_policy",
        "tenant_requests_max",
        "tenant_scope",
        "tenant_tokens_max",
        "token_promise",
        "ttft_slo_s",
        "turn",
        "unbounded",
        "use",
        "wait_s_max",
        "weights",
    )

    def __init__(self, tenant: TenantUse, service_class: ClassPolicy, pool: Pool, policies: Policy) -> None:
        self.tenant = tenant
        self.tenant_policy = tenant.policy
        self.service_class = service_class
        self.pool = pool
        self.policy_version = policies.version
        self.observes = policies.observe or service_class.observe or tenant.policy.observe
        """What is decided about its requests is written down, and they run (F3)."""
        self.observed_scope = f"{OBSERVED}{pool.name}" if self.observes and not policies.observe else ""
        """What says to the ledger that its limits hold up others, and not this; where it knows none, nothing need."""
        self.tails = tails_of(service_class, pool.policy.coverage_ratio)
        self.cached_ratio = 0.0
        """What of their prompts its requests found in the engine's cache of late, where the engine says so."""
        self.answers = pool.bounds.answers_by_flow.get((service_class.name, tenant.policy.name))
        """How many tokens' time its answers came to; see `core/forecast.py`."""
        self.token_promise = _token_promise(service_class)
        self.flow = (service_class.name, tenant.policy.name)
        kind = pool.policy.discipline.kind
        self.share = Share(tenant.policy, service_class, pool, policies) if kind == WEIGHED else None
        """Its weights, where weights decide."""
        self.by_deadline = kind in ORDERED
        """Who has to start first is first in its line; elsewhere who came first."""
        gates = service_class.refuse_when
        self.gates = ClassGates(service_class.name, gates, pool) if gates is not None else None
        """What refuses new requests of this class."""
        self.turn = self.flow if self.share else ONE_FLOW
        """Whose turn the ledger counts its reserves under: where one queue is served, there is one flow."""
        self.weights = self.share.weights if self.share else (1.0, 1.0)
        self.use = self.share.use if self.share else None
        """What its class has in the pool, where it is counted."""
        self.is_paced = self.share is not None and self.share.is_paced
        self.reserves = pool.reserves
        self.borrows = pool.reserves is not None and service_class.preemptible
        """What is reserved and not in use may be lent to its work."""
        own = pool.reserves.of(tenant.policy.name) if pool.reserves is not None else None
        self.reserve = None if self.borrows else own
        """What is kept for its tenant here."""
        self.keeps = self.reserves is not None or (self.share is not None and bool(self.share.rivals))
        """Something may be kept from its work for others (`kept`)."""
        self.lengths = pool.lengths.of(tenant.policy.name)
        """How long its tenant's answers are."""
        self.tenant_scope = f"tenant:{tenant.policy.name}"
        self.class_scope = f"class:{service_class.name}"
        self.pool_scope = f"pool:{pool.name}"
        policy = tenant.policy
        self.tenant_tokens_max, self.tenant_requests_max = policy.active_tokens_max, policy.active_requests_max
        self.metered = is_metered(policy) or pool.spill is not None
        """Its requests draw on rates, a retry budget, a quota or the budget of a spill (`metering.py`)."""
        self.session: SessionUse | None = None
        """The session that its requests are calls of; None: of none, and for most (`core/session.py`)."""
        self.session_scope = ""
        self.opens: Opening | None = None
        """For one that opens a session."""
        self.cascade: Cascade | None = None
        """What its class consents to here before a request is refused; None: nothing."""
        tail = pool.policy.discipline.queue_max
        self.queue_max = service_class.queue_requests_max if tail is None else min(tail, service_class.queue_requests_max)
        """Requests of the class that may wait: the class's bound, or the discipline's where that is tighter."""
        self._keep_limits(policy, service_class, pool)

    def _keep_limits(self, policy: TenantPolicy, service_class: ClassPolicy, pool: Pool) -> None:
        """What every arrival is compared with: compiled code looks a policy's own fields up by their names."""
        self.class_name, self.queue_bytes_max = service_class.name, service_class.queue_bytes_max
        self.ttft_slo_s, self.e2e_slo_s = service_class.ttft_slo_s, service_class.e2e_slo_s
        self.wait_s_max, self.kv_ratio_max = service_class.wait_s_max, pool.policy.kv_ratio_max
        self.unbounded = pool.policy.discipline.unbounded
        self.limits_tenant_queue = policy.queue_requests_max is not None or policy.queue_bytes_max is not None

    def weigh(self, now_s: float) -> None:
        """What its tenant weighs may be another by now (B13)."""
        demotion = self.tenant.demotion
        if demotion is not None and self.share is not None:
            self.weights = self.share.weights = (self.weights[0], self.tenant_policy.share * demotion.ratio(now_s))

    def tenant_fits(self, work: Work) -> bool:
        """By what the tenant holds through this gateway; the ledger knows about the others and has the last word."""
        tokens_max, requests_max, tenant = self.tenant_tokens_max, self.tenant_requests_max, self.tenant
        if tokens_max is not None and tenant.tokens + work.tokens > tokens_max:
            return False
        return requests_max is None or tenant.requests + work.sequences <= requests_max

    def is_inside(self, work: Work) -> bool:
        """It asks for no more than what is kept for its tenant (B11)."""
        return self.reserve is not None and self.reserve.has_room(work)

    def kept(self, work: Work, now_s: float) -> Row | None:
        """What stands in the way of this work, if the room it would take is kept for other tenants or classes."""
        if self.reserves is not None:
            if self.is_inside(work):
                return None
            row = self.reserves.row(work, self, now_s)
            if row is not None:
                return row
        return self.share.kept(work, self.pool, now_s) if self.share is not None and self.share.rivals else None

    def why_not(self, work: Work) -> str:
        """The reason with which one waits that `tenant_fits` keeps back."""
        return "tenant_capacity_exceeded"

    def own_rows(self, work: Work) -> list[Row]:
        """What only its kind compares."""
        return []

    def charges(self, work: Work, replica_scope: str) -> tuple[tuple[str, str, int], ...]:
        """What a reserve charges: plain tokens to the tenant, whole memory blocks to pool and replica, sequences to all.

        Plain tuples in the shape of `Charge`: six are made for every request. Two more where it stands on a reserve.
        """
        tenant, pool = self.tenant_scope, self.pool_scope
        tokens, kv_tokens, sequences = work.tokens, work.kv_tokens, work.sequences
        plain: tuple[tuple[str, str, int], ...] = (
            (tenant, "tokens", tokens),
            (tenant, "requests", sequences),
            (pool, "tokens", kv_tokens),
            (pool, "requests", sequences),
            (replica_scope, "tokens", kv_tokens),
            (replica_scope, "requests", sequences),
        )
        if self.observed_scope:
            plain = ((self.observed_scope, "tokens", tokens), *plain)
        if self.reserves is None or (self.reserve is None and not self.borrows):
            return plain
        stands_on = self.reserves.lent_scope if self.reserve is None else self.reserve.scope
        return (*plain, (stands_on, "tokens", kv_tokens), (stands_on, "requests", sequences))


def _token_promise(service_class: ClassPolicy) -> TokenPromise | None:
    """What a class promises of each further token; None: nothing."""
    promise_s = service_class.tpot_slo_s
    if promise_s is None:
        return None
    return TokenPromise(promise_s, 1.0 - service_class.tpot_kept_ratio, f"requests at {promise_s:g} s a token")
