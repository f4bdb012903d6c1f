"""Capacity that is one tenant's (B11): nobody else has it, it is lent to what can be taken back, and it is there at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headworks.core import events
from headworks.core.effects import Alarm, Reply, Run
from headworks.core.policy import ClassPolicy, GatePolicy, Policy, TenantPolicy
from tests.core.driver import Bench, capacity, policy

INTERACTIVE = ClassPolicy("interactive", share=10.0, ttft_slo_s=None, wait_s_max=2.0, preempts=True)
BULK = ClassPolicy("bulk", share=1.0, ttft_slo_s=None, wait_s_max=300.0, preemptible=True)
BOTH = ("interactive", "bulk")


def settings(kind: str = "wfq", pool: dict[str, Any] | None = None, **reserved: Any) -> Policy:
    """acme has 4,000 tokens and 2 sequences of the pool `p` of 10,000 and 8; batchco has nothing of its own."""
    own = {"reserved_tokens": 4_000, "reserved_requests": 2, **reserved}
    made = policy(kind=kind, pool={"active_requests_max": 8, **(pool or {})})
    tenants = {"acme": TenantPolicy("acme", classes=BOTH, **own), "batchco": TenantPolicy("batchco", classes=BOTH)}
    return replace(made, classes={"interactive": INTERACTIVE, "bulk": BULK}, tenants=tenants)


def bench_of(made: Policy) -> Bench:
    return Bench(made, capacities=(capacity(kv_tokens=10_000, running_max=8),))


def reload(bench: Bench, **reserved: Any) -> None:
    made = settings(**reserved)
    bench.feed(events.PolicyChanged(replace(made, version="v2", number=2)))


@pytest.mark.parametrize("kind", ["wfq", "predictive_ttft", "fifo"])
def test_B11_golden_4000_of_10000_are_held_by_nobody_else(kind: str) -> None:
    bench = bench_of(settings(kind))
    bench.arrive(6_000, tenant="batchco")
    bench.arrive(1, tenant="batchco")
    assert len(bench.take(Run)) == 1, "6,001 of the 6,000 that are anybody's"
    bench.arrive(4_000)
    assert len(bench.take(Run)) == 1, "past the one that waits"
    bench.advance(2.01)
    (reply,) = bench.take(Reply)
    found = [one for one in reply.decision.verdicts if one.unit == "tokens beside what is reserved"]
    assert reply.decision.reason == "queue_timeout"
    assert [(one.value, one.limit, one.passed) for one in found] in ([], [(10_001, 10_000, False)])


def test_B11_who_waits_for_what_is_reserved_is_told_so() -> None:
    bench = bench_of(settings())
    bench.arrive(5_000, tenant="batchco")
    bench.arrive(2_000, tenant="batchco")
    bench.advance(2.01)
    (found,) = [one for one in bench.refusal().verdicts if one.unit == "tokens beside what is reserved"]
    assert (found.value, found.limit, found.passed) == (7_000, 6_000, False)


def test_B11_sequences_are_reserved_as_tokens_are() -> None:
    bench = bench_of(settings())
    for _ in range(7):
        bench.arrive(10, tenant="batchco")
    assert len(bench.take(Run)) == 6
    for _ in range(3):
        bench.arrive(10)
    assert len(bench.take(Run)) == 2


def test_B11_what_is_in_use_of_it_is_not_kept_twice() -> None:
    bench = bench_of(settings())
    bench.arrive(3_000)
    execution = bench.execution()
    bench.arrive(6_000, tenant="batchco")
    bench.arrive(1_000)
    assert len(bench.take(Run)) == 2
    assert bench.held() == 10_000
    bench.first_byte(execution)
    bench.complete(execution)
    bench.arrive(1, tenant="batchco")
    assert bench.take(Run) == [], "what comes free of it is kept again"


def test_B11_beyond_its_reserve_its_tenant_is_anybody() -> None:
    bench = bench_of(settings())
    bench.arrive(5_000)
    bench.arrive(5_000, tenant="batchco")
    assert len(bench.take(Run)) == 2


def test_B11_the_unused_part_is_lent_to_preemptible_work_alone() -> None:
    bench = bench_of(settings())
    bench.arrive(5_000, tenant="batchco")
    bench.arrive(5_000, tenant="batchco", service_class="bulk")
    assert len(bench.take(Run)) == 2
    assert (bench.held("lent:p"), bench.held("reserved:p:acme")) == (5_000, 0)
    bench.arrive(1_000, tenant="batchco")
    assert bench.take(Run) == [], "there is no room for anybody"


def test_B11_what_is_lent_is_not_counted_against_others() -> None:
    bench = bench_of(settings())
    bench.arrive(5_000, tenant="batchco", service_class="bulk")
    bench.arrive(5_000, tenant="batchco")
    assert len(bench.take(Run)) == 2, "6,000 are anybody's, whatever bulk work has of the rest"


def test_B11_lent_is_only_what_its_owner_has_not_used_of_late() -> None:
    """3,000 were used: 3,300 stay free for ten seconds even of bulk work, which without that would be preempted at once."""
    bench = bench_of(settings())
    bench.arrive(3_000)
    execution = bench.execution()
    bench.arrive(1, tenant="batchco", service_class="bulk")  # it is looked at
    bench.first_byte(execution)
    bench.complete(execution)
    bench.arrive(6_700, tenant="batchco", service_class="bulk")
    assert len(bench.take(Run)) == 1, "10,000 - 3,300 - 1 are 6,699"
    bench.advance(11.0)
    assert len(bench.take(Run)) == 1


def test_B11_its_own_preemptible_work_stands_on_what_is_lent() -> None:
    bench = bench_of(settings())
    bench.arrive(4_000, service_class="bulk")
    bench.arrive(4_000)
    assert len(bench.take(Run)) == 2
    assert (bench.held("lent:p"), bench.held("reserved:p:acme")) == (4_000, 4_000)


def test_B11_what_ends_is_its_owners_before_anybody_elses() -> None:
    bench = bench_of(settings())
    bench.arrive(5_000, tenant="batchco", service_class="bulk")
    first = bench.execution()
    bench.arrive(5_000, tenant="batchco", service_class="bulk")
    bench.arrive(5_000, tenant="batchco", service_class="bulk")
    bench.arrive(1_000, tenant="batchco")
    bench.arrive(3_000)
    bench.take(Run)
    bench.first_byte(first)
    bench.complete(first)
    runs = bench.take(Run)
    assert runs[0].decision.key.tenant == "acme"
    assert bench.held("reserved:p:acme") == 3_000


def test_B11_inside_its_reserve_nothing_that_is_foreseen_holds_it_up() -> None:
    """A gate that is closed, others that wait, a full gauge, a running limit: none of them is its own limit."""
    made = settings()
    made.classes["interactive"] = replace(INTERACTIVE, ttft_slo_s=1.0, refuse_when=GatePolicy(waiting_requests=0))
    bench = bench_of(made)
    bench.arrive(6_000, tenant="batchco")
    bench.arrive(6_000, tenant="batchco", service_class="bulk")
    bench.take(Run)
    bench.sample(kv_used_ratio=0.9, running=1, iterations=(1,))
    bench.arrive(10, tenant="batchco")
    assert bench.refusal().reason == "class_gate"
    bench.arrive(1_000)
    assert len(bench.take(Run)) == 1


def test_B11_a_running_limit_that_others_fill_does_not_hold_up_what_waited_for_its_own_tenant() -> None:
    bench = bench_of(settings(active_requests_max=1))
    bench.gate._desk.pools["p"].replicas["p/0"].limit.fix(4)
    bench.arrive(10)
    first = bench.execution()
    for _ in range(4):
        bench.arrive(10, tenant="batchco")
    assert len(bench.take(Run)) == 3
    bench.arrive(10)
    assert bench.take(Run) == [], "its tenant has one running"
    bench.gate._desk.pools["p"].replicas["p/0"].limit.fix(3)
    bench.first_byte(first)
    bench.complete(first)
    assert [run.decision.key.tenant for run in bench.take(Run)] == ["acme"]


def test_B11_its_own_limits_hold_inside_it_too() -> None:
    bench = bench_of(settings(active_requests_max=2))
    for _ in range(3):
        bench.arrive(10)
    assert len(bench.take(Run)) == 2


def test_B11_a_class_gate_does_not_refuse_what_waits_for_its_own_tenant_alone() -> None:
    made = settings(active_requests_max=1)
    made.classes["interactive"] = replace(INTERACTIVE, refuse_when=GatePolicy(waiting_requests=0))
    bench = bench_of(made)
    bench.arrive(5_000, tenant="batchco")
    bench.arrive(10)
    bench.arrive(5_000, tenant="batchco", service_class="bulk")
    first = bench.take(Run)[1].execution.id
    bench.arrive(10)
    assert bench.take(Reply) == [], "one that is not inside a reserve is refused while a single one waits"
    bench.first_byte(first)
    bench.complete(first)
    assert len(bench.take(Run)) == 1


def test_B11_more_than_others_leave_is_never_to_be_had() -> None:
    bench = bench_of(settings())
    bench.arrive(6_001, tenant="batchco")
    refusal = bench.refusal()
    (found,) = [one for one in refusal.verdicts if one.reason == "request_exceeds_capacity"]
    assert (found.value, found.limit) == (6_001, 6_000)
    bench.arrive(10_000)
    bench.arrive(9_000, tenant="batchco", service_class="bulk")
    assert len(bench.take(Run)) == 1


def test_B11_a_reload_changes_it_for_what_waits_and_what_comes() -> None:
    bench = bench_of(settings(reserved_tokens=0, reserved_requests=0))
    bench.arrive(9_000, tenant="batchco")
    (run,) = bench.take(Run)
    reload(bench)
    bench.arrive(500, tenant="batchco")
    assert bench.take(Run) == [], "9,500 of 6,000: it drains"
    bench.first_byte(run.execution.id)
    bench.complete(run.execution.id)
    assert len(bench.take(Run)) == 1
    reload(bench, reserved_tokens=0, reserved_requests=0)
    bench.arrive(9_000, tenant="batchco")
    assert len(bench.take(Run)) == 1


def test_B11_two_gateways_keep_one_reserve() -> None:
    """The second gateway knows nothing of what the first has there: the ledger does."""
    first = bench_of(settings())
    second = Bench(settings(), capacities=(capacity(kv_tokens=10_000, running_max=8),), book=first.book, boot="boot-2")
    first.arrive(6_000, tenant="batchco")
    second.arrive(1_000, tenant="batchco")
    assert (len(first.take(Run)), len(second.take(Run))) == (1, 0)
    second.arrive(4_000)
    assert len(second.take(Run)) == 1
    assert first.book.check() == []


def test_B11_reserves_beyond_the_pool_are_cut_and_alarmed() -> None:
    made = settings(reserved_tokens=15_000)
    made.tenants["batchco"] = replace(made.tenants["batchco"], reserved_tokens=5_000)
    bench = Bench(made, capacities=())
    bench.feed(events.ReplicaDescribed(capacity(kv_tokens=10_000, running_max=8)))
    assert [alarm.name for alarm in bench.take(Alarm)] == ["reserves_exceed_pool"]
    bench.arrive(7_500)
    bench.arrive(2_500, tenant="batchco")
    assert len(bench.take(Run)) == 2


def test_B11_a_tenant_that_may_not_ask_a_pool_has_nothing_there() -> None:
    made = settings(models=("another",))
    bench = bench_of(made)
    bench.arrive(10_000, tenant="batchco")
    assert len(bench.take(Run)) == 1
