"""The engines of a pool together: what waits for them, what is measured of them, and which of them a request goes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headworks.core import metering
from headworks.core.affinity import Affinity, cost_tokens
from headworks.core.asks import PAUSED_MAX, YIELD_S
from headworks.core.class_gates import FirstTokens
from headworks.core.class_use import ClassUse
from headworks.core.elsewhere import Elsewhere
from headworks.core.fair import Flow
from headworks.core.forecast import Bounds
from headworks.core.lengths import TenantLengths
from headworks.core.memory import UNKNOWN
from headworks.core.policy import INFINITE_S, PoolPolicy
from headworks.core.predict import SERVICE_GAPS_MAX, SERVICE_WINDOW_S, DrainRate
from headworks.core.preempt import Preemption
from headworks.core.pressure import Pressure
from headworks.core.queue import PoolQueue
from headworks.core.reading import NOTHING_COUNTED
from headworks.core.replica import BROKEN, Replica, Runs
from headworks.core.reserves import Reserves
from headworks.core.retrying import UpstreamRetries
from headworks.core.slots import ReturnSlots
from headworks.core.speeds import Usual
from headworks.core.spilling import Purse
from headworks.core.stats import Window
from headworks.core.types import Request, Work

if TYPE_CHECKING:
    from headworks.core.lane import Lane
    from headworks.core.life import Life

PROOFS = 200
"""How many stops are remembered, for how long their proof takes."""
RETRY_S = 0.05
USED_RATIO = 0.5
"""A limit of which less is taken has shown nothing, whoever waits for what is kept of it."""


class Pool:
    """One pool: its replicas, its queue and what has been measured of it."""

    __slots__ = (
        "_runs",
        "affinity",
        "asks_again_s",
        "block_tokens",
        "bounds",
        "class_uses",
        "context_tokens",
        "drain",
        "elsewhere",
        "first_tokens",
        "grows",
        "leaving",
        "lengths",
        "name",
        "places_max",
        "policy",
        "preemption",
        "pressure",
        "proof_s",
        "queue",
        "reading_tokens",
        "reads_from_tokens",
        "replicas",
        "requests",
        "reserves",
        "retries",
        "served_requests",
        "served_tokens",
        "single",
        "slots",
        "spill",
        "tokens",
        "tokens_largest",
        "tokens_max",
        "unguarded_tokens",
        "usual",
    )

    def __init__(
        self, policy: PoolPolicy, promise_s: float | None = None, runs: Runs | None = None, utc_offset_s: float = 0.0
    ) -> None:
        """`promise_s`: the smallest promise of a first token; None where nobody has one. `runs`: all this gateway asked for."""
        self.name = policy.name
        self.policy = policy
        self._runs: Runs = {} if runs is None else runs
        self.replicas: dict[str, Replica] = {}
        """Those that get work."""
        self.leaving: dict[str, Replica] = {}
        """Those that end what they have and get nothing new. What they hold is none of the pool's capacity, nor taken of it."""
        self.single: Replica | None = None
        """The one replica of a pool that has no other: nearly every pool, so every question is asked of it directly."""
        self.tokens = self.requests = 0
        self._seat(policy, promise_s)
        self.queue = PoolQueue()
        self.class_uses: dict[str, ClassUse] = {}
        """By class, where weights decide; bounded by the classes there are."""
        self.drain = DrainRate(DrainRate(None, SERVICE_GAPS_MAX, SERVICE_WINDOW_S))
        self.elsewhere = Elsewhere()
        self.served_tokens = self.served_requests = 0  # granted here since this gateway began
        self.bounds = Bounds(policy.coverage_ratio)
        self.slots = ReturnSlots()
        self.pressure = Pressure(self)
        self.affinity, self.usual = Affinity(), Usual()
        """Which of its replicas have read what; and how long a token takes on them."""
        self.retries = UpstreamRetries(policy.retries_ratio_max)
        self.spill = Purse(policy.name, policy.spill, utc_offset_s) if policy.spill is not None else None
        """What may be spent on it; None: it costs nothing by the token."""
        self.first_tokens: dict[str, FirstTokens] = {}
        """What first tokens took of late, of the classes that have a gate on it."""
        self.proof_s = Window(PROOFS)
        """From the wish to stop something to the proof that it stopped."""
        self.asks_again_s = 0.0
        """The ledger has sent back what was asked for here: nothing more is asked until then."""
        self.reading_tokens = 0
        """Prompts of work that can wait, sent and not answered yet."""
        self.reads_from_tokens = NOTHING_COUNTED
        """Prompts of at least so many tokens are counted while they are read."""
        self.preemption: Preemption | None = None
        """What is stopped here for others; None: nothing may be."""
        self.reserves: Reserves | None = None
        """What of it is some tenants' own; None: nothing."""
        self.places_max: int | None = None
        """Sequences that all its engines may run at once, by their own words; None while nobody knows."""
        self.tokens_max: int | None = policy.active_tokens_max
        """The stated limit, or the sum of what the engines hold; None while nobody knows."""
        self.unguarded_tokens = UNKNOWN
        """Up to so much reserved here nobody needs to look at the future peak (`core/memory.py`)."""
        self.lengths = TenantLengths()
        """How long answers are here."""
        self.context_tokens = 0
        """What one sequence can hold, 0 while unknown; with `block_tokens` of the first replica that described itself."""
        self.block_tokens = 1
        self.tokens_largest = policy.active_tokens_max
        """What no single request can pass, as far as the capacity has been learnt."""
        self.grows = False
        """Answers may grow here: each engine can be stopped where growth is refused, not only be read to its end."""

    def _seat(self, policy: PoolPolicy, promise_s: float | None) -> None:
        """Replicas as the policy names them: new ones begin knowing nothing, and one that is not named any more leaves."""
        known = self.leaving | self.replicas
        self.replicas, self.leaving = {}, {}
        for one in policy.replicas:
            replica = known.pop(one.name, None)
            if replica is None:
                replica = Replica(one.name, policy, promise_s, self._runs, one.speculative)
            replica.speculative, replica.is_withdrawn = one.speculative, False
            self._let_leave(replica, one.drains)
        for replica in known.values():
            replica.is_withdrawn = True
            self._let_leave(replica, True)
        self.single = next(iter(self.replicas.values())) if len(self.replicas) == 1 else None

    def _let_leave(self, replica: Replica, leaves: bool) -> None:
        """Put it where it belongs, with what it holds: `Desk` counts what runs at a leaving one there alone."""
        (self.leaving if leaves else self.replicas)[replica.name] = replica
        if leaves != replica.leaves:
            replica.leaves = leaves
            one = -1 if leaves else 1
            self.tokens += one * replica.tokens
            self.requests += one * replica.requests

    def all_replicas(self) -> dict[str, Replica]:
        """Those that leave as well."""
        return self.replicas | self.leaving if self.leaving else self.replicas

    def learn_capacity(self) -> None:
        """Compute what follows from the policy and from what the replicas said of themselves."""
        for replica in self.all_replicas().values():
            replica.learn_capacity()
        described = [replica for replica in self.replicas.values() if replica.capacity is not None]
        if described and described[0].capacity is not None:
            self.context_tokens = described[0].capacity.context_tokens
            self.block_tokens = max(1, described[0].capacity.block_tokens)
        self.tokens_max = self.policy.active_tokens_max
        if self.tokens_max is None:
            limits = [replica.tokens_max for replica in described]
            known = [limit for limit in limits if limit is not None]
            self.tokens_max = sum(known) if known else None
        places = [replica.requests_max() for replica in self.replicas.values()]
        self.places_max = None if None in places else sum(one for one in places if one is not None)
        if self.reserves is not None:
            self.reserves.fit(self.tokens_max, self.places_max)
        if described:
            self.unguarded_tokens = sum(replica.memory.unguarded_tokens for replica in described)
        self.tokens_largest = self.largest_tokens()
        self.reads_from_tokens = min((one.reading.from_tokens for one in self.replicas.values()), default=NOTHING_COUNTED)
        stoppable = [any(level != "E1" for level in one.capacity.evidence) for one in described if one.capacity is not None]
        self.grows = self.policy.growth and bool(stoppable) and all(stoppable)

    def change_policy(self, policy: PoolPolicy, promise_s: float | None) -> None:
        """Another policy: what is known and taken of engines that stay is kept."""
        self.policy = policy
        self.bounds.aim(policy.coverage_ratio)
        self.retries.ratio = policy.retries_ratio_max
        if self.spill is not None and policy.spill is not None:
            self.spill.change_policy(policy.spill)
        self._seat(policy, promise_s)
        for replica in self.all_replicas().values():
            replica.change_policy(policy, promise_s)
        self.learn_capacity()

    def class_use(self, service_class: str) -> ClassUse:
        """What a class has here; one object for as long as the pool lives."""
        return self.class_uses.setdefault(service_class, ClassUse())

    def sent_back(self, flow: Flow | None, why: str, now_s: float, is_short: bool = False) -> float:
        """Not now: until when nothing is asked for this flow, or for anything at all, unless something is freed before."""
        until_s = now_s + (YIELD_S if flow is not None or why == "yield" else max(RETRY_S, self.back_in_s(why, now_s)))
        if flow is None or (self.queue.pause(flow, until_s, now_s, is_short) >= PAUSED_MAX and not self.queue.asks.is_short):
            self.asks_again_s = until_s
        return until_s

    def ask_at_once(self, flow: Flow | None = None) -> None:
        """Something was freed: whoever was sent back may ask again; where it is known whose turn it is, that flow."""
        self.asks_again_s = 0.0
        if flow is not None and self.queue.asks.is_short:
            self.queue.asks.name(flow)
        else:
            self.queue.asks.freed()

    def next_ask_s(self, now_s: float) -> float:
        """When somebody who was sent back may ask again, or a probe may go to an engine that is left alone."""
        probes_s = [one.breaker.until_s for one in self.replicas.values() if not one.breaker.is_closed]
        return min(
            (at_s for at_s in (self.asks_again_s, *self.queue.asks.paused.values(), *probes_s) if at_s > now_s),
            default=INFINITE_S,
        )

    def granted(self, life: Life, now_s: float) -> None:
        """The ledger granted this: one more step of the queue, and of its class's part of it."""
        queue, work, use = self.queue, life.work, life.lane.use
        if life.lane.metered:
            metering.granted(life, now_s)
        self.retries.sent += 1
        self.served_tokens += work.tokens
        self.served_requests += work.sequences
        self.drain.granted(work.tokens, work.sequences, queue.requests > 0, now_s)
        if use is not None:
            use.served_tokens += work.tokens
            use.served_requests += work.sequences
        if use is not None and (queue.requests or use.drain.is_backlogged):
            use.drain.granted(work.tokens, work.sequences, queue.of_class(life.lane.flow[0]).requests > 0, now_s)

    def unqueued(self, service_class: str) -> None:
        """Somebody left the queue other than by a grant."""
        if not self.queue.requests:
            self.drain.emptied()
        use = self.class_uses.get(service_class)
        if use is not None and not self.queue.of_class(service_class).requests:
            use.drain.emptied()

    @property
    def is_full(self) -> bool:
        """Every place is taken where there is one engine: nothing can start, whoever is next. Of several, each is asked."""
        single = self.single
        return single is not None and single.requests >= single.limit.value

    def wants_places(self) -> None:
        """Somebody waits for what is left of the running limits, which is kept for others: to them, that is the limit."""
        for replica in self.replicas.values():
            if USED_RATIO * replica.limit.value <= replica.requests:
                replica.limit.reached = True

    @property
    def first_token_s(self) -> float:
        """What a first token has taken of late, from sending; of several engines the slowest's."""
        if self.single is not None:
            return self.single.prefill.took_s
        return max((one.prefill.took_s for one in self.replicas.values()), default=0.0)

    def reads_least(self) -> Replica:
        """The replica that has least to read."""
        return self.single or min(self.replicas.values(), key=lambda replica: replica.reading.tokens)

    def requests_limit(self) -> int:
        """Places in all running batches together."""
        if self.single is not None:
            return self.single.limit.value
        return sum(replica.limit.value for replica in self.replicas.values())

    def largest_tokens(self, model: str = "") -> int | None:
        """What no single request can pass: the pool's limit, and one replica's memory less what other models are guaranteed."""
        limits = [replica.memory.kv_tokens for replica in self.replicas.values()]
        known = [limit for limit in limits if limit is not None]
        if self.policy.floors and model:
            known = [limit - sum(floor for name, floor in self.policy.floors.items() if name != model) for limit in known]
        stated = self.policy.active_tokens_max
        if not known or len(known) < len(limits):
            return stated
        return max(known) if stated is None else min(stated, max(known))

    def left_tokens(self, model: str) -> int | None:
        """What of one engine's memory the guarantees of other models leave to this one; None: there are none."""
        left = [
            one.tokens_max - one.tokens - one.floors.kept_tokens(model)
            for one in self.replicas.values()
            if one.floors is not None and one.tokens_max is not None
        ]
        return max(left, default=None)

    def kv_used_ratio(self, now_s: float) -> float | None:
        """Of the emptiest replica that can say: work goes there."""
        if self.single is not None:
            return self.single.kv_used_ratio(now_s)
        ratios = (replica.kv_used_ratio(now_s) for replica in self.replicas.values())
        return min((ratio for ratio in ratios if ratio is not None), default=None)

    def place(self, request: Request, work: Work, lane: Lane, now_s: float) -> tuple[Replica | None, str]:
        """Where this goes, or None and the reason code that is in the way.

        Of several with room: where it is complete first, by what each has in hand (`core/affinity.py`) and how quick it is.
        """
        stated = self.policy.active_tokens_max
        if stated is not None and self.tokens + work.kv_tokens > stated:
            return None, "queue_timeout"
        if self.single is not None:
            reason = self.single.room(work, lane, now_s, request.model)
            return (None, reason) if reason else (self.single, "")
        best: Replica | None = None
        blocked_by, rank = "no_replica", (False, False, 0.0)
        plain = lane.cascade is not None and lane.cascade.avoids_speculation
        begins = len(request.prefix) > 0 and self.policy.follows_prefixes
        begun_at, begun_ratio = self.affinity.where(request.prefix) if begins else ("", 0.0)
        requests_mean = self.requests / max(1, len(self.replicas))
        for replica in self.replicas.values():
            reason = replica.room(work, lane, now_s, request.model)
            if reason:
                blocked_by = reason if reason != "no_replica" else blocked_by
                continue
            cost = replica.speed.times * (1.0 + replica.requests)
            if begins:
                saved_tokens = begun_ratio * work.prefill_tokens if replica.name == begun_at else 0.0
                cost = cost_tokens(replica, work.prefill_tokens, saved_tokens, requests_mean)
            own = (now_s < replica.avoid_until_s, plain and replica.speculative, cost)
            if best is None or own < rank:
                best, rank = replica, own
        return best, "" if best is not None else blocked_by

    def least_used(self, now_s: float) -> Replica | None:
        """Where something goes that is not to be held back (observe mode)."""
        ready = [replica for replica in self.replicas.values() if replica.state(now_s) in ("ready", BROKEN)]
        return min(ready, key=lambda replica: replica.requests, default=None)

    def back_in_s(self, reason: str, now_s: float) -> float:
        """How long it takes at least until one of its engines takes something, as far as they or their breakers have said."""
        if reason == BROKEN:
            return min((max(0.0, one.breaker.until_s - now_s) for one in self.replicas.values()), default=0.0)
        return min((max(0.0, one.busy_until_s - now_s) for one in self.replicas.values()), default=0.0)
