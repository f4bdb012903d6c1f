"""Limits that a decision log proposes: each the value that would have refused so many of the requests it is about (F3).

What is held at once, by a tenant or in a pool: at each arrival what ran then and the arrival itself, as it was reserved;
the limit is what all but the wished share of arrivals stayed within. A rate: the smallest at which the very buckets that
decide (`core/buckets.py`), with the size they have unless told, would have let all but that share in. A quota: of the
busiest whole day. Beside each stands how full the engines were when it would have refused, and when not: a limit that bites
at engines half empty protects nobody from anything.

Each is reckoned alone, from what happened. Together, and with what a refusal would have changed for those after it, they are
tried by `headworks plan`'s own code. How long a queue becomes, and how long anybody waits in it, is in no log in which nobody
waited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import ceil

from headworks.core.buckets import Bucket
from headworks.core.events import Event, ReplicaSampled
from headworks.core.policy import MIRROR, Policy, QuotaPolicy, RatePolicy
from headworks.sim.report import quantile
from headworks.tools.decision_log import Life
from headworks.tools.log_lines import Ended

DAY_S = 86_400
RATE_STEPS = 20
"""Halvings on the way to a rate: it is found to a millionth of what lets everybody in."""
DIGITS = 3
SLACK = 0.01
"""Of the last digit."""


@dataclass(slots=True)
class Load:
    """How full a pool's engines were at some moments, on average."""

    moments: int = 0
    kv_ratio: float | None = None
    """Of their memory; None: no engine told it."""
    running_requests: int | float | None = None


@dataclass(slots=True)
class Proposal:
    """One limit, by its place in the configuration."""

    key: str
    """`tenants.acme.active_tokens_max`."""
    value: int | float
    unit: str
    arrivals: int
    would_refuse: int
    most: int | float
    """What nobody at all would have passed."""
    beyond: Load
    """When it would have refused."""
    within: Load


@dataclass(slots=True)
class Moment:
    """An arrival: what ran then and it together, by what a limit counts, and how full its pool's engines were."""

    at_s: float
    ended: Ended
    tenant_tokens: int
    tenant_requests: int
    pool_tokens: int
    pool_requests: int
    kv_ratio: float | None
    running_requests: int | None


@dataclass(slots=True)
class Unproposed:
    """A limit that this log says nothing about, and why."""

    key: str
    why: str


@dataclass(slots=True)
class Proposals:
    """All of them."""

    found: list[Proposal] = field(default_factory=list)
    not_found: list[Unproposed] = field(default_factory=list)


def proposals(lives: Sequence[Life], refused_ratio: float, named_tenants: bool = True) -> Proposals:
    """What would have refused this share of each tenant's, and of each pool's, arrivals. Lives of several gateways that ran
    at the same time are each taken alone: a limit that they share is proposed too small."""
    made = Proposals()
    moments = [moment for life in lives for moment in moments_of(life)]
    tenants = sorted({one.ended.key.tenant for one in moments} - {MIRROR}) if named_tenants else []
    for name in tenants:
        own = [one for one in moments if one.ended.key.tenant == name]
        place = f"tenants.{name}"
        made.found.append(_at_once(f"{place}.active_tokens_max", "tokens", own, _tenant_tokens, refused_ratio))
        made.found.append(_at_once(f"{place}.active_requests_max", "requests", own, _tenant_requests, refused_ratio))
        made.found.append(_rate(f"{place}.rate.tokens_per_s", "tokens/s", own, _tokens, refused_ratio))
        made.found.append(_rate(f"{place}.rate.requests_per_s", "requests/s", own, _one, refused_ratio))
        quota = _quota(f"{place}.quota.tokens", own, lives, refused_ratio)
        if isinstance(quota, Proposal):
            made.found.append(quota)
        else:
            made.not_found.append(quota)
    for name in sorted({one.ended.pool for one in moments}):
        own = [one for one in moments if one.ended.pool == name]
        place = f"pools.{name}"
        made.found.append(_at_once(f"{place}.active_tokens_max", "tokens", own, _pool_tokens, refused_ratio))
        made.found.append(_at_once(f"{place}.active_requests_max", "requests", own, _pool_requests, refused_ratio))
    return made


# what was there


