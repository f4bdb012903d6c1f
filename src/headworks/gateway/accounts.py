"""What the gate writes down, counted: each decision and each outcome moves the metrics of `metrics_table.py`."""

from __future__ import annotations

from collections import deque

from headworks.core.effects import Alarm, Outcome, TurnedAway
from headworks.core.policy import MIRROR
from headworks.core.reasons import REASONS
from headworks.core.types import Decision
from headworks.gateway.avoided import UNWANTED, ran
from headworks.gateway.costs import Costs
from headworks.gateway.decisions import DecisionLog
from headworks.gateway.last_minute import LastMinute
from headworks.gateway.metrics import Registry
from headworks.gateway.telemetry import Telemetry
from headworks.gateway.usage import UsageJournal

OVERLOADED = frozenset({429, 503})
WORKER = "0"
"""One process serves in this version."""
WAITING_MAX = 64
"""Records that are counted together: a label is looked up once for all that share it. They are then written down as well,
in the log and in the journal, while the processor has them at hand."""
LATEST_MAX = 24
"""Decisions of each outcome that are kept for whoever looks: a flood of one kind leaves the others to be seen."""

Name = tuple[str | bool, ...]


class Accounts:
    """Feeds a registry. Records wait here until there are enough of them, or until somebody looks at the registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        registry.before_look = self._count
        self._waiting: list[Decision | Outcome | TurnedAway] = []
        self._attempts: dict[tuple[str, str], int] = {}
        self.alarms: dict[str, int] = {}
        """By name. They have no metric of their own: each one has a metric or a record that shows the matter itself."""
        self.goodput = LastMinute()
        self._latest: dict[str, deque[Decision]] = {}
        """By outcome, up to the last counting."""

    def record(self, record: Decision | Outcome | TurnedAway) -> bool:
        """A decision was made, at arrival or after waiting; an arrival has ended; or both. Whether all of them are counted."""
        self._waiting.append(record)
        if len(self._waiting) < WAITING_MAX:
            return False
        self._count()
        return True

    def attempt(self, replica: str, outcome: str) -> None:
        """An execution sent to this replica ended: `completed`, `failed`, `cancelled`, `refused` (busy) or `lost`."""
        name = replica, outcome
        self._attempts[name] = self._attempts.get(name, 0) + 1

    def latest(self) -> list[Decision]:
        """The newest of each outcome, newest last."""
        self._count()
        found = [decision for kept in self._latest.values() for decision in kept]
        return sorted(found, key=lambda decision: decision.decided_s)

    # counting

    def _count(self) -> None:
        """Everything that waits, those of the same labels together."""
        waiting, self._waiting = self._waiting, []
        attempts, self._attempts = self._attempts, {}
        decided: dict[Name, list[Decision]] = {}
        ended: dict[Name, list[Outcome]] = {}
        turned: dict[Name, list[TurnedAway]] = {}
        same: list[Decision] = []
        alike: list[Outcome] = []
        for one in waiting:  # most are like the one before, which is seen sooner than their name is made
            if isinstance(one, Decision):
                if not same or not _are_decided_alike(one, same[-1]):
                    same = decided.setdefault((one.key.tenant, one.service_class, one.model, one.outcome, one.reason), [])
                same.append(one)
            elif isinstance(one, TurnedAway):
                turned.setdefault(_turned_name(one), []).append(one)
            else:
                if not alike or not _have_ended_alike(one, alike[-1]):
                    alike = ended.setdefault(_name(one), [])
                alike.append(one)
        for same in decided.values():
            self._count_decisions(same)
        for alike in ended.values():
            self._count_outcomes(alike)
        for away in turned.values():
            self._count_turned_away(away)
        for attempt, number in attempts.items():
            self._registry.counter("upstream_attempts_total", *attempt).add(number)

    def _count_decisions(self, decisions: list[Decision]) -> None:
        """Decisions of one tenant, class, model, outcome and reason."""
        one, counter, histogram = decisions[0], self._registry.counter, self._registry.histogram
        tenant, service_class = one.key.tenant, one.service_class
        counter("decisions_total", tenant, service_class, one.model, one.outcome, one.reason).add(len(decisions))
        self._keep_latest(decisions[-LATEST_MAX:])
        waits_s = [wait_s for decision in decisions if (wait_s := decision.forecast.wait_s) is not None]
        if waits_s:
            histogram("wait_predicted_seconds", service_class).observe_all(waits_s)
        if one.outcome == "admit":
            for decision in decisions:
                for step in decision.degraded.split(", ") if decision.degraded else ():
                    counter("degraded_total", service_class, step.partition("=")[0]).add()
            return
        for decision in decisions:
            for check, scope, value, limit, _, _ in decision.rows:
                if value > limit:
                    counter("verdict_failures_total", check, scope.partition(":")[0]).add()
        if one.outcome == "queue":
            positions = [float(decision.position) for decision in decisions]
            histogram("queue_depth_observed", service_class, tenant).observe_all(positions)

    def _keep_latest(self, decisions: list[Decision]) -> None:
        """Of one outcome."""
        latest = self._latest.get(decisions[0].outcome)
        if latest is None:
            latest = self._latest[decisions[0].outcome] = deque(maxlen=LATEST_MAX)
        latest.extend(decisions)

    def _count_turned_away(self, turned: list[TurnedAway]) -> None:
        """Those of one tenant, client, class, model, reason and kind of retry: as their decisions and outcomes would count."""
        one, counter, number = turned[0], self._registry.counter, len(turned)
        request, reason, retry_kind = one.request, one.decision.reason, one.retry_kind
        tenant, service_class, model = request.key.tenant, request.service_class, request.model
        counter("decisions_total", tenant, service_class, model, "refuse", reason).add(number)
        self._keep_latest([away.decision for away in turned[-LATEST_MAX:]])
        failed: dict[tuple[str, str], int] = {}
        for away in turned:
            for check, scope, value, limit, _, _ in away.decision.rows:
                if value > limit:
                    failed[check, scope] = failed.get((check, scope), 0) + 1
        for (check, scope), times in failed.items():
            counter("verdict_failures_total", check, scope.partition(":")[0]).add(times)
        attempt = "retry" if request.retry_count else "first"
        counter("requests_total", tenant, service_class, model, "refused", reason, attempt).add(number)
        waits_s = [away.decision.waited_s for away in turned]
        self._registry.histogram("queue_wait_seconds", service_class, tenant, "refused").observe_all(waits_s)
        if retry_kind:
            counter("retries_total", tenant, request.client, retry_kind).add(number)
        if REASONS[reason].status in OVERLOADED:
            counter("refused_total", tenant, request.client, reason).add(number)

    def _count_outcomes(self, outcomes: list[Outcome]) -> None:
        """Outcomes of one tenant, class, model, pool, client, result, reason and evidence."""
        one, counter, histogram = outcomes[0], self._registry.counter, self._registry.histogram
        tenant, service_class, number = one.key.tenant, one.service_class, len(outcomes)
        self.goodput.count(outcomes)
        attempt = "retry" if one.retry else "first"
        counter("requests_total", tenant, service_class, one.model, one.outcome, one.reason, attempt).add(number)
        waits_s = [(end.ended_s if end.admitted_s is None else end.admitted_s) - end.arrived_s for end in outcomes]
        histogram("queue_wait_seconds", service_class, tenant, one.outcome).observe_all(waits_s)
        if one.outcome == "expired":
            counter("queue_timeouts_total", service_class, tenant).add(number)
        if one.retry_kind:
            counter("retries_total", tenant, one.client, one.retry_kind).add(number)
        reason = REASONS.get(one.reason)
        refused = sum(end.admitted_s is None for end in outcomes) if reason and reason.status in OVERLOADED else 0
        if refused:
            counter("refused_total", tenant, one.client, one.reason).add(refused)
        if one.evidence:
            counter("releases_total", one.pool, one.evidence).add(number)
            unconfirmed_s = [end.unconfirmed_s for end in outcomes if end.unconfirmed_s is not None]
            if unconfirmed_s:
                histogram("unconfirmed_seconds", one.pool, one.evidence).observe_all(unconfirmed_s)
        self._count_tokens(outcomes)
        if one.outcome == "completed":
            self._count_times(outcomes)

    def _count_tokens(self, outcomes: list[Outcome]) -> None:
        """Tokens by kind, how much had been set aside for them, and how often that grew."""
        one, counter = outcomes[0], self._registry.counter
        labels = one.key.tenant, one.service_class, one.model
        known = prompt_tokens = cached_tokens = output_tokens = reserved_tokens = granted = refused = 0
        ratios = []
        for end in outcomes:
            usage = end.usage
            if usage is not None:
                reserved, prompt, output = end.work.tokens, usage.prompt_tokens, usage.output_tokens
                known += 1
                prompt_tokens += prompt
                cached_tokens += usage.cached_tokens
                output_tokens += output
                reserved_tokens += reserved
                if usage.exact and prompt + output > 0:
                    ratios.append(reserved / (prompt + output))
            granted += end.growths
            refused += end.growths_refused
        if not known:
            return
        counter("tokens_total", *labels, "prompt").add(prompt_tokens)
        counter("tokens_total", *labels, "cached").add(cached_tokens)
        counter("tokens_total", *labels, "output").add(output_tokens)
        counter("tokens_total", *labels, "reserved").add(reserved_tokens)
        counter("tokens_total", *labels, "wasted").add(output_tokens if one.outcome in UNWANTED else 0)
        self._registry.histogram("reserved_over_used_ratio", *labels[:2]).observe_all(ratios)
        if granted:
            counter("growth_total", one.service_class, "granted").add(granted)
        if refused:
            counter("growth_total", one.service_class, "refused").add(refused)

    def _count_times(self, outcomes: list[Outcome]) -> None:
        """What the clients of completed requests saw."""
        one, histogram = outcomes[0], self._registry.histogram
        labels = one.key.tenant, one.service_class, one.model
        in_slo, missed, totals_s, firsts_s, missed_s, each_s, missed_totals_s = 0, [], [], [], [], [], []
        for end in outcomes:
            in_slo += end.in_slo
            if end.missed is not None:
                missed.append(end.missed)
            arrived_s, first_byte_s, ended_s, usage = end.arrived_s, end.first_byte_s, end.ended_s, end.usage
            totals_s.append(ended_s - arrived_s)
            if end.predicted_total_s is not None:
                missed_totals_s.append(ended_s - arrived_s - end.predicted_total_s)
            if first_byte_s is None:
                continue
            ttft_s = first_byte_s - arrived_s
            firsts_s.append(ttft_s)
            if end.predicted_ttft_s is not None:
                missed_s.append(ttft_s - end.predicted_ttft_s)
            if usage is not None:
                further = usage.output_tokens // (end.work.sequences or 1) - 1
                if further > 0:
                    each_s.append((ended_s - first_byte_s) / further)
        for slo, cause in missed:
            self._registry.counter("slo_violations_total", *labels[:2], slo, cause).add()
        histogram("e2e_seconds", *labels).observe_all(totals_s)
        self._registry.counter("goodput_total", *labels).add(in_slo)
        histogram("ttft_seconds", *labels).observe_all(firsts_s)
        histogram("prediction_error_seconds", one.pool, "ttft").observe_all(missed_s)
        histogram("prediction_error_seconds", one.pool, "e2e").observe_all(missed_totals_s)
        histogram("tpot_seconds", *labels).observe_all(each_s)

    def alarm(self, alarm: Alarm) -> None:
        """Something that should not be."""
        self.alarms[alarm.name] = self.alarms.get(alarm.name, 0) + 1

    def ledger(self, operation: str, outcome: str, seconds: float) -> None:
        """One round trip to the ledger. A list of several commands is one, a `batch`."""
        self._registry.histogram("ledger_seconds", operation, outcome).observe(seconds)

    def loop_lag(self, worker: str, seconds: float) -> None:
        """How late the loop ran something."""
        self._registry.histogram("loop_lag_seconds", worker).observe(seconds)


def _are_decided_alike(one: Decision, other: Decision) -> bool:
    """Of one tenant, class, model, outcome and reason."""
    return (
        one.outcome == other.outcome
        and one.key.tenant == other.key.tenant
        and one.service_class == other.service_class
        and one.model == other.model
        and one.reason == other.reason
    )


def _have_ended_alike(one: Outcome, other: Outcome) -> bool:
    """Of one `_name`."""
    return (
        one.outcome == other.outcome
        and one.key.tenant == other.key.tenant
        and one.client == other.client
        and one.service_class == other.service_class
        and one.model == other.model
        and one.pool == other.pool
        and one.reason == other.reason
        and one.evidence == other.evidence
        and one.retry == other.retry
        and one.retry_kind == other.retry_kind
    )


def _name(end: Outcome) -> Name:
    """What outcomes have to have in common to be counted together."""
    return (
        end.key.tenant,
        end.service_class,
        end.model,
        end.pool,
        end.client,
        end.outcome,
        end.reason,
        end.evidence,
        end.retry,
        end.retry_kind,
    )


def _turned_name(turned: TurnedAway) -> Name:
    """The same of those that were turned away."""
    request = turned.request
    return (
        request.key.tenant,
        request.client,
        request.service_class,
        request.model,
        turned.decision.reason,
        turned.retry_kind,
        request.retry_count > 0,
    )


class Records:
    """Everything the gate wants written down: counted, and logged where a log is configured."""

    def __init__(self, accounts: Accounts, log: DecisionLog | None, usage: UsageJournal | None = None) -> None:
        self._accounts = accounts
        self.costs: Costs | None = None
        """Who sums up what engines cost."""
        self.telemetry: Telemetry | None = None
        """Who sends traces and metrics on."""
        self._log = log
        self._usage = usage

    def record(self, record: Decision | Outcome | TurnedAway) -> None:
        log, usage = self._log, self._usage
        if log is not None:
            log.write(record)
        if isinstance(record, TurnedAway):  # nothing ran, and nothing was avoided
            if self.telemetry is not None:
                self.telemetry.ended(record.outcome())
        elif record.key.tenant == MIRROR:
            self._copied(record)
            return
        elif isinstance(record, Outcome):
            if usage is not None:
                usage.write(record)
            if self.costs is not None:
                self.costs.ended(record)
            if self.telemetry is not None:
                self.telemetry.ended(record)
        if self._accounts.record(record):
            if log is not None:
                log.encode()
            if usage is not None:
                usage.encode()

    def _copied(self, record: Decision | Outcome) -> None:
        """Of a copy that nobody asked for (F3): what it took of an engine counts, and whether it was let in does not."""
        if isinstance(record, Outcome) and ran(record):
            if self._usage is not None:
                self._usage.write(record)
            if self.costs is not None:
                self.costs.ended(record)

    def troubles(self) -> list[str]:
        """What could not be written down, a sentence each; none while the disk takes everything."""
        kept = (("The decision log", self._log), ("The usage journal", self._usage))
        lost = 0 if self.telemetry is None else self.telemetry.dropped
        found = [f"Traces of {lost:,} requests were not taken by the collector and are lost."] if lost else []
        for name, one in kept:
            if one is not None and (one.failure or one.dropped):
                now = f"cannot be written: {one.failure}" if one.failure else "is written again"
                found.append(f"{name} {now}. Lines lost since the start: {one.dropped:,}.")
        return found

    def alarm(self, alarm: Alarm) -> None:
        self._accounts.alarm(alarm)

    def attempt(self, replica: str, outcome: str) -> None:
        self._accounts.attempt(replica, outcome)

    def ledger(self, operation: str, outcome: str, seconds: float) -> None:
        self._accounts.ledger(operation, outcome, seconds)

    def loop_lag(self, seconds: float) -> None:
        self._accounts.loop_lag(WORKER, seconds)
