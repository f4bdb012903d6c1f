"""Sent once more: what was proved to have stopped before its client heard of it, and who goes elsewhere instead (B15, E5)."""

from __future__ import annotations

import pytest

from headworks.core import events
from headworks.core.effects import Abort, Reply, Run
from headworks.core.policy import QuotaPolicy
from headworks.core.types import RequestKey
from tests.core.driver import Bench, capacity, policy
from tests.core.test_fallback import SMALLER, arrive, bench_of, levels, pressed

PATIENT = {"ttft_slo_s": None, "wait_s_max": 20.0}
MINE = RequestKey("acme", "mine")


def two(**pool: object) -> Bench:
    return Bench(policy(interactive=PATIENT, pool=pool, replicas=2), capacities=(capacity(), capacity("p/1")))


def lost(bench: Bench) -> Run:
    """One that breaks off before its client has heard anything."""
    (run,) = bench.take(Run)
    bench.feed(events.EngineLost(run.execution.id, "reset", unheard=True))
    return run


# held until it is proved


def test_B15_what_broke_off_unheard_is_sent_again_when_it_is_proved_to_have_stopped_and_not_before() -> None:
    bench = two()
    name = bench.arrive(10)
    first = lost(bench)
    bench.advance(5.9)
    assert (bench.take(Run), bench.take(Reply), bench.held()) == ([], [], 10), "its client waits, and it stays charged"
    bench.feed(events.Evidence(first.execution.id, "E3b"))
    (second,) = bench.take(Run)
    assert (second.id, first.execution.replica, second.execution.replica) == (name, "p/0", "p/1")
    assert bench.held() == 10, "at no moment are two of it charged"
    bench.first_byte(second.execution.id)
    bench.complete(second.execution.id)
    assert [(one.id, one.outcome, one.execution) for one in bench.outcomes()] == [(name, "completed", second.execution.id)]
    shown = bench.gate.snapshot(bench.now_s)["pools"]["p"]
    assert (shown["upstream_sent"], shown["upstream_retried"], bench.held()) == (2, 1, 0)


def test_B15_a_new_incarnation_proves_it_too() -> None:
    bench = two()
    bench.arrive(10)
    (run,) = bench.take(Run)
    bench.first_byte(run.execution.id)  # of an answer in one piece: its client has heard nothing
    bench.sample()
    bench.advance(0.1)
    bench.feed(events.EngineLost(run.execution.id, "reset", unheard=True))
    assert bench.take(Run) == []
    bench.sample(incarnation="b")
    (second,) = bench.take(Run)
    assert second.execution.replica == "p/1"
    assert bench.held() == 10


def test_B15_without_proof_within_a_lease_and_a_second_its_client_is_told_and_the_charge_stays() -> None:
    bench = two()
    name = bench.arrive(10)
    first = lost(bench)
    bench.advance(6.1)
    assert [(reply.id, reply.decision.reason) for reply in bench.take(Reply)] == [(name, "upstream_lost")]
    assert (bench.held(), bench.outcomes()) == (10, [])
    bench.feed(events.Evidence(first.execution.id, "E3b"))
    assert bench.take(Run) == [], "its client has had its answer"
    assert [(one.outcome, one.reason) for one in bench.outcomes()] == [("failed", "upstream_lost")]
    shown = bench.gate.snapshot(bench.now_s)["pools"]["p"]
    assert (shown["upstream_sent"], shown["upstream_retried"], bench.held()) == (1, 0, 0), "and its credit is given back"


def test_B15_a_proof_that_the_ledger_does_not_hear_of_does_not_keep_its_client_waiting_for_ever() -> None:
    bench = two()
    name = bench.arrive(10)
    first = lost(bench)
    bench.lose_asks = True
    bench.feed(events.Evidence(first.execution.id, "E3b"))
    bench.advance(6.1)
    assert [(reply.id, reply.decision.reason) for reply in bench.take(Reply)] == [(name, "upstream_lost")]
    bench.lose_asks = False
    bench.advance(20.0)
    assert (bench.take(Run), bench.take(Reply), bench.held()) == ([], [], 0)
    assert [(one.outcome, one.reason) for one in bench.outcomes()] == [("failed", "upstream_lost")]


def test_B15_without_credit_or_time_its_client_is_told_at_once() -> None:
    bench = two(retries_ratio_max=0.0)
    for _ in range(3):
        bench.arrive(10)
        lost(bench)
        assert bench.take(Reply) == []
    bench.arrive(10)
    lost(bench)
    assert bench.refusal().reason == "upstream_lost"
    bench = two()
    bench.arrive(10, start_by_s=bench.now_s + 1.0)
    (run,) = bench.take(Run)
    bench.advance(1.1)
    bench.feed(events.EngineLost(run.execution.id, "reset", unheard=True))
    assert bench.refusal().reason == "upstream_lost"


