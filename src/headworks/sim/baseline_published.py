"""What was published as a better way, written again from its formula. Each class names its source.

Where a publication leaves a number open, the choice made here is the one that is kinder to it, and is stated.
"""

from __future__ import annotations

from random import Random

from headworks.core.policy import Policy
from headworks.sim.baseline_rules import (
    FixedConcurrency,
    KvThreshold,
    NoControl,
    QueueByRate,
    TailDrop,
    TokenBucket,
    TokenBudget,
    promised_until_s,
)
from headworks.sim.baselines import Job, Rule, Tuning


class VirtualTokenCounter(FixedConcurrency):
    """VTC: Sheng et al., *Fairness in Serving Large Language Models*, OSDI 2024.

    A counter per tenant: its input tokens at dispatch and twice its output tokens as they appear. The backlogged tenant
    with the least is served. One that becomes backlogged is lifted to the least of those that are. It refuses nobody.
    """

    INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0

    def __init__(self, tuning: Tuning, policy: Policy, seed: int) -> None:
        super().__init__(tuning, policy, seed)
        self._counters: dict[str, float] = {}
        self._lines: dict[str, dict[str, Job]] = {}

    def waits(self, job: Job, now_s: float) -> None:
        tenant = job.request.key.tenant
        line = self._line(tenant)
        if not line:
            least = min((self._counters[name] for name in self._lines if name != tenant and self._line(name)), default=0.0)
            self._counters[tenant] = max(self._counters.get(tenant, 0.0), least)
        line[job.request.id] = job

    def _line(self, tenant: str) -> dict[str, Job]:
        """Its jobs that still wait: those whose clients have left are found to be gone here."""
        line = self._lines.setdefault(tenant, {})
        while line and next(iter(line)) not in self.waiting:
            del line[next(iter(line))]
        return line

    def next(self, now_s: float) -> Job | None:
        backlogged = [tenant for tenant in self._lines if self._line(tenant)]
        if not backlogged:
            return None
        job = next(iter(self._lines[min(backlogged, key=self._counters.__getitem__)].values()))
        return job if self.has_room(job, now_s) else None

    def sent(self, job: Job, now_s: float) -> None:
        self._counters[job.request.key.tenant] += self.INPUT_WEIGHT * job.prompt_tokens

    def progressed(self, job: Job, tokens: int) -> None:
        self._counters[job.request.key.tenant] += self.OUTPUT_WEIGHT * tokens


class Saturation(Rule):
    """What llm-d's gates have in common (llm-d-router, flow control, 2026-08): s = mean over pods of
    max(waiting ÷ 5, KV used ÷ 0.8), from the newest samples. Classes are bands: the first of the policy is the highest."""

    looks = True
    WAITING_LIMIT, KV_LIMIT_RATIO = 5, 0.8

    def __init__(self, tuning: Tuning, policy: Policy, seed: int) -> None:
        super().__init__(tuning, policy, seed)
        self.bands = {name: number for number, name in enumerate(policy.classes)}
        self.saturation = 0.0

    def sampled(self, now_s: float) -> None:
        each = [
            max((one.waiting or 0) / self.WAITING_LIMIT, (one.kv_used_ratio or 0.0) / self.KV_LIMIT_RATIO)
            for one in self.samples.values()
        ]
        self.saturation = sum(each) / len(each)

    def next(self, now_s: float) -> Job | None:
        """Of the highest band that may dispatch, the first."""
        heads: dict[int, Job] = {}
        for job in self.waiting.values():
            heads.setdefault(self.bands[job.request.service_class], job)
            if len(heads) == len(self.bands):
                break
        return next((heads[band] for band in sorted(heads) if self.opens(band)), None)

    def opens(self, band: int) -> bool:
        return True


class UtilisationGate(Saturation):
    """llm-d's flow control with its utilisation detector: dispatch while s < 1, highest band first, first come first served.

    Its time to live is chosen as the promise, so that it does not serve what is late already.
    """

    def expires_s(self, job: Job) -> float:
        return promised_until_s(job)

    def opens(self, band: int) -> bool:
        return self.saturation < 1.0


class ProbabilisticAdmitter(Saturation):
    """llm-d's probabilistic admitter: sheddable work is refused with probability min(1, 300·s⁵), everything else passes.

    Sheddable are here all bands but the highest.
    """

    FACTOR, POWER = 300.0, 5

    def __init__(self, tuning: Tuning, policy: Policy, seed: int) -> None:
        super().__init__(tuning, policy, seed)
        self._random = Random(f"probabilistic {seed}")

    def refuses(self, job: Job, now_s: float) -> str:
        chance = min(1.0, self.FACTOR * self.saturation**self.POWER)
        sheddable = self.bands[job.request.service_class] > 0
        return "prefill_saturated" if sheddable and self._random.random() < chance else ""


