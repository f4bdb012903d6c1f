"""Other ways to admit, to be compared with: one small gate for all of them, and what a way has to say for itself.

A *rule* is one published or common way of holding work back. It sees what any gateway sees: the bytes of a prompt, the
maximum the client allows, its own counts, first tokens and ends as they happen, and samples of the engine's gauges that are
as old as everybody's. It never sees an output before it is there. The rules are in `baseline_rules.py` (what is commonly
done) and `baseline_published.py` (what was published as better); `oracle.py` has the one that may cheat.

`Baseline` does the rest, the same for each: it obeys the runner as `Gate` does, without a ledger, since one gateway with
nothing to survive needs none. It stops what nobody waits for any more and counts it as inside until the engine has closed.
So what differs between two runs is the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from headworks.core import events
from headworks.core.effects import Abort, Effect, Observe, Outcome, Record, Reply, Run, WakeAt
from headworks.core.policy import INFINITE_S, ClassPolicy, Policy
from headworks.core.types import Capacity, Decision, Execution, Forecast, ReplicaSample, Request, Usage, Work

BYTES_PER_TOKEN = 4
"""The common rule of thumb."""
NOTHING_FORECAST = Forecast(None, 0.0, None, None, None, 1.0, "none")


@dataclass(slots=True)
class Tuning:
    """The numbers that rules need and that no publication gives: an operator would find them at saturation."""

    concurrency: int = 64
    """Requests inside at a time."""
    queue_max: int = 32
    kv_ratio_max: float = 0.85
    tokens_per_s: float = 10_000.0
    burst_s: float = 5.0
    """So many seconds of the rate may come at once."""
    prefill_token_s: float = 66e-6


class Job:
    """One arrival as a rule sees it."""

    __slots__ = ("execution", "first_byte_s", "output_tokens", "prompt_tokens", "request", "sent_s", "service_class", "work")

    def __init__(self, request: Request, service_class: ClassPolicy, context_tokens: int) -> None:
        self.request = request
        self.service_class = service_class
        self.prompt_tokens = request.prompt_tokens or max(1, request.prompt_bytes // BYTES_PER_TOKEN)
        self.work = _work(request, self.prompt_tokens, context_tokens)
        self.execution: Execution | None = None
        self.sent_s: float | None = None
        self.first_byte_s: float | None = None
        self.output_tokens = 0
        """As far as it was heard of."""


def _work(request: Request, prompt_tokens: int, context_tokens: int) -> Work:
    """As if its maximum were reserved; a rule that reserves nothing does not look at it."""
    most = max(1, context_tokens - prompt_tokens) if request.output_tokens_max is None else request.output_tokens_max
    tokens = request.samples * (prompt_tokens + most)
    return Work(tokens, request.samples * prompt_tokens, request.samples, 0.0, tokens, most, "bytes", most)


class Rule:
    """One way of admitting. This one holds nothing back; the others change what they are about."""

    looks = False
    """Wants samples of the engines."""
    reserves = False
    """Holds room for outputs that are not there yet."""

    def __init__(self, tuning: Tuning, policy: Policy, seed: int) -> None:
        self.tuning = tuning
        self.classes = policy.classes
        self.seed = seed
        self.waiting: dict[str, Job] = {}
        """In the order of arrival."""
        self.inside: dict[str, Job] = {}
        self.kv_tokens = 0
        self.samples: dict[str, ReplicaSample] = {}

    def refuses(self, job: Job, now_s: float) -> str:
        """Why a newcomer is turned away at once, or ""."""
        return ""

    def expires_s(self, job: Job) -> float:
        """Until when it may wait."""
        return INFINITE_S

    def next(self, now_s: float) -> Job | None:
        """Who of the waiting is sent now."""
        job = next(iter(self.waiting.values()), None)
        return job if job is not None and self.has_room(job, now_s) else None

    def has_room(self, job: Job, now_s: float) -> bool:
        return True

    def looks_again_s(self, now_s: float) -> float:
        """When to ask `next` again, though nothing happens."""
        return INFINITE_S

    def waits(self, job: Job, now_s: float) -> None:
        """It stands in `waiting` now."""

    def sent(self, job: Job, now_s: float) -> None:
        """It stands in `inside` now."""

    def began(self, job: Job, now_s: float) -> None:
        """Its first token is here."""

    def progressed(self, job: Job, tokens: int) -> None:
        """So many more output tokens of it were made."""

    def ended(self, job: Job, now_s: float) -> None:
        """Nothing of it is inside any more."""

    def sampled(self, now_s: float) -> None:
        """A new sample stands in `samples`."""


class Baseline:
    """A gate that asks a rule. Obeys `sim.runner.GateLike`."""

    def __init__(self, rule: Rule, policy: Policy, boot: str) -> None:
        self._rule = rule
        self._policy = policy
        self._boot = boot
        self._pool = next(iter(policy.pools.values()))
        self._capacities: dict[str, Capacity] = {}
        self._jobs: dict[str, Job] = {}
        """Whose client still waits for an answer, by arrival."""
        self._by_replica = dict.fromkeys((replica.name for replica in self._pool.replicas), 0)
        self._expiries: list[tuple[float, str]] = []
        self._number = 0
        self._effects: list[Effect] = []
        self._handlers: Mapping[type[Any], Callable[[Any, float], None]] = {
            events.Arrived: self._on_arrived,
            events.ClientGone: self._on_client_gone,
            events.FirstByte: self._on_first_byte,
            events.Progressed: self._on_progressed,
            events.Stopped: self._on_stopped,
            events.NotSent: self._on_not_sent,
            events.EngineLost: self._on_lost,
            events.EngineClosed: self._on_closed,
            events.ReplicaDescribed: self._on_described,
            events.ReplicaSampled: self._on_sampled,
            events.SampleFailed: self._on_sample_failed,
        }

    def handle(self, event: events.Event, now_s: float) -> list[Effect]:
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event, now_s)
        self._pump(now_s)
        effects, self._effects = self._effects, []
        return effects

    def check(self) -> list[str]:
        return []

    def drained(self) -> bool:
        return not self._rule.waiting and not self._rule.inside

    def depart(self) -> list[Effect]:
        return []

    # arriving and waiting

    def _on_arrived(self, event: events.Arrived, now_s: float) -> None:
        request = event.request
        context_tokens = max((one.context_tokens for one in self._capacities.values()), default=0)
        job = Job(request, self._policy.classes[request.service_class], context_tokens)
        reason = self._rule.refuses(job, now_s)
        if reason:
            self._refuse(job, reason, now_s, "refused")
            return
        self._jobs[request.id] = self._rule.waiting[request.id] = job
        self._rule.waits(job, now_s)
        expires_s = self._rule.expires_s(job)
        if expires_s != INFINITE_S:
            heappush(self._expiries, (expires_s, request.id))

    def _refuse(self, job: Job, reason: str, now_s: float, outcome: str) -> None:
        decision = self._decision(job, "refuse", reason, now_s)
        self._effects += [Record(decision), self._outcome(job, outcome, reason, None, now_s), Reply(job.request.id, decision)]

    def _pump(self, now_s: float) -> None:
        """Whose time is over goes; whom the rule lets go is sent; then wait for what is due next."""
        rule = self._rule
        while self._expiries and (self._expiries[0][0] <= now_s or self._expiries[0][1] not in rule.waiting):
            _, id = heappop(self._expiries)
            job = rule.waiting.pop(id, None)
            if job is not None:
                del self._jobs[id]
                self._refuse(job, "queue_timeout", now_s, "expired")
        while (job := rule.next(now_s)) is not None:
            del rule.waiting[job.request.id]
            self._send(job, now_s)
        again_s = rule.looks_again_s(now_s) if rule.waiting else INFINITE_S
        if self._expiries:
            again_s = min(again_s, self._expiries[0][0])
        if again_s != INFINITE_S:
            self._effects.append(WakeAt(again_s))

    def _send(self, job: Job, now_s: float) -> None:
        self._number += 1
        replica = min(self._by_replica, key=self._by_replica.__getitem__)
        job.execution = Execution(f"{self._boot}-{self._number}", replica)
        job.sent_s = now_s
        self._by_replica[replica] += 1
        self._rule.inside[job.execution.id] = job
        self._rule.sent(job, now_s)
        decision = self._decision(job, "admit", "", now_s)
        self._effects += [
            Record(decision),
            Run(job.request.id, job.execution, job.work.output_tokens_max, INFINITE_S, decision),
        ]

    def _on_client_gone(self, event: events.ClientGone, now_s: float) -> None:
        job = self._jobs.pop(event.id, None)
        if job is None:
            return
        self._effects.append(self._outcome(job, "cancelled", "client_gone", None, now_s))
        if job.execution is None:
            del self._rule.waiting[event.id]
        else:
            self._effects.append(Abort(job.execution.id, ""))

    # after it was sent

    def _on_first_byte(self, event: events.FirstByte, now_s: float) -> None:
        job = self._rule.inside.get(event.execution)
        if job is not None:
            job.first_byte_s = now_s
            self._rule.began(job, now_s)

    def _on_progressed(self, event: events.Progressed, now_s: float) -> None:
        job = self._rule.inside.get(event.execution)
        if job is not None:
            self._progress(job, event.output_tokens)

    def _progress(self, job: Job, output_tokens: int) -> None:
        more, job.output_tokens = output_tokens - job.output_tokens, output_tokens
        if more > 0:
            self._rule.progressed(job, more)

    def _on_stopped(self, event: events.Stopped, now_s: float) -> None:
        job = self._rule.inside.get(event.execution)
        if job is not None:
            self._progress(job, event.usage.output_tokens)
            self._over(event.execution, "failed" if event.failed else "completed", event.usage, now_s)

    def _on_not_sent(self, event: events.NotSent, now_s: float) -> None:
        job = self._rule.inside.get(event.execution)
        if job is not None and job.request.id in self._jobs:
            del self._jobs[job.request.id]
            self._refuse(job, "no_replica", now_s, "refused")
        self._over(event.execution, "failed", None, now_s)

    def _on_lost(self, event: events.EngineLost, now_s: float) -> None:
        self._over(event.execution, "failed", None, now_s)

    def _on_closed(self, event: events.EngineClosed, now_s: float) -> None:
        self._over(event.execution, "cancelled", None, now_s)

    def _over(self, execution: str, outcome: str, usage: Usage | None, now_s: float) -> None:
        job = self._rule.inside.pop(execution, None)
        if job is None or job.execution is None:
            return
        self._by_replica[job.execution.replica] -= 1
        self._rule.ended(job, now_s)
        if self._jobs.pop(job.request.id, None) is not None:
            self._effects.append(self._outcome(job, outcome, "", usage, now_s))

    # the engines

    def _on_described(self, event: events.ReplicaDescribed, now_s: float) -> None:
        self._capacities[event.capacity.replica] = event.capacity
        self._rule.kv_tokens = sum(one.kv_tokens or 0 for one in self._capacities.values())
        self._observe(event.capacity.replica, now_s)

    def _on_sampled(self, event: events.ReplicaSampled, now_s: float) -> None:
        self._rule.samples[event.sample.replica] = event.sample
        self._rule.sampled(now_s)
        self._observe(event.sample.replica, now_s + self._pool.observe_every_s)

    def _on_sample_failed(self, event: events.SampleFailed, now_s: float) -> None:
        self._observe(event.replica, now_s + self._pool.observe_every_s)

    def _observe(self, replica: str, at_s: float) -> None:
        if self._rule.looks:
            self._effects.append(Observe(replica, at_s))

    # what is written down

    def _decision(self, job: Job, outcome: str, reason: str, now_s: float) -> Decision:
        request = job.request
        return Decision(
            id=request.id,
            key=request.key,
            outcome=outcome,
            reason=reason,
            rows=(),
            forecast=NOTHING_FORECAST,
            work=job.work,
            retry_after_s=None,
            position=0,
            degraded="",
            decided_s=now_s,
            waited_s=now_s - request.arrived_s,
            gateway=self._boot,
            policy_version=self._policy.version,
            service_class=request.service_class,
            model=request.model,
            pool=request.pool,
        )

    def _outcome(self, job: Job, outcome: str, reason: str, usage: Usage | None, now_s: float) -> Record:
        request = job.request
        return Record(
            Outcome(
                id=request.id,
                key=request.key,
                execution="" if job.execution is None else job.execution.id,
                outcome=outcome,
                reason=reason,
                service_class=request.service_class,
                model=request.model,
                pool=request.pool,
                client=request.client,
                retry=request.retry_count > 0,
                arrived_s=request.arrived_s,
                admitted_s=job.sent_s,
                sent_s=job.sent_s,
                first_byte_s=job.first_byte_s,
                ended_s=now_s,
                work=job.work,
                usage=usage,
                evidence="E1" if usage is not None else "",
                unconfirmed_s=None,
                in_slo=False,
                predicted_ttft_s=None,
            )
        )
