"""The script beside the book, command by command: answers to the last field, and from time to time all that stands in both.

The histories are those of the suite, gone on from what a gateway would know; tags and virtual times are compared bit by bit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import hiredis
import pytest

from headworks.core.book import Book
from headworks.core.book_counters import UNLIMITED
from headworks.core.commands import (
    Adopt,
    Answer,
    Cancel,
    Command,
    Grow,
    Heartbeat,
    Held,
    PutIncarnation,
    PutSample,
    SetLimits,
    Start,
    Stop,
    TakeReader,
)
from headworks.core.types import Charge
from headworks.ledgers.valkey_script import DOMAINS_MAX, KEPT_MAX, Script, named
from headworks.ledgers.valkey_wire import Asked, read_reply
from headworks.testing import servers
from headworks.testing.suites.ledger_histories import History
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, REMEMBER_MS, SECOND, reserve
from tests.ledgers.valkey_plain import BODY, KEEP, OTHER, PUBLISH, SCRIPT, PlainLedger, Wire, differences

pytestmark = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not())
LISTS = 300
LOOK_EVERY = 25


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with servers.single() as server:
        one = Wire(server.port)
        yield one
        one.close()


def follow(wire: Wire, seed: int, records_max: int, lists: int = LISTS, turns: Sequence[Script] = (SCRIPT,)) -> None:
    """One history on both. `turns`: which version of the script takes a list, drawn for each."""
    script = PlainLedger(wire, f"history-{seed}-{records_max}", records_max=records_max)
    book, history, now_ms = Book(LEASE_MS, REMEMBER_MS, records_max=records_max), History(seed), 0
    draw = random.Random(seed)
    for number in range(lists):
        script.script = draw.choice(turns)
        now_ms += history.step_ms()
        commands = history.commands()
        where = f"list {number}: again with follow(wire, {seed}, {records_max}, {lists}, turns)"
        answers, wanted = script.apply(commands, now_ms), book.apply(commands, now_ms)
        for command, answer, expected in zip(commands, answers, wanted, strict=True):
            assert answer == expected, f"{where}: {command}\n  answered {answer}\n  not      {expected}"
        assert script.take_wakes() == book.take_wakes(), where
        history.heard(wanted)
        if number % LOOK_EVERY == LOOK_EVERY - 1:
            assert differences(script, book) == [], where


@pytest.mark.parametrize("seed", range(1, 9))
def test_A3_the_script_answers_as_the_book(wire: Wire, seed: int) -> None:
    follow(wire, seed, 1_000_000)


@pytest.mark.parametrize("seed", range(101, 104))
def test_A3_the_script_forgets_as_the_book_when_it_is_full(wire: Wire, seed: int) -> None:
    follow(wire, seed, 15)


@pytest.mark.parametrize("seed", range(201, 207))
def test_H4_two_versions_of_the_script_take_turns_on_the_same_records(wire: Wire, seed: int) -> None:
    """What one has in memory is not believed once the other has written: then it reads what stands in the store."""
    follow(wire, seed, 1_000_000 if seed % 2 else 15, turns=(SCRIPT, SCRIPT, OTHER))


class Both:
    """The script and the book, asked the same, answering the same."""

    def __init__(self, wire: Wire, domain: str) -> None:
        self.script, self.book = PlainLedger(wire, domain), Book(LEASE_MS, REMEMBER_MS)
        self.now_ms = 1_000

    def ask(self, *commands: Command) -> list[Answer]:
        answers = self.script.apply(commands, self.now_ms)
        assert answers == self.book.apply(commands, self.now_ms)
        return answers


def test_D1_a_head_is_passed_sixteen_times_and_then_saved_for(wire: Wire) -> None:
    """Rare in random histories: small ones pass a large head until it has been passed often enough, on both at once."""
    both = Both(wire, "passes")
    both.ask(SetLimits("p", 1, (Charge("pool:pool", "tokens", 100),)), Heartbeat(FIRST), Heartbeat(SECOND))
    both.ask(reserve("held", 60))
    outcomes = []
    for number in range(20):
        both.ask(reserve("large", 90, owner=SECOND, tenant="beta"))
        outcomes.append(both.ask(reserve(f"x{number}", 1))[0].outcome)
    assert outcomes == ["granted"] * 16 + ["yield"] * 4
    assert differences(both.script, both.book) == []


def test_D1_who_was_woken_and_does_not_ask_holds_nobody_up(wire: Wire) -> None:
    both = Both(wire, "woken")
    both.ask(SetLimits("p", 1, (Charge("pool:pool", "tokens", 100),)), Heartbeat(FIRST), Heartbeat(SECOND))
    both.ask(reserve("x", 100), reserve("y", 100, owner=SECOND, tenant="beta"), Stop("x", FIRST, "E1", "completed", None))
    assert both.script.take_wakes() == [(SECOND, "pool", ("interactive", "beta"))]
    assert both.ask(reserve("z", 100))[0].outcome == "yield"
    both.now_ms += 25
    assert both.ask(reserve("z", 100))[0].outcome == "granted"


def test_A8_a_step_of_growth_counts_once(wire: Wire) -> None:
    both = Both(wire, "growth")
    both.ask(SetLimits("p", 1, (Charge("pool:pool", "tokens", 100),)), Heartbeat(FIRST), reserve("x", 10), Start("x", FIRST))
    grow = Grow("x", FIRST, 1, (Charge("pool:pool", "tokens", 20),))
    assert [both.ask(grow)[0].outcome for _ in range(3)] == ["granted", "recorded", "recorded"]
    assert both.script.look().held("pool:pool", "tokens") == 30


def test_E3b_what_was_cancelled_before_its_owner_lapsed_has_been_closing_since_then(wire: Wire) -> None:
    """A sample of between the two proves it: an orphan keeps the moment from which it was unwanted."""
    both = Both(wire, "closing")
    both.ask(Heartbeat(FIRST), Heartbeat(SECOND), PutIncarnation("pool/0", SECOND, "life", (), 0))
    cancelled = both.ask(reserve("x", 10), Start("x", FIRST), Cancel("x", FIRST))[2]
    for _ in range(5):
        both.now_ms += 1_000
        both.ask(Heartbeat(SECOND))
    assert [record.state for record in both.ask(Held(FIRST))[0].records] == ["ORPHANED"]
    put = both.ask(TakeReader("pool/0", SECOND), PutSample("pool/0", SECOND, "life", 0, cancelled.sequence))[1]
    assert [record.execution for record in put.records] == ["x"]


def test_A7_a_clock_that_steps_back_moves_no_lease(wire: Wire) -> None:
    """The store's machine is set back by an hour: the book's time goes on from where it was."""
    script, book, history = PlainLedger(wire, "back"), Book(LEASE_MS, REMEMBER_MS), History(7)
    for number in range(60):
        now_ms = 5_000_000 + 10 * number - (3_600_000 if number >= 30 else 0)
        commands = history.commands()
        assert script.apply(commands, now_ms) == book.apply(commands, now_ms), number
    assert differences(script, book) == []


def test_A3_the_same_policy_is_taken_whatever_its_number_and_takes_no_limit_away(wire: Wire) -> None:
    both = Both(wire, "same-policy")

    def told(version: str, number: int, *charges: tuple[str, int]) -> str:
        limits = tuple(Charge(scope, "tokens", amount) for scope, amount in charges)
        return both.ask(SetLimits(version, number, limits))[0].outcome

    def stands() -> list[int]:
        scopes = ("pool:p", "pool:q", *(f"quota:a@2026-11-{day}" for day in (29, 30)), "quota:b@2026-11-29")
        return [one.limit for one in both.script.look().counters.find([(scope, "tokens", 0) for scope in scopes])]

    none = UNLIMITED
    days = (("quota:a@2026-11-29", 5), ("quota:b@2026-11-29", 6))
    assert told("v4", 4, ("pool:p", 1_000), ("pool:q", 500), *days) == "ok"
    assert stands() == [1_000, 500, 5, none, 6]
    assert told("v4", 1, ("pool:p", 100), ("quota:a@2026-11-30", 7)) == "ok"
    assert stands() == [100, 500, none, 7, 6]
    assert told("v3", 3, ("pool:p", 7)) == "refused"
    assert told("v5", 5, ("pool:p", 200)) == "ok"
    assert stands() == [200, none, none, none, none]
    assert differences(both.script, both.book) == []


def test_A7_a_lease_begins_anew_with_an_epoch(wire: Wire) -> None:
    """The longest lease told counts, and in the next life of the store only what was told to that one."""
    script = PlainLedger(wire, "leases")

    def lives_on(run_id: str, lease_ms: int, now_ms: int) -> None:
        script._asked = Asked(None, run_id, lease_ms, REMEMBER_MS, 1_000)
        script._asked.epoch = read_reply(script._call([], now_ms)).epoch

    lives_on("first", 600_000, 1_000)
    script.apply([Heartbeat(FIRST)], 1_000)
    lives_on("second", LEASE_MS, 2_000)
    script.apply([Heartbeat(SECOND), reserve("x", 5, owner=SECOND)], 2_000)
    assert script.apply([Heartbeat(FIRST), Adopt(FIRST)], 1_999 + LEASE_MS)[1].records == ()
    (adopted,) = script.apply([Heartbeat(FIRST), Adopt(FIRST)], 2_000 + LEASE_MS)[1].records
    assert (adopted.execution, adopted.reserved_by) == ("x", SECOND)


def test_A3_what_a_list_that_failed_half_way_left_in_memory_is_not_believed(wire: Wire) -> None:
    """A word that no version would send: the commands before it have run, in memory, and none of them has happened."""
    both = Both(wire, "half-way")
    both.ask(SetLimits("p", 1, (Charge("pool:pool", "tokens", 100),)), Heartbeat(FIRST), reserve("x", 60))
    broken = Stop("x", FIRST, "E1", "completed", None, [("quota:a", "tokens", "many")])  # type: ignore[list-item]
    with pytest.raises(hiredis.ReplyError, match="arithmetic"):
        both.script.apply([SetLimits("q", 2, (Charge("quota:a", "tokens", 9),)), reserve("y", 40), broken], both.now_ms)
    assert differences(both.script, both.book) == []
    assert both.ask(reserve("z", 41))[0].outcome == "refused"
    assert both.ask(reserve("z", 40))[0].outcome == "granted"


def test_A3_a_script_that_remembers_too_much_begins_anew(wire: Wire) -> None:
    """Each flow has counters of its own, and more of them than it keeps in memory come by."""
    small = named(BODY.replace(PUBLISH, KEEP).replace(f'["KEPT_MAX"] = {KEPT_MAX}', '["KEPT_MAX"] = 8'))
    assert small != SCRIPT
    wire.ask("FUNCTION", "LOAD", "REPLACE", small.text)
    follow(wire, 301, 1_000_000, turns=(small,))


def test_A11_many_domains_stand_on_one_server(wire: Wire) -> None:
    """More than the script keeps in memory: each is read again when it is asked again."""
    worlds = [Both(wire, f"domain-{number}") for number in range(DOMAINS_MAX + 4)]
    for number, both in enumerate(worlds):
        both.ask(SetLimits("p", 1, (Charge("pool:pool", "tokens", 100),)), Heartbeat(FIRST), reserve("x", 30 + number))
    for number, both in enumerate(worlds):
        assert [both.ask(reserve("y", 71 - number))[0].outcome, both.ask(reserve("z", 70 - number))[0].outcome] == [
            "refused",
            "granted",
        ]
        assert differences(both.script, both.book) == []


def test_E3b_what_ended_since_the_sample_explains_its_load(wire: Wire) -> None:
    """Ended in several calls, some of them by another version: all of it counts, and what ended before does not."""
    both = Both(wire, "ended-since")
    both.ask(Heartbeat(FIRST), PutIncarnation("pool/0", FIRST, "life", (), 0))
    names = [f"x{number}" for number in range(6)]
    both.ask(*(reserve(name, 1) for name in names), Stop("x0", FIRST, "E1", "completed", None))
    after = both.ask(TakeReader("pool/0", FIRST))[0].sequence
    for number, name in enumerate(names[1:]):
        both.script.script = (SCRIPT, OTHER)[number % 2]
        both.ask(Stop(name, FIRST, "E1", "completed", None))
    alarms = [both.ask(PutSample("pool/0", FIRST, "life", load, after))[0].alarms for load in (5, 5, 5, 6, 6, 6)]
    assert alarms == [(), (), (), (), (), (("foreign_load", "pool/0"),)]
