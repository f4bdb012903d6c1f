"""Who is next? The queue disciplines behind one question (D3), live and simulated alike.

`propagate_cancel`, `drop_late` and an unbounded queue are switches of the policy, so that "naive" is really naive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headworks.core.commands import Command, Unmark, Waits
from headworks.core.elsewhere import NOBODY, Beside
from headworks.core.fair import Flow
from headworks.core.floors import RESERVED
from headworks.core.last_moment import before_sending
from headworks.core.life import Life
from headworks.core.policy import DisciplinePolicy
from headworks.core.predict import DrainRate
from headworks.core.queue import PoolQueue, WaitingLine
from headworks.core.reading import SATURATED
from headworks.core.types import REASON, Owner

if TYPE_CHECKING:
    from headworks.core.lane import Lane
    from headworks.core.pool import Pool

WEIGHED = "wfq"
"""The discipline that shares by weights, with turns in the ledger (`core/fair.py`)."""
ORDERED = frozenset({"wfq", "class_priority"})
"""Disciplines in whose lines stands first who has to start first."""
TELL_EVERY_S = 0.02
"""How often the ledger is told of a head that finds no room: its mark counts for 50 ms (`core/fair.py`)."""
PASSED_BY_MAX = 16
"""Heads that do not fit and are looked past in one round."""

Order = Callable[[PoolQueue], Iterator[Life]]


@dataclass(slots=True)
class Ahead:
    """What would run before a newcomer, and how quickly that gets on."""

    tokens: int
    requests: int
    drain: DrainRate
    share_ratio: float
    """The part of what `drain` measured that is for this work."""
    beside: Beside = NOBODY
    """What waits at others; `tokens` are with it, `requests` are those here, whose grants `drain` counts."""

    @property
    def tokens_per_s(self) -> float | None:
        """Of all gateways at which such work waits. None while nothing has been measured."""
        if self.beside.tokens_per_s is not None:
            return self.beside.tokens_per_s
        return None if self.drain.tokens_per_s is None else self.drain.tokens_per_s * self.share_ratio

    @property
    def here_per_s(self) -> float | None:
        """This gateway's part of it: what it may promise to those it sends away."""
        tokens_per_s, gateways = self.tokens_per_s, self.beside.gateways
        return tokens_per_s / (gateways + 1) if tokens_per_s is not None and gateways else tokens_per_s


class Discipline:
    """One order of service. `refuses_predicted`: a request that cannot make it is refused when it arrives (B2)."""

    __slots__ = ("_ahead", "_order", "drops_late", "drops_oldest", "policy", "refuses_predicted", "weighs")

    def __init__(self, policy: DisciplinePolicy) -> None:
        self.policy = policy
        self._order, self._ahead, self.refuses_predicted, self.drops_oldest = KINDS[policy.kind]
        self.drops_late = policy.drop_late and not policy.unbounded
        """What can no longer be on time leaves the queue, told so. Without this switch nothing does but its client."""
        self.weighs = policy.kind == WEIGHED

    def heads(self, queue: PoolQueue) -> Iterator[Life]:
        """Of every flow whoever is first in it, in the order of service. Valid until something joins or leaves."""
        return self._order(queue)

    def ahead(self, lane: Lane, now_s: float) -> Ahead:
        """Work that would run before a newcomer in this lane."""
        return self._ahead(lane, now_s)

    def nothing_ahead(self, lane: Lane, now_s: float) -> bool:
        """Nobody who waits, here or elsewhere, keeps a newcomer in this lane that finds room from starting.

        Where weights decide, those of other flows do not: it is not their turn, and what they wait for is not what it needs.
        """
        pool, flow = lane.pool, lane.flow
        if not pool.queue.requests and pool.elsewhere.is_quiet:
            return True
        if self.weighs:
            return not pool.queue.line(flow).requests and not pool.elsewhere.of(now_s, flow).gateways
        return not pool.queue.requests and not pool.elsewhere.of(now_s).gateways


