"""Sessions at the gate: opening waits its turn, calls go first, and what is held is counted once (B14)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headworks.core import events
from headworks.core.book import Book
from headworks.core.effects import Closed, Opened, Reply, Run
from headworks.core.policy import QuotaPolicy, ReplicaPolicy
from headworks.core.types import Budget
from tests.core.driver import Bench, capacity, policy

MINE, THEIRS = "session:acme/key/1", "session:batchco/key/1"
POOL = {"active_requests_max": 4}
PATIENT = {"ttft_slo_s": None, "wait_s_max": 5.0}


def bench(book: Book | None = None, boot: str = "boot-1", **changed: Any) -> Bench:
    given: dict[str, Any] = {"kind": "wfq", "pool": POOL, "interactive": PATIENT, **changed}
    return Bench(policy(**given), capacities=(capacity(kv_tokens=40_000),), book=book, boot=boot)


def open_session(made: Bench, tokens: int, session: str = MINE, lasts_s: float = 600.0, **changed: Any) -> str:
    """Ask for one. Returns the arrival's id."""
    return made.arrive(1, session=session, opens=Budget(tokens, lasts_s), prompt_tokens=0, output_tokens_max=0, **changed)


def call(made: Bench, tokens: int, session: str = MINE, **changed: Any) -> str:
    """A call of it: its execution if it was sent at once, else empty."""
    made.take(Run)
    made.arrive(tokens, session=session, **changed)
    runs = made.take(Run)
    return runs[0].execution.id if runs else ""


def finish(made: Bench, execution: str, tokens: int) -> None:
    made.first_byte(execution)
    made.complete(execution, tokens - 1, 1)


def fill(made: Bench, tokens: int, count: int) -> list[str]:
    """A flood of another tenant that takes all that is left."""
    made.take(Run)
    for _ in range(count):
        made.arrive(tokens, tenant="batchco")
    return [run.execution.id for run in made.take(Run)]


def held(made: Bench) -> list[int]:
    return [made.held(scope) for scope in ("tenant:acme", "pool:p", "sessions:p", "replica:p/0")]


def test_B14_opened_held_called_and_closed_with_the_rest_returned_once() -> None:
    made = bench()
    open_session(made, 12_000)
    (told,) = made.take(Opened)
    assert (told.session.scope, told.session.tokens, told.session.left_ms) == (MINE, 12_000, 600_000)
    assert held(made) == [12_000, 12_000, 12_000, 0]
    execution = call(made, 5_000)
    assert held(made) == [12_000, 12_000, 12_000, 5_000], "a call charges nothing more"
    finish(made, execution, 4_000)
    assert held(made) == [8_000, 8_000, 8_000, 0]
    for _ in range(2):
        made.feed(events.CloseAsked("close", MINE))
        (closed,) = made.take(Closed)
        assert closed.session is not None
        assert (closed.session.spent_tokens, closed.session.returned_tokens, closed.session.ended) == (4_000, 8_000, "closed")
        assert held(made) == [0, 0, 0, 0]


def test_B14_calls_run_at_once_while_the_pool_is_full_of_others() -> None:
    """The memory is held, so a call needs a place alone; of its tenant's other work nothing gets in."""
    made = bench(pool={"active_requests_max": 8})
    open_session(made, 12_000)
    fill(made, 7_000, 8)
    assert made.held() == 40_000, "4 × 7,000 beside it"
    made.arrive(5_000)
    assert made.take(Run) == [], "no room for what has no session"
    assert call(made, 12_000)
    assert made.held() == 40_000


def test_B14_a_call_is_first_in_line_for_a_place_whoever_has_waited_longer() -> None:
    made = bench()
    open_session(made, 12_000)
    running = fill(made, 100, 12)
    assert len(running) == 4
    assert call(made, 1_000) == "", "every place is taken"
    finish(made, running[0], 100)
    (run,) = made.take(Run)
    assert run.decision.key.tenant == "acme"
    assert [decision.outcome for decision in made.decisions()][-1] == "admit"


