"""Evidence the ledger itself decides on: the counting proof (E3b) and the engine's incarnations (E4), on every store.

`engine` in these cases is what a perfect observer would see; the ledger learns of it only through samples.
"""

from __future__ import annotations

from collections.abc import Callable

from headworks.core.commands import (
    Answer,
    Cancel,
    Heartbeat,
    PutIncarnation,
    PutSample,
    Reassert,
    Start,
    Stop,
    TakeReader,
    Withdraw,
)
from headworks.core.types import Owner
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, SECOND, WHOLE, Ledger, Opened, reserve

REPLICA = "pool/0"
LIMITS = {"pool:pool": WHOLE, "tenant:acme": WHOLE}


def opened_with_engine(opened: Opened) -> Ledger:
    """Two gateways and an engine in its first life; the second gateway measures."""
    ledger = Ledger(opened)
    ledger.open(LIMITS, FIRST, SECOND)
    ledger.ask(PutIncarnation(REPLICA, SECOND, "life-1", (), 0))
    return ledger


def measure(ledger: Ledger, load: int, *, by: Owner = SECOND, life: str = "life-1") -> Answer:
    """Take the reader's seat, look at the engine after the answer, put what was seen."""
    seat = ledger.one(TakeReader(REPLICA, by))
    assert seat.outcome == "ok", seat
    return ledger.one(PutSample(REPLICA, by, life, load, seat.sequence))


def vouch(ledger: Ledger, owner: Owner, put: Answer, *unvouched: str) -> Answer:
    """Half a second later the owner's heartbeat says that it has known the sample's sequence for long enough."""
    ledger.opened.advance(500)
    return ledger.one(Heartbeat(owner, 0, put.sequence, unvouched))


def ended(answer: Answer) -> list[str]:
    """What ended by it."""
    return [record.execution for record in answer.records]


def case_E3b_an_empty_engine_frees_what_closes(opened: Opened) -> None:
    """Nothing is inside and nothing need be vouched for: decided at once, with the level recorded."""
    ledger = opened_with_engine(opened)
    ledger.ask(reserve("x", 100), Start("x", FIRST), Cancel("x", FIRST))
    assert ended(measure(ledger, 1)) == []
    put = measure(ledger, 0)
    assert ended(put) == ["x"]
    assert (put.records[0].state, put.records[0].evidence) == ("CANCELLED", "E3b")
    assert ledger.held("pool:pool") == 0


def case_E3b_known_inside_is_vouched_for(opened: Opened) -> None:
    """One runs, one closes, load 1: the closing one has left, once the running one's owner has vouched."""
    ledger = opened_with_engine(opened)
    ledger.ask(reserve("runs", 100), Start("runs", FIRST), reserve("x", 200), Start("x", FIRST), Cancel("x", FIRST))
    put = measure(ledger, 1)
    assert ended(put) == []
    assert ended(ledger.one(Heartbeat(FIRST, 0, put.sequence - 1))) == [], "it had not seen the sample yet"
    assert ended(ledger.one(Heartbeat(SECOND, 0, put.sequence))) == [], "it does not own what runs"
    assert ended(vouch(ledger, FIRST, put)) == ["x"]
    assert ledger.held("pool:pool") == 100


def case_E3b_slow_clients_are_not_counted(opened: Opened) -> None:
    """An answer that is not being read may have ended in the engine: it does not count as inside."""
    ledger = opened_with_engine(opened)
    ledger.ask(reserve("slow", 100), Start("slow", FIRST), reserve("x", 200), Start("x", FIRST), Cancel("x", FIRST))
    put = measure(ledger, 1)
    assert ended(vouch(ledger, FIRST, put, "slow")) == []
    assert ledger.held("pool:pool") == 300


def case_E3b_owned_is_not_inside(opened: Opened) -> None:
    """A load of 1 is the orphan itself, while what is owned has not reached the engine: nothing may be freed."""
    ledger = opened_with_engine(opened)
    ledger.ask(reserve("orphan", 100), Start("orphan", FIRST))
    ledger.advance(LEASE_MS, SECOND)
    ledger.ask(reserve("underway", 200, owner=SECOND))
    engine = ["orphan"]
    for _ in range(3):
        put = measure(ledger, len(engine))
        assert ended(put) + ended(vouch(ledger, SECOND, put)) == []
    assert ledger.held("pool:pool", SECOND) == 300
    ledger.ask(Start("underway", SECOND))
    engine.append("underway")
    put = measure(ledger, len(engine))
    assert ended(put) + ended(vouch(ledger, SECOND, put)) == []
    engine.remove("orphan")
    put = measure(ledger, len(engine))
    assert ended(put) + ended(vouch(ledger, SECOND, put)) == ["orphan"]
    assert ledger.held("pool:pool", SECOND) == 200


