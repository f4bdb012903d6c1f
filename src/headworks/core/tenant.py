"""What one tenant holds and may still have through this gateway, and each of its clients: counters, rates, quota, slots."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headworks.core.buckets import Bucket, RetryBudget, ReturnWindows
from headworks.core.demotion import Demotion
from headworks.core.policy import PricePolicy, RatePolicy, TenantPolicy
from headworks.core.quota import Quota
from headworks.core.types import Row

CLIENTS_MAX = 1_024
"""Clients of one tenant that are remembered; beyond, the one heard from first begins anew."""
RATE = "rate_limit_exceeded"
FROZEN = "tenant_frozen"


def is_metered(policy: TenantPolicy) -> bool:
    """A rate, a retry budget or a quota concerns this tenant's requests, whether it refuses or demotes; or it is frozen."""
    return policy.frozen or any(
        limit is not None for limit in (policy.rate, policy.client_rate, policy.retry_ratio, policy.quota)
    )


@dataclass(slots=True)
class Left:
    """What may be used, how much of it is left, and when all of it is there again."""

    limit: int
    remaining: int
    reset_s: float


class Rate:
    """The buckets of a tenant or of a client. Either may be missing."""

    __slots__ = ("requests", "scope", "tokens")

    def __init__(self, scope: str) -> None:
        self.scope = scope
        self.tokens: Bucket | None = None
        self.requests: Bucket | None = None

    def change(self, policy: RatePolicy | None, now_s: float) -> Rate:
        """Another policy; what has been drawn stays drawn where there still is a limit."""
        policy = policy or RatePolicy()
        self.tokens = _bucket(self.tokens, policy.tokens_per_s, policy.burst_tokens, policy.debt_tokens_max, now_s)
        self.requests = _bucket(self.requests, policy.requests_per_s, policy.burst_requests, 0, now_s)
        return self

    def rows(self, found: list[Row], tokens: int, now_s: float) -> None:
        """What a request of so many tokens would have drawn, beside what may be."""
        if self.tokens is not None:
            drawn = self.tokens.drawn_with(tokens, now_s)
            found.append(("tenant", self.scope, drawn, self.tokens.limit, "tokens at once", RATE))
        if self.requests is not None:
            drawn = self.requests.drawn_with(1, now_s)
            found.append(("tenant", self.scope, drawn, self.requests.limit, "requests at once", RATE))

    def wait_s(self, tokens: int, horizon_s: float, now_s: float) -> float:
        """When a request of so many tokens should come back, as a promise of every bucket that refused it."""
        wait_s, bucket = 0.0, self.tokens
        if bucket is not None and bucket.wait_s(tokens, now_s) > 0.0:
            wait_s = bucket.promise(tokens, horizon_s, now_s)
        bucket = self.requests
        if bucket is not None and bucket.wait_s(1, now_s) > 0.0:
            wait_s = max(wait_s, bucket.promise(1, horizon_s, now_s))
        return wait_s

    def amounts(self, tokens: int) -> list[tuple[Bucket, int]]:
        """What a request of so many tokens draws on which bucket."""
        return [(bucket, amount) for bucket, amount in ((self.tokens, tokens), (self.requests, 1)) if bucket is not None]


def _bucket(bucket: Bucket | None, per_s: float | None, burst: int | None, debt_max: int, now_s: float) -> Bucket | None:
    if per_s is None:
        return None
    if bucket is None:
        return Bucket(per_s, burst, debt_max)
    bucket.change(per_s, burst, debt_max, now_s)
    return bucket


class ClientUse:
    """One client: made when it has a limit of its own, when it is first refused, or when it comes back."""

    __slots__ = ("budget", "rate", "windows")

    def __init__(self, scope: str, policy: TenantPolicy, now_s: float) -> None:
        self.rate = Rate(scope)
        self.budget: RetryBudget | None = None
        self.windows = ReturnWindows()
        self.change(policy, now_s)

    def change(self, policy: TenantPolicy, now_s: float) -> None:
        """Another policy of its tenant."""
        self.rate.change(policy.client_rate, now_s)
        if policy.retry_ratio is None:
            self.budget = None
        elif self.budget is None:
            self.budget = RetryBudget(policy.retry_ratio)
        else:
            self.budget.ratio = policy.retry_ratio


class TenantUse:
    """What one tenant holds through this gateway, and what it may still use."""

    __slots__ = ("_clients", "_offset_s", "_prices", "demotion", "policy", "quota", "rate", "requests", "tokens")

    def __init__(self, policy: TenantPolicy, prices: dict[str, PricePolicy] | None = None, utc_offset_s: float = 0.0) -> None:
        self.tokens = 0
        self.requests = 0
        self.rate = Rate(f"tenant:{policy.name}")
        self.quota: Quota | None = None
        self.demotion: Demotion | None = None
        """What it weighs; None: its share, and above its rate or quota it is refused."""
        self._clients: dict[str, ClientUse] = {}
        self._offset_s = utc_offset_s
        self.change(policy, prices or {}, 0.0)

    def change(self, policy: TenantPolicy, prices: dict[str, PricePolicy], now_s: float) -> None:
        """Another policy: buckets and counts go on."""
        self.policy = policy
        self._prices = prices
        rate = policy.rate
        if policy.demotes:
            self.demotion = self.demotion or Demotion()
            self.demotion.change(policy)
            rate = None if rate is None else replace(rate, tokens_per_s=None)
        else:
            self.demotion = None
        self.rate.change(rate, now_s)
        for client in self._clients.values():
            client.change(policy, now_s)
        quota = self.quota
        if policy.quota is None or quota is None or quota.policy.period != policy.quota.period:
            given = policy.quota
            self.quota = Quota(policy.name, given, prices, self._offset_s) if given is not None else None
        else:
            quota.policy, quota.prices, quota.is_told = policy.quota, prices, False
        if self.quota is not None:
            self.quota.refuses = not policy.demotes

    def client(self, name: str, now_s: float) -> ClientUse:
        """One of its clients."""
        client = self._clients.get(name)
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                del self._clients[next(iter(self._clients))]
            client = self._clients[name] = ClientUse(f"client:{name}", self.policy, now_s)
        return client

    def left(self, client: str, now_s: float) -> tuple[Left | None, Left | None]:
        """Requests and tokens that are left, by whichever bucket has the least; where none counts them, of what it holds."""
        policy = self.policy
        if policy.rate is None and policy.client_rate is None:
            return _of(policy.active_requests_max, self.requests), _of(policy.active_tokens_max, self.tokens)
        own, rate = self.rate, self.client(client, now_s).rate
        return (
            _least(own.requests, rate.requests, now_s) or _of(policy.active_requests_max, self.requests),
            _least(own.tokens, rate.tokens, now_s) or _of(policy.active_tokens_max, self.tokens),
        )


def _least(of_tenant: Bucket | None, of_client: Bucket | None, now_s: float) -> Left | None:
    """By the bucket that has less. What may be borrowed beyond is not counted as left."""
    bucket = of_tenant
    if of_client is not None and (of_tenant is None or _remaining(of_client, now_s) < _remaining(of_tenant, now_s)):
        bucket = of_client
    return None if bucket is None else Left(bucket.burst, _remaining(bucket, now_s), bucket.full_s(now_s))


def _remaining(bucket: Bucket, now_s: float) -> int:
    return max(0, int(bucket.level(now_s)))


def _of(limit: int | None, held: int) -> Left | None:
    return None if limit is None else Left(limit, max(0, limit - held), 0.0)
