"""However many wait and however much others hold, what comes free is asked for by few; and a heartbeat looks at few.

Counted in commands and in lives looked at, not in time.
"""

from __future__ import annotations

import pytest

from headworks.core import events
from headworks.core.book import Book
from headworks.core.commands import Heartbeat, Reserve
from headworks.core.effects import Ask, Run
from headworks.core.pool import ASKED_MAX, CAREFUL_S, PAUSED_MAX
from tests.core.driver import Bench, capacity
from tests.core.shared_pool import shared


def two_gateways(places: int, flows: int) -> tuple[Bench, Bench]:
    """The first holds all places; at the second, which may believe that all of them are free, one of each flow waits."""
    tenants: dict[str, dict[str, object]] = {f"t{number}": {} for number in range(flows)}
    policy = shared(tenants=tenants, active_requests_max=places)
    book = Book(lease_ms=5_000, remember_ms=3_600_000)
    roomy = (capacity(kv_tokens=10_000_000),)
    first = Bench(policy, book=book, capacities=roomy)
    second = Bench(policy, book=book, boot="boot-2", capacities=roomy)
    for _ in range(places):
        first.arrive(100)
    for number in range(flows):
        second.arrive(100, tenant=f"t{number}")
    return first, second


def end_one(bench: Bench, run: Run) -> None:
    bench.first_byte(run.execution.id)
    bench.complete(run.execution.id, prompt_tokens=99, output_tokens=1)


def asked(bench: Bench) -> int:
    return sum(isinstance(command, Reserve) for effect in bench.take(Ask) for command in effect.commands)


@pytest.mark.parametrize(("places", "flows"), [(20, 20), (100, 20), (100, 100)])
def test_D2_what_comes_free_is_asked_for_by_few_however_much_others_hold(places: int, flows: int) -> None:
    first, second = two_gateways(places, flows)
    runs = first.take(Run)
    asked(second)
    for run in runs[:5]:
        end_one(first, run)
        second.feed(events.Freed("p"))
        assert 1 <= asked(second) <= ASKED_MAX + PAUSED_MAX
        second.advance(0.01)
        first.advance(0.01)
    assert len(second.take(Run)) == 5


def test_D2_all_that_comes_free_at_once_is_taken_though_few_are_asked_for_at_a_time() -> None:
    first, second = two_gateways(60, 60)
    runs = first.take(Run)
    second.take(Run)
    for run in runs:
        end_one(first, run)
    second.feed(events.Freed("p"))
    assert len(second.take(Run)) == 60


def test_D2_who_was_never_refused_is_asked_for_at_once_and_so_are_all_when_a_refusal_is_long_ago() -> None:
    _, second = two_gateways(60, 60)
    pool = second.gate._desk.pools["p"]
    assert pool.asked_max < 2 * ASKED_MAX
    assert not pool.asked
    pool.asks_again_s, pool.asked = 0.0, pool.asked_max  # as if answers had been lost for good
    assert not pool.may_ask(second.now_s)
    assert pool.may_ask(second.now_s + CAREFUL_S + 0.01)


def test_E3_a_heartbeat_looks_at_what_is_unread_and_at_nothing_else_that_runs() -> None:
    bench = Bench(shared(active_requests_max=50), capacities=(capacity(kv_tokens=10_000_000),))
    for _ in range(50):
        bench.arrive(100)
    runs = [run.execution.id for run in bench.take(Run)]
    for execution in runs:
        bench.first_byte(execution)
    bench.feed(events.ClientSlow(runs[7], True))
    bench.feed(events.ClientSlow(runs[9], True))
    bench.feed(events.ClientSlow(runs[9], False))
    assert unvouched(bench) == (runs[7],)
    assert list(bench.gate._desk.unread) == [runs[7]]
    bench.complete(runs[7], prompt_tokens=99, output_tokens=1)
    assert unvouched(bench) == ()
    assert not bench.gate._desk.unread


def unvouched(bench: Bench) -> tuple[str, ...]:
    """What the next heartbeat says."""
    bench.take(Ask)
    bench.advance(1.1)
    beats = [command for effect in bench.take(Ask) for command in effect.commands if isinstance(command, Heartbeat)]
    return beats[-1].unvouched
