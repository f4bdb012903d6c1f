"""Running work that is stopped so that a request which waits is not late (B12, `classes.*.preempts`, `pools.*.preemption`).

Let d be the time a waiting request still has to start, r the time a running one will still take. It is stopped for the other
only if

    d < remaining_ratio * r        else it ends soon enough by itself, or there is time to wait and see,

its class is preemptible, and what it holds is what the other lacks: a call of a session holds what is its session's, so it
is never stopped. A request preempts once, and one victim; a victim that comes back in its return slot is not stopped again.
So many a minute may be stopped as are `running_ratio_per_min_max` of what runs; where that is less than one, one in the time
in which it comes to one.

r is the tokens it may still write (what its like still wrote on average, at most what its client allows) times what a token
takes, and its prompt if that is being read; where nobody knows what a token takes nothing is stopped.

Nothing is free before it is proved: the victim is aborted and cancelled like one whose client has left, and what it held comes
back with the evidence (`core/course.py`). Until then the request that waits for it stands before others, and work of
preemptible classes does not start here. Work on an engine that cannot be stopped is never chosen: it would run on.

Whoever asks inside its tenant's reserve (`core/reserves.py`) may take back several at once, as many as it takes, and the limit
per minute does not count for it: what is lent is had on that condition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from headworks.core.effects import Abort
from headworks.core.life import QUEUED, RUNNING, SENT, Life
from headworks.core.policy import INFINITE_S, ClassPolicy, PreemptionPolicy
from headworks.core.queue import WaitingLine
from headworks.core.types import READ_UNITS

if TYPE_CHECKING:
    from headworks.core.desk import Desk
    from headworks.core.disciplines import Discipline
    from headworks.core.pool import Pool
    from headworks.core.replica import Replica

PREEMPTED = "preempted"
STOPPED = "s left, against what a stopped one would have taken"
"""The unit of the verdict on one that something was stopped for."""
DELAY = "queue_delay_exceeded"
LOOK_EVERY_S = 0.02
VICTIMS_MAX = 16
"""Of one request inside a reserve."""
TIMES_MAX = 4096
"""Instants that are remembered; in a minute no more are stopped."""
WAITING_MAX = 1024
MINUTE_S = 60.0
Leave = Callable[[Life, str, str, float, bool], None]
"""Abort nothing, cancel, and wait for evidence (`Course.leave`)."""


class Preemption:
    """Of one pool: what was stopped when, and who waits for that. There is one only where some class is preemptible."""

    __slots__ = ("_times", "looks_at_s", "total", "waiting")

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=TIMES_MAX)
        self.looks_at_s = float("-inf")
        """Before then nobody looks for a victim."""
        self.total = 0
        self.waiting: dict[int, Life] = {}
        """Who has preempted and waits for what that frees, by the order of arrival."""

    def allows(self, running: int, policy: PreemptionPolicy, now_s: float) -> bool:
        """One more may be stopped now, of so many that run."""
        times, in_a_minute = self._times, running * policy.running_ratio_max
        while times and now_s - times[0] >= MINUTE_S * max(1.0, 1.0 / max(in_a_minute, 1e-9)):
            times.popleft()
        if in_a_minute < 1.0:
            return not times and in_a_minute > 0.0
        return sum(now_s - at_s < MINUTE_S for at_s in times) + 1 <= in_a_minute

    def stopped(self, victims: int, counts: bool, now_s: float) -> None:
        """So many were; `counts`: towards what a minute allows."""
        self.total += victims
        if counts:
            self._times.extend([now_s] * victims)

    def wait(self, life: Life) -> None:
        """It waits for its victims' evidence."""
        for number in [number for number, one in self.waiting.items() if one.state != QUEUED]:
            del self.waiting[number]
        if len(self.waiting) < WAITING_MAX:
            self.waiting[life.number] = life

    def first(self) -> Iterator[Life]:
        """Who stands before others, in the order in which they preempted."""
        return (life for life in list(self.waiting.values()) if life.state == QUEUED)

    def is_awaited(self) -> bool:
        """Somebody waits for a victim's evidence."""
        return any(life.state == QUEUED for life in self.waiting.values())


