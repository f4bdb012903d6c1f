"""Observe mode of one tenant, or of one class, beside others that are held to their limits (F3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headworks.core import events
from headworks.core.book import Book
from headworks.core.effects import Abort, Opened, Reply, Run
from headworks.core.policy import ClassPolicy, Policy, QuotaPolicy, TenantPolicy
from headworks.core.types import Budget, RequestKey
from tests.core.driver import Bench, capacity, policy
from tests.core.test_preempt import bench_of, preempted, urgent

PATIENT = {"ttft_slo_s": None, "wait_s_max": 5.0}
KINDS = ("wfq", "predictive_ttft")


def observing(kind: str = "wfq", pool: dict[str, Any] | None = None, **tenant: Any) -> Policy:
    """`acme` is observed, `batchco` is not; 1,000 tokens may be held."""
    made = policy(kind=kind, interactive=PATIENT, pool={"active_tokens_max": 1_000, **(pool or {})})
    made.tenants["acme"] = TenantPolicy("acme", observe=True, **tenant)
    return made


def told(bench: Bench, name: str) -> list[tuple[str, str]]:
    return [(one.outcome, one.reason) for one in bench.decisions() if one.id == name]


@pytest.mark.parametrize("kind", KINDS)
def test_F3_an_observed_tenant_runs_whatever_is_full_and_the_others_find_what_it_holds(kind: str) -> None:
    bench = Bench(observing(kind))
    bench.arrive(900, tenant="batchco")
    first = bench.execution()
    bench.arrive(700)
    second = bench.execution()
    assert bench.held() == 1_600, "above the limit, and counted"
    waiting = bench.arrive(200, tenant="batchco")
    assert bench.take(Run) == [] and told(bench, waiting) == [("queue", "queue_timeout")]
    for execution in (first, second):
        bench.first_byte(execution)
    bench.complete(first)
    assert [run.id for run in bench.take(Run)] == [waiting], "700 and 200 fit"
    bench.complete(second)
    assert bench.held() == 200


def test_F3_what_would_have_been_refused_stands_in_the_log_before_it_is_admitted() -> None:
    bench = Bench(observing())
    name = bench.arrive(5_000)
    assert told(bench, name) == [("refuse", "request_exceeds_capacity"), ("admit", "")]
    assert bench.take(Reply) == []


def test_F3_an_observed_class_runs_and_its_tenant_is_held_to_its_limits_in_the_others() -> None:
    made = observing(active_requests_max=1)
    made.tenants["acme"].observe = False
    made.classes["bulk"] = ClassPolicy("bulk", observe=True, ttft_slo_s=None)
    bench = Bench(made)
    for _ in range(2):
        bench.arrive(900, service_class="bulk")
    assert len(bench.take(Run)) == 2 and bench.held() == 1_800
    bench.arrive(100)
    assert bench.take(Run) == []
    assert bench.held("tenant:acme", "requests") == 2


def test_F3_no_return_slot_is_kept_for_who_is_not_told_of_it() -> None:
    made = observing()
    made.classes["interactive"] = ClassPolicy("interactive", ttft_slo_s=None, wait_s_max=5.0, queue_requests_max=0)
    bench = Bench(made)
    bench.arrive(900, tenant="batchco")
    name = bench.arrive(900)
    (refused, admitted) = [one for one in bench.decisions() if one.id == name]
    assert (refused.reason, refused.retry_after_s, admitted.outcome) == ("queue_full", None, "admit")
    bench.arrive(900, tenant="batchco")
    assert bench.refusal().retry_after_s is not None


def test_F3_an_observed_tenant_is_granted_all_growth() -> None:
    made = observing(pool={"active_tokens_max": 310, "growth": True, "output_tokens_cold": 200})
    bench = Bench(made)
    bench.arrive(4_100, 4_000, output_tokens_min=200)
    execution = bench.execution()
    bench.first_byte(execution)
    for tokens in (184, 248, 312):
        bench.feed(events.Progressed(execution, tokens))
    assert bench.take(Abort) == [] and bench.held() == 100 + 200 + 3 * 64


@pytest.mark.parametrize("kind", ["tenant", "class", "since"])
def test_F3_a_step_that_needs_no_further_block_is_granted_as_well(kind: str) -> None:
    """Blocks of 256 tokens: 100 and 200 take two, and so do 64 more. `since`: it is observed from a reload on."""
    made = observing(pool={"growth": True, "output_tokens_cold": 200}, active_tokens_max=310)
    before = replace(made, classes=dict(made.classes), tenants=dict(made.tenants))
    if kind != "tenant":
        made.tenants["acme"] = before.tenants["acme"] = replace(made.tenants["acme"], observe=False)
        made.classes["interactive"] = replace(made.classes["interactive"], observe=True)
    bench = Bench(before if kind == "since" else made, capacities=(capacity(block_tokens=256),))
    bench.arrive(4_100 if kind != "since" else 310, 4_000 if kind != "since" else 210, output_tokens_min=200)
    execution = bench.execution()
    bench.first_byte(execution)
    if kind == "since":
        bench.feed(events.PolicyChanged(replace(made, version="v2", number=2)))
        bench.arrive(100)
    for tokens in (184, 248, 312):
        bench.feed(events.Progressed(execution, tokens))
    assert bench.take(Abort) == []
    assert bench.held("tenant:acme") == (310 + 100 if kind == "since" else 100 + 200 + 3 * 64)


def test_F3_a_quota_that_is_used_up_is_written_down_and_refuses_nobody() -> None:
    bench = Bench(observing(quota=QuotaPolicy("day", tokens=1_000)))
    bench.arrive(800)
    bench.take(Run)
    bench.take(Reply)
    bench.decisions()
    name = bench.arrive(800)
    assert told(bench, name) == [("refuse", "insufficient_quota"), ("admit", "")]
    assert bench.held("quota:acme@day-1970-01-01") == 1_600


def test_F3_another_gateway_finds_what_is_observed_here() -> None:
    book = Book(lease_ms=5_000, remember_ms=3_600_000)
    here = Bench(observing(), book=book)
    here.arrive(900)
    there = Bench(observing(), book=book, boot="boot-2")
    there.arrive(200, tenant="batchco")
    assert there.take(Run) == []
    there.arrive(200)
    assert len(there.take(Run)) == 1 and book.held("pool:p", "tokens") == 1_100


def test_F3_what_comes_back_from_a_busy_engine_does_not_wait_for_room() -> None:
    bench = Bench(observing())
    bench.arrive(900, tenant="batchco")
    bench.take(Run)
    bench.arrive(700)
    execution = bench.execution()
    bench.feed(events.NotSent(execution, "late"))
    again = bench.execution()
    assert again != execution and bench.held() == 1_600


def test_F3_who_is_frozen_is_refused_though_its_tenant_is_observed() -> None:
    bench = Bench(observing(frozen=True))
    bench.arrive(10)
    assert bench.refusal().reason == "tenant_frozen"


@pytest.mark.parametrize(("observe", "stops"), [(False, 1), (True, 0)])
def test_F3_what_is_observed_is_not_stopped_for_others(observe: bool, stops: int) -> None:
    bench = bench_of()
    changed = replace(bench.gate._desk.policy, version="v2", number=2)
    changed.tenants["batchco"] = replace(changed.tenants["batchco"], observe=observe)
    bench.feed(events.PolicyChanged(changed))
    for life in bench.gate._desk.runs.values():  # as if it had come since
        life.lane = bench.gate._desk.lane("batchco", "bulk", "p")
    urgent(bench, 4.9)
    assert len(preempted(bench)) == stops


def test_F3_a_reload_that_observes_lets_go_on_what_waits_and_back_again() -> None:
    made = observing()
    made.tenants["acme"].observe = False
    bench = Bench(made)
    bench.arrive(900)
    bench.take(Run)
    waiting = bench.arrive(900)
    assert bench.take(Run) == []
    tenants = {**made.tenants, "acme": replace(made.tenants["acme"], observe=True, active_tokens_max=100)}
    bench.feed(events.PolicyChanged(replace(made, version="v2", number=2, tenants=tenants)))
    assert [run.id for run in bench.take(Run)] == [waiting]
    bench.feed(events.PolicyChanged(replace(made, version="v3", number=3)))
    bench.arrive(900)
    assert bench.take(Run) == [] and bench.held() == 1_800


def frozen_too(bench: Bench, made: Policy, **changed: Any) -> None:
    tenants = made.tenants | {"acme": replace(made.tenants["acme"], frozen=True)}
    bench.feed(events.PolicyChanged(replace(made, version="v2", number=2, tenants=tenants, **changed)))


@pytest.mark.parametrize("kind", ["all", "tenant", "class"])
def test_F13_what_waits_of_an_observed_tenant_that_is_frozen_is_refused_and_starts_never(kind: str) -> None:
    made = observing()
    made.tenants["acme"] = replace(made.tenants["acme"], observe=kind == "tenant")
    made.classes["interactive"] = replace(made.classes["interactive"], observe=kind == "class")
    made = replace(made, observe=kind == "all")
    bench = waiting_at(made)
    frozen_too(bench, made)
    assert bench.refusal().reason == "tenant_frozen"
    bench.sample()
    bench.advance(1.0)
    assert bench.take(Run) == [] and bench.held() == 0


def waiting_at(made: Policy, is_gone: bool = True) -> Bench:
    """One that nothing is to hold up waits all the same, since its engine was busy and then gone."""
    bench = Bench(made)
    bench.arrive(900)
    execution = bench.execution()
    bench.feed(events.NotSent(execution, "busy"))
    if is_gone:
        bench.feed(events.SampleFailed("p/0", "refused", unreachable=True))
    assert bench.take(Run) == [] and bench.take(Reply) == []
    assert bench.gate.snapshot(bench.now_s)["pools"]["p"]["queued_requests"] == 1
    return bench


def without_engine(bench: Bench, seconds: float) -> None:
    for _ in range(round(seconds / 0.05)):
        bench.feed(events.SampleFailed("p/0", "refused", unreachable=True))
        bench.advance(0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_F3_what_waits_when_observing_ends_waits_as_long_as_its_class_from_then_on(kind: str) -> None:
    made = replace(observing(kind), observe=True)
    made.classes["interactive"] = ClassPolicy("interactive", ttft_slo_s=8.0, wait_s_max=5.0)
    bench = waiting_at(made)
    without_engine(bench, 30.0)
    assert bench.take(Reply) == [], "while it is observed it waits for as long as it takes"
    tenants = made.tenants | {"acme": replace(made.tenants["acme"], observe=False)}
    bench.feed(events.PolicyChanged(replace(made, observe=False, tenants=tenants, version="v2", number=2)))
    without_engine(bench, 4.9)
    assert bench.take(Reply) == []
    without_engine(bench, 0.2)
    assert bench.refusal().reason == "queue_timeout"


def test_F3_a_session_that_waits_to_be_opened_when_observing_ends_waits_as_long_as_its_class() -> None:
    made = replace(observing(), observe=True)
    bench = Bench(made)
    bench.lose_asks = True
    bench.arrive(1, session="session:acme/key/1", opens=Budget(100, 60.0), prompt_tokens=0, output_tokens_max=0)
    bench.feed(events.SampleFailed("p/0", "refused", unreachable=True))
    bench.lose_asks = False
    bench.feed(events.StoreChanged("another"))
    bench.feed(events.PolicyChanged(replace(made, observe=False, tenants={"acme": TenantPolicy("acme")})))
    without_engine(bench, 4.9)
    assert bench.take(Reply) == [] and bench.take(Opened) == []
    without_engine(bench, 0.2)
    assert bench.refusal().reason == "queue_timeout"


def test_F3_what_comes_back_after_observing_has_ended_waits_by_the_new_policy() -> None:
    made = observing()
    bench = Bench(made)
    bench.arrive(900, tenant="batchco")
    bench.take(Run)
    bench.arrive(700)
    execution = bench.execution()
    tenants = made.tenants | {"acme": TenantPolicy("acme")}
    bench.feed(events.PolicyChanged(replace(made, tenants=tenants, version="v2", number=2)))
    bench.feed(events.NotSent(execution, "late"))
    assert bench.take(Run) == [] and bench.held() == 900, "there is no room for it any more"
    bench.advance(5.1)
    assert bench.refusal().reason == "queue_timeout"


def test_F3_what_waited_observed_stands_by_its_new_deadline_before_whoever_came_later() -> None:
    made = replace(observing("wfq"), observe=True)
    bench = waiting_at(made, is_gone=False)
    changed = replace(made, observe=False, tenants=made.tenants | {"acme": TenantPolicy("acme")}, version="v2", number=2)
    bench.feed(events.PolicyChanged(changed))
    bench.advance(0.01)
    line = bench.gate._desk.pools["p"].queue.lines["interactive", "acme"]
    bench.arrive(100)
    first = line.first()
    assert first.request.id == "r1" and first.start_by_s == 105.0 and line.requests == 2


def test_F3_an_observed_tenants_keys_are_not_claimed() -> None:
    """Nothing is shared or refused for a key: as without a gateway, each request runs."""
    bench = Bench(observing(), capacities=(capacity(),))
    for _ in range(2):
        bench.arrive(10, key=RequestKey("acme", "same"), key_given=True)
    assert len(bench.take(Run)) == 2
