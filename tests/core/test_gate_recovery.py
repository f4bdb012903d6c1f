"""A gate that starts on a ledger which remembers another life's work: nothing is sent to an engine before it was looked at."""

from __future__ import annotations

from headworks.core import events
from headworks.core.book import Book
from headworks.core.commands import Heartbeat, PutIncarnation, Start
from headworks.core.effects import Observe, Run
from headworks.core.types import Owner
from headworks.testing.suites.ledger_subject import reserve
from tests.core.driver import Bench, policy

BEFORE = Owner("g1", "boot-0")
MINUTE_MS = 60_000


def left_behind(*executions: str, life: str = "a") -> Book:
    """The book after a kill a minute ago: these executions of 100 tokens had been seen in the engine."""
    book = Book(lease_ms=5_000, remember_ms=3_600_000)
    book.apply([Heartbeat(BEFORE), PutIncarnation("p/0", BEFORE, life, (), 0)], 100_000 - MINUTE_MS)
    for name in executions:
        book.apply([reserve(name, 100, owner=BEFORE, pool="p"), Start(name, BEFORE)], 100_000 - MINUTE_MS)
    book.apply([PutIncarnation("p/0", BEFORE, life, executions, 1)], 100_000 - MINUTE_MS)
    book.apply((), 100_000)
    book.orphan_all()
    return book


def ready(bench: Bench) -> bool:
    return bench.gate.snapshot(bench.now_s)["pools"]["p"]["replicas"]["p/0"]["state"] == "ready"


def look(bench: Bench, running: int, incarnation: str = "a") -> None:
    """As the sampler does: a look that begins a moment after it was wished for."""
    bench.advance(0.1)
    bench.sample(running=running, incarnation=incarnation, iterations=(1,))


def test_A9_nothing_is_sent_before_the_engine_was_counted_and_an_empty_one_frees_everything() -> None:
    bench = Bench(policy(), book=left_behind("x", "y"), boot="boot-1")
    assert bench.held() == 200
    assert not ready(bench)
    bench.arrive(50)
    assert bench.take(Run) == []
    look(bench, running=0)
    assert bench.take(Run) == [], "a look begun before the ledger was asked decides nothing"
    assert not ready(bench)
    look(bench, running=0)
    assert bench.held() == 0
    assert ready(bench)
    bench.arrive(50)
    assert len(bench.take(Run)) == 1
    assert {record.evidence for record in bench.book.records() if record.execution in "xy"} == {"E3b"}


def test_A9_an_engine_that_still_works_is_served_beside_the_orphans() -> None:
    bench = Bench(policy(), book=left_behind("x", "y"), boot="boot-1")
    look(bench, running=1)
    look(bench, running=1)
    assert ready(bench)
    assert bench.held() == 200, "one has left, and nobody can say which"
    bench.arrive(50)
    assert len(bench.take(Run)) == 1
    assert bench.held() == 250


def test_A9_an_engine_started_again_has_ended_what_was_seen_in_the_old_one() -> None:
    bench = Bench(policy(), book=left_behind("x", "y"), boot="boot-1")
    for _ in range(3):
        look(bench, running=0, incarnation="b")
    assert bench.held() == 0
    assert {record.evidence for record in bench.book.records()} == {"E4"}
    assert ready(bench)


def test_A9_an_engine_that_cannot_be_counted_is_served_once_it_answers() -> None:
    bench = Bench(policy(), book=left_behind("x"), boot="boot-1")
    bench.advance(0.1)
    bench.sample(running=None, waiting=None, iterations=None)
    assert ready(bench)
    assert bench.held() == 100, "it stays charged until somebody says what became of it"


def test_A9_a_refused_connection_does_not_end_the_wait_for_a_count() -> None:
    bench = Bench(policy(), book=left_behind("x"), boot="boot-1")
    bench.feed(events.SampleFailed("p/0", "refused", True))
    bench.advance(5.0)
    assert not ready(bench)


def test_A9_a_replica_without_a_past_is_served_at_once() -> None:
    bench = Bench(policy(), book=left_behind(), boot="boot-1")
    assert ready(bench)
    bench.arrive(50)
    assert len(bench.take(Run)) == 1


def test_A9_the_engine_is_looked_at_at_once() -> None:
    bench = Bench(policy(), book=left_behind("x"), boot="boot-1")
    bench.feed(events.ReplicaDescribed(bench.gate._desk.pools["p"].replicas["p/0"].capacity))  # type: ignore[arg-type]
    assert [effect.at_s for effect in bench.take(Observe)] == [bench.now_s]
