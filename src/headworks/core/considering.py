"""What a request would be told if it came now, by the very code that would decide, with nothing taken (B1, `POST /admit`).

It is no promise: whoever comes next may take the room, and what is asked of the ledger only when it counts is not asked here.
What looking at a request leaves behind for the next one (that its class asked, that a limit was reached) is put back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headworks.core import metering
from headworks.core.effects import Judged
from headworks.core.events import PassedBy
from headworks.core.fallback import shaped
from headworks.core.types import LIMIT, VALUE, Decision, Request, Variant

if TYPE_CHECKING:
    from headworks.core.boot import Boot
    from headworks.core.changes import Changes
    from headworks.core.desk import Desk
    from headworks.core.life import Life
    from headworks.core.session import Sessions


class Considering:
    """At the gate's desk: looks and says."""

    def __init__(self, desk: Desk, changes: Changes, sessions: Sessions, boot: Boot) -> None:
        self._desk = desk
        self._changes = changes
        self._sessions = sessions
        self._boot = boot

    def consider(self, request: Request, now_s: float) -> Decision:
        """The decision it would get at its arrival. What a class's fallback would do in place of a refusal is not tried."""
        return self._considered(request, now_s)[1]

    def passed_by(self, event: PassedBy, now_s: float) -> None:
        """The same of one that runs elsewhere. What it may have, or has had, its rates will not see again."""
        life, decision = self._considered(event.request, now_s)
        if event.is_spent:
            metering.spent(life, now_s)
        elif decision.outcome != "refuse" or life.lane.observes:
            metering.let_in(life, now_s)
        if not event.is_spent:
            self._desk.record(decision)
        self._desk.effect(Judged(event.request.id, decision))

    def _considered(self, request: Request, now_s: float) -> tuple[Life, Decision]:
        desk = self._desk
        pool = desk.pools[request.pool]
        use = desk.lane(request.key.tenant, request.service_class, request.pool).use
        asked_s = use.asked_s if use is not None else 0.0
        reached = [(replica.limit, replica.limit.reached) for replica in pool.replicas.values()]
        life, free, refusal = self._look(request, now_s)
        for limit, was in reached:
            limit.reached = was
        if use is not None:
            use.asked_s = asked_s
        refusal = self._changes.closed_to(life.lane, now_s) or refusal
        if refusal:
            return life, desk.decider.decision(life, "refuse", refusal, now_s, counts=False)
        runs = free and now_s < self._boot.open_until_s
        return life, desk.decider.decision(life, "admit" if runs else "queue", "" if runs else life.blocked_by, now_s)

    def _look(self, request: Request, now_s: float) -> tuple[Life, bool, str]:
        desk, decider = self._desk, self._desk.decider
        lane = desk.lane(request.key.tenant, request.service_class, request.pool)
        if request.session is not None and not lane.observes:
            life, free = self._sessions.look(request, 0, now_s, counts=False)
        else:
            variant: Variant | None = None
            if lane.cascade is not None and lane.cascade.level:
                request, variant = shaped(request, lane.cascade.in_force())
            life, free = decider.look(request, 0, lane, desk.disciplines[request.pool], now_s, counts=False)
            life.variant = variant
        if life.lane.metered:
            life.rows[:0] = metering.foreseen(life, now_s)
            free = free and not any(row[VALUE] > row[LIMIT] for row in life.rows)
        if life.lane.session is not None:
            return life, free, self._sessions.refusal(life, now_s, counts=False)
        return life, free, decider.refusal(life, desk.disciplines[request.pool], now_s, counts=False)
