"""What changes around the requests: engines show themselves, the gateway drains, its policy is replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headworks.core import control
from headworks.core.book_table import RESERVED, TERMINAL
from headworks.core.boot import Boot
from headworks.core.commands import Answer, Start, Unmark
from headworks.core.course import Course
from headworks.core.desk import Desk
from headworks.core.disciplines import own_share
from headworks.core.effects import Forget
from headworks.core.events import (
    ClientSlow,
    Drain,
    EngineClosed,
    EngineSilent,
    Freed,
    LedgerLost,
    Progressed,
    ReplicaDescribed,
    ReplicaSampled,
    SampleFailed,
    StoreChanged,
    UsageRead,
)
from headworks.core.fair import ONE_FLOW, Flow
from headworks.core.identity import Identity
from headworks.core.lane import Lane
from headworks.core.life import ASKED, CLAIMING, RUNNING, SENT, Life
from headworks.core.policy import INFINITE_S, Policy
from headworks.core.pool import Pool
from headworks.core.refusing import Refusing, blocked_by
from headworks.core.replica import BROKEN, Replica
from headworks.core.reserves import EXCEEDED
from headworks.core.tenant import FROZEN

LOOK_S_MIN = 0.025
"""Looks cost the engine's front end time: not more often than this, however fast its clock runs."""