def test_B15_a_request_that_breaks_off_twice_is_not_sent_a_third_time() -> None:
    bench = two()
    bench.arrive(10)
    bench.feed(events.Evidence(lost(bench).execution.id, "E3b"))
    second = lost(bench)
    assert bench.refusal().reason == "upstream_lost"
    bench.feed(events.Evidence(second.execution.id, "E3b"))
    assert (bench.take(Run), bench.held(), len(bench.outcomes())) == ([], 0, 1)


def test_B15_a_client_that_leaves_while_it_is_held_is_not_sent_again() -> None:
    bench = two()
    name = bench.arrive(10)
    first = lost(bench)
    bench.feed(events.ClientGone(name))
    bench.feed(events.Evidence(first.execution.id, "E3b"))
    assert (bench.take(Run), bench.held()) == ([], 0)
    assert [one.outcome for one in bench.outcomes()] == ["cancelled"]
    assert bench.gate._desk.pools["p"].retries._credit == 3.1, "as if it had not been taken"


@pytest.mark.parametrize("proof", ["clock", "incarnation"])
def test_A2_the_quota_bills_what_is_sent_again_once_as_the_usage_journal_does(proof: str) -> None:
    made = policy(interactive=PATIENT, replicas=2, tenant={"quota": QuotaPolicy("day", tokens=1000)})
    bench = Bench(made, capacities=(capacity(), capacity("p/1")))
    bench.arrive(10, output_tokens=5, stream=False)
    (first,) = bench.take(Run)
    bench.first_byte(first.execution.id)
    bench.feed(events.Progressed(first.execution.id, 3))
    bench.sample()
    bench.advance(0.1)
    bench.feed(events.EngineLost(first.execution.id, "reset", unheard=True))
    if proof == "clock":
        bench.feed(events.Evidence(first.execution.id, "E3a"))
    else:
        bench.sample(incarnation="b")
    (second,) = bench.take(Run)
    bench.first_byte(second.execution.id)
    bench.complete(second.execution.id, prompt_tokens=5, output_tokens=5)
    quota = bench.gate._desk.tenants["acme"].quota
    assert quota is not None
    assert (quota.committed_tokens, quota.outstanding_tokens, bench.held(quota.scope)) == (10, 0, 10)
    assert [one.execution for one in bench.outcomes()] == [second.execution.id]


def test_B15_what_its_client_heard_of_is_never_sent_again() -> None:
    bench = two()
    bench.arrive(10)
    (run,) = bench.take(Run)
    bench.first_byte(run.execution.id)
    bench.feed(events.EngineLost(run.execution.id, "reset"))
    bench.feed(events.Evidence(run.execution.id, "E3b"))
    assert bench.take(Run) == []
    assert [one.outcome for one in bench.outcomes()] == ["failed"]


def test_B15_a_pool_that_drains_meanwhile_tells_its_client() -> None:
    bench = two()
    bench.arrive(10)
    first = lost(bench)
    bench.feed(events.Drain(bench.now_s + 10.0))
    bench.feed(events.Evidence(first.execution.id, "E3b"))
    assert bench.refusal().reason == "upstream_lost"
    assert (bench.take(Run), bench.held(), [one.outcome for one in bench.outcomes()]) == ([], 0, ["failed"])


def test_B15_what_breaks_off_while_the_gateway_drains_is_told_at_once() -> None:
    """It would not be sent again, whatever is proved."""
    bench = two()
    bench.arrive(10)
    bench.feed(events.Drain(bench.now_s + 10.0))
    lost(bench)
    assert bench.refusal().reason == "upstream_lost"


def test_B16_what_broke_off_unheard_in_the_turn_in_which_it_was_stopped_is_told_so() -> None:
    """The abort finds no connection any more, and what broke has left its client to the gate."""
    bench = two()
    name = bench.arrive(10)
    (run,) = bench.take(Run)
    bench.feed(events.EngineSilent(run.execution.id, 30.0))
    assert [abort.reason for abort in bench.take(Abort)] == ["upstream_timeout"]
    bench.feed(events.EngineLost(run.execution.id, "reset", unheard=True))
    assert [(reply.id, reply.decision.reason) for reply in bench.take(Reply)] == [(name, "upstream_lost")]
    bench.feed(events.Evidence(run.execution.id, "E3b"))
    assert (bench.take(Run), bench.take(Reply), bench.held(), len(bench.outcomes())) == ([], [], 0, 1)


