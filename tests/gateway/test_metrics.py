"""The metric contract, its exposition, and what records do to it (F1, metrics contract)."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from gateway_records import decided, ended, turned
from prometheus_client.parser import text_string_to_metric_families

from headworks.core.effects import Alarm, Outcome, TurnedAway
from headworks.core.reasons import REASONS
from headworks.core.types import Decision, RequestKey, Verdict
from headworks.gateway.accounts import Accounts, Records
from headworks.gateway.last_minute import LastMinute
from headworks.gateway.metrics import Reading, Registry
from headworks.gateway.metrics_table import CLOSED, CONFIGURED, METRICS, WITHOUT_SOURCE
from headworks.gateway.readings import ledger_readings

CONTRACT = """
requests_total counter tenant class model outcome reason attempt
decisions_total counter tenant class model outcome reason
verdict_failures_total counter check scope
refused_total counter tenant client reason
queue_depth gauge class tenant
queue_depth_observed histogram class tenant
queue_tokens gauge class
queue_wait_seconds histogram class tenant outcome
queue_timeouts_total counter class tenant
wait_predicted_seconds histogram class
reserved_tokens gauge pool tenant state
reservations gauge pool state
unconfirmed_seconds histogram pool evidence
orphan_age_seconds gauge pool
releases_total counter pool evidence
tokens_total counter tenant class model kind
reserved_over_used_ratio histogram tenant class
growth_total counter class outcome
ttft_seconds histogram tenant class model
tpot_seconds histogram tenant class model
e2e_seconds histogram tenant class model
slo_violations_total counter tenant class slo cause
goodput_total counter tenant class model
goodput_ratio gauge class
preemptions_total counter pool by
degraded_total counter class step
retries_total counter tenant client kind
upstream_attempts_total counter replica outcome
prediction_error_seconds histogram pool quantity
prediction_coverage_ratio gauge pool quantity
drain_tokens_per_second gauge pool
service_rate_per_second gauge pool
limit_running gauge replica
replica_running gauge replica
replica_waiting gauge replica
replica_kv_used_ratio gauge replica
replica_compute_used_ratio gauge replica
replica_sample_age_seconds gauge replica
replica_state gauge replica state
foreign_load gauge replica
breaker_transitions_total counter replica to
ledger_seconds histogram operation outcome
ledger_epoch gauge
ledger_available gauge
ledger_audit_difference gauge scope
demanded_tokens gauge pool
scale_wanted_ratio gauge pool
quota_used_ratio gauge tenant unit
cost_total counter tenant kind
loop_lag_seconds histogram worker
open_streams gauge worker
rss_bytes gauge worker
shed_self_total counter worker
build_info gauge version
policy_info gauge policy_version mode ledger
"""


def registry(*readings: Reading, series_max: int = 20_000) -> Registry:
    made = Registry(lambda: readings, series_max)
    allowed: dict[str, Iterable[str]] = {
        "tenant": ["acme", "batchco"],
        "client": ["acme/1"],
        "class": ["interactive", "bulk"],
        "model": ["m"],
        "pool": ["llama"],
        "replica": ["llama/0"],
    }
    for label, values in allowed.items():
        made.allow(label, values)
    return made


def exposed(made: Registry) -> dict[str, float]:
    """What prometheus-client reads: `name{label=value,…}` → value, labels sorted."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(made.render().decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            key = f"{sample.name.removeprefix('headworks_')}{{{labels}}}"
            assert key not in found, f"{key} is exposed twice"
            found[key] = sample.value
    return found


def test_F1_the_table_is_the_contract() -> None:
    lines = [line.split() for line in CONTRACT.strip().splitlines()]
    assert {name: (kind, tuple(labels)) for name, kind, *labels in lines} == {
        metric.name: (metric.kind, metric.labels) for metric in METRICS.values()
    }


def test_F1_every_label_has_a_source_of_values() -> None:
    ours = {"version", "policy_version", "mode", "ledger", "worker"}
    for metric in METRICS.values():
        assert set(metric.labels) <= CONFIGURED | CLOSED.keys() | ours, metric.name
        assert bool(metric.buckets) == (metric.kind == "histogram"), metric.name
        assert list(metric.buckets) == sorted(metric.buckets)
    assert set(REASONS) < set(CLOSED["reason"])
    assert METRICS.keys() >= WITHOUT_SOURCE


