"""What a gateway predicts while others wait for the same engines (B2), and how it is woken."""

from __future__ import annotations

from typing import Any

from headworks.core import events
from headworks.core.book import Book
from headworks.core.effects import Run
from tests.core.driver import Bench, policy

QUEUE: dict[str, Any] = {"wait_s_max": 60.0, "ttft_slo_s": None}
PER_S = 10.0


def fleet(count: int, kind: str = "fifo") -> list[Bench]:
    """Gateways of one ledger, in front of an engine that runs one request at a time."""
    book = Book(lease_ms=5_000, remember_ms=3_600_000)
    settings = policy(interactive=QUEUE, pool={"active_requests_max": 1}, kind=kind)
    return [Bench(settings, book=book, boot=f"boot-{number}") for number in range(count)]


def step(gateways: list[Bench]) -> None:
    """The engine ends what it runs; whoever the ledger names is woken; a tenth of a second passes."""
    for one in gateways:
        for run in one.take(Run):
            one.first_byte(run.execution.id)
            one.complete(run.execution.id)
            break
        else:
            continue
        break
    boots = {one.gate._desk.owner: one for one in gateways}
    for owner, pool in gateways[0].book.take_wakes():
        boots[owner].feed(events.Freed(pool))
    for one in gateways:
        one.advance(1 / PER_S)


def test_B2_three_gateways_with_fifteen_waiting_each_predict_45_over_10_on_each() -> None:
    gateways = fleet(3)
    for one in gateways:
        for _ in range(15 + 12):
            one.arrive(100)
    served = 0
    while served < 36:
        step(gateways)
        served += 1
    waits_s = []
    for one in gateways:
        one.decisions()
        one.arrive(100)
        (decision,) = one.decisions()
        waits_s.append(decision.forecast.wait_s)
    assert all(wait_s is not None and 4.0 <= wait_s <= 5.0 for wait_s in waits_s), waits_s
