"""What a tenant may use in a period (A2): committed + outstanding + asked <= quota.

A quota is a scope of the ledger like any other, `quota:TENANT@PERIOD`: a reserve charges what it asks, so that the check
is atomic with all others, and a stop says how much of it stays there as committed. The period stands in the scope's name.
A new one is another scope with nothing in it, and one that comes back is found as it was left.

Which period it is follows from UTC as it was when the process started, and the monotonic clock since: setting the
machine's clock moves no period. What was used in it before the start is read from the usage journal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headworks.core.commands import Shortfall
from headworks.core.policy import PricePolicy, QuotaPolicy
from headworks.core.types import Charge, Row, Usage, Work

PREFIX = "quota:"
GONE = "insufficient_quota"
HOUR_S = 3_600
DAY_S = 86_400
NANO = 1e9
FREE = PricePolicy(0.0, 0.0, 0.0)
"""Of a model nobody has priced."""


class Period(NamedTuple):
    """One period of UTC."""

    name: str
    begins_s: int
    ends_s: int


def period_of(kind: str, utc_s: float) -> Period:
    """The hour, day, week (from Monday) or month in which this instant of Unix time lies."""
    day = int(utc_s // DAY_S)
    if kind == "hour":
        hour = int(utc_s // HOUR_S)
        return Period(f"hour-{_date(day)}T{hour % 24:02}", hour * HOUR_S, (hour + 1) * HOUR_S)
    if kind == "month":
        year, month, first, days = _month(day)
        return Period(f"month-{year}-{month:02}", first * DAY_S, (first + days) * DAY_S)
    days = 7 if kind == "week" else 1
    first = day - (day + 3) % days  # the first of January 1970 was a Thursday
    return Period(f"{kind}-{_date(first)}", first * DAY_S, (first + days) * DAY_S)


def _date(day: int) -> str:
    year, month, first, _ = _month(day)
    return f"{year}-{month:02}-{day - first + 1:02}"


def _month(day: int) -> tuple[int, int, int, int]:
    """Year and month of a day counted from 1970, the month's first day counted so, and its length."""
    year, month, first = 1970, 1, 0
    while True:
        is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        days = 28 + is_leap if month == 2 else 30 if month in (4, 6, 9, 11) else 31
        if day < first + days:
            return year, month, first, days
        first += days
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)


def scope(tenant: str, name: str) -> str:
    """The ledger's scope of a tenant's quota in the period of this name."""
    return f"{PREFIX}{tenant}@{name}"


def billed(usage: Usage | None, work: Work, price: PricePolicy, reserved: bool) -> tuple[int, int]:
    """Tokens and billionths of money that an execution is billed: what it used as far as anybody knows, or the reserve."""
    if reserved:
        return work.tokens, price.nanomoney(work.prefill_tokens, 0, work.tokens - work.prefill_tokens)
    if usage is None:
        return 0, 0
    prompt, cached, output = usage.prompt_tokens, usage.cached_tokens, usage.output_tokens
    return prompt + output, 0 if price is FREE else price.nanomoney(prompt, cached, output)


class Quota:
    """One tenant's quota in the running period, as this gateway knows it; the ledger knows all and has the last word."""

    __slots__ = (
        "_offset_s",
        "_tenant",
        "committed_nanomoney",
        "committed_tokens",
        "ends_s",
        "is_told",
        "outstanding_nanomoney",
        "outstanding_tokens",
        "period",
        "policy",
        "prices",
        "refuses",
        "scope",
    )

    def __init__(self, tenant: str, policy: QuotaPolicy, prices: dict[str, PricePolicy], utc_offset_s: float) -> None:
        self._tenant = tenant
        self._offset_s = utc_offset_s
        self.policy = policy
        self.prices = prices
        self.refuses = True
        """Without this it is only counted: who is over it weighs less (`core/demotion.py`)."""
        self.scope = ""
        self._begin("", -1.0)

    def _begin(self, name: str, ends_s: float) -> None:
        self.period = name
        self.ends_s = ends_s
        """On the caller's clock."""
        self.scope = scope(self._tenant, name)
        self.committed_tokens = self.committed_nanomoney = 0
        self.outstanding_tokens = self.outstanding_nanomoney = 0
        self.is_told = False
        """The ledger was told this period's limit."""

    def turn(self, now_s: float) -> None:
        """Another period may have begun."""
        if now_s >= self.ends_s:
            now = period_of(self.policy.period, now_s + self._offset_s)
            self._begin(now.name, now.ends_s - self._offset_s)

    def price(self, model: str) -> PricePolicy:
        return self.prices.get(model, FREE)

    def rows(self, tenant_scope: str, work: Work, model: str, now_s: float) -> list[Row]:
        """What it would come to with this work as well."""
        self.turn(now_s)
        tokens, nanomoney = billed(None, work, self.price(model), reserved=True)
        found: list[Row] = []
        if not self.refuses:
            return found
        if self.policy.tokens is not None:
            value = self.committed_tokens + self.outstanding_tokens + tokens
            found.append(_row(tenant_scope, "tokens", value, self.policy.tokens, self.policy.period, GONE))
        if self.policy.nanomoney is not None:
            value = self.committed_nanomoney + self.outstanding_nanomoney + nanomoney
            found.append(_row(tenant_scope, "nanomoney", value, self.policy.nanomoney, self.policy.period, GONE))
        return found

    def limits(self) -> list[Charge]:
        """For the ledger, once a period has begun here."""
        pairs = (("tokens", self.policy.tokens), ("nanomoney", self.policy.nanomoney)) if self.period and self.refuses else ()
        return [Charge(self.scope, unit, limit) for unit, limit in pairs if limit is not None]

    def committed(self) -> list[Charge]:
        """What is known to be used up, for a ledger that may have heard of less."""
        amounts = {"tokens": self.committed_tokens, "nanomoney": self.committed_nanomoney}
        return [Charge(self.scope, limit.unit, amounts[limit.unit]) for limit in self.limits() if amounts[limit.unit]]

    def read(self, used: Iterable[Charge]) -> None:
        """What the usage journal has of this period."""
        for where, unit, amount in used:
            if where == self.scope and unit == "tokens":
                self.committed_tokens = max(self.committed_tokens, amount)
            elif where == self.scope:
                self.committed_nanomoney = max(self.committed_nanomoney, amount)

    def take(self, work: Work, model: str, other: QuotaCharge | None = None) -> QuotaCharge:
        """This work is asked for: it is outstanding until it has ended. `other`: what it has outstanding elsewhere."""
        charge = QuotaCharge(self, *billed(None, work, self.price(model), reserved=True), other)
        self.outstanding_tokens += charge.tokens
        self.outstanding_nanomoney += charge.nanomoney
        return charge


