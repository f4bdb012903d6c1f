"""What a review of refusals, second tries and degradation found: each was wrong once (A6, B9, B15, B16, E5, F1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headworks.core import events
from headworks.core.commands import Reserve
from headworks.core.effects import Ask, Effect, Reply, Run
from headworks.core.policy import PoolPolicy, PricePolicy, QuotaPolicy, RatePolicy
from headworks.core.types import Capacity, RequestKey
from tests.core.driver import Bench, capacity, policy
from tests.core.test_breaker import state
from tests.core.test_fallback import LEEWAY, SMALLER, SPILL, arrive, bench_of, degrading, pressed, told

PATIENT = {"ttft_slo_s": None, "wait_s_max": 2.0}
PLACES = (capacity(), capacity("s/0"), capacity("c/0"))
AN_API = capacity("c/0", evidence=("E1",), kv_tokens=None, incarnation="unknown")
"""Which nobody can look into."""


# a busy replica


@pytest.mark.parametrize("hint_s", [0.0, 30.0])
def test_B15_a_busy_replica_is_left_alone_while_another_stands_idle(hint_s: float) -> None:
    bench = Bench(policy(interactive=PATIENT, replicas=2), capacities=(capacity(), capacity("p/1")))
    tried: list[tuple[str, str]] = []
    for _ in range(4):
        bench.arrive(10)
        for _ in range(5):
            for run in bench.take(Run):
                tried.append((run.id, run.execution.replica))
                if run.execution.replica == "p/0":
                    bench.feed(events.NotSent(run.execution.id, "busy", hint_s))
                else:
                    bench.first_byte(run.execution.id)
            bench.advance(0.03)
    assert tried == [("r1", "p/0"), ("r1", "p/1"), ("r2", "p/1"), ("r3", "p/1"), ("r4", "p/1")]
    assert bench.take(Reply) == []


def test_B15_a_replica_that_was_busy_is_asked_first_again_after_a_second() -> None:
    bench = Bench(policy(interactive=PATIENT, replicas=2), capacities=(capacity(), capacity("p/1")))
    bench.arrive(10)
    bench.feed(events.NotSent(bench.execution(), "busy"))
    bench.advance(0.06)
    (run,) = bench.take(Run)
    assert run.execution.replica == "p/1"
    bench.advance(0.9)
    bench.arrive(10)
    bench.advance(0.1)
    bench.arrive(10)
    assert [run.execution.replica for run in bench.take(Run)] == ["p/1", "p/0"], "it has the least to do"


def test_B16_an_engines_hint_stops_its_pool_for_a_minute_at_most() -> None:
    bench = Bench(policy(interactive={"ttft_slo_s": None, "wait_s_max": 1000.0}))
    name = bench.arrive(10, finish_by_s=bench.now_s + 1000.0)
    bench.feed(events.NotSent(bench.execution(), "busy", 86_400.0))
    bench.advance(59.9)
    assert bench.take(Run) == []
    bench.advance(0.2)
    assert [run.id for run in bench.take(Run)] == [name]


# a spill


def queueing() -> Bench:
    """The own pool is out of reach; the spill takes one at a time and pays for two of eight tokens each."""
    made = degrading(SPILL, spill_money=20_000, wait_s_max=50.0)
    cloud: PoolPolicy = replace(made.pools["c"], active_requests_max=1)
    bench = Bench(replace(made, pools={**made.pools, "c": cloud}), capacities=PLACES)
    pressed(bench, 1)
    bench.gate._desk.pools["p"].replicas["p/0"].down_until_s = bench.now_s + 1000.0
    return bench


def test_E5_a_spent_purse_is_not_its_tenants_quota() -> None:
    bench = queueing()
    for _ in range(4):
        bench.arrive(10, leeway=LEEWAY, output_tokens=8)
    spilled: list[tuple[str, str]] = []
    for _ in range(4):
        for run in bench.take(Run):
            spilled.append((run.id, run.execution.replica))
            bench.complete(run.execution.id, prompt_tokens=2, output_tokens=8)
    assert spilled == [("r1", "c/0"), ("r2", "c/0")], "8,000 of 20,000 each"
    refused = [(one.id, one.decision.reason) for one in bench.take(Reply)]
    assert ("r3", "queue_timeout") in refused
    assert "quota_exceeded" not in {reason for _, reason in refused}


def test_E5_a_purse_that_other_gateways_have_spent_is_not_asked_again_for_ten_seconds() -> None:
    bench = bench_of(SPILL, spill_money=20_000, wait_s_max=0.0)
    other = Bench(degrading(SPILL, spill_money=20_000, wait_s_max=0.0), capacities=PLACES, book=bench.book, boot="boot-2")
    for one in (bench, other):
        pressed(one, 1)
        arrive(one)
        one.first_byte(one.execution())
    for _ in range(2):
        arrive(other, tokens=10, output_tokens=8)
        (run,) = other.take(Run)
        assert run.execution.replica == "c/0"
        other.complete(run.execution.id, prompt_tokens=2, output_tokens=8)

    def asked() -> tuple[str, bool]:
        """What it is told, and whether the ledger was asked for money."""
        bench.sample("c/0")
        bench.take(Ask)
        arrive(bench, tokens=10, output_tokens=8)
        reserves = [one for ask in bench.take(Ask) for one in ask.commands if isinstance(one, Reserve)]
        return bench.refusal().reason, bool(reserves)

    assert asked() == ("queue_timeout", True)
    assert asked() == ("queue_timeout", False)
    bench.advance(9.9)
    assert asked() == ("queue_timeout", False)
    bench.advance(0.2)
    assert asked() == ("queue_timeout", True)


def spilled_to(known: Capacity) -> tuple[Bench, str]:
    bench = Bench(degrading(SPILL, wait_s_max=0.0), capacities=(capacity(), capacity("s/0"), known))
    pressed(bench, 1)
    arrive(bench)
    bench.take(Run)
    arrive(bench, tokens=10, output_tokens=8)
    (run,) = bench.take(Run)
    assert run.execution.replica == "c/0"
    return bench, run.execution.id


@pytest.mark.parametrize(("answered", "held"), [(True, 0), (False, 1)])
def test_E5_a_complete_error_of_a_spill_releases_it_and_a_broken_connection_does_not(answered: bool, held: int) -> None:
    bench, execution = spilled_to(AN_API)
    bench.feed(events.EngineLost(execution, "the engine answered 500", answered))
    assert bench.held("pool:c", "requests") == held
    assert bench.held("tenant:acme", "requests") == 1 + held, "the other runs in its own pool"
    bench.advance(3600.0)
    assert bench.held("pool:c", "requests") == held


def test_E5_a_complete_error_of_a_spill_releases_it_when_its_client_has_left_too() -> None:
    bench, execution = spilled_to(AN_API)
    bench.feed(events.ClientGone("r2"))
    assert bench.held("pool:c", "requests") == 1
    bench.feed(events.EngineLost(execution, "the engine answered 500", True))
    assert bench.held("pool:c", "requests") == 0
    quota = bench.gate._desk.pools["c"].spill.quota  # type: ignore[union-attr]
    assert bench.held(quota.scope, "nanomoney") == quota.outstanding_nanomoney == 0


def test_B9_a_complete_error_of_an_engine_of_ours_proves_nothing() -> None:
    bench = Bench(policy(interactive=PATIENT))
    bench.arrive(10)
    bench.feed(events.EngineLost(bench.execution(), "the engine answered 500", True))
    assert bench.held("pool:p", "requests") == 1


# rates and quotas


def test_E5_rates_hold_where_the_own_pool_is_closed() -> None:
    made = degrading(SMALLER, wait_s_max=0.0)
    rate = RatePolicy(requests_per_s=1.0, burst_requests=2)
    tenants = {name: replace(one, rate=rate) for name, one in made.tenants.items()}
    bench = Bench(replace(made, tenants=tenants), capacities=PLACES)
    pressed(bench, 1)
    bench.gate._desk.pools["p"].replicas["p/0"].down_until_s = bench.now_s + 10.0
    went: list[tuple[str, str]] = []
    for _ in range(4):
        bench.arrive(10, leeway=LEEWAY)
        for run in bench.take(Run):
            went.append((run.id, run.execution.replica))
            bench.complete(run.execution.id)
    assert went == [("r1", "s/0"), ("r2", "s/0")], "its burst, and no more than that"
    assert [one.id for one in bench.take(Reply)] == ["r3", "r4"]


@pytest.mark.parametrize(("of_money", "went"), [(8_000, [("c/0", "spill=c")]), (7_999, [])])
def test_E5_what_its_tenants_quota_does_not_bear_elsewhere_is_refused_as_it_would_be_without(
    of_money: int, went: list[tuple[str, str]]
) -> None:
    made = degrading(SPILL, wait_s_max=0.0)
    tenants = {name: replace(one, quota=QuotaPolicy("day", nanomoney=of_money)) for name, one in made.tenants.items()}
    prices = {"cloud-model": PricePolicy(0.0, 0.0, 1.0)}
    bench = Bench(replace(made, tenants=tenants, prices=prices), capacities=PLACES)
    pressed(bench, 1)
    arrive(bench)
    bench.take(Run)
    arrive(bench, tokens=10, output_tokens=8)  # 8,000 billionths there, and nothing in its own pool
    assert told(bench) == went
    refused = [(one.decision.reason, one.decision.pool) for one in bench.take(Reply)]
    assert refused == ([] if went else [("queue_timeout", "p")])


# who waits


def test_A6_a_waiter_of_a_shared_key_is_answered_when_whoever_came_first_has_gone() -> None:
    bench = Bench(policy(interactive=PATIENT, pool={"retries_ratio_max": 0.0}))
    bench.gate._desk.pools["p"].retries._credit = 0.0
    first, second = (bench.arrive(10, key_given=True, key=RequestKey("acme", "mine"), fingerprint="f") for _ in range(2))
    execution = bench.execution()
    bench.feed(events.ClientGone(first))
    bench.feed(events.NotSent(execution, "gone"))
    (run,) = bench.take(Run)
    assert run.id == second, "which costs no budget: no engine has been asked"
    bench.first_byte(run.execution.id)
    bench.complete(run.execution.id)
    assert [(one.id, one.outcome) for one in bench.outcomes() if one.id == second] == [(second, "replayed")]
    assert bench.gate._desk.lives == {}


@pytest.mark.parametrize("left_s", [0.0, 5.0])
def test_A6_a_waiter_of_a_shared_key_is_told_why_where_there_is_no_more_time(left_s: float) -> None:
    bench = Bench(policy(interactive=PATIENT))
    key = RequestKey("acme", "mine")
    first = bench.arrive(10, key_given=True, key=key, fingerprint="f", start_by_s=bench.now_s + left_s)
    second = bench.arrive(10, key_given=True, key=key, fingerprint="f", start_by_s=bench.now_s + left_s)
    execution = bench.execution()
    bench.feed(events.ClientGone(first))
    bench.now_s += 5.0
    bench.feed(events.NotSent(execution, "gone"))
    (reply,) = bench.take(Reply)
    assert (reply.id, reply.decision.reason) == (second, "queue_timeout")


class SlowBench(Bench):
    """Whose ledger's answers to reservations come when a test says."""

    def __init__(self, *args: object, **more: object) -> None:
        self.slow = False
        self.held_back: list[events.LedgerAnswered] = []
        super().__init__(*args, **more)  # type: ignore[arg-type]

    def _perform(self, effect: Effect) -> None:
        if self.slow and isinstance(effect, Ask) and any(isinstance(one, Reserve) for one in effect.commands):
            self.held_back.append(events.LedgerAnswered(self.book.apply(effect.commands, int(self.now_s * 1000))))
        else:
            super()._perform(effect)


