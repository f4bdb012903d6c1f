"""Budgets held for a series of calls (B14): what is held, what its calls take of it, and that it comes back once."""

from __future__ import annotations

from collections.abc import Callable

from headworks.core.book_sessions import SESSIONS_MAX
from headworks.core.commands import (
    Answer,
    CloseSession,
    Grow,
    Heartbeat,
    Opening,
    Reassert,
    Reserve,
    Shortfall,
    Start,
    Stop,
    TellSession,
)
from headworks.core.types import Charge, Owner, SessionRecord
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, RESTARTED, SECOND, Ledger, Opened, reserve, used

AGENT = "session:pool/acme/key/1"
LIMITS = {"pool:pool": 200_000, "tenant:acme": 100_000, "sessions:pool": 60_000, "replica:pool/0": 200_000}
IDLE_MS = 60_000
HOUR_MS = 3_600_000


def opening(
    tokens: int,
    session: str = AGENT,
    *,
    owner: Owner = FIRST,
    lasts_ms: int = HOUR_MS,
    name: str = "opens",
    tenant: str = "acme",
) -> Reserve:
    """A session of so many tokens for the tenant."""
    charges = tuple(Charge(scope, "tokens", tokens) for scope in (f"tenant:{tenant}", "pool:pool", "sessions:pool"))
    asked = reserve(f"{name} {session}", tokens, owner=owner, charges=charges, tenant=tenant)
    asked.session, asked.opens = session, Opening(lasts_ms, IDLE_MS)
    return asked


def inside(name: str, tokens: int, session: str = AGENT, *, owner: Owner = FIRST) -> Reserve:
    """One call of it."""
    plain = reserve(name, tokens, owner=owner)
    parts = (Charge(session, "tokens", tokens), Charge("sessions:pool", "tokens", tokens))
    asked = reserve(name, 0, owner=owner, charges=(*parts, *map(Charge._make, plain.charges)))
    asked.session = session
    return asked


def opened_with(opened: Opened, *owners: Owner) -> Ledger:
    ledger = Ledger(opened)
    ledger.open(LIMITS, *owners or (FIRST,))
    return ledger


def all_held(ledger: Ledger, owner: Owner = FIRST) -> list[int]:
    """What stands in each scope."""
    return [ledger.held(scope, owner) for scope in LIMITS]


def told(answer: Answer) -> tuple[int, int, int, int, int, str]:
    """Of the one session it tells: tokens, spent, live, unspent, returned, ended."""
    (one,) = answer.sessions
    return one.tokens, one.spent_tokens, one.live_tokens, one.unspent_tokens, one.returned_tokens, one.ended


def open_now(ledger: Ledger, owner: Owner = FIRST) -> list[SessionRecord]:
    return list(ledger.one(Heartbeat(owner)).sessions)


def case_B14_twelve_calls_charge_nothing_more_and_the_rest_comes_back_once(opened: Opened) -> None:
    """64,000 against tenant and pool, twelve calls of 5,000 that use 4,000: 16,000 come back at the close, and not again."""
    ledger = Ledger(opened)
    ledger.open({**LIMITS, "sessions:pool": 64_000})
    assert told(ledger.one(opening(64_000))) == (64_000, 0, 0, 64_000, 0, "")
    assert all_held(ledger) == [64_000, 64_000, 64_000, 0]
    for number in range(12):
        spent = 4_000 * number
        assert ledger.outcome(inside(f"call-{number}", 5_000)) == "granted"
        assert all_held(ledger) == [64_000 - spent] * 3 + [5_000]
        ledger.ask(Start(f"call-{number}", FIRST), Stop(f"call-{number}", FIRST, "E1", "completed", used(4_000)))
        assert all_held(ledger) == [60_000 - spent] * 3 + [0]
        assert opened.check() == []
    closed = ledger.one(CloseSession(AGENT))
    assert (closed.outcome, told(closed)) == ("ok", (64_000, 48_000, 0, 0, 16_000, "closed"))
    assert all_held(ledger) == [0, 0, 0, 0]
    again = ledger.one(CloseSession(AGENT))
    assert (again.outcome, told(again)) == ("recorded", told(closed))
    assert all_held(ledger) == [0, 0, 0, 0]
    assert opened.check() == []