class Preempting:
    """At the gate's desk: looks for victims."""

    def __init__(self, desk: Desk, leave: Leave) -> None:
        self._desk = desk
        self._leave = leave

    def look(self, pool: Pool, now_s: float) -> None:
        """Nobody who waits can start: is there one that would be late, and one that may be stopped for it?"""
        preemption, queue = pool.preemption, pool.queue
        if preemption is None or not queue.requests:
            return
        classes = self._desk.policy.classes
        if not queue.reserved and not any(one.requests and _preempts(classes, name) for name, one in queue.classes.items()):
            return
        if now_s < preemption.looks_at_s:
            self._desk.wake(preemption.looks_at_s)
            return
        preemption.looks_at_s = now_s + LOOK_EVERY_S
        pressed = [life for life in map(WaitingLine.first, pool.queue.lines.values()) if _may_preempt(life, now_s)]
        if not pressed:
            return
        running = self._running(pool)
        for life in pressed if running else ():
            victims, soonest_s = self._victims(life, running, now_s)
            if victims:
                self._preempt(life, victims, now_s)
            else:
                self._desk.wake(max(soonest_s, preemption.looks_at_s))

    def refusal(self, life: Life, discipline: Discipline, now_s: float) -> str:
        """As the decider says; but who is foreseen to be late may wait if something can be stopped for it."""
        reason = self._desk.decider.refusal(life, discipline, now_s)
        return "" if reason == DELAY and self._spares(life, now_s) else reason

    def _spares(self, life: Life, now_s: float) -> bool:
        pool = life.lane.pool
        if pool.preemption is None or pool.queue.line(life.lane.flow).requests or not _may_preempt(life, now_s):
            return False
        return bool(self._victims(life, self._running(pool), now_s)[0])

    def _running(self, pool: Pool) -> list[Life]:
        return [life for life in self._desk.runs.values() if life.lane.pool is pool and may_be_stopped(life)]

    def _victims(self, life: Life, running: Sequence[Life], now_s: float) -> tuple[list[Life], float]:
        """Whom to stop for it; where that is nobody yet, when there may be somebody."""
        pool, inside = life.lane.pool, life.lane.is_inside(life.work)
        policy, left_s, soonest_s = pool.policy.preemption, life.start_by_s - now_s, INFINITE_S
        if pool.preemption is None or not (inside or pool.preemption.allows(pool.requests, policy, now_s)):
            return [], soonest_s
        ready = []
        for one in running:
            takes_s = remaining_s(one, now_s) if one.state in (SENT, RUNNING) else None
            if takes_s is not None and left_s < policy.remaining_ratio * takes_s:
                ready.append(one)
            elif takes_s is not None and takes_s > left_s and policy.remaining_ratio < 1.0:
                # Both come nearer at the same pace.
                ahead_s = (left_s - policy.remaining_ratio * takes_s) / (1.0 - policy.remaining_ratio)
                soonest_s = min(soonest_s, now_s + ahead_s)
        for replica in pool.replicas.values():
            victims = _enough(life, replica, [one for one in ready if one.replica is replica], VICTIMS_MAX if inside else 1)
            if victims:
                return victims, soonest_s
        return [], soonest_s

    def _preempt(self, life: Life, victims: Sequence[Life], now_s: float) -> None:
        pool = life.lane.pool
        assert pool.preemption is not None
        left_s, ratio = life.start_by_s - now_s, pool.policy.preemption.remaining_ratio
        for victim in victims:
            least_s = ratio * (remaining_s(victim, now_s) or 0.0)
            life.rows.append(("time", f"request:{victim.request.id}", left_s, least_s, STOPPED, PREEMPTED))
            self._stop(victim, now_s)
        life.preempts = True
        pool.preemption.stopped(len(victims), not life.lane.is_inside(life.work), now_s)
        pool.preemption.wait(life)

    def _stop(self, victim: Life, now_s: float) -> None:
        """Its client is told so and when to come back; what it holds is charged until there is evidence."""
        desk = self._desk
        retry_after_s = desk.decider.retry_after_s(victim, PREEMPTED, now_s)
        reason = PREEMPTED if victim.wanted else ""
        desk.effect(Abort(victim.execution.id, reason, retry_after_s=retry_after_s))
        self._leave(victim, PREEMPTED, PREEMPTED, now_s, False)


