"""What is kept in order, so that no decision has to sort: it must be the order that sorting would give."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from headworks.core import events
from headworks.core.effects import Run
from headworks.core.level import Level
from headworks.core.life import Life
from headworks.core.queue import WaitingLine
from tests.core.driver import Bench, policy

ORDERS: dict[str, Callable[[list[WaitingLine]], list[Life]]] = {
    "fifo": lambda lines: sorted((line.first() for line in lines), key=lambda life: life.number),
    "lifo_drop_head": lambda lines: sorted((line.newest() for line in lines), key=lambda life: -life.number),
    "class_priority": lambda lines: sorted((line.first() for line in lines), key=lambda life: (life.start_by_s, life.number)),
}
STEPS = 150


@pytest.mark.parametrize("kind", ORDERS)
def test_D3_the_heads_of_all_lines_stand_in_the_order_of_the_discipline(kind: str) -> None:
    print(f"again: pytest tests/core/test_order_kept.py -k {kind}")
    chance, bench = random.Random(kind), waiting_bench(kind)
    queue, discipline = bench.gate._desk.pools["p"].queue, bench.gate._desk.disciplines["p"]
    arrived: list[str] = []
    for _ in range(STEPS):
        if chance.random() < 0.6 or not arrived:
            late_s = bench.now_s + chance.randint(5, 50)
            arrived.append(bench.arrive(10, tenant=chance.choice(("acme", "batchco")), start_by_s=late_s))
        elif chance.random() < 0.7:
            bench.feed(events.ClientGone(arrived.pop(chance.randrange(len(arrived)))))
        elif running := bench.take(Run):
            bench.complete(running[0].execution.id)
        bench.advance(0.01)
        assert list(discipline.heads(queue)) == ORDERS[kind](list(queue.lines.values()))
    assert queue.requests > 10


def waiting_bench(kind: str) -> Bench:
    patient: dict[str, Any] = {"wait_s_max": 1_000.0, "ttft_slo_s": None}
    return Bench(policy(kind=kind, interactive=patient, pool={"active_requests_max": 1}))


def test_D1_what_rests_keeps_its_tag_and_stands_in_no_order() -> None:
    level = Level()
    for name, cost in (("a", 10.0), ("b", 20.0), ("c", 30.0)):
        level.wait(name)
        level.serve(name, cost)
    assert [name for _, name in level.in_turn()] == ["a", "b", "c"]
    level.rest("b")
    assert [name for _, name in level.in_turn()] == ["a", "c"]
    level.serve("a", 50.0)
    level.correct("b", 5.0)
    assert level.start("b") == 25.0
    level.wait("b")
    assert list(level.in_turn()) == [(25.0, "b"), (30.0, "c"), (60.0, "a")]
    level.rest("b")
    level.leave("b")
    level.leave("c")
    level.leave("a")
    assert (list(level.in_turn()), level.waits) == ([], False)


def test_D1_flows_whose_marks_nobody_renews_are_not_looked_past() -> None:
    bench = Bench(policy(kind="wfq", interactive={"wait_s_max": 100.0, "ttft_slo_s": None}, pool={"active_requests_max": 1}))
    for tenant in ("acme", "batchco") * 3:
        bench.arrive(10, tenant=tenant)
    bench.complete(bench.execution())
    turns = bench.book._turns["p"]
    marked = len(turns.marks)
    assert marked > 0
    bench.advance(0.2)
    bench.book.apply([], int(bench.now_s * 1000))
    turns.waiting_tokens(int(bench.now_s * 1000))
    tenants = turns.tenants["interactive"]
    assert (len(turns.marks), list(tenants.in_turn()), tenants.waits) == (0, [], True)


def test_B1_a_request_that_finds_every_place_taken_waits_for_a_place_and_asks_nothing() -> None:
    bench = Bench(policy(interactive={"wait_s_max": 100.0, "ttft_slo_s": None}, pool={"active_requests_max": 1}))
    bench.arrive(10)
    sequence = bench.book.sequence
    bench.arrive(10)
    assert bench.decisions()[-1].reason == "queue_timeout"
    assert bench.book.sequence == sequence
    bench.complete(bench.execution())
    assert len(bench.take(Run)) == 1