def test_F1_counters_and_histograms_are_read_back() -> None:
    made = registry()
    made.counter("queue_timeouts_total", "bulk", "acme").add()
    made.counter("queue_timeouts_total", "bulk", "acme").add(2)
    histogram = made.histogram("tpot_seconds", "acme", "bulk", "m")
    for value in (0.0005, 0.001, 0.0011, 0.02, 3.0):
        histogram.observe(value)
    found = exposed(made)
    assert found["queue_timeouts_total{class=bulk,tenant=acme}"] == 3
    labels = "class=bulk,{}model=m,tenant=acme"
    bucket = {le: found[f"tpot_seconds_bucket{{class=bulk,le={le},model=m,tenant=acme}}"] for le in ("0.001", "0.0025", "0.02")}
    assert bucket == {"0.001": 2, "0.0025": 3, "0.02": 4}
    assert found["tpot_seconds_bucket{class=bulk,le=+Inf,model=m,tenant=acme}"] == 5
    assert found[f"tpot_seconds_count{{{labels.format('')}}}"] == 5
    assert found[f"tpot_seconds_sum{{{labels.format('')}}}"] == pytest.approx(3.0226)


def test_F1_gauges_are_read_when_asked() -> None:
    found = exposed(
        registry(
            Reading("queue_depth", ("interactive", "acme"), 7),
            Reading("ledger_available", (), 1),
            Reading("replica_state", ("llama/0", "ready"), 1),
            Reading("preemptions_total", ("llama", "engine"), 4),
            Reading("policy_info", ("v1", "enforce", "memory"), 1),
            Reading("replica_kv_used_ratio", ("llama/0",), 0.25),
        )
    )
    assert found == {
        "queue_depth{class=interactive,tenant=acme}": 7,
        "ledger_available{}": 1,
        "replica_state{replica=llama/0,state=ready}": 1,
        "preemptions_total{by=engine,pool=llama}": 4,
        "policy_info{ledger=memory,mode=enforce,policy_version=v1}": 1,
        "replica_kv_used_ratio{replica=llama/0}": 0.25,
    }


def test_F1_what_nothing_measures_is_absent() -> None:
    assert registry().render() == b""


def test_H3_label_values_come_from_the_configuration() -> None:
    made = registry(Reading("queue_depth", ("x", "acme"), 2), Reading("queue_depth", ("y", "acme"), 3))
    for number in range(1_000):
        made.counter("goodput_total", f"tenant{number}", "interactive", 'm"\n\\').add()
    made.counter("releases_total", "llama", "E9").add()
    assert exposed(made) == {
        "goodput_total{class=interactive,model=other,tenant=other}": 1_000,
        "releases_total{evidence=other,pool=llama}": 1,
        "queue_depth{class=other,tenant=acme}": 5,
    }
    assert made.series == 2


def test_F1_odd_names_of_the_configuration_are_escaped() -> None:
    made = registry()
    made.allow("tenant", ['a"b\\c\nd'])
    made.counter("cost_total", 'a"b\\c\nd', "used").add()
    assert list(exposed(made).values()) == [1]


def test_F1_series_beyond_the_budget_are_refused() -> None:
    made = registry(*[Reading("limit_running", ("llama/0",), 1)], series_max=30)
    made.histogram("tpot_seconds", "acme", "bulk", "m").observe(1)  # 16 buckets, sum and count
    assert made.series == 18
    made.histogram("tpot_seconds", "batchco", "bulk", "m").observe(1)
    assert (made.series, made.series_refused) == (18, 1)
    for tenant in ("acme", "batchco"):
        for kind in ("used", "wasted", "avoided"):
            made.counter("cost_total", tenant, kind).add()
            made.counter("tokens_total", tenant, "bulk", "m", kind).add()
    found = exposed(made)
    assert sum(value for name, value in found.items() if name.startswith("cost_total")) == 6
    assert "limit_running{replica=llama/0}" not in found
    assert found["tpot_seconds_count{class=other,model=other,tenant=other}"] == 1


def test_F1_a_scrape_of_ten_thousand_series_is_short() -> None:
    made = Registry(list)
    made.allow("tenant", [f"t{number}" for number in range(240)])
    made.allow("class", ["interactive"])
    made.allow("model", ["m", "n"])
    for number in range(240):
        for model in ("m", "n"):
            made.histogram("ttft_seconds", f"t{number}", "interactive", model).observe(0.1)
    assert made.series >= 10_000
    took_s = []
    for _ in range(10):
        begun_s = time.process_time()
        made.render()
        took_s.append(time.process_time() - begun_s)
    assert min(took_s) < 0.005


