"""What every ledger store must do, asked over its public face alone.

A case is a function of an `Opened` store that asserts; `CASES` lists them, so that a new store is one more line in the table
of a test. Clients' keys are in `ledger_keys.py`, evidence is in `ledger_evidence.py`, prompts being read in
`ledger_reading.py`, what is kept for one in `ledger_reserves.py`, sessions in `ledger_sessions.py`, the rows of the state
table in `ledger_rows.py`, random histories in `ledger_histories.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from headworks.core.book_counters import STANDING
from headworks.core.commands import (
    Adopt,
    Cancel,
    Claim,
    Command,
    Heartbeat,
    Reassert,
    SetLimits,
    Shortfall,
    Start,
    Stop,
)
from headworks.core.types import Charge, Owner, RequestKey
from headworks.testing.suites.ledger_evidence import EVIDENCE_CASES
from headworks.testing.suites.ledger_histories import check_history
from headworks.testing.suites.ledger_keys import KEY_CASES
from headworks.testing.suites.ledger_reading import READING_CASES
from headworks.testing.suites.ledger_reserves import RESERVE_CASES
from headworks.testing.suites.ledger_retold import RETOLD_CASES
from headworks.testing.suites.ledger_rows import check_rows
from headworks.testing.suites.ledger_sessions import SESSION_CASES
from headworks.testing.suites.ledger_subject import (
    CHARGED_STATES,
    FIRST,
    LEASE_MS,
    RESTARTED,
    SECOND,
    WHOLE,
    Ledger,
    Opened,
    reserve,
    used,
)

SCOPES = {"pool:pool": WHOLE, "tenant:acme": WHOLE, "tenant:beta": WHOLE}


def case_A1_worked_example(opened: Opened) -> None:
    """Pool of 40,000: A 12,000, B 16,000, C 8,000 held; D waits; B ends having used 10,000: 16,000 come back."""
    ledger = Ledger(opened)
    ledger.open({**SCOPES, "pool:pool": 40_000})
    granted = ledger.ask(reserve("A", 12_000), reserve("B", 16_000), reserve("C", 8_000))
    assert [answer.outcome for answer in granted] == ["granted", "granted", "granted"]
    assert ledger.held("pool:pool") == 36_000
    refused = ledger.one(reserve("D", 7_000))
    assert refused.outcome == "refused"
    assert refused.shortfalls == (Shortfall("pool:pool", "tokens", 43_000, 40_000),)
    assert ledger.held("pool:pool") == 36_000
    ended = ledger.one(Stop("B", FIRST, "E1", "completed", used(10_000)))
    assert ended.state == "COMPLETED" and ended.usage == used(10_000)
    assert ledger.held("pool:pool") == 20_000
    assert ledger.outcome(reserve("D", 7_000)) == "granted"
    assert ledger.held("pool:pool") == 27_000


def case_A2_tenant_limit_apart_from_pool(opened: Opened) -> None:
    """A tenant of 15,000 holds 9,000 and asks 8,000 while the pool has 20,000 free: only its own limit is short."""
    ledger = Ledger(opened)
    ledger.open({**SCOPES, "tenant:acme": 15_000, "pool:pool": 29_000})
    assert ledger.outcome(reserve("earlier", 9_000)) == "granted"
    refused = ledger.one(reserve("asks", 8_000))
    assert refused.outcome == "refused"
    assert refused.shortfalls == (Shortfall("tenant:acme", "tokens", 17_000, 15_000),)
    ledger.ask(Stop("earlier", FIRST, "E1", "completed", used(9_000)))
    assert ledger.outcome(reserve("asks", 8_000)) == "granted"
    assert ledger.held("tenant:acme") == 8_000


def case_A2_what_is_committed_counts_until_its_limit_is_gone(opened: Opened) -> None:
    """A period's quota of 1,000: what a stop commits stays, once; it is told again at will; without a limit it is gone."""
    quota = "quota:acme@day"
    ledger = Ledger(opened)
    ledger.open({**SCOPES, quota: 1_000})

    def asked(name: str, tokens: int) -> str:
        return ledger.outcome(reserve(name, tokens, charges=(Charge(quota, "tokens", tokens),)))

    assert asked("x", 600) == "granted"
    assert asked("y", 500) == "refused"
    stop = Stop("x", FIRST, "E1", "completed", used(250), ((quota, "tokens", 250),))
    assert [ledger.outcome(stop), ledger.outcome(stop)] == ["ok", "recorded"]
    assert ledger.held(quota) == 250
    assert (asked("y", 751), asked("y", 750)) == ("refused", "granted")
    ledger.ask(Stop("y", FIRST, "E0", "cancelled", None))
    limit = Charge(quota, "tokens", 1_000)
    for number, told, stands in ((2, 200, 250), (3, 400, 400), (4, 0, 400)):
        ledger.ask(SetLimits("policy", number, (limit,), (), (Charge(quota, "tokens", told),)))
        assert ledger.held(quota) == stands
    ledger.ask(SetLimits("without", 5, ()), SetLimits("policy", 6, (limit,)))
    assert ledger.held(quota) == 0
    assert opened.check() == []