def test_E5_who_asks_the_ledger_20_ms_before_its_time_is_over_is_not_expired_early() -> None:
    bench = SlowBench(degrading(SMALLER, wait_s_max=1.0), capacities=PLACES)
    arrive(bench)
    execution = bench.execution()
    bench.gate._desk.cascades._of["p", "interactive"].level = 0
    bench.gate._desk.cascades._changed_s["interactive"] = 1e9  # no step comes into force
    name = arrive(bench)
    bench.advance(0.975)
    bench.slow = True
    bench.complete(execution)
    assert len(bench.held_back) == 1
    bench.advance(0.010)  # past the last look elsewhere, at 0.98
    assert bench.take(Reply) == []
    bench.feed(bench.held_back.pop())
    (run,) = bench.take(Run)
    assert (run.id, run.execution.replica) == (name, "p/0")


# what is told of it


def test_F1_a_second_attempt_is_no_second_decision_at_its_arrival() -> None:
    bench = Bench(policy(interactive=PATIENT))
    bench.arrive(10)
    bench.feed(events.NotSent(bench.execution(), "late"))
    bench.complete(bench.execution())
    assert [one.told_s for one in bench.outcomes()] == [100.0]
    assert [(one.outcome, one.at_arrival) for one in bench.decisions()] == [("admit", True), ("admit", False)]


