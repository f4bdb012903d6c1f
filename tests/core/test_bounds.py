"""Whatever can grow in the core has a bound, and this is what happens at it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headworks.core import events
from headworks.core.book_audit import audit, differences
from headworks.core.book_counters import Counters
from headworks.core.commands import Grow
from headworks.core.desk import Desk
from headworks.core.effects import Ask, Run
from headworks.core.estimate import Estimator
from headworks.core.forecast import keep_answer
from headworks.core.level import Level
from headworks.core.policy import RatePolicy, TenantPolicy
from headworks.core.tenant import TenantUse
from headworks.core.types import Charge, Owner, Work
from tests.core.driver import Bench, policy
from tests.core.shared_pool import INTERACTIVE, shared
from tests.core.test_estimate import asked, ended


def test_B5_of_a_tenants_clients_1024_are_remembered_and_the_one_heard_from_first_begins_anew() -> None:
    use = TenantUse(TenantPolicy("acme", client_rate=RatePolicy(requests_per_s=1.0, burst_requests=1)))
    clients = [use.client(f"client-{number}", 0.0) for number in range(1_024)]
    assert use.client("client-0", 0.0) is clients[0]
    use.client("one-more", 0.0)
    assert use.client("client-1", 0.0) is clients[1]
    assert use.client("client-0", 0.0) is not clients[0]


def test_D1_flows_that_are_not_ahead_of_the_time_are_forgotten_past_4096() -> None:
    level = Level()
    for number in range(4_096):
        level.serve(f"flow-{number}", 1.0)
    level.serve("flow-0", 1.0)  # from 1 to 2, so that it is 1 now
    assert len(level.finish) == 4_096
    level.serve("one-more", 1.0)
    assert level.finish == {"flow-0": 2.0, "one-more": 2.0}
    assert level.start("flow-7") == 1.0, "it starts where it would have started"


def test_C1_the_answers_of_4000_tenants_and_models_are_remembered_and_further_ones_go_by_their_pool() -> None:
    estimator = Estimator()
    for number in range(4_001):
        ended(estimator, 100, asked(tenant=f"tenant-{number}"))
    assert estimator.standing("tenant-3999") == {"m": {"answers": 1, "missed": 0, "output_tokens": None}}
    assert estimator.standing("tenant-4000") == {}


def test_C3_of_2000_flows_their_own_answers_are_kept_and_all_others_together() -> None:
    settings = policy()
    names = [f"tenant-{number}" for number in range(2_001)]
    desk = Desk(replace(settings, tenants={name: TenantPolicy(name) for name in names}), Owner("g", "b"), b"seed")
    lanes = [desk.lane(name, "interactive", "p") for name in names]
    for lane in lanes:
        keep_answer(12.0, Work(10, 5, 1, 0.0, 16, 5, "exact", 5), lane)
    own = [lane.answers.count if lane.answers is not None else 0 for lane in lanes]
    assert own == [1] * 2_000 + [0]
    assert [window.count for window in desk.pools["p"].bounds.answers.values()] == [100]


def test_A8_eight_refused_answers_ask_again_when_one_ends() -> None:
    pool: dict[str, Any] = {
        "growth": True,
        "output_tokens_cold": 200,
        "growth_step_tokens": 64,
        "growth_ahead_tokens": 16,
        "active_tokens_max": 11 * 300,
        "active_requests_max": 11,
    }
    bench = Bench(policy(interactive={"ttft_slo_s": None, "wait_s_max": 2.0}, pool=pool))
    for _ in range(11):
        bench.arrive(4_100, 4_000, output_tokens_min=200)
    executions = [run.execution.id for run in bench.take(Run)]
    for execution in executions:
        bench.first_byte(execution)
    for execution in executions[1:]:
        bench.feed(events.Progressed(execution, 184))
    bench.take(Ask)
    bench.complete(executions[0])
    asked = [command for ask in bench.take(Ask) for command in ask.commands if isinstance(command, Grow)]
    assert [command.execution for command in asked] == executions[1:9]


@pytest.mark.parametrize(("large", "sent"), [(16, 1), (17, 0)])
def test_D2_sixteen_heads_that_do_not_fit_are_looked_past_in_one_round(large: int, sent: int) -> None:
    names = [f"tenant-{number:02}" for number in range(large)]
    known: dict[str, dict[str, Any]] = {name: {} for name in [*names, "tenant-99"]}
    settings = shared(INTERACTIVE, tenants=known, active_requests_max=100, active_tokens_max=1_000)
    bench = Bench(settings)
    bench.arrive(900)
    for name in names:
        bench.arrive(500, tenant=name)
    bench.take(Run)
    bench.arrive(50, tenant="tenant-99")
    assert len(bench.take(Run)) == sent


def test_K20_of_any_number_at_the_boundary_as_many_run_as_fit_whoever_asks_first() -> None:
    bench = Bench(
        policy(tenant={"active_tokens_max": 15_000}, interactive={"ttft_slo_s": None}, pool={"active_requests_max": 500})
    )
    for number in range(100):
        bench.arrive(1_000, tenant=("acme", "batchco")[number % 2])
        assert bench.held("tenant:acme") <= 15_000
    assert len(bench.take(Run)) == 30
    assert (bench.held("tenant:acme"), bench.held("tenant:batchco"), bench.held()) == (15_000, 15_000, 30_000)


def test_K26_of_two_gateways_that_race_for_the_last_unit_one_gets_it() -> None:
    first = Bench(policy(tenant={"active_tokens_max": 1_000}, interactive={"ttft_slo_s": None, "wait_s_max": 0.2}))
    second = Bench(first.gate._desk.policy, book=first.book, boot="boot-2")
    first.arrive(600)
    second.arrive(600)
    assert (len(first.take(Run)), len(second.take(Run))) == (1, 0)
    second.advance(0.3)
    decision = second.refusal()
    assert (decision.reason, first.held("tenant:acme")) == ("tenant_capacity_exceeded", 600)


def test_K15_a_counter_below_zero_is_reported_and_not_clamped() -> None:
    counters = Counters()
    charges = [Charge("pool:p", "tokens", 10)]
    taken, _ = counters.take(charges)
    for _ in range(2):
        counters.give(charges, taken)
    assert (counters.held("pool:p", "tokens"), counters.underflows) == (-10, 1)
    said = list(audit(counters, {}, {}, {}, {}, {}, {}))
    assert "pool:p tokens is below zero: -10" in said
    assert "counters fell below zero 1 times" in said


def test_K15_the_differences_are_added_up_by_kind_of_scope_without_signs() -> None:
    counters = Counters()
    counters.take([Charge("pool:p", "tokens", 10), Charge("tenant:acme", "tokens", 10)])
    charges = [Charge("pool:q", "tokens", 3)]
    taken, _ = counters.take(charges)
    for _ in range(2):
        counters.give(charges, taken)
    assert differences(counters, {}, {}) == {"pool": 13, "tenant": 10}