def case_E3b_what_began_after_the_question_is_not_counted(opened: Opened) -> None:
    """Running, or closing, only after Q says nothing about a scrape that may have begun before."""
    ledger = opened_with_engine(opened)
    seat = ledger.one(TakeReader(REPLICA, SECOND))
    ledger.ask(reserve("later", 100), Start("later", FIRST), Cancel("later", FIRST))
    put = ledger.one(PutSample(REPLICA, SECOND, "life-1", 0, seat.sequence))
    assert ended(put) == []
    assert ended(measure(ledger, 0)) == ["later"]
    ledger.ask(reserve("x", 100), Start("x", FIRST), Cancel("x", FIRST), reserve("runs", 100))
    seat = ledger.one(TakeReader(REPLICA, SECOND))
    ledger.ask(Start("runs", FIRST))
    put = ledger.one(PutSample(REPLICA, SECOND, "life-1", 1, seat.sequence))
    assert ended(put) + ended(vouch(ledger, FIRST, put)) == []


def case_E3b_what_was_taken_back_after_the_question_is_not_counted(opened: Opened) -> None:
    """An owner that was away takes its stream back: at Q nobody could say whether that was still inside."""
    ledger = opened_with_engine(opened)
    ledger.ask(reserve("x", 100), Start("x", FIRST), Cancel("x", FIRST), reserve("runs", 100), Start("runs", FIRST))
    told = ledger.records(FIRST)["runs"]
    ledger.advance(LEASE_MS, SECOND)
    ledger.ask(Heartbeat(FIRST))
    seat = ledger.one(TakeReader(REPLICA, SECOND))
    ledger.ask(Reassert(told))
    put = ledger.one(PutSample(REPLICA, SECOND, "life-1", 1, seat.sequence))
    assert ended(put) + ended(vouch(ledger, FIRST, put)) == []


def case_E3b_a_word_once_given_stands(opened: Opened) -> None:
    """A heartbeat that comes late says less than one that was heard; the sample waits for the other owner only."""
    ledger = opened_with_engine(opened)
    ledger.ask(reserve("one", 100), Start("one", FIRST), reserve("two", 100, owner=SECOND), Start("two", SECOND))
    ledger.ask(reserve("x", 100), Start("x", FIRST), Cancel("x", FIRST))
    put = measure(ledger, 2)
    assert ended(vouch(ledger, FIRST, put)) == []
    ledger.ask(Heartbeat(FIRST, 0, put.sequence - 1, ("one",)))
    assert ended(vouch(ledger, SECOND, put)) == ["x"]


def case_E3b_closing_goes_on_when_its_owner_lapses(opened: Opened) -> None:
    """Cancelled before Q and orphaned after it: it was closing at Q all the same."""
    ledger = opened_with_engine(opened)
    ledger.ask(reserve("x", 100), Start("x", FIRST))
    ledger.advance(LEASE_MS - 1, SECOND)
    ledger.ask(Cancel("x", FIRST))
    seat = ledger.one(TakeReader(REPLICA, SECOND))
    ledger.advance(1, SECOND)
    assert ledger.records(FIRST)["x"].state == "ORPHANED"
    assert ended(ledger.one(PutSample(REPLICA, SECOND, "life-1", 0, seat.sequence))) == ["x"]


def case_E3b_never_seen_waits_a_lease(opened: Opened) -> None:
    """Its request may still be on the way: only a sample a whole lease after the cancel proves anything about it."""
    ledger = opened_with_engine(opened)
    ledger.advance(LEASE_MS, FIRST, SECOND)
    ledger.ask(reserve("x", 100), Cancel("x", FIRST))
    assert ended(measure(ledger, 0)) == []
    ledger.advance(LEASE_MS - 1, FIRST, SECOND)
    assert ended(measure(ledger, 0)) == []
    ledger.advance(1, FIRST, SECOND)
    assert ended(measure(ledger, 0)) == ["x"]
    ledger.ask(reserve("y", 100))
    ledger.advance(LEASE_MS, SECOND)
    assert ended(measure(ledger, 0)) == [], "its boot has only just lapsed"
    ledger.advance(LEASE_MS, SECOND)
    assert ended(measure(ledger, 0)) == ["y"]