def test_B14_opening_waits_its_turn_and_is_refused_like_anything_else() -> None:
    """No room in the pool: it waits for as long as its class may, then is told to come back."""
    made = bench(pool={"active_requests_max": 8})
    running = fill(made, 10_000, 4)
    open_session(made, 12_000)
    assert made.take(Opened) == []
    finish(made, running[0], 10_000)
    made.advance(0.1)
    assert made.take(Opened) == [], "10,000 are too few"
    finish(made, running[1], 10_000)
    made.advance(0.1)
    assert len(made.take(Opened)) == 1
    open_session(made, 12_000, THEIRS, tenant="batchco")
    made.advance(6.0)
    refusal = made.refusal()
    assert refusal.reason == "queue_timeout"
    assert refusal.retry_after_s is not None
    assert ("memory", "sessions:p", 24_000, 12_000, "tokens", "queue_timeout") in refusal.rows


def test_B14_more_than_the_sessions_part_of_the_pool_is_never_given() -> None:
    made = bench()
    open_session(made, 12_001)
    refusal = made.refusal()
    assert refusal.reason == "request_exceeds_capacity"
    assert ("memory", "sessions:p", 12_001, 12_000, "tokens", "request_exceeds_capacity") in refusal.rows


def test_B14_calls_that_do_not_fit_what_remains_are_told_session_exhausted() -> None:
    """At once where it never can; after waiting for its own calls where these were in the way."""
    made = bench()
    open_session(made, 10_000)
    first = call(made, 7_000)
    made.arrive(10_001, session=MINE)
    assert made.refusal().reason == "session_exhausted"
    made.arrive(4_000, session=MINE)
    made.advance(6.0)
    refusal = made.refusal()
    assert refusal.reason == "session_exhausted"
    assert ("tenant", MINE, 11_000, 10_000, "tokens", "session_exhausted") in refusal.rows
    made.arrive(4_000, session=MINE)
    finish(made, first, 6_000)
    made.advance(0.05)
    assert len(made.take(Run)) == 1, "3,000 + what the first did not use"


def test_B14_a_session_that_is_not_its_own_or_not_there_is_no_session() -> None:
    made = bench()
    open_session(made, 10_000)
    for session in (THEIRS, "session:acme/other/1"):
        made.arrive(1_000, session=session)
        refusal = made.refusal()
        assert refusal.reason == "session_exhausted"
        assert ("tenant", session, 1_000, 0, "tokens", "session_exhausted") in refusal.rows
    made.feed(events.CloseAsked("close", THEIRS))
    assert made.take(Closed)[0].session is None


def test_B14_a_client_that_leaves_before_it_is_told_leaves_nothing_open() -> None:
    """In the queue; and when the ledger has granted it and nobody has heard."""
    made = bench(pool={"active_requests_max": 8})
    running = fill(made, 10_000, 4)
    waiting = open_session(made, 12_000)
    made.feed(events.ClientGone(waiting))
    for execution in running:
        finish(made, execution, 10_000)
    assert made.take(Opened) == []
    made.lose_answers = True
    asked = open_session(made, 12_000)
    assert held(made)[0] == 12_000
    made.lose_answers = False
    made.feed(events.ClientGone(asked))
    made.advance(1.0)
    assert held(made) == [0, 0, 0, 0]
    assert made.take(Opened) == []


def test_B14_the_ledgers_answer_that_was_lost_is_asked_for_again() -> None:
    made = bench()
    made.lose_answers = True
    open_session(made, 12_000)
    made.lose_answers = False
    made.advance(1.0)
    assert [one.session.tokens for one in made.take(Opened)] == [12_000]
    assert held(made) == [12_000, 12_000, 12_000, 0]
    made.lose_asks = True
    made.feed(events.CloseAsked("close", MINE))
    made.lose_asks = False
    made.advance(1.0)
    assert [one.session is not None for one in made.take(Closed)] == [True]
    made.lose_asks = True
    made.feed(events.CloseAsked("close", MINE))
    made.advance(6.0)
    assert [one.reason for one in made.take(Closed)] == ["ledger_unavailable"]


def test_B14_idle_it_is_closed_and_its_room_is_everybodys() -> None:
    made = bench(pool={**POOL, "active_requests_max": 8})
    open_session(made, 12_000)
    fill(made, 28_000, 1)
    made.advance(59.0)
    assert held(made)[0] == 12_000
    made.advance(3.0)
    assert held(made)[0] == 0
    assert fill(made, 12_000, 1)


