"""How pressed is a pool, who is held back for that, and are more engines asked for? (B4, B9)

    utilisation = max(reserved ÷ limit, compute, KV)

of the pool as a whole: reserved tokens over its token limit and places over the running limits, once those are known, and
what its engines say, on average. *Compute* is what an exporter says of the accelerator, or else how much of the batch that
keeps the promise on tokens is taken (`core/pace.py`); where neither is known, KV stands alone, and every verdict that
follows says so.

*Admission pressure* engages above `engage_ratio` and is released when utilisation has stayed below `release_ratio` for
`release_hold_s`. While it is engaged, work of classes that promise no first token is held back in favour of those that do and
have asked of late, in shed order, the smallest share first. With r the rank of its class (0 the smallest share, 1 the
largest), new work of it starts only while

    compute ≤ compute_ratio + r · (1 − compute_ratio)          KV ≤ kv_ratio + r · (kv_ratio_max − kv_ratio)

or its class holds less than its floor. So bulk stops at the pressure's own thresholds, batch half-way between them and the
hard limits, and what is left up to those belongs to interactive work. What is held back waits its class's time; if that runs
out it is refused with what held it. Nothing that waits is sent away for pressure alone, and where nobody asks
for a first token nobody is held: pressure costs no throughput but the few per cent between two thresholds.

*Scaling* is asked for above `scale_ratio` and until what is wanted has fallen below it by `SCALE_BAND_RATIO`. It has no part in
admission, nor admission in it: what is wanted counts what was refused (F4).

    demanded = reserved · (1 + refused ÷ granted) + queued          wanted = utilisation · demanded ÷ reserved

Refused and granted are rates in tokens, so this is what would be reserved if nothing had been refused (Little's law).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headworks.core.policy import INFINITE_S, PressurePolicy
from headworks.core.types import Row

if TYPE_CHECKING:
    from headworks.core.pool import Pool
    from headworks.core.replica import Replica

SCALE_BAND_RATIO = 0.05
SCALE_IN_RATIO = 0.8
"""Below this share of what is there less would do; between it and a wish for more everything is to stay as it is."""
DEMAND_S = 10.0
"""Refused work counts as demand for about this long."""
EXPORTER, STEPS, UNKNOWN = "exporter", "steps", "unknown"
"""Where what is known of compute comes from."""
MEMORY_FULL, COMPUTE_FULL = "kv_saturation", "compute_saturation"


class Hysteresis:
    """The two switches: `engaged` for admission, by utilisation; `scale_asked` for the autoscaler, by what is wanted."""

    __slots__ = ("_below_since_s", "engaged", "scale_asked")

    def __init__(self) -> None:
        self.engaged = False
        self.scale_asked = False
        self._below_since_s = INFINITE_S

    def weigh(self, policy: PressurePolicy, utilisation_ratio: float, wanted_ratio: float, now_s: float) -> None:
        """Utilisation now, and what it would be if nothing were refused."""
        if utilisation_ratio >= policy.release_ratio:
            self._below_since_s = INFINITE_S
        elif self._below_since_s == INFINITE_S:
            self._below_since_s = now_s
        if utilisation_ratio > policy.engage_ratio:
            self.engaged = True
        elif now_s - self._below_since_s >= policy.release_hold_s:
            self.engaged = False
        least = policy.scale_ratio - (SCALE_BAND_RATIO if self.scale_asked else 0.0)
        self.scale_asked = wanted_ratio > least


class Pressure:
    """What one pool is pressed by. Weighed whenever one of its engines was looked at."""

    __slots__ = (
        "_looked_s",
        "_pool",
        "_refused_per_s",
        "_refused_tokens",
        "compute_ratio",
        "compute_source",
        "kv_ratio",
        "reserved_ratio",
        "switch",
        "utilisation_ratio",
    )

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.switch = Hysteresis()
        self.utilisation_ratio = self.reserved_ratio = 0.0
        self.compute_ratio: float | None = None
        self.kv_ratio: float | None = None
        self.compute_source = UNKNOWN
        self._refused_tokens = 0
        self._refused_per_s = 0.0
        self._looked_s: float | None = None

    def look(self, now_s: float) -> None:
        """One of the engines was looked at."""
        pool = self._pool
        self.reserved_ratio = _reserved_ratio(pool)
        self.kv_ratio = _mean(replica.kv_used_ratio(now_s) for replica in pool.replicas.values())
        self.compute_ratio, self.compute_source = compute_of(pool, now_s)
        self.utilisation_ratio = max(self.reserved_ratio, self.compute_ratio or 0.0, self.kv_ratio or 0.0)
        self._count_refused(now_s)
        self.switch.weigh(pool.policy.pressure, self.utilisation_ratio, self._wanted_ratio(), now_s)

    def _count_refused(self, now_s: float) -> None:
        elapsed_s = now_s - self._looked_s if self._looked_s is not None else 0.0
        self._looked_s = now_s
        if elapsed_s > 0.0:
            weight = min(1.0, elapsed_s / DEMAND_S)
            self._refused_per_s += (self._refused_tokens / elapsed_s - self._refused_per_s) * weight
            self._refused_tokens = 0

    def refused(self, tokens: int) -> None:
        """A first attempt of so much work was refused for want of capacity."""
        self._refused_tokens += tokens

    @property
    def is_pressed(self) -> bool:
        """B4: compute or KV is above the pressure's own threshold."""
        policy = self._pool.policy.pressure
        return (self.compute_ratio or 0.0) > policy.compute_ratio or (self.kv_ratio or 0.0) > policy.kv_ratio

    @property
    def demanded_tokens(self) -> float:
        """What is reserved, what waits, and what would be reserved beside it had nothing been refused."""
        pool, granted_per_s = self._pool, self._pool.drain.tokens_per_s
        would_be = pool.tokens * self._refused_per_s / granted_per_s if granted_per_s else self._refused_per_s * DEMAND_S
        return pool.tokens + would_be + pool.queue.tokens

    @property
    def scale_wanted_ratio(self) -> float:
        """Capacity that is wanted ÷ capacity that is there."""
        wanted = self._wanted_ratio() / (self._pool.policy.pressure.scale_ratio or 1.0)
        if self.switch.scale_asked:
            return max(1.0, wanted)
        return wanted if wanted < SCALE_IN_RATIO else 1.0

    def _wanted_ratio(self) -> float:
        pool = self._pool
        if pool.tokens:
            return self.utilisation_ratio * self.demanded_tokens / pool.tokens
        if pool.tokens_max:  # nothing runs: whatever is wanted is refused, or waits
            return max(self.utilisation_ratio, self.demanded_tokens / pool.tokens_max)
        return self.utilisation_ratio

    def hold(self, rank_ratio: float, now_s: float) -> Row | None:
        """What keeps work of a class of this rank from starting now."""
        if not self.switch.engaged:
            return None
        pool, policy = self._pool, self._pool.policy.pressure
        scope = f"pool:{pool.name}"
        compute, source = compute_of(pool, now_s)
        ceiling = policy.compute_ratio + rank_ratio * (1.0 - policy.compute_ratio)
        if compute is not None and compute > ceiling:
            return "compute", scope, compute, ceiling, f"compute_ratio under pressure by {source}", COMPUTE_FULL
        kv = pool.kv_used_ratio(now_s)
        ceiling = policy.kv_ratio + rank_ratio * max(0.0, pool.policy.kv_ratio_max - policy.kv_ratio)
        if kv is not None and kv > ceiling:
            unit = "kv_ratio under pressure" if compute is not None else "kv_ratio under pressure with compute unknown"
            return "memory", scope, kv, ceiling, unit, MEMORY_FULL
        return None


