"""Turns (D1, D2): the tags and the marks."""

from __future__ import annotations

import json
from dataclasses import replace

from headworks.core.commands import Heartbeat, SetLimits, Stop, Unmark
from headworks.core.fair import Turns
from headworks.core.types import Charge
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, SECOND, reserve, used
from tests.core.books import Asked

POOL = (Charge("pool:pool", "tokens", 1_000),)


def test_D1_a_flow_that_has_had_more_yields_to_one_that_waits() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    assert asked.outcome(reserve("a1", 600, tenant="a")) == "granted"
    assert asked.outcome(reserve("b1", 600, tenant="b", owner=SECOND)) == "refused"
    asked.ask(Stop("a1", FIRST, "E1", "completed", used(600)))
    assert asked.outcome(reserve("a2", 600, tenant="a")) == "yield"
    assert asked.held() == 0
    assert asked.outcome(reserve("b1", 600, tenant="b", owner=SECOND)) == "granted"
    asked.ask(Stop("b1", SECOND, "E1", "completed", used(600)))
    assert asked.outcome(reserve("a2", 600, tenant="a")) == "granted"


def test_D1_classes_first_then_tenants_inside_a_class() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("i1", 900, tenant="a"))
    asked.ask(reserve("k1", 400, tenant="b", service_class="bulk", owner=SECOND))
    asked.ask(Stop("i1", FIRST, "E1", "completed", used(900)))
    assert asked.outcome(reserve("i2", 100, tenant="new")) == "yield", "its class has had its turn"


def test_a_mark_lives_fifty_milliseconds() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("a1", 600, tenant="a"), reserve("b1", 600, tenant="b", owner=SECOND))
    asked.ask(Stop("a1", FIRST, "E1", "completed", used(600)))
    asked.now_ms = 19
    assert asked.outcome(reserve("a2", 600, tenant="a")) == "yield"
    asked.now_ms = 50
    assert asked.outcome(reserve("a2", 600, tenant="a")) == "granted"


def test_D1_a_flow_whose_gateway_cannot_ask_for_a_while_keeps_its_tag_for_a_second() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("a1", 600, tenant="a"), reserve("b1", 600, tenant="b", owner=SECOND))
    asked.ask(Stop("a1", FIRST, "E1", "completed", used(600)))
    asked.now_ms = 50
    asked.ask(reserve("a2", 600, tenant="a"), Stop("a2", FIRST, "E1", "completed", used(600)), reserve("a3", 100, tenant="a"))
    level = asked.book._turns["pool"].tenants["interactive"]
    assert (level.virtual, level.start("b")) == (1_200.0, 0.0)
    asked.now_ms = 1_049
    asked.ask(Stop("a3", FIRST, "E1", "completed", used(100)))
    assert asked.outcome(reserve("b1", 600, tenant="b", owner=SECOND)) == "granted"
    assert level.finish["b"] == 600.0


def test_D1_after_that_second_it_begins_again_like_one_that_was_idle() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("a1", 600, tenant="a"), reserve("b1", 600, tenant="b", owner=SECOND))
    asked.ask(Stop("a1", FIRST, "E1", "completed", used(600)))
    asked.now_ms = 50
    asked.ask(reserve("a2", 600, tenant="a"), Stop("a2", FIRST, "E1", "completed", used(600)))
    asked.now_ms = 1_050
    asked.ask(reserve("b1", 300, tenant="b", owner=SECOND))
    assert asked.book._turns["pool"].tenants["interactive"].finish["b"] == 600.0 + 300.0


def test_a_woken_flow_that_does_not_ask_in_twenty_milliseconds_loses_its_turn() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.now_ms = 10
    asked.ask(reserve("a1", 600, tenant="a"), reserve("b1", 600, tenant="b", owner=SECOND))
    assert asked.book.take_wakes() == []
    asked.ask(Stop("a1", FIRST, "E1", "completed", used(600)))
    assert asked.book.take_wakes() == [(SECOND, "pool", ("interactive", "b"))]
    asked.now_ms = 30
    assert asked.outcome(reserve("a2", 600, tenant="a")) == "granted"