def test_A6_whoever_shares_its_key_waits_with_it_and_gets_the_second_ones_answer() -> None:
    bench = two()
    names = [bench.arrive(10, key_given=True, key=MINE, fingerprint="f") for _ in range(2)]
    first = lost(bench)
    bench.feed(events.Evidence(first.execution.id, "E3b"))
    (second,) = bench.take(Run)
    assert (second.id, second.others) == (names[0], (names[1],))
    bench.first_byte(second.execution.id)
    bench.complete(second.execution.id)
    assert {one.id: one.outcome for one in bench.outcomes()} == {names[0]: "completed", names[1]: "replayed"}
    assert bench.gate._desk.claims == {}


def test_B15_what_is_told_to_stop_upstream_says_nothing_to_its_client() -> None:
    bench = two()
    bench.arrive(10)
    lost(bench)
    assert [abort.reason for abort in bench.take(Abort)] == [""]


# elsewhere, where there is no credit left (E5)


def spent(bench: Bench) -> None:
    bench.gate._desk.pools["p"].retries._credit = 0.0
    bench.gate._desk.pools["p"].retries.ratio = 0.0


def test_E5_a_busy_engine_without_credit_asks_the_cascade_before_it_refuses() -> None:
    bench = bench_of(SMALLER)
    pressed(bench, 1)
    spent(bench)
    name = arrive(bench)
    (first,) = bench.take(Run)
    bench.feed(events.NotSent(first.execution.id, "busy"))
    (second,) = bench.take(Run)
    assert (second.id, second.execution.replica, second.decision.degraded) == (name, "s/0", "smaller_model=small")
    assert (bench.take(Reply), bench.held(), bench.held("pool:s")) == ([], 0, 100)
    bench.first_byte(second.execution.id)
    bench.complete(second.execution.id)
    assert [(one.id, one.outcome) for one in bench.outcomes()] == [(name, "completed")]


def test_E5_where_the_smaller_model_is_full_as_well_it_is_refused_as_it_would_have_been() -> None:
    bench = bench_of(SMALLER)
    pressed(bench, 1)
    spent(bench)
    arrive(bench)
    (there,) = bench.take(Run)
    bench.feed(events.NotSent(there.execution.id, "busy"))
    bench.advance(0.1)
    bench.take(Run)
    name = arrive(bench)
    (first,) = bench.take(Run)
    bench.feed(events.NotSent(first.execution.id, "busy"))
    (reply,) = bench.take(Reply)
    assert (reply.id, reply.decision.reason) == (name, "queue_timeout")
    assert [(one.id, one.outcome) for one in bench.outcomes()] == [(name, "refused")]
    assert bench.held() == 0


def test_E5_a_refused_connection_without_credit_asks_it_too_and_is_503_without_it() -> None:
    for steps, replica in (((SMALLER,), "s/0"), ((), "")):
        bench = bench_of(*steps)
        if steps:
            pressed(bench, 1)
        spent(bench)
        arrive(bench)
        (first,) = bench.take(Run)
        bench.feed(events.NotSent(first.execution.id, "connect"))
        assert [run.execution.replica for run in bench.take(Run)] == [replica] * bool(replica)
        assert [reply.decision.reason for reply in bench.take(Reply)] == ["no_replica"] * (not replica)


def test_E5_its_own_key_goes_with_it_and_nobody_runs_beside_it() -> None:
    bench = bench_of(SMALLER)
    pressed(bench, 1)
    spent(bench)
    name = arrive(bench, key_given=True, key=MINE, fingerprint="f")
    (first,) = bench.take(Run)
    bench.feed(events.NotSent(first.execution.id, "busy"))
    (second,) = bench.take(Run)
    assert (second.id, second.execution.replica) == (name, "s/0")
    assert bench.gate._desk.claims.keys() == {second.execution.id}, "the key is that of the one that runs"
    again = arrive(bench, key_given=True, key=MINE, fingerprint="f")
    assert bench.take(Run) == [], "it shares that answer"
    bench.first_byte(second.execution.id)
    bench.complete(second.execution.id)
    assert {one.id: one.outcome for one in bench.outcomes()} == {name: "completed", again: "replayed"}
    assert bench.gate._desk.claims == {}


def test_E5_a_key_that_is_refused_in_the_end_is_free_again() -> None:
    bench = bench_of(SMALLER)
    pressed(bench, 1)
    spent(bench)
    bench.gate._desk.pools["s"].replicas["s/0"].refused_connection(bench.now_s + 60.0)
    arrive(bench, key_given=True, key=MINE, fingerprint="f")
    (first,) = bench.take(Run)
    bench.feed(events.NotSent(first.execution.id, "busy"))
    assert bench.refusal().reason == "queue_timeout"
    bench.advance(0.1)
    assert bench.gate._desk.claims == {}
    arrive(bench, key_given=True, key=MINE, fingerprint="f")
    assert len(bench.take(Run)) == 1
    assert levels(bench) == {"interactive": 1}