def case_A3_two_gateways_one_grant(opened: Opened) -> None:
    """6,000 free, two gateways ask 4,000 each: exactly one wins, whoever comes first, 10,000 times (K20, K26)."""
    ledger = Ledger(opened)
    ledger.open({**SCOPES, "pool:pool": 6_000}, FIRST, SECOND)
    for round_number in range(10_000):
        owners = (FIRST, SECOND) if round_number % 2 else (SECOND, FIRST)
        asks = [reserve(f"{round_number}-{owner.boot}", 4_000, owner=owner) for owner in owners]
        # Even rounds in one list, odd ones in two: whatever is put together, each ask is checked and charged at once.
        answers = ledger.ask(*asks) if round_number % 4 < 2 else [ledger.one(ask) for ask in asks]
        assert [answer.outcome for answer in answers] == ["granted", "refused"], round_number
        ledger.ask(Stop(answers[0].execution, owners[0], "E1", "completed", None))
    assert ledger.held("pool:pool") == 0


def case_A3_all_scopes_or_none(opened: Opened) -> None:
    """What one scope refuses is charged to no other."""
    ledger = Ledger(opened)
    ledger.open({**SCOPES, "tenant:acme": 5_000})
    assert ledger.outcome(reserve("a", 4_000)) == "granted"
    assert ledger.outcome(reserve("b", 2_000)) == "refused"
    assert ledger.held("pool:pool") == 4_000
    assert ledger.held("tenant:acme") == 4_000


def case_A5_cancel_releases_once(opened: Opened) -> None:
    """9,000 reserved, 2,000 used, cancelled, three completion events: 9,000 come back once, 2,000 are recorded."""
    ledger = Ledger(opened)
    ledger.open(SCOPES)
    ledger.ask(reserve("other", 1_000), reserve("x", 9_000), Start("x", FIRST))
    assert ledger.one(Cancel("x", FIRST)).state == "CANCELLING"
    assert ledger.held("pool:pool") == 10_000
    first = ledger.one(Stop("x", FIRST, "E3a", "cancelled", used(2_000)))
    assert (first.outcome, first.state, first.evidence) == ("ok", "CANCELLED", "E3a")
    assert ledger.held("pool:pool") == 1_000
    for again in ("E1", "E3a"):
        repeated = ledger.one(Stop("x", FIRST, again, "completed", used(5_000)))
        assert (repeated.outcome, repeated.state, repeated.usage) == ("recorded", "CANCELLED", used(2_000))
        assert ledger.held("pool:pool") == 1_000
    assert ledger.held("tenant:acme") == 1_000