def moments_of(life: Life) -> Iterator[Moment]:
    """Each arrival of a life, in order."""
    looks = Looks(life.facts)
    held: dict[str, list[int]] = {}
    ends: list[tuple[float, int, Ended]] = []
    for number, arrival in enumerate(life.arrivals):
        ended = arrival.ended
        while ends and ends[0][0] <= arrival.at_s:
            _count(held, heappop(ends)[2], -1)
        _count(held, ended, 1)
        tenant, pool = held[f"tenant:{ended.key.tenant}"], held[f"pool:{ended.pool}"]
        kv_ratio, running = looks.at(ended.pool, arrival.at_s)
        yield Moment(arrival.at_s, ended, tenant[0], tenant[1], pool[0], pool[1], kv_ratio, running)
        if ended.sent_s is None:
            _count(held, ended, -1)
        else:
            heappush(ends, (ended.ended_s, number, ended))


def _count(held: dict[str, list[int]], ended: Ended, sign: int) -> None:
    work = ended.work
    for scope, tokens in ((f"tenant:{ended.key.tenant}", work.tokens), (f"pool:{ended.pool}", work.kv_tokens)):
        sums = held.setdefault(scope, [0, 0])
        sums[0] += sign * tokens
        sums[1] += sign * work.sequences


class Looks:
    """What the engines of a pool said last. Instants are asked for in order."""

    def __init__(self, facts: Iterable[tuple[float, Event]]) -> None:
        self._samples = [(at_s, event.sample) for at_s, event in facts if isinstance(event, ReplicaSampled)]
        self._next = 0
        self._last: dict[str, dict[str, tuple[float | None, int | None]]] = {}

    def at(self, pool: str, at_s: float) -> tuple[float | None, int | None]:
        """The fullest engine's memory, and what runs in all of them."""
        while self._next < len(self._samples) and self._samples[self._next][0] <= at_s:
            sample = self._samples[self._next][1]
            its = self._last.setdefault(sample.replica.rpartition("/")[0], {})
            its[sample.replica] = sample.kv_used_ratio, sample.running
            self._next += 1
        told = self._last.get(pool, {}).values()
        kv_ratios = [kv for kv, _ in told if kv is not None]
        running = [count for _, count in told if count is not None]
        return max(kv_ratios, default=None), sum(running) if running else None


# held at once


def _tenant_tokens(one: Moment) -> int:
    return one.tenant_tokens


def _tenant_requests(one: Moment) -> int:
    return one.tenant_requests


def _pool_tokens(one: Moment) -> int:
    return one.pool_tokens


def _pool_requests(one: Moment) -> int:
    return one.pool_requests


def _at_once(key: str, unit: str, own: Sequence[Moment], measure: Callable[[Moment], int], refused_ratio: float) -> Proposal:
    values = [measure(one) for one in own]
    value = quantile(values, 1.0 - refused_ratio) or 0
    return _proposal(key, value, unit, max(values), own, [one > value for one in values])


def _proposal(key: str, value: float, unit: str, most: float, own: Sequence[Moment], beyond: Sequence[bool]) -> Proposal:
    refused = [one for one, passed in zip(own, beyond, strict=True) if passed]
    let_in = [one for one, passed in zip(own, beyond, strict=True) if not passed]
    return Proposal(key, value, unit, len(own), len(refused), most, _load(refused), _load(let_in))


def _load(moments: Sequence[Moment]) -> Load:
    kv_ratios = [one.kv_ratio for one in moments if one.kv_ratio is not None]
    running = [one.running_requests for one in moments if one.running_requests is not None]
    return Load(len(moments), _mean(kv_ratios), _mean(running))


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), DIGITS) if values else None


# rates


def _tokens(ended: Ended) -> tuple[int, int]:
    """What it draws, and what it turns out to have used."""
    usage = ended.usage
    return ended.work.tokens, ended.work.tokens if usage is None else usage.prompt_tokens + usage.output_tokens


def _one(ended: Ended) -> tuple[int, int]:
    return 1, 1


def _rate(
    key: str, unit: str, own: Sequence[Moment], measure: Callable[[Ended], tuple[int, int]], refused_ratio: float
) -> Proposal:
    """Halved down to it between nothing and what lets everybody in."""
    allowed = refused_ratio * len(own)
    enough = float(max(measure(one.ended)[0] for one in own))
    while any(_refused(own, enough, measure)):
        enough *= 2.0
    low, high = 0.0, enough
    for _ in range(RATE_STEPS):
        middle = (low + high) / 2.0
        if sum(_refused(own, middle, measure)) > allowed:
            low = middle
        else:
            high = middle
    value = _up(high)
    return _proposal(key, value, unit, _up(enough), own, _refused(own, value, measure))


