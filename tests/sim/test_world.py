"""Virtual time: things happen when they are due, in the order in which they were asked for, and never twice."""

from __future__ import annotations

from headworks.sim.world import World


def test_G1_actions_happen_in_time_order_and_ties_in_the_order_of_asking() -> None:
    world = World()
    seen: list[str] = []
    world.at(2.0, lambda: seen.append("late"))
    world.at(1.0, lambda: seen.append("first of two"))
    world.at(1.0, lambda: seen.append("second of two"))
    world.run(5.0)
    assert seen == ["first of two", "second of two", "late"]
    assert world.now_s == 5.0


def test_G1_an_action_asked_for_in_the_past_happens_next_and_not_at_once() -> None:
    world = World()
    seen: list[str] = []

    def act() -> None:
        world.at(0.5, lambda: seen.append("inner"))
        seen.append("outer")

    world.at(1.0, act)
    world.run(1.0)
    assert seen == ["outer", "inner"]


def test_G1_a_run_stops_at_its_limit_and_can_be_continued() -> None:
    world = World()
    seen: list[float] = []
    for at_s in (1.0, 2.0, 3.0):
        world.at(at_s, lambda at_s=at_s: seen.append(at_s))
    world.run(2.0)
    assert seen == [1.0, 2.0]
    world.run(10.0, enough=lambda: len(seen) == 3)
    assert seen == [1.0, 2.0, 3.0]
    assert world.now_s == 3.0


def test_G1_the_watch_looks_after_every_action() -> None:
    world = World()
    looks: list[float] = []
    world.watch = lambda: looks.append(world.now_s)
    world.at(1.0, lambda: None)
    world.at(4.0, lambda: None)
    world.run(5.0)
    assert looks == [1.0, 4.0]
