"""A tenant is frozen while something of it is on its way: what has to wait from then on is refused, what runs runs on (F13)."""

from __future__ import annotations

from dataclasses import replace

from headworks.core import events
from headworks.core.effects import Reply, Run
from tests.core.driver import Bench, policy
from tests.core.test_sessions import PATIENT, bench, call, finish, open_session

FROZEN = "tenant_frozen"


def freeze(made: Bench, tenant: str = "acme") -> None:
    settings = made.gate._desk.policy
    tenants = settings.tenants | {tenant: replace(settings.tenants[tenant], frozen=True)}
    made.feed(events.PolicyChanged(replace(settings, tenants=tenants)))


def reasons(made: Bench) -> list[str]:
    return [reply.decision.reason for reply in made.take(Reply)]


def test_F13_what_a_busy_engine_sent_back_after_the_freeze_is_refused() -> None:
    made = Bench(policy(kind="wfq", interactive=PATIENT))
    made.arrive(100)
    made.arrive(100, tenant="batchco")
    mine, theirs = made.take(Run)
    freeze(made)
    assert reasons(made) == [], "it runs, as far as anybody knows"
    for one in (mine, theirs):
        made.feed(events.NotSent(one.execution.id, "busy"))
    made.advance(5.0)
    assert reasons(made) == [FROZEN]
    (again,) = made.take(Run)
    assert again.id == theirs.id
    made.complete(again.execution.id)
    assert made.held() == 0


def test_F13_what_the_ledger_did_not_charge_before_the_freeze_is_refused() -> None:
    made = Bench(policy(kind="wfq", interactive=PATIENT))
    made.lose_asks = True
    made.arrive(100)
    freeze(made)
    made.lose_asks = False
    made.feed(events.StoreChanged("another"))
    made.advance(1.0)
    assert (reasons(made), made.take(Run), made.held()) == ([FROZEN], [], 0)


def test_F13_a_call_that_waits_in_its_session_is_refused_and_one_that_runs_runs_on() -> None:
    made = bench(pool={"active_requests_max": 1})
    open_session(made, 12_000)
    runs = call(made, 1_000)
    assert runs and not call(made, 1_000), "one at a time"
    freeze(made)
    assert reasons(made) == [FROZEN]
    finish(made, runs, 1_000)
    made.advance(1.0)
    assert made.take(Run) == []
    assert made.held() == 11_000, "what its session has left"
