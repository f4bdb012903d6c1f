"""Who is refused before what is asked for is read: whatever that is, its tenant has used up what it may (A2, B5, B15).

Somebody over his rate who goes on asking must not cost what a request costs. So once one of a client's requests has been
refused for such a reason, its next ones are looked at here first: by the same buckets, quota and retry budget, for as little
as any request can ask for. If not even that may be, it is turned away with the numbers of its tenant and, beside them, those
of its pool. If it may be, it is read and looked at like any other, and so are the next ones.

Nothing that may run is changed here, so this is no event: it is asked and answered at once, as `considering` is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headworks.core import metering
from headworks.core.checks import POOL_FULL
from headworks.core.decide import AT_ONCE
from headworks.core.effects import TurnedAway
from headworks.core.life import Life
from headworks.core.tenant import FROZEN, RATE
from headworks.core.types import LIMIT, VALUE, Forecast, Request, Row, Work

if TYPE_CHECKING:
    from headworks.core.changes import Changes
    from headworks.core.desk import Desk
    from headworks.core.lane import Lane
    from headworks.core.refusing import Refusing

LEAST = Work(1, 1, 1, 0.0, 1, 0, "unread")
"""What any request asks for, and more."""
NOT_FORESEEN = Forecast(None, 0.0, None, None, None, 1.0, "unread")


class TurningAway:
    """At the gate's desk, before its door."""

    def __init__(self, desk: Desk, changes: Changes, refusing: Refusing) -> None:
        self._desk = desk
        self._changes = changes
        self._shut = refusing.shut

    def turn_away(self, request: Request, now_s: float) -> TurnedAway | None:
        """The refusal of a request of which only the size is known. None: it has to be read.

        For a client in `Refusing.shut`, with no key of its own and in no session: for a key that is repeated there may be an
        answer, and what a session holds has been drawn already.
        """
        desk = self._desk
        lane = desk.lane(request.key.tenant, request.service_class, request.pool)
        closed = self._changes.closed_to(lane, now_s)
        if lane.observes or closed not in ("", FROZEN) or not lane.metered or not self._is_used_up(lane, request, now_s):
            self._shut.pop(request.client, None)
            return None
        desk.arrivals += 1
        life = Life(request, desk.arrivals, lane, self._work(lane, request, now_s), NOT_FORESEEN)
        life.rows = rows = metering.arrived(life, now_s)
        reason = _hardest(rows)
        rows += _of_pool(lane, life.work)
        decision = desk.decider.decision(life, "refuse", reason, now_s)
        return TurnedAway(decision, request, "over_budget" if reason == metering.RETRIES else life.retry_kind)

    def _is_used_up(self, lane: Lane, request: Request, now_s: float) -> bool:
        """Not even the least may be."""
        return any(row[VALUE] > row[LIMIT] for row in metering.foreseen_of(lane, request, LEAST, now_s))

    def _work(self, lane: Lane, request: Request, now_s: float) -> Work:
        """What it likely asks for, where that is drawn on something or keeps a slot; else nobody need know."""
        tenant = lane.tenant
        client = tenant.client(request.client, now_s)
        if tenant.quota is None and tenant.rate.tokens is None and client.rate.tokens is None and not request.retry_count:
            return LEAST
        return self._desk.decider.estimator.work(request, lane.pool, lane.tenant_policy)


def _hardest(rows: list[Row]) -> str:
    """Of the checks that failed, the one that is told."""
    told, rank = RATE, len(AT_ONCE)
    for _, _, value, limit, _, reason in rows:
        if value > limit and reason in AT_ONCE and AT_ONCE.index(reason) < rank:
            told, rank = reason, AT_ONCE.index(reason)
    return told


def _of_pool(lane: Lane, work: Work) -> list[Row]:
    """What its pool would have said: a tenant's limit is never mistaken for a full pool."""
    pool, scope = lane.pool, lane.pool_scope
    rows: list[Row] = []
    if pool.tokens_max is not None:
        rows.append(("memory", scope, pool.tokens + work.kv_tokens, pool.tokens_max, "tokens", POOL_FULL))
    rows.append(("compute", scope, pool.requests + work.sequences, pool.requests_limit(), "requests", POOL_FULL))
    return rows
