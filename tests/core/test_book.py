"""The book itself: what the store suite (tests/ledgers) does not reach over a store's public face."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headworks.core.book import Book
from headworks.core.book_table import CHARGED, MOVES, TERMINAL, VERBS
from headworks.core.commands import (
    Adopt,
    Cancel,
    Claim,
    Depart,
    Floor,
    Grow,
    Heartbeat,
    Held,
    PutIncarnation,
    Reassert,
    SetLimits,
    Shortfall,
    Start,
    Stop,
)
from headworks.core.types import Charge, Owner, RequestKey
from headworks.testing.suites.ledger_histories import History
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, REMEMBER_MS, SECOND, reserve, used
from tests.core.books import Asked


def grow(step: int, tokens: int, execution: str = "x", owner: Owner = FIRST) -> Grow:
    return Grow(execution, owner, step, (Charge("pool:pool", "tokens", tokens), Charge("tenant:acme", "tokens", tokens)))


# the table


def test_A4_nothing_leaves_a_terminal_state_for_a_charged_one() -> None:
    leaving = {(state, verb) for state in TERMINAL for verb, move in MOVES[state].items() if move.act not in QUIET}
    assert leaving == {
        ("TOMBSTONE", "stop(E0)"),
        ("TOMBSTONE", "stop(E1)"),
        ("TOMBSTONE", "stop(other)"),
        ("TOMBSTONE", "reassert"),
    }


QUIET = ("record", "confirm_end", "refuse")


def test_A5_only_evidence_frees() -> None:
    freeing = {(state, verb) for state, row in MOVES.items() for verb, move in row.items() if move.act == "end"}
    assert {verb for _, verb in freeing} == {"stop(E0)", "stop(E1)", "stop(other)"}
    assert {state for state, _ in freeing} == set(CHARGED)


def test_A4_the_table_has_no_column_of_its_own() -> None:
    assert {verb for row in MOVES.values() for verb in row} == set(VERBS)


def test_A4_a_move_not_in_the_table_changes_nothing_and_is_counted() -> None:
    asked = Asked()
    asked.ask(reserve("x", 100), Start("x", FIRST))
    before = json.dumps(asked.book.snapshot()["entries"])
    for command in (Stop("x", FIRST, "E0", "cancelled", None), Start("nobody", FIRST), Stop("x", FIRST, "E1", "gone", None)):
        assert asked.outcome(command) == "refused"
    assert json.dumps(asked.book.snapshot()["entries"]) == before
    assert asked.book.irregular == {("RUNNING", "stop"): 2, ("", "start"): 1}


# charging


def test_A3_two_charges_of_one_scope_are_checked_together() -> None:
    asked = Asked()
    twice = (Charge("pool:pool", "tokens", 600), Charge("pool:pool", "tokens", 600))
    assert asked.outcome(reserve("x", 600, charges=twice)) == "refused"
    assert asked.held() == 0


def test_A3_a_charge_of_nothing_fits_above_a_limit() -> None:
    asked = Asked()
    asked.ask(reserve("x", 800), SetLimits("policy-2", 2, (Charge("pool:pool", "tokens", 500),)))
    nothing = (Charge("pool:pool", "tokens", 0), Charge("tenant:beta", "tokens", 100))
    assert asked.outcome(reserve("y", 100, charges=nothing)) == "granted"


def test_K08_more_than_a_whole_limit_never_fits() -> None:
    asked = Asked()
    asked.ask(reserve("x", 900))
    answer = asked.one(reserve("y", 1_001))
    assert answer.outcome == "never"
    assert answer.shortfalls[0] == Shortfall("pool:pool", "tokens", 1_001, 1_000) or answer.shortfalls[1] == Shortfall(
        "pool:pool", "tokens", 1_001, 1_000
    )


def test_lost_grant_is_given_again_to_its_owner_only() -> None:
    asked = Asked(FIRST, SECOND)
    assert asked.outcome(reserve("x", 100)) == "granted"
    assert asked.outcome(reserve("x", 100)) == "recorded"
    assert asked.outcome(reserve("x", 100, owner=SECOND)) == "dead"
    assert asked.held() == 100


def test_A7_unknown_boot_is_fenced() -> None:
    asked = Asked()
    assert asked.outcome(reserve("x", 100, owner=SECOND)) == "fenced"
    assert asked.outcome(Claim("x", RequestKey("acme", "k"), "f", SECOND)) == "fenced"


FLOOR = (Floor("model:small", "tokens", 4_096, "replica:pool/0"),)


@pytest.mark.parametrize(("free_tokens", "outcome"), [(28_000, "refused"), (30_000, "granted")])
def test_B10_floor_of_another_model(free_tokens: int, outcome: str) -> None:
    limit = 64_000
    asked = Asked(limits=())
    asked.ask(SetLimits("policy-2", 2, (Charge("replica:pool/0", "tokens", limit),), FLOOR))
    held = (Charge("replica:pool/0", "tokens", limit - free_tokens),)
    asked.ask(reserve("earlier", limit - free_tokens, charges=held))
    big = (Charge("replica:pool/0", "tokens", 24_576), Charge("model:big", "tokens", 24_576))
    answer = asked.one(reserve("big", 24_576, charges=big))
    assert answer.outcome == outcome
    if outcome == "refused":
        # 36,000 held and 24,576 asked against 64,000 less the 4,096 that only the small model may take
        assert answer.shortfalls == (Shortfall("replica:pool/0", "tokens", 60_576, 59_904),)
    small = (Charge("replica:pool/0", "tokens", 4_096), Charge("model:small", "tokens", 4_096))
    assert asked.outcome(reserve("small", 4_096, charges=small)) == "granted"


def test_B10_a_floor_in_use_is_not_kept_twice() -> None:
    asked = Asked(limits=())
    asked.ask(SetLimits("policy-2", 2, (Charge("replica:pool/0", "tokens", 10_000),), FLOOR))
    small = (Charge("replica:pool/0", "tokens", 4_096), Charge("model:small", "tokens", 4_096))
    asked.ask(reserve("small", 4_096, charges=small))
    assert asked.outcome(reserve("big", 5_904, charges=(Charge("replica:pool/0", "tokens", 5_904),))) == "granted"


# growth


def test_A8_growth_counts_once_for_each_step() -> None:
    asked = Asked()
    asked.ask(reserve("x", 100), Start("x", FIRST))
    assert [asked.outcome(grow(step, 50)) for step in (1, 1, 2, 1)] == ["granted", "recorded", "granted", "recorded"]
    assert asked.held() == 200


def test_A5_what_was_grown_is_released_too() -> None:
    asked = Asked()
    asked.ask(reserve("x", 100), Start("x", FIRST), grow(1, 50))
    record = asked.book.find("x")
    assert record is not None
    assert record.charges == (
        Charge("tenant:acme", "tokens", 150),
        Charge("pool:pool", "tokens", 150),
        Charge("replica:pool/0", "tokens", 100),
        Charge("replica:pool/0", "requests", 1),
    )
    asked.ask(Stop("x", FIRST, "E1", "completed", used(120)))
    assert (asked.held(), asked.held("tenant:acme"), asked.held("replica:pool/0")) == (0, 0, 0)


def test_A8_refused_growth_charges_nothing_and_may_be_asked_again() -> None:
    asked = Asked()
    asked.ask(reserve("x", 900), Start("x", FIRST))
    short = asked.one(grow(1, 200))
    assert (short.outcome, short.shortfalls[0]) == ("refused", Shortfall("pool:pool", "tokens", 1_100, 1_000))
    assert asked.held("tenant:acme") == 900
    assert asked.outcome(grow(1, 100)) == "granted"


def test_A7_growth_needs_the_present_owner() -> None:
    asked = Asked(FIRST, SECOND)
    asked.ask(reserve("x", 100), Start("x", FIRST))
    assert asked.outcome(grow(1, 50, owner=SECOND)) == "fenced"
    asked.advance(LEASE_MS, SECOND)
    assert asked.outcome(grow(1, 50)) == "refused"
    assert asked.held() == 100


# leases


def test_heartbeat_names_its_beat_and_who_lives() -> None:
    asked = Asked(FIRST)
    asked.advance(LEASE_MS - 1)
    answer = asked.one(Heartbeat(SECOND, 7))
    assert (answer.step, answer.owners) == (7, (FIRST, SECOND))
    asked.advance(1)
    assert asked.one(Heartbeat(SECOND, 8)).owners == (SECOND,)


def test_adopt_takes_sixty_four_at_most_oldest_first() -> None:
    asked = Asked(FIRST, SECOND)
    asked.ask(*(reserve(f"x{number}", 1) for number in range(70)))
    asked.advance(LEASE_MS, SECOND)
    first = asked.one(Adopt(SECOND, 1_000)).records
    assert [record.execution for record in first] == [f"x{number}" for number in range(64)]
    assert len(asked.one(Adopt(SECOND, 1_000)).records) == 6
    assert asked.outcome(Adopt(FIRST)) == "refused"


def test_adopt_leaves_orphans_to_an_owner_who_is_back() -> None:
    asked = Asked(FIRST, SECOND)
    asked.ask(reserve("x", 100))
    asked.advance(LEASE_MS, SECOND)
    asked.ask(Heartbeat(FIRST))
    assert asked.one(Adopt(SECOND)).records == ()


def test_depart_orphans_at_once_and_for_good() -> None:
    asked = Asked(FIRST, SECOND)
    asked.ask(reserve("x", 100), Depart(FIRST))
    assert asked.state("x") == "ORPHANED"
    assert asked.outcome(Heartbeat(FIRST)) == "refused"
    assert [record.execution for record in asked.one(Adopt(SECOND)).records] == ["x"]


def test_K13_cancel_of_an_orphan_is_kept_for_its_owner() -> None:
    asked = Asked(FIRST)
    asked.ask(reserve("x", 100), Start("x", FIRST))
    told = asked.book.find("x")
    assert told is not None
    asked.advance(LEASE_MS)
    asked.ask(Heartbeat(FIRST))
    assert asked.outcome(Cancel("x", FIRST)) == "recorded"
    assert asked.one(Reassert(told)).state == "CANCELLING"


def test_K13_an_orphan_comes_back_as_what_is_known_of_it() -> None:
    asked = Asked(FIRST)
    asked.ask(reserve("seen", 100), reserve("unwanted", 100), Start("unwanted", FIRST))
    seen, unwanted = asked.book.find("seen"), asked.book.find("unwanted")
    assert seen is not None and unwanted is not None
    asked.advance(LEASE_MS)
    asked.ask(Heartbeat(FIRST), Start("seen", FIRST))
    assert asked.one(Reassert(seen)).state == "RUNNING", "a byte of it was seen meanwhile"
    assert asked.one(Reassert(replace(unwanted, state="CANCELLING"))).state == "CANCELLING", "its cancel was lost"


def test_anti_entropy_lists_claims_and_charges_of_one_boot() -> None:
    asked = Asked(FIRST, SECOND)
    asked.ask(Claim("c", RequestKey("acme", "k"), "f", FIRST), reserve("x", 100), reserve("y", 100, owner=SECOND))
    asked.ask(reserve("done", 1), Stop("done", FIRST, "E1", "completed", None))
    assert [record.execution for record in asked.one(Held(FIRST)).records] == ["c", "x"]


def test_dead_boots_are_forgotten_when_they_own_nothing() -> None:
    asked = Asked(FIRST, SECOND)
    asked.ask(reserve("x", 100))
    asked.advance(6 * LEASE_MS)
    assert [boot["owner"] for boot in asked.book.snapshot()["boots"]] == [FIRST]
    asked.ask(Stop("x", FIRST, "E1", "completed", None), Heartbeat(SECOND))
    asked.advance(LEASE_MS, SECOND)
    assert [boot["owner"] for boot in asked.book.snapshot()["boots"]] == [SECOND]


# time and memory


def test_I10_a_clock_that_steps_back_goes_on_from_where_it_was() -> None:
    asked = Asked(FIRST)
    asked.now_ms = 1_000_000
    asked.ask(Heartbeat(FIRST), reserve("x", 100))
    asked.now_ms = 5
    asked.ask(Heartbeat(FIRST))
    asked.now_ms = 5 + LEASE_MS - 1
    assert asked.outcome(reserve("y", 100)) == "granted"
    asked.now_ms = 5 + LEASE_MS
    assert asked.outcome(reserve("z", 100)) == "fenced"
    assert asked.held() == 200


def test_A6_minted_keys_are_forgotten_after_a_minute_given_ones_later() -> None:
    asked = Asked()
    key = RequestKey("acme", "k")
    asked.ask(reserve("minted", 1), reserve("given", 1, key=key))
    asked.ask(*(Stop(name, FIRST, "E1", "completed", None) for name in ("minted", "given")))
    asked.advance(59_999, FIRST)
    assert (asked.state("minted"), asked.state("given")) == ("COMPLETED", "COMPLETED")
    asked.advance(1, FIRST)
    assert (asked.state("minted"), asked.state("given")) == ("", "COMPLETED")
    asked.advance(REMEMBER_MS - 60_000 - 1, FIRST)
    assert asked.outcome(Claim("again", key, "same", FIRST)) == "replay"
    asked.advance(1, FIRST)
    assert asked.outcome(Claim("again", key, "same", FIRST)) == "claimed"


def test_A5_tombstones_are_forgotten_after_four_leases() -> None:
    asked = Asked()
    asked.ask(Cancel("x", FIRST))
    asked.advance(4 * LEASE_MS - 1, FIRST)
    assert asked.state("x") == "TOMBSTONE"
    asked.advance(1, FIRST)
    assert asked.state("x") == ""


def test_records_are_bounded_by_forgetting_what_ended_first() -> None:
    asked = Asked(records_max=3)
    asked.ask(*(reserve(name, 1) for name in ("a", "b", "c")), Stop("b", FIRST, "E1", "completed", None))
    assert asked.outcome(reserve("d", 1)) == "granted"
    assert [record.execution for record in asked.book.records()] == ["a", "c", "d"]
    assert asked.outcome(reserve("e", 1)) == "dead"
    assert asked.held() == 3


def test_every_command_has_a_sequence_of_its_own() -> None:
    asked = Asked()
    answers = asked.ask(reserve("x", 1), Start("x", FIRST), Start("x", FIRST), Held(FIRST), reserve("y", 5_000))
    numbers = [answer.sequence for answer in answers]
    assert numbers == list(range(numbers[0], numbers[0] + 5))


# surviving


def test_A9_restore_leaves_everything_charged_as_orphans() -> None:
    asked = Asked()
    asked.ask(reserve("r", 100), reserve("s", 200), Start("s", FIRST), reserve("c", 400), Cancel("c", FIRST))
    asked.ask(reserve("done", 50), Stop("done", FIRST, "E1", "completed", used(40)), Claim("k", KEY, "f", FIRST))
    restored = Book(LEASE_MS, REMEMBER_MS)
    restored.restore(json.loads(json.dumps(asked.book.snapshot())))
    assert restored.check() == []
    states = {record.execution: (record.state, record.was) for record in restored.records()}
    assert states == {
        "r": ("ORPHANED", "RESERVED"),
        "s": ("ORPHANED", "RUNNING"),
        "c": ("ORPHANED", "CANCELLING"),
        "done": ("COMPLETED", ""),
    }
    assert restored.held("pool:pool", "tokens") == 700
    assert restored.limit("pool:pool", "tokens") == 1_000


KEY = RequestKey("acme", "k")


@pytest.mark.parametrize("seed", range(1, 13))
def test_A9_snapshot_and_replay_is_the_same_book(seed: int) -> None:
    """Run again: pytest tests/core/test_book.py -k "replay and SEED"."""
    history, book, kept, now_ms = History(seed), Book(LEASE_MS, REMEMBER_MS), Book(LEASE_MS, REMEMBER_MS), 0
    for number in range(240):
        now_ms += history.step_ms()
        commands = history.commands()
        answers = book.apply(commands, now_ms)
        history.heard(answers)
        if number >= 120:
            assert kept.apply(commands, now_ms) == answers, f"list {number} of History({seed})"
        if number == 119:
            kept.restore(json.loads(json.dumps(book.snapshot())), replay=True)
    assert kept.check() == [] and book.check() == []
    assert json.dumps(kept.snapshot()) == json.dumps(book.snapshot())


def test_a_stamp_is_kept_from_its_first_life_on() -> None:
    asked = Asked(FIRST)
    asked.ask(PutIncarnation("pool/0", FIRST, "life-1", (), 0), reserve("x", 100), Start("x", FIRST))
    asked.ask(PutIncarnation("pool/0", FIRST, "life-1", ("x",), 1))
    assert asked.book.records()[0].incarnation == 1
    asked.ask(PutIncarnation("pool/0", FIRST, "life-1", ("x", "unknown"), 1))
    assert asked.book.records()[0].incarnation == 1
