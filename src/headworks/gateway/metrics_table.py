"""Every metric we expose or mean to, in one table: name, type, labels, meaning. Docs are made from it.

Labels named in `CONFIGURED` take their values from the configuration and the key store; the others have the closed sets
of values given here. Anything else is written as `other`, so no client can make series.
"""

from __future__ import annotations

from typing import NamedTuple

from headworks.core.reasons import REASONS

PREFIX = "headworks_"
OTHER = "other"

WAIT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TPOT_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.035, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0)
SHORT_BUCKETS_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
ERROR_BUCKETS_S = (-5.0, -2.0, -1.0, -0.5, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
DEPTH_BUCKETS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
RATIO_BUCKETS = (1.0, 1.1, 1.25, 1.5, 2.0, 2.5, 3.0, 5.0, 10.0, 20.0, 50.0)

CONFIGURED = frozenset({"tenant", "client", "class", "model", "pool", "replica"})

OUTCOMES = ("completed", "failed", "cancelled", "refused", "expired", "replayed")
EVIDENCE = ("E0", "E1", "E2", "E3a", "E3b", "E4", "E5", "operator")
CLOSED: dict[str, tuple[str, ...]] = {
    "reason": ("", *REASONS),
    "outcome": (*OUTCOMES, "admit", "queue", "refuse", "granted", "recorded", "yield", "dead", "fenced", "never", "ok", "lost"),
    "attempt": ("first", "retry"),
    "check": ("tenant", "memory", "compute", "queue", "time"),
    "scope": ("tenant", "client", "class", "pool", "replica", "model", "session"),
    "evidence": EVIDENCE,
    "state": (
        *("reserved", "running", "cancelling", "orphaned", "claimed"),
        *("ready", "draining", "stalled", "breaker_open", "lost"),
        *("asked", "sent", "leaving", "settling", "unasked"),
    ),
    "kind": ("prompt", "cached", "output", "reserved", "wasted", "used", "avoided", "ticket_kept", "early", "over_budget"),
    "slo": ("ttft", "tpot", "e2e"),
    "cause": ("queueing", "compute", "memory", "upstream"),
    "by": ("gateway", "engine"),
    "step": ("smaller_model", "spill", "clamp_output", "strip_few_shot", "drop_n", "no_speculation", "cached"),
    "quantity": ("ttft", "e2e"),
    "to": ("open", "half_open", "closed"),
    "operation": (
        *("claim", "reserve", "start", "grow", "cancel", "stop", "adopt", "reassert", "heartbeat", "depart", "held"),
        *("takereader", "putsample", "putincarnation", "withdraw", "setlimits", "unmark", "batch"),
    ),
    "unit": ("tokens", "money"),
}


class Metric(NamedTuple):
    """One row. `buckets` only for histograms."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()


def _rows(kind: str, *rows: tuple[str, str, str] | tuple[str, str, str, tuple[float, ...]]) -> list[Metric]:
    return [Metric(row[0], kind, tuple(row[1].split()), row[2], row[3] if len(row) == 4 else ()) for row in rows]


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *_rows(
            "counter",
            ("requests_total", "tenant class model outcome reason attempt", "Arrivals by how they ended, each once."),
            ("decisions_total", "tenant class model outcome reason", "Decisions at arrival and after waiting."),
            ("verdict_failures_total", "check scope", "Failed checks, also when another was reported."),
            ("refused_total", "tenant client reason", "429s and 503s by client."),
            ("queue_timeouts_total", "class tenant", "Deadline passed while waiting."),
            ("releases_total", "pool evidence", "Releases by evidence level."),
            ("tokens_total", "tenant class model kind", "Settled usage; wasted: generated for nobody."),
            ("growth_total", "class outcome", "Asks to generate beyond the reservation."),
            ("slo_violations_total", "tenant class slo cause", "Completions outside a limit of their class."),
            ("goodput_total", "tenant class model", "Completions inside every limit of their class and still wanted."),
            ("preemptions_total", "pool by", "Work stopped to make room, by the gateway or inside the engine."),
            ("degraded_total", "class step", "Requests that ran degraded."),
            ("retries_total", "tenant client kind", "What retries did."),
            ("upstream_attempts_total", "replica outcome", "Executions sent to a replica, by how they ended."),
            ("breaker_transitions_total", "replica to", "Changes of a replica's breaker."),
            ("cost_total", "tenant kind", "Money: what executions cost that were used or wasted, and what was avoided."),
            ("shed_self_total", "worker", "New work refused because the gateway itself was overloaded."),
        ),
        *_rows(
            "gauge",
            ("queue_depth", "class tenant", "Waiting requests."),
            ("queue_tokens", "class", "Waiting work."),
            ("reserved_tokens", "pool tenant state", "Charged work by state."),
            ("reservations", "pool state", "Charged reservations by state."),
            ("orphan_age_seconds", "pool", "Age of the oldest orphan."),
            ("goodput_ratio", "class", "Goodput over arrivals not refused for tenant limits, last minute."),
            ("prediction_coverage_ratio", "pool quantity", "Observed within the predicted bound, over the last 500."),
            ("drain_tokens_per_second", "pool", "Measured drain rate."),
            ("service_rate_per_second", "pool", "Measured completions."),
            ("limit_running", "replica", "Adaptive concurrency limit."),
            ("replica_running", "replica", "Running in the engine at the last sample."),
            ("replica_waiting", "replica", "Waiting in the engine at the last sample."),
            ("replica_kv_used_ratio", "replica", "Memory used at the last sample."),
            ("replica_compute_used_ratio", "replica", "Compute used at the last sample."),
            ("replica_sample_age_seconds", "replica", "Age of the last sample."),
            ("replica_state", "replica state", "1 for the state the replica is in."),
            ("foreign_load", "replica", "Load seen above load owned."),
            (
                "ledger_epoch",
                "",
                "The store process the ledger was opened for, as a number; 0: its own.",
            ),
            ("ledger_available", "", "1 while the ledger answers."),
            ("ledger_audit_difference", "scope", "Counter minus the sum of its parts: not zero is a page."),
            ("demanded_tokens", "pool", "Admitted, queued and refused for capacity: the autoscaling signal."),
            ("scale_wanted_ratio", "pool", "Wanted capacity over present, with hysteresis."),
            ("quota_used_ratio", "tenant unit", "Committed and outstanding over the period's quota."),
            ("open_streams", "worker", "Answers being streamed."),
            ("rss_bytes", "worker", "Memory of the gateway."),
            ("build_info", "version", "Always 1. The version ends in +compiled where compiled code runs."),
            ("policy_info", "policy_version mode ledger", "Always 1."),
        ),
        *_rows(
            "histogram",
            ("queue_depth_observed", "class tenant", "Depth seen by arrivals that had to wait.", DEPTH_BUCKETS),
            ("queue_wait_seconds", "class tenant outcome", "From arrival to admission or answer.", WAIT_BUCKETS_S),
            ("wait_predicted_seconds", "class", "Forecast at arrival.", WAIT_BUCKETS_S),
            ("unconfirmed_seconds", "pool evidence", "From the wish to cancel to the evidence.", SHORT_BUCKETS_S),
            ("reserved_over_used_ratio", "tenant class", "How tight reservations are.", RATIO_BUCKETS),
            ("ttft_seconds", "tenant class model", "First token, from arrival.", WAIT_BUCKETS_S),
            ("tpot_seconds", "tenant class model", "Time for each further token of a sample.", TPOT_BUCKETS_S),
            ("e2e_seconds", "tenant class model", "End of the answer, from arrival.", WAIT_BUCKETS_S),
            ("prediction_error_seconds", "pool quantity", "Observed minus predicted.", ERROR_BUCKETS_S),
            ("ledger_seconds", "operation outcome", "Store round trips.", SHORT_BUCKETS_S),
            ("loop_lag_seconds", "worker", "How late the event loop runs.", SHORT_BUCKETS_S),
        ),
    )
}

WITHOUT_SOURCE: frozenset[str] = frozenset()
"""Declared, and not exposed yet: nothing in this version measures them. An absent metric is honest; a zero would not be."""
