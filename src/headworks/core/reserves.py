"""Capacity that is one tenant's and nobody else's: reserved for it in every pool it may ask, and lent meanwhile (B11).

Let L be what a pool may hold, R_t the reserve of tenant t (`tenants.*.reserved`), U_t the part of it that t holds, B what work
of preemptible classes holds. Everybody who asks keeps to

    held <= L                                                           and, unless its class is preemptible,
    held - B + asked <= L - sum over the other tenants of max(0, R_t - U_t)

in tokens and in sequences, each in the ledger (`core/book_counters.py`), in one step with everything else. So what is reserved
costs others what of it is not in use; preemptible work may use that too, and what it uses is not counted against anybody,
since it can be taken back (`core/preempt.py`). A tenant that asks *inside* its reserve, U_t + asked <= R_t, waits for nobody's
turn, is held up by no forecast, class gate or running limit, and if the room is lent, what comes free next is its own.

Lent is only what its owner has not used of late: of each reserve `WARM_FACTOR` times the most that was held in the last
`WARM_S` to twice that is left free even by preemptible work. Without that each of the owner's answers that ends would be a
loan, and its next request a preemption.

Work of a tenant's own preemptible classes stands on what is lent, like anybody's, and not on its reserve. Where the reserves
of a pool come to more than it has, each is cut in proportion, and an alarm says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from headworks.core.commands import Floor
from headworks.core.policy import PoolPolicy, TenantPolicy
from headworks.core.types import Row, Work

if TYPE_CHECKING:
    from headworks.core.lane import Lane

FULL = "queue_timeout"
"""What a request that waits for room which is reserved for others is told in the end."""
WARM_FACTOR, WARM_S = 1.1, 10.0
EXCEEDED = "reserves_exceed_pool"
INSIDE = "of what is reserved for it"
"""Ends the unit of the verdict on whoever asks inside its reserve."""


class Part:
    """One tenant's part of one pool, as far as this gateway knows; the ledger knows all and has the last word."""

    __slots__ = ("_peak_requests", "_peak_s", "_peak_tokens", "requests", "scope", "stated", "tokens", "used")

    def __init__(self, scope: str) -> None:
        self.scope = scope
        self.stated = (0, 0)
        """Tokens and sequences, as its operator wants it."""
        self.tokens = self.requests = 0
        """What of that the pool can keep."""
        self.used = (0, 0)
        self._peak_tokens = self._peak_requests = 0
        self._peak_s = float("-inf")

    def has_room(self, work: Work) -> bool:
        """With this work as well it holds no more than what is kept for it; of what is not stated nothing is kept."""
        tokens, requests = self.stated
        fits = not tokens or self.used[0] + work.kv_tokens <= self.tokens
        return fits and (not requests or self.used[1] + work.sequences <= self.requests)

    def row(self, work: Work, scope: str) -> Row:
        """That it is inside, for the record."""
        if self.stated[0]:
            return "fairness", scope, self.used[0] + work.kv_tokens, self.tokens, f"tokens {INSIDE}", FULL
        return "fairness", scope, self.used[1] + work.sequences, self.requests, f"requests {INSIDE}", FULL

    def unused(self) -> tuple[int, int]:
        """Tokens and sequences."""
        return max(0, self.tokens - self.used[0]), max(0, self.requests - self.used[1])

    def warm(self, now_s: float) -> tuple[int, int]:
        """What of the unused part is not lent."""
        tokens, requests = self.used
        if tokens >= self._peak_tokens or now_s > self._peak_s + WARM_S:
            self._peak_tokens, self._peak_requests, self._peak_s = tokens, requests, now_s
        kept_tokens = min(self.tokens, int(WARM_FACTOR * self._peak_tokens))
        kept_requests = min(self.requests, int(WARM_FACTOR * self._peak_requests))
        return max(0, kept_tokens - tokens), max(0, kept_requests - requests)


