"""What is known of one engine, what this gateway has taken there, and whether a request fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headworks.core.breaker import Breaker
from headworks.core.evidence import ClockProof, iteration_s
from headworks.core.floors import RESERVED, Floors
from headworks.core.limit import RunningLimit
from headworks.core.memory import Memory
from headworks.core.policy import PoolPolicy
from headworks.core.predict import DecodeTime, PrefillTime
from headworks.core.reading import SATURATED, Reading
from headworks.core.speeds import Speed
from headworks.core.types import Capacity, ReplicaSample, Work
from headworks.core.unread import begin_to_read

if TYPE_CHECKING:
    from headworks.core.lane import Lane
    from headworks.core.life import Life

Runs = Mapping[str, "Life"]
DOWN_S = 1.0
"""A replica that refused a connection is left alone this long, or until a sample of it arrives."""
AVOID_S = 1.0
"""Where there are others, one that was busy is asked last for so long, and for longer if it said so."""
BUSY_S_MAX = 60.0
"""However much later an engine wants to be asked again: it is asked after so long."""
BROKEN = "breaker_open"
UNCOUNTED_S = float("inf")
"""Left alone until a sample has been counted."""


class Replica:
    """One engine: what it said, when, and what we have on it."""

    __slots__ = (
        "_kv_of_a_token",
        "_kv_ratio",
        "_kv_until_s",
        "_runs",
        "avoid_until_s",
        "breaker",
        "busy_until_s",
        "capacity",
        "closing",
        "decode",
        "down_until_s",
        "floors",
        "incarnation_asked",
        "incarnation_number",
        "incarnation_told",
        "is_withdrawn",
        "iteration_s",
        "leaves",
        "limit",
        "memory",
        "name",
        "opening",
        "policy",
        "prefill",
        "progress_s",
        "reader_s",
        "reader_sequence",
        "reading",
        "requests",
        "sample",
        "scope",
        "sent_tokens",
        "speculative",
        "speed",
        "stalls_at_s",
        "stamps_asked",
        "step_s",
        "tokens",
        "tokens_max",
        "unproved",
        "unread_tokens",
        "unstamped",
    )

    def __init__(self, name: str, policy: PoolPolicy, promise_s: float | None, runs: Runs, speculative: bool = False) -> None:
        self.name = name
        self.speculative = speculative
        """It decodes speculatively."""
        self.leaves = self.is_withdrawn = False
        """It ends what it has and gets nothing new; and the policy does not name it any more."""
        self.scope = f"replica:{name}"
        self.policy = policy
        self.capacity: Capacity | None = None
        self.sample: ReplicaSample | None = None
        self.progress_s = 0.0
        """When its iteration clock was last seen to advance, or it was seen empty."""
        self.iteration_s: float | None = None
        """What one iteration took between the last two samples in which its clock moved; None before."""
        self.step_s: float | None = None
        """The same between the last two; None if it did not move, or there is no clock."""
        self.stalls_at_s = float("inf")
        """With work inside and the clock standing still it is stalled from then on."""
        self._kv_ratio = self._kv_of_a_token = 0.0
        self._kv_until_s = float("-inf")
        self.down_until_s = 0.0
        self.breaker = Breaker(policy.breaker)
        self.avoid_until_s = 0.0
        """It refused something as busy a moment ago: others of its pool are asked first."""
        self.busy_until_s = 0.0
        """It refused something as busy, and said not to come back before then."""
        self.memory = Memory(self, runs)
        self.tokens_max: int | None = None
        """Memory it may be charged with: what it holds × over-commit; None while nobody knows."""
        self.tokens = 0
        self.requests = 0
        self.opening = 0
        """Executions sent there that have not shown a first byte yet."""
        self.unread_tokens = 0
        """Of prompts whose first byte says when they were read: the streamed ones (`core/unread.py`)."""
        self.sent_tokens = 0
        """KV tokens of prompts sent since the last sample began: the gauge cannot show them yet."""
        self._runs = runs
        self.floors: Floors | None = Floors(policy.floors, {}) if policy.floors else None
        """Memory that is guaranteed to models here; None: to none."""
        self.limit = RunningLimit(policy.active_requests_max)
        self.reading = Reading(policy, promise_s)
        self.prefill, self.decode, self.speed = PrefillTime(), DecodeTime(), Speed()
        self.closing: dict[str, ClockProof] = {}
        """Executions whose server side has closed, waiting for the clock proof."""
        self.unproved: dict[str, float] = {}
        """Executions that must be proved stopped by counting or by a new incarnation, and since when."""
        self.unstamped: dict[str, float] = {}
        """Executions whose first byte was seen at that time: the next sample begun after it names their incarnation."""
        self.incarnation_told = ""
        """The last one the ledger has answered for; until then it is told again with every sample."""
        self.incarnation_asked = ""
        """The incarnation the ledger was last told."""
        self.stamps_asked: tuple[str, ...] = ()
        self.incarnation_number = 0
        """The number the ledger gave the newest incarnation."""
        self.reader_sequence = 0
        """The ledger sequence (Q) our seat as reader was given at; a sample begun after `reader_s` may be put with it."""
        self.reader_s = float("-inf")

    def change_policy(self, policy: PoolPolicy, promise_s: float | None) -> None:
        self.policy = policy
        self.limit.fix(policy.active_requests_max)
        self.breaker.change_policy(policy.breaker)
        self.floors = Floors(policy.floors, self.by_model()) if policy.floors else None
        self.memory.learn()
        self.reading.change_policy(policy, promise_s)

    def forget_ledger(self) -> None:
        """Another store answers: it has not been told of this engine, and its sequences and numbers are others."""
        self.incarnation_told = ""
        self.incarnation_number = self.reader_sequence = 0
        self.stamps_asked = ()
        self.unstamped.clear()

    def by_model(self) -> dict[str, int]:
        """Memory that is taken here, by model."""
        found: dict[str, int] = {}
        for life in self._runs.values():
            if life.execution.replica == self.name:
                found[life.request.model] = found.get(life.request.model, 0) + life.work.kv_tokens
        return found

    def asked(self, life: Life, now_s: float) -> None:
        """One is asked for, to be sent here."""
        if not self.breaker.is_closed:
            self.breaker.sent(life.execution.id, now_s)
        begin_to_read(life, self)

    def refused_connection(self, now_s: float) -> None:
        """Nobody listens there: leave it alone for a moment."""
        self.down_until_s = max(self.down_until_s, now_s + DOWN_S)

    def refused_as_busy(self, retry_after_s: float, now_s: float) -> None:
        """It has no room, whatever we have there."""
        told_s = min(retry_after_s, BUSY_S_MAX)
        self.busy_until_s = max(self.busy_until_s, now_s + told_s)
        self.avoid_until_s = now_s + max(told_s, AVOID_S)

    def take_stock(self) -> None:
        """Another life's work may run there: send nothing until a look at it has been counted, if it can be looked at."""
        if self.sample is None:
            self.down_until_s = UNCOUNTED_S

    def counted(self) -> None:
        """What runs there has been compared with what is charged."""
        if self.down_until_s == UNCOUNTED_S:
            self.down_until_s = 0.0

    def sampled(self, sample: ReplicaSample, now_s: float) -> None:
        """Take a sample in. Progress: the clock moved, or there was nothing to do."""
        before = self.sample
        moved = before is None or before.incarnation != sample.incarnation or before.iterations != sample.iterations
        self.step_s = iteration_s(before, sample)
        self.iteration_s = self.step_s or self.iteration_s
        if sample.preemptions_total and self.memory.sampled(before, sample):
            self.tokens_max = self.memory.tokens_max
        if before is not None and before.incarnation != sample.incarnation:
            self.prefill.restarted()
            self.decode.restarted()
            self.speed.restarted()
        if moved or not sample.running or sample.iterations is None:
            self.progress_s = now_s
        self.sample = sample
        self.stalls_at_s = self.progress_s + self.policy.stalled_s if sample.running else float("inf")
        known = sample.kv_used_ratio is not None
        self._kv_ratio = sample.kv_used_ratio or 0.0
        self._kv_until_s = sample.ended_s + self.policy.forget_s if known else float("-inf")
        self.sent_tokens = 0
        if sample.running is None or sample.waiting is None:
            self.down_until_s = 0.0
            return
        if self.down_until_s != UNCOUNTED_S:
            self.down_until_s = 0.0
        # Ours that have not begun yet wait to be read, not for a place.
        self.limit.sampled(sample.running, sample.waiting - self.opening, now_s)

    def kv_used_ratio(self, now_s: float) -> float | None:
        """The gauge plus what was sent since, while the sample is worth anything; None means ledger-only (B3)."""
        return self._kv_ratio + self.sent_tokens * self._kv_of_a_token if now_s <= self._kv_until_s else None

    def waiting(self, now_s: float) -> int:
        """Requests waiting inside the engine, as far as a sample fresh enough shows."""
        sample = self.sample
        if sample is None or sample.waiting is None or now_s - sample.ended_s > self.policy.stale_s:
            return 0
        return sample.waiting

    def state(self, now_s: float) -> str:
        """`ready`, `lost` (unknown or refusing connections), `draining`, `breaker_open` or `stalled` (a frozen clock)."""
        if self.capacity is None or now_s < self.down_until_s:
            return "lost"
        if self.leaves:
            return "draining"
        if not self.breaker.lets_pass(now_s):
            return BROKEN
        return "stalled" if now_s > self.stalls_at_s else "ready"

    @property
    def is_empty(self) -> bool:
        """Nothing of ours is charged there, and nothing is left to be proved."""
        return not (self.requests or self.unproved or self.closing)

    def learn_capacity(self) -> None:
        """Compute what follows from the policy and from what the engine said of itself."""
        self.memory.learn()
        self.limit.hold(self.capacity.running_max if self.capacity is not None else None)
        self.tokens_max = self.memory.tokens_max
        self._kv_of_a_token = 1.0 / self.memory.kv_tokens if self.memory.kv_tokens else 0.0

    def requests_max(self) -> int | None:
        """What the ledger is told: sequences it may run at once, as the operator says or as the engine does."""
        places = (self.policy.active_requests_max, self.capacity.running_max if self.capacity is not None else None)
        return min((limit for limit in places if limit is not None), default=None)

    def room(self, work: Work, lane: Lane, now_s: float, model: str = "") -> str:
        """Why this work cannot go there now, or "". By what this gateway has taken; the ledger has the last word.

        What is asked inside a reserve is for the ledger to judge: nobody else may have that room (`core/reserves.py`).
        """
        if self.capacity is None or now_s < self.down_until_s or now_s > self.stalls_at_s:
            return "no_replica"
        if not self.breaker.is_closed and not self.breaker.lets_pass(now_s):
            return BROKEN
        inside = lane.reserve is not None and lane.reserve.has_room(work)
        kv_used = self.kv_used_ratio(now_s)
        if (
            kv_used is not None
            and kv_used > self.policy.kv_ratio_max
            and not (inside and kv_used + work.kv_tokens * self._kv_of_a_token <= 1.0)
        ):
            return "kv_saturation"
        limit = self.limit.value
        if self.requests and self.requests + work.sequences > limit and not inside:
            self.limit.reached = True
            return "queue_timeout"
        if self.tokens_max is not None and self.tokens + work.kv_tokens > self.memory.unguarded_tokens and not inside:
            kept_tokens = lane.reserves.kept_from(lane, now_s)[0] // len(lane.pool.replicas) if lane.reserves is not None else 0
            reason = self.memory.beyond(work, lane.lengths, now_s, kept_tokens)
            if reason:
                return reason
        floors, most = self.floors, self.tokens_max
        if floors is not None and most is not None and self.tokens + work.kv_tokens + floors.kept_tokens(model) > most:
            return RESERVED
        reading = self.reading
        if reading.tokens and work.prefill_tokens >= reading.from_tokens:
            tokens = reading.size(work, lane)
            if not reading.has_room(tokens, lane.service_class.ttft_slo_s):
                return SATURATED
        promise = lane.token_promise
        if promise is not None and not inside and self.decode.is_full(promise, self.requests + work.sequences):
            return "compute_saturation"  # not `queue_timeout`: nobody may pass who would make it slower still
        return ""
