"""What is kept for one scope of a limit, and lent meanwhile (B11): to whom it is granted, and what everybody else finds.

A pool of 100 tokens and 10 sequences, of which 20 and 2 are acme's; bulk work stands on what is lent.
"""

from __future__ import annotations

from collections.abc import Callable

from headworks.core.commands import Answer, Floor, Grow, Heartbeat, Reserve, SetLimits, Shortfall, Start, Stop
from headworks.core.types import Charge, Owner
from headworks.testing.suites.ledger_subject import FIRST, SECOND, Ledger, Opened, reserve, used

POOL, OWN, LENT = "pool:pool", "reserved:pool:acme", "lent:pool"
LIMITS = (Charge(POOL, "tokens", 100), Charge(POOL, "requests", 10))
FLOORS = (Floor(OWN, "tokens", 20, POOL, LENT), Floor(OWN, "requests", 2, POOL, LENT))
OWED_MS = 50
"""As long as a mark counts."""


def asks(name: str, tokens: int, *scopes: str, owner: Owner = FIRST, flow: str = "") -> Reserve:
    """One sequence of so many tokens, on the pool and on these scopes."""
    places = (POOL, *scopes)
    charges = tuple(charge for scope in places for charge in (Charge(scope, "tokens", tokens), Charge(scope, "requests", 1)))
    return reserve(name, tokens, owner=owner, tenant=flow or "beta", charges=charges)


def opened_with_reserve(opened: Opened) -> Ledger:
    ledger = Ledger(opened)
    ledger.ask(SetLimits("policy-1", 1, LIMITS, FLOORS), Heartbeat(FIRST), Heartbeat(SECOND))
    return ledger


def short(answer: Answer) -> tuple[str, tuple[Shortfall, ...]]:
    return answer.outcome, answer.shortfalls


def case_B11_what_is_reserved_is_held_by_nobody_else(opened: Opened) -> None:
    """80 are anybody's, to the token, whichever gateway asks; acme finds its 20, and as they are used no more is kept."""
    ledger = opened_with_reserve(opened)
    assert ledger.outcome(asks("a", 80)) == "granted"
    assert short(ledger.one(asks("b", 1, owner=SECOND))) == ("refused", (Shortfall(POOL, "tokens", 81, 80),))
    assert ledger.outcome(asks("own", 15, OWN, owner=SECOND, flow="acme")) == "granted"
    assert short(ledger.one(asks("b", 1)))[0] == "refused", "5 are kept still"
    assert ledger.outcome(asks("own-2", 5, OWN, flow="acme")) == "granted"
    ledger.ask(Stop("own", SECOND, "E1", "completed", used(15)))
    assert short(ledger.one(asks("b", 1))) == ("refused", (Shortfall(POOL, "tokens", 86, 85),)), "and kept again"
    assert opened.check() == []


def case_B11_sequences_are_kept_as_tokens_are(opened: Opened) -> None:
    ledger = opened_with_reserve(opened)
    assert [ledger.outcome(asks(f"a{number}", 1)) for number in range(9)] == ["granted"] * 8 + ["refused"]
    assert [ledger.outcome(asks(f"own{number}", 1, OWN)) for number in range(3)] == ["granted", "granted", "refused"]
    assert opened.check() == []


def case_B11_beyond_its_reserve_a_tenant_is_anybody(opened: Opened) -> None:
    """Its own reserve is not kept from it; nor is the rest of the pool."""
    ledger = opened_with_reserve(opened)
    assert ledger.outcome(asks("own", 90, OWN)) == "granted"
    assert ledger.outcome(asks("a", 10)) == "granted", "all of the reserve is in use"
    assert ledger.outcome(asks("own-2", 1, OWN)) == "refused"


def case_B11_the_unused_part_is_lent_and_costs_nobody_else_anything(opened: Opened) -> None:
    """Bulk fills all 100. As 30 of it end, 10 are free for others: 80 less the 70 that are not bulk's; never those 20."""
    ledger = opened_with_reserve(opened)
    assert ledger.outcome(asks("a", 50)) == "granted"
    assert [ledger.outcome(asks(name, 25, LENT)) for name in ("bulk", "bulk-2")] == ["granted", "granted"]
    assert short(ledger.one(asks("b", 1))) == ("refused", (Shortfall(POOL, "tokens", 101, 100),))
    ledger.ask(Stop("bulk", FIRST, "E1", "completed", used(25)))
    assert ledger.outcome(asks("b", 20)) == "granted", "25 are free, and what bulk has is not counted beside it"
    ledger.ask(Stop("bulk-2", FIRST, "E1", "completed", used(25)))
    assert short(ledger.one(asks("c", 11))) == ("refused", (Shortfall(POOL, "tokens", 81, 80),))
    assert ledger.outcome(asks("c", 10)) == "granted"
    assert ledger.outcome(asks("bulk-3", 20, LENT)) == "granted"
    assert opened.check() == []