def test_D1_whoever_has_to_yield_is_told_to_whom_or_has_the_other_gateway_woken_once() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.now_ms = 10
    asked.ask(reserve("a1", 900, tenant="a"))
    asked.ask(reserve("b1", 400, tenant="b", owner=SECOND), reserve("c1", 400, tenant="c"))
    asked.ask(SetLimits("policy-2", 2, (Charge("pool:pool", "tokens", 2_000),)))  # room that nobody has been woken for
    yields = asked.one(reserve("a2", 100, tenant="a"))
    assert (yields.outcome, yields.goes_first) == ("yield", None)
    assert asked.book.take_wakes() == [(SECOND, "pool", ("interactive", "b"))]
    assert asked.outcome(reserve("a2", 100, tenant="a")) == "yield"
    assert asked.book.take_wakes() == []
    asked.ask(reserve("b1", 400, tenant="b", owner=SECOND))
    yields = asked.one(reserve("a2", 100, tenant="a"))
    assert (yields.outcome, yields.goes_first) == ("yield", ("interactive", "c"))
    assert asked.book.take_wakes() == []


def test_only_the_lowest_mark_that_fits_is_woken() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("a1", 600, tenant="a"), reserve("c1", 300, tenant="c"))
    asked.ask(reserve("big", 900, tenant="b", owner=SECOND), reserve("c2", 500, tenant="c"), reserve("a2", 200, tenant="a"))
    asked.ask(Stop("a1", FIRST, "E1", "completed", used(600)))
    assert asked.book.take_wakes() == [(FIRST, "pool", ("interactive", "c"))]


def test_a_grant_with_more_behind_it_keeps_its_mark() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("b1", 100, tenant="b", owner=SECOND, more=True))
    asked.ask(reserve("a1", 300, tenant="a"))
    assert asked.outcome(reserve("a2", 300, tenant="a")) == "yield"
    asked.ask(Unmark(("interactive", "b"), "pool", SECOND))
    assert asked.outcome(reserve("a2", 300, tenant="a")) == "granted"


def test_D1_estimates_are_trued_up_and_idleness_is_not_saved() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("a1", 100, tenant="a"), reserve("b1", 100, tenant="b", owner=SECOND))
    asked.ask(Stop("a1", FIRST, "E1", "completed", used(500)), Stop("b1", SECOND, "E1", "completed", used(20)))
    turns = asked.book._turns["pool"].tenants["interactive"]
    assert turns.finish == {"a": 500.0, "b": 20.0}
    asked.ask(reserve("c1", 10, tenant="c"), reserve("a2", 100, tenant="a"))
    assert turns.virtual == 500.0, "time follows the start tags of what is granted"
    asked.ask(Stop("c1", FIRST, "E0", "cancelled", None))
    assert turns.start("c") == 500.0, "an idle flow starts at virtual time"


def test_D1_what_never_ran_is_not_charged() -> None:
    asked = Asked(FIRST, limits=POOL)
    asked.ask(reserve("a1", 400, tenant="a"), Stop("a1", FIRST, "E0", "cancelled", None))
    assert asked.book._turns["pool"].tenants["interactive"].finish == {"a": 0.0}


def test_D1_a_correction_does_not_go_back_below_virtual_time() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("a1", 600, tenant="a"), *(reserve(f"b{n}", c, tenant="b", owner=SECOND) for n, c in ((1, 300), (2, 100))))
    asked.ask(reserve("a2", 500, tenant="a"), Stop("a1", FIRST, "E1", "completed", used(10)))
    level = asked.book._turns["pool"].tenants["interactive"]
    assert (level.virtual, level.finish) == (300.0, {"a": 300.0, "b": 400.0})


