"""Who is sent once more, after an engine did not take it or lost it (B15). What that may cost is `core/retrying.py`.

    nobody listened, or it was busy (E0)     sent again at once
    its connection broke, or it failed       *held*: its client waits for the proof that it has stopped, and is sent again then

Only who has been told nothing yet can be held, once, for as long as it could still start in time and for a lease and `PROOF_S`
at most: a new incarnation proves it within a second, counting what the engine never showed takes a lease, and what may not
come at all is not worth more of a client's time. It is charged all the while, so at no moment are there two of it. Who is held
pays its second try beforehand: more than there is credit for are told at once.

Where there is no credit or no time left, its class's cascade is asked before it is refused (E5). One that gave a key claims it
anew first, since the key belongs to the execution that did not run.
"""

from __future__ import annotations

from collections.abc import Callable

from headworks.core.changes import Changes
from headworks.core.course import OVERDUE_S, Course
from headworks.core.desk import Desk
from headworks.core.effects import Reply
from headworks.core.events import EngineLost, NotSent
from headworks.core.fallback import Fallback
from headworks.core.identity import Identity
from headworks.core.life import LEAVING, Life
from headworks.core.refusing import Refusing
from headworks.core.replica import AVOID_S

PROOF_S = 1.0
LOST = "upstream_lost"
UNTRIED = ("late", "gone")
"""What our own lease or the client kept back costs no credit."""


class SecondTries:
    """At the gate's desk: attempts that failed without an answer."""

    def __init__(
        self,
        desk: Desk,
        course: Course,
        changes: Changes,
        refusing: Refusing,
        identity: Identity,
        fallback: Fallback,
        to_its_place: Callable[[Life, float], None],
    ) -> None:
        self._desk = desk
        self._course = course
        self._changes = changes
        self._refusing = refusing
        self._identity = identity
        self._fallback = fallback
        self._to_its_place = to_its_place

    # nothing ran

    def not_sent(self, event: NotSent, now_s: float) -> None:
        """Nothing ran. A client that still waits gets another attempt while that can be on time, else an answer."""
        life = self._course.not_sent(event, now_s)
        if life is None:
            return
        pool = life.lane.pool
        if event.reason == "busy":
            self._desk.wake(pool.sent_back(None, event.reason, now_s))
        if self._in_time(life, now_s) and (event.reason in UNTRIED or self._may_try(life)):
            self.again(life, now_s)
        else:
            self._elsewhere(life, life.end_reason or "queue_timeout", now_s)

    @staticmethod
    def _may_try(life: Life) -> bool:
        return life.lane.service_class.tries_again and life.lane.pool.retries.spend()

    def _in_time(self, life: Life, now_s: float) -> bool:
        return now_s < life.start_by_s and not self._changes.closed(life.lane.pool, now_s, life.lane.observes)

    def _elsewhere(self, life: Life, reason: str, now_s: float) -> None:
        """What its class has consented to in place of a refusal, if that can be had now."""
        if life.lane.cascade is None or (life.claim and now_s >= life.start_by_s):
            self._refusing.refuse(life, reason, now_s)
            return
        heir = self._heir(life)
        heir.end_reason = reason
        if life.claim:
            self._identity.claim(heir, now_s)
        else:
            self.claimed(heir, now_s)

    def claimed(self, heir: Life, now_s: float) -> None:
        """It may be answered from elsewhere now, and from nowhere else."""
        reason, heir.end_reason = heir.end_reason, ""
        if not self._fallback.instead(heir, reason, now_s, at_once=True):
            self._refusing.turn_away(heir, reason, now_s)

    def again(self, life: Life, now_s: float) -> None:
        """The same arrival at its old place, as a new attempt; the old one is only settled any more."""
        heir = self._heir(life)
        if life.claim:
            self._identity.claim(heir, now_s)
        else:
            self._to_its_place(heir, now_s)

    def _heir(self, life: Life) -> Life:
        """A new attempt, with everybody who waits for it."""
        heir = Life(life.request, life.number, life.lane, life.work, life.forecast)
        heir.rows, heir.start_by_s, heir.blocked_by = life.rows, life.start_by_s, life.end_reason
        heir.waits_from_s = life.waits_from_s
        heir.subscribers, life.subscribers = life.subscribers, []
        heir.sharers, life.sharers = life.sharers, None
        heir.drawn, life.drawn, heir.retry_kind = life.drawn, (), life.retry_kind
        heir.variant, heir.decision, heir.told_s = life.variant, life.decision, life.told_s
        heir.was_held = life.was_held
        life.reported = True
        for arrival in heir.subscribers:
            self._desk.lives[arrival] = heir
        return heir

    # it may have run

    def lost(self, event: EngineLost, now_s: float) -> None:
        """Its answer will not come. A client that has been told nothing waits for the proof, or is told so now."""
        left = self._desk.runs.get(event.execution)
        life = self._course.lost(event, now_s)
        if life is None and left is not None and left.state == LEAVING and event.unheard and not left.is_held:
            self._tell(left, now_s)  # its abort came in the same turn, when there was no connection left to tell it by
        if life is None or not event.unheard or not life.wanted:
            return
        pool, until_s = life.lane.pool, min(life.start_by_s, now_s + self._desk.policy.lease_s + PROOF_S)
        sent_again = now_s < until_s and not life.was_held and pool.spill is None and not self._changes.draining
        if sent_again and self._may_try(life):
            life.is_held = life.was_held = True
            self._desk.set_timer(life, until_s)
        else:
            self._tell(life, now_s)

    def held_too_long(self, life: Life, now_s: float) -> None:
        """No proof in time, or the ledger has not heard of it yet. It stays charged until then."""
        self._let_go(life)
        if life.wanted:
            self._tell(life, now_s)
        if life.evidence:
            self._course.report(life, now_s)
        else:
            self._desk.set_timer(life, (life.leaving_s or now_s) + OVERDUE_S)

    def proved(self, life: Life, now_s: float) -> None:
        """One that is held has stopped, with evidence."""
        if life.wanted and self._in_time(life, now_s):
            life.is_held = False
            if life.replica is not None:
                life.replica.avoid_until_s = max(life.replica.avoid_until_s, now_s + AVOID_S)
            self.again(life, now_s)
            return
        self._let_go(life)
        if life.wanted:
            self._tell(life, now_s)
        self._course.report(life, now_s)

    def _let_go(self, life: Life) -> None:
        life.is_held = False
        life.lane.pool.retries.give_back()

    def _tell(self, life: Life, now_s: float) -> None:
        """Everybody who waits for it learns that it broke off; how it ended is reported with the evidence."""
        decision = self._desk.decider.decision(life, "refuse", LOST, now_s)
        for arrival in life.subscribers:
            self._desk.effect(Reply(arrival, decision))