# what records do


def counted(*records: Decision | Outcome | TurnedAway) -> dict[str, float]:
    made = registry()
    written = Records(Accounts(made), None)
    for record in records:
        written.record(record)
    return {name: value for name, value in exposed(made).items() if "_bucket" not in name and value}


def test_F1_a_decision_is_counted_with_every_failed_check() -> None:
    tenant = Verdict("tenant", "tenant:acme", 17_000, 15_000, "tokens", False, "tenant_capacity_exceeded")
    pool = Verdict("memory", "pool:llama", 8_000, 20_000, "tokens", True, "")
    time_ = Verdict("time", "pool:llama", 4.5, 1.0, "s", False, "queue_delay_exceeded")
    assert counted(decided("queue", "tenant_capacity_exceeded", tenant, pool, time_, wait_s=0.5, position=3)) == {
        "decisions_total{class=interactive,model=m,outcome=queue,reason=tenant_capacity_exceeded,tenant=acme}": 1,
        "verdict_failures_total{check=tenant,scope=tenant}": 1,
        "verdict_failures_total{check=time,scope=pool}": 1,
        "wait_predicted_seconds_count{class=interactive}": 1,
        "wait_predicted_seconds_sum{class=interactive}": 0.5,
        "queue_depth_observed_count{class=interactive,tenant=acme}": 1,
        "queue_depth_observed_sum{class=interactive,tenant=acme}": 3,
    }


def test_F1_a_completion_moves_latencies_tokens_and_goodput() -> None:
    labels = "class=interactive,model=m,tenant=acme"
    tokens = {"prompt": 30, "cached": 8, "output": 20, "reserved": 100}
    assert counted(ended("completed")) == {
        "requests_total{attempt=first,class=interactive,model=m,outcome=completed,reason=,tenant=acme}": 1,
        "queue_wait_seconds_count{class=interactive,outcome=completed,tenant=acme}": 1,
        "queue_wait_seconds_sum{class=interactive,outcome=completed,tenant=acme}": 0.25,
        "releases_total{evidence=E1,pool=llama}": 1,
        **{f"tokens_total{{class=interactive,kind={kind},model=m,tenant=acme}}": n for kind, n in tokens.items()},
        "reserved_over_used_ratio_count{class=interactive,tenant=acme}": 1,
        "reserved_over_used_ratio_sum{class=interactive,tenant=acme}": 2.0,
        f"e2e_seconds_count{{{labels}}}": 1,
        f"e2e_seconds_sum{{{labels}}}": 2.75,
        f"ttft_seconds_count{{{labels}}}": 1,
        f"ttft_seconds_sum{{{labels}}}": 0.75,
        f"tpot_seconds_count{{{labels}}}": 1,
        f"tpot_seconds_sum{{{labels}}}": pytest.approx(2.0 / 9),  # 20 tokens of 2 samples: 9 after the first of each
        f"goodput_total{{{labels}}}": 1,
        "prediction_error_seconds_count{pool=llama,quantity=ttft}": 1,
        "prediction_error_seconds_sum{pool=llama,quantity=ttft}": 0.25,
    }


def test_F1_a_cancel_is_wasted_work_with_its_proof() -> None:
    found = counted(ended("cancelled", evidence="E3a", unconfirmed_s=0.05, in_slo=False, retry=True))
    assert found["requests_total{attempt=retry,class=interactive,model=m,outcome=cancelled,reason=,tenant=acme}"] == 1
    assert found["tokens_total{class=interactive,kind=wasted,model=m,tenant=acme}"] == 20
    assert found["unconfirmed_seconds_sum{evidence=E3a,pool=llama}"] == 0.05
    assert not [name for name in found if name.startswith(("ttft", "goodput", "e2e"))]


