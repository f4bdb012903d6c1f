"""Where two capabilities meet in one request: growth and tenants, quotas and other gateways, observing and trying again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headworks.core import events
from headworks.core.book import Book
from headworks.core.commands import Cancel, Stop
from headworks.core.effects import Abort, Ask, Reply, Run
from headworks.core.policy import ClassPolicy, Policy, QuotaPolicy, RatePolicy
from tests.core.driver import Bench, drained_at, policy

PATIENT: dict[str, Any] = {"ttft_slo_s": None, "wait_s_max": 2.0}


def test_A8_room_lent_from_the_pool_is_not_held_against_its_tenant() -> None:
    grows = {"growth": True, "output_tokens_cold": 200, "growth_step_tokens": 64, "growth_ahead_tokens": 16}
    made = Bench(policy(interactive={**PATIENT, "on_growth_refused": "spare"}, tenant={"active_tokens_max": 350}, pool=grows))
    made.arrive(4_100, 4_000, output_tokens_min=200)
    execution = made.execution()
    made.first_byte(execution)
    for tokens in range(184, 1_000, 8):
        made.feed(events.Progressed(execution, tokens))
    assert made.held("tenant:acme") == 300 and made.held() > 1_000
    made.take(Run)
    made.arrive(50, 10)
    assert len(made.take(Run)) == 1, "the ledger has room for it, so the gateway does not keep it back"
    assert made.gate.check() == []
    made.complete(execution)
    assert (made.held("tenant:acme"), made.gate.check()) == (50, [])


def test_A2_what_another_gateway_proved_stopped_is_committed_to_its_quota_all_the_same() -> None:
    book = Book(lease_ms=5_000, remember_ms=3_600_000)
    made = Bench(policy(interactive=PATIENT, tenant={"quota": QuotaPolicy("day", tokens=100_000)}), book=book)
    made.arrive(400, 100)
    execution = made.execution()
    made.first_byte(execution)
    made.feed(events.Progressed(execution, 50))
    made.feed(events.EngineLost(execution, "broken"))
    owner = book.charged()[0].owner
    book.apply([Stop(execution, owner, "operator", "failed", None)], int(made.now_s * 1000))
    assert made.held("quota:acme@day-1970-01-01") == 0
    made.feed(events.LedgerAnswered(book.apply([Cancel(execution, owner)], int(made.now_s * 1000))))
    made.advance(2.0)  # with the next heartbeat
    assert made.held("quota:acme@day-1970-01-01") == 350


def observing(**tenant: Any) -> Bench:
    return Bench(replace(policy(interactive=PATIENT, tenant=tenant), observe=True))


def test_F3_observing_what_an_engine_refused_as_busy_is_sent_again_whatever_the_limits() -> None:
    made = observing(active_tokens_max=150)
    made.arrive(100)
    made.arrive(100)
    runs = made.take(Run)
    assert len(runs) == 2
    made.feed(events.NotSent(runs[1].execution.id, "busy"))
    made.advance(0.2)
    assert len(made.take(Run)) == 1


def test_F3_observing_no_slot_is_kept_for_a_refusal_nobody_was_told() -> None:
    made = observing(rate=RatePolicy(requests_per_s=10.0, burst_requests=1))
    for _ in range(6):
        made.arrive(10)
    refused = [decision for decision in made.decisions() if decision.outcome == "refuse"]
    assert [decision.retry_after_s for decision in refused] == [None] * 5
    assert len(made.take(Run)) == 6


def shared(share: float, tenant_share: float, number: int) -> Policy:
    made = policy(kind="wfq", pool={"active_requests_max": 1}, interactive={**PATIENT, "wait_s_max": 50.0, "share": share})
    tenants = {name: replace(one, share=tenant_share) for name, one in made.tenants.items()}
    bulk = ClassPolicy("bulk", ttft_slo_s=None, wait_s_max=50.0)
    return replace(made, number=number, classes={**made.classes, "bulk": bulk}, tenants=tenants)


def test_D1_a_reload_weighs_anew_what_waits_already() -> None:
    made = Bench(shared(1.0, 1.0, 1))
    for _ in range(3):
        made.arrive(10)
    made.feed(events.PolicyChanged(shared(9.0, 5.0, 2)))
    queue = made.gate._desk.pools["p"].queue
    waiting = queue.of_class("interactive")
    assert (waiting.share, waiting.tenants_share, queue.line(("interactive", "acme")).share) == (9.0, 5.0, 5.0)


def test_A7_what_was_orphaned_while_this_gateway_stood_still_is_its_own_again_and_grows() -> None:
    grows = {"growth": True, "output_tokens_cold": 100, "growth_step_tokens": 64, "growth_ahead_tokens": 16}
    made = Bench(policy(interactive=PATIENT, pool=grows))
    made.arrive(4_100, 4_000)
    execution = made.execution()
    made.first_byte(execution)
    made.advance(1.2)
    made.lose_asks = True
    made.advance(7.0)
    made.lose_asks = False
    made.advance(8.0)
    made.take(Abort)
    assert [record.state for record in made.book.charged()] == ["RUNNING"]
    made.feed(events.Progressed(execution, 90))
    assert made.take(Abort) == [] and made.held() == 264


def test_D4_a_busy_engine_is_not_asked_again_because_its_refusal_is_settled() -> None:
    made = Bench(policy(interactive=PATIENT))
    made.arrive(100)
    made.feed(events.NotSent(made.execution(), "busy"))
    assert made.take(Run) == [], "the ledger has let go of the first attempt, and that has made no room in the engine"
    made.advance(0.2)
    assert len(made.take(Run)) == 1


def test_B15_a_retry_that_an_engine_refused_as_busy_is_still_counted_as_the_retry_it_is() -> None:
    made = Bench(policy(interactive=PATIENT, tenant={"retry_ratio": 0.1}))
    made.arrive(100, retry_count=1)
    made.feed(events.NotSent(made.execution(), "busy"))
    made.advance(0.2)
    made.complete(made.execution())
    (outcome,) = made.outcomes()
    assert (outcome.outcome, outcome.retry_kind) == ("completed", "early")


def test_A4_that_it_began_is_not_told_any_more_when_it_has_ended_in_the_same_breath() -> None:
    made = Bench(policy(interactive=PATIENT))
    made.arrive(100)
    execution = made.execution()
    made.take(Ask)
    made.first_byte(execution)
    made.complete(execution)
    assert [type(command) for ask in made.take(Ask) for command in ask.commands] == [Stop]


def test_I41_at_a_drain_those_stay_in_the_queue_whose_turn_comes_in_time() -> None:
    made = Bench(policy(interactive={"ttft_slo_s": None, "wait_s_max": 50.0}, pool={"active_requests_max": 1}, kind="fifo"))
    drained_at(made, per_s=10.0, tokens=100, waiting=30)
    assert made.gate.snapshot(made.now_s)["pools"]["p"]["queued_requests"] == 30
    made.feed(events.Drain(made.now_s + 1.05))
    assert {reply.decision.reason for reply in made.take(Reply)} == {"draining"}
    assert made.gate.snapshot(made.now_s)["pools"]["p"]["queued_requests"] == 11, "a tenth of a second each"
