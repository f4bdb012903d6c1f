"""Gates of a class: new requests of it are refused while one of them holds (B4, `classes.*.refuse_when`).

They look at the pool as it is, not at the request: how many wait for it, here and inside its engines; how much of its compute
is used; what the slowest first tokens of the class took of late. A request that waits already is not concerned, and what
nobody knows closes no gate: without first tokens for `FRESH_S` nothing is known of them, so a gate that has
refused everybody opens by itself.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headworks.core.policy import GatePolicy
from headworks.core.pressure import compute_of
from headworks.core.types import Row

if TYPE_CHECKING:
    from headworks.core.pool import Pool

CLOSED = "class_gate"
FRESH_S = 10.0
FIRST_TOKENS_MIN, FIRST_TOKENS_MAX = 5, 256
PERCENTILE_RATIO = 0.95


class FirstTokens:
    """What the clients of one class in one pool waited for a first token, of late."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=FIRST_TOKENS_MAX)

    def add(self, took_s: float, now_s: float) -> None:
        """A first token came, so long after its request."""
        self._seen.append((now_s, took_s))

    def slow_s(self, now_s: float) -> float | None:
        """The 95th percentile of the last `FRESH_S`; None of too few."""
        seen = self._seen
        while seen and now_s - seen[0][0] > FRESH_S:
            seen.popleft()
        if len(seen) < FIRST_TOKENS_MIN:
            return None
        took_s = sorted(took for _, took in seen)
        return took_s[-int(-PERCENTILE_RATIO * len(took_s) // 1) - 1]


class ClassGates:
    """The gates of one class in one pool."""

    __slots__ = ("_policy", "_pool", "_scope", "first_tokens")

    def __init__(self, service_class: str, policy: GatePolicy, pool: Pool) -> None:
        self._policy = policy
        self._pool = pool
        self._scope = f"class:{service_class}"
        self.first_tokens = pool.first_tokens.setdefault(service_class, FirstTokens())

    def rows(self, now_s: float) -> list[Row]:
        """What each gate compares, where there is something to compare."""
        policy, found = self._policy, list[Row]()
        if policy.waiting_requests is not None:
            waiting = self._pool.queue.requests + sum(one.waiting(now_s) for one in self._pool.replicas.values())
            found.append(("fairness", self._scope, waiting, policy.waiting_requests, "requests waiting", CLOSED))
        if policy.ttft_p95_s is not None:
            slow_s = self.first_tokens.slow_s(now_s)
            if slow_s is not None:
                found.append(("fairness", self._scope, slow_s, policy.ttft_p95_s, "s to 95 of 100 first tokens", CLOSED))
        if policy.compute_ratio is not None:
            compute, source = compute_of(self._pool, now_s)
            if compute is not None:
                found.append(("compute", self._scope, compute, policy.compute_ratio, f"compute_ratio by {source}", CLOSED))
        return found