def case_B14_calls_in_flight_hold_no_more_than_what_remains(opened: Opened) -> None:
    """Of 10,000: 6,000 run, 4,001 wait for them, 10,001 never fit; after 5,000 were used it is 5,000 that remain."""
    ledger = opened_with(opened)
    ledger.ask(opening(10_000), inside("a", 6_000))
    waits = ledger.one(inside("b", 4_001))
    assert (waits.outcome, waits.shortfalls) == ("refused", (Shortfall(AGENT, "tokens", 10_001, 10_000),))
    never = ledger.one(inside("c", 10_001))
    assert (never.outcome, never.shortfalls) == ("never", (Shortfall(AGENT, "tokens", 16_001, 10_000),))
    assert ledger.outcome(inside("d", 4_000)) == "granted"
    ledger.ask(Stop("a", FIRST, "E1", "completed", used(5_000)))
    never = ledger.one(inside("c", 5_001))
    assert (never.outcome, never.shortfalls) == ("never", (Shortfall(AGENT, "tokens", 9_001, 5_000),))
    assert ledger.outcome(inside("e", 1_000)) == "granted"
    assert all_held(ledger) == [5_000, 5_000, 5_000, 5_000]
    assert opened.check() == []


def case_B14_a_flood_does_not_reach_what_a_session_holds(opened: Opened) -> None:
    """Pool and tenant are full up to the last token of it: its call runs all the same, another of its tenant does not."""
    ledger = opened_with(opened)
    ledger.ask(opening(20_000), reserve("own", 80_000), reserve("flood", 100_000, tenant="beta"))
    assert ledger.outcome(reserve("more", 1, tenant="beta")) == "refused"
    assert ledger.outcome(inside("call", 20_000)) == "granted"
    assert ledger.outcome(inside("next", 1)) == "refused"
    ledger.ask(Stop("call", FIRST, "E1", "completed", used(19_000)))
    assert ledger.held("pool:pool") == 181_000
    assert ledger.outcome(inside("next", 1_000)) == "granted"
    assert opened.check() == []


def case_B14_all_sessions_together_keep_within_their_part_of_the_pool(opened: Opened) -> None:
    """60,000 for all: 40,000 and 20,000, one more token waits; what is spent makes room; more than all is never given."""
    ledger = opened_with(opened)
    assert ledger.outcome(opening(40_000)) == "opened"
    assert ledger.outcome(opening(20_000, "session:pool/acme/key/2")) == "opened"
    third = opening(1_000, "session:pool/acme/key/3")
    full = ledger.one(third)
    assert (full.outcome, full.shortfalls) == ("refused", (Shortfall("sessions:pool", "tokens", 61_000, 60_000),))
    ledger.ask(inside("call", 5_000), Stop("call", FIRST, "E1", "completed", used(1_000)))
    assert ledger.outcome(third) == "opened"
    never = ledger.one(opening(60_001, "session:pool/acme/key/4"))
    assert (never.outcome, never.shortfalls) == ("never", (Shortfall("sessions:pool", "tokens", 60_001, 60_000),))
    assert opened.check() == []


def case_B14_asked_twice_it_is_opened_once_and_not_again_after_its_end(opened: Opened) -> None:
    """The answer was lost: the same is asked again, and charged once. After the close it is dead, and so are its calls."""
    ledger = opened_with(opened)
    assert told(ledger.one(opening(10_000))) == told(ledger.one(opening(10_000)))
    assert all_held(ledger) == [10_000, 10_000, 10_000, 0]
    assert (ledger.outcome(inside("a", 1_000)), ledger.outcome(inside("a", 1_000))) == ("granted", "recorded")
    assert all_held(ledger) == [10_000, 10_000, 10_000, 1_000]
    ledger.ask(CloseSession(AGENT))
    assert ledger.outcome(opening(10_000)) == "dead"
    never = ledger.one(inside("b", 1))
    assert (never.outcome, never.shortfalls) == ("never", (Shortfall(AGENT, "tokens", 1, 0),))
    assert ledger.outcome(CloseSession("session:pool/acme/key/none")) == "refused"
    assert ledger.outcome(inside("c", 1, "session:pool/beta/key/1")) == "never", "another tenant's name for it names nothing"
    assert all_held(ledger) == [1_000, 1_000, 1_000, 1_000]
    assert opened.check() == []