def case_A5_cancel_of_a_reserved_one_frees_nothing(opened: Opened) -> None:
    """No byte was seen, but one may be on its way: charged until its gateway says that nothing was sent."""
    ledger = Ledger(opened)
    ledger.open(SCOPES)
    ledger.ask(reserve("x", 9_000), Cancel("x", FIRST))
    assert ledger.held("pool:pool") == 9_000
    ledger.ask(Stop("x", FIRST, "E0", "cancelled", None))
    assert ledger.held("pool:pool") == 0


def case_A5_reserve_after_its_cancel_is_dead(opened: Opened) -> None:
    """A cancel that overtakes its reserve is remembered, for four leases."""
    ledger = Ledger(opened)
    ledger.open(SCOPES)
    for verb in (Cancel("cancelled", FIRST), Stop("stopped", FIRST, "E0", "cancelled", None)):
        assert ledger.outcome(verb) == "ok"
    ledger.advance(4 * LEASE_MS - 1, FIRST)
    assert ledger.outcome(reserve("cancelled", 9_000)) == "dead"
    assert ledger.outcome(reserve("stopped", 9_000)) == "dead"
    assert ledger.held("pool:pool") == 0


def case_K14_random_cancels_leave_nothing_held(opened: Opened) -> None:
    """10,000 executions cancelled in whatever state they are, with evidence in the end: nothing is held, nothing below zero."""
    ledger = Ledger(opened)
    ledger.open(SCOPES)
    random = Random(14)  # noqa: S311 - to be replayed, not to be guessed
    for number in range(10_000):
        name, tokens = f"x{number}", random.randrange(1, 50)
        course: list[Command] = [reserve(name, tokens), Cancel(name, FIRST)]
        if random.random() < 0.5:
            course.insert(1, Start(name, FIRST))
        elif random.random() < 0.2:
            course.reverse()
        course.append(Stop(name, FIRST, "E1", random.choice(("completed", "failed", "cancelled")), None))
        course += random.choices(course, k=random.randrange(3))
        ledger.ask(*course)
    assert ledger.held("pool:pool") == ledger.held("tenant:acme") == 0
    assert ledger.opened.check() == []


def case_A7_lapse_orphans_and_frees_nothing(opened: Opened) -> None:
    """Twenty streams of a gateway that vanished: charged, adopted, and gone exactly with the evidence (K17)."""
    ledger = Ledger(opened)
    ledger.open(SCOPES, FIRST, SECOND)
    names = [f"x{number}" for number in range(20)]
    ledger.ask(*(reserve(name, 100) for name in names), *(Start(name, FIRST) for name in names))
    ledger.advance(LEASE_MS, SECOND)
    assert ledger.outcome(reserve("late", 100)) == "fenced"
    assert ledger.held("pool:pool", SECOND) == 2_000
    adopted = ledger.one(Adopt(SECOND)).records
    assert [record.execution for record in adopted] == names
    assert {(record.state, record.owner, record.reserved_by) for record in adopted} == {("CANCELLING", SECOND, FIRST)}
    for left, name in zip(range(19, -1, -1), names, strict=True):
        ledger.ask(Stop(name, SECOND, "E3a", "cancelled", None))
        assert ledger.held("pool:pool", SECOND) == 100 * left


def case_A7_testimony_of_a_fenced_owner_counts(opened: Opened) -> None:
    """What a gateway knows of its executions counts after its lease, even after another adopted them."""
    ledger = Ledger(opened)
    ledger.open(SCOPES, FIRST, SECOND)
    ledger.ask(reserve("unsent", 100), reserve("ended", 200), Start("ended", FIRST), reserve("orphan", 400))
    ledger.advance(LEASE_MS, SECOND)
    ledger.ask(Adopt(SECOND, 2))
    assert ledger.one(Stop("unsent", FIRST, "E0", "cancelled", None)).state == "CANCELLED"
    assert ledger.one(Stop("ended", FIRST, "E1", "completed", used(150))).state == "COMPLETED"
    assert ledger.one(Stop("orphan", SECOND, "E0", "cancelled", None)).outcome == "refused"
    assert ledger.held("pool:pool", SECOND) == 400