def compute_of(pool: Pool, now_s: float) -> tuple[float | None, str]:
    """Compute use of the pool's engines on average, as far as it is known, and how."""
    if pool.single is not None:
        return _compute(pool.single, now_s)
    known = [_compute(replica, now_s) for replica in pool.replicas.values()]
    ratios = [ratio for ratio, _ in known if ratio is not None]
    if not ratios:
        return None, UNKNOWN
    by_exporter = any(source == EXPORTER for _, source in known)
    return sum(ratios) / len(ratios), EXPORTER if by_exporter else STEPS


def _compute(replica: Replica, now_s: float) -> tuple[float | None, str]:
    """An exporter's word goes before what the steps tell, while it is fresh."""
    sample = replica.sample
    if sample is None or now_s - sample.ended_s > replica.policy.stale_s:
        return None, UNKNOWN
    if sample.compute_used_ratio is not None:
        return sample.compute_used_ratio, EXPORTER
    ratio = replica.limit.occupancy_ratio(max(replica.requests, sample.running or 0))
    return ratio, UNKNOWN if ratio is None else STEPS


def _reserved_ratio(pool: Pool) -> float:
    """Tokens, and places where their number is known."""
    tokens = pool.tokens / pool.tokens_max if pool.tokens_max else 0.0
    there = [replica for replica in pool.replicas.values() if replica.capacity is not None]
    if not there or not all(replica.limit.is_known for replica in there):
        return tokens
    return max(tokens, sum(replica.requests for replica in there) / sum(replica.limit.value for replica in there))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
