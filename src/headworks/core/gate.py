"""The gate: it knows everything about who may run, and nothing about sockets, clocks or stores.

    gate.handle(event, now_s) -> effects

The methods stand in the order of a request's life: it arrives, waits, is asked for, granted and sent; what happens to it
then is `core/course.py`; the gateway's own standing with the ledger is `core/boot.py`. `_pump` is the one door: whatever
may have made room leads there, and nothing else asks the ledger for capacity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headworks.core import events, metering
from headworks.core.boot import Boot
from headworks.core.changes import Changes
from headworks.core.commands import ENDS_OTHERS, Answer, Reserve
from headworks.core.considering import Considering
from headworks.core.course import Course
from headworks.core.desk import Desk
from headworks.core.disciplines import Discipline, Round
from headworks.core.effects import Effect
from headworks.core.fallback import LAST_S, Fallback, shaped
from headworks.core.identity import NOTHING, Identity
from headworks.core.life import ASKED, CLAIMING, LEAVING, QUEUED, UNASKED, Life
from headworks.core.policy import INFINITE_S, Policy
from headworks.core.pool import Pool
from headworks.core.preempt import Preempting
from headworks.core.refusing import Refusing
from headworks.core.second_tries import SecondTries
from headworks.core.session import Sessions
from headworks.core.snapshot import audit, snapshot, tenant_use
from headworks.core.turning_away import TurningAway
from headworks.core.types import Execution, Owner, Reservation


class Gate:
    """Admission for one gateway: give it facts, perform what it answers. `utc_offset_s`: Unix time less `now_s`'s clock."""

    def __init__(self, policy: Policy, gateway: str, seed: bytes, boot: str, utc_offset_s: float = 0.0) -> None:
        self._desk = Desk(policy, Owner(gateway, boot), seed, utc_offset_s)
        self._course = Course(self._desk)
        self._preempting = Preempting(self._desk, self._course.leave)
        self._boot = Boot(self._desk)
        self._refusing = Refusing(self._desk, self._course)
        self._identity = Identity(self._desk, self._course, self._boot, self._refusing)
        self._changes = Changes(self._desk, self._course, self._boot, self._refusing, self._identity)
        self._fallback = Fallback(self._desk, self._changes, self._refusing, self._reserve, self._wait)
        self._tries = SecondTries(
            self._desk, self._course, self._changes, self._refusing, self._identity, self._fallback, self._to_its_place
        )
        go_on = self._reserve, self._wait, self._pump
        self._sessions = Sessions(self._desk, self._changes, self._refusing, self._identity, self._boot, *go_on)
        considering = Considering(self._desk, self._changes, self._sessions, self._boot)
        self.consider = considering.consider
        """What a request would be told if it came now (`core/considering.py`)."""
        self.turn_away, self.shut = TurningAway(self._desk, self._changes, self._refusing).turn_away, self._refusing.shut
        self.left, self.unsure, self.estimates = self._desk.left, self._desk.unsure, self._desk.decider.estimator.standing
        """For looking in, as `snapshot` below."""
        self._handlers: dict[type[Any], Callable[[Any, float], None]] = {
            events.Arrived: self._on_arrived,
            events.ClientGone: self._on_client_gone,
            events.Attached: self._on_attached,
            events.LedgerAnswered: self._on_ledger_answered,
            events.NotSent: self._tries.not_sent,
            events.FirstByte: self._then_pump(self._course.first_byte),
            events.Stopped: self._course.stopped,
            events.EngineLost: self._tries.lost,
            events.Evidence: self._course.evidence,
            events.ReplicaDescribed: self._then_pump(self._changes.described),
            events.ReplicaSampled: self._then_pump(self._changes.sampled),
            events.Freed: self._then_pump(self._changes.freed),
            events.Tick: self._on_tick,
            events.PolicyChanged: self._on_policy_changed,
            events.CloseAsked: self._sessions.close,
            **(self._changes.handlers() | {events.PassedBy: considering.passed_by}),
        }

    def handle(self, event: events.Event, now_s: float) -> list[Effect]:
        """Take one event in. Must not be called again from within the performing of its effects."""
        self._handlers[type(event)](event, now_s)
        return self._desk.leave()

    # arriving

    def _on_arrived(self, event: events.Arrived, now_s: float) -> None:
        desk, request = self._desk, event.request
        if request.key_given and self._identity.claims_first(request, now_s):
            return
        if request.session is not None and self._sessions.arrived(request, now_s):
            return
        lane = desk.lane(request.key.tenant, request.service_class, request.pool)
        discipline, variant = desk.disciplines[request.pool], None
        if lane.cascade is not None and lane.cascade.level:
            request, variant = shaped(request, lane.cascade.in_force())
        desk.arrivals += 1
        life, free = desk.decider.look(request, desk.arrivals, lane, discipline, now_s)
        life.variant = variant
        desk.lives[request.id] = life
        if request.key_given:
            self._identity.take_up(life)
        if free and now_s < self._boot.open_until_s and not self._changes.draining:
            if lane.metered:
                metering.let_in(life, now_s)
            self._reserve(life, now_s)
            return
        closed = self._changes.closed_to(lane, now_s)
        refusal = closed or self._preempting.refusal(life, discipline, now_s)
        if refusal and lane.cascade is not None and self._fallback.instead(life, refusal, now_s):
            return
        if not refusal and lane.metered:
            metering.let_in(life, now_s)
        if lane.observes and not closed:
            self._let_through(life, refusal, now_s)
        elif refusal:
            self._refusing.turn_away(life, refusal, now_s)
        else:
            self._wait(life, discipline, now_s)

    def _let_through(self, life: Life, refusal: str, now_s: float) -> None:
        """Observe mode: write down what would have been decided, and run it all the same (F3)."""
        if refusal:
            life.decision = self._desk.decider.decision(life, "refuse", refusal, now_s)
            self._desk.record(life.decision)
        life.replica = life.lane.pool.least_used(now_s)
        self._reserve(life, now_s)

    # waiting

    def _wait(self, life: Life, discipline: Discipline, now_s: float) -> None:
        """Into the queue, and through the door at once if it can be reached."""
        pool = life.lane.pool
        if discipline.drops_oldest:
            self._refusing.make_room(life, now_s)
        pool.queue.add(life)
        if pool.is_full:
            life.blocked_by = "queue_timeout" if life.lane.tenant_fits(life.work) else "tenant_capacity_exceeded"
        self._pump(pool, now_s)
        if life.state == QUEUED:
            self._desk.set_timer(life, life.start_by_s - (LAST_S if life.lane.cascade is not None else 0.0))
            life.decision = self._desk.decider.decision(life, "queue", life.blocked_by, now_s)
            self._desk.record(life.decision)

    def _on_client_gone(self, event: events.ClientGone, now_s: float) -> None:
        life = self._desk.lives.pop(event.id, None)
        if life is None:
            return
        life.subscribers.remove(event.id)
        if life.sharers:
            self._identity.left(life, event.id, now_s)
        self._if_unwanted(life, now_s)

    def _on_attached(self, event: events.Attached, now_s: float) -> None:
        life = self._identity.attached(event, now_s)
        if life is not None:
            self._if_unwanted(life, now_s)

    def _if_unwanted(self, life: Life, now_s: float) -> None:
        if not life.subscribers and life.stops_unwanted():
            self._refusing.gone(life, now_s)
            self._pump(life.lane.pool, now_s)

    # the one door

    def _pump(self, pool: Pool, now_s: float) -> None:
        """Ask the ledger for whoever is next, until nobody waits or nothing more fits."""
        desk = self._desk
        turn = Round(pool, desk.disciplines[pool.name], desk.owner, now_s)
        while self._boot.open(now_s) and pool.asks_again_s <= now_s:
            life = turn.next()
            desk.tell(turn.commands)
            if life is None:
                pool.queue.asks.close()
                self._preempting.look(pool, now_s)
                return
            if now_s > life.start_by_s:
                self._fallback.expire(life, now_s)
                continue
            pool.queue.remove(life)
            self._reserve(life, now_s)

    def _reserve(self, life: Life, now_s: float) -> None:
        """Ask the ledger to charge it, at its place and in its flow's turn."""
        desk, lane, replica = self._desk, life.lane, life.replica
        desk.move(life, "picked")
        assert replica is not None
        life.execution = execution = Execution(life.claim or desk.mint(), replica.name)
        desk.runs[execution.id] = life
        desk.take(life)
        replica.asked(life, now_s)
        charges = lane.charges(life.work, replica.scope)
        if lane.metered:
            charges = (*charges, *self._boot.quota_charges(life, now_s))
        queue = lane.pool.queue
        if queue.asks.is_short and lane.session is None:  # a call takes nobody's turn
            queue.asks.asked(lane.turn, now_s)
        behind = queue.serve(life, now_s) if queue.requests and lane.share is not None else queue
        if life.work.prefill_tokens >= replica.reading.from_tokens:
            charges = (*charges, *desk.begin_reading(life, replica))
        command = Reserve(
            execution.id,
            life.request.key if life.claim else None,
            life.request.fingerprint,
            desk.owner,
            lane.pool.name,
            replica.name,
            lane.turn,
            lane.weights,
            life.work.tokens,
            charges,
            behind.tokens,
            behind.requests > 0,
            lane.policy_version,
            lane.pool.slots.tokens,
            lane.session_scope,
            lane.opens,
        )
        desk.ask(life, command, now_s)

    def _on_ledger_answered(self, event: events.LedgerAnswered, now_s: float) -> None:
        for answer in event.answers:
            self._answered(answer, now_s)
        self._boot.saw(event.answers[-1].sequence, now_s)

    def _answered(self, answer: Answer, now_s: float) -> None:
        life = self._desk.runs.get(answer.execution) if answer.execution else None
        if answer.verb == "reserve":
            if life is not None:
                self._on_reserve_answered(life, answer, now_s)
        elif answer.verb == "claim":
            self._on_claim_answered(answer, now_s)
        elif life is not None:
            again = answer.verb == "reassert"
            if self._changes.told_again(life, answer, now_s) if again else self._course.answered(life, answer, now_s):
                self._ended(life, now_s)
        else:
            self._on_standing_answered(answer, now_s)

    def _on_claim_answered(self, answer: Answer, now_s: float) -> None:
        """It holds its key now: an arrival begins here, a second attempt goes back to its place."""
        life = self._identity.answered(answer, now_s)
        if life is not None and life.work is NOTHING:
            self._on_arrived(events.Arrived(life.request), now_s)
        elif life is not None:
            self._desk.move(life, "claimed")
            if life.end_reason:
                self._tries.claimed(life, now_s)
                return
            self._to_its_place(life, now_s)

    def _on_reserve_answered(self, life: Life, answer: Answer, now_s: float) -> None:
        if life.state != ASKED:
            return  # taken back meanwhile: its stop is on the way, whatever this answer says
        self._desk.heard(life)
        pool = life.lane.pool
        if answer.outcome in ("granted", "recorded"):
            self._granted(life, pool, now_s)
            return
        if answer.outcome == "never":
            self._refusing.drop_run(life)
            self._refusing.never(life, answer.shortfalls, now_s)
        elif answer.outcome == "opened" or (answer.outcome == "dead" and life.lane.opens is not None):
            self._sessions.opened(life, answer, now_s)
        elif answer.outcome == "refused" and metering.by_quota(answer.shortfalls):
            self._refusing.drop_run(life)
            self._refusing.quota_gone(life, answer.shortfalls, now_s)
        elif answer.outcome == "dead":
            # Its grant may have been made and forgotten by us for too long: settle that, and try as another execution.
            self._refusing.unask(life, "gone", "failed", now_s)
            self._tries.again(life, now_s)
        else:
            self._not_now(life, pool, answer, now_s)
            return
        if life.lane.session is None and pool.queue.asks.settled(life.lane.turn):
            self._pump(pool, now_s)

    def _granted(self, life: Life, pool: Pool, now_s: float) -> None:
        desk = self._desk
        if now_s > life.start_by_s:
            self._refusing.expire(life, now_s)
            return
        desk.move(life, "granted")
        pool.granted(life, now_s)
        decision = desk.decider.decision(life, "admit", "", now_s)
        desk.record(decision)
        self._course.granted(life, decision, self._boot.open_until_s, now_s)
        takes_turns = life.lane.session is None and (life.turn_tokens > 0 or pool.queue.asks.is_short)
        if takes_turns and pool.queue.go_on(life.lane.turn, now_s):
            self._pump(pool, now_s)

    def _not_now(self, life: Life, pool: Pool, answer: Answer, now_s: float) -> None:
        """Refused for now, another flow's turn, or our lease has lapsed: back to its place in the queue."""
        self._refusing.not_now(life, now_s)
        if answer.outcome == "fenced":
            self._boot.fenced(now_s)
        elif self._changes.sent_back(life, answer, now_s):
            self._pump(pool, now_s)

    # after the grant

    def _to_its_place(self, life: Life, now_s: float) -> None:
        self._refusing.wait_again(life, now_s)
        self._pump(life.lane.pool, now_s)

    def _ended(self, life: Life, now_s: float) -> None:
        """The ledger has let go of it: now, and not before, its place is free."""
        self._refusing.drop_run(life)
        if life.is_held:
            self._tries.proved(life, now_s)
        if life.claim:
            self._desk.claims.pop(life.claim, None)
        life.timer_s = INFINITE_S
        for arrival in life.subscribers:
            self._desk.lives.pop(arrival, None)
        pool = life.lane.pool
        if life.evidence != "E0":  # a busy engine is not less busy for having refused
            pool.ask_at_once()
        if pool.queue.requests:
            self._pump(pool, now_s)

    # the ledger, time and policies

    def _on_standing_answered(self, answer: Answer, now_s: float) -> None:
        if answer.verb == "stop":
            self._identity.released(answer.execution)
        elif self._boot.answered(answer, now_s):
            self._pump_all(now_s)
        self._sessions.answered(answer, now_s)
        for name, subject in answer.alarms:
            self._desk.alarm(name, subject, f"reported by the ledger on {answer.verb}")
        for record in answer.records if answer.verb in ENDS_OTHERS else ():
            self._ended_by_ledger(record, now_s)

    def _ended_by_ledger(self, record: Reservation, now_s: float) -> None:
        """Counting, a new incarnation or an operator has ended an execution: ours, or an orphan watched here."""
        self._boot.released(record)
        life = self._course.ended_by_ledger(record.execution, record.evidence, now_s)
        if life is not None:
            self._ended(life, now_s)

    def _on_tick(self, event: events.Tick, now_s: float) -> None:
        desk = self._desk
        desk.woken()
        self._boot.tick(now_s)
        self._sessions.tick(now_s)
        for life in desk.ask_late(now_s):
            self._refusing.expire(life, now_s)
        for life in desk.due(now_s):
            if life.state in (QUEUED, ASKED):
                self._fallback.expire(life, now_s)
            elif life.state == CLAIMING:
                self._identity.late(life, now_s)
            elif life.is_held:
                self._tries.held_too_long(life, now_s)
            elif life.state != UNASKED:
                self._course.due(life, now_s)
        asks_s = (pool.next_ask_s(now_s) for pool in desk.pools.values())
        for at_s in (*asks_s, self._boot.next_s(), self._changes.next_s()):
            desk.wake(at_s)
        self._changes.end_drain(now_s)
        self._changes.forget_withdrawn()
        self._pump_all(now_s)

    def _then_pump(self, handle: Callable[[Any, float], Pool | None]) -> Callable[[Any, float], None]:
        """What such an event does, and then whatever it made room for in the pool it names."""

        def handled(event: Any, now_s: float) -> None:
            if (pool := handle(event, now_s)) is not None:
                self._pump(pool, now_s)

        return handled

    def _pump_all(self, now_s: float) -> None:
        for pool in self._desk.pools.values():
            if pool.queue.requests:
                self._pump(pool, now_s)

    def _on_policy_changed(self, event: events.PolicyChanged, now_s: float) -> None:
        self._changes.reload(event.policy, now_s)
        self._pump_all(now_s)

    def drained(self) -> bool:
        """Nothing runs or waits here any more but what has to be proved stopped."""
        return all(life.state in (LEAVING, UNASKED) for life in self._desk.runs.values()) and not self._desk.lives

    def depart(self) -> list[Effect]:
        """The last turn: release the boot, so that what is left can be adopted at once."""
        self._boot.depart()
        return self._desk.leave()

    # looking in

    def snapshot(self, now_s: float, tenant: str | None = None) -> dict[str, Any]:
        """What there is, for people and metrics; or only what one tenant has, without looking at the others."""
        return snapshot(self._desk, self._boot, now_s) if tenant is None else tenant_use(self._desk, tenant)

    def check(self) -> list[str]:
        """Recompute every counter from its parts; a sentence for each that differs."""
        return audit(self._desk)