class Round:
    """One going through the queue of a pool for those who can be asked for now.

    A flow may be held up by something of its own: its tenant's limit, what is kept for other classes, or a head too large for
    what is free. Others go on meanwhile. The ledger is told of such a head, and lets others past it only so often (D2).
    """

    __slots__ = ("_awaits", "_blocked", "_discipline", "_now_s", "_owner", "_passed_by", "_pool", "commands")

    def __init__(self, pool: Pool, discipline: Discipline, owner: Owner, now_s: float) -> None:
        self._pool = pool
        self._discipline = discipline
        self._owner = owner
        self._now_s = now_s
        self._passed_by = 0
        if pool.queue.asks.paused:
            pool.queue.asks.look(now_s)
        self._awaits = pool.preemption is not None and bool(pool.preemption.waiting) and pool.preemption.is_awaited()
        """Somebody has preempted, and waits for what that frees."""
        self._blocked: dict[Flow, str] = {}
        self.commands: list[Command] = []
        """What the ledger has to know of those who wait and are not asked for, before others are."""

    def next(self) -> Life | None:
        """Whoever is next, with the replica it goes to; or somebody whose time is over. None: nobody can start now."""
        pool, queue, now_s = self._pool, self._pool.queue, self._now_s
        asks = queue.asks
        first = bool(queue.reserved) or self._awaits or asks.is_short
        if queue.observed and (observed := self._observed()) is not None:
            return observed
        if pool.is_full and not first:
            return None
        is_next = False
        if queue.inside and not pool.is_full:
            session_life, is_next = self._of_a_session()
            if session_life is not None or (is_next and not queue.reserved):
                return session_life
        for life in self._heads() if first else self._discipline.heads(queue):
            lane = life.lane
            if is_next and not lane.is_inside(life.work):  # those stand first, and only they pass a call that waits
                return None
            if lane.flow in self._blocked:
                continue
            if self._awaits and lane.service_class.preemptible:  # what is stopped is not stopped for its like
                self._blocked[lane.flow] = ""
                continue
            if now_s > life.start_by_s:
                return life
            if (asks.paused or asks.is_short) and not asks.may(lane.turn):
                self._blocked[lane.flow] = ""
                continue
            if lane.observes:  # no engine takes it now
                self._blocked[lane.flow] = ""
                continue
            if not lane.tenant_fits(life.work):
                self._block(life, lane.why_not(life.work))
                continue
            kept = lane.kept(life.work, now_s) if lane.keeps else None
            if kept is not None:
                self._block(life, kept[REASON])
                self._unmark(queue.lines[lane.flow])
                continue
            life.replica, reason = pool.place(life.request, life.work, lane, now_s)
            if life.replica is not None:
                if self._discipline.drops_late and not before_sending(life, life.replica, now_s):
                    self._block(life, SATURATED)
                    continue
                return life
            self._block(life, reason)
            if reason == RESERVED:  # the room that is kept is for other models: they may pass, in this line and in others
                self._unmark(queue.lines[lane.flow])
                passing = self._of_another_model(life)
                if passing is not None:
                    return passing
                continue
            if not (self._awaits and life.preempts) and not self._may_be_passed(life, reason):
                return None
        return None

    def _observed(self) -> Life | None:
        """One that nothing is to hold up: it waits here since it came back from an engine or from the ledger."""
        queue = self._pool.queue
        for flow in queue.observed:
            life = queue.lines[flow].first()
            if queue.asks.may(life.lane.turn):
                life.replica = self._pool.least_used(self._now_s)
                return life if life.replica is not None else None
        return None

    def _heads(self) -> Iterator[Life]:
        """Before everybody else: who asks inside its tenant's reserve, whom no running limit holds up; who has preempted; then
        whose turn it is by the ledger's word."""
        for flow in self._pool.queue.reserved:
            life = self._pool.queue.lines[flow].first()
            if life.lane.is_inside(life.work):
                yield life
        if self._awaits and self._pool.preemption is not None:
            yield from self._pool.preemption.first()
        if self._pool.is_full:
            return
        queue = self._pool.queue
        for flow in tuple(queue.asks.named):
            if flow in queue.lines:
                yield queue.lines[flow].first()
        if queue.asks.anybody() or not self._discipline.weighs:
            yield from self._discipline.heads(queue)

    def _of_a_session(self) -> tuple[Life | None, bool]:
        """The first call of a session that can go, or has waited for too long; and whether nobody else is to be looked at.

        One that waits for other calls of its session keeps nobody. For one that lacks anything else the rest of us wait.
        """
        pool, now_s = self._pool, self._now_s
        for life in pool.queue.inside.values():
            lane = life.lane
            if now_s > life.start_by_s:
                return life, True
            if not lane.tenant_fits(life.work):
                life.blocked_by = lane.why_not(life.work)
                continue
            assert lane.session is not None
            lane.session.lift()
            life.replica, reason = pool.place(life.request, life.work, lane, now_s)
            lane.session.settle()
            life.blocked_by = reason
            return (life if life.replica is not None else None), True
        return None, False

    def _of_another_model(self, head: Life) -> Life | None:
        """Behind a head that waits for room which is kept for other models, one of those models that can start now."""
        lane = head.lane
        for life in self._pool.queue.lines[lane.flow].behind_first(PASSED_BY_MAX):
            if life.request.model != head.request.model and lane.tenant_fits(life.work) and self._now_s <= life.start_by_s:
                life.replica, _ = self._pool.place(life.request, life.work, lane, self._now_s)
                if life.replica is not None:
                    return life
        return None

    def _block(self, life: Life, reason: str) -> None:
        self._blocked[life.lane.flow] = life.blocked_by = reason

    def _unmark(self, line: WaitingLine) -> None:
        """It waits for something the ledger does not know of: nobody is to be held up by its mark."""
        if line.is_marked:
            line.is_marked = False
            self.commands.append(Unmark(line.flow, self._pool.name, self._owner))

    def _may_be_passed(self, life: Life, reason: str) -> bool:
        """Whether one behind this head, which found no place, may be looked at: a smaller one might."""
        pool, lane = self._pool, life.lane
        too_large = reason == SATURATED or (reason == "queue_timeout" and pool.requests < pool.requests_limit())
        if lane.share is None or not too_large or self._passed_by >= PASSED_BY_MAX:
            return False
        self._passed_by += 1
        line = pool.queue.lines[lane.flow]
        if self._now_s >= line.told_s + TELL_EVERY_S:
            line.told_s, line.is_marked = self._now_s, True
            replica = next(iter(pool.replicas.values()))
            reads = replica.reading.charges(replica.reading.size(life.work, lane), replica.scope)
            charges = (*lane.charges(life.work, replica.scope), *reads)
            self.commands.append(Waits(lane.flow, pool.name, self._owner, charges, line.tokens))
        return True