def case_B11_what_comes_free_is_the_owners_before_anybody_elses(opened: Opened) -> None:
    """Its reserve is lent and it is refused: for 50 ms nobody else gets what ends, at whichever gateway, bulk or not.

    It was served far more than the others before, so by turns it would be theirs.
    """
    ledger = opened_with_reserve(opened)
    ledger.ask(asks("a", 60), asks("bulk", 20, LENT))
    for number in range(20):
        ledger.ask(asks(f"before-{number}", 20, OWN, flow="acme"))
        ledger.ask(Stop(f"before-{number}", FIRST, "E1", "completed", used(20)))
    ledger.ask(asks("bulk-2", 20, LENT))
    assert ledger.outcome(asks("own", 20, OWN, owner=SECOND, flow="acme")) == "refused"
    ledger.ask(Stop("bulk", FIRST, "E1", "completed", used(20)))
    assert [ledger.outcome(asks("bulk-3", 20, LENT)), ledger.outcome(asks("b", 20))] == ["yield", "yield"]
    assert ledger.outcome(asks("own", 20, OWN, owner=SECOND, flow="acme")) == "granted"
    opened.advance(OWED_MS)
    ledger.ask(Stop("bulk-2", FIRST, "E1", "completed", used(20)))
    assert ledger.outcome(asks("b", 20)) == "granted"
    assert opened.check() == []


def case_B11_inside_its_reserve_nobody_has_a_turn_before_it(opened: Opened) -> None:
    """Another flow has had nothing yet and waits for room that acme does not take from it: acme goes in all the same."""
    ledger = opened_with_reserve(opened)
    ledger.ask(asks("own", 10, OWN, flow="acme"), asks("a", 70))
    assert ledger.outcome(asks("late", 30, owner=SECOND, flow="gamma")) == "refused"
    for number in range(40):
        assert ledger.outcome(asks(f"own-{number}", 10, OWN, flow="acme")) == "granted", number
        ledger.ask(Stop(f"own-{number}", FIRST, "E1", "completed", used(10)))


def case_B11_growth_keeps_to_it(opened: Opened) -> None:
    ledger = opened_with_reserve(opened)
    ledger.ask(asks("a", 70), Start("a", FIRST), asks("own", 10, OWN), Start("own", FIRST))
    more = (Charge(POOL, "tokens", 11),)
    assert short(ledger.one(Grow("a", FIRST, 1, more))) == ("refused", (Shortfall(POOL, "tokens", 91, 90),))
    own = (Charge(POOL, "tokens", 10), Charge(OWN, "tokens", 10))
    assert ledger.outcome(Grow("own", FIRST, 1, own)) == "granted"
    assert opened.check() == []


def case_B11_more_than_others_leave_is_never_to_be_had(opened: Opened) -> None:
    ledger = opened_with_reserve(opened)
    assert short(ledger.one(asks("b", 81))) == ("never", (Shortfall(POOL, "tokens", 81, 80),))
    assert ledger.outcome(asks("bulk", 81, LENT)) == "granted", "of what is lent it may be"
    assert short(ledger.one(asks("own", 101, OWN))) == ("never", (Shortfall(POOL, "tokens", 101, 100),))


def case_B11_a_reload_changes_what_is_kept_and_forgets_nothing_held(opened: Opened) -> None:
    ledger = opened_with_reserve(opened)
    ledger.ask(asks("own", 10, OWN), asks("a", 80))
    ledger.ask(SetLimits("policy-2", 2, LIMITS, (Floor(OWN, "tokens", 40, POOL, LENT),)))
    assert opened.check() == []
    assert short(ledger.one(asks("b", 1))) == ("refused", (Shortfall(POOL, "tokens", 91, 70),)), "it drains"
    ledger.ask(SetLimits("policy-3", 3, LIMITS))
    assert ledger.outcome(asks("b", 10)) == "granted"
    assert opened.check() == []


def case_B11_a_restart_keeps_it(opened: Opened) -> None:
    """What is charged is charged again, to the reserve too, before anybody has said what the limits are."""
    ledger = opened_with_reserve(opened)
    ledger.ask(asks("own", 10, OWN), asks("a", 70))
    ledger.store = opened.reopen()
    ledger.ask(Heartbeat(SECOND), SetLimits("policy-1", 1, LIMITS, FLOORS))
    assert opened.check() == []
    assert ledger.outcome(asks("b", 11, owner=SECOND)) == "refused"
    assert ledger.outcome(asks("b", 10, owner=SECOND)) == "granted"
    assert ledger.outcome(asks("own-2", 10, OWN, owner=SECOND)) == "granted"


RESERVE_CASES: tuple[Callable[[Opened], None], ...] = (
    case_B11_what_is_reserved_is_held_by_nobody_else,
    case_B11_sequences_are_kept_as_tokens_are,
    case_B11_beyond_its_reserve_a_tenant_is_anybody,
    case_B11_the_unused_part_is_lent_and_costs_nobody_else_anything,
    case_B11_what_comes_free_is_the_owners_before_anybody_elses,
    case_B11_inside_its_reserve_nobody_has_a_turn_before_it,
    case_B11_growth_keeps_to_it,
    case_B11_more_than_others_leave_is_never_to_be_had,
    case_B11_a_reload_changes_what_is_kept_and_forgets_nothing_held,
    case_B11_a_restart_keeps_it,
)
