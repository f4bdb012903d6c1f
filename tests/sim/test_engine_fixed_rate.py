"""`FixedRate`: figures that can be worked out by hand."""

from __future__ import annotations

import pytest

from headworks.sim.engine import Finished, FirstToken, Held, Submitted, Tokens
from headworks.sim.fixed_rate import FixedRate
from headworks.sim.presets import FixedRateSettings


@pytest.mark.parametrize(("offered", "rate", "burst_s", "inside"), [(30, 10.0, 10, 200), (36, 12.0, 15, 360)])
@pytest.mark.parametrize("servers", [1, 4])
def test_G3_the_burst_leaves_the_queue_of_the_specification(
    offered: int, rate: float, burst_s: int, inside: int, servers: int
) -> None:
    engine = FixedRate(FixedRateSettings(rate_per_s=rate, servers=servers))
    for arrival in range(offered * burst_s):
        engine.submit(str(arrival), 100, 10, 1, (), arrival / offered)
    seen = engine.sample(float(burst_s))
    # With several seats the first departures come one service time later, and then several at once.
    assert inside <= seen.running + seen.waiting < inside + servers
    assert seen.running == servers


def test_G3_a_request_takes_exactly_servers_over_rate() -> None:
    engine = FixedRate(FixedRateSettings(rate_per_s=10.0, servers=2, prefill_ratio=0.25))
    for name in "abc":
        assert engine.submit(name, 100, 5, 1, (), 0.0) == Submitted.ACCEPTED
    outputs = engine.advance(1.0)
    assert [(output.execution, output.at_s) for output in outputs if isinstance(output, FirstToken)] == [
        ("a", 0.05),
        ("b", 0.05),
        ("c", 0.25),
    ]
    assert [output for output in outputs if isinstance(output, Finished)] == [
        Finished("a", "stop", 0.2),
        Finished("b", "stop", 0.2),
        Finished("c", "stop", 0.4),
    ]
    assert sum(output.tokens for output in outputs if isinstance(output, Tokens)) == 15


def test_G3_service_goes_on_for_a_client_who_left_unless_it_is_aborted() -> None:
    engine = FixedRate(FixedRateSettings(rate_per_s=1.0, tick_s=0.01))
    engine.submit("a", 100, 10, 1, (), 0.0)
    engine.submit("b", 100, 10, 1, (), 0.0)
    engine.abort("a", 0.3049)
    assert set(engine.held(0.3099)) == {"a", "b"}
    assert engine.held(0.31) == {"b": Held(1, 110)}
    assert engine.advance(5.0)[-1] == Finished("b", "stop", 1.31)


def test_G3_an_aborted_request_in_the_line_is_never_served() -> None:
    engine = FixedRate(FixedRateSettings(rate_per_s=1.0))
    for name in "abc":
        engine.submit(name, 100, 10, 1, (), 0.0)
    engine.abort("b", 0.5)
    ended = [output for output in engine.advance(5.0) if isinstance(output, Finished)]
    assert ended == [Finished("b", "abort", 0.51), Finished("a", "stop", 1.0), Finished("c", "stop", 2.0)]


def test_G1_the_progress_clock_moves_only_while_somebody_is_served() -> None:
    engine = FixedRate(FixedRateSettings(rate_per_s=10.0, tick_s=0.01))
    assert engine.sample(1.0).iterations == 0
    engine.submit("a", 100, 10, 1, (), 1.0)
    assert engine.sample(1.045).iterations == 4
    assert engine.sample(2.0).iterations == 10


def test_G1_a_hung_server_stands_still() -> None:
    engine = FixedRate(FixedRateSettings(rate_per_s=10.0))
    engine.submit("a", 100, 10, 1, (), 0.0)
    engine.pause(0.05)
    engine.submit("b", 100, 10, 1, (), 0.5)
    assert engine.next_s() == 0.01
    assert [type(output) for output in engine.advance(3.0)] == [FirstToken, Tokens]
    assert engine.next_s() is None
    assert (engine.sample(3.0).running, engine.sample(3.0).waiting, engine.sample(3.0).iterations) == (1, 0, 5)
    engine.resume(3.05)
    ended = [output for output in engine.advance(9.0) if isinstance(output, Finished)]
    assert ended == [Finished("a", "stop", 3.1), Finished("b", "stop", 3.2)]


def test_G1_the_queue_limit_and_the_restart() -> None:
    engine = FixedRate(FixedRateSettings(rate_per_s=10.0, queued_max=2))
    engine.submit("a", 100, 10, 1, (), 0.0)
    engine.submit("b", 100, 10, 1, (), 0.0)
    assert engine.submit("c", 100, 10, 1, (), 0.0) == Submitted.BUSY
    assert engine.restart(0.05) == ["a", "b"]
    assert engine.held(0.05) == {}
    assert engine.sample(0.06).incarnation == 2
    assert engine.submit("c", 100, 10, 1, (), 0.1) == Submitted.ACCEPTED
    assert engine.advance(9.0)[-1] == Finished("c", "stop", 0.2)


def test_E3a_an_abort_taken_in_while_it_hangs_takes_effect_with_the_first_tick_after() -> None:
    """Not later by as long as it hung: its clock would prove four ticks long before that."""
    engine = FixedRate(FixedRateSettings(rate_per_s=1.0, tick_s=0.01))
    engine.submit("a", 100, 10, 1, (), 0.0)
    engine.pause(0.205)
    engine.abort("a", 3.5)
    engine.resume(4.2)
    assert engine.advance(4.3)[-1] == Finished("a", "abort", 4.205)
