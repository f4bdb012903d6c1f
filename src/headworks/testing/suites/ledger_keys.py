"""Clients' keys in any ledger store: who may run under one, and what everybody else is told (A6)."""

from __future__ import annotations

from collections.abc import Callable

from headworks.core.commands import Cancel, Claim, Heartbeat, Start, Stop
from headworks.core.types import RequestKey
from headworks.testing.suites.ledger_subject import (
    FIRST,
    LEASE_MS,
    REMEMBER_MS,
    RESTARTED,
    SECOND,
    WHOLE,
    Ledger,
    Opened,
    reserve,
    used,
)

SCOPES = {"pool:pool": WHOLE, "tenant:acme": WHOLE, "tenant:beta": WHOLE}


def case_A6_one_execution_of_a_key(opened: Opened) -> None:
    """Attach while it runs, conflict for another request, a new attempt after a failure, replay after success."""
    ledger = Ledger(opened)
    ledger.open(SCOPES, FIRST, SECOND)
    key = RequestKey("acme", "order-7")
    assert ledger.outcome(Claim("x1", key, "same", FIRST)) == "claimed"
    assert ledger.outcome(Claim("x1", key, "same", FIRST)) == "claimed"
    attached = ledger.one(Claim("x2", key, "same", SECOND))
    assert (attached.outcome, attached.execution, attached.owner) == ("attach", "x1", FIRST)
    assert ledger.outcome(Claim("x2", key, "other", SECOND)) == "conflict"
    assert ledger.outcome(Claim("x3", RequestKey("beta", "order-7"), "other", SECOND)) == "claimed"
    assert ledger.outcome(reserve("x1", 100, key=key)) == "granted"
    assert ledger.outcome(reserve("x2", 100, key=key, owner=SECOND)) == "dead"
    ledger.ask(Start("x1", FIRST), Cancel("x1", FIRST))
    assert ledger.outcome(Claim("x2", key, "same", SECOND)) == "attach"
    ledger.ask(Stop("x1", FIRST, "E3a", "cancelled", None))
    assert ledger.outcome(Claim("x2", key, "other", SECOND)) == "conflict"
    assert ledger.outcome(Claim("x2", key, "same", SECOND)) == "claimed"
    ledger.ask(reserve("x2", 100, key=key, owner=SECOND), Stop("x2", SECOND, "E1", "completed", used(80)))
    replayed = ledger.one(Claim("x4", key, "same", FIRST))
    assert (replayed.outcome, replayed.execution, replayed.usage) == ("replay", "x2", used(80))


def case_A6_refusals_are_not_kept(opened: Opened) -> None:
    """A claim given back frees its key, even for another request."""
    ledger = Ledger(opened)
    ledger.open(SCOPES)
    key = RequestKey("acme", "order-8")
    ledger.ask(Claim("x1", key, "same", FIRST), Cancel("x1", FIRST))
    assert ledger.outcome(Claim("x2", key, "other", FIRST)) == "claimed"
    assert ledger.outcome(Claim("x1", key, "same", FIRST)) == "dead"


def case_A6_a_hundred_claims_of_one_key(opened: Opened) -> None:
    """One gets it; each of the others is told whose it is, and for which of its own executions it asked."""
    ledger = Ledger(opened)
    ledger.open(SCOPES, FIRST, SECOND)
    key = RequestKey("acme", "order-9")
    names = [f"x{number}" for number in range(100)]
    claims = [Claim(name, key, "same", (FIRST, SECOND)[number % 2]) for number, name in enumerate(names)]
    answers = ledger.ask(*claims)
    assert [answer.outcome for answer in answers] == ["claimed", *["attach"] * 99]
    assert {answer.execution for answer in answers} == {"x0"}
    assert [answer.asked for answer in answers] == names
    assert {answer.owner for answer in answers} == {FIRST}


def case_A6_keys_of_two_tenants_never_meet(opened: Opened) -> None:
    """The same name under two tenants is two keys, from the claim to the replay."""
    ledger = Ledger(opened)
    ledger.open(SCOPES)
    mine, theirs = RequestKey("acme", "order"), RequestKey("beta", "order")
    assert [ledger.outcome(Claim("x1", mine, "f", FIRST)), ledger.outcome(Claim("x2", theirs, "g", FIRST))] == ["claimed"] * 2
    ledger.ask(reserve("x1", 10, key=mine, fingerprint="f"), Stop("x1", FIRST, "E1", "completed", used(8)))
    assert ledger.outcome(Claim("x3", mine, "f", FIRST)) == "replay"
    assert (ledger.one(Claim("x4", theirs, "g", FIRST)).execution, ledger.outcome(Claim("x5", theirs, "f", FIRST))) == (
        "x2",
        "conflict",
    )


