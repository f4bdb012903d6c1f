"""Replicas that come, drain and go while the gateway runs (D4, issue 6): by another policy."""

from __future__ import annotations

from dataclasses import replace

from headworks.core import events
from headworks.core.effects import Forget, Observe, Run
from headworks.core.policy import ReplicaPolicy
from tests.core.driver import Bench, capacity, policy

PATIENT = {"ttft_slo_s": None, "wait_s_max": 20.0}


def two(**pool: object) -> Bench:
    return Bench(policy(interactive=PATIENT, pool=pool, replicas=2), capacities=(capacity(), capacity("p/1")))


def change(bench: Bench, *replicas: ReplicaPolicy) -> None:
    before = bench.gate._desk.policy
    pool = replace(before.pools["p"], replicas=replicas)
    bench.feed(events.PolicyChanged(replace(before, number=before.number + 1, pools={"p": pool})))


def named(name: str, drains: bool = False) -> ReplicaPolicy:
    return ReplicaPolicy(name, drains=drains)


def states(bench: Bench) -> dict[str, str]:
    replicas = bench.gate.snapshot(bench.now_s)["pools"]["p"]["replicas"]
    return {name: one["state"] for name, one in replicas.items()}


def shown(bench: Bench, key: str) -> int | None:
    return bench.gate.snapshot(bench.now_s)["pools"]["p"][key]  # type: ignore[no-any-return]


def sent(bench: Bench, count: int) -> list[Run]:
    for _ in range(count):
        bench.arrive(10)
    return bench.take(Run)


def test_D4_a_drained_replica_gets_no_new_work_and_ends_what_it_has() -> None:
    bench = two()
    runs = sent(bench, 4)
    assert [run.execution.replica for run in runs] == ["p/0", "p/1", "p/0", "p/1"]
    change(bench, named("p/0", drains=True), named("p/1"))
    assert states(bench) == {"p/0": "draining", "p/1": "ready"}
    assert {run.execution.replica for run in sent(bench, 3)} == {"p/1"}
    for run in runs:
        bench.first_byte(run.execution.id)
        bench.complete(run.execution.id)
    assert [one.outcome for one in bench.outcomes()] == ["completed"] * 4
    assert bench.gate.snapshot(bench.now_s)["pools"]["p"]["replicas"]["p/0"]["empty"]


def test_D4_its_capacity_leaves_the_pool_with_what_it_holds_and_comes_back() -> None:
    bench = two()
    sent(bench, 4)
    assert (shown(bench, "tokens"), shown(bench, "tokens_limit"), shown(bench, "requests")) == (40, 80_000, 4)
    change(bench, named("p/0", drains=True), named("p/1"))
    assert (shown(bench, "tokens"), shown(bench, "tokens_limit"), shown(bench, "requests")) == (20, 40_000, 2)
    assert (bench.held(), bench.book.limit("pool:p", "tokens")) == (40, 80_000), (
        "in the ledger all of it stays charged, and counted"
    )
    change(bench, named("p/0"), named("p/1"))
    assert (shown(bench, "tokens"), shown(bench, "tokens_limit"), shown(bench, "requests")) == (40, 80_000, 4)
    assert states(bench) == {"p/0": "ready", "p/1": "ready"}


def test_D4_what_a_draining_replica_holds_keeps_nobody_from_the_others() -> None:
    bench = two(active_requests_max=1)
    assert len(sent(bench, 2)) == 2
    change(bench, named("p/0", drains=True), named("p/1"))
    (there,) = [name for name, life in bench.gate._desk.runs.items() if life.execution.replica == "p/1"]
    bench.first_byte(there)
    bench.complete(there)
    assert [run.execution.replica for run in sent(bench, 1)] == ["p/1"]


def test_D4_whoever_waits_is_not_sent_to_a_replica_that_began_to_drain() -> None:
    bench = two(active_requests_max=1)
    runs = sent(bench, 3)
    change(bench, named("p/0", drains=True), named("p/1"))
    for run in runs:
        bench.first_byte(run.execution.id)
        bench.complete(run.execution.id)
    assert [run.execution.replica for run in bench.take(Run)] == ["p/1"]


def test_D4_one_that_is_named_no_more_is_forgotten_when_it_holds_nothing() -> None:
    bench = two()
    runs = sent(bench, 2)
    change(bench, named("p/1"))
    assert states(bench) == {"p/0": "draining", "p/1": "ready"}
    bench.advance(10.0)
    assert bench.take(Forget) == [], "it still runs something"
    for run in runs:
        bench.first_byte(run.execution.id)
        bench.complete(run.execution.id)
    bench.advance(10.0)
    assert [one.replica for one in bench.take(Forget)] == ["p/0"]
    assert states(bench) == {"p/1": "ready"}
    assert bench.book.limit("pool:p", "tokens") == 40_000