@pytest.mark.parametrize(("outcome", "timeouts"), [("refused", 0), ("expired", 1)])
def test_F1_a_refusal_counts_by_client(outcome: str, timeouts: int) -> None:
    found = counted(
        ended(outcome, reason="queue_timeout", admitted_s=None, first_byte_s=None, ended_s=10.5, usage=None, evidence="")
    )
    assert found["refused_total{client=acme/1,reason=queue_timeout,tenant=acme}"] == 1
    assert found.get("queue_timeouts_total{class=interactive,tenant=acme}", 0) == timeouts
    assert found[f"queue_wait_seconds_sum{{class=interactive,outcome={outcome},tenant=acme}}"] == 0.5
    assert not [name for name in found if name.startswith(("releases", "tokens"))]


def test_F1_what_was_refused_unread_counts_as_any_refusal() -> None:
    full = Verdict("tenant", "tenant:acme", 2.0, 1, "requests at once", False, "rate_limit_exceeded")
    given = [turned(f"r{number}", full) for number in range(3)]
    given += [turned("r3", full, retry_kind="early", retry_count=1), turned("r4", full, full._replace(scope="client:acme/1"))]
    apart = counted(*(away.decision for away in given), *(away.outcome() for away in given))
    assert counted(*given) == apart
    assert apart["refused_total{client=acme/1,reason=rate_limit_exceeded,tenant=acme}"] == 5


def test_F1_what_failed_after_admission_is_no_refusal() -> None:
    found = counted(ended("failed", reason="preempted", in_slo=False))
    assert not [name for name in found if name.startswith("refused_total")]


def test_F1_a_reload_lets_new_names_in() -> None:
    made = registry()
    accounts = Accounts(made)
    new = {"key": RequestKey("newco", "k")}
    accounts.record(ended("completed", **new))
    made.allow("tenant", ["acme", "newco"])
    accounts.record(ended("completed", **new))
    found = exposed(made)
    assert found["goodput_total{class=interactive,model=m,tenant=other}"] == 1
    assert found["goodput_total{class=interactive,model=m,tenant=newco}"] == 1


def test_F1_round_trips_attempts_and_lag_have_series() -> None:
    made = registry()
    accounts = Accounts(made)
    accounts.ledger("reserve", "granted", 0.0001)
    accounts.attempt("llama/0", "completed")
    accounts.loop_lag("0", 0.003)
    accounts.alarm(Alarm("evidence_overdue", "e", "x"))
    found = exposed(made)
    assert found["ledger_seconds_count{operation=reserve,outcome=granted}"] == 1
    assert found["upstream_attempts_total{outcome=completed,replica=llama/0}"] == 1
    assert found["loop_lag_seconds_count{worker=0}"] == 1
    assert accounts.alarms == {"evidence_overdue": 1}


def test_F1_a_limit_that_was_missed_is_counted_with_what_took_the_time() -> None:
    found = counted(
        ended("completed", in_slo=False, missed=("ttft", "queueing")),
        ended("completed", in_slo=False, missed=("ttft", "queueing")),
        ended("completed", in_slo=False, missed=("tpot", "memory")),
    )
    assert {name: value for name, value in found.items() if name.startswith("slo_")} == {
        "slo_violations_total{cause=queueing,class=interactive,slo=ttft,tenant=acme}": 2,
        "slo_violations_total{cause=memory,class=interactive,slo=tpot,tenant=acme}": 1,
    }


def test_F1_goodput_of_the_last_minute_forgets_and_leaves_out_the_tenants_own_limits() -> None:
    last = LastMinute()
    last.count([ended("completed", ended_s=100.0), ended("completed", ended_s=100.5), ended("completed", ended_s=101.0)])
    last.count([ended("completed", ended_s=110.0, in_slo=False)])
    last.count([ended("refused", ended_s=111.0, in_slo=False, reason="queue_delay_exceeded")])
    last.count([ended("refused", ended_s=112.0, in_slo=False, reason="rate_limit_exceeded")])
    assert list(last.ratios(112.0)) == [("interactive", 0.6)]
    assert list(last.ratios(160.9)) == [("interactive", pytest.approx(1 / 3))]
    assert list(last.ratios(175.0)) == []


def test_F1_the_ledger_shows_its_epoch_its_differences_and_foreign_load() -> None:
    found = exposed(registry(*ledger_readings("6c2f", {"pool": 0, "tenant": 12}, {"llama/0": 3})))
    assert found == {
        "ledger_epoch{}": 4_147_420_420,
        "ledger_audit_difference{scope=pool}": 0,
        "ledger_audit_difference{scope=tenant}": 12,
        "foreign_load{replica=llama/0}": 3,
    }