def test_slots_of_all_gateways_are_told_until_their_gateway_is_gone() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(replace(reserve("a1", 1), slots_tokens=700))
    assert asked.one(replace(reserve("b1", 1, owner=SECOND), slots_tokens=40)).slots_tokens == 740
    asked.advance(LEASE_MS, SECOND)
    assert asked.one(replace(reserve("b2", 1, owner=SECOND), slots_tokens=40)).slots_tokens == 40


def test_answers_count_what_waits_at_every_gateway() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("a1", 900, tenant="a"))
    asked.ask(reserve("a2", 900, tenant="a", waiting_tokens=4_000))
    answer = asked.one(reserve("b1", 700, tenant="b", owner=SECOND, waiting_tokens=700))
    assert answer.waiting_tokens == 6_300
    asked.now_ms = 50
    assert asked.one(reserve("b1", 700, tenant="b", owner=SECOND, waiting_tokens=700)).waiting_tokens == 1_400


def test_D2_a_large_head_is_passed_sixteen_times_and_then_saved_for() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    small = [f"s{number}" for number in range(40)]
    asked.ask(reserve("s-first", 100, tenant="small"))
    outcomes = []
    for name in small:
        asked.ask(reserve("large", 1_000, tenant="large", owner=SECOND))
        outcomes.append(asked.outcome(reserve(name, 100, tenant="small")))
        asked.ask(Stop(name, FIRST, "E1", "completed", used(100)))
    assert outcomes == ["granted"] * 16 + ["yield"] * 24
    asked.ask(Stop("s-first", FIRST, "E1", "completed", used(100)))
    assert asked.outcome(reserve("large", 1_000, tenant="large", owner=SECOND)) == "granted"


def test_D2_the_count_of_passes_starts_again_when_the_flow_has_caught_up() -> None:
    """Sixteen small pass, two large make up for it, and after the small ones' own turns sixteen may pass again."""
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("s0", 100, tenant="small", more=True))
    running, course = "s0", ""
    for number in range(1, 70):
        if asked.outcome(reserve(f"l{number}", 1_000, tenant="large", owner=SECOND, more=True)) == "granted":
            course += "L"
            asked.ask(Stop(f"l{number}", SECOND, "E1", "completed", used(1_000)))
        granted = asked.outcome(reserve(f"s{number}", 100, tenant="small", more=True)) == "granted"
        asked.ask(Stop(running, FIRST, "E1", "completed", used(100)))
        if granted:
            course, running = course + "s", f"s{number}"
    assert course.startswith("s" * 16 + "LL" + "s" * 19 + "LL" + "s" * 20 + "LL")


def test_D2_a_head_short_of_its_own_limit_is_passed_freely() -> None:
    asked = Asked(FIRST, SECOND, limits=(*POOL, Charge("tenant:large", "tokens", 500)))
    asked.ask(reserve("large-0", 400, tenant="large", owner=SECOND))
    for number in range(40):
        asked.ask(reserve("large-1", 400, tenant="large", owner=SECOND))
        assert asked.outcome(reserve(f"s{number}", 100, tenant="small")) == "granted"
        asked.ask(Stop(f"s{number}", FIRST, "E1", "completed", used(100)))


def test_one_flow_never_yields_to_itself() -> None:
    asked = Asked(FIRST, limits=POOL)
    outcomes = [asked.outcome(reserve(f"a{number}", 300, more=True)) for number in range(5)]
    assert outcomes == ["granted", "granted", "granted", "refused", "refused"]


def test_D1_with_a_thousand_flows_waiting_an_ask_looks_at_the_lowest_only() -> None:
    turns, looked = Turns(), 0
    weights = (1.0, 1.0)
    for number in range(1_000):
        flow = ("bulk", f"t{number:04}")
        turns.grant(flow, weights, 100 + number, (), 0)
        turns.leave_mark(flow, FIRST, POOL, 7, 0, granted=True)

    def lacking(charges: object) -> list[tuple[str, str]]:
        nonlocal looked
        looked += 1
        return []

    yields, (first,) = turns.must_yield(("bulk", "t0999"), FIRST, POOL, lacking, 1)
    assert (yields, first.flow) == (True, ("bulk", "t0000"))
    assert turns.must_yield(("bulk", "t0000"), FIRST, POOL, lacking, 1) == (False, [])
    woken = turns.wake(lacking, 1)
    assert woken is not None and woken.flow == ("bulk", "t0000")
    assert looked == 2
    assert turns.waiting_tokens(1) == 7_000
    assert turns.waiting_tokens(50) == 0 and not turns.marks