def case_B14_what_runs_at_the_close_goes_on_and_comes_back_by_itself(opened: Opened) -> None:
    """Closed over a call of 4,000 that then uses 1,000: 6,000 come back at the close and 4,000 at its end."""
    ledger = opened_with(opened)
    ledger.ask(opening(10_000), inside("a", 4_000))
    assert told(ledger.one(CloseSession(AGENT))) == (10_000, 0, 4_000, 0, 6_000, "closed")
    assert all_held(ledger) == [4_000, 4_000, 4_000, 4_000]
    assert ledger.outcome(Grow("a", FIRST, 1, _grown(500))) == "granted", "as any other: of what is free"
    assert all_held(ledger) == [4_500, 4_500, 4_500, 4_500]
    ledger.ask(Stop("a", FIRST, "E1", "completed", used(1_000)))
    assert all_held(ledger) == [0, 0, 0, 0]
    assert opened.check() == []


def _grown(tokens: int) -> tuple[Charge, ...]:
    scopes = (AGENT, "sessions:pool", "tenant:acme", "pool:pool", "replica:pool/0")
    return tuple(Charge(scope, "tokens", tokens) for scope in scopes)


def case_B14_growth_inside_comes_out_of_the_session(opened: Opened) -> None:
    """4,000 of 5,000, then 600 more; 500 beyond what is left are refused; the sum does not change."""
    ledger = opened_with(opened)
    ledger.ask(opening(5_000), inside("a", 4_000), Start("a", FIRST))
    assert ledger.outcome(Grow("a", FIRST, 1, _grown(600))) == "granted"
    refused = ledger.one(Grow("a", FIRST, 2, _grown(500)))
    assert (refused.outcome, refused.shortfalls) == ("refused", (Shortfall(AGENT, "tokens", 5_100, 5_000),))
    assert all_held(ledger) == [5_000, 5_000, 5_000, 4_600]
    ledger.ask(Stop("a", FIRST, "E1", "completed", used(4_600)))
    assert all_held(ledger) == [400, 400, 400, 0]
    assert opened.check() == []


def case_B14_never_run_is_not_spent_and_unknown_use_is(opened: Opened) -> None:
    """E0 gives everything back to the session; where nobody can say what was used, all that was reserved is spent."""
    ledger = opened_with(opened)
    ledger.ask(opening(10_000), inside("a", 3_000), Stop("a", FIRST, "E0", "failed", None))
    assert [one.spent_tokens for one in open_now(ledger)] == [0]
    ledger.ask(inside("b", 3_000), Start("b", FIRST), Stop("b", FIRST, "E3a", "cancelled", None))
    assert [(one.spent_tokens, one.unspent_tokens) for one in open_now(ledger)] == [(3_000, 7_000)]
    ledger.ask(inside("c", 2_000), Stop("c", FIRST, "E1", "completed", used(2_500)))
    assert [(one.spent_tokens, one.unspent_tokens) for one in open_now(ledger)] == [(5_500, 4_500)]
    assert all_held(ledger) == [4_500, 4_500, 4_500, 0]
    assert opened.check() == []


def case_B14_used_up_it_ends_by_itself(opened: Opened) -> None:
    """The last token is spent: nothing is held, nothing comes back, and no call begins any more."""
    ledger = opened_with(opened)
    ledger.ask(opening(3_000), inside("a", 3_000), Stop("a", FIRST, "E1", "completed", used(9_000)))
    assert all_held(ledger) == [0, 0, 0, 0]
    assert ledger.outcome(inside("b", 1)) == "never"
    assert told(ledger.one(CloseSession(AGENT))) == (3_000, 3_000, 0, 0, 0, "exhausted")


def case_B14_idle_for_its_time_it_is_closed_but_not_while_something_runs(opened: Opened) -> None:
    """60 s without a call end it; a call that runs for longer does not, and its end begins the time anew."""
    ledger = opened_with(opened)
    ledger.ask(opening(10_000), inside("a", 4_000), Start("a", FIRST))
    ledger.advance(2 * IDLE_MS + 500, FIRST)
    assert [one.unspent_tokens for one in open_now(ledger)] == [6_000]
    ledger.ask(Stop("a", FIRST, "E1", "completed", used(1_000)))
    ledger.advance(IDLE_MS - 1, FIRST)
    assert [one.unspent_tokens for one in open_now(ledger)] == [9_000]
    ledger.advance(1, FIRST)
    assert open_now(ledger) == []
    assert all_held(ledger) == [0, 0, 0, 0]
    assert told(ledger.one(CloseSession(AGENT))) == (10_000, 1_000, 0, 0, 9_000, "idle")
    ledger.advance(4 * LEASE_MS + 1_000, FIRST)
    assert ledger.outcome(CloseSession(AGENT)) == "refused", "and forgotten"
    assert opened.check() == []


