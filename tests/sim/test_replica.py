"""The way to an engine and back: what a gateway is told of an execution, in which order, and what faults do to it."""

from __future__ import annotations

from dataclasses import replace

from headworks.core.types import ReplicaSample, Usage
from headworks.sim.batching import ContinuousBatching
from headworks.sim.connection import Distance, Sending
from headworks.sim.presets import tiny
from headworks.sim.replica import SimReplica
from headworks.sim.world import World

FOREVER = float("inf")


class Listener:
    """Writes down what it is told."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.heard: list[tuple[str, ...]] = []
        self.at_s: list[float] = []
        self.usage: Usage | None = None

    def _hear(self, *words: str) -> None:
        self.heard.append(words)
        self.at_s.append(round(self.world.now_s, 6))

    def on_not_sent(self, execution: str, reason: str) -> None:
        self._hear("not_sent", reason)

    def on_first_byte(self, execution: str) -> None:
        self._hear("first_byte")

    def on_progress(self, execution: str, output_tokens: int) -> None:
        """Told at its own rate; the tests below are about order."""

    def on_stopped(self, execution: str, usage: Usage, failed: bool) -> None:
        self.usage = usage
        self._hear("stopped", "failed" if failed else usage.end)

    def on_lost(self, execution: str, cause: str) -> None:
        self._hear("lost", cause)

    def on_closed(self, execution: str) -> None:
        self._hear("closed")


def place(distance: Distance | None = None, **settings: object) -> tuple[World, SimReplica, Listener]:
    """Steps of 10 ms, 19 blocks of 16 tokens, four sequences."""
    world = World()
    model = ContinuousBatching(replace(tiny(), **settings))  # type: ignore[arg-type]
    replica = SimReplica("p/0", model, world, distance or Distance(), seed=1)
    return world, replica, Listener(world)


def send(
    replica: SimReplica,
    listener: Listener,
    execution: str = "x",
    *,
    output: int = 10,
    limit: int = 250,
    before_s: float = FOREVER,
) -> None:
    replica.open(Sending(execution, 16, min(output, limit), limit, 1, (), before_s), listener)


def inside(world: World, replica: SimReplica) -> list[str]:
    return list(replica.model.held(world.now_s))


def test_G1_an_answer_takes_connecting_both_ways_and_the_steps() -> None:
    world, replica, listener = place(Distance(connect_s=0.1, latency_s=0.05))
    send(replica, listener, output=3)
    world.run(5.0)
    assert listener.heard == [("first_byte",), ("stopped", "stop")]
    # 0.1 connecting, 0.05 there, one step of 10 ms for the prompt and its first token, 0.05 back; two more steps.
    assert listener.at_s == [0.21, 0.23]
    assert listener.usage is not None
    assert (listener.usage.prompt_tokens, listener.usage.output_tokens, listener.usage.exact) == (16, 3, True)


def test_G1_an_answer_cut_by_its_limit_ends_with_length() -> None:
    world, replica, listener = place()
    send(replica, listener, output=50, limit=5)
    world.run(5.0)
    assert listener.heard[-1] == ("stopped", "length")


def test_A7_nothing_is_written_after_the_fence() -> None:
    world, replica, listener = place(Distance(connect_s=0.5))
    send(replica, listener, before_s=0.4)
    world.run(5.0)
    assert listener.heard == [("not_sent", "late")]
    assert replica.taken == {}


def test_E2_an_abort_while_connecting_sends_nothing() -> None:
    world, replica, listener = place(Distance(connect_s=0.5))
    send(replica, listener)
    world.at(0.2, lambda: replica.abort("x"))
    world.run(5.0)
    assert listener.heard == [("not_sent", "gone")]
    assert replica.taken == {}


def test_A5_an_abort_is_answered_by_the_servers_close_and_the_sequence_leaves_at_the_next_boundary() -> None:
    world, replica, listener = place(Distance(latency_s=0.02))
    send(replica, listener, output=200)
    world.at(0.5, lambda: replica.abort("x"))
    world.run(0.5199)
    assert inside(world, replica) == ["x"]
    world.run(0.54)
    assert listener.heard[-1] == ("closed",)
    assert inside(world, replica) == []
    world.run(5.0)
    assert listener.heard == [("first_byte",), ("closed",)]


def test_K12_a_deaf_server_neither_closes_nor_stops_until_it_hears_again() -> None:
    world, replica, listener = place()
    send(replica, listener, output=200)
    world.at(0.1, lambda: replica.ignore_aborts(1.0))
    world.at(0.2, lambda: replica.abort("x"))
    world.run(1.09)
    assert listener.heard == [("first_byte",)]
    assert inside(world, replica) == ["x"]
    world.run(1.2)
    assert listener.heard[-1] == ("closed",)
    assert inside(world, replica) == []


def test_E4_a_restart_resets_every_connection_and_shows_another_incarnation() -> None:
    world, replica, listener = place()
    seen: list[ReplicaSample | None] = []
    send(replica, listener, output=200)
    world.at(0.2, lambda: replica.scrape(seen.append))
    world.at(0.3, lambda: replica.restart(0.5))
    world.at(0.4, lambda: replica.scrape(seen.append))
    world.at(0.9, lambda: replica.scrape(seen.append))
    world.run(1.0)
    assert listener.heard == [("first_byte",), ("lost", "reset")]
    before, during, after = seen
    assert before is not None
    assert after is not None
    assert during is None
    assert before.incarnation != after.incarnation
    assert (before.running, after.running) == (1, 0)


def test_E2_connections_are_refused_while_the_process_is_down() -> None:
    world, replica, listener = place()
    world.at(0.1, lambda: replica.restart(0.5))
    world.at(0.2, lambda: send(replica, listener))
    world.run(1.0)
    assert listener.heard == [("not_sent", "connect")]


def test_A7_a_broken_connection_is_noticed_by_the_engine_later_than_by_the_gateway() -> None:
    world, replica, listener = place(Distance(notice_s=1.0))
    send(replica, listener, output=200)
    world.at(0.1, lambda: replica.break_connections(1.0))
    world.run(0.1)
    assert listener.heard == [("first_byte",), ("lost", "broken")]
    assert inside(world, replica) == ["x"]
    world.run(1.2)
    assert inside(world, replica) == []
    assert len(listener.heard) == 2


def test_A7_a_request_on_the_way_when_its_connection_breaks_may_still_arrive() -> None:
    world, replica, listener = place(Distance(latency_s=0.2))
    send(replica, listener)
    world.at(0.1, lambda: replica.break_connections(1.0))
    world.run(0.25)
    assert listener.heard == [("lost", "broken")]
    assert list(replica.taken) == ["x"]


def test_K02_a_full_engine_says_busy_and_starts_nothing() -> None:
    world, replica, listener = place(queued_max=1)
    other = Listener(world)
    send(replica, other, "first", output=200)
    world.at(0.1, lambda: send(replica, listener, "second"))
    world.run(0.2)
    assert listener.heard == [("not_sent", "busy")]
    assert list(replica.taken) == ["first"]


def test_B3_a_hung_engine_closes_its_side_and_its_gauges_stand_still() -> None:
    world, replica, listener = place()
    seen: list[ReplicaSample | None] = []
    send(replica, listener, output=200)
    world.at(0.1, lambda: replica.hang(1.0))
    world.at(0.2, lambda: replica.abort("x"))
    for at_s in (0.3, 0.9):
        world.at(at_s, lambda: replica.scrape(seen.append))
    world.run(0.95)
    assert listener.heard[-1] == ("closed",)
    assert inside(world, replica) == ["x"]
    assert [one.iterations for one in seen if one] == [seen[0].iterations] * 2 if seen[0] else False
    world.run(2.0)
    assert inside(world, replica) == []


def test_G1_work_done_for_nobody_is_counted_where_it_was_done() -> None:
    world, replica, listener = place()
    send(replica, listener, output=200)
    world.at(0.1005, lambda: replica.abort("x"))
    world.run(1.0)
    assert replica.work_tokens == {"x": 16 + 11}
    assert round(replica.ended_s["x"], 6) == 0.11


def test_a_gateway_that_stands_still_writes_when_it_goes_on_or_never() -> None:
    world, replica, listener = place(Distance(connect_s=0.1))
    send(replica, listener, before_s=2.0)
    send(replica, listener, "y")
    replica.hold_back(listener, 3.0)
    world.run(2.9)
    assert (listener.heard, inside(world, replica)) == ([], [])
    assert not replica.is_listened_to("y"), "what it did meanwhile nobody would have heard"
    world.run(3.0)
    assert (listener.heard, inside(world, replica)) == ([("not_sent", "late")], ["y"])
