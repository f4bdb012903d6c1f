"""A tenant over its quota that is not refused counts for less among those that wait (B13, `tenants.*.over_quota: demote`).

    weight = share * min(1, quota rate / rate)

The quota rate is `rate.tokens_per_s`; without it, the quota of a period by the length of the period, in tokens, in money, or
the smaller ratio of both. The rate is what the tenant was granted in the last `WINDOW_S`, by estimate from the grant on and
by its actual tokens from its end on. So at ten times its quota it has a tenth of its weight half a minute later, and has it
back half a minute after it uses no more than its quota.

Gateways that share a ledger tell each other with their heartbeats what they granted, as they tell what waits
(`core/elsewhere.py`): all of them weigh a tenant by the sum, which is a heartbeat old.

What it is granted counts, not what it asks for. Where others want the pool, its weight, and with it what it is granted, settles
where the two agree, and never below the quota rate that it could have by its share: a tenant that floods a full pool is
not punished for what it did not get. And where nobody else waits a weight means nothing: it may have all there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from headworks.core.elsewhere import FRESH_S
from headworks.core.policy import QuotaPolicy, TenantPolicy

if TYPE_CHECKING:
    from headworks.core.peak import Profile
    from headworks.core.tenant import TenantUse

WINDOW_S = 30
"""In slots of a second."""
RATIO_MIN = 1e-6
"""Of a quota of nothing: a weight is divided by."""
TOLD_MAX = 256
"""Tenants that a heartbeat tells of, those who were granted most."""
GRANTED = "granted:"
PERIOD_S = {"hour": 3_600.0, "day": 86_400.0, "week": 604_800.0, "month": 2_592_000.0}
"""A month is thirty days here, so that no weight jumps with the calendar."""


class Usage30:
    """How much of something was granted in the last half minute, and how much of it a second is within the quota."""

    __slots__ = ("_at", "_slots", "per_s", "total")

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self._slots = [0] * WINDOW_S
        self._at = 0
        """The second that is running, counted on the caller's clock."""
        self.total = 0

    def draw(self, amount: int, now_s: float) -> None:
        """So much more was granted."""
        self._turn(now_s)
        self._slots[self._at % WINDOW_S] += amount
        self.total += amount

    def give_back(self, amount: int, now_s: float) -> None:
        """So much of it was not used; less than nothing of it: so much more was."""
        self.draw(-amount, now_s)

    def granted(self, now_s: float) -> int:
        """In the last half minute. What was given back may be of a grant before that: never below zero."""
        self._turn(now_s)
        return max(0, self.total)

    def rate_per_s(self, now_s: float) -> float:
        """Over the last half minute."""
        return self.granted(now_s) / WINDOW_S

    def _turn(self, now_s: float) -> None:
        second = int(now_s)
        if second - self._at >= WINDOW_S:
            self._slots, self.total = [0] * WINDOW_S, 0
        else:
            for gone in range(self._at + 1, second + 1):
                self.total -= self._slots[gone % WINDOW_S]
                self._slots[gone % WINDOW_S] = 0
        self._at = max(self._at, second)


class Demotion:
    """Of one tenant, by what this gateway and those beside it granted it."""

    __slots__ = ("_beside", "_told_s", "money", "tokens")

    def __init__(self) -> None:
        self.tokens: Usage30 | None = None
        self.money: Usage30 | None = None
        self._beside: Profile = (0, 0)
        """Tokens and money that the others granted in the last half minute, as they told it last."""
        self._told_s = 0.0

    def change(self, policy: TenantPolicy) -> None:
        """Another policy; what was granted stays granted."""
        per_s, money_per_s = quota_rates(policy)
        self.tokens = _meter(self.tokens, per_s)
        self.money = _meter(self.money, money_per_s)

    def ratio(self, now_s: float) -> float:
        """What of its share it weighs now."""
        beside = self._beside if now_s <= self._told_s + FRESH_S else (0, 0)
        meters = ((one, more) for one, more in zip((self.tokens, self.money), beside, strict=True) if one is not None)
        over = ((one.per_s, one.rate_per_s(now_s) + more / WINDOW_S) for one, more in meters)
        return max(RATIO_MIN, min((quota / rate for quota, rate in over if rate > quota), default=1.0))

    def granted(self, now_s: float) -> Profile:
        """Tokens and money of the last half minute, for the others."""
        tokens, money = (0 if one is None else one.granted(now_s) for one in (self.tokens, self.money))
        return tokens, money

    def learn(self, beside: Profile, now_s: float) -> None:
        """What the others granted, added up."""
        self._beside, self._told_s = beside, now_s


def told_of_tenants(tenants: Iterable[TenantUse], now_s: float) -> Iterator[tuple[str, Profile]]:
    """What was granted here to each tenant that may be demoted for it."""
    found = ((use.policy.name, use.demotion.granted(now_s)) for use in tenants if use.demotion is not None)
    told = sorted((one for one in found if any(one[1])), key=lambda one: one[1], reverse=True)
    for name, granted in told[:TOLD_MAX]:
        yield GRANTED + name, granted


def learn_of_tenants(tenants: Iterable[TenantUse], profiles: Mapping[str, Profile], now_s: float) -> None:
    """What was granted to them at the other gateways."""
    for use in tenants:
        if use.demotion is not None:
            use.demotion.learn(profiles.get(GRANTED + use.policy.name, (0, 0)), now_s)


def _meter(meter: Usage30 | None, per_s: float | None) -> Usage30 | None:
    if per_s is None:
        return None
    if meter is None:
        return Usage30(per_s)
    meter.per_s = per_s
    return meter


def quota_rates(policy: TenantPolicy) -> tuple[float | None, float | None]:
    """Tokens and billionths of money a second that are within its quota; None where that is not limited."""
    if policy.rate is not None and policy.rate.tokens_per_s is not None:
        return policy.rate.tokens_per_s, None
    quota = policy.quota or QuotaPolicy()
    period_s = PERIOD_S[quota.period]
    return _each(quota.tokens, period_s), _each(quota.nanomoney, period_s)


def _each(amount: int | None, period_s: float) -> float | None:
    return None if amount is None else amount / period_s
