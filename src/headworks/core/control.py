"""Once a look at an engine: its limit follows what was seen (B8), and its pool is weighed anew (B4, B9)."""

from __future__ import annotations

from headworks.core.policy import ClassPolicy
from headworks.core.pool import Pool
from headworks.core.replica import Replica

PROMISED_S = 600.0
"""A class that has not asked for so long promises nothing to anybody, until it asks again."""


def looked(pool: Pool, replica: Replica, classes: dict[str, ClassPolicy], now_s: float) -> None:
    """`replica` has just been sampled."""
    sample, limit = replica.sample, replica.limit
    running = sample.running if sample is not None else None
    if pool.queue.requests and replica.requests >= limit.value:
        limit.reached = True
    promise_s = token_promise_s(pool, classes, now_s)
    limit.look(running, replica.requests, replica.step_s, promise_s, now_s, replica.unread_tokens)
    pool.pressure.look(now_s)


def token_promise_s(pool: Pool, classes: dict[str, ClassPolicy], now_s: float) -> float | None:
    """The tightest promise on the tokens after the first, of the classes that ask here. All of them run in the same steps."""
    uses = pool.class_uses
    promises_s = [
        one.tpot_slo_s
        for one in classes.values()
        if one.tpot_slo_s is not None and (not uses or (one.name in uses and now_s - uses[one.name].asked_s <= PROMISED_S))
    ]
    return min(promises_s, default=None)