class ReflectiveCeiling(UtilisationGate):
    """llm-d's soft reflective ceiling: band i of N dispatches while s < 1 − i·s/(N − 1); past that, one call in
    round(s/(1 − s)) is let through, and none from s = 1 on. A call is one look at the band's head."""

    def __init__(self, tuning: Tuning, policy: Policy, seed: int) -> None:
        super().__init__(tuning, policy, seed)
        self._calls = [0] * len(self.bands)

    def opens(self, band: int) -> bool:
        s, last = self.saturation, max(1, len(self.bands) - 1)
        if s < 1.0 - band * s / last:
            return True
        if s >= 1.0:
            return False
        self._calls[band] += 1
        return self._calls[band] % max(1, round(s / (1.0 - s))) == 0


class CodelLifo(FixedConcurrency):
    """Controlled delay with adaptive LIFO: Maurer, *Fail at Scale*, ACM Queue 2015.

    While the queue was empty within the last N, a request may wait N, oldest first; else only M, newest first. There N is
    100 ms and M 5 ms, for calls of milliseconds; here N is half the class's promise and M the twentieth part of N.
    """

    PROMISE_RATIO, SHORT_RATIO = 0.5, 0.05

    def __init__(self, tuning: Tuning, policy: Policy, seed: int) -> None:
        super().__init__(tuning, policy, seed)
        self._empty_s = 0.0
        promises_s = [one.ttft_slo_s for one in policy.classes.values() if one.ttft_slo_s is not None]
        self._interval_s = self.PROMISE_RATIO * min(promises_s, default=1.0)
        self._overloaded = False

    def _look(self, now_s: float) -> None:
        if not self.waiting:
            self._empty_s = now_s
        self._overloaded = now_s - self._empty_s > self._interval_s

    def waits(self, job: Job, now_s: float) -> None:
        if len(self.waiting) == 1:
            self._empty_s = now_s
        self._look(now_s)

    def expires_s(self, job: Job) -> float:
        wait_s = promised_until_s(job) - job.request.arrived_s
        limit_s = self.PROMISE_RATIO * wait_s
        return job.request.arrived_s + limit_s * (self.SHORT_RATIO if self._overloaded else 1.0)

    def next(self, now_s: float) -> Job | None:
        self._look(now_s)
        order = reversed(self.waiting.values()) if self._overloaded else iter(self.waiting.values())
        job = next(order, None)
        return job if job is not None and self.has_room(job, now_s) else None


class Gradient2(Rule):
    """Netflix concurrency-limits, Gradient2: L ← 0.8·L + 0.2·(L·clip(1.5·long ÷ short, 0.5, 1) + 4), refusing beyond L.

    `short` is the newest measurement, `long` its exponential mean over 600, pulled down while it is twice as high; frozen
    while less than half of L is used. Fed with the time to the first token less the prompt's own reading time, as a whole
    answer's time would follow its length.
    """

    SMOOTHING, TOLERANCE, QUEUE, WINDOW, LIMIT_MIN, LIMIT_MAX = 0.2, 1.5, 4, 600, 4, 1000

    def __init__(self, tuning: Tuning, policy: Policy, seed: int) -> None:
        super().__init__(tuning, policy, seed)
        self.limit = 20.0
        self._long_s: float | None = None

    def refuses(self, job: Job, now_s: float) -> str:
        return "queue_full" if len(self.inside) >= int(self.limit) else ""

    def began(self, job: Job, now_s: float) -> None:
        if job.sent_s is None:
            return
        short_s = max(1e-3, now_s - job.sent_s - job.prompt_tokens * self.tuning.prefill_token_s)
        long_s = short_s if self._long_s is None else self._long_s + (short_s - self._long_s) * 2 / (self.WINDOW + 1)
        if long_s > 2 * short_s:
            long_s *= 0.95
        self._long_s = long_s
        if len(self.inside) < self.limit / 2:
            return
        gradient = max(0.5, min(1.0, self.TOLERANCE * long_s / short_s))
        wanted = self.limit * gradient + self.QUEUE
        smoothed = (1 - self.SMOOTHING) * self.limit + self.SMOOTHING * wanted
        self.limit = max(self.LIMIT_MIN, min(self.LIMIT_MAX, smoothed))


RULES: dict[str, type[Rule]] = {
    "no_control": NoControl,
    "fixed_concurrency": FixedConcurrency,
    "tail_drop": TailDrop,
    "queue_by_rate": QueueByRate,
    "token_budget": TokenBudget,
    "kv_threshold": KvThreshold,
    "token_bucket": TokenBucket,
    "vtc": VirtualTokenCounter,
    "utilisation_gate": UtilisationGate,
    "probabilistic": ProbabilisticAdmitter,
    "reflective_ceiling": ReflectiveCeiling,
    "codel_lifo": CodelLifo,
    "gradient2": Gradient2,
}
"""By the name a scenario and the bench call them."""
