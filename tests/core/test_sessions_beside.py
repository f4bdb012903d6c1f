"""Sessions beside contracts and engines that come and go: what a session holds is nobody's to take back, and counted once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headworks.core import events
from headworks.core.effects import Abort, Opened, Run
from headworks.core.policy import PreemptionPolicy
from headworks.core.types import Budget
from tests.core.driver import Bench, capacity, policy
from tests.core.test_replicas import PATIENT, change, named, shown
from tests.core.test_reserves import settings

MINE, THEIRS = "session:acme/key/1", "session:batchco/key/1"


def open_session(bench: Bench, tokens: int, session: str = MINE, **changed: Any) -> None:
    bench.arrive(1, session=session, opens=Budget(tokens, 600.0), prompt_tokens=0, output_tokens_max=0, **changed)
    assert len(bench.take(Opened)) == 1
    bench.take(Run)


def test_B12_a_call_of_a_session_is_not_stopped_for_others() -> None:
    """Its end would free nothing for them: what it holds is its session's."""
    pool = {"active_requests_max": 100, "sessions_ratio_max": 0.9, "preemption": PreemptionPolicy(running_ratio_max=1.0)}
    made = settings(pool=pool, reserved_tokens=0, reserved_requests=0)
    made.classes["interactive"] = replace(made.classes["interactive"], wait_s_max=100.0)
    bench = Bench(made, capacities=(capacity(kv_tokens=10_000, running_max=100),))
    bench.sample(running=1, iterations=(0,))
    open_session(bench, 6_000, THEIRS, tenant="batchco")
    bulk = {"service_class": "bulk", "tenant": "batchco", "finish_by_s": bench.now_s + 600.0}
    bench.arrive(6_000, 111, session=THEIRS, **bulk)
    bench.first_byte(bench.execution())
    bench.advance(1.0)
    bench.sample(running=1, iterations=(10,))
    bench.arrive(5_000, start_by_s=bench.now_s + 4.0)
    bench.advance(3.0)
    assert bench.take(Abort) == []


def test_B11_a_call_of_a_session_leaves_its_tenants_reserve_as_it_was() -> None:
    """It runs on what the session holds. Were it on the reserve too, others would find room that is promised when it ends."""
    made = settings(pool={"sessions_ratio_max": 0.9})
    bench = Bench(made, capacities=(capacity(kv_tokens=10_000, running_max=8),))
    open_session(bench, 3_000)
    bench.arrive(3_000, session=MINE)
    call = bench.execution()
    bench.arrive(3_000, tenant="batchco")
    bench.arrive(1_000, tenant="batchco")
    assert len(bench.take(Run)) == 1, "3,000 are the session's, 4,000 reserved"
    bench.first_byte(call)
    bench.complete(call, 99)
    bench.arrive(4_000)
    assert len(bench.take(Run)) == 1


def test_B11_a_call_of_a_session_in_a_preemptible_class_is_not_lent_anything() -> None:
    """It cannot be taken back, so it does not stand on what is reserved, and others find no more for it."""
    made = settings(pool={"sessions_ratio_max": 0.9})
    bench = Bench(made, capacities=(capacity(kv_tokens=10_000, running_max=8),))
    open_session(bench, 3_000, THEIRS, tenant="batchco")
    bench.arrive(3_000, session=THEIRS, tenant="batchco", service_class="bulk")
    bench.execution()
    bench.arrive(4_000, tenant="batchco")
    bench.take(Run)
    assert bench.held() <= 6_000, "4,000 are acme's"
    bench.arrive(4_000)
    assert len(bench.take(Run)) == 1


def test_B14_an_engine_is_replaced_under_a_session() -> None:
    """The only engine drains, another takes its place: the budget is held in the pool throughout, and once."""
    made = policy(interactive=PATIENT, kind="wfq")
    bench = Bench(made, capacities=(capacity(),))
    open_session(bench, 12_000)
    bench.arrive(5_000, session=MINE)
    call = bench.execution()
    change(bench, named("p/0"), named("p/1"))
    bench.feed(events.ReplicaDescribed(capacity("p/1")))
    change(bench, named("p/0", drains=True), named("p/1"))
    assert shown(bench, "tokens") == 7_000
    bench.first_byte(call)
    bench.complete(call, 4_999)
    change(bench, named("p/1"))
    bench.advance(3.0)
    bench.arrive(7_000, session=MINE)
    assert bench.take(Run)[0].execution.replica == "p/1"
    bench.feed(events.CloseAsked("close", MINE))
    assert shown(bench, "tokens") == 7_000


def test_B14_the_only_engine_drains_and_comes_back_under_a_session() -> None:
    bench = Bench(policy(interactive=PATIENT, kind="wfq"), capacities=(capacity(),))
    open_session(bench, 12_000)
    change(bench, named("p/0", drains=True))
    bench.advance(2.0)
    change(bench, named("p/0"))
    bench.advance(2.0)
    assert shown(bench, "tokens") == 12_000
    bench.feed(events.CloseAsked("close", MINE))
    assert shown(bench, "tokens") == 0


def test_B11_a_waiting_call_of_a_session_keeps_nobody_from_what_is_reserved_for_it() -> None:
    """Places are all taken but those reserved: the session's call waits first in line, and acme goes in past it."""
    made = settings(pool={"sessions_ratio_max": 0.9})
    bench = Bench(made, capacities=(capacity(kv_tokens=10_000, running_max=8),))
    open_session(bench, 3_000, THEIRS, tenant="batchco")
    for _ in range(6):
        bench.arrive(10, tenant="batchco")
    assert len(bench.take(Run)) == 6
    bench.arrive(100, session=THEIRS, tenant="batchco")
    assert bench.take(Run) == []
    bench.arrive(10)
    bench.arrive(10)
    assert [run.decision.key.tenant for run in bench.take(Run)] == ["acme", "acme"]


def test_B11_a_call_of_a_session_takes_the_places_that_are_reserved_for_its_tenant() -> None:
    made = settings(pool={"sessions_ratio_max": 0.9}, reserved_tokens=0)
    bench = Bench(made, capacities=(capacity(kv_tokens=10_000, running_max=8),))
    open_session(bench, 3_000)
    for _ in range(7):
        bench.arrive(10, tenant="batchco")
    assert len(bench.take(Run)) == 6
    for _ in range(3):
        bench.arrive(10, session=MINE)
    assert len(bench.take(Run)) == 2
    assert (bench.held("reserved:p:acme", "requests"), bench.held("reserved:p:acme")) == (2, 0)


def test_B11_a_waiting_call_of_a_session_keeps_nobody_from_room_that_was_lent() -> None:
    """The call waits for the engine's gauge, which holds up nobody inside a reserve: what bulk work gives back is acme's."""
    made = settings(pool={"sessions_ratio_max": 0.9})
    bench = Bench(made, capacities=(capacity(kv_tokens=10_000, running_max=8),))
    open_session(bench, 3_000, THEIRS, tenant="batchco")
    bench.arrive(7_000, tenant="batchco", service_class="bulk")
    bulk = bench.execution()
    bench.sample(kv_used_ratio=0.95, running=1)
    bench.arrive(1_000, session=THEIRS, tenant="batchco")
    name = bench.arrive(100)
    assert bench.take(Run) == []
    bench.first_byte(bulk)
    bench.complete(bulk, 6_999)
    assert [run.id for run in bench.take(Run)] == [name]
