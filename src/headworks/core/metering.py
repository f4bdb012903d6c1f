"""What a request draws on its tenant's and its client's rates and quota, from its arrival to its end (A2, B5, B15).

Rates and periods refuse at once: waiting in a queue is no cure for them. What is let in, to run or to wait, has drawn its
estimate on every bucket; what never ran gives all of it back, and what ran is corrected by its actual tokens. The quota is
a check of the ledger and is charged there with everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headworks.core.buckets import Bucket
from headworks.core.commands import Shortfall
from headworks.core.demotion import Usage30
from headworks.core.life import Life
from headworks.core.policy import PricePolicy
from headworks.core.quota import FREE, GONE, PREFIX, billed
from headworks.core.tenant import FROZEN, RATE, Rate
from headworks.core.types import Request, Row, Work

if TYPE_CHECKING:
    from headworks.core.lane import Lane

RETRIES = "retry_budget_exceeded"
NEVER = "request_exceeds_capacity"
WEIGHED = "share, for what it used in 30 s"
"""The unit of the verdict on a tenant that weighs less than its share."""
WHILE_FROZEN = "requests while it is frozen"
AT_ONCE = (FROZEN, GONE, RETRIES, RATE)
"""Failed checks that refuse whatever else there is, the hardest first."""
REASON = 5
TOKENS = "tokens"
REQUESTS = "requests"
MONEY = "nanomoney"
Draw = tuple[Bucket | Usage30, int, str]
"""A bucket or a count, what was drawn on it, and in which unit."""


def arrived(life: Life, now_s: float) -> list[Row]:
    """The verdicts on a newcomer; and whether a retry keeps its slot or costs some of its client's budget."""
    request, tenant = life.request, life.lane.tenant
    found: list[Row] = []
    client = tenant.client(request.client, now_s)
    budget = client.budget
    if request.retry_count:
        kept = client.windows.keep(now_s)
        life.retry_kind = "ticket_kept" if kept else "early"
        if budget is not None and not kept:
            made, allowed = budget.spend(now_s)
            found.append(("tenant", client.rate.scope, made, allowed, "retries in a minute", RETRIES))
    elif budget is not None:
        budget.first(now_s)
    for rate in (tenant.rate, client.rate):
        rate.rows(found, life.work.tokens, now_s)
    return [*_quota(life.lane, request, life.work, now_s), *_weight(life, now_s), *found]


def _weight(life: Life, now_s: float) -> list[Row]:
    """What its tenant weighs, if that is less than its share: no check fails by it, and the record says so."""
    lane = life.lane
    share = lane.tenant_policy.share
    weight = share * lane.tenant.demotion.ratio(now_s) if lane.tenant.demotion is not None else share
    return [("fairness", lane.tenant_scope, weight, share, WEIGHED, RATE)] if weight < share else []


def foreseen(life: Life, now_s: float) -> list[Row]:
    """The verdicts on one that has not come: its retry costs nothing."""
    return foreseen_of(life.lane, life.request, life.work, now_s)


def foreseen_of(lane: Lane, request: Request, work: Work, now_s: float) -> list[Row]:
    """The same of so much work."""
    found = _quota(lane, request, work, now_s)
    lane.tenant.rate.rows(found, work.tokens, now_s)
    lane.tenant.client(request.client, now_s).rate.rows(found, work.tokens, now_s)
    return found


def again(life: Life, now_s: float) -> list[Row]:
    """The verdicts on one that has been let in: the quota as it stands, and what was compared when it drew on its rates."""
    return [*_quota(life.lane, life.request, life.work, now_s), *(row for row in life.rows if row[REASON] in (RATE, RETRIES))]


def _quota(lane: Lane, request: Request, work: Work, now_s: float) -> list[Row]:
    quota = lane.tenant.quota
    found: list[Row] = [("tenant", lane.tenant_scope, 1, 0, WHILE_FROZEN, FROZEN)] if lane.tenant_policy.frozen else []
    return found + quota.rows(lane.tenant_scope, work, request.model, now_s) if quota is not None else found


def never(life: Life, now_s: float) -> Row | None:
    """More than a whole bucket with all its debt (K08): it does not refill to that."""
    for rate in _rates(life, now_s):
        if rate.tokens is not None and not life.drawn and life.work.tokens > rate.tokens.limit:
            return "tenant", rate.scope, life.work.tokens, rate.tokens.limit, "tokens at once", NEVER
    return None