def test_D1_heads_short_of_their_own_limits_are_looked_past_only_so_often() -> None:
    turns, looked = Turns(), 0
    for number in range(1_000):
        turns.leave_mark(("bulk", f"t{number:04}"), FIRST, (Charge(f"tenant:t{number:04}", "tokens", 1),), 1, 0, granted=False)
    turns.grant(("bulk", "other"), (1.0, 1.0), 500, (), 0)

    def lacking(charges: object) -> list[tuple[str, str]]:
        nonlocal looked
        looked += 1
        return [("tenant:t", "tokens")]

    assert turns.must_yield(("bulk", "other"), SECOND, POOL, lacking, 1) == (False, [])
    assert turns.wake(lacking, 1) is None
    assert looked == 2 * 64


def test_marks_survive_a_snapshot_with_their_place_among_the_turns() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("a1", 600, tenant="a"), reserve("b1", 600, tenant="b", owner=SECOND, waiting_tokens=50))
    asked.ask(*(reserve(f"a{number}", 100, tenant="a") for number in (2, 3, 4)))  # past b, whose head is too large
    turns = asked.book._turns["pool"]
    assert turns.tenants["interactive"].virtual > turns.tenants["interactive"].finish["b"]
    again = Turns.restored(json.loads(json.dumps(turns.snapshot())))
    assert again.snapshot() == turns.snapshot()
    assert again.waiting_tokens(1) == turns.waiting_tokens(1) == 650
    yields, (first,) = again.must_yield(("interactive", "a"), FIRST, (), lambda charges: [], 1)
    assert (yields, first.flow) == (True, ("interactive", "b"))


def test_D1_forty_small_against_four_large_of_equal_total() -> None:
    """4,000 tokens each. At every moment both have had the same, up to one request of each and sixteen that passed."""
    asked = Asked(FIRST, SECOND, limits=POOL)
    waiting = {"small": [100] * 40, "large": [1_000] * 4}
    had, running, widest, number = {"small": 0, "large": 0}, [], 0, 0
    while waiting["small"] or waiting["large"]:
        granted = False
        for tenant, owner in (("small", FIRST), ("large", SECOND)):
            if waiting[tenant]:
                number += 1
                name, size = f"x{number}", waiting[tenant][0]
                if asked.outcome(reserve(name, size, tenant=tenant, owner=owner, more=len(waiting[tenant]) > 1)) == "granted":
                    had[tenant] += waiting[tenant].pop(0)
                    running.append((name, owner, size))
                    granted = True
                    if waiting["small"] and waiting["large"]:
                        widest = max(widest, abs(had["small"] - had["large"]))
        if not granted and running:
            name, owner, size = running.pop(0)
            asked.ask(Stop(name, owner, "E1", "completed", used(size)))
        asked.now_ms += 1
        asked.ask(Heartbeat(FIRST), Heartbeat(SECOND))
    assert had == {"small": 4_000, "large": 4_000}
    assert widest <= 100 + 1_000 + 16 * 100


def test_D1_a_flow_with_nothing_behind_its_last_grant_saves_no_turn_up_whenever_its_mark_was_fresh() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("b1", 1_000, tenant="b", owner=SECOND))
    assert asked.outcome(reserve("a1", 100, tenant="a")) == "refused"  # which leaves a mark
    asked.advance(60, FIRST, SECOND)  # longer than it is fresh, shorter than its flow keeps its tag
    asked.ask(Stop("b1", SECOND, "E1", "completed", None))
    assert asked.outcome(reserve("a1", 100, tenant="a")) == "granted"
    assert list(asked.book._turns["pool"].tenants["interactive"].in_turn()) == []