class QuotaCharge:
    """What one execution has outstanding against the quota of the period in which it was asked for."""

    __slots__ = ("_billed", "_other", "_quota", "is_billed", "nanomoney", "scope", "tokens")

    def __init__(self, quota: Quota, tokens: int, nanomoney: int, other: QuotaCharge | None = None) -> None:
        self._quota = quota
        self._other = other
        """Its charge to another quota, which goes the same way."""
        self.scope = quota.scope
        self.tokens = tokens
        self.nanomoney = nanomoney
        self._billed = (0, 0)
        self.is_billed = False

    def charges(self) -> tuple[tuple[str, str, int], ...]:
        """For the reserve."""
        mine = self._listed(self.tokens, self.nanomoney)
        return mine if self._other is None else (*self._other.charges(), *mine)

    def more(self, work: Work, model: str) -> tuple[tuple[str, str, int], ...]:
        """For a grow: what this work, which it may become, has outstanding beyond what there is."""
        tokens, nanomoney = billed(None, work, self._quota.price(model), reserved=True)
        mine = self._listed(tokens - self.tokens, nanomoney - self.nanomoney)
        return mine if self._other is None else (*self._other.more(work, model), *mine)

    def grown(self, work: Work, model: str) -> None:
        """It has become that."""
        quota = self._quota
        tokens, nanomoney = billed(None, work, quota.price(model), reserved=True)
        if quota.scope == self.scope:
            quota.outstanding_tokens += tokens - self.tokens
            quota.outstanding_nanomoney += nanomoney - self.nanomoney
        self.tokens, self.nanomoney = tokens, nanomoney
        if self._other is not None:
            self._other.grown(work, model)

    def bill(self, usage: Usage | None, work: Work, model: str, is_cancelled: bool) -> tuple[tuple[str, str, int], ...]:
        """It has ended: what stays committed, for the stop."""
        quota = self._quota
        reserved = is_cancelled and quota.policy.bill == "reserved"
        self._billed = billed(usage, work, quota.price(model), reserved)
        self.is_billed = True
        mine = self._listed(*self._billed)
        return mine if self._other is None else (*self._other.bill(usage, work, model, is_cancelled), *mine)

    def tokens_in(self, scope: str) -> int:
        """What is outstanding in that scope."""
        own = self.tokens if self.scope == scope else 0
        return own if self._other is None else own + self._other.tokens_in(scope)

    def _listed(self, tokens: int, nanomoney: int) -> tuple[tuple[str, str, int], ...]:
        policy = self._quota.policy
        found: list[tuple[str, str, int]] = []
        if not self._quota.refuses:
            return ()
        if policy.tokens is not None:
            found.append((self.scope, "tokens", tokens))
        if policy.nanomoney is not None:
            found.append((self.scope, "nanomoney", nanomoney))
        return tuple(found)

    def close(self) -> None:
        """The ledger has let go of it. A period that is over keeps no count here; the usage journal does."""
        quota = self._quota
        if quota.scope == self.scope:
            quota.outstanding_tokens -= self.tokens
            quota.outstanding_nanomoney -= self.nanomoney
            quota.committed_tokens += self._billed[0]
            quota.committed_nanomoney += self._billed[1]
        if self._other is not None:
            self._other.close()


def _row(tenant_scope: str, unit: str, value: int, limit: int, kind: str, reason: str) -> Row:
    """In words and numbers a person reads: money in its own unit."""
    if unit == "nanomoney":
        return "tenant", tenant_scope, value / NANO, limit / NANO, f"money a {kind}", reason
    return "tenant", tenant_scope, value, limit, f"{unit} a {kind}", reason


def shortfall_rows(shortfalls: Iterable[Shortfall], reason: str) -> list[Row]:
    """The same from the ledger's answer, for its quota scopes."""
    found = []
    for short in shortfalls:
        if short.scope.startswith(PREFIX):
            tenant, _, name = short.scope.removeprefix(PREFIX).rpartition("@")
            kind = name.partition("-")[0]
            found.append(_row(f"tenant:{tenant}", short.unit, short.value, short.limit, kind, reason))
    return found
