"""Turning arrivals away: the answer, the record, and the way out of the queue or of an ask.

Every refusal of the gate goes through here, so that each arrival gets one answer and one outcome, and none without the
verdicts that decided.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from headworks.core.book_sessions import CALLS
from headworks.core.commands import CloseSession, Shortfall, Stop
from headworks.core.course import Course
from headworks.core.decide import NEVER
from headworks.core.desk import Desk
from headworks.core.effects import Reply
from headworks.core.floors import RESERVED
from headworks.core.forecast import saw_nothing
from headworks.core.last_moment import before_telling, start_by_s
from headworks.core.life import ASKED, CLAIMING, QUEUED, Life
from headworks.core.metering import WHILE_FROZEN
from headworks.core.policy import INFINITE_S
from headworks.core.quota import GONE, PREFIX, shortfall_rows
from headworks.core.reading import SATURATED
from headworks.core.reasons import REASONS
from headworks.core.session_use import EXHAUSTED
from headworks.core.tenant import FROZEN, RATE
from headworks.core.types import READ_UNITS, Usage
from headworks.core.unread import has_read

EXPIRES_AS = frozenset(
    {
        *("tenant_capacity_exceeded", "kv_saturation", "compute_saturation", SATURATED, RESERVED, "queue_timeout"),
        *("breaker_open", EXHAUSTED),
    }
)
"""What kept it waiting can be the answer; anything else that did is reported as time that ran out."""
FOR_WANT_OF = frozenset({"pool", "engine"})
"""Whose fault a refusal is that more engines would have spared: such work is demand (F4)."""

USED_UP = frozenset({FROZEN, GONE, RATE})
"""What the next request of the same client will most likely be refused for, whatever it asks."""
SHUT_MAX = 10_000
"""Clients that are looked at before they are read; of more, those that were refused longest ago are read."""
LATE_S = 1e-9
"""Its time ran out to the instant: by this much it is past its limit, so that the comparison in the record holds."""


def blocked_by(shortfalls: Sequence[Shortfall]) -> str:
    """The reason code of what the ledger lacked for it."""
    if any(short.scope.startswith("tenant:") for short in shortfalls):
        return "tenant_capacity_exceeded"
    if any(short.scope.startswith(CALLS) for short in shortfalls):
        return EXHAUSTED
    if shortfalls and all(short.unit in READ_UNITS for short in shortfalls):
        return SATURATED
    return "queue_timeout"


NO_LONGER = (FROZEN, "request_exceeds_capacity", "insufficient_quota", "tenant_capacity_exceeded")
"""Refusals by a new policy that reach what waits already. It has drawn on its rates, so they do not concern it any more."""


class Refusing:
    """At the gate's desk: who does not run."""

    def __init__(self, desk: Desk, course: Course) -> None:
        self._desk = desk
        self._course = course
        self.shut: OrderedDict[str, None] = OrderedDict()
        """Clients one of whose requests was refused for what they have used up (`core/turning_away.py`), the last one last."""

    def turn_away(self, life: Life, reason: str, now_s: float, outcome: str = "refused", usage: Usage | None = None) -> None:
        """Refuse something of which nothing is charged."""
        self._desk.move(life, "refused_for_good")
        if life.claim:
            self.give_back_key(life, now_s)
        self.refuse(life, reason, now_s, outcome, usage)

    def give_back_key(self, life: Life, now_s: float) -> None:
        """Refusals are not kept (A6): its key is free again. Nothing was sent for it, and asked until that is heard.

        Not a cancel: should the ledger have charged it after all, by an ask that came twice, that must be freed too.
        """
        self._desk.ask(life, Stop(life.claim, self._desk.owner, "E0", "cancelled", None), now_s)

    def never(self, life: Life, shortfalls: tuple[Shortfall, ...], now_s: float) -> None:
        """The ledger says that it asks for more than a whole limit: no waiting cures that (K08)."""
        for short in shortfalls:
            if short.scope.startswith(CALLS):
                life.rows.append(("tenant", short.scope, short.value, short.limit, short.unit, EXHAUSTED))
                self.turn_away(life, EXHAUSTED, now_s)
                return
        for short in shortfalls:
            if not short.scope.startswith(PREFIX):
                check = "tenant" if short.scope.startswith("tenant:") else "memory"
                life.rows.append((check, short.scope, short.value, short.limit, short.unit, NEVER))
        life.rows += shortfall_rows(shortfalls, NEVER)
        self.turn_away(life, NEVER, now_s)

    def quota_gone(self, life: Life, shortfalls: Sequence[Shortfall], now_s: float) -> None:
        """The ledger refused it for a period's quota, which no waiting cures; or for what may be spent on a spill."""
        purse = life.lane.pool.spill
        if purse is not None and any(short.scope == purse.quota.scope for short in shortfalls):
            purse.spent_s = now_s  # its tenant can do nothing about that, and nobody's budget but the operator's is used up
            self.turn_away(life, "queue_timeout", now_s)
            return
        life.rows += shortfall_rows(shortfalls, GONE)
        self.turn_away(life, GONE, now_s)

    def refuse(self, life: Life, reason: str, now_s: float, outcome: str = "refused", usage: Usage | None = None) -> None:
        """The answer to everybody who waits for it, and the record. What may be charged is settled elsewhere."""
        desk = self._desk
        life.end_reason = reason
        if REASONS[reason].scope in FOR_WANT_OF:
            self._denied(life, now_s)
        elif reason in USED_UP:
            self.shut[life.request.client] = None
            self.shut.move_to_end(life.request.client)
            if len(self.shut) > SHUT_MAX:
                self.shut.popitem(last=False)
        decision = desk.decider.decision(life, "refuse", reason, now_s)
        desk.record(decision)
        self._course.report(life, now_s, outcome)
        for arrival in life.subscribers:
            desk.lives.pop(arrival, None)
            desk.effect(Reply(arrival, decision, usage))
        life.subscribers = []

    def _denied(self, life: Life, now_s: float) -> None:
        """There was no room for it: work without a promise gives way (`core/shares.py`), and more engines are wanted (F4)."""
        lane = life.lane
        if lane.use is not None:
            lane.use.denied_s = now_s
        if not life.request.retry_count:
            lane.pool.pressure.refused(life.work.tokens)

    def served(self, life: Life, now_s: float, outcome: str = "replayed") -> None:
        """Everybody who waits for it gets an answer for which nothing ran."""
        self._course.report(life, now_s, outcome)

    def gone(self, life: Life, now_s: float) -> None:
        """The last one that waited for it has left."""
        if life.state in (CLAIMING, QUEUED):
            if life.state == QUEUED:
                self.unqueue(life)
                saw_nothing(life, now_s)
            self._desk.move(life, "gone")
            if life.claim:
                self.give_back_key(life, now_s)
            self._course.report(life, now_s)
        elif life.state == ASKED:
            self.unask(life, "gone", "cancelled", now_s)
            self._course.report(life, now_s)
        else:
            self._course.client_gone(life, now_s)

    def make_room(self, life: Life, now_s: float) -> None:
        """A full queue lets its oldest go for the newcomer: the newest still have their time."""
        lane, queue = life.lane, life.lane.pool.queue
        if queue.of_class(lane.service_class.name).requests >= lane.queue_max:
            own = (line.first() for line in queue.lines.values() if line.flow[0] == lane.flow[0])
            oldest = min(own, key=lambda waiting: waiting.number)
            self.unqueue(oldest)
            self.turn_away(oldest, "queue_full", now_s)

    def unqueue(self, life: Life) -> None:
        pool = life.lane.pool
        pool.queue.remove(life)
        pool.unqueued(life.request.service_class)

    def drop_run(self, life: Life) -> None:
        """Nothing of this attempt is charged: forget its execution."""
        self._desk.runs.pop(life.execution.id, None)
        self._desk.let_go(life)
        if life.replica is not None:  # if it was asked for, and not sent
            has_read(life, life.replica)
        life.ask = None
        if life.turn_tokens:
            life.lane.pool.queue.correct(life, life.used_tokens())

    def not_now(self, life: Life, now_s: float) -> None:
        """The ledger did not charge it: back to its place in the queue, for as long as it may wait."""
        self.drop_run(life)
        self._desk.move(life, "not_now")
        self.wait_again(life, now_s)

    def wait_again(self, life: Life, now_s: float) -> None:
        """At its place in the queue, unless its tenant was frozen while it was on its way (F13)."""
        if life.lane.tenant.policy.frozen:
            self.frozen(life, now_s)
            return
        before = life.lane
        self.stand_anew(life, now_s)
        life.lane.pool.queue.add(life)
        self._desk.set_timer(life, life.start_by_s)
        if life.lane is not before:  # as what waited when the policy changed
            self.judge_anew(life, now_s)

    def judge_anew(self, life: Life, now_s: float) -> None:
        """By today's policy: what no waiting can let in any more is told so."""
        desk = self._desk
        life.rows = desk.decider.judge(life, now_s)
        if life.lane.observes:
            return
        refusal = desk.decider.refusal(life, desk.disciplines[life.lane.pool.name], now_s)
        if refusal in NO_LONGER:
            self.unqueue(life)
            self.turn_away(life, refusal, now_s)

    def stand_anew(self, life: Life, now_s: float) -> None:
        """It waits by today's policy, whichever it came under. Who was observed may wait from now on as long as its class."""
        request, before = life.request, life.lane
        lane, was_observed = self._desk.lane(request.key.tenant, request.service_class, before.pool.name), before.observes
        if before.session_scope:  # decided about with its opening, and that keeps its own
            before.observes = was_observed and lane.observes
        elif lane is not before:
            life.lane = lane
        if life.lane.observes:
            life.start_by_s = INFINITE_S
        elif was_observed and self._desk.disciplines[lane.pool.name].drops_late:
            life.waits_from_s = now_s
            life.start_by_s = start_by_s(life, life.forecast.prefill_s)
        else:
            return
        self._desk.set_timer(life, life.start_by_s)

    def frozen(self, life: Life, now_s: float) -> None:
        """Nothing is charged for it, and its tenant gets nothing new."""
        life.rows.append(("tenant", life.lane.tenant_scope, 1, 0, WHILE_FROZEN, FROZEN))
        self.turn_away(life, FROZEN, now_s)

    def unask(self, life: Life, what: str, end: str, now_s: float) -> None:
        """Take back what was asked for: nothing was sent and nothing will be, whatever the ledger has answered."""
        self._desk.move(life, what)
        self._desk.set_timer(life, INFINITE_S)
        self._desk.ask(life, Stop(life.execution.id, self._desk.owner, "E0", end, None), now_s)
        if life.lane.opens is not None:  # should it be open by now: nobody will ever use it
            self._desk.command(CloseSession(life.lane.session_scope))

    def expire(self, life: Life, now_s: float) -> None:
        """It can no longer start in time. The client learns which limit kept it waiting (A2, B6)."""
        if life.state == QUEUED and before_telling(life, now_s):
            self._desk.set_timer(life, life.start_by_s)
            return
        pool = life.lane.pool
        reason = life.blocked_by if life.blocked_by in EXPIRES_AS else "queue_timeout"
        limit_s = max(0.0, life.start_by_s - life.request.arrived_s)
        waited_s = max(now_s - life.request.arrived_s, limit_s + LATE_S)
        life.rows = self._desk.decider.judge(life, now_s)
        life.rows.append(("time", f"pool:{pool.name}", waited_s, limit_s, "s waited", "queue_timeout"))
        saw_nothing(life, now_s)
        if life.state == QUEUED:
            self.unqueue(life)
            self.turn_away(life, reason, now_s, outcome="expired")
        else:
            self.unask(life, "too_late", "failed", now_s)
            self.refuse(life, reason, now_s, outcome="expired")
