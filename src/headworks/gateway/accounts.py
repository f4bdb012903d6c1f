"""What the gate writes down, counted: each decision and each outcome moves the metrics of `metrics_table.py`."""

from __future__ import annotations

from headworks.core.effects import Alarm, Outcome
from headworks.core.reasons import REASONS
from headworks.core.types import Decision, Usage
from headworks.gateway.decisions import DecisionLog
from headworks.gateway.metrics import Counter, Registry

OVERLOADED = frozenset({429, 503})
WORKER = "0"
"""One process serves in this version."""
UNWANTED = frozenset({"cancelled", "failed", "expired"})
SERIES_KEPT_MAX = 4_096
"""Combinations whose series are kept at hand. All of them together are bounded by the registry."""


class Series:
    """What outcomes of one tenant, class, model and pool move."""

    __slots__ = (
        *("cached", "output", "prompt", "reserved", "wasted"),
        *("e2e", "goodput", "prediction_error", "reserved_over_used", "tpot", "ttft"),
    )

    def __init__(self, registry: Registry, tenant: str, service_class: str, model: str, pool: str) -> None:
        labels = tenant, service_class, model
        self.prompt = registry.counter("tokens_total", *labels, "prompt")
        self.cached = registry.counter("tokens_total", *labels, "cached")
        self.output = registry.counter("tokens_total", *labels, "output")
        self.reserved = registry.counter("tokens_total", *labels, "reserved")
        self.wasted = registry.counter("tokens_total", *labels, "wasted")
        self.reserved_over_used = registry.histogram("reserved_over_used_ratio", tenant, service_class)
        self.e2e = registry.histogram("e2e_seconds", *labels)
        self.ttft = registry.histogram("ttft_seconds", *labels)
        self.tpot = registry.histogram("tpot_seconds", *labels)
        self.prediction_error = registry.histogram("prediction_error_seconds", pool, "ttft")
        self.goodput = registry.counter("goodput_total", *labels)


class Ended:
    """What every outcome of one tenant, class, model, pool, client, result, reason and evidence moves."""

    __slots__ = ("queue_wait", "refused", "released", "requests", "series", "timeouts")

    def __init__(self, registry: Registry, outcome: Outcome) -> None:
        counter, tenant, service_class = registry.counter, outcome.key.tenant, outcome.service_class
        result, reason, attempt = outcome.outcome, outcome.reason, "retry" if outcome.retry else "first"
        self.requests = counter("requests_total", tenant, service_class, outcome.model, result, reason, attempt)
        self.queue_wait = registry.histogram("queue_wait_seconds", service_class, tenant, result)
        self.timeouts = counter("queue_timeouts_total", service_class, tenant) if result == "expired" else None
        overloaded = reason in REASONS and REASONS[reason].status in OVERLOADED and outcome.admitted_s is None
        self.refused = counter("refused_total", tenant, outcome.client, reason) if overloaded else None
        self.released = counter("releases_total", outcome.pool, outcome.evidence) if outcome.evidence else None
        self.series: Series | None = None


