"""The gate through its one method: golden cases of admission, with the numbers of the specification written out."""

from __future__ import annotations

import pytest

from headworks.core import events
from headworks.core.effects import Abort, Observe, Run
from headworks.core.types import Decision, Verdict
from tests.core.driver import Bench, capacity, policy

LONG = {"ttft_slo_s": None, "wait_s_max": 2.0}


def verdict(decision: Decision, check: str, unit: str) -> Verdict:
    (found,) = [one for one in decision.verdicts if one.check == check and one.unit == unit]
    return found


def test_A1_pool_of_40000_holds_three_and_the_fourth_waits_two_seconds_and_is_refused_unsent() -> None:
    bench = Bench(policy(interactive=LONG, pool={"active_tokens_max": 40_000}))
    for tokens in (12_000, 16_000, 8_000):
        bench.arrive(tokens)
    assert len(bench.take(Run)) == 3
    assert bench.held() == 36_000
    bench.arrive(7_000)
    assert bench.decisions()[-1].outcome == "queue"
    bench.advance(1.99)
    assert bench.take(Run) == [] and bench.held() == 36_000
    bench.advance(0.02)
    refused = bench.refusal()
    assert (refused.outcome, refused.reason) == ("refuse", "queue_timeout")
    assert (verdict(refused, "memory", "tokens").value, verdict(refused, "memory", "tokens").limit) == (43_000, 40_000)
    assert refused.waited_s == pytest.approx(2.0, abs=0.01)
    assert bench.take(Run) == []
    assert bench.outcomes()[-1].outcome == "expired"


def test_A1_the_end_of_B_frees_16000_and_records_10000() -> None:
    bench = Bench(policy(interactive=LONG, pool={"active_tokens_max": 40_000}))
    for tokens in (12_000, 16_000, 8_000):
        bench.arrive(tokens)
    _, second, _ = bench.take(Run)
    bench.arrive(7_000)
    bench.first_byte(second.execution.id)
    bench.complete(second.execution.id, prompt_tokens=4_000, output_tokens=6_000)
    assert bench.held() == 36_000 - 16_000 + 7_000
    usage = next(record for record in bench.book.records() if record.execution == second.execution.id).usage
    assert usage is not None and usage.prompt_tokens + usage.output_tokens == 10_000
    assert len(bench.take(Run)) == 1


def test_A2_tenant_verdict_fails_and_pool_verdict_passes_in_one_record() -> None:
    bench = Bench(policy(interactive=LONG, tenant={"active_tokens_max": 15_000}, pool={"active_tokens_max": 29_000}))
    bench.arrive(9_000)
    first = bench.execution()
    bench.arrive(8_000)
    (queued,) = [one for one in bench.decisions() if one.outcome == "queue"]
    tenant, pool = verdict(queued, "tenant", "tokens"), verdict(queued, "memory", "tokens")
    assert (tenant.value, tenant.limit, tenant.passed) == (17_000, 15_000, False)
    assert (pool.value, pool.limit, pool.passed) == (17_000, 29_000, True)  # 9,000 held, 8,000 asked, 20,000 were free
    assert bench.take(Run) == []
    bench.advance(1.0)
    bench.first_byte(first)
    bench.complete(first)
    assert len(bench.take(Run)) == 1  # its deadline still helps


def test_A2_after_waiting_the_code_names_the_tenant_that_was_binding() -> None:
    bench = Bench(policy(interactive=LONG, tenant={"active_tokens_max": 15_000}))
    bench.arrive(9_000)
    bench.arrive(8_000)
    bench.advance(2.1)
    assert bench.refusal().reason == "tenant_capacity_exceeded"


def test_A2_a_tenant_at_its_limit_does_not_block_another() -> None:
    bench = Bench(policy(interactive=LONG, tenant={"active_tokens_max": 15_000}))
    bench.arrive(9_000)
    bench.arrive(8_000)
    bench.take(Run)
    bench.arrive(5_000, tenant="batchco")
    assert len(bench.take(Run)) == 1


def test_A2_on_tenant_full_refuse_answers_at_once() -> None:
    bench = Bench(policy(interactive={**LONG, "on_tenant_full": "refuse"}, tenant={"active_tokens_max": 15_000}))
    bench.arrive(9_000)
    bench.arrive(8_000)
    assert bench.refusal().reason == "tenant_capacity_exceeded"


def test_K08_what_can_never_fit_gets_a_permanent_answer() -> None:
    bench = Bench(policy(tenant={"active_tokens_max": 15_000}))
    bench.arrive(15_001)
    refused = bench.refusal()
    assert (refused.reason, refused.retry_after_s) == ("request_exceeds_capacity", None)
    assert bench.held() == 0