def case_B14_over_at_its_deadline_whatever_runs(opened: Opened) -> None:
    """A second is a second: what runs then goes on, what is left comes back."""
    ledger = opened_with(opened)
    ledger.ask(opening(10_000, lasts_ms=1_000), inside("a", 4_000))
    ledger.advance(999, FIRST)
    assert [one.left_ms for one in open_now(ledger)] == [1]
    ledger.advance(1, FIRST)
    assert open_now(ledger) == []
    assert all_held(ledger) == [4_000, 4_000, 4_000, 4_000]
    assert told(ledger.one(CloseSession(AGENT))) == (10_000, 0, 4_000, 0, 6_000, "deadline")


def case_B14_belongs_to_no_gateway(opened: Opened) -> None:
    """The one that opened it dies over a call: another uses and closes it; the call is charged until there is evidence."""
    ledger = opened_with(opened, FIRST, SECOND)
    ledger.ask(opening(10_000), inside("a", 4_000), Start("a", FIRST))
    ledger.advance(2 * LEASE_MS, SECOND)
    assert [one.unspent_tokens for one in open_now(ledger, SECOND)] == [6_000]
    assert ledger.outcome(inside("b", 5_000, owner=SECOND)) == "granted"
    ledger.ask(Stop("b", SECOND, "E1", "completed", used(5_000)))
    assert all_held(ledger, SECOND) == [5_000, 5_000, 5_000, 4_000]
    assert told(ledger.one(CloseSession(AGENT))) == (10_000, 5_000, 4_000, 0, 1_000, "closed")
    ledger.ask(Stop("a", SECOND, "E3b", "cancelled", None))
    assert all_held(ledger, SECOND) == [0, 0, 0, 0]
    assert opened.check() == []


def case_B14_a_kill_forgets_nothing_of_it_and_the_rest_comes_back_once(opened: Opened) -> None:
    """Killed between two calls, over a third, and after the close: the sums are the same before and after each time."""
    ledger = opened_with(opened)
    ledger.ask(opening(10_000), inside("a", 4_000), Stop("a", FIRST, "E1", "completed", used(3_000)))
    ledger.ask(inside("b", 2_000), Start("b", FIRST))
    ledger.store = opened.reopen()
    ledger.open(LIMITS, RESTARTED)
    assert all_held(ledger, RESTARTED) == [7_000, 7_000, 7_000, 2_000]
    assert [(one.spent_tokens, one.live_tokens, one.unspent_tokens) for one in open_now(ledger, RESTARTED)] == [
        (3_000, 2_000, 5_000)
    ]
    ledger.ask(Stop("b", RESTARTED, "E3b", "cancelled", used(500)))
    assert ledger.outcome(inside("c", 6_500, owner=RESTARTED)) == "granted"
    ledger.ask(Stop("c", RESTARTED, "E1", "completed", used(6_000)))
    assert told(ledger.one(CloseSession(AGENT))) == (10_000, 9_500, 0, 0, 500, "closed")
    assert open_now(ledger, RESTARTED) == []  # an end may ride with the next heartbeat: until then a killed process forgets it
    ledger.store = opened.reopen()
    ledger.open(LIMITS, RESTARTED)
    assert all_held(ledger, RESTARTED) == [0, 0, 0, 0]
    assert ledger.one(CloseSession(AGENT)).outcome == "recorded"
    assert all_held(ledger, RESTARTED) == [0, 0, 0, 0]
    assert opened.check() == []


def case_B14_an_empty_store_is_told_it_again_before_or_after_its_calls(opened: Opened) -> None:
    """Whoever knew it tells it, once or twice, and its running call: held is what was, in either order."""
    ledger = Ledger(opened)
    for session_first in (True, False):
        ledger.store = opened.fresh()
        ledger.open(LIMITS)
        ledger.ask(opening(10_000), inside("a", 4_000), Stop("a", FIRST, "E1", "completed", used(3_000)))
        ledger.ask(inside("b", 2_000), Start("b", FIRST))
        (session,) = open_now(ledger)
        record = ledger.records(FIRST)["b"]
        ledger.store = opened.fresh()
        ledger.open(LIMITS)
        known, runs = TellSession(session), Reassert(record)
        ledger.ask(*((known, runs, known) if session_first else (runs, known, known)))
        assert all_held(ledger) == [7_000, 7_000, 7_000, 2_000], session_first
        assert opened.check() == []
        ledger.ask(Stop("b", FIRST, "E1", "completed", used(1_000)))
        assert told(ledger.one(CloseSession(AGENT))) == (10_000, 4_000, 0, 0, 6_000, "closed")
        assert ledger.outcome(known) == "recorded", "and not opened again"
        assert all_held(ledger) == [0, 0, 0, 0]