def test_B9_what_is_unproved_on_a_withdrawn_replica_stays_charged_until_its_evidence() -> None:
    bench = two()
    (run,) = sent(bench, 1)
    bench.first_byte(run.execution.id)
    change(bench, named("p/1"))
    bench.feed(events.EngineLost(run.execution.id, "reset"))
    bench.take(Observe)
    bench.advance(30.0)
    assert (bench.held(), bench.take(Forget)) == (10, [])
    bench.sample("p/0")
    assert [one.replica for one in bench.take(Observe)] == ["p/0"] * 2, "it is looked at for as long as it owes a proof"
    bench.sample("p/0", incarnation="b")
    bench.sample("p/0", incarnation="b")
    bench.feed(events.Evidence(run.execution.id, "operator"))
    bench.advance(10.0)
    assert (bench.held(), [one.replica for one in bench.take(Forget)]) == (0, ["p/0"])


def test_D4_a_replica_that_is_added_enters_when_it_has_described_itself_and_knows_nothing_of_the_others() -> None:
    bench = two()
    run = sent(bench, 1)[0]
    bench.first_byte(run.execution.id)
    bench.complete(run.execution.id)
    before = bench.gate._desk.pools["p"].replicas["p/0"]
    change(bench, named("p/0"), named("p/1"), named("p/2"))
    assert states(bench)["p/2"] == "lost"
    assert {run.execution.replica for run in sent(bench, 4)} == {"p/0", "p/1"}
    bench.feed(events.ReplicaDescribed(capacity("p/2", kv_tokens=20_000)))
    assert (shown(bench, "tokens_limit"), bench.book.limit("replica:p/2", "tokens")) == (100_000, 20_000)
    assert [run.execution.replica for run in sent(bench, 2)] == ["p/2", "p/2"]
    replicas = bench.gate._desk.pools["p"].replicas
    assert replicas["p/0"] is before, "what is known of those that stay is kept"
    assert replicas["p/2"].prefill.coefficients() == (0.0, 0.0, 0.0)


def test_D4_one_that_comes_back_before_it_was_forgotten_is_the_same() -> None:
    bench = two()
    sent(bench, 2)
    there = bench.gate._desk.pools["p"].replicas["p/0"]
    change(bench, named("p/1"))
    change(bench, named("p/1"), named("p/0"))
    pool = bench.gate._desk.pools["p"]
    assert (list(pool.replicas), pool.leaving, pool.replicas["p/0"]) == (["p/1", "p/0"], {}, there)
    bench.advance(10.0)
    assert bench.take(Forget) == []


def test_D4_a_pool_of_which_every_replica_drains_is_503_and_ends_what_it_has() -> None:
    bench = two()
    runs = sent(bench, 2)
    change(bench, named("p/0", drains=True), named("p/1", drains=True))
    bench.arrive(10)
    assert bench.refusal().reason == "no_replica"
    for run in runs:
        bench.first_byte(run.execution.id)
        bench.complete(run.execution.id)
    assert [one.outcome for one in bench.outcomes() if one.execution] == ["completed"] * 2
    change(bench, named("p/0"), named("p/1", drains=True))
    assert [run.execution.replica for run in sent(bench, 1)] == ["p/0"]


def test_D4_a_pool_that_comes_down_to_one_replica_asks_it_directly_and_no_more_when_there_are_two() -> None:
    bench = two(active_requests_max=1)
    change(bench, named("p/0"), named("p/1", drains=True))
    assert bench.gate._desk.pools["p"].single is bench.gate._desk.pools["p"].replicas["p/0"]
    assert len(sent(bench, 2)) == 1
    change(bench, named("p/0"), named("p/1"))
    assert [run.execution.replica for run in bench.take(Run)] == ["p/1"], "whoever waited finds the place at once"


def test_D4_a_lost_replica_that_drains_is_shown_as_lost() -> None:
    bench = two()
    change(bench, named("p/0", drains=True), named("p/1"))
    bench.feed(events.SampleFailed("p/0", "nobody", unreachable=True))
    assert states(bench) == {"p/0": "lost", "p/1": "ready"}


def test_A7_what_was_adopted_while_its_engine_was_out_of_the_file_is_proved_when_it_is_back() -> None:
    """Found by the campaign (seed 475): the gateway knew the work and the engine, and not that they belong together."""
    before = two()
    (run,) = sent(before, 1)
    before.first_byte(run.execution.id)
    assert run.execution.replica == "p/0"
    after = Bench(policy(interactive=PATIENT, replicas=2), capacities=(capacity("p/1"),), book=before.book, boot="boot-2")
    change(after, named("p/1"))
    after.now_s = before.now_s
    after.advance(20.0)
    assert (list(after.gate._desk.pools["p"].replicas), after.held()) == (["p/1"], 10), "adopted, and nobody can look there"
    change(after, named("p/1"), named("p/0"))
    after.feed(events.ReplicaDescribed(capacity()))
    for _ in range(30):
        after.sample("p/0")
        after.advance(1.0)
    assert after.held() == 0