def test_A5_cancel_frees_nothing_until_the_clock_proof_and_then_the_whole_reservation_once() -> None:
    bench = Bench(policy())
    request = bench.arrive(9_000)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.feed(events.Progressed(execution, 2_000))
    bench.feed(events.ClientGone(request))
    assert [effect.execution for effect in bench.take(Abort)] == [execution]
    assert bench.held() == 9_000
    bench.take(Observe)
    bench.advance(0.02)
    bench.feed(events.EngineClosed(execution))
    assert bench.take(Observe)[0] == Observe("p/0", bench.now_s)  # look at once
    bench.sample(iterations=(100,), running=1)
    bench.advance(0.05)
    bench.sample(iterations=(103,), running=1)
    assert bench.held() == 9_000
    bench.advance(0.05)
    bench.sample(iterations=(104,), running=1)
    assert bench.held() == 0
    for _ in range(3):
        bench.complete(execution)  # duplicates
    assert bench.held() == 0
    (record,) = bench.book.records()
    assert (record.state, record.evidence) == ("CANCELLED", "E3a")
    assert record.usage is not None and record.usage.output_tokens == 2_000
    (outcome,) = bench.outcomes()
    assert (outcome.outcome, outcome.unconfirmed_s) == ("cancelled", pytest.approx(0.12))


def test_A5_the_look_that_can_prove_a_stop_is_aimed_by_the_pace_of_the_engine() -> None:
    bench = Bench(policy())
    request = bench.arrive(9_000)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.sample(iterations=(90,), running=1)
    bench.advance(0.2)
    bench.sample(iterations=(100,), running=1)  # 20 ms an iteration
    bench.feed(events.ClientGone(request))
    bench.feed(events.EngineClosed(execution))
    bench.take(Observe)
    bench.sample(iterations=(100,), running=1)
    assert bench.take(Observe)[-1].at_s == pytest.approx(bench.now_s + 0.08)  # four of them, not the 100 ms of the grid
    bench.advance(0.08)
    bench.sample(iterations=(103,), running=1)
    assert bench.take(Observe)[-1].at_s == pytest.approx(bench.now_s + 0.0267, abs=0.001)  # one missing, at today's pace
    assert bench.held() == 9_000


def test_A5_a_late_in_band_end_beats_the_cancel() -> None:
    bench = Bench(policy())
    request = bench.arrive(9_000)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.feed(events.ClientGone(request))
    bench.complete(execution, prompt_tokens=8_999, output_tokens=1)
    assert bench.held() == 0
    assert bench.book.records()[0].evidence == "E1"


def test_K13_client_gone_while_queued_leaves_the_queue_and_asks_nothing() -> None:
    bench = Bench(policy(interactive=LONG, pool={"active_requests_max": 1}))
    bench.arrive(100)
    waiting = bench.arrive(100)
    bench.feed(events.ClientGone(waiting))
    assert bench.gate.snapshot(bench.now_s)["pools"]["p"]["queued_requests"] == 0
    assert bench.outcomes()[-1].outcome == "cancelled"


def test_K13_client_gone_while_being_reserved_is_taken_back_whatever_the_ledger_answered() -> None:
    bench = Bench(policy())
    bench.lose_asks = True
    request = bench.arrive(100)
    bench.feed(events.ClientGone(request))
    bench.lose_asks = False
    bench.advance(1.0)
    assert bench.take(Run) == []
    assert bench.held() == 0 and bench.gate.drained()


def test_A4_a_lost_reserve_answer_is_asked_again_and_charged_once() -> None:
    bench = Bench(policy(interactive=LONG))
    bench.lose_asks = True
    bench.arrive(100)
    bench.lose_asks = False
    bench.advance(0.3)
    assert len(bench.take(Run)) == 1
    assert bench.held() == 100


def test_D3_lifo_serves_the_newest_and_drops_the_oldest_when_full() -> None:
    bench = Bench(policy(interactive={**LONG, "queue_requests_max": 2}, pool={"active_requests_max": 1}, kind="lifo_drop_head"))
    bench.arrive(100)
    running = bench.execution()
    waiting = [bench.arrive(100) for _ in range(3)]
    assert bench.refusal().id == waiting[0]
    bench.complete(running)
    (run,) = bench.take(Run)
    assert run.id == waiting[2]


def test_A7_nothing_is_admitted_before_the_ledger_answered_and_after_the_lease_ended() -> None:
    bench = Bench(policy())
    bench.lose_asks = True
    bench.advance(4.5)  # lease 5 s, of which the last fifth is kept free
    bench.arrive(100)
    assert bench.refusal().reason == "ledger_unavailable"
    bench.lose_asks = False
    bench.advance(1.1)
    bench.arrive(100)
    assert len(bench.take(Run)) == 1


def test_A7_run_carries_the_instant_after_which_nothing_may_be_sent() -> None:
    bench = Bench(policy())
    bench.arrive(100)
    (run,) = bench.take(Run)
    assert run.send_before_s == pytest.approx(100.0 + 5.0 - 1.0)


def test_late_grant_is_not_sent_and_costs_nothing() -> None:
    bench = Bench(policy(interactive=LONG))
    bench.arrive(100)
    execution = bench.execution()
    bench.feed(events.NotSent(execution, "late"))
    (again,) = bench.take(Run)
    assert again.execution.id != execution
    assert bench.held() == 100


