"""How the classes and tenants of a pool share it: their weights, what each class has there, and what is kept free for it.

Turns (`core/fair.py`) decide who is next when something comes free. With requests that run for many seconds that is not
enough for a class that promises a first token: if long work has taken every place, the next one to come free may be too
late, whoever's turn it is. So a part of the pool's places and tokens is *kept* for each class that promises a first token and
has asked within the last `LENT_AFTER_S`: what it used at most of late and a little more, but not less than its
`floor_ratio`, and not more than its share; less what its turns bring it within half of its promise, as far as reading leaves
that: mostly enough for a class that promises five seconds, if who asks promises a first token as well. A class that does not
ask lends its part out; it gets its turns back at once, and the room as what was lent ends.

While such a class asks, work that promises no first token is also *paced*: an engine reads prompts in the order in which they
came, so one that came behind fifty long ones would wait for all of them. Only so much of it is sent before it is read.
Where one that promises a first token was refused all the same, work without a promise has taken more of the engine than its
turns give it, whatever the limits say (long contexts slow every token of the others): then it starts only while it has less
than its share of the places, until nobody was refused for `DENIED_S`.
And where the pool is pressed it is held back from starting, in shed order (`core/pressure.py`), as long as its class has
its floor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headworks.core.class_use import ClassUse
from headworks.core.policy import INFINITE_S, ClassPolicy, Policy, TenantPolicy
from headworks.core.pool import Pool
from headworks.core.types import Row, Work

LENT_AFTER_S = 10.0
PEAK_FACTOR = 1.1
"""So much of what it used is kept: it can grow, and where its room was taken it has it back step by step."""
DENIED_S = 3.0
"""After a request with a promise was refused for want of room, work without one starts only within its share for so long."""
READING_TOKENS = 2048
"""So much of paced work may be read at once on each engine, about what one step of an engine takes; or one prompt."""
TURN_RATIO = 0.5
"""Of its promise: by then a class has what it is owed from its turns, and needs nothing that is kept."""
PLACES = "requests"
KEPT = "queue_timeout"
"""The reason of a request that waits because what is free is kept for others."""


def class_weights(classes: dict[str, ClassPolicy]) -> dict[str, float]:
    """The shares, raised where a floor asks for it: each class has at least its floor of the sum (D2)."""
    floors: dict[str, float] = {}
    while True:
        left = max(0.0, 1.0 - sum(floors.values()))
        shares = sum(one.share for one in classes.values() if one.name not in floors)
        low = [one for one in classes.values() if one.name not in floors and one.share * left < one.floor_ratio * shares]
        if not low:
            break
        floors.update((one.name, one.floor_ratio) for one in low)
    if not shares or not left:
        return {one.name: max(one.floor_ratio, 1e-6) for one in classes.values()}
    return {one.name: floors[one.name] * shares / left if one.name in floors else one.share for one in classes.values()}


def shed_rank_ratio(service_class: ClassPolicy, classes: dict[str, ClassPolicy]) -> float:
    """Where it stands in shed order: 0 for the smallest share, which gives way first, and 1 for the largest (B4)."""
    shares = sorted({one.share for one in classes.values()} | {service_class.share})
    return shares.index(service_class.share) / (len(shares) - 1) if len(shares) > 1 else 1.0


class Rival(NamedTuple):
    """A class that part of a pool is kept for."""

    use: ClassUse
    floor_ratio: float
    share_ratio: float
    promise_s: float

    def comes_free(self, rate_per_s: float | None, first_token_s: float) -> int:
        """What its turns bring it in time, of something that comes free at this rate."""
        wait_s = TURN_RATIO * self.promise_s - first_token_s
        return int(self.share_ratio * rate_per_s * wait_s) if rate_per_s is not None and wait_s > 0.0 else 0

    def part(self, peak: int, limit: int) -> int:
        """How much of a limit, after a peak of its use."""
        return int(min(self.share_ratio * limit, max(self.floor_ratio * limit, PEAK_FACTOR * peak + 1)))


class Share:
    """How one (tenant, class) stands in a pool that is shared by weights."""

    __slots__ = ("_floor_ratio", "_rank_ratio", "_share_ratio", "is_paced", "rivals", "use", "weights")

    def __init__(self, tenant: TenantPolicy, service_class: ClassPolicy, pool: Pool, policy: Policy) -> None:
        weights = class_weights(policy.classes)
        self.weights = (weights.get(service_class.name, service_class.share), tenant.share)
        """Of the class among the classes, and of the tenant inside it."""
        several = len(policy.classes) > 1
        self.use: ClassUse | None = pool.class_use(service_class.name) if several else None
        """What the class has in this pool; None where there is no other class."""
        others = [one for one in policy.classes.values() if one is not service_class]
        self.rivals = tuple(
            Rival(
                pool.class_use(one.name),
                one.floor_ratio,
                max(one.floor_ratio, weights[one.name] / sum(weights.values())),
                one.ttft_slo_s,
            )
            for one in others
            if one.floor_ratio > 0.0 and one.ttft_slo_s is not None and self.use is not None
        )
        """The classes a part of the pool is kept for."""
        self.is_paced = bool(self.rivals) and service_class.ttft_slo_s is None
        self._floor_ratio = service_class.floor_ratio
        self._share_ratio = self.weights[0] / sum(weights.values()) if service_class.name in weights else 1.0
        self._rank_ratio = shed_rank_ratio(service_class, policy.classes)

    def kept(self, work: Work, pool: Pool, now_s: float) -> Row | None:
        """What stands in the way of this work, if the room it would take is kept for others."""
        rivals = [rival for rival in self.rivals if now_s - rival.use.asked_s <= LENT_AFTER_S]
        if not rivals:
            return None
        held = pool.pressure.hold(self._rank_ratio, now_s) if self.is_paced else None
        if held is not None and not self._is_below_floor(pool):
            return held
        if self.is_paced and self.use is not None and any(now_s - rival.use.denied_s <= DENIED_S for rival in rivals):
            own, part = self.use.requests + work.sequences, self._share_ratio * pool.requests_limit()
            if own > max(1.0, part):
                return "fairness", f"pool:{pool.name}", own, part, "requests while others are refused", KEPT
        for rival in rivals:
            rival.use.note_peak(now_s)
        for taken, wanted, limit, unit, kept, kept_most in self._measures(work, pool, rivals):
            # What would not fit beside the kept part even if nothing else ran could never run: nothing is kept from it.
            if taken + wanted > limit - kept and wanted <= limit - kept_most:
                if unit == PLACES:
                    pool.wants_places()
                return "fairness", f"pool:{pool.name}", taken + wanted, limit - kept, f"{unit} beside what is kept", KEPT
        reading_tokens, limit = pool.reading_tokens + work.prefill_tokens, READING_TOKENS * len(pool.replicas)
        if self.is_paced and pool.reading_tokens and reading_tokens > limit:
            return "fairness", f"pool:{pool.name}", reading_tokens, limit, "prompt tokens being read", KEPT
        return None

    def _is_below_floor(self, pool: Pool) -> bool:
        """Its class has less of the places than is its own whatever happens."""
        return self.use is not None and self.use.requests < self._floor_ratio * pool.requests_limit()

    def _measures(self, work: Work, pool: Pool, rivals: list[Rival]) -> Iterator[tuple[int, int, int, str, int, int]]:
        """Places, then tokens: taken, wanted, limit, unit, what is kept and not used, and what is kept at most."""
        # From work that can wait for ever everything is kept: it fills whatever it is let have, for as long as it runs.
        first_s = INFINITE_S if self.is_paced else pool.first_token_s
        limit, rate_per_s = pool.requests_limit(), pool.drain.requests_per_s
        parts = [
            (rival.part(rival.use.peak_requests, limit), rival.use.requests + rival.comes_free(rate_per_s, first_s))
            for rival in rivals
        ]
        yield pool.requests, work.sequences, limit, PLACES, _unused(parts), sum(part for part, _ in parts)
        if pool.tokens_max is not None:
            limit, rate_per_s = pool.tokens_max, pool.drain.tokens_per_s
            parts = [
                (rival.part(rival.use.peak_tokens, limit), rival.use.tokens + rival.comes_free(rate_per_s, first_s))
                for rival in rivals
            ]
            yield pool.tokens, work.kv_tokens, limit, "tokens", _unused(parts), sum(part for part, _ in parts)


def _unused(parts: list[tuple[int, int]]) -> int:
    return sum(max(0, part - used) for part, used in parts)
