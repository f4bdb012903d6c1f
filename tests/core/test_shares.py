"""Turns of classes and tenants at one gate (D1, D2, D3, B6): who is asked for next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headworks.core import events
from headworks.core.effects import Reply, Run
from headworks.core.types import Charge
from tests.core.driver import Bench
from tests.core.shared_pool import Counter, shared

# turns


def test_D1_classes_are_served_by_their_shares_while_both_wait() -> None:
    counter = Counter(shared())
    counter.arrive("bulk", "batchco", 100)
    counter.arrive("interactive", "acme", 100)
    order = counter.served(55)
    assert order.count("interactive/acme") == 50
    assert order.count("bulk/batchco") == 5


def test_D1_tenants_are_served_by_their_shares_inside_a_class() -> None:
    counter = Counter(shared(tenants={"acme": {"share": 3.0}}))
    counter.arrive("bulk", "batchco", 50)
    counter.arrive("bulk", "acme", 50)
    order = counter.served(40)
    assert (order.count("bulk/acme"), order.count("bulk/batchco")) == (30, 10)


def test_D1_a_tenant_in_another_class_takes_nothing_from_its_own_class() -> None:
    counter = Counter(shared())
    counter.arrive("interactive", "acme", 100)
    counter.arrive("bulk", "acme", 50)
    counter.arrive("bulk", "batchco", 50)
    order = counter.served(44)
    assert order.count("interactive/acme") == 40
    assert order.count("bulk/acme") == order.count("bulk/batchco") == 2


def test_D1_shares_are_of_tokens_not_of_requests() -> None:
    counter = Counter(shared())
    counter.arrive("bulk", "acme", 200, tokens=100)
    counter.arrive("bulk", "batchco", 50, tokens=400)
    order = counter.served(60)
    assert (order.count("bulk/acme"), order.count("bulk/batchco")) == (48, 12)


def test_D1_what_was_not_used_comes_back_as_turns() -> None:
    """Both are charged 400 a turn; acme uses a quarter of it and is served four times as often."""
    counter = Counter(shared(tenants={"frugal": {}}))
    bench = counter.bench
    counter.arrive("bulk", "frugal", 100, tokens=400)
    counter.arrive("bulk", "batchco", 100, tokens=400)
    order: list[str] = []
    counter.served(0)
    for _ in range(50):
        who, _, _ = counter.running[0]
        order += counter.served(1, used_tokens=100 if who == "bulk/frugal" else 400)
    assert 38 <= order.count("bulk/frugal") <= 41
    assert bench.book.check() == []


def test_D1_idleness_is_not_saved_up() -> None:
    counter = Counter(shared())
    counter.arrive("bulk", "acme", 60)
    counter.served(40)
    counter.arrive("bulk", "batchco", 20)
    order = counter.served(20)
    assert order.count("bulk/batchco") == 10


def test_D1_a_turn_that_the_ledger_did_not_grant_is_given_back() -> None:
    settings = shared(active_requests_max=4)
    counter = Counter(settings)
    book = counter.bench.book
    counter.arrive("bulk", "acme", 4)  # every place is taken
    counter.arrive("bulk", "acme", 10)
    counter.arrive("bulk", "batchco", 10)
    limits = (Charge("pool:p", "tokens", 0),)
    book.counters.set(limits, ())  # as if others had taken everything meanwhile
    assert counter.served(3) == []
    book.counters.set((), ())
    counter.bench.feed(events.Freed("p"))
    order = counter.sent() + counter.served(7)
    assert abs(order.count("bulk/acme") - order.count("bulk/batchco")) <= 1


def test_B6_in_a_tenants_queue_stands_first_who_has_to_start_first() -> None:
    counter = Counter(shared())
    bench = counter.bench
    counter.arrive("bulk", "acme")
    late = bench.arrive(100, service_class="bulk", start_by_s=bench.now_s + 50.0)
    soon = bench.arrive(100, service_class="bulk", start_by_s=bench.now_s + 5.0)
    later = bench.arrive(100, service_class="bulk", start_by_s=bench.now_s + 500.0)
    counter.who.update({late: "late", soon: "soon", later: "later"})
    assert counter.served(3) == ["soon", "late", "later"]


def test_D3_class_priority_serves_the_higher_class_and_starves_the_other() -> None:
    counter = Counter(shared(kind="class_priority"))
    counter.arrive("bulk", "batchco", 30)
    counter.arrive("interactive", "acme", 30)
    assert counter.served(30) == ["interactive/acme"] * 30


# large heads


def test_D2_a_large_head_is_passed_sixteen_times_and_then_saved_for() -> None:
    counter = Counter(shared(active_requests_max=100, active_tokens_max=1_000))
    counter.arrive("bulk", "batchco", 10)
    counter.arrive("bulk", "acme", 1, tokens=1_000)
    counter.arrive("bulk", "batchco", 60)
    order = counter.served(26)
    assert order == ["bulk/batchco"] * 16 + ["bulk/acme"]


def test_D2_a_tenant_at_its_own_limit_is_passed_freely() -> None:
    counter = Counter(shared(tenants={"batchco": {"active_tokens_max": 150}}, active_requests_max=4))
    counter.arrive("bulk", "batchco", 40)
    counter.arrive("bulk", "acme", 60)
    counter.served(0)
    assert len(counter.running) == 4
    order = counter.served(40)
    assert order.count("bulk/acme") == 30 and order.count("bulk/batchco") == 10


# changes


def test_D1_another_discipline_after_a_reload_takes_over_what_waits() -> None:
    settings = shared(kind="fifo")
    counter = Counter(settings)
    counter.arrive("bulk", "batchco", 60)
    counter.arrive("interactive", "acme", 60)
    assert counter.served(10) == ["bulk/batchco"] * 10
    counter.bench.feed(events.PolicyChanged(replace(shared(), version="v2", number=2)))
    order = counter.served(44)
    assert order.count("interactive/acme") == 40


@pytest.mark.parametrize(
    ("before", "after", "order"),
    [("wfq", "fifo", ["r2", "r3", "r4", "r5"]), ("fifo", "wfq", ["r5", "r3", "r4", "r2"])],
    ids=["to arrival", "to deadline"],
)
def test_D3_a_reload_puts_what_waits_into_the_new_order(before: str, after: str, order: list[str]) -> None:
    bench = Bench(shared(kind=before))
    for start_by_s in (500.0, 400.0, 200.0, 300.0):
        bench.arrive(100, start_by_s=start_by_s)
    execution = bench.execution()
    bench.feed(events.PolicyChanged(replace(shared(kind=after), version="v2", number=2)))
    bench.arrive(100, start_by_s=150.0)
    sent = []
    for _ in range(4):
        bench.complete(execution)
        (run,) = bench.take(Run)
        execution = run.execution.id
        sent.append(run.id)
    assert sent == order


def test_F3_observing_lets_everything_through_whoever_has_had_more() -> None:
    counter = Counter(replace(shared(), observe=True))
    counter.arrive("bulk", "batchco", 30)
    counter.arrive("interactive", "acme", 5)
    counter.served(0)
    assert len(counter.running) == 35
    assert counter.bench.take(Reply) == []


def test_K07_lines_that_empty_by_leaving_clients_leave_nothing_behind() -> None:
    counter = Counter(shared())
    counter.arrive("bulk", "batchco", 5)
    for arrived in [name for name in counter.who if name != "r1"]:
        counter.bench.feed(events.ClientGone(arrived))
    counter.arrive("interactive", "acme", 2)
    assert counter.served(2) == ["interactive/acme"] * 2
    queue = counter.bench.gate.snapshot(counter.bench.now_s)["pools"]["p"]["queue"]
    assert queue == {}
