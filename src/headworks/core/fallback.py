"""What a class consents to before its requests are refused: the cascade of its steps (E5, `classes.*.on_pressure`).

Each class has in each pool as many steps *in force* as pressure has called for, in the order of the file. The next one comes
into force when utilisation (`core/pressure.py`) is above its `enter_ratio`, the last one goes out of force when utilisation is
below its `leave_ratio`; the same step changes at most every `dwell_s`, and a class at most every `CHANGE_S` over all its pools.
Utilisation is looked at with every look at an engine, and when a request of the class is about to be refused: a refusal is
the strongest word there is on pressure, so a burst does not have to wait for the next look.

A step in force does one of two things. *Shaping* ones (clamp_output, strip_few_shot, drop_n, no_speculation) make every new
request of the class cheaper: that is what brings pressure down again, so they have to reach everybody. *Diverting* ones
(smaller_model, spill, cached) are tried, in order, for a request that would be refused otherwise: when it arrives, and at the
last instant at which it could have started. Nobody is diverted whom its own pool can serve. What was made of a request is its
`Variant`; its key, fingerprint, arrival, deadline and what it drew on rates stay those of the request that came.

Only what lacks room is diverted. A tenant at its own limit, a bad key, a gateway that drains: no variant would cure that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headworks.core import metering
from headworks.core.effects import Serve
from headworks.core.forecast import saw_nothing
from headworks.core.life import QUEUED
from headworks.core.policy import INFINITE_S, Policy, StepPolicy
from headworks.core.reasons import REASONS
from headworks.core.types import REASON, Request, Variant

if TYPE_CHECKING:
    from headworks.core.changes import Changes
    from headworks.core.desk import Desk
    from headworks.core.disciplines import Discipline
    from headworks.core.life import Life
    from headworks.core.pool import Pool
    from headworks.core.refusing import Refusing

CHANGE_S = 5.0
"""A class changes at most so often."""
LAST_S = 0.02
"""So long before its time is over a request that waits is tried elsewhere: a timer is late, and asking takes a moment."""
VALUE: Final = 2
LIMIT: Final = 3
"""Places in a `Row`."""
LATE_S = 0.25
"""By so much more its class's wait may be passed for an answer that comes of it."""
GoOn = Callable[["Life", float], None]
Wait = Callable[["Life", "Discipline", float], None]
SPOKEN_EVERYWHERE = frozenset({"", "/v1/chat/completions", "/v1/completions"})
"""Routes that an engine has which does not say which it has."""
FOR_WANT_OF = frozenset({"pool", "engine"})
"""Whose fault a refusal is that a variant may cure."""


class Cascade:
    """The steps of one class in one pool."""

    __slots__ = ("_changed_s", "avoids_speculation", "level", "steps")

    def __init__(self, steps: tuple[StepPolicy, ...]) -> None:
        self.steps = steps
        self.level = 0
        """So many of its steps are in force, the first ones."""
        self.avoids_speculation = False
        """Its requests go to replicas without speculative decoding where one has room."""
        self._changed_s = [-INFINITE_S] * len(steps)

    def wants(self, pressure_ratio: float, now_s: float) -> int:
        """The level that pressure calls for: one more, one less, or this."""
        level, steps = self.level, self.steps
        if level < len(steps) and pressure_ratio > steps[level].enter_ratio and self._has_dwelt(level, now_s):
            return level + 1
        if level and pressure_ratio < steps[level - 1].leave_ratio and self._has_dwelt(level - 1, now_s):
            return level - 1
        return level

    def _has_dwelt(self, step: int, now_s: float) -> bool:
        return now_s - self._changed_s[step] >= self.steps[step].dwell_s

    def change(self, level: int, now_s: float) -> None:
        """One step more or less is in force."""
        self._changed_s[min(level, self.level)] = now_s
        self.level = level
        self.avoids_speculation = any(step.action == "no_speculation" for step in self.in_force())

    def in_force(self) -> tuple[StepPolicy, ...]:
        return self.steps[: self.level]