def case_B14_limits_that_fall_under_what_is_held_keep_no_call_back(opened: Opened) -> None:
    """Less memory is known, or a reload says less: a call adds nothing to tenant and pool. Its engine's limit stands."""
    ledger = opened_with(opened)
    ledger.ask(opening(10_000), reserve("other", 40_000))
    ledger.open({"pool:pool": 45_000, "tenant:acme": 5_000, "sessions:pool": 9_000, "replica:pool/0": 45_000})
    assert ledger.outcome(inside("a", 5_000)) == "granted"
    assert all_held(ledger) == [50_000, 50_000, 10_000, 45_000]
    refused = ledger.one(inside("b", 1_000))
    assert (refused.outcome, [short.scope for short in refused.shortfalls]) == ("refused", ["replica:pool/0"])
    ledger.ask(Stop("other", FIRST, "E1", "completed", used(40_000)), Start("a", FIRST))
    assert ledger.outcome(inside("c", 5_000)) == "granted"
    assert all_held(ledger) == [10_000] * 4
    assert opened.check() == []


def case_B14_a_call_that_is_sent_again_is_spent_once(opened: Opened) -> None:
    """Its engine was lost before a byte came, and is proved gone: nothing is spent until the second attempt has run."""
    ledger = opened_with(opened)
    ledger.ask(opening(10_000), inside("first try", 6_000), Stop("first try", FIRST, "E3b", "failed", None))
    assert [(one.spent_tokens, one.unspent_tokens) for one in open_now(ledger)] == [(0, 10_000)]
    assert ledger.outcome(inside("second try", 6_000)) == "granted"
    ledger.ask(Start("second try", FIRST), Stop("second try", FIRST, "E3b", "failed", None))
    assert [(one.spent_tokens, one.unspent_tokens) for one in open_now(ledger)] == [(6_000, 4_000)]
    assert all_held(ledger) == [4_000, 4_000, 4_000, 0]
    assert opened.check() == []


def case_B14_there_are_only_so_many_and_no_tenant_has_all_of_them(opened: Opened) -> None:
    """Each costs a line in every heartbeat's answer. A tenant gets half of what others leave: the next finds room."""
    ledger = opened_with(opened)
    open_count = 0
    for number, room in enumerate((512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1)):
        tenant = "acme" if number == 0 else f"tenant-{number}"
        names = [f"session:pool/{tenant}/key/{one}" for one in range(room + 1)]
        answers = ledger.ask(*(opening(1, name, tenant=tenant) for name in names))
        assert [answer.outcome for answer in answers] == ["opened"] * room + ["refused"], tenant
        assert answers[-1].shortfalls == (Shortfall("sessions:pool", "sessions", room + 1, room),)
        open_count += room
    assert len(open_now(ledger)) == open_count == SESSIONS_MAX
    late = ledger.one(opening(1, "session:pool/late/key/1", tenant="late"))
    assert (late.outcome, late.shortfalls) == ("refused", (Shortfall("sessions:pool", "sessions", 1, 0),))
    assert opened.check() == []


SESSION_CASES: tuple[Callable[[Opened], None], ...] = (
    case_B14_twelve_calls_charge_nothing_more_and_the_rest_comes_back_once,
    case_B14_calls_in_flight_hold_no_more_than_what_remains,
    case_B14_a_flood_does_not_reach_what_a_session_holds,
    case_B14_all_sessions_together_keep_within_their_part_of_the_pool,
    case_B14_asked_twice_it_is_opened_once_and_not_again_after_its_end,
    case_B14_what_runs_at_the_close_goes_on_and_comes_back_by_itself,
    case_B14_growth_inside_comes_out_of_the_session,
    case_B14_never_run_is_not_spent_and_unknown_use_is,
    case_B14_used_up_it_ends_by_itself,
    case_B14_idle_for_its_time_it_is_closed_but_not_while_something_runs,
    case_B14_over_at_its_deadline_whatever_runs,
    case_B14_belongs_to_no_gateway,
    case_B14_a_kill_forgets_nothing_of_it_and_the_rest_comes_back_once,
    case_B14_an_empty_store_is_told_it_again_before_or_after_its_calls,
    case_B14_limits_that_fall_under_what_is_held_keep_no_call_back,
    case_B14_a_call_that_is_sent_again_is_spent_once,
    case_B14_there_are_only_so_many_and_no_tenant_has_all_of_them,
)