def case_A11_reassert_is_believed(opened: Opened) -> None:
    """What a living owner says it runs is charged, above a limit if it must be; new work waits until it has drained."""
    ledger = Ledger(opened)
    ledger.open({**SCOPES, "pool:pool": 1_000})
    ledger.ask(reserve("x", 900), Start("x", FIRST))
    told = replace(ledger.records(FIRST)["x"], execution="forgotten")
    assert ledger.one(Reassert(told)).state == "RUNNING"
    assert ledger.held("pool:pool") == 1_800
    assert ledger.opened.check() == []
    ledger.ask(Stop("x", FIRST, "E1", "completed", None))
    assert ledger.outcome(reserve("y", 200)) == "refused"
    ledger.ask(Stop("forgotten", FIRST, "E1", "completed", None))
    assert ledger.outcome(reserve("y", 200)) == "granted"


def case_limits_newest_policy_wins(opened: Opened) -> None:
    """An older gateway cannot bring old limits back; what is held above a lowered limit drains."""
    ledger = Ledger(opened)
    ledger.open(SCOPES)
    ledger.ask(reserve("x", 900))
    assert ledger.outcome(SetLimits("policy-3", 3, (Charge("pool:pool", "tokens", 500),))) == "ok"
    assert ledger.outcome(SetLimits("policy-2", 2, (Charge("pool:pool", "tokens", 9_000),))) == "refused"
    short = ledger.one(reserve("y", 100))
    assert short.shortfalls == (Shortfall("pool:pool", "tokens", 1_000, 500),)
    assert ledger.opened.check() == []
    ledger.ask(Stop("x", FIRST, "E1", "completed", None))
    assert ledger.outcome(reserve("y", 100)) == "granted"
    never = ledger.one(reserve("z", 501))
    assert (never.outcome, never.shortfalls) == ("never", (Shortfall("pool:pool", "tokens", 501, 500),))


def case_A11_who_does_not_know_a_limit_yet_leaves_it_standing(opened: Opened) -> None:
    """A newer policy, told by a gateway that has not reached the engine yet: its limit holds on, one that is gone is lifted."""
    ledger = Ledger(opened)
    ledger.open(SCOPES)
    limits = (
        Charge("pool:pool", "tokens", 1_000),
        Charge("tenant:acme", "tokens", 700),
        Charge("replica:pool/0", "tokens", 800),
    )
    ledger.ask(SetLimits("policy-3", 3, limits))
    unknown = tuple(Charge(scope, "tokens", STANDING) for scope in ("pool:pool", "replica:pool/0", "replica:pool/new"))
    for _ in range(2):
        assert ledger.outcome(SetLimits("policy-4", 4, unknown)) == "ok"
        over = ledger.one(reserve("x", 1_001))
        assert over.shortfalls[0] == Shortfall("pool:pool", "tokens", 1_001, 1_000)
        assert Shortfall("replica:pool/0", "tokens", 1_001, 800) in over.shortfalls
        assert not [short for short in over.shortfalls if short.scope == "tenant:acme"], (
            "the policy says nothing of it any more"
        )
    ledger.ask(SetLimits("policy-5", 5, (Charge("pool:pool", "tokens", 500), *unknown[1:])))
    assert ledger.one(reserve("y", 501)).shortfalls == (Shortfall("pool:pool", "tokens", 501, 500),)
    assert ledger.opened.check() == []