class Cascades:
    """All of them, and when each class changed last."""

    def __init__(self, policy: Policy) -> None:
        self._of: dict[tuple[str, str], Cascade] = {}
        """By pool and class, from the class's first request there on."""
        self._changed_s: dict[str, float] = {}
        self._policy = policy

    def change_policy(self, policy: Policy) -> None:
        """A class with other steps begins anew; the others keep what is in force."""
        self._policy = policy
        for pool, name in list(self._of):
            known = policy.classes.get(name)
            if known is None or known.on_pressure != self._of[pool, name].steps:
                del self._of[pool, name]

    def of(self, pool: str, service_class: str) -> Cascade | None:
        """None: the class consents to nothing."""
        known = self._policy.classes.get(service_class)
        if known is None or not known.on_pressure or self._policy.observe:
            return None
        return self._of.setdefault((pool, service_class), Cascade(known.on_pressure))

    def weigh(self, pool: Pool, now_s: float) -> None:
        """The pool's pressure has been looked at."""
        for (name, service_class), cascade in self._of.items():
            if name == pool.name:
                self._weigh(cascade, service_class, pool, now_s)

    def _weigh(self, cascade: Cascade, service_class: str, pool: Pool, now_s: float) -> None:
        if now_s - self._changed_s.get(service_class, -INFINITE_S) < CHANGE_S:
            return
        level = cascade.wants(pool.pressure.utilisation_ratio, now_s)
        if level != cascade.level:
            cascade.change(level, now_s)
            self._changed_s[service_class] = now_s

    def refused(self, cascade: Cascade, service_class: str, pool: Pool, now_s: float) -> None:
        """One of its requests is about to be refused."""
        if cascade.level < len(cascade.steps) and now_s - self._changed_s.get(service_class, -INFINITE_S) >= CHANGE_S:
            pool.pressure.look(now_s)
            self._weigh(cascade, service_class, pool, now_s)

    def levels(self, pool: str) -> dict[str, int]:
        """For people: steps in force by class."""
        return {service_class: cascade.level for (name, service_class), cascade in self._of.items() if name == pool}


def shaped(request: Request, steps: tuple[StepPolicy, ...]) -> tuple[Request, Variant | None]:
    """The request as its class's shaping steps make it, and what they changed; None if that is nothing."""
    leeway = request.leeway
    if leeway is None:
        return request, None
    told, strips, drops_n = [], False, False
    for step in steps:
        if step.action == "clamp_output":
            clamp, asked = step.output_tokens_max, request.output_tokens_max
            if asked is None or asked > clamp:
                least = min(request.output_tokens_min, clamp)
                request = replace(request, output_tokens_max=clamp, output_tokens_min=least)
                told.append(f"clamp_output={clamp}")
        elif step.action == "no_speculation":
            told.append(step.action)
        elif step.action == "drop_n" and request.samples > leeway.samples:
            request = replace(request, samples=leeway.samples)
            drops_n = True
            told.append(step.action)
        elif step.action == "strip_few_shot" and leeway.prompt_bytes < request.prompt_bytes:
            request = replace(request, prompt_bytes=leeway.prompt_bytes, prompt_tokens=None, prompt_kind="text")
            strips = True
            told.append(step.action)
    return request, Variant("", drops_n, strips, tuple(told)) if told else None


