"""The clairvoyant baseline: it knows every output before it is made, the engine's true step time and all that is inside it.

It is no method, but a mark: what could be had on time, by somebody who need not guess. It keeps requests at the door as long
as it can, because everything known later is known better, and gives the engine just what fills its next steps. Whom of the
waiting it gives is a greedy choice by value: the tokens that will be settled ÷ what they cost of the scarcer of the two
currencies, engine seconds and memory held over time. Only who will be on time is given, and only while

    max over completion instants of (tokens held by those who run on) ≤ memory,

with the true remaining outputs, so that nobody is ever preempted (the future peak: Gong et al., *Past-Future Scheduler*,
ASPLOS 2025). It is greedy, so a better schedule may exist; but each of its decisions is made with the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headworks.core.policy import Policy
from headworks.sim.baseline_rules import promised_until_s
from headworks.sim.baselines import Job, Rule, Tuning
from headworks.sim.batching import ContinuousBatching
from headworks.sim.engine import Course
from headworks.sim.presets import BatchingSettings
from headworks.sim.traffic import Planned

STEPS_AHEAD = 2.0
"""Steps' worth of unread prompts the engine is kept supplied with: the one that is being computed, and the next."""
MARGIN_RATIO = 0.06
"""Of a promise that is kept free, as steps are whole and the true load of the next ones is not exactly the present one."""
ON_THE_WAY_S = 0.01
"""What was sent so recently may not have reached the engine."""


class Oracle(Rule):
    """See the module. For one engine: the first that `engines` holds."""

    def __init__(
        self,
        tuning: Tuning,
        policy: Policy,
        seed: int,
        truth: Callable[[str], Planned],
        engines: Sequence[ContinuousBatching],
        settings: BatchingSettings,
    ) -> None:
        super().__init__(tuning, policy, seed)
        self._truth = truth
        self._engines = engines
        self._settings = settings
        self._sent: list[tuple[float, Planned]] = []
        self._values: dict[str, float] = {}

    def waits(self, job: Job, now_s: float) -> None:
        self._values[job.request.id] = self._value(job)

    def expires_s(self, job: Job) -> float:
        return promised_until_s(job)

    def looks_again_s(self, now_s: float) -> float:
        """At the end of the step that is being computed."""
        next_s = self._engines[0].next_s()
        return now_s + ON_THE_WAY_S if next_s is None else max(next_s, now_s) + 1e-6

    def next(self, now_s: float) -> Job | None:
        if not self.waiting:
            return None
        course = self._engines[0].course(now_s)
        self._sent = [(sent_s, planned) for sent_s, planned in self._sent if now_s - sent_s < ON_THE_WAY_S]
        unread_tokens = course.unread_tokens + sum(planned.prompt_tokens for _, planned in self._sent)
        budget_tokens = self._settings.batch_tokens_max - course.decoding
        if unread_tokens >= STEPS_AHEAD * budget_tokens or len(course.ends) + len(self._sent) >= self._settings.running_max:
            return None
        by_value = sorted(self.waiting.values(), key=lambda job: self._values[job.request.id], reverse=True)
        return next((job for job in by_value if self._is_good(job, course, unread_tokens, now_s)), None)

    def sent(self, job: Job, now_s: float) -> None:
        self._sent.append((now_s, self._truth(job.request.id)))

    def _value(self, job: Job) -> float:
        """Settled tokens ÷ the share of engine time and of memory over time that they take."""
        planned, cost = self._truth(job.request.id), self._settings.cost
        prompt, output = planned.prompt_tokens, planned.output_tokens
        step_s = self._full_step_s(0, 0)
        reading_s = prompt * step_s / self._settings.batch_tokens_max + cost.attention_s * prompt * prompt / 2
        held_token_s = (prompt * output + output * output / 2) * step_s / 2
        return (prompt + output) / (reading_s + held_token_s / max(1, self.kv_tokens))

    def _is_good(self, job: Job, course: Course, unread_tokens: int, now_s: float) -> bool:
        planned = self._truth(job.request.id)
        promise_s = job.service_class.ttft_slo_s
        if promise_s is not None:
            late_s = job.request.arrived_s + promise_s * (1 - MARGIN_RATIO)
            if now_s + self._reading_s(planned, course, unread_tokens) > late_s:
                return False
        return self._peak_tokens(planned, course) <= self.kv_tokens

    def _reading_s(self, planned: Planned, course: Course, unread_tokens: int) -> float:
        """Until its first token: everything unread is read in order, beside one token for each that decodes."""
        tokens = unread_tokens + planned.prompt_tokens
        budget_tokens = max(1, self._settings.batch_tokens_max - course.decoding)
        cost = self._settings.cost
        steps = 1 + tokens / budget_tokens
        own_attention_s = cost.attention_s * planned.prompt_tokens * planned.prompt_tokens / 2
        one_s = cost.duration_s(0, 0, course.decoding, course.context_tokens)
        return steps * one_s + tokens * cost.prefill_token_s + own_attention_s

    def _full_step_s(self, decoding: int, context_tokens: int) -> float:
        tokens = self._settings.batch_tokens_max - decoding
        return self._settings.cost.duration_s(tokens, 0, decoding, context_tokens)

    def _peak_tokens(self, planned: Planned, course: Course) -> int:
        """The most memory that is ever held, with the true remaining outputs, if this one joins now."""
        block = self._settings.block_tokens
        ends = [*course.ends, (planned.output_tokens, planned.prompt_tokens)]
        ends += [(sent.output_tokens, sent.prompt_tokens) for _, sent in self._sent]
        ends.sort(reverse=True)
        held = peak = 0
        for number, (left, tokens) in enumerate(ends, start=1):
            held += tokens + block
            peak = max(peak, held + number * left)
        return peak