class Changes:
    """Drain and reload, at the gate's desk."""

    def __init__(self, desk: Desk, course: Course, boot: Boot, refusing: Refusing, identity: Identity) -> None:
        self._desk = desk
        self._course = course
        self._boot = boot
        self._refusing = refusing
        self._identity = identity
        self._until_s: float | None = None

    def handlers(self) -> dict[type[Any], Callable[[Any, float], None]]:
        """Events after which nobody new can start."""
        return {
            LedgerLost: self._boot.ledger_lost,
            StoreChanged: self.store_changed,
            Progressed: self._course.progressed,
            EngineSilent: self._course.silent,
            EngineClosed: self._course.closed,
            ClientSlow: self._course.client_slow,
            SampleFailed: self.sample_failed,
            UsageRead: self.usage_read,
            Drain: self.drain,
        }

    def freed(self, event: Freed, now_s: float) -> Pool | None:
        """The ledger says that something has ended there. Returns the pool that may have room now."""
        pool = self._desk.pools.get(event.pool)
        if pool is not None:
            pool.queue.asks.is_told = event.flow is not None
            self.go_first(pool, event.flow)
        return pool

    def sent_back(self, life: Life, answer: Answer, now_s: float) -> bool:
        """Not now, by the ledger. Whether others may be asked for all the same."""
        pool = life.lane.pool
        life.blocked_by, life.lacks = blocked_by(answer.shortfalls), answer.shortfalls
        turn = life.lane.turn if life.lane.session is None else None
        is_short = answer.outcome == "yield" or life.blocked_by == "queue_timeout"
        self._desk.wake(pool.sent_back(turn, answer.outcome, now_s, is_short))
        if answer.goes_first is not None:
            self.go_first(pool, answer.goes_first)
        return turn is not None

    def go_first(self, pool: Pool, flow: Flow | None) -> None:
        """By the ledger's word it is this flow's turn. If nothing of it waits here any more, nobody need wait for it."""
        queue = pool.queue
        if flow is None or flow in queue.lines or flow == ONE_FLOW:
            pool.ask_at_once(flow)
            return
        if flow not in queue.asks.paused:  # nothing of it is on its way either
            self._desk.command(Unmark(flow, pool.name, self._desk.owner))
        pool.ask_at_once()
        queue.asks.any()

    def described(self, event: ReplicaDescribed, now_s: float) -> Pool | None:
        """An engine said what it can hold. Returns the pool that may have room now."""
        capacity = event.capacity
        replica = self._boot.find_replica(capacity.replica)
        if replica is None:
            return None
        replica.capacity = capacity
        replica.progress_s = now_s
        pool = self._pool_of(replica)
        pool.learn_capacity()
        self._boot.watch_there(replica, now_s)
        if pool.reserves is not None and pool.reserves.is_cut:
            self._desk.alarm(EXCEEDED, pool.name, "more is reserved than the pool has: each reserve is cut in proportion")
        self._boot.put_limits()
        self._desk.observe(replica.name, now_s)
        return pool

    def sampled(self, event: ReplicaSampled, now_s: float) -> Pool | None:
        """One look at an engine: its gauges, and what they prove about executions that should have stopped."""
        sample = event.sample
        replica = self._boot.find_replica(sample.replica)
        if replica is None:
            return None
        pool = self._pool_of(replica)
        before_tokens = replica.tokens_max
        replica.sampled(sample, now_s)
        if replica.tokens_max != before_tokens:
            pool.learn_capacity()
        control.looked(pool, replica, self._desk.policy.classes, now_s)
        self._desk.cascades.weigh(pool, now_s)
        self._course.sampled(replica, sample, now_s)
        self._boot.sampled(replica, sample, now_s)
        unconfirmed = replica.closing or replica.unproved
        every_s = replica.policy.unconfirmed_every_s if unconfirmed else replica.policy.observe_every_s
        # Counted from its beginning, because proofs wait for the next one; but an engine whose looks take long gets a pause.
        next_s = max(now_s + every_s / 2, sample.begun_s + every_s)
        if replica.closing and replica.iteration_s:  # the instant at which the next proof can be complete, if that is sooner
            missing = min(proof.missing(sample) for proof in replica.closing.values())
            next_s = min(next_s, now_s + max(LOOK_S_MIN, missing * replica.iteration_s))
        self._desk.observe(replica.name, next_s)
        return pool

    def sample_failed(self, event: SampleFailed, now_s: float) -> None:
        """A look that failed says nothing about the engine, unless nobody listens there at all."""
        replica = self._boot.find_replica(event.replica)
        if replica is None:
            return
        if event.unreachable:
            replica.refused_connection(now_s)
        pool = self._pool_of(replica)
        pool.pressure.look(now_s)
        self._desk.cascades.weigh(pool, now_s)
        self._desk.observe(replica.name, now_s + replica.policy.observe_every_s)

    def _pool_of(self, replica: Replica) -> Pool:
        return self._desk.pools[replica.name.rsplit("/", 1)[0]]

    @property
    def draining(self) -> bool:
        return self._until_s is not None

    def closed(self, pool: Pool, now_s: float, observes: bool = False) -> str:
        """A reason to refuse that has nothing to do with the request. `observes`: a broken engine is tried all the same."""
        if self.draining:
            return "draining"
        if not self._boot.open(now_s):
            return "ledger_unavailable"
        states = [replica.state(now_s) for replica in pool.replicas.values()]
        if "ready" in states or (BROKEN in states and observes):
            return ""
        return BROKEN if BROKEN in states else "no_replica"

    def closed_to(self, lane: Lane, now_s: float) -> str:
        """The same, or that its tenant is frozen."""
        return FROZEN if lane.tenant_policy.frozen else self.closed(lane.pool, now_s, lane.observes)

    def drain(self, event: Drain, now_s: float) -> None:
        """Admit nobody new; what waits and could not start in time is answered now, the rest runs out."""
        self._until_s = until_s = event.until_s
        self._desk.wake(until_s)
        for pool in self._desk.pools.values():
            ahead_tokens: dict[str, int] = {}
            for life in pool.queue.lives():
                queue = "" if life.lane.share is None else life.request.service_class
                drain = own_share(life.lane, now_s).here_per_s
                starts_s = now_s + (ahead_tokens.get(queue, 0) / drain if drain else INFINITE_S)
                if starts_s > min(life.start_by_s, until_s):
                    self._refusing.unqueue(life)
                    self._refusing.turn_away(life, "draining", now_s)
                else:
                    ahead_tokens[queue] = ahead_tokens.get(queue, 0) + life.work.tokens

    def forget_withdrawn(self) -> None:
        """Engines that are named no more, and hold and owe nothing, are forgotten. Until then they are looked at for proof."""
        for pool in self._desk.pools.values():
            for replica in [one for one in pool.leaving.values() if one.is_withdrawn and one.is_empty]:
                del pool.leaving[replica.name]
                self._desk.effect(Forget(replica.name))
                self._desk.limits_open = True

    def next_s(self) -> float:
        return self._until_s if self._until_s is not None and not self._boot.departed else INFINITE_S

    def end_drain(self, now_s: float) -> None:
        """At the limit streams are cut, told as such, and whoever still waits is answered."""
        if now_s < self.next_s():
            return
        self._until_s = INFINITE_S
        for life in list(self._desk.runs.values()):
            if life.state in (SENT, RUNNING):
                self._course.drained(life, now_s)
        for pool in self._desk.pools.values():
            for life in pool.queue.lives():
                self._refusing.unqueue(life)
                self._refusing.turn_away(life, "draining", now_s)

    def store_changed(self, event: StoreChanged, now_s: float) -> None:
        """What was asked of the old store and not granted is asked anew, when everybody's work stands in the new one."""
        desk = self._desk
        self._boot.store_changed(event, now_s)
        for life in list(desk.claims.values()):
            if life.state == CLAIMING:
                self._identity.late(life, now_s)
        for life in list(desk.runs.values()):
            if life.state == ASKED:
                self._refusing.not_now(life, now_s)

    def told_again(self, life: Life, answer: Answer, now_s: float) -> bool:
        """What the ledger said when it was told that this runs here. True when it knows that it has ended."""
        if answer.outcome == "fenced":
            return False
        self._desk.untold.pop(life.execution.id, None)
        if answer.outcome != "refused":
            if answer.state == RESERVED and life.state == RUNNING:  # an older copy has not heard that it began
                self._desk.command(Start(life.execution.id, self._desk.owner))
            return False
        if answer.state in TERMINAL:
            return self._course.ended_by_ledger(life.execution.id, answer.evidence, now_s) is not None
        if life.state in (SENT, RUNNING):
            self._course.away(life, now_s)
        return False

    def usage_read(self, event: UsageRead, now_s: float) -> None:
        """What was used of running periods, by the usage journal."""
        for use in self._desk.tenants.values():
            if use.quota is not None:
                use.quota.turn(now_s)
                use.quota.read(event.used)
        for pool in self._desk.pools.values():
            if pool.spill is not None:
                pool.spill.quota.turn(now_s)
                pool.spill.quota.read(event.used)
        self._boot.put_limits()

    def reload(self, policy: Policy, now_s: float) -> None:
        """Everything decided from here on is decided by the new policy; what waits is judged again by it."""
        desk = self._desk
        for session in desk.sessions.values():
            session.lift()  # what an engine holds that leaves goes with it, and this is none of that
        desk.change_policy(policy, now_s)
        for session in desk.sessions.values():
            session.settle()
        self._boot.put_limits()
        for pool in desk.pools.values():
            waiting = pool.queue.lives()
            for life in waiting:
                self._refusing.stand_anew(life, now_s)
            pool.queue.weigh_anew()
            for life in waiting:
                if life.lane.tenant.policy.frozen:  # whatever the mode
                    self._refusing.unqueue(life)
                    self._refusing.frozen(life, now_s)
                    continue
                if life.lane.session_scope:
                    continue
                self._refusing.judge_anew(life, now_s)