class Fallback:
    """Tries the variants of what would be refused, at the gate's desk."""

    def __init__(self, desk: Desk, changes: Changes, refusing: Refusing, reserve: GoOn, wait: Wait) -> None:
        self._desk = desk
        self._changes = changes
        self._refusing = refusing
        self._reserve = reserve
        self._wait = wait

    def expire(self, life: Life, now_s: float) -> None:
        """It can no longer start in time in its own pool, or is about to. Elsewhere it may, if that is now."""
        if life.lane.cascade is not None:
            if life.state == QUEUED and self.instead(life, life.blocked_by or "queue_timeout", now_s, at_once=True):
                return
            if now_s < life.start_by_s:
                self._desk.set_timer(life, life.start_by_s)
                return
        self._refusing.expire(life, now_s)

    def instead(self, life: Life, reason: str, now_s: float, at_once: bool = False) -> bool:
        """Whether something takes the place of this one, which would be refused for `reason`.

        `at_once`: it has waited already, so only what can start now is of use.
        """
        cascade, request = life.lane.cascade, life.request
        if cascade is None or REASONS[reason].scope not in FOR_WANT_OF or request.leeway is None:
            return False
        if any(row[REASON] in metering.AT_ONCE and row[VALUE] > row[LIMIT] for row in life.rows):
            return False  # its tenant's rate, quota or retries are used up as well
        self._desk.cascades.refused(cascade, request.service_class, life.lane.pool, now_s)
        for step in cascade.in_force():
            if step.action == "cached" and request.leeway.is_kept:
                self._serve(life, now_s)
                return True
            if step.action in ("smaller_model", "spill") and self._elsewhere(life, step, now_s, at_once):
                return True
        return False

    def _elsewhere(self, life: Life, step: StepPolicy, now_s: float, at_once: bool) -> bool:
        """The same request for another model in another pool, if that takes it."""
        desk, request = self._desk, life.request
        pool = desk.pools.get(step.pool) or self._pool_of(step.model)
        if pool is None or pool is life.lane.pool or self._changes.closed(pool, now_s) or not _speaks(pool, request.route):
            return False
        models = life.lane.tenant_policy.models
        if step.action == "smaller_model" and models is not None and step.model not in models:
            return False
        lane, discipline = desk.lane(request.key.tenant, request.service_class, pool.name), desk.disciplines[pool.name]
        there = replace(request, model=step.model, pool=pool.name)
        heir, free = desk.decider.look(there, life.number, lane, discipline, now_s, counts=False)
        if pool.spill is not None and not pool.spill.affords(heir.work, step.model, now_s):
            return False
        if lane.metered and any(row[VALUE] > row[LIMIT] for row in metering.again(heir, now_s)):
            return False  # its tenant's quota does not bear what it costs there
        if not free and (at_once or desk.decider.refusal(heir, discipline, now_s)):
            return False
        if at_once and not self._still_helps(heir, now_s):
            return False
        heir.rows[:0] = [row for row in life.rows if row[0] == "tenant"]
        heir.retry_kind = life.retry_kind
        before = life.variant or Variant("", False, False, ())
        told = f"spill={pool.name}" if step.action == "spill" else f"smaller_model={step.model}"
        heir.variant = Variant(step.model, before.drops_n, before.strips, (*before.told, told))
        self._hand_over(life, heir, now_s)
        if lane.metered and not heir.drawn:
            metering.let_in(heir, now_s)
        if free:
            self._reserve(heir, now_s)
        else:
            self._wait(heir, discipline, now_s)
        return True

    @staticmethod
    def _still_helps(heir: Life, now_s: float) -> bool:
        """A timer that was late is no reason to refuse: what its client and its class's promise allow decides."""
        request, promise_s = heir.request, heir.lane.service_class.ttft_slo_s
        by_s = heir.start_by_s + LATE_S
        if promise_s is not None:
            by_s = min(by_s, max(heir.start_by_s, request.arrived_s + promise_s - heir.forecast.prefill_s))
        if now_s > min(by_s, request.start_by_s):
            return False
        heir.start_by_s = max(heir.start_by_s, now_s + LAST_S)
        return True

    def _pool_of(self, model: str) -> Pool | None:
        """Where a model is served, in a pool whose engines say what they serve."""
        for pool in self._desk.pools.values():
            found = (one.capacity.models for one in pool.replicas.values() if one.capacity is not None)
            if pool.spill is None and any(model in models for models in found):
                return pool
        return None

    def _let_go(self, life: Life, now_s: float) -> None:
        """It ends here: out of the queue, if it stood there."""
        queue = life.lane.pool.queue
        if life in queue.line(life.lane.flow):
            self._refusing.unqueue(life)
            saw_nothing(life, now_s)
        self._desk.move(life, "refused_for_good")

    def _hand_over(self, life: Life, heir: Life, now_s: float) -> None:
        """Everybody who waits for it, and its key, belong to the heir from now on."""
        desk = self._desk
        self._let_go(life, now_s)
        heir.subscribers, heir.sharers, heir.told_s = life.subscribers, life.sharers, life.told_s
        heir.claim, heir.drawn, heir.decision = life.claim, life.drawn, life.decision
        life.subscribers, life.sharers, life.claim, life.drawn, life.reported = [], None, "", (), True
        if heir.claim:
            desk.claims[heir.claim] = heir
        for arrival in heir.subscribers:
            desk.lives[arrival] = heir

    def _serve(self, life: Life, now_s: float) -> None:
        """It gets an equal request's answer, which is kept: nothing runs, and nothing was charged."""
        desk = self._desk
        variant = life.variant or Variant("", False, False, ())
        life.variant = Variant("", variant.drops_n, variant.strips, (*variant.told, "cached"))
        self._let_go(life, now_s)
        if life.claim:
            self._refusing.give_back_key(life, now_s)
        life.admitted_s = now_s
        life.decision = desk.decider.decision(life, "admit", "", now_s)
        desk.record(life.decision)
        if life.drawn:
            metering.ended(life, now_s)
        self._refusing.served(life, now_s)
        for arrival in life.subscribers:
            desk.lives.pop(arrival, None)
            desk.effect(Serve(arrival, life.decision))
        life.subscribers = []


def _speaks(pool: Pool, route: str) -> bool:
    """Whether its engines can be sent what came by this route."""
    told = [one.capacity.routes for one in pool.replicas.values() if one.capacity is not None]
    return route in SPOKEN_EVERYWHERE or all(route in routes for routes in told)