def test_B14_another_gateway_and_the_next_life_of_this_one_go_on_with_it() -> None:
    """The ledger is one: who opened it is gone, and its successor has heard of it with the first heartbeat."""
    book = Book(lease_ms=5_000, remember_ms=3_600_000)
    first = bench(book)
    open_session(first, 12_000)
    second = bench(book, boot="boot-2")
    second.now_s = first.now_s
    finish(second, call(second, 5_000), 5_000)
    second.advance(1.5)
    assert second.gate.snapshot(second.now_s)["pools"]["p"]["sessions_tokens"] == 7_000
    second.feed(events.CloseAsked("close", MINE))
    assert held(second) == [0, 0, 0, 0]


def test_B14_observing_sessions_are_opened_and_their_calls_run_like_any_other() -> None:
    settings = replace(policy(kind="wfq", pool=POOL, interactive=PATIENT), observe=True)
    made = Bench(settings)
    open_session(made, 50_000)
    assert len(made.take(Opened)) == 1
    made.arrive(60_000, session=MINE)
    assert len(made.take(Run)) == 1
    assert made.take(Reply) == []


def test_B1_a_dry_run_says_what_would_be_decided_and_changes_nothing() -> None:
    """By the code that decides: the same outcome, verdicts and work; nothing charged, queued, drawn or slotted."""
    made = bench()
    made.arrive(1_000)
    request = replace(made.gate._desk.runs[made.execution()].request, id="dry", arrived_s=made.now_s)
    before = made.gate.snapshot(made.now_s)
    dry = made.gate.consider(request, made.now_s)
    assert (dry.outcome, dry.reason, dry.work.tokens, dry.retry_after_s) == ("admit", "", 1_000, None)
    huge = made.gate.consider(replace(request, samples=2, prompt_tokens=30_000), made.now_s)
    assert (huge.outcome, huge.reason) == ("refuse", "request_exceeds_capacity")
    assert made.gate.snapshot(made.now_s) == before
    for _ in range(4):
        made.arrive(100)
    queued = made.gate.consider(replace(request, prompt_tokens=99), made.now_s)
    assert queued.outcome == "queue"
    made.feed(events.Arrived(replace(request, id="real", prompt_tokens=99)))
    real = made.decisions()[-1]
    assert (real.outcome, real.rows) == (queued.outcome, queued.rows)
    assert made.gate.check() == []


def test_B1_a_dry_run_of_a_call_of_a_session_is_decided_as_one() -> None:
    made = bench()
    open_session(made, 10_000)
    fill(made, 10_000, 3)
    call(made, 1_000)
    request = next(life.request for life in made.gate._desk.runs.values() if life.request.session)
    for tokens, outcome, reason in ((9_000, "queue", ""), (10_001, "refuse", "session_exhausted")):
        dry = made.gate.consider(replace(request, id="dry", prompt_tokens=tokens - 1), made.now_s)
        assert (dry.outcome, dry.reason) == (outcome, reason)
    assert held(made)[2] == 10_000


STAYS, DRAINS = ReplicaPolicy("p/0"), ReplicaPolicy("p/0", drains=True)
OTHER, OTHER_DRAINS = ReplicaPolicy("p/1"), ReplicaPolicy("p/1", drains=True)


