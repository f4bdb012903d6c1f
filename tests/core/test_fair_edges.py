"""Moments of turns that are met seldom, each with its figures. Found by asking which change no test would notice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headworks.core.book_parts import Entry
from headworks.core.commands import (
    Grow,
    Start,
    Stop,
)
from headworks.core.fair import Mark
from headworks.core.level import Level
from headworks.core.types import Charge, RequestKey
from headworks.testing.suites.ledger_sessions import opening
from headworks.testing.suites.ledger_subject import FIRST, SECOND, reserve, used
from tests.core.books import Asked

KEY = RequestKey("acme", "order-1")


def entry(asked: Asked, name: str) -> Entry:
    return asked.book._entries[name]


def tag(asked: Asked, tenant: str = "acme") -> float:
    return asked.book._turns["pool"].tenants["interactive"].finish[tenant]


def test_D1_growth_moves_the_tag_by_plain_tokens_and_the_end_by_what_was_used_in_all() -> None:
    asked = Asked()
    asked.ask(reserve("x", 100), Start("x", FIRST))
    assert tag(asked) == 100.0
    more = (Charge("tenant:acme", "tokens", 20), Charge("pool:pool", "tokens", 32), Charge("pool:pool", "requests", 1))
    asked.ask(Grow("x", FIRST, 1, more))
    assert tag(asked) == 120.0, "the smallest of its tokens: memory is counted in whole blocks"
    asked.ask(Stop("x", FIRST, "E1", "completed", used(60)))
    assert tag(asked) == 60.0


def test_D1_weights_of_class_and_tenant_are_told_apart_when_it_is_corrected() -> None:
    asked = Asked()
    asked.ask(replace(reserve("x", 120), weights=(4.0, 2.0)), Stop("x", FIRST, "E1", "completed", used(40)))
    turns = asked.book._turns["pool"]
    assert (turns.classes.finish["interactive"], tag(asked)) == (10.0, 20.0)


def test_D1_what_was_never_sent_costs_no_turn_and_what_nobody_counted_all_of_it() -> None:
    asked = Asked()
    asked.ask(reserve("unsent", 100), Stop("unsent", FIRST, "E0", "cancelled", None))
    assert tag(asked) == 0.0
    asked.ask(reserve("unknown", 100), Start("unknown", FIRST), Stop("unknown", FIRST, "E3a", "failed", None))
    assert tag(asked) == 100.0


def test_D1_of_one_flow_at_two_gateways_who_has_waited_longer_is_woken() -> None:
    asked = Asked(FIRST, SECOND)
    asked.ask(reserve("held", 900))
    asked.ask(reserve("a", 200), reserve("b", 200, owner=SECOND))
    asked.ask(replace(reserve("small", 50), more=True))
    assert asked.state("small") == "RESERVED"
    asked.ask(Stop("held", FIRST, "E1", "completed", None))
    assert [(wake.owner, wake.flow) for wake in asked.book.take_wakes()] == [(SECOND, ("interactive", "acme"))]
    asked = Asked(FIRST, SECOND)
    asked.ask(reserve("held", 900), reserve("a", 200), reserve("b", 200, owner=SECOND), reserve("a", 200))
    asked.ask(Stop("held", FIRST, "E1", "completed", None))
    assert [wake.owner for wake in asked.book.take_wakes()] == [FIRST], "asking again is not being served"


def test_D1_who_opened_a_session_lets_its_flows_other_gateway_go_first() -> None:
    asked = Asked(FIRST, SECOND)
    asked.ask(reserve("held", 900), reserve("a", 200), reserve("b", 200, owner=SECOND))
    assert asked.outcome(replace(opening(50, "session:s"), more=True)) == "opened"
    asked.ask(Stop("held", FIRST, "E1", "completed", None))
    assert [wake.owner for wake in asked.book.take_wakes()] == [SECOND]


def test_D2_a_head_that_lacks_something_the_asker_does_not_take_is_passed_freely() -> None:
    limits = (Charge("pool:pool", "tokens", 100), Charge("tenant:beta", "tokens", 50))
    asked = Asked(FIRST, SECOND, limits=limits)
    asked.ask(reserve("held", 60))
    asked.ask(reserve("beta-held", 20, owner=SECOND, tenant="beta"))
    for number in range(20):
        asked.ask(reserve("large", 45, owner=SECOND, tenant="beta"))
        assert asked.outcome(reserve(f"x{number}", 1)) == "granted", "it lacks its tenant's limit too"


def test_D1_a_mark_is_over_after_fifty_milliseconds_whenever_somebody_looked_before() -> None:
    asked = Asked(FIRST, SECOND)
    asked.ask(reserve("held", 1_000))
    turns = asked.book._turns["pool"]
    asked.ask(reserve("a", 200))
    looks = [(at_ms, turns.waiting_tokens(at_ms)) for at_ms in (0, 30, 49, 50, 51)]
    assert looks == [(0, 200), (30, 200), (49, 200), (50, 0), (51, 0)]
    assert len(turns._dormant) == 1
    for at_ms, left in ((1_049, 1), (1_050, 0)):
        turns._expire(at_ms)
        assert len(turns._dormant) == left


def test_D1_a_flow_that_has_had_its_turn_exactly_has_caught_up() -> None:
    asked = Asked(FIRST, SECOND, limits=(Charge("pool:pool", "tokens", 100),))
    asked.ask(reserve("held", 60), reserve("large", 90, owner=SECOND, tenant="beta"))
    asked.ask(reserve("x", 1))
    (mark,) = asked.book._turns["pool"].marks.values()
    assert (mark.owner, mark.passed) == (SECOND, 1)
    level = asked.book._turns["pool"].tenants["interactive"]
    assert (level.virtual, level.caught_up("beta")) == (60.0, False)
    level.finish["beta"] = 60.0
    assert level.caught_up("beta") is True


def test_D1_growth_in_no_tokens_takes_no_turn() -> None:
    asked = Asked()
    asked.ask(reserve("x", 100), Grow("x", FIRST, 1, (Charge("pool:pool", "requests", 1),)))
    assert tag(asked) == 100.0


@pytest.mark.parametrize(("first", "outcome"), [("large", "yield"), ("small", "granted")])
def test_D2_of_two_with_the_same_tag_the_older_one_is_saved_for(first: str, outcome: str) -> None:
    """Tenants that come for the first time have no higher tag than who waits, and no lower one."""
    asked = Asked(FIRST, SECOND, limits=(Charge("pool:pool", "tokens", 100),))
    asked.ask(reserve("held", 60))
    asks = {"large": reserve("large", 90, owner=SECOND, tenant="zeta"), "small": reserve("small", 41, tenant="gamma")}
    for name in (first, *(asks.keys() - {first})):
        assert asked.outcome(asks[name]) == "refused"
    for number in range(16):
        asked.now_ms += 1
        asked.ask(*asks.values())
        assert asked.outcome(reserve(f"x{number}", 1, tenant=f"t{number}")) == "granted"
    asked.ask(*(Stop(f"x{number}", FIRST, "E1", "completed", None) for number in range(16)))
    assert [mark.passed for mark in asked.book._turns["pool"].marks.values() if mark.flow[1] == "zeta"] == [16]
    assert asked.outcome(reserve("small", 40, tenant="gamma")) == outcome


def test_D2_who_has_no_mark_came_after_all_who_have_one() -> None:
    asked = Asked(FIRST, SECOND, limits=(Charge("pool:pool", "tokens", 100),))
    asked.ask(reserve("held", 60), reserve("large", 90, owner=SECOND, tenant="beta"))
    outcomes = [asked.outcome(reserve(f"x{number}", 1, tenant=f"t{number}")) for number in range(17)]
    assert outcomes == ["granted"] * 16 + ["yield"]


def test_D1_a_mark_counts_up_to_its_time_and_one_woken_for_twenty_milliseconds() -> None:
    mark = Mark(("interactive", "acme"), FIRST, 1)
    mark.expires_ms = 50
    assert [mark.counts(at_ms) for at_ms in (49, 50)] == [True, False]
    mark.woken_ms = 10
    assert [mark.counts(at_ms) for at_ms in (29, 30)] == [True, False]


def test_D1_who_is_not_known_has_caught_up_only_where_time_stands_at_its_beginning() -> None:
    level = Level()
    assert level.caught_up("nobody") is True
    level.virtual = 0.5
    assert level.caught_up("nobody") is False
