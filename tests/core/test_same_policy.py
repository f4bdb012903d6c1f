"""Gateways of one policy come and go: none of them takes a limit away that it does not know yet, nor what a quota has used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headworks.core import events
from headworks.core.book import Book
from headworks.core.commands import Heartbeat, SetLimits
from headworks.core.effects import Run
from headworks.core.policy import QuotaPolicy
from headworks.core.types import Charge, Owner
from tests.core.driver import Bench, capacity, policy
from tests.core.test_gate_store import empty, standing, together

DAY = "quota:acme:day@"
FULL_TOKENS = 40_000
"""What the engine of `capacity()` holds."""
PATIENT: dict[str, Any] = {"ttft_slo_s": None, "wait_s_max": 20.0}
OWNER = Owner("g", "boot-1")


def told(version: str, number: int, **amounts: int) -> SetLimits:
    return SetLimits(version, number, tuple(Charge(f"pool:{name}", "tokens", amount) for name, amount in amounts.items()))


def limits(book: Book, *names: str) -> list[int | None]:
    return [book.limit(f"pool:{name}", "tokens") for name in names]


def newcomer(book: Book, beside: Bench, settings: Any, **more: Any) -> Bench:
    made = Bench(settings, book=book, boot="boot-new", **more)
    made.now_s = beside.now_s
    made.feed(events.StoreChanged("first"))
    return made


def test_A3_who_has_not_reached_an_engine_yet_takes_no_limit_away() -> None:
    book, settings = empty(), policy(interactive=PATIENT)
    one = standing(book, "boot-1", settings)
    assert [book.limit(scope, "tokens") for scope in ("pool:p", "replica:p/0")] == [FULL_TOKENS] * 2
    blind = newcomer(book, one, settings, capacities=())
    together(3.0, one, blind)
    assert [book.limit(scope, "tokens") for scope in ("pool:p", "replica:p/0")] == [FULL_TOKENS] * 2
    for _ in range(6):
        one.arrive(9_000)
    assert len(one.take(Run)) == 4, "36,000 of 40,000"


def test_A3_the_first_under_a_changed_file_takes_no_limit_away_that_it_does_not_know_yet() -> None:
    """Its file is newer, and so its word. What an engine holds that it has not reached is not for it to say."""
    book, settings = empty(), policy(interactive=PATIENT)
    one = standing(book, "boot-1", settings)
    changed = replace(policy(interactive=PATIENT), number=2, version="v2")
    blind = newcomer(book, one, changed, capacities=())
    together(3.0, one, blind)
    assert [book.limit(scope, "tokens") for scope in ("pool:p", "replica:p/0")] == [FULL_TOKENS] * 2
    for _ in range(6):
        one.arrive(9_000)
    assert len(one.take(Run)) == 4, "36,000 of 40,000"


def test_A3_a_pool_of_which_one_engine_is_not_known_is_not_told_smaller() -> None:
    book, settings = empty(), policy(interactive=PATIENT, replicas=2)
    both = (capacity("p/0"), capacity("p/1"))
    one = Bench(settings, book=book, boot="boot-1", capacities=both)
    one.feed(events.StoreChanged("first"))
    together(2.2, one)
    assert book.limit("pool:p", "tokens") == 2 * FULL_TOKENS
    half = newcomer(book, one, settings, capacities=both[:1])
    together(3.0, one, half)
    assert book.limit("pool:p", "tokens") == 2 * FULL_TOKENS


def test_A2_a_start_under_the_same_policy_gives_no_used_quota_back() -> None:
    book = empty()
    settings = policy(interactive=PATIENT, tenant={"quota": QuotaPolicy("day", tokens=10_000)})
    one = standing(book, "boot-1", settings)
    one.arrive(9_000)
    execution = one.execution()
    one.first_byte(execution)
    one.complete(execution, 8_999, 1)
    (used,) = [counter for counter in book.counters.all() if counter.scope.startswith("quota") and counter.committed]
    assert (used.limit, used.held) == (10_000, 9_000)
    two = newcomer(book, one, settings)
    together(2.2, one, two)
    assert (used.limit, used.held) == (10_000, 9_000)
    for bench in (one, two):
        bench.take(Run)
        bench.arrive(1_500)
        assert bench.take(Run) == [], "1,000 are left"


def test_A3_the_same_policy_is_taken_whatever_its_number() -> None:
    """A gateway that was started anew counts from its own clock; the limits it does not name stay."""
    book = empty()
    book.apply([Heartbeat(OWNER), told("v4", 4, p=1_000, q=500)], 0)
    (answer,) = book.apply([told("v4", 1, p=100)], 0)
    assert (answer.outcome, limits(book, "p", "q")) == ("ok", [100, 500])
    (answer,) = book.apply([told("v3", 3, p=7)], 0)
    assert (answer.outcome, limits(book, "p", "q")) == ("refused", [100, 500]), "its number is 4 all the same"
    (answer,) = book.apply([told("v5", 5, p=200)], 0)
    assert (answer.outcome, limits(book, "p", "q")) == ("ok", [200, None]), "another policy names all there is"


def test_A2_under_the_same_policy_periods_that_are_over_go_and_others_stay() -> None:
    book = empty()
    days = [f"{DAY}2026-11-{day}" for day in (28, 29, 30)]
    book.apply([SetLimits("v1", 1, tuple(Charge(day, "tokens", 100) for day in (*days, "quota:b:day@2026-11-28")))], 0)
    book.apply([SetLimits("v1", 1, (Charge(days[1], "tokens", 100),))], 0)
    assert [book.limit(day, "tokens") for day in days] == [None, 100, 100]
    assert book.limit("quota:b:day@2026-11-28", "tokens") == 100, "nobody of it has asked there"


def test_A2_who_is_reloaded_into_observing_is_held_up_by_no_limit() -> None:
    """As `build.policy` makes them of one file with another `server.mode`: the same version, a higher number."""
    settings = policy(interactive=PATIENT, tenant={"active_tokens_max": 1_000})
    one = standing(empty(), "boot-1", settings)
    one.arrive(900)
    assert len(one.take(Run)) == 1
    one.feed(events.PolicyChanged(replace(settings, observe=True, number=2)))
    one.arrive(900)
    assert len(one.take(Run)) == 1


def test_A3_a_limit_that_was_taken_out_is_lifted_where_an_engine_has_said_all_it_ever_will() -> None:
    """It does not say what its memory holds: that is known by then, and no reason to leave what stood there."""
    stated = policy(pool={"active_tokens_max": 500})
    one = Bench(stated, capacities=(capacity(kv_tokens=None),))
    assert [one.book.limit(scope, "tokens") for scope in ("pool:p", "sessions:p")] == [500, 150]
    one.feed(events.PolicyChanged(replace(policy(), number=2, version="v2")))
    assert [one.book.limit(scope, "tokens") for scope in ("pool:p", "sessions:p")] == [None, None]
    one.arrive(800)
    assert len(one.take(Run)) == 1