def oldest_first(queue: PoolQueue) -> Iterator[Life]:
    """First in, first out, over all flows."""
    return map(WaitingLine.first, queue.ranked(_oldest))


def newest_first(queue: PoolQueue) -> Iterator[Life]:
    """Last in, first out: fresh requests still have their time."""
    return map(WaitingLine.newest, queue.ranked(_newest))


def highest_class_first(queue: PoolQueue) -> Iterator[Life]:
    """Strictly by class, the largest share first; in a class whoever has to start first. The others may starve."""
    return map(WaitingLine.first, queue.ranked(_highest_class))


def by_turn(queue: PoolQueue) -> Iterator[Life]:
    """By weights: first the flow that has had least of what it was served while others waited (D1)."""
    return map(WaitingLine.first, queue.in_turn())


def _oldest(line: WaitingLine) -> tuple[float, ...]:
    return (line.first().number,)


def _newest(line: WaitingLine) -> tuple[float, ...]:
    return (-line.newest().number,)


def _highest_class(line: WaitingLine) -> tuple[float, ...]:
    life = line.first()
    return -life.lane.service_class.share, life.start_by_s, life.number


def _everybody(lane: Lane, now_s: float) -> Ahead:
    pool, queue = lane.pool, lane.pool.queue
    beside = pool.elsewhere.of(now_s)
    return Ahead(queue.tokens + beside.tokens, queue.requests, pool.drain, 1.0, beside)


def _nobody(lane: Lane, now_s: float) -> Ahead:
    return Ahead(0, 0, lane.pool.drain, 1.0)


def _higher_classes(lane: Lane, now_s: float) -> Ahead:
    """Its own class and those above it; whoever of them is still to come passes as well, and nobody can know of them."""
    pool = lane.pool
    above = [one for one in pool.queue.classes.values() if one.share >= lane.service_class.share]
    tokens, requests = sum(one.tokens for one in above), sum(one.requests for one in above)
    beside = pool.elsewhere.of(now_s)
    if beside.gateways:  # of classes that have waited here, too
        names = [name for name, one in pool.queue.classes.items() if one.share >= lane.service_class.share]
        tokens += sum(pool.elsewhere.of(now_s, (name,)).tokens for name in names)
    return Ahead(tokens, requests, pool.drain, 1.0, beside)


def own_share(lane: Lane, now_s: float) -> Ahead:
    """Its own flow's queue, and what the other flows of its class are served meanwhile by their weights; else everybody.

    How quickly that gets on is measured for the class itself, which contains what other classes really take. Until it has
    been, it is the class's share of the pool's rate among those that wait now.
    """
    pool, queue, share = lane.pool, lane.pool.queue, lane.share
    if share is None:
        return _everybody(lane, now_s)
    own, line = queue.of_class(lane.flow[0]), queue.line(lane.flow)
    beside = pool.elsewhere.of(now_s, (lane.flow[0],))
    there = pool.elsewhere.of(now_s, lane.flow) if beside.gateways else beside
    weight = line.share if line.requests else share.weights[1]
    among = own.tenants_share + (0.0 if line.requests else weight)
    if beside.gateways:
        told_already = there.gateways and not line.requests
        among = max(weight, among + beside.flows_ratio - (weight if told_already else 0.0))
    tokens = min(own.tokens + beside.tokens, int((line.tokens + there.tokens) * among / weight))
    requests = min(own.requests, int(line.requests * among / weight))
    if share.use is not None and share.use.drain.tokens_per_s is not None:
        return Ahead(tokens, requests, share.use.drain, 1.0, beside)
    others = sum(one.share for one in queue.classes.values() if one.requests and one is not own)
    ratio = share.weights[0] / (share.weights[0] + others)
    if beside.gateways and beside.tokens_per_s is None:
        all_per_s = pool.elsewhere.of(now_s).tokens_per_s
        beside = beside if all_per_s is None else beside._replace(tokens_per_s=all_per_s * ratio)
    return Ahead(tokens, requests, pool.drain, ratio, beside)


KINDS: dict[str, tuple[Order, Callable[[Lane, float], Ahead], bool, bool]] = {
    # kind → order, what is ahead of a newcomer, refuses by prediction, a full queue drops its oldest for the newcomer
    "fifo": (oldest_first, _everybody, False, False),
    "fifo_tail_drop": (oldest_first, _everybody, False, False),
    "lifo_drop_head": (newest_first, _nobody, False, True),
    "predictive_ttft": (oldest_first, _everybody, True, False),
    "class_priority": (highest_class_first, _higher_classes, True, False),
    "wfq": (by_turn, own_share, True, False),
}
