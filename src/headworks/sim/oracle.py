"""The clairvoyant baseline: it knows every output before it is made, the engine's true step time and all that is inside it.

It is no method, but a mark: what could be had on time, by somebody who need not guess. It keeps requests at the door as long
as it can, because everything known later is known better, and gives the engine just what fills its next steps. Whom of the
waiting it gives:

- By deadline, and if not all can be on time, without those that are worth least: going through the waiting by deadline, as soon
  as one would be late, the one of the lowest value so far is let go (Moore and Hodgson's rule for the fewest late jobs, by
  value). Value is the tokens that will be settled ÷ what they cost of both currencies, engine seconds and memory over time.
- Where memory is what is short, by value alone.
- Only who fits what will be held at once with the true remaining outputs, so that nobody is ever preempted
  (`core/peak.py`, which is exact where lengths are known).

Its choice is greedy, so a better schedule may exist; but each of its decisions is made with the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from headworks.core.peak import peak_tokens
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
MEMORY_SHORT_RATIO = 0.9
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
        self._values[job.request.id] = self._worth(job)

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
        on_time = self._on_time(course, unread_tokens, now_s)
        if self._peak_tokens(None, course) > MEMORY_SHORT_RATIO * self.kv_tokens:
            on_time.sort(key=self._value, reverse=True)
        return next((job for job in on_time if self._peak_tokens(self._truth(job.request.id), course) <= self.kv_tokens), None)

    def _on_time(self, course: Course, unread_tokens: int, now_s: float) -> list[Job]:
        """Who is worth most of those that can be on time together, by deadline."""
        cost, budget_tokens = self._settings.cost, max(1, self._settings.batch_tokens_max - course.decoding)
        step_s = cost.duration_s(0, 0, course.decoding, course.context_tokens)
        token_s = step_s / budget_tokens + cost.prefill_token_s
        chosen: list[tuple[float, str, float]] = []
        # The first token comes at the end of a step, and until then the step may be a full one.
        until_s = now_s + self._full_step_s(course.decoding, course.context_tokens) + unread_tokens * token_s
        for by_s, id in sorted((self._late_s(job), id) for id, job in self.waiting.items()):
            prompt_tokens = self._truth(id).prompt_tokens
            reading_s = prompt_tokens * token_s + cost.attention_s * prompt_tokens * prompt_tokens / 2
            heappush(chosen, (self._values[id], id, reading_s))
            until_s += reading_s
            while until_s > by_s and chosen:
                until_s -= heappop(chosen)[2]
        return sorted((self.waiting[id] for _, id, _ in chosen), key=self._late_s)

    def _late_s(self, job: Job) -> float:
        """Its deadline, less what is kept free of its promise."""
        arrived_s = job.request.arrived_s
        return arrived_s + (promised_until_s(job) - arrived_s) * (1 - MARGIN_RATIO)

    def sent(self, job: Job, now_s: float) -> None:
        self._sent.append((now_s, self._truth(job.request.id)))

    def _value(self, job: Job) -> float:
        return self._values[job.request.id]

    def _worth(self, job: Job) -> float:
        """Settled tokens ÷ the share of engine time and of memory over time that they take."""
        planned, cost = self._truth(job.request.id), self._settings.cost
        prompt, output = planned.prompt_tokens, planned.output_tokens
        step_s = self._full_step_s(0, 0)
        reading_s = prompt * step_s / self._settings.batch_tokens_max + cost.attention_s * prompt * prompt / 2
        held_token_s = (prompt * output + output * output / 2) * step_s / 2
        return (prompt + output) / (reading_s + held_token_s / max(1, self.kv_tokens))

    def _full_step_s(self, decoding: int, context_tokens: int) -> float:
        tokens = self._settings.batch_tokens_max - decoding
        return self._settings.cost.duration_s(tokens, 0, decoding, context_tokens)

    def _peak_tokens(self, planned: Planned | None, course: Course) -> int:
        """The most memory that is ever held, with the true remaining outputs, if this one joins now."""
        block_tokens = self._settings.block_tokens
        ends = course.ends + [(sent.output_tokens, sent.prompt_tokens) for _, sent in self._sent]
        if planned is not None:
            ends.append((planned.output_tokens, planned.prompt_tokens))
        return peak_tokens((left, 1, tokens + block_tokens) for left, tokens in ends)