def case_E3b_one_reader_at_a_time(opened: Opened) -> None:
    """Samples count from the boot in the seat, for three seconds, and of the engine's present life."""
    ledger = opened_with_engine(opened)
    assert ledger.outcome(TakeReader(REPLICA, SECOND)) == "ok"
    refused = ledger.one(TakeReader(REPLICA, FIRST))
    assert (refused.outcome, refused.owner) == ("refused", SECOND)
    assert ledger.outcome(PutSample(REPLICA, FIRST, "life-1", 0, refused.sequence)) == "refused"
    assert ledger.outcome(PutSample(REPLICA, SECOND, "life-0", 0, refused.sequence)) == "refused"
    ledger.advance(3000, FIRST, SECOND)
    assert ledger.outcome(PutSample(REPLICA, SECOND, "life-1", 0, refused.sequence)) == "refused"
    assert ledger.outcome(TakeReader(REPLICA, FIRST)) == "ok"


def case_E3b_the_impossible_turns_the_proof_off(opened: Opened) -> None:
    """Less load than is known inside: some guard was too short. Alarm, and nothing is proved by counting any more."""
    ledger = opened_with_engine(opened)
    ledger.ask(reserve("runs", 100), Start("runs", FIRST), reserve("x", 200), Start("x", FIRST), Cancel("x", FIRST))
    alarm = vouch(ledger, FIRST, measure(ledger, 0))
    assert (alarm.alarms, ended(alarm)) == ((("evidence_impossible", REPLICA),), [])
    assert ended(vouch(ledger, FIRST, measure(ledger, 1))) == []
    assert ledger.held("pool:pool") == 300


def case_F10_foreign_load_turns_the_proof_off(opened: Opened) -> None:
    """More load than all that is charged, three samples running; three samples without it turn the proof on again."""
    ledger = opened_with_engine(opened)
    ledger.ask(reserve("x", 100), Start("x", FIRST), Cancel("x", FIRST))
    alarms = [measure(ledger, load).alarms for load in (2, 2, 1, 2, 2, 2, 2)]
    assert alarms == [(), (), (), (), (), (("foreign_load", REPLICA),), ()]
    assert [ended(measure(ledger, load)) for load in (0, 0)] == [[], []]
    assert ended(measure(ledger, 0)) == ["x"]


def case_F10_what_ended_meanwhile_is_not_foreign(opened: Opened) -> None:
    """A load measured just before an execution ended was charged when it was measured."""
    ledger = opened_with_engine(opened)
    for number in range(6):
        ledger.ask(reserve(f"x{number}", 100), Start(f"x{number}", FIRST))
        seat = ledger.one(TakeReader(REPLICA, SECOND))
        ledger.ask(Stop(f"x{number}", FIRST, "E1", "completed", None))
        put = ledger.one(PutSample(REPLICA, SECOND, "life-1", 1, seat.sequence))
        assert (put.outcome, put.alarms) == ("ok", ())


def case_E3b_new_work_pauses_so_that_a_sample_can_decide(opened: Opened) -> None:
    """Closing for 5 s and 20 samples undecided: reserves there yield, for two seconds at most, once in thirty."""
    ledger = opened_with_engine(opened)
    ledger.advance(LEASE_MS, FIRST, SECOND)
    ledger.ask(reserve("x", 100), Start("x", FIRST), Cancel("x", FIRST))
    ledger.advance(4999, FIRST, SECOND)
    for _ in range(25):
        measure(ledger, 1)
    assert ledger.outcome(reserve("early", 1)) == "granted"
    ledger.ask(Stop("early", FIRST, "E1", "completed", None))
    assert ended(measure(ledger, 0)) == ["x"]
    ledger.ask(reserve("x2", 100), Start("x2", FIRST), Cancel("x2", FIRST))
    ledger.advance(5000, FIRST, SECOND)
    for number in range(20):
        assert ledger.outcome(reserve(f"before-{number}", 1)) == "granted"
        measure(ledger, 2)
    assert ledger.outcome(reserve("y", 1)) == "yield"
    assert ledger.outcome(reserve("z", 1, pool="elsewhere")) == "granted"
    ledger.advance(1999, FIRST, SECOND)
    assert ledger.outcome(reserve("y", 1)) == "yield"
    ledger.advance(1, FIRST, SECOND)
    assert ledger.outcome(reserve("y", 1)) == "granted"
    for _ in range(21):
        measure(ledger, 2)
    assert ledger.outcome(reserve("again", 1)) == "granted"
    ledger.advance(28_000, FIRST, SECOND)
    measure(ledger, 2)
    assert ledger.outcome(reserve("later", 1)) == "yield"
    assert ended(measure(ledger, 0)) == ["x2"]
    assert ledger.outcome(reserve("later", 1)) == "granted"


