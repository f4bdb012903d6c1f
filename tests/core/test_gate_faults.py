"""What the campaign found in the gate, each as the shortest story that shows it."""

from __future__ import annotations

from headworks.core import events
from headworks.core.book import Book
from headworks.core.commands import PutIncarnation
from headworks.core.effects import Ask, Reply, Run
from headworks.core.types import Owner
from tests.core.driver import Bench, capacity, policy

OTHER = Owner("g2", "boot-9")


def broken_in_mid_stream() -> tuple[Bench, str]:
    """One execution, seen in the engine's first incarnation, whose connection has just been reset."""
    bench = Bench(policy())
    bench.arrive(100)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.advance(0.1)
    bench.sample(iterations=(1,), running=1)
    bench.feed(events.EngineLost(execution, "reset"))
    return bench, execution


def test_E4_told_by_another_gateway_is_learnt_by_asking_again() -> None:
    bench, execution = broken_in_mid_stream()
    number = bench.book.records()[0].incarnation
    bench.book.apply([PutIncarnation("p/0", OTHER, "b", (), number)], int(bench.now_s * 1000))
    assert bench.held() == 0  # the ledger knows; the answer went to the other gateway
    assert bench.outcomes() == []
    for _ in range(10):
        bench.advance(0.2)
        bench.sample(incarnation="b", iterations=(0,), running=0)
    (outcome,) = bench.outcomes()
    assert (outcome.execution, outcome.outcome, outcome.evidence) == (execution, "failed", "E4")


def test_E4_an_incarnation_whose_telling_was_lost_is_told_again() -> None:
    bench, _ = broken_in_mid_stream()
    bench.advance(0.1)
    bench.lose_asks = True
    bench.sample(incarnation="b", iterations=(0,), running=0)
    bench.lose_asks = False
    assert bench.held() == 100
    bench.advance(0.1)
    bench.sample(incarnation="b", iterations=(0,), running=0)
    assert bench.held() == 0
    assert bench.book.records()[0].evidence == "E4"


def test_E4_a_stamp_whose_telling_was_lost_is_told_again() -> None:
    bench = Bench(policy())
    bench.arrive(100)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.advance(0.1)
    bench.lose_asks = True
    bench.sample(iterations=(1,), running=1)
    bench.lose_asks = False
    assert bench.book.records()[0].incarnation == 0
    bench.advance(0.1)
    bench.sample(iterations=(2,), running=1)
    assert bench.book.records()[0].execution == execution
    assert bench.book.records()[0].incarnation > 0


def test_E3_one_that_was_stopped_before_it_was_sent_is_not_tried_again() -> None:
    bench = Bench(policy(drop_late=False))
    bench.arrive(100, finish_by_s=bench.now_s + 1.0)
    execution = bench.execution()
    bench.advance(1.5)  # still connecting when its time is over
    assert [abort.reason for abort in bench.aborts()] == ["deadline_exceeded"]
    bench.feed(events.NotSent(execution, "gone"))
    assert bench.take(Run) == []
    assert bench.take(Reply) == []
    (outcome,) = bench.outcomes()
    assert (outcome.outcome, outcome.reason, outcome.evidence) == ("failed", "deadline_exceeded", "E0")
    assert bench.held() == 0


def test_K02_an_engine_may_be_busy_twice_for_the_same_request() -> None:
    bench = Bench(policy(), capacities=(capacity(),))
    bench.arrive(100)
    for _ in range(3):
        bench.feed(events.NotSent(bench.execution(), "busy"))
        bench.advance(0.06)
    bench.first_byte(bench.execution())
    assert bench.held() == 100


def test_D3_a_discipline_that_drops_nothing_late_lets_everybody_wait() -> None:
    bench = Bench(policy(kind="fifo_tail_drop", queue_max=32, drop_late=False, pool={"active_requests_max": 1}))
    for _ in range(33):
        bench.arrive(100)
    bench.execution()
    bench.advance(30.0)
    assert bench.take(Reply) == []
    assert bench.gate.snapshot(bench.now_s)["pools"]["p"]["queued_requests"] == 32


def test_A5_cancelled_before_its_first_byte_in_an_engine_with_nothing_else_is_proved_by_counting() -> None:
    bench = Bench(policy())
    arrival = bench.arrive(100)
    execution = bench.execution()
    bench.feed(events.ClientGone(arrival))
    bench.feed(events.EngineClosed(execution))
    for _ in range(10):
        bench.advance(0.1)
        bench.sample(iterations=(7,), running=0)
    assert bench.held() == 100  # the emptiness shown may be older than the execution
    for _ in range(60):
        bench.advance(0.1)
        bench.sample(iterations=(7,), running=0)
    assert bench.held() == 0
    assert bench.book.records()[0].evidence == "E3b"


def test_A7_an_orphan_whose_adoption_was_answered_into_the_void_is_watched_all_the_same() -> None:
    book = Book(lease_ms=5_000, remember_ms=3_600_000)
    before = Bench(policy(), book=book)
    before.arrive(100)
    before.execution()
    after = Bench(policy(), book=book, boot="boot-2")
    after.now_s = before.now_s
    after.advance(4.0)
    after.lose_answers = True
    after.advance(3.0)  # the first boot's lease lapses, its work is adopted, and nobody hears of it
    after.lose_answers = False
    assert [record.owner.boot for record in book.records()] == ["boot-2"]
    for _ in range(200):
        after.advance(0.1)
        after.sample(iterations=(7,), running=0)
    assert after.held() == 0
    assert book.records()[0].evidence == "E3b"


def test_asks_that_were_lost_are_asked_again_in_every_state() -> None:
    bench = Bench(policy())
    bench.lose_asks = True
    bench.arrive(100)
    bench.lose_asks = False
    bench.take(Ask)
    bench.advance(0.3)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.lose_asks = True
    bench.complete(execution)
    bench.lose_asks = False
    assert bench.held() == 100
    bench.advance(0.3)
    assert bench.held() == 0
