"""A heartbeat looks at few, however much runs: counted in what it keeps, not in time."""

from __future__ import annotations

from headworks.core import events
from headworks.core.commands import Heartbeat
from headworks.core.effects import Ask, Run
from tests.core.driver import Bench, capacity
from tests.core.shared_pool import shared


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
