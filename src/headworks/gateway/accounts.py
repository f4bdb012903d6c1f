"""What the gate writes down, counted: each decision and each outcome moves the metrics of `metrics_table.py`."""

from __future__ import annotations

from headworks.core.effects import Alarm, Outcome
from headworks.core.reasons import REASONS
from headworks.core.types import Decision
from headworks.gateway.decisions import DecisionLog
from headworks.gateway.metrics import Registry

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


class Accounts:
    """Feeds a registry. One call for each record, none of them on the path of a chunk."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._series: dict[tuple[str, str, str, str], Series] = {}
        self._generation = -1
        self.alarms: dict[str, int] = {}
        """By name. They have no metric of their own: each one has a metric or a record that shows the matter itself."""

    def decision(self, decision: Decision) -> None:
        """A decision was made, at arrival or after waiting."""
        counter, service_class, tenant = self._registry.counter, decision.service_class, decision.key.tenant
        counter("decisions_total", tenant, service_class, decision.model, decision.outcome, decision.reason).add()
        for verdict in decision.verdicts if decision.outcome != "admit" else ():
            if not verdict.passed:
                counter("verdict_failures_total", verdict.check, verdict.scope.partition(":")[0]).add()
        if decision.forecast.wait_s is not None:
            self._registry.histogram("wait_predicted_seconds", service_class).observe(decision.forecast.wait_s)
        if decision.outcome == "queue":
            self._registry.histogram("queue_depth_observed", service_class, tenant).observe(decision.position)

    def outcome(self, outcome: Outcome) -> None:
        """An arrival has ended."""
        counter, tenant, service_class = self._registry.counter, outcome.key.tenant, outcome.service_class
        attempt = "retry" if outcome.retry else "first"
        counter("requests_total", tenant, service_class, outcome.model, outcome.outcome, outcome.reason, attempt).add()
        waited_until_s = outcome.ended_s if outcome.admitted_s is None else outcome.admitted_s
        self._registry.histogram("queue_wait_seconds", service_class, tenant, outcome.outcome).observe(
            waited_until_s - outcome.arrived_s
        )
        if outcome.outcome == "expired":
            counter("queue_timeouts_total", service_class, tenant).add()
        reason = REASONS.get(outcome.reason)
        if reason is not None and reason.status in OVERLOADED and outcome.admitted_s is None:
            counter("refused_total", tenant, outcome.client, outcome.reason).add()
        if outcome.evidence:
            self._released(outcome)
        if outcome.usage is not None:
            self._used(outcome)
        if outcome.outcome == "completed":
            self._completed(outcome)

    def _released(self, outcome: Outcome) -> None:
        self._registry.counter("releases_total", outcome.pool, outcome.evidence).add()
        if outcome.unconfirmed_s is not None:
            self._registry.histogram("unconfirmed_seconds", outcome.pool, outcome.evidence).observe(outcome.unconfirmed_s)

    def _used(self, outcome: Outcome) -> None:
        """Tokens by kind, and how much had been set aside for them."""
        usage, work, series = outcome.usage, outcome.work, self._of(outcome)
        assert usage is not None
        series.prompt.add(usage.prompt_tokens)
        series.cached.add(usage.cached_tokens)
        series.output.add(usage.output_tokens)
        series.reserved.add(work.tokens)
        if outcome.outcome in UNWANTED:
            series.wasted.add(usage.output_tokens)
        used_tokens = usage.prompt_tokens + usage.output_tokens
        if usage.exact and used_tokens > 0:
            series.reserved_over_used.observe(work.tokens / used_tokens)

    def _completed(self, outcome: Outcome) -> None:
        """What the client saw."""
        series = self._of(outcome)
        series.e2e.observe(outcome.ended_s - outcome.arrived_s)
        if outcome.in_slo:
            series.goodput.add()
        if outcome.first_byte_s is None:
            return
        ttft_s = outcome.first_byte_s - outcome.arrived_s
        series.ttft.observe(ttft_s)
        if outcome.predicted_ttft_s is not None:
            series.prediction_error.observe(ttft_s - outcome.predicted_ttft_s)
        if outcome.usage is not None:
            further = outcome.usage.output_tokens // max(1, outcome.work.sequences) - 1
            if further > 0:
                series.tpot.observe((outcome.ended_s - outcome.first_byte_s) / further)

    def _of(self, outcome: Outcome) -> Series:
        """The series of its tenant, class, model and pool: looked up once, as a look-up for each costs more than counting."""
        if self._generation != self._registry.generation:
            self._series.clear()
            self._generation = self._registry.generation
        name = outcome.key.tenant, outcome.service_class, outcome.model, outcome.pool
        series = self._series.get(name)
        if series is None:
            if len(self._series) >= SERIES_KEPT_MAX:
                self._series.clear()
            series = self._series[name] = Series(self._registry, *name)
        return series

    def alarm(self, alarm: Alarm) -> None:
        """Something that should not be."""
        self.alarms[alarm.name] = self.alarms.get(alarm.name, 0) + 1

    def attempt(self, replica: str, outcome: str) -> None:
        """An execution sent to this replica ended: `completed`, `failed`, `cancelled`, `refused` (busy) or `lost`."""
        self._registry.counter("upstream_attempts_total", replica, outcome).add()

    def ledger(self, operation: str, outcome: str, seconds: float) -> None:
        """One round trip to the ledger."""
        self._registry.histogram("ledger_seconds", operation, outcome).observe(seconds)

    def loop_lag(self, worker: str, seconds: float) -> None:
        """How late the loop ran something."""
        self._registry.histogram("loop_lag_seconds", worker).observe(seconds)


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
