"""What is commonly done in front of an engine: no control, a number of places, a queue's end, a budget, a gauge, a rate.

The numbers each needs are in `Tuning`; the bench gives every rule what it measured of the same engine at saturation.
"""

from __future__ import annotations

from collections import deque

from headworks.core.policy import Policy
from headworks.sim.baselines import Job, Rule, Tuning

ENDS_KEPT = 64
ENDS_MIN = 5


class NoControl(Rule):
    """Everything goes to the engine as it comes."""


class FixedConcurrency(Rule):
    """So many requests inside at a time; the others wait, first in first out, until their clients leave."""

    def has_room(self, job: Job, now_s: float) -> bool:
        return len(self.inside) < self.tuning.concurrency


class TailDrop(FixedConcurrency):
    """The same with a short queue: who finds it full is refused."""

    def refuses(self, job: Job, now_s: float) -> str:
        return "queue_full" if len(self.waiting) >= self.tuning.queue_max else ""


class QueueByRate(FixedConcurrency):
    """The same, and who would wait longer than its promise is refused: requests waiting ÷ requests ended per second.

    A request is a request, however long: that is the method's known error.
    """

    def __init__(self, tuning: Tuning, policy: Policy, seed: int) -> None:
        super().__init__(tuning, policy, seed)
        self._ends_s: deque[float] = deque(maxlen=ENDS_KEPT)

    def refuses(self, job: Job, now_s: float) -> str:
        promise_s = job.service_class.ttft_slo_s
        if promise_s is None or len(self._ends_s) < ENDS_MIN or not self.waiting:
            return ""
        rate_per_s = (len(self._ends_s) - 1) / max(1e-9, now_s - self._ends_s[0])
        return "queue_delay_exceeded" if len(self.waiting) > promise_s * rate_per_s else ""

    def ended(self, job: Job, now_s: float) -> None:
        self._ends_s.append(now_s)


class TokenBudget(Rule):
    """Prompt and the whole maximum of everything inside fit the engine's memory; who does not fit waits for its promise."""

    reserves = True

    def __init__(self, tuning: Tuning, policy: Policy, seed: int) -> None:
        super().__init__(tuning, policy, seed)
        self._tokens = 0

    def expires_s(self, job: Job) -> float:
        return promised_until_s(job)

    def has_room(self, job: Job, now_s: float) -> bool:
        return self._tokens + job.work.tokens <= self.kv_tokens or not self.inside

    def sent(self, job: Job, now_s: float) -> None:
        self._tokens += job.work.tokens

    def ended(self, job: Job, now_s: float) -> None:
        self._tokens -= job.work.tokens


class KvThreshold(Rule):
    """Refuse while the engine's memory gauge is above a limit."""

    looks = True

    def refuses(self, job: Job, now_s: float) -> str:
        fullest = min((sample.kv_used_ratio or 0.0 for sample in self.samples.values()), default=0.0)
        return "kv_saturation" if fullest > self.tuning.kv_ratio_max else ""


class TokenBucket(Rule):
    """A rate of tokens: a prompt is paid when it comes, its answer when it has ended. Who finds the bucket empty is refused."""

    def __init__(self, tuning: Tuning, policy: Policy, seed: int) -> None:
        super().__init__(tuning, policy, seed)
        self._size = tuning.burst_s * tuning.tokens_per_s
        self._level = self._size
        self._filled_s = 0.0

    def refuses(self, job: Job, now_s: float) -> str:
        self._level = min(self._size, self._level + (now_s - self._filled_s) * self.tuning.tokens_per_s)
        self._filled_s = now_s
        if self._level <= 0:
            return "rate_limit_exceeded"
        self._level -= job.prompt_tokens
        return ""

    def ended(self, job: Job, now_s: float) -> None:
        self._level -= job.output_tokens


def promised_until_s(job: Job) -> float:
    """The end of its class's promise: waiting longer cannot help it."""
    promise_s = job.service_class.ttft_slo_s
    return job.request.arrived_s + (job.service_class.wait_s_max if promise_s is None else promise_s)