class Reserves:
    """All of one pool. There is one only where some tenant has a reserve."""

    __slots__ = ("_of", "is_cut", "kept", "lent", "lent_scope", "pool", "pool_scope")

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self.pool_scope = f"pool:{pool}"
        self.lent_scope = f"lent:{pool}"
        self._of: dict[str, Part] = {}
        """By tenant. One that was taken away goes on counting what was asked for while it was there."""
        self.kept = (0, 0)
        """Tokens and sequences that are reserved and not in use."""
        self.lent = (0, 0)
        """What preemptible work holds."""
        self.is_cut = False
        """They come to more than the pool has."""

    def change(self, policy: PoolPolicy, tenants: Iterable[TenantPolicy]) -> None:
        """The policy is another; what is in use stays in use."""
        stated = {one.name: (one.reserved_tokens, one.reserved_requests) for one in tenants if may_ask(one, policy)}
        for name, amounts in stated.items():
            if any(amounts) and name not in self._of:
                self._of[name] = Part(f"reserved:{self.pool}:{name}")
        for name, part in self._of.items():
            part.stated = stated.get(name, (0, 0))

    def fit(self, tokens_max: int | None, requests_max: int | None) -> None:
        """What the pool may hold is another, or what is stated."""
        tokens, requests = (sum(one.stated[unit] for one in self._of.values()) for unit in (0, 1))
        for part in self._of.values():
            part.tokens = _cut(part.stated[0], tokens, tokens_max)
            part.requests = _cut(part.stated[1], requests, requests_max)
        most = [(tokens, tokens_max), (requests, requests_max)]
        self.is_cut = any(limit is not None and wanted > limit for wanted, limit in most)
        self._add_up()

    def _add_up(self) -> None:
        unused = [one.unused() for one in self._of.values()]
        self.kept = sum(tokens for tokens, _ in unused), sum(requests for _, requests in unused)

    def of(self, tenant: str) -> Part | None:
        """Its reserve here; None: nothing is kept for it."""
        part = self._of.get(tenant)
        return part if part is not None and any(part.stated) else None

    def count(self, part: Part | None, tokens: int, requests: int) -> None:
        """So much more is taken here, or less: on a reserve, or of what is lent."""
        if part is None:
            self.lent = self.lent[0] + tokens, self.lent[1] + requests
            return
        before, kept = part.unused(), self.kept
        part.used = part.used[0] + tokens, part.used[1] + requests
        after = part.unused()
        self.kept = kept[0] + after[0] - before[0], kept[1] + after[1] - before[1]

    def kept_from(self, lane: Lane, now_s: float) -> tuple[int, int]:
        """Tokens and sequences that this lane finds kept for others."""
        if lane.borrows:
            warm = [one.warm(now_s) for one in self._of.values()]
            return sum(tokens for tokens, _ in warm), sum(requests for _, requests in warm)
        own = lane.reserve.unused() if lane.reserve is not None else (0, 0)
        return self.kept[0] - own[0], self.kept[1] - own[1]

    def row(self, work: Work, lane: Lane, now_s: float) -> Row | None:
        """What stands in the way of this work, if the room it would take is kept for others."""
        pool = lane.pool
        kept = self.kept_from(lane, now_s)
        lent = (0, 0) if lane.borrows else self.lent
        measures = (
            (pool.tokens - lent[0] + work.kv_tokens, pool.tokens_max, kept[0], "tokens"),
            (pool.requests - lent[1] + work.sequences, pool.places_max, kept[1], "requests"),
        )
        for taken, limit, beside, unit in measures:
            if limit is not None and beside and taken > limit - beside:
                return "fairness", self.pool_scope, taken, limit - beside, f"{unit} beside what is reserved", FULL
        return None

    def others_tokens(self, lane: Lane) -> int:
        """What no waiting makes room in: the whole of what is reserved for others."""
        own = lane.reserve.tokens if lane.reserve is not None else 0
        return 0 if lane.borrows else sum(one.tokens for one in self._of.values()) - own

    def floors(self) -> Iterator[Floor]:
        """As the ledger is told of them."""
        for one in self._of.values():
            for unit, amount in (("tokens", one.tokens), ("requests", one.requests)):
                if amount:
                    yield Floor(one.scope, unit, amount, self.pool_scope, self.lent_scope)

    def used(self) -> dict[str, tuple[int, int]]:
        """By scope: what is counted on each, for people and for the audit."""
        return {self.lent_scope: self.lent, **{one.scope: one.used for one in self._of.values()}}

    def stated(self) -> dict[str, Part]:
        """By tenant, those in force."""
        return {name: one for name, one in self._of.items() if any(one.stated)}


def may_ask(tenant: TenantPolicy, pool: PoolPolicy) -> bool:
    """Whether some model of this pool is open to the tenant. What a spill may take is its operator's purse."""
    if pool.spill is not None:
        return False
    return tenant.models is None or not pool.models or not set(tenant.models).isdisjoint(pool.models)


def reserves_of(before: Reserves | None, pool: PoolPolicy, tenants: Iterable[TenantPolicy]) -> Reserves | None:
    """Those of a pool under a policy; None where there are none and never were."""
    found = list(tenants)
    wanted = any((one.reserved_tokens or one.reserved_requests) and may_ask(one, pool) for one in found)
    if before is None and not wanted:
        return None
    reserves = before or Reserves(pool.name)
    reserves.change(pool, found)
    return reserves


def _cut(stated: int, wanted: int, limit: int | None) -> int:
    return stated if limit is None or wanted <= limit else stated * limit // wanted