def test_refused_connection_is_told_as_no_replica_when_there_is_no_other() -> None:
    bench = Bench(policy())
    bench.arrive(100)
    bench.feed(events.NotSent(bench.execution(), "connect"))
    assert bench.refusal().reason == "no_replica"
    assert bench.held() == 0
    assert bench.outcomes()[-1].outcome == "refused"


def test_another_replica_is_tried_when_the_first_refuses_the_connection() -> None:
    bench = Bench(policy(replicas=2), capacities=(capacity(), capacity("p/1")))
    bench.arrive(100)
    (first,) = bench.take(Run)
    bench.feed(events.NotSent(first.execution.id, "connect"))
    (second,) = bench.take(Run)
    assert second.execution.replica != first.execution.replica
    assert bench.held() == 100


def test_K02_busy_engine_is_overload_and_the_request_keeps_its_place_until_its_deadline() -> None:
    bench = Bench(policy(interactive=LONG))
    bench.arrive(100)
    bench.feed(events.NotSent(bench.execution(), "busy"))
    assert bench.take(Run) == []
    bench.advance(0.06)
    (again,) = bench.take(Run)
    bench.feed(events.NotSent(again.execution.id, "busy"))
    bench.advance(2.0)
    for run in bench.take(Run):
        bench.feed(events.NotSent(run.execution.id, "busy"))
    assert bench.refusal().reason == "queue_timeout"
    assert bench.held() == 0


def test_E3_no_first_byte_in_time_aborts_and_stays_charged() -> None:
    bench = Bench(policy(interactive={"first_byte_s": 3.0}))
    bench.arrive(100)
    execution = bench.execution()
    bench.advance(3.01)
    (abort,) = bench.aborts()
    assert (abort.execution, abort.reason) == (execution, "upstream_timeout")
    assert bench.held() == 100


def test_E3_time_budget_over_in_mid_stream_is_told_as_such() -> None:
    bench = Bench(policy())
    bench.arrive(100, finish_by_s=110.0)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.advance(10.01)
    assert [abort.reason for abort in bench.aborts()] == ["deadline_exceeded"]


def test_lost_connection_stays_charged_until_the_ledger_has_counted() -> None:
    bench = Bench(policy())
    bench.arrive(100)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.sample(iterations=(1,), running=1)
    bench.feed(events.EngineLost(execution, "reset"))
    assert bench.held() == 100
    for _ in range(20):
        bench.advance(0.1)
        bench.sample(iterations=(2,), running=0)
    assert bench.held() == 0
    assert bench.book.records()[0].evidence == "E3b"


def test_E4_new_incarnation_ends_what_ran_in_the_old_one() -> None:
    bench = Bench(policy())
    bench.arrive(100)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.advance(0.1)
    bench.sample(iterations=(1,), running=1)
    bench.feed(events.EngineLost(execution, "reset"))
    bench.advance(0.1)
    bench.sample(incarnation="b", iterations=(0,), running=0)
    assert bench.held() == 0
    assert bench.book.records()[0].evidence == "E4"


def test_drain_refuses_newcomers_lets_streams_run_and_cuts_them_at_the_limit() -> None:
    bench = Bench(policy())
    bench.arrive(100)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.feed(events.Drain(bench.now_s + 10.0))
    bench.arrive(100)
    assert bench.refusal().reason == "draining"
    assert bench.aborts() == []
    bench.advance(10.01)
    assert [abort.reason for abort in bench.aborts()] == ["draining"]


def test_reload_lowers_a_limit_without_freeing_or_corrupting_anything() -> None:
    bench = Bench(policy(interactive=LONG, pool={"active_tokens_max": 40_000}))
    bench.arrive(30_000)
    execution = bench.execution()
    lowered = policy(interactive=LONG, pool={"active_tokens_max": 4_000})
    lowered.number, lowered.version = 2, "v2"
    bench.feed(events.PolicyChanged(lowered))
    assert bench.held() == 30_000
    bench.arrive(1_000)
    assert bench.take(Run) == []
    bench.complete(execution)
    (run,) = bench.take(Run)
    assert run.decision.policy_version == "v2"


def test_F3_observe_mode_refuses_nothing_and_writes_down_what_it_would_have_done() -> None:
    settings = policy(tenant={"active_tokens_max": 1_000})
    settings.observe = True
    bench = Bench(settings)
    bench.arrive(5_000)
    assert len(bench.take(Run)) == 1
    assert [(one.outcome, one.reason) for one in bench.decisions()] == [("refuse", "request_exceeds_capacity"), ("admit", "")]


def test_same_seed_same_effects() -> None:
    def play() -> list[str]:
        bench = Bench(policy())
        for tokens in (100, 200, 300):
            bench.arrive(tokens)
        return [repr(effect) for effect in bench.effects]

    assert play() == play()


def test_A6_execution_ids_are_128_bits_and_depend_on_the_seed() -> None:
    from headworks.core.desk import Desk
    from headworks.core.types import Owner

    one, other = (Desk(policy(), Owner("g", "b"), seed).mint() for seed in (b"one", b"other"))
    assert len(one) == len(other) == 32 and one != other