def case_E4_only_what_was_seen_inside_ends_with_its_engine(opened: Opened) -> None:
    """Reserved in one life of the engine, sent in the next: it is alive there, and dies with that one."""
    ledger = opened_with_engine(opened)
    ledger.ask(reserve("old", 100), Start("old", FIRST), PutIncarnation(REPLICA, FIRST, "life-1", ("old",), 1))
    ledger.ask(reserve("sent-later", 200))
    newer = ledger.one(PutIncarnation(REPLICA, SECOND, "life-2", (), 1))
    assert (newer.outcome, newer.incarnation, ended(newer)) == ("ok", 2, ["old"])
    assert (newer.records[0].state, newer.records[0].evidence) == ("FAILED", "E4")
    assert ledger.held("pool:pool") == 200
    ledger.ask(Start("sent-later", FIRST), PutIncarnation(REPLICA, FIRST, "life-2", ("sent-later",), 2))
    assert ended(ledger.one(PutIncarnation(REPLICA, SECOND, "life-3", (), 2))) == ["sent-later"]
    assert ledger.held("pool:pool") == 0


def case_E4_a_late_report_is_not_a_new_life(opened: Opened) -> None:
    """A sample from before the restart, told after it: refused by compare-and-set, and nobody is accused."""
    ledger = opened_with_engine(opened)
    ledger.ask(reserve("x", 100), Start("x", FIRST), PutIncarnation(REPLICA, FIRST, "life-2", ("x",), 1))
    for late in ("life-1", "life-never-told"):
        answer = ledger.one(PutIncarnation(REPLICA, SECOND, late, ("x",), 1))
        assert (answer.outcome, answer.incarnation, answer.alarms, ended(answer)) == ("refused", 2, (), [])
    assert ledger.one(PutIncarnation(REPLICA, SECOND, "life-2", (), 1)).outcome == "ok"
    assert ledger.held("pool:pool") == 100


def case_E4_a_life_that_returns_means_several_engines(opened: Opened) -> None:
    """Then only what ended in band, what was never sent and an operator's word count there."""
    ledger = opened_with_engine(opened)
    ledger.ask(PutIncarnation(REPLICA, SECOND, "life-2", (), 1))
    names = ("in-band", "proved", "unsent", "by-hand")
    ledger.ask(*(reserve(name, 100) for name in names), Start("proved", FIRST), Cancel("proved", FIRST))
    back = ledger.one(PutIncarnation(REPLICA, SECOND, "life-1", (), 2))
    assert (back.outcome, back.alarms) == ("refused", (("several_engines", REPLICA),))
    for level in ("E2", "E3a", "E3b", "E4", "E5"):
        assert ledger.outcome(Stop("proved", FIRST, level, "cancelled", None)) == "refused"
    assert ended(ledger.one(PutIncarnation(REPLICA, SECOND, "life-3", (), 2))) == []
    assert ended(measure(ledger, 0, life="life-3")) == []
    assert ledger.outcome(Stop("in-band", FIRST, "E1", "completed", None)) == "ok"
    assert ledger.outcome(Stop("unsent", FIRST, "E0", "cancelled", None)) == "ok"
    assert ledger.outcome(Stop("by-hand", FIRST, "operator", "failed", None)) == "ok"
    assert ledger.held("pool:pool") == 100


def case_E4_withdraw_ends_everything_there(opened: Opened) -> None:
    """An operator's word that the engine is gone."""
    ledger = opened_with_engine(opened)
    ledger.ask(reserve("x", 100), reserve("y", 200), Start("y", FIRST), Cancel("y", FIRST))
    ledger.ask(reserve("elsewhere", 400, pool="other"))
    gone = ledger.one(Withdraw(REPLICA))
    states = [(record.execution, record.state, record.evidence) for record in gone.records]
    assert states == [("x", "FAILED", "E4"), ("y", "CANCELLED", "E4")]
    assert ledger.held("pool:pool") == 0
    assert ledger.held("tenant:acme") == 400


EVIDENCE_CASES: tuple[Callable[[Opened], None], ...] = (
    case_E3b_an_empty_engine_frees_what_closes,
    case_E3b_known_inside_is_vouched_for,
    case_E3b_slow_clients_are_not_counted,
    case_E3b_owned_is_not_inside,
    case_E3b_what_began_after_the_question_is_not_counted,
    case_E3b_what_was_taken_back_after_the_question_is_not_counted,
    case_E3b_a_word_once_given_stands,
    case_E3b_closing_goes_on_when_its_owner_lapses,
    case_E3b_never_seen_waits_a_lease,
    case_E3b_one_reader_at_a_time,
    case_E3b_the_impossible_turns_the_proof_off,
    case_F10_foreign_load_turns_the_proof_off,
    case_F10_what_ended_meanwhile_is_not_foreign,
    case_E3b_new_work_pauses_so_that_a_sample_can_decide,
    case_E4_only_what_was_seen_inside_ends_with_its_engine,
    case_E4_a_late_report_is_not_a_new_life,
    case_E4_a_life_that_returns_means_several_engines,
    case_E4_withdraw_ends_everything_there,
)
