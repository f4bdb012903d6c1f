"""How far the memory of one engine is promised beyond what it has, and what keeps that from being too far (D4).

Sums of reservations starve an engine whose answers are long: each is reserved to its end from its beginning, and when the
first is long, the others are still short. On the public trace of a reasoning model what was held came to 0.46 of what was
reserved, though every tenant's 95 % quantile was known exactly (2026-11-28). So what may be reserved is

    memory × over-commit

With `over_commit: auto` it begins at 1.0. While the sum is what stands in the way it rises by `STEP_RATIO` a second, as
long as fewer than one in `QUIET_REQUESTS` answers has been preempted by its engine; a preemption takes half of the excess
back. It never passes `RATIO_MAX`. Newcomers meet the lower limit at once; the ledger, which also answers those that grow, is
told of it only as fast as what is reserved goes down to it, or a preemption of one would end many others.

Above 1.0 the sum alone does not protect the memory any more. Whatever goes into that part has to pass a second check: the
*future peak* (`core/peak.py`), with this and everything that runs there, has to stay within `PEAK_RATIO` of the memory. How
long an answer goes on is as likely as it was for those that became longer than it is (`core/lengths.py`); how far it is, by
what was counted or by the time and the engine's clock, whichever is more. Other gateways are told the mean of it. Below 1.0
nobody asks, so nothing is computed.

What runs here is not looked at anew for that: `core/running.py` keeps the outlook, and changes what is another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headworks.core.lengths import Lengths
from headworks.core.life import LEAVING
from headworks.core.peak import Group, Profile, groups_of, profile_of
from headworks.core.running import LOOK_EVERY_S, Running, held_tokens
from headworks.core.types import ReplicaSample, Work

if TYPE_CHECKING:
    from headworks.core.life import Life
    from headworks.core.replica import Replica

UNKNOWN = 1 << 62
RATIO_MAX = 2.5
STEP_RATIO = 0.05
RISE_EVERY_S = 1.0
SPARE_RATIO = 0.02
"""While the limit goes down, so much of the memory stays for those that grow."""
QUIET_REQUESTS = 1000
PEAK_RATIO = 0.95
"""The rest is for what nobody can foresee: that many are longer than their like at once."""


class Memory:
    """Of one engine, as far as this gateway knows."""

    __slots__ = (
        "_answers",
        "_is_pressed",
        "_looked_s",
        "_peak_of",
        "_peak_tokens",
        "_replica",
        "_risen_s",
        "_told_tokens",
        "guarded_tokens",
        "kv_tokens",
        "others",
        "preempted_s",
        "preemptions",
        "ratio",
        "running",
        "unguarded_tokens",
    )

    def __init__(self, replica: Replica, runs: Mapping[str, Life]) -> None:
        """`runs`: everything this gateway has asked for, on whatever engine."""
        self._replica = replica
        self.kv_tokens: int | None = None
        """What the engine has; None while nobody knows."""
        self.guarded_tokens = 0
        """The part of it that the future peak may take."""
        self.unguarded_tokens = UNKNOWN
        """Up to so much reserved here nobody needs to look at the future peak: what the engine has, less what others take."""
        self.others: list[Group] = []
        """What runs there for other gateways, by their profiles."""
        self.preemptions = 0
        """Of the engine, as far as its samples told."""
        self.preempted_s = float("-inf")
        """When a look last showed a new one."""
        self._answers = QUIET_REQUESTS
        """That have ended since the last preemption."""
        self._is_pressed = False
        """The sum of what is reserved stood in somebody's way since the last beat."""
        self._told_tokens = 0
        """The limit that the ledger was told last."""
        self._risen_s = self._looked_s = float("-inf")
        self.running = Running(replica, runs)
        self._peak_of: Work | None = None
        self._peak_tokens = 0
        self.ratio = 1.0
        self.learn()

    def learn(self) -> None:
        """The policy is another, or the engine said what it has."""
        capacity, stated = self._replica.capacity, self._replica.policy.over_commit
        self.kv_tokens = capacity.kv_tokens if capacity is not None else None
        self.guarded_tokens = int(PEAK_RATIO * (self.kv_tokens or 0))
        if self.kv_tokens is not None:
            others_tokens = sum(held + remaining * count for remaining, count, held in self.others)
            self.unguarded_tokens = max(0, self.kv_tokens - others_tokens)
        if stated is not None:
            self.ratio = stated

    @property
    def tokens_max(self) -> int | None:
        """What may be reserved of it by a newcomer."""
        return None if self.kv_tokens is None else int(self.kv_tokens * self.ratio)

    def limit(self) -> int | None:
        """What the ledger is to be told now: the same, or what is still reserved while that goes down."""
        most = self.tokens_max
        if most is not None:
            going_down = self._replica.tokens + int(SPARE_RATIO * (self.kv_tokens or 0))
            self._told_tokens = max(most, min(self._told_tokens, going_down))
        return None if most is None else self._told_tokens

    # the over-commit

    def beyond(self, work: Work, lengths: Lengths, now_s: float, kept_tokens: int = 0) -> str:
        """Why this, which is more than what is left of the engine's memory, may not be reserved; or "".

        `kept_tokens`: so much of it is reserved for others, who do not have it yet.
        """
        replica = self._replica
        if replica.tokens + work.kv_tokens > (replica.tokens_max or 0):
            self._is_pressed = True
            return "queue_timeout"
        most = self.guarded_tokens - kept_tokens
        if self.ratio > 1.0 and replica.policy.guards_peak and self.peak_with(work, lengths, now_s) > most:
            return "kv_saturation"
        return ""

    def ended(self) -> None:
        """An answer has ended there."""
        self._answers += 1

    def sampled(self, before: ReplicaSample | None, sample: ReplicaSample) -> bool:
        """Count preemptions between two looks at the same engine. Whether the over-commit is another now."""
        if before is None or before.incarnation != sample.incarnation:
            return False
        if sample.preemptions_total is None or before.preemptions_total is None:
            return False  # a page without the counter is no engine that never preempted
        new = sample.preemptions_total - before.preemptions_total
        if new <= 0:
            return False
        self.preemptions += new
        self.preempted_s = sample.ended_s
        self._answers = 0
        self._is_pressed = False
        if self._replica.policy.over_commit is not None or self.ratio == 1.0:
            return False
        self.ratio = 1.0 + (self.ratio - 1.0) / 2
        return True

    def beat(self, now_s: float) -> bool:
        """Once a second: promise more, if that was wanted and nothing speaks against it. Whether the ledger has to be told."""
        pressed, self._is_pressed = self._is_pressed, False
        may_rise = pressed and self._replica.policy.over_commit is None and self._answers >= QUIET_REQUESTS
        if may_rise and now_s >= self._risen_s + RISE_EVERY_S:
            self._risen_s = now_s
            self.ratio = min(RATIO_MAX, self.ratio + STEP_RATIO)
        told_tokens = self._told_tokens
        return (self.limit() or 0) != told_tokens

    # the future peak

    def peak_with(self, work: Work, lengths: Lengths, now_s: float) -> int:
        """The most that will be held there at once, with this. `lengths`: of its tenant's answers."""
        if self.running.brought_up(now_s) or work is not self._peak_of or now_s >= self._looked_s + LOOK_EVERY_S:
            self._peak_of, self._looked_s = work, now_s
            self._peak_tokens = self.running.peak_with(work, lengths)
        return self._peak_tokens

    def profile(self, now_s: float) -> Profile:
        """What runs there for this gateway, as others are told."""
        return profile_of(self._group(life, made) for life, made in self.running.of_ours(now_s))

    def _group(self, life: Life, made: int) -> Group:
        """As others are told of one: with the mean of what its like still wrote."""
        work, more = life.work, life.lane.lengths.more_tokens(made)
        remaining = work.output_tokens - made if more is None else min(more, work.output_tokens_max - made)
        return (
            0 if life.state == LEAVING else max(0, remaining),
            work.sequences,
            held_tokens(self._replica, work, life.lane.lengths, made),
        )

    def learn_others(self, profile: Profile) -> None:
        """What other gateways have there."""
        self.others = groups_of(profile)
        self.running.learn_others(self.others)
        self.learn()