def test_F1_one_that_waited_and_was_diverted_was_decided_on_at_its_arrival_once() -> None:
    bench = bench_of(SMALLER)
    pressed(bench, 1)
    arrive(bench)
    bench.take(Run)
    bench.decisions()
    arrive(bench)
    bench.advance(2.01)
    found = [(one.outcome, one.pool, one.at_arrival) for one in bench.decisions()]
    assert found == [("queue", "p", True), ("admit", "s", False)]


# a probe


def test_B16_whoever_waits_is_sent_as_soon_as_the_probes_first_byte_has_closed_the_breaker() -> None:
    bench = Bench(
        policy(interactive={"ttft_slo_s": None, "wait_s_max": 100.0, "first_byte_s": 30.0}, pool={"active_requests_max": 20})
    )
    for _ in range(23):
        bench.arrive(10)
    runs = bench.take(Run)
    for run in runs:
        bench.first_byte(run.execution.id)
        bench.feed(events.EngineLost(run.execution.id, "reset"))
    for run in runs:
        bench.feed(events.Evidence(run.execution.id, "operator"))
    bench.take(Run)
    assert state(bench) == ("breaker_open", "open")
    bench.advance(30.01)
    (probe,) = bench.take(Run)
    assert probe.id == "r21"
    bench.first_byte(probe.execution.id)
    assert state(bench) == ("ready", "closed")
    assert [run.id for run in bench.take(Run)] == ["r22", "r23"]