def case_A6_a_claim_is_authority_and_goes_with_its_lease(opened: Opened) -> None:
    """A boot that is not known or whose lease is over claims nothing; what it had claimed is free for anybody."""
    ledger = Ledger(opened)
    ledger.open(SCOPES, FIRST, SECOND)
    key = RequestKey("acme", "order-10")
    unknown = ledger.one(Claim("x0", key, "same", RESTARTED))
    assert (unknown.outcome, unknown.asked) == ("fenced", "x0")
    assert ledger.outcome(Claim("x1", key, "same", FIRST)) == "claimed"
    ledger.advance(LEASE_MS, SECOND)
    assert ledger.outcome(Claim("x1", key, "same", FIRST)) == "fenced"
    assert ledger.outcome(Claim("x2", key, "other", SECOND)) == "claimed"
    ledger.ask(Heartbeat(FIRST))
    assert ledger.outcome(reserve("x1", 10, key=key)) == "dead"
    assert ledger.outcome(reserve("x2", 10, key=key, owner=SECOND, fingerprint="other")) == "granted"


def case_A6_a_key_given_back_is_free_whatever_came_of_it(opened: Opened) -> None:
    """Given back by E0: claimed, charged by an ask nobody heard of, or never arrived. Nothing is held, and it stays dead."""
    ledger = Ledger(opened)
    ledger.open(SCOPES)
    for number, before in enumerate(((), ("claim",), ("claim", "reserve"))):
        key, name = RequestKey("acme", f"given-{number}"), f"x{number}"
        if "claim" in before:
            assert ledger.outcome(Claim(name, key, "same", FIRST)) == "claimed"
        if "reserve" in before:
            assert ledger.outcome(reserve(name, 100, key=key)) == "granted"
        assert ledger.outcome(Stop(name, FIRST, "E0", "cancelled", None)) == "ok"
        assert ledger.held("pool:pool") == 0
        assert ledger.outcome(Claim(name, key, "same", FIRST)) == "dead", "a claim that comes after it was given back"
        assert ledger.outcome(Claim(f"{name}-next", key, "same", FIRST)) == "claimed"


def case_A6_keys_survive_the_process(opened: Opened) -> None:
    """After a restart a completed key is still answered, a running one is not run again, and one only claimed is free."""
    ledger = Ledger(opened)
    ledger.open(SCOPES)
    keys = {name: RequestKey("acme", name) for name in ("completed", "running", "claimed")}
    ledger.ask(*(Claim(name, key, "same", FIRST) for name, key in keys.items()))
    ledger.ask(*(reserve(name, 100, key=keys[name]) for name in ("completed", "running")))
    ledger.ask(Start("running", FIRST), Stop("completed", FIRST, "E1", "completed", used(80)))
    ledger.ask(reserve("later", 1))  # an end may ride with the next reserve: until then a killed process forgets it
    ledger.store = ledger.opened.reopen()
    ledger.ask(Heartbeat(RESTARTED))
    answers = ledger.ask(*(Claim(f"{name}-again", key, "same", RESTARTED) for name, key in keys.items()))
    assert [answer.outcome for answer in answers] == ["replay", "attach", "claimed"]
    assert answers[0].usage == used(80)
    assert ledger.held("pool:pool", RESTARTED) == 101


def case_A6_a_key_is_remembered_for_its_time(opened: Opened) -> None:
    """Until then its answer is the key's; after that the name is free for anything."""
    ledger = Ledger(opened)
    ledger.open(SCOPES)
    key = RequestKey("acme", "old")
    ledger.ask(Claim("x1", key, "same", FIRST), reserve("x1", 100, key=key))
    ledger.ask(Stop("x1", FIRST, "E1", "completed", used(80)))
    ledger.advance(REMEMBER_MS - 1, FIRST)
    assert ledger.outcome(Claim("x2", key, "other", FIRST)) == "conflict"
    ledger.advance(1, FIRST)
    assert ledger.outcome(Claim("x2", key, "other", FIRST)) == "claimed"


KEY_CASES: tuple[Callable[[Opened], None], ...] = (
    case_A6_one_execution_of_a_key,
    case_A6_refusals_are_not_kept,
    case_A6_a_hundred_claims_of_one_key,
    case_A6_keys_of_two_tenants_never_meet,
    case_A6_a_claim_is_authority_and_goes_with_its_lease,
    case_A6_a_key_given_back_is_free_whatever_came_of_it,
    case_A6_keys_survive_the_process,
    case_A6_a_key_is_remembered_for_its_time,
)
