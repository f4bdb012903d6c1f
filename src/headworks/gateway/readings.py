"""Gauges read from the gate and its book when a scrape asks: names and labels of `metrics_table.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from zlib import crc32

from headworks import IS_COMPILED, __version__
from headworks.core.types import Reservation
from headworks.gateway.metrics import Reading

REPLICA_GAUGES = {
    "limit_running": "limit_running",
    "running": "replica_running",
    "waiting": "replica_waiting",
    "kv_used_ratio": "replica_kv_used_ratio",
    "compute_used_ratio": "replica_compute_used_ratio",
    "sample_age_s": "replica_sample_age_seconds",
}
"""Field of a replica's snapshot → metric. A value nobody knows has no sample: missing is not zero."""
REPLICA_STATES = ("ready", "draining", "stalled", "breaker_open", "lost")


def readings(snapshot: Mapping[str, Any], records: list[Reservation], ledger: str, now_ms: int) -> Iterator[Reading]:
    """Everything a scrape shows beside counters and histograms. `records`: what the ledger holds charged."""
    yield Reading("build_info", (f"{__version__}+compiled" if IS_COMPILED else __version__,), 1.0)
    yield Reading("policy_info", (snapshot["policy_version"], snapshot["mode"], ledger), 1.0)
    yield Reading("ledger_available", (), 1.0 if snapshot["ledger_available"] else 0.0)
    for name, tenant in snapshot["tenants"].items():
        yield from _quota(name, tenant["quota"])
    for name, pool in snapshot["pools"].items():
        yield from _queue(pool)
        yield from _known("drain_tokens_per_second", (name,), pool["drain_tokens_per_s"])
        yield from _known("service_rate_per_second", (name,), pool["service_rate_per_s"])
        for quantity, forecasts in pool["forecasts"].items():
            yield from _known("prediction_coverage_ratio", (name, quantity), forecasts["coverage_ratio"])
        yield Reading("demanded_tokens", (name,), pool["pressure"]["demanded_tokens"])
        yield Reading("scale_wanted_ratio", (name,), pool["pressure"]["scale_wanted_ratio"])
        for replica_name, replica in pool["replicas"].items():
            yield from _replica(replica_name, replica)
        yield from _reserved(name, records, now_ms)
        yield Reading("preemptions_total", (name, "gateway"), float(pool["preempted_total"]))
        preempted = [replica["preemptions_total"] for replica in pool["replicas"].values()]
        if any(count is not None for count in preempted):
            yield Reading("preemptions_total", (name, "engine"), float(sum(count or 0 for count in preempted)))


def _quota(tenant: str, quota: Mapping[str, Any] | None) -> Iterator[Reading]:
    """What is committed and outstanding of the running period's quota."""
    for unit, metric_unit in (("tokens", "tokens"), ("nanomoney", "money")):
        if quota is not None and quota[f"{unit}_max"]:
            used = quota[f"{unit}_committed"] + quota[f"{unit}_outstanding"]
            yield Reading("quota_used_ratio", (tenant, metric_unit), used / quota[f"{unit}_max"])


def _queue(pool: Mapping[str, Any]) -> Iterator[Reading]:
    by_class: dict[str, int] = {}
    for flow, line in pool["queue"].items():
        service_class, _, tenant = flow.partition("/")
        yield Reading("queue_depth", (service_class, tenant), line["requests"])
        by_class[service_class] = by_class.get(service_class, 0) + line["tokens"]
    for service_class, tokens in by_class.items():
        yield Reading("queue_tokens", (service_class,), tokens)


def _replica(name: str, replica: Mapping[str, Any]) -> Iterator[Reading]:
    for field, metric in REPLICA_GAUGES.items():
        yield from _known(metric, (name,), replica[field])
    for state in REPLICA_STATES:
        yield Reading("replica_state", (name, state), 1.0 if replica["state"] == state else 0.0)
    for to, count in replica["breaker_transitions"].items():
        yield Reading("breaker_transitions_total", (name, to), float(count))


def _reserved(pool: str, records: list[Reservation], now_ms: int) -> Iterator[Reading]:
    """Charged work by state, and the age of the oldest orphan: from the ledger, since it knows what nobody here tracks."""
    tokens: dict[tuple[str, str], int] = {}
    counts: dict[str, int] = {}
    oldest_ms = now_ms
    scope = f"pool:{pool}"
    for record in records:
        held = sum(amount for charged, unit, amount in record.charges if charged == scope and unit == "tokens")
        if not held:
            continue
        state = record.state.lower()
        counts[state] = counts.get(state, 0) + 1
        tenant = next((charged[7:] for charged, _, _ in record.charges if charged.startswith("tenant:")), "")
        tokens[tenant, state] = tokens.get((tenant, state), 0) + held
        if state == "orphaned":
            oldest_ms = min(oldest_ms, record.reserved_ms)
    for (tenant, state), held in tokens.items():
        yield Reading("reserved_tokens", (pool, tenant, state), held)
    for state, count in counts.items():
        yield Reading("reservations", (pool, state), count)
    yield Reading("orphan_age_seconds", (pool,), (now_ms - oldest_ms) / 1000)


def ledger_readings(epoch: str, differences: Mapping[str, int], foreign: Mapping[str, int]) -> Iterator[Reading]:
    """Of the ledger itself. Gateways that were opened for one process of a store show one number, another process another."""
    yield Reading("ledger_epoch", (), float(crc32(epoch.encode())))
    for scope, difference in differences.items():
        yield Reading("ledger_audit_difference", (scope,), float(difference))
    for replica, load in foreign.items():
        yield Reading("foreign_load", (replica,), float(load))


def _known(metric: str, labels: tuple[str, ...], value: float | None) -> Iterator[Reading]:
    if value is not None:
        yield Reading(metric, labels, float(value))