@pytest.mark.parametrize(
    "before_and_after",
    [((STAYS,), (DRAINS,)), ((STAYS,), (OTHER,)), ((STAYS, OTHER_DRAINS), (DRAINS, OTHER)), ((STAYS, OTHER), (STAYS,))],
)
@pytest.mark.parametrize("runs", [False, True])
def test_B14_what_a_session_holds_stays_with_the_pool_when_its_engine_leaves(
    before_and_after: tuple[tuple[ReplicaPolicy, ...], ...], runs: bool
) -> None:
    """The bench compares every counter with its parts after each event."""
    before, after = before_and_after
    given = policy(kind="wfq", interactive=PATIENT)
    made = Bench(replace(given, pools={"p": replace(given.pools["p"], replicas=before)}))
    made.feed(events.ReplicaDescribed(capacity("p/1")))
    open_session(made, 12_000)
    execution = call(made, 5_000) if runs else ""
    made.feed(events.PolicyChanged(replace(given, number=2, pools={"p": replace(given.pools["p"], replicas=after)})))
    pool = made.gate._desk.pools["p"]
    stays = sum(life.work.kv_tokens for life in made.gate._desk.runs.values() if life.replica and not life.replica.leaves)
    assert pool.tokens == 12_000 - (5_000 if runs and not stays else 0)
    if execution:
        finish(made, execution, 4_000)
    made.feed(events.CloseAsked("close", MINE))
    assert (pool.tokens, [one.tokens for one in pool.all_replicas().values()], made.held()) == (
        0,
        [0] * len(pool.all_replicas()),
        0,
    )


def test_B14_a_call_takes_whole_blocks_from_its_tenants_limit_too_so_that_none_is_lent_out_by_rounding() -> None:
    """The campaign's seed 848: 12 tokens of rounding went to its tenant's next request, and came back on top of that."""
    made = Bench(
        policy(kind="wfq", pool=POOL, interactive=PATIENT, tenant={"active_tokens_max": 2_000}),
        capacities=(capacity(kv_tokens=40_000, block_tokens=16),),
    )
    open_session(made, 1_600)
    execution = call(made, 20)
    assert held(made) == [1_600, 1_600, 1_600, 32]
    made.arrive(401)
    assert made.take(Run) == [], "400 are left of the tenant's limit, whatever runs inside"
    finish(made, execution, 2)
    assert made.held("tenant:acme") == 1_598
    assert made.gate.check() == []


def test_B14_a_session_that_was_open_and_is_over_before_anybody_was_told_is_refused_once_and_not_opened_again() -> None:
    """Its answer was lost for longer than it was to last: asked again, the ledger says that it is over."""
    made = bench(interactive={"ttft_slo_s": None, "wait_s_max": 30.0})
    made.lose_answers = True
    open_session(made, 12_000, lasts_s=0.05)
    made.lose_answers = False
    made.advance(3.0)
    assert made.take(Opened) == []
    assert made.refusal().reason == "ledger_unavailable"
    assert held(made) == [0, 0, 0, 0]
    sent_before = made.book.sequence
    made.advance(0.5)
    assert made.book.sequence - sent_before < 5, "it goes on asking nothing"


def test_D1_a_call_that_is_sent_back_keeps_nobody_of_its_tenant_from_asking() -> None:
    """In a pool that is short: the flow of its class and tenant is not what was asked for, so it is not paused."""
    book = Book(lease_ms=5_000, remember_ms=3_600_000)
    here, there = bench(book), bench(book, "boot-2")
    open_session(here, 8_000)
    asks = here.gate._desk.pools["p"].queue.asks
    asks.sent_back(("interactive", "batchco"), 0.0, here.now_s, True)
    assert asks.is_short and asks.may(("interactive", "acme"))
    fill(there, 100, 4)
    call(here, 1_000)
    assert asks.may(("interactive", "acme"))


@pytest.mark.parametrize("what", ["never", "quota", "opened"])
def test_D1_an_ask_that_says_nothing_of_room_pauses_no_flow(what: str) -> None:
    made = bench(tenant={"quota": QuotaPolicy("day", tokens=500)} if what == "quota" else None)
    asks = made.gate._desk.pools["p"].queue.asks
    asks.sent_back(("interactive", "batchco"), 0.0, made.now_s, True)
    if what == "opened":
        open_session(made, 8_000)
        assert made.take(Opened)
    else:
        if what == "never":
            made.book.counters.set([("pool:p", "tokens", 50)], ())
        else:
            made.arrive(50)
            made.complete(made.execution(), 49, 1)
            made.book.counters.commit([("quota:acme@day-1970-01-01", "tokens", 400)])
            asks.sent_back(("interactive", "batchco"), 0.0, made.now_s, True)
        made.arrive(100)
        assert made.refusal().reason == {"never": "request_exceeds_capacity", "quota": "insufficient_quota"}[what]
    assert asks.may(("interactive", "acme"))