def _rates(life: Life, now_s: float) -> tuple[Rate, Rate]:
    tenant = life.lane.tenant
    return tenant.rate, tenant.client(life.request.client, now_s).rate


def let_in(life: Life, now_s: float) -> None:
    """It may run or wait: what it is estimated to take is drawn."""
    drawn: list[Draw] = []
    for rate in _rates(life, now_s):
        if rate.tokens is not None:
            drawn.append((rate.tokens, life.work.tokens, TOKENS))
        if rate.requests is not None:
            drawn.append((rate.requests, 1, REQUESTS))
    for bucket, amount, _ in drawn:
        bucket.draw(amount, now_s)
    life.drawn = tuple(drawn)


def spent(life: Life, now_s: float) -> None:
    """It has run elsewhere, as a request that was let in before: its tokens are drawn, into debt if there are none."""
    for rate in _rates(life, now_s):
        if rate.tokens is not None:
            rate.tokens.draw(life.work.tokens, now_s)


def granted(life: Life, now_s: float) -> None:
    """It runs from now on: what it is estimated to take counts towards its tenant's weight (B13), once for all attempts."""
    demotion, work = life.lane.tenant.demotion, life.work
    if demotion is None or any(isinstance(one, Usage30) for one, _, _ in life.drawn):
        return
    drawn: list[Draw] = []
    if demotion.tokens is not None:
        drawn.append((demotion.tokens, work.tokens, TOKENS))
    if demotion.money is not None:
        _, nanomoney = billed(None, work, _price(life), reserved=True)
        drawn.append((demotion.money, nanomoney, MONEY))
    for count, amount, _ in drawn:
        count.draw(amount, now_s)
    life.drawn = (*life.drawn, *drawn)


def _price(life: Life) -> PricePolicy:
    quota = life.lane.tenant.quota
    return quota.price(life.request.model) if quota is not None else FREE


def ended(life: Life, now_s: float) -> None:
    """Its one outcome is known: what it drew is corrected by what it took."""
    ran = life.sent_s is not None and life.evidence != "E0"
    used = _used_tokens(life) if ran else 0
    for bucket, amount, unit in life.drawn:
        if unit == MONEY:
            bucket.give_back(amount - (billed(life.usage, life.work, _price(life), reserved=False)[1] if ran else 0), now_s)
        elif unit == TOKENS:
            bucket.give_back(amount - used, now_s)
        elif not ran:
            bucket.give_back(amount, now_s)
    life.drawn = ()


def _used_tokens(life: Life) -> int:
    """One that showed no byte may have had its prompt read: leaving early must not make prompts free."""
    usage = life.usage
    return life.work.prefill_tokens if usage is None else usage.prompt_tokens + usage.output_tokens


def refill_s(life: Life, horizon_s: float, now_s: float) -> float:
    """When its buckets will have refilled for it."""
    of_tenant, of_client = _rates(life, now_s)
    tokens = life.work.tokens
    return max(of_tenant.wait_s(tokens, horizon_s, now_s), of_client.wait_s(tokens, horizon_s, now_s))


def refilled_s(life: Life, now_s: float) -> float:
    """The same, and nobody is promised it."""
    buckets = [(bucket, amount) for rate in _rates(life, now_s) for bucket, amount in rate.amounts(life.work.tokens)]
    return max((bucket.wait_s(amount, now_s) for bucket, amount in buckets), default=0.0)


def renewed_s(life: Life, now_s: float) -> float | None:
    """When its tenant's next period begins."""
    quota = life.lane.tenant.quota
    return quota.ends_s - now_s if quota is not None else None


def gave_slot(life: Life, slot_s: float, horizon_s: float, now_s: float) -> None:
    """Its client was told when to come back: coming back then costs it nothing of its budget, once."""
    if slot_s <= horizon_s:
        client = life.lane.tenant.client(life.request.client, now_s)
        client.windows.give(now_s + slot_s, now_s)


def by_quota(shortfalls: Sequence[Shortfall]) -> bool:
    """The ledger refused for a period's quota."""
    return any(short.scope.startswith(PREFIX) for short in shortfalls)


def commits(life: Life) -> tuple[tuple[str, str, int], ...]:
    """What stays charged to its quota after it has ended, as the usage journal bills it: of what is sent again, the last."""
    charge = life.quota
    if charge is None or life.sent_s is None or life.evidence == "E0" or (life.is_held and life.wanted):
        return ()
    return charge.bill(life.usage, life.work, life.request.model, not life.wanted)
