"""Callers: patience, leaving seen and unseen, and the retry rules of the common SDKs."""

from __future__ import annotations

from random import Random

from sim_values import decision

from headworks.core.reasons import REASONS
from headworks.core.types import Decision
from headworks.sim.clients import Attempt, Caller, Temper
from headworks.sim.report import is_useful
from headworks.sim.traffic import Planned
from headworks.sim.world import World

FOREVER = float("inf")


class Door:
    """A gateway that only takes notes."""

    def __init__(self, world: World, listens: bool = True) -> None:
        self.world = world
        self.listens = listens
        self.sent: list[tuple[float, Attempt]] = []
        self.left: list[tuple[float, str]] = []

    def send(self, caller: Caller, attempt: Attempt) -> bool:
        if self.listens:
            self.sent.append((self.world.now_s, attempt))
        return self.listens

    def leave(self, attempt: Attempt) -> None:
        self.left.append((self.world.now_s, attempt.id))


def _caller(temper: Temper, listens: bool = True) -> tuple[World, Door, Caller, list[Caller]]:
    world = World()
    door = Door(world, listens)
    settled: list[Caller] = []
    caller = Caller(0, Planned(0.0, 0, 10, 10, ()), temper, world, door, Random(1), settled.append)
    world.at(0.0, caller.start)
    world.run(0.0)
    return world, door, caller, settled


def _refusal(reason: str, retry_after_s: float | None) -> Decision:
    assert reason in REASONS
    return decision("r0.0", "refuse", reason, retry_after_s)


def test_K52_a_hint_is_obeyed_exactly_and_without_jitter() -> None:
    world, door, caller, _ = _caller(Temper(retries_max=2))
    caller.on_refused(door.sent[0][1], _refusal("queue_delay_exceeded", 4.515))
    world.run(100.0)
    assert [at_s for at_s, _ in door.sent] == [0.0, 4.515]


def test_B15_without_a_hint_the_wait_doubles_from_half_a_second_less_up_to_a_quarter() -> None:
    world, door, caller, _ = _caller(Temper(retries_max=2))
    caller.on_refused(door.sent[0][1], _refusal("upstream_lost", None))
    world.run(10.0)
    first_s = door.sent[1][0]
    assert 0.375 <= first_s <= 0.5
    caller.on_refused(door.sent[1][1], _refusal("upstream_lost", None))
    world.run(20.0)
    assert 0.75 <= door.sent[2][0] - 10.0 <= 1.0


def test_B15_at_most_two_retries_and_then_the_caller_gives_up() -> None:
    world, door, caller, settled = _caller(Temper(retries_max=2))
    for number in range(3):
        caller.on_refused(door.sent[number][1], _refusal("queue_full", 1.0))
        world.run(world.now_s + 5.0)
    assert len(door.sent) == 3
    assert settled == [caller]


def test_B2_a_refusal_that_says_do_not_retry_is_not_retried() -> None:
    for reason, hint_s in (("request_exceeds_capacity", None), ("insufficient_quota", None), ("queue_delay_exceeded", 60.5)):
        world, door, caller, settled = _caller(Temper(retries_max=2))
        caller.on_refused(door.sent[0][1], _refusal(reason, hint_s))
        world.run(100.0)
        assert len(door.sent) == 1, reason
        assert settled == [caller]


def test_E2_an_impatient_client_leaves_visibly_when_no_first_token_came() -> None:
    world, door, caller, settled = _caller(Temper(patience_s=2.0))
    world.run(10.0)
    assert door.left == [(2.0, "r0.0")]
    assert settled == [caller]


def test_E2_a_client_that_has_its_first_token_stays() -> None:
    world, door, caller, settled = _caller(Temper(patience_s=2.0))
    attempt = door.sent[0][1]
    world.at(1.9, lambda: caller.on_first_byte(attempt))
    world.at(9.0, lambda: caller.on_completed(attempt))
    world.run(10.0)
    assert door.left == []
    assert settled == [caller]
    assert is_useful(attempt)


def test_E2_a_hidden_disconnect_tells_the_gateway_nothing_and_its_answer_is_of_no_use() -> None:
    world, door, caller, settled = _caller(Temper(patience_s=2.0, hidden_ratio=1.0))
    attempt = door.sent[0][1]
    world.at(3.0, lambda: caller.on_first_byte(attempt))
    world.at(4.0, lambda: caller.on_completed(attempt))
    world.run(10.0)
    assert door.left == []
    assert settled == [caller]
    assert attempt.end == "completed"
    assert not is_useful(attempt)


def test_A6_a_client_that_ran_out_of_patience_comes_back_under_the_same_key() -> None:
    world, door, caller, _ = _caller(Temper(patience_s=1.0, retries_max=2, retries_after_leaving=True, key_ratio=1.0))
    world.run(1.6)
    assert [attempt.id for _, attempt in door.sent] == ["r0.0", "r0.1"]
    assert caller.key == "key-r0"
    assert 1.375 <= door.sent[1][0] <= 1.5


def test_E2_an_answer_that_broke_after_its_first_byte_is_not_retried() -> None:
    world, door, caller, settled = _caller(Temper(retries_max=2))
    attempt = door.sent[0][1]
    caller.on_first_byte(attempt)
    caller.on_broken(attempt, "upstream_lost")
    world.run(10.0)
    assert len(door.sent) == 1
    assert attempt.end == "broken"
    assert settled == [caller]


def test_B15_a_refused_connection_is_retried() -> None:
    world, door, caller, settled = _caller(Temper(retries_max=2), listens=False)
    door.listens = True
    world.run(10.0)
    assert len(caller.attempts) == 2
    assert caller.attempts[0].end == "lost"
    assert len(door.sent) == 1
    assert settled == []