def _preempts(classes: Mapping[str, ClassPolicy], name: str) -> bool:
    known = classes.get(name)
    return known is not None and known.preempts


def _may_preempt(life: Life, now_s: float) -> bool:
    """It waits for room, and not for something of its own."""
    lane = life.lane
    if life.preempts or now_s > life.start_by_s or not (lane.service_class.preempts or lane.is_inside(life.work)):
        return False
    if lane.observes or not lane.tenant_fits(life.work):
        return False
    return lane.reserves is None or lane.is_inside(life.work) or lane.reserves.row(life.work, lane, now_s) is None


def may_be_stopped(life: Life) -> bool:
    """Its class is preemptible, its engine can be stopped, it was not stopped before, and its end frees what it holds."""
    if life.state not in (SENT, RUNNING) or not life.lane.service_class.preemptible or life.retry_kind == "ticket_kept":
        return False
    if life.lane.session is not None or life.lane.observes:
        return False
    capacity = life.replica.capacity if life.replica is not None else None
    return capacity is not None and any(level != "E1" for level in capacity.evidence)


def remaining_s(life: Life, now_s: float) -> float | None:
    """How long a running request will still take; None where nobody knows what a token takes."""
    replica, work = life.replica, life.work
    each_s = None if replica is None else replica.decode.each_s(replica.requests) or replica.iteration_s
    if each_s is None:
        return None
    made, reading_s = life.output_tokens // work.sequences, 0.0
    if life.first_byte_s is not None and life.streamed:
        made = max(made, 1 + int((now_s - life.first_byte_s) / each_s))
    elif life.sent_s is not None:
        reading_s = max(0.0, life.sent_s + life.forecast.prefill_s - now_s)
    more = life.lane.lengths.more_tokens(made)
    left_tokens = max(0, (work.output_tokens_max if more is not None else work.output_tokens) - made)
    takes_s = reading_s + each_s * (left_tokens if more is None else min(more, left_tokens))
    return min(takes_s, life.request.finish_by_s - now_s)


def _enough(life: Life, replica: Replica, ready: Sequence[Life], most: int) -> list[Life]:
    """Those whose end makes room for it on this engine: the one that loses least, or the first that come to enough."""
    tokens, requests = _lacking(life, replica)
    if not ready or (tokens <= 0 and requests <= 0):
        return []
    by_loss = sorted(ready, key=_loss)
    for victim in by_loss:
        if victim.work.kv_tokens >= tokens and victim.work.sequences >= requests:
            return [victim]
    chosen: list[Life] = []
    for victim in by_loss[:most]:
        chosen.append(victim)
        tokens -= victim.work.kv_tokens
        requests -= victim.work.sequences
        if tokens <= 0 and requests <= 0:
            return chosen
    return []


def _loss(life: Life) -> int:
    """What its engine has done for it, for nothing if it is stopped."""
    return life.work.prefill_tokens + life.output_tokens if life.first_byte_s is not None else 0


def _lacking(life: Life, replica: Replica) -> tuple[int, int]:
    """Tokens and sequences that would have to come free for it there: by what is taken here, and by the ledger's last word."""
    work, pool = life.work, life.lane.pool
    tokens = [short.value - short.limit for short in life.lacks if short.unit == "tokens"]
    requests = [short.value - short.limit for short in life.lacks if short.unit not in READ_UNITS and short.unit != "tokens"]
    for taken, most in ((replica.tokens, replica.tokens_max), (pool.tokens, pool.tokens_max)):
        if most is not None:
            tokens.append(taken + work.kv_tokens - most)
    if not life.lane.is_inside(work):
        requests.append(replica.requests + work.sequences - replica.limit.value)
    return max(tokens, default=0), max(requests, default=0)
