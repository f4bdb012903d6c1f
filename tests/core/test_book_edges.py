"""Moments of the book that are met seldom, each with its figures. Found by asking which change no test would notice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headworks.core.book import Book
from headworks.core.book_leases import BOOTS_MAX
from headworks.core.book_parts import Boot, Entry, sequences
from headworks.core.book_proof import Replica, Sample
from headworks.core.book_records import MINTED_MS
from headworks.core.commands import (
    Adopt,
    Cancel,
    Claim,
    CloseSession,
    Depart,
    Grow,
    Heartbeat,
    Held,
    PutIncarnation,
    PutSample,
    Reassert,
    SetLimits,
    Start,
    Stop,
    TakeReader,
    Withdraw,
)
from headworks.core.types import Charge, Owner, RequestKey, Reservation
from headworks.testing.suites.ledger_sessions import inside, opening
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, REMEMBER_MS, SECOND, reserve, used
from tests.core.books import Asked

KEY = RequestKey("acme", "order-1")


def entry(asked: Asked, name: str) -> Entry:
    return asked.book._entries[name]


def told(asked: Asked, name: str, **changed: object) -> Reservation:
    record = asked.book.find(name)
    assert record is not None
    return replace(record, **changed)  # type: ignore[arg-type]


# identity and room


def test_A6_a_full_ledger_takes_no_claim() -> None:
    asked = Asked(records_max=1)
    asked.ask(reserve("x", 1))
    answer = asked.one(Claim("y", KEY, "same", FIRST))
    assert (answer.verb, answer.outcome, answer.asked) == ("claim", "dead", "y")
    asked.ask(Stop("x", FIRST, "E1", "completed", None))
    assert asked.outcome(Claim("y", KEY, "same", FIRST)) == "claimed"


def test_A7_there_is_room_for_4096_boots() -> None:
    book = Book(LEASE_MS, REMEMBER_MS)
    for number in range(4_095):
        owner = Owner("gateway", f"boot-{number}")
        book._boots[owner] = Boot(owner)
    assert book.apply([Heartbeat(FIRST, 7)], 0)[0].outcome == "ok"
    answer = book.apply([Heartbeat(SECOND, 8)], 0)[0]
    assert (BOOTS_MAX, answer.verb, answer.execution, answer.outcome, answer.step) == (4_096, "heartbeat", "", "refused", 8)
    book._boots[FIRST].departed = True
    answer = book.apply([Heartbeat(FIRST, 9)], 0)[0]
    assert (answer.verb, answer.execution, answer.outcome, answer.step) == ("heartbeat", "", "refused", 9)


def test_A5_minted_ones_are_due_in_steps_of_a_tenth_of_a_second() -> None:
    asked = Asked()
    asked.now_ms = 101
    asked.ask(reserve("x", 1), Stop("x", FIRST, "E1", "completed", None))
    assert (entry(asked, "x").forget_ms, MINTED_MS) == (60_200, 60_000)
    asked.now_ms = 60_199
    asked.ask(Heartbeat(FIRST))
    assert asked.state("x") == "COMPLETED"
    asked.now_ms = 60_200
    asked.ask(Heartbeat(FIRST))
    assert asked.state("x") == ""


def test_A7_a_dead_boot_is_forgotten_after_four_leases_to_the_millisecond() -> None:
    asked = Asked(FIRST, SECOND)
    asked.ask(Depart(FIRST))
    for at_ms, known in ((19_999, True), (20_000, False)):
        asked.now_ms = at_ms
        asked.ask(Heartbeat(SECOND))
        assert (FIRST in asked.book._boots) is known


def test_A8_an_execution_grows_4096_times_at_most() -> None:
    asked = Asked()
    asked.ask(reserve("x", 1))
    entry(asked, "x").steps = dict.fromkeys(range(4_095))
    more = (Charge("pool:pool", "tokens", 1),)
    assert asked.outcome(Grow("x", FIRST, 5_000, more)) == "granted"
    assert asked.outcome(Grow("x", FIRST, 5_001, more)) == "refused"


def test_A11_the_first_policy_may_have_any_number_and_a_restart_begins_anew() -> None:
    book = Book(LEASE_MS, REMEMBER_MS)
    assert book.apply([SetLimits("first", 0, ())], 0)[0].outcome == "ok"
    assert book.apply([SetLimits("new", 7, ()), SetLimits("old", 6, ())], 0)[1].outcome == "refused"
    kept = json.loads(json.dumps(book.snapshot()))
    restarted, replays = Book(LEASE_MS, REMEMBER_MS), Book(LEASE_MS, REMEMBER_MS)
    restarted.restore(kept)
    assert restarted.apply([SetLimits("old", 6, ())], 0)[0].outcome == "ok"
    replays.restore(kept, replay=True)
    assert replays.apply([SetLimits("old", 6, ())], 0)[0].outcome == "refused", "as it was answered then"


def test_A11_another_policy_of_the_same_number_is_taken() -> None:
    book = Book(LEASE_MS, REMEMBER_MS)
    outcomes = [book.apply([SetLimits(version, 7, ())], 0)[0].outcome for version in ("a", "b")]
    assert outcomes == ["ok", "ok"]


def test_A9_a_book_that_is_restored_to_be_replayed_is_the_book_it_was() -> None:
    asked = Asked(FIRST, SECOND)
    asked.ask(opening(60, "session:s"), inside("call", 20, "session:s"), reserve("x", 10), Start("x", FIRST))
    asked.ask(Grow("x", FIRST, 1, (Charge("pool:pool", "tokens", 5),)), reserve("y", 5), Cancel("y", FIRST))
    asked.ask(PutIncarnation("pool/0", FIRST, "life", ("x",)), reserve("z", 990, owner=SECOND), Cancel("buried", FIRST))
    seat = asked.one(TakeReader("pool/0", FIRST))
    asked.ask(PutSample("pool/0", FIRST, "life", 1, seat.sequence), Heartbeat(SECOND, 1, 3, ("z",), (("pool/0", (1, 2)),)))
    kept = json.loads(json.dumps(asked.book.snapshot()))
    again = Book(LEASE_MS, REMEMBER_MS)
    again.restore(kept, replay=True)
    assert len(kept["replicas"][0]["samples"]) == 1
    assert json.loads(json.dumps(again.snapshot())) == kept


def test_A9_the_smaller_snapshot_leaves_out_what_ended_under_keys_and_names_the_rest() -> None:
    asked = Asked()
    asked.ask(Claim("x", KEY, "same", FIRST), reserve("x", 1, key=KEY), Stop("x", FIRST, "E1", "completed", None))
    asked.ask(reserve("y", 1), Stop("y", FIRST, "E1", "completed", None), Cancel("z", FIRST))
    lines = [[name for _, name in line] for line in asked.book.snapshot()["forgetting"]]
    assert lines == [["y"], ["x"], ["z"]]
    assert [[name for _, name in line] for line in asked.book.snapshot(with_ended=False)["forgetting"]] == [["y"], [], ["z"]]
    assert asked.book.ended_count == 1
    again = Book(LEASE_MS, REMEMBER_MS)
    again.restore(json.loads(json.dumps(asked.book.snapshot(with_ended=False))))
    assert again.check() == [], "no key points at what is left out"
    y = again.find("y")
    assert y is not None
    assert (y.state, y.key, y.fingerprint, y.owner, y.replica) == ("STOPPED", None, "", Owner("", ""), "")


@pytest.mark.parametrize(
    ("evidence", "end", "state"),
    [
        *(("E0", "completed", "FAILED"), ("E0", "failed", "FAILED"), ("E0", "cancelled", "CANCELLED")),
        *(("E1", "completed", "COMPLETED"), ("E1", "failed", "FAILED"), ("E1", "cancelled", "FAILED")),
    ],
)
def test_A4_how_it_ended_is_what_was_said_of_it(evidence: str, end: str, state: str) -> None:
    asked = Asked()
    asked.ask(reserve("x", 1))
    assert asked.one(Stop("x", FIRST, evidence, end, None)).state == state


# answers, to the field


def test_answers_say_their_verb_and_name_nothing_where_there_is_nothing() -> None:
    asked = Asked(FIRST, SECOND)
    asked.ask(reserve("x", 1))
    record = told(asked, "x")
    answers = asked.ask(
        TakeReader("pool/0", FIRST),
        PutSample("pool/0", FIRST, "life", 0, 1),
        PutIncarnation("pool/0", FIRST, "life", ()),
        Withdraw("pool/9"),
        Adopt(FIRST),
        Held(FIRST),
        Heartbeat(FIRST),
        Reassert(record),
        SetLimits("p", 2, ()),
        CloseSession("session:none"),
    )
    assert [(one.verb, one.execution, one.outcome) for one in answers] == [
        ("take_reader", "", "ok"),
        ("put_sample", "", "refused"),
        ("put_incarnation", "", "ok"),
        ("withdraw", "", "ok"),
        ("adopt", "", "ok"),
        ("held", "", "ok"),
        ("heartbeat", "", "ok"),
        ("reassert", "x", "recorded"),
        ("set_limits", "", "ok"),
        ("close_session", "", "refused"),
    ]
    stranger = replace(record, owner=Owner("gateway-9", "boot-9"))
    assert asked.one(Reassert(stranger)).verb == "reassert"
    assert asked.outcome(Reassert(stranger)) == "fenced"


# leases


def test_K13_what_was_taken_back_has_not_been_closing_and_runs_from_now_on() -> None:
    asked = Asked(FIRST, SECOND)
    asked.ask(reserve("x", 10), Start("x", FIRST), reserve("y", 10))
    asked.advance(LEASE_MS, SECOND)
    assert [asked.state(name) for name in ("x", "y")] == ["ORPHANED", "ORPHANED"]
    assert (entry(asked, "x").closing_sequence > 0, entry(asked, "x").closing_ms) == (True, 5_000)
    _, back, unsent = asked.ask(Heartbeat(FIRST), Reassert(told(asked, "x")), Reassert(told(asked, "y")))
    x, y = entry(asked, "x"), entry(asked, "y")
    assert (x.state, x.was, x.closing_sequence, x.closing_ms, x.running_sequence) == ("RUNNING", "", 0, 0, back.sequence)
    assert (y.state, y.was, y.closing_sequence, y.closing_ms, y.running_sequence) == ("RESERVED", "", 0, 0, 0)
    assert unsent.outcome == "ok"


@pytest.mark.parametrize(
    ("state", "running", "closing"), [("RUNNING", True, False), ("CANCELLING", False, True), ("RESERVED", False, False)]
)
def test_A9_what_is_told_to_a_ledger_that_forgot_is_what_it_was(state: str, running: bool, closing: bool) -> None:
    before, asked = Asked(), Asked()
    before.ask(reserve("x", 10))
    asked.now_ms = 700
    answer = asked.one(Reassert(told(before, "x", state=state)))
    x = entry(asked, "x")
    assert (x.state, asked.held()) == (state, 10)
    assert x.running_sequence == (answer.sequence if running else 0)
    assert (x.closing_sequence, x.closing_ms) == ((answer.sequence, 700) if closing else (0, 0))


def test_A9_a_restart_counts_on_forgets_samples_and_sweeps_anew() -> None:
    asked = Asked(FIRST, SECOND)
    asked.ask(reserve("x", 10), PutIncarnation("pool/0", FIRST, "life", ()), Start("x", FIRST))
    seat = asked.one(TakeReader("pool/0", FIRST))
    asked.ask(PutSample("pool/0", FIRST, "life", 1, seat.sequence))
    assert len(asked.book._replicas["pool/0"].samples) == 1
    sequence = asked.book.sequence
    again = Book(LEASE_MS, REMEMBER_MS)
    again.restore(json.loads(json.dumps(asked.book.snapshot())))
    assert again.sequence == sequence + 2, "one for each boot whose lease is over"
    replica = again._replicas["pool/0"]
    assert (list(replica.samples), replica.reader) == ([], None)
    assert again._entries["x"].closing_sequence == sequence + 1


def test_A6_a_key_that_is_named_anew_is_news_of_the_attempt_before() -> None:
    asked = Asked()
    counts = []
    for name in ("x", "y"):
        asked.ask(Claim(name, KEY, "same", FIRST))
        counts.append(asked.book.ended_count)
        asked.ask(reserve(name, 1, key=KEY), Stop(name, FIRST, "E1", "failed", None))
        counts.append(asked.book.ended_count)
    assert counts == [0, 1, 2, 3]


def test_A6_what_ends_under_a_key_after_a_restart_is_not_forgotten_before_what_ended_before_it() -> None:
    asked = Asked()
    asked.ask(Claim("x", KEY, "same", FIRST), reserve("x", 1, key=KEY), Stop("x", FIRST, "E1", "completed", None))
    other = RequestKey("acme", "order-2")
    asked.now_ms = 50
    asked.ask(Claim("y", other, "same", FIRST), reserve("y", 1, key=other), Stop("y", FIRST, "E1", "completed", None))
    again = Book(LEASE_MS, 1_000)
    again.restore(json.loads(json.dumps(asked.book.snapshot())))
    assert again._keyed_until_ms == 600_050


# evidence


def test_E3b_what_ended_at_the_question_was_not_charged_since() -> None:
    replica = Replica("pool/0")
    replica.ended.append((7, (Charge("replica:pool/0", "requests", 1),)))
    assert replica.note_foreign(Sample(1, 7, 9, 0)) is False
    assert replica.foreign_load == 1
    replica.note_foreign(Sample(1, 6, 9, 0))
    assert replica.foreign_load == 0


def test_E3b_what_was_closing_at_the_question_itself_has_left() -> None:
    replica = Replica("pool/0")
    one = Entry.of("x", "CANCELLING", None, "", FIRST)
    one.closing_sequence, one.closing_ms, one.seen = 7, 100, False
    replica.entries["x"] = one
    assert replica.proved_stopped(Sample(0, 7, 9, 5_100), 5_000) == [one]
    assert replica.proved_stopped(Sample(0, 6, 9, 5_100), 5_000) == []
    assert replica.proved_stopped(Sample(0, 7, 9, 5_099), 5_000) == []
    one.seen = True
    assert replica.proved_stopped(Sample(0, 7, 9, 0), 5_000) == [one]


def test_E4_what_a_sample_shows_of_an_engines_life() -> None:
    replica = Replica("pool/0")
    assert [replica.show(*shown) for shown in (("a", 0), ("a", 0), ("b", 0), ("b", 1), ("a", 2))] == [
        "newer",
        "same",
        "stale",
        "newer",
        "several",
    ]
    assert (replica.incarnation, replica.several, list(replica.incarnations)) == (2, True, ["a", "b"])


def test_F10_so_many_sequences_as_the_most_of_its_requests_and_one_where_nothing_says() -> None:
    tokens = Charge("pool:p", "tokens", 9)
    assert sequences((Charge("pool:p", "requests", 1), Charge("replica:p/0", "requests", 3), tokens)) == 3
    assert sequences((tokens,)) == 1


def test_E3b_what_began_to_run_at_the_question_itself_was_inside() -> None:
    replica, boot = Replica("pool/0"), Boot(FIRST)
    one = replica.entries["x"] = Entry.of("x", "RUNNING", None, "", FIRST)
    one.running_sequence, boot.seen_sequence = 7, 9
    assert replica.known_inside(Sample(1, 7, 9, 0), {FIRST: boot}) == 1
    assert replica.known_inside(Sample(1, 6, 9, 0), {FIRST: boot}) == 0
    boot.seen_sequence = 8
    assert replica.known_inside(Sample(1, 7, 9, 0), {FIRST: boot}) is None


@pytest.mark.parametrize(("state", "pauses"), [("CANCELLING", True), ("ORPHANED", True), ("RUNNING", False)])
def test_E3b_after_twenty_undecided_samples_new_work_pauses_for_what_closes_for_long(state: str, pauses: bool) -> None:
    replica = Replica("pool/0")
    one = replica.entries["x"] = Entry.of("x", state, None, "", FIRST)
    one.closing_ms = 1_000
    for _ in range(19):
        replica.doubt(90_000)
    assert replica.yield_until_ms == 0
    replica.doubt(5_999)
    assert replica.yield_until_ms == 0, "not for so long"
    replica.doubt(6_000)
    assert (replica.yield_until_ms, replica.yield_from_ms) == ((8_000, 36_000) if pauses else (0, 0))
    replica.decided()
    assert (replica.undecided, replica.yield_until_ms) == (0, 0)
    replica.undecided, replica.impossible = 5, True
    replica.show("life", 0)
    assert (replica.undecided, replica.impossible) == (0, False)


def test_E3b_samples_that_wait_decide_nothing_once_the_proof_was_off() -> None:
    asked = Asked()
    replica = asked.book._open_replica("pool/0")
    replica.foreign = True
    replica.samples.append(Sample(0, 1, 2, 0))
    assert (asked.book._judge(replica), len(replica.samples)) == (((), ()), 0)
    replica.samples.append(Sample(0, 1, 2, 0))
    asked.ask(Withdraw("pool/0"))
    assert (replica.foreign, len(replica.samples)) == (False, 0)


def test_A9_limits_stand_in_a_snapshot_in_their_order() -> None:
    limits = tuple(Charge(scope, "tokens", 5) for scope in ("pool:z", "pool:a", "model:m"))
    book = Asked(limits=limits).book
    assert [one[0] for one in book.snapshot()["limits"]["limits"]] == ["model:m", "pool:a", "pool:z"]


def test_A5_what_ended_before_it_was_cancelled_is_buried_with_its_testimony() -> None:
    asked = Asked()
    asked.ask(Stop("x", FIRST, "E1", "completed", used(8)), Cancel("y", FIRST))
    x, y = asked.book.find("x"), asked.book.find("y")
    assert x is not None and y is not None
    assert (x.state, x.evidence, x.usage) == ("STOPPED", "E1", used(8))
    assert (y.state, y.evidence, y.usage) == ("TOMBSTONE", "", None)
    assert (entry(asked, "x").forget_ms, entry(asked, "y").forget_ms) == (20_000, 20_000)