class Accounts:
    """Feeds a registry. One call for each record, none of them on the path of a chunk.

    A metric is looked up once for each combination of labels that occurs, as looking up costs more than counting.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._decided: dict[tuple[str, ...], Counter] = {}
        self._ended: dict[tuple[str | bool, ...], Ended] = {}
        self._series: dict[tuple[str, str, str, str], Series] = {}
        self._attempts: dict[tuple[str, str], Counter] = {}
        self._generation = -1
        self.alarms: dict[str, int] = {}
        """By name. They have no metric of their own: each one has a metric or a record that shows the matter itself."""

    def decision(self, decision: Decision) -> None:
        """A decision was made, at arrival or after waiting."""
        if self._generation != self._registry.generation:
            self._forget()
        tenant, service_class, outcome = decision.key.tenant, decision.service_class, decision.outcome
        name = tenant, service_class, decision.model, outcome, decision.reason
        decided = self._decided.get(name)
        if decided is None:
            decided = self._decided[name] = self._registry.counter("decisions_total", *name)
        decided.add()
        if decision.forecast.wait_s is not None:
            self._registry.histogram("wait_predicted_seconds", service_class).observe(decision.forecast.wait_s)
        if outcome != "admit":
            self._not_admitted(decision)

    def _not_admitted(self, decision: Decision) -> None:
        """What stood in its way."""
        registry = self._registry
        for verdict in decision.verdicts:
            if not verdict.passed:
                registry.counter("verdict_failures_total", verdict.check, verdict.scope.partition(":")[0]).add()
        if decision.outcome == "queue":
            depth = registry.histogram("queue_depth_observed", decision.service_class, decision.key.tenant)
            depth.observe(decision.position)

    def outcome(self, outcome: Outcome) -> None:
        """An arrival has ended."""
        if self._generation != self._registry.generation:
            self._forget()
        ended = self._ended_as(outcome)
        ended.requests.add()
        waited_until_s = outcome.ended_s if outcome.admitted_s is None else outcome.admitted_s
        ended.queue_wait.observe(waited_until_s - outcome.arrived_s)
        if ended.timeouts is not None:
            ended.timeouts.add()
        if ended.refused is not None:
            ended.refused.add()
        if ended.released is not None:
            ended.released.add()
            if outcome.unconfirmed_s is not None:
                unconfirmed = self._registry.histogram("unconfirmed_seconds", outcome.pool, outcome.evidence)
                unconfirmed.observe(outcome.unconfirmed_s)
        completed = outcome.outcome == "completed"
        if outcome.usage is None and not completed:
            return
        series = ended.series
        if series is None:
            series = ended.series = self._of(outcome)
        if outcome.usage is not None:
            _used(series, outcome, outcome.usage)
        if completed:
            _completed(series, outcome)

    def _ended_as(self, outcome: Outcome) -> Ended:
        name = (
            outcome.key.tenant,
            outcome.service_class,
            outcome.model,
            outcome.pool,
            outcome.client,
            outcome.outcome,
            outcome.reason,
            outcome.evidence,
            outcome.retry,
            outcome.admitted_s is None,
        )
        ended = self._ended.get(name)
        if ended is None:
            if len(self._ended) >= SERIES_KEPT_MAX:
                self._ended.clear()
            ended = self._ended[name] = Ended(self._registry, outcome)
        return ended

    def _of(self, outcome: Outcome) -> Series:
        """The series of its tenant, class, model and pool."""
        name = outcome.key.tenant, outcome.service_class, outcome.model, outcome.pool
        series = self._series.get(name)
        if series is None:
            if len(self._series) >= SERIES_KEPT_MAX:
                self._series.clear()
            series = self._series[name] = Series(self._registry, *name)
        return series

    def _forget(self) -> None:
        """Labels may be others from now on."""
        self._generation = self._registry.generation
        for kept in (self._decided, self._ended, self._series, self._attempts):
            kept.clear()

    def alarm(self, alarm: Alarm) -> None:
        """Something that should not be."""
        self.alarms[alarm.name] = self.alarms.get(alarm.name, 0) + 1

    def attempt(self, replica: str, outcome: str) -> None:
        """An execution sent to this replica ended: `completed`, `failed`, `cancelled`, `refused` (busy) or `lost`."""
        if self._generation != self._registry.generation:
            self._forget()
        attempts = self._attempts.get((replica, outcome))
        if attempts is None:
            attempts = self._registry.counter("upstream_attempts_total", replica, outcome)
            self._attempts[replica, outcome] = attempts
        attempts.add()

    def ledger(self, operation: str, outcome: str, seconds: float) -> None:
        """One round trip to the ledger."""
        self._registry.histogram("ledger_seconds", operation, outcome).observe(seconds)

    def loop_lag(self, worker: str, seconds: float) -> None:
        """How late the loop ran something."""
        self._registry.histogram("loop_lag_seconds", worker).observe(seconds)


def _used(series: Series, outcome: Outcome, usage: Usage) -> None:
    """Tokens by kind, and how much had been set aside for them."""
    series.prompt.add(usage.prompt_tokens)
    series.cached.add(usage.cached_tokens)
    series.output.add(usage.output_tokens)
    reserved_tokens = outcome.work.tokens
    series.reserved.add(reserved_tokens)
    if outcome.outcome in UNWANTED:
        series.wasted.add(usage.output_tokens)
    used_tokens = usage.prompt_tokens + usage.output_tokens
    if usage.exact and used_tokens > 0:
        series.reserved_over_used.observe(reserved_tokens / used_tokens)


def _completed(series: Series, outcome: Outcome) -> None:
    """What the client saw."""
    series.e2e.observe(outcome.ended_s - outcome.arrived_s)
    if outcome.in_slo:
        series.goodput.add()
    first_byte_s = outcome.first_byte_s
    if first_byte_s is None:
        return
    ttft_s = first_byte_s - outcome.arrived_s
    series.ttft.observe(ttft_s)
    if outcome.predicted_ttft_s is not None:
        series.prediction_error.observe(ttft_s - outcome.predicted_ttft_s)
    if outcome.usage is not None:
        sequences = outcome.work.sequences
        output_tokens = outcome.usage.output_tokens
        further = (output_tokens if sequences <= 1 else output_tokens // sequences) - 1
        if further > 0:
            series.tpot.observe((outcome.ended_s - first_byte_s) / further)


class Records:
    """Everything the gate wants written down: counted, and logged where a log is configured."""

    def __init__(self, accounts: Accounts, log: DecisionLog | None) -> None:
        self._accounts = accounts
        self._log = log

    def record(self, record: Decision | Outcome) -> None:
        if isinstance(record, Decision):
            self._accounts.decision(record)
        else:
            self._accounts.outcome(record)
        if self._log is not None:
            self._log.write(record)

    def alarm(self, alarm: Alarm) -> None:
        self._accounts.alarm(alarm)

    def attempt(self, replica: str, outcome: str) -> None:
        self._accounts.attempt(replica, outcome)

    def loop_lag(self, seconds: float) -> None:
        self._accounts.loop_lag(WORKER, seconds)