def case_A12_small_pool_lifecycle(opened: Opened) -> None:
    """The drill: two that cannot both fit; one is cancelled, completed thrice, retried; the process restarts."""
    ledger = Ledger(opened)
    ledger.open({**SCOPES, "pool:pool": 10_000}, FIRST)
    engine: dict[str, int] = {}
    """What physically runs: execution → tokens."""

    def agree(*owners: Owner) -> None:
        records = ledger.records(*owners)
        live = sum(record.charges[1].amount for record in records.values() if record.state in CHARGED_STATES)
        assert live == ledger.held("pool:pool", owners[-1]) == sum(engine.values())
        assert ledger.opened.check() == []

    key = RequestKey("acme", "small-pool")
    ledger.ask(Claim("x1", key, "same", FIRST))
    answers = ledger.ask(reserve("x1", 6_000, key=key), reserve("x2", 6_000))
    assert [answer.outcome for answer in answers] == ["granted", "refused"]
    engine["x1"] = 6_000
    agree(FIRST)
    ledger.ask(Start("x1", FIRST), Cancel("x1", FIRST))
    agree(FIRST)
    assert ledger.outcome(reserve("x2", 6_000)) == "refused"
    assert ledger.outcome(Claim("x3", key, "same", FIRST)) == "attach"
    del engine["x1"]
    for _ in range(3):
        ledger.ask(Stop("x1", FIRST, "E3a", "cancelled", used(2_000)))
        agree(FIRST)
    assert ledger.outcome(Claim("x3", key, "same", FIRST)) == "claimed"
    assert ledger.outcome(reserve("x3", 6_000, key=key)) == "granted"
    engine["x3"] = 6_000
    ledger.ask(Start("x3", FIRST))
    agree(FIRST)
    ledger.store = ledger.opened.reopen()
    ledger.ask(Heartbeat(RESTARTED))
    agree(FIRST, RESTARTED)
    assert ledger.outcome(reserve("x2", 6_000, owner=RESTARTED)) == "refused"
    assert [record.execution for record in ledger.one(Adopt(RESTARTED)).records] == ["x3"]
    agree(FIRST, RESTARTED)
    del engine["x3"]
    ledger.ask(Stop("x3", RESTARTED, "E3a", "cancelled", None))
    agree(FIRST, RESTARTED)
    assert ledger.outcome(reserve("x2", 6_000, owner=RESTARTED)) == "granted"
    engine["x2"] = 6_000
    agree(FIRST, RESTARTED)


def case_D1_who_has_to_yield_to_its_own_gateway_is_told_to_whom(opened: Opened) -> None:
    """Room came free that nobody has been woken for: a2 asks first, and it is b's turn, which waits at the same gateway."""
    ledger = Ledger(opened)
    ledger.open({"pool:pool": 1_000})
    answers = ledger.ask(  # one list, one instant
        reserve("a1", 900, tenant="a"),
        reserve("b1", 400, tenant="b"),
        SetLimits("policy-2", 2, (Charge("pool:pool", "tokens", 2_000),)),
        reserve("b1", 400, tenant="b", more=True, waiting_tokens=400),
        reserve("a2", 100, tenant="a", more=True, waiting_tokens=100),
    )
    assert [answer.outcome for answer in answers] == ["granted", "refused", "ok", "granted", "yield"]
    assert [answer.goes_first for answer in answers[3:]] == [None, ("interactive", "b")]


CASES: tuple[Callable[[Opened], None], ...] = (
    case_A1_worked_example,
    case_A2_tenant_limit_apart_from_pool,
    case_A2_what_is_committed_counts_until_its_limit_is_gone,
    case_A3_two_gateways_one_grant,
    case_A3_all_scopes_or_none,
    case_D1_who_has_to_yield_to_its_own_gateway_is_told_to_whom,
    case_A5_cancel_releases_once,
    case_A5_cancel_of_a_reserved_one_frees_nothing,
    case_A5_reserve_after_its_cancel_is_dead,
    case_K14_random_cancels_leave_nothing_held,
    case_A7_lapse_orphans_and_frees_nothing,
    case_A7_testimony_of_a_fenced_owner_counts,
    case_A11_reassert_is_believed,
    case_limits_newest_policy_wins,
    case_A11_who_does_not_know_a_limit_yet_leaves_it_standing,
    case_A12_small_pool_lifecycle,
    *KEY_CASES,
    *EVIDENCE_CASES,
    *READING_CASES,
    *RESERVE_CASES,
    *RETOLD_CASES,
    *SESSION_CASES,
    check_rows,
    check_history,
)