def _up(value: float) -> float:
    """As it is written down: in whole numbers from a hundred on, else to a hundredth, and not less but for the last halving.

    And never nothing at all: whoever asked once in a while is to be let in once in a while.
    """
    step = 1.0 if value >= 100 else 0.01
    return max(step, round(ceil(value / step - SLACK) * step, 2))


def _refused(own: Sequence[Moment], per_s: float, measure: Callable[[Ended], tuple[int, int]]) -> list[bool]:
    """Which of these a bucket of that rate would have refused."""
    if per_s <= 0.0:
        return [True] * len(own)
    bucket = Bucket(per_s, None, 0)
    corrections: list[tuple[float, int, int]] = []
    found = []
    for number, one in enumerate(own):
        while corrections and corrections[0][0] <= one.at_s:
            at_s, _, amount = heappop(corrections)
            bucket.give_back(amount, at_s)
        drawn, used = measure(one.ended)
        refused = bucket.drawn_with(drawn, one.at_s) > bucket.limit
        found.append(refused)
        if not refused:
            bucket.draw(drawn, one.at_s)
            heappush(corrections, (max(one.at_s, one.ended.ended_s), number, drawn - used))
    return found


# quotas


def _quota(key: str, own: Sequence[Moment], lives: Sequence[Life], refused_ratio: float) -> Proposal | Unproposed:
    """Of the whole day in which most was used."""
    offset_s = lives[0].utc_offset_s
    first = -(-(min(life.began_s for life in lives) + offset_s) // DAY_S)
    last = (max(life.ended_s for life in lives) + offset_s) // DAY_S
    if last - first < 1:
        return Unproposed(key, "the log has no whole day in it")
    by_day: dict[int, list[Moment]] = {}
    for one in sorted(own, key=lambda one: one.at_s):
        by_day.setdefault(int((one.at_s + offset_s) // DAY_S), []).append(one)
    days = {day: _summed(moments) for day, moments in by_day.items() if first <= day < last}
    if not days:
        return Unproposed(key, "nothing of it came in a whole day of the log")
    busiest = max(days, key=lambda day: days[day][-1])
    sums = days[busiest]
    if not sums[-1]:
        return Unproposed(key, "what came in a whole day of the log used nothing")
    value = max(1, quantile(sums, 1.0 - refused_ratio) or 0)
    return _proposal(key, value, "tokens a day", sums[-1], by_day[busiest], [total > value for total in sums])


def _summed(moments: Sequence[Moment]) -> list[int]:
    total, sums = 0, []
    for one in moments:
        total += _tokens(one.ended)[1]
        sums.append(total)
    return sums


# all of them together


def enforcing(policy: Policy, made: Proposals) -> Policy:
    """The policy with these limits, enforced for everybody."""
    values = {one.key: one.value for one in made.found}
    changed = replace(policy, observe=False, number=policy.number + 1, version="proposed")
    changed.classes = {name: replace(one, observe=False) for name, one in policy.classes.items()}
    changed.tenants = {}
    for name, tenant in policy.tenants.items():
        place = f"tenants.{name}"
        tokens_per_s = values.get(f"{place}.rate.tokens_per_s")
        quota_tokens = values.get(f"{place}.quota.tokens")
        limited = replace(tenant, observe=False)
        if tokens_per_s is not None:
            limited.rate = RatePolicy(tokens_per_s, requests_per_s=values[f"{place}.rate.requests_per_s"])
            limited.active_tokens_max = int(values[f"{place}.active_tokens_max"])
            limited.active_requests_max = int(values[f"{place}.active_requests_max"])
        if quota_tokens is not None:
            limited.quota = QuotaPolicy("day", int(quota_tokens))
        changed.tenants[name] = limited
    changed.pools = {
        name: replace(
            pool,
            active_tokens_max=_whole(values.get(f"pools.{name}.active_tokens_max"), pool.active_tokens_max),
            active_requests_max=_whole(values.get(f"pools.{name}.active_requests_max"), pool.active_requests_max),
        )
        for name, pool in policy.pools.items()
    }
    return changed


def _whole(value: float | None, stated: int | None) -> int | None:
    return stated if value is None else int(value)
