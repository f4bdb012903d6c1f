"""The parts of a replay by hand: engines as a log remembers them, and requests as they would come under a policy (G2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from headworks.core.events import Event, Evidence, FirstByte, ReplicaSampled, Stopped
from headworks.core.policy import ClassPolicy, Policy, PoolPolicy, ReplicaPolicy, TenantPolicy
from headworks.core.types import Capacity, ReplicaSample, RequestKey, Usage, Work
from headworks.sim.connection import Sending
from headworks.sim.world import World
from headworks.tools.decision_log import Life
from headworks.tools.log_lines import Arrival, Asked, Ended
from headworks.tools.replay import request_of
from headworks.tools.replay_engine import Agenda, RecordedEngine
from headworks.tools.replay_model import Course, Model

ASKED = Asked(100, None, 200, 0, 1, True, False, False, 0, None, 55.0)
CAPACITY = Capacity("main/0", "vllm", "1", "i", 4096, 10_000, 16, 8, ("E1", "E3a"))
SAMPLE = ReplicaSample("main/0", "i", 0.0, 0.0, (100,), 2, 0, 0.25, None, 0, (2,))
POLICY = Policy(
    "v",
    1,
    {"interactive": ClassPolicy("interactive"), "bulk": ClassPolicy("bulk", gateway_s=600.0)},
    {"acme": TenantPolicy("acme", classes=("interactive", "bulk"))},
    {"main": PoolPolicy("main", ("m",), (ReplicaPolicy("main/0"),))},
)


def ended(name: str, **fields: Any) -> Ended:
    """A whole answer of 100 tokens: sent at 10 s, first byte at 10.5, over at 12."""
    given: dict[str, Any] = {
        "id": name,
        "key": RequestKey("acme", name),
        "outcome": "completed",
        "reason": "",
        "service_class": "interactive",
        "model": "m",
        "pool": "main",
        "client": "acme/1",
        "arrived_s": 9.0,
        "sent_s": 10.0,
        "first_byte_s": 10.5,
        "ended_s": 12.0,
        "work": Work(300, 100, 1, 0.0, 304, 200),
        "usage": Usage(80, 0, 100, 2.0, "stop", True),
        "evidence": "E1",
        "unconfirmed_s": None,
        "in_slo": True,
        "replica": "main/0",
        "asked": ASKED,
    }
    return Ended(**(given | fields))


class Scene:
    """One engine of a log of these arrivals, and what is heard of it."""

    def __init__(self, *log: Ended) -> None:
        self.world = World()
        self.told: list[tuple[float, Event]] = []
        self.arrivals = {one.id: Arrival(one.sent_s or 0.0, one, 0, place) for place, one in enumerate(log)}
        life = Life("g", "b", 0.0, 0.0, True, "", arrivals=list(self.arrivals.values()))
        agenda, arrival_of, on_time = Agenda(self.world), self.arrivals.__getitem__, self.world.at
        self.engine = RecordedEngine("main/0", log, Model(life), self.world, agenda, arrival_of, self.tell, on_time)
        self.engine.described(CAPACITY)

    def tell(self, event: Event) -> None:
        self.told.append((round(self.world.now_s, 6), event))

    def send(self, name: str, at_s: float, output_tokens_max: int = 200) -> None:
        sending = Sending(name, 80, output_tokens_max, output_tokens_max, 1, (), 1e9)
        self.world.at(at_s, lambda: self.engine.open(sending, self))

    def heard(self, kind: type[Event]) -> list[tuple[float, Event]]:
        return [(at_s, event) for at_s, event in self.told if isinstance(event, kind)]

    def on_not_sent(self, execution: str, reason: str) -> None:
        raise AssertionError

    def on_first_byte(self, execution: str) -> None:
        self.tell(FirstByte(execution))

    def on_progress(self, execution: str, output_tokens: int) -> None: ...

    def on_stopped(self, execution: str, usage: Usage, failed: bool) -> None:
        self.tell(Stopped(execution, usage, failed))

    def on_lost(self, execution: str, cause: str) -> None:
        raise AssertionError

    def on_closed(self, execution: str) -> None: ...


def names(heard: Sequence[tuple[float, Any]]) -> list[tuple[float, str]]:
    return [(at_s, event.execution) for at_s, event in heard]


def test_G2_sent_at_the_recorded_instant_it_has_the_recorded_times() -> None:
    scene = Scene(ended("a"))
    scene.send("a", 10.02)
    scene.world.run(20.0)
    assert names(scene.heard(FirstByte)) == [(10.5, "a")]
    assert names(scene.heard(Stopped)) == [(12.0, "a")]


def test_G2_sent_later_it_takes_as_long() -> None:
    scene = Scene(ended("a"))
    scene.send("a", 11.0)
    scene.world.run(20.0)
    assert names(scene.heard(FirstByte)) == [(11.5, "a")]
    assert names(scene.heard(Stopped)) == [(13.0, "a")]


def test_G2_those_that_were_granted_together_are_sent_together_again() -> None:
    """One answer of the ledger let all ten go: none found another inside, then or now. Eight show what more inside cost."""
    together = [ended(f"{number}", first_byte_s=10.5 + number / 10) for number in range(10)]
    others = [ended(f"x{n}", sent_s=100.0 + n / 100, first_byte_s=100.1 + n / 5, ended_s=103.0) for n in range(8)]
    scene = Scene(*together, *others)
    for one in reversed(together):
        scene.send(one.id, 10.0)
    scene.world.run(20.0)
    assert sorted(names(scene.heard(FirstByte))) == [(10.5 + number / 10, f"{number}") for number in range(10)]


def test_G2_a_busy_process_that_looked_late_is_not_thought_to_have_looked() -> None:
    scene = Scene(ended("a"))
    scene.world.at(9.0, lambda: scene.engine.sampled(replace(SAMPLE, running=0)))
    scene.world.at(9.0, scene.engine.keep_looking)
    scene.world.run(14.0)
    looked_s = [at_s for at_s, _ in scene.heard(ReplicaSampled)]
    assert looked_s == [9.0, 9.5, 12.0, 12.5, 13.0, 13.5, 14.0], (
        "from 10 to 12 it had something inside: looks would be in the log"
    )


def test_G2_what_ended_at_one_instant_ends_in_the_order_of_then() -> None:
    first, second = ended("first"), ended("second", sent_s=9.5, first_byte_s=9.8)
    scene = Scene(first, second)
    scene.send("second", 9.5)
    scene.send("first", 10.0)
    scene.world.run(20.0)
    assert names(scene.heard(Stopped)) == [(12.0, "first"), (12.0, "second")]


def test_G2_a_lower_limit_ends_an_answer_sooner_and_as_its_limit() -> None:
    scene = Scene(ended("a"))
    scene.send("a", 10.0, output_tokens_max=50)
    scene.world.run(20.0)
    ((at_s, event),) = scene.heard(Stopped)
    assert at_s == 11.25
    assert isinstance(event, Stopped)
    assert (event.usage.output_tokens, event.usage.end) == (50, "length")


def test_G2_a_stop_is_proved_as_late_as_it_was() -> None:
    scene = Scene(ended("a", outcome="cancelled", ended_s=11.4, unconfirmed_s=0.2, evidence="E3b", usage=None))
    scene.send("a", 10.0)
    scene.world.at(11.0, lambda: scene.engine.abort("a"))
    scene.world.run(20.0)
    assert scene.heard(Evidence) == [(11.2, Evidence("a", "E3b"))]
    assert scene.heard(Stopped) == []


def looked_at(scene: Scene, sample: ReplicaSample) -> ReplicaSample:
    scene.engine.sampled(sample)
    event = scene.told[-1][1]
    assert isinstance(event, ReplicaSampled)
    return event.sample


def test_G2_gauges_are_those_of_then_under_a_like_load() -> None:
    scene = Scene(ended("a"), ended("b"))
    scene.send("a", 10.0)
    scene.world.run(11.0)
    assert looked_at(scene, SAMPLE) == SAMPLE


def test_G2_gauges_move_by_what_is_inside_now_and_was_not_then() -> None:
    log = [ended("a"), ended("b"), *(ended(f"new{number}", sent_s=None, first_byte_s=None) for number in range(8))]
    scene = Scene(*log)
    for one in log:
        scene.send(one.id, 10.0)
    scene.world.run(10.2)
    moved = looked_at(scene, SAMPLE)
    assert (moved.running, moved.waiting, moved.rank_loads) == (8, 2, (10,)), "eight more than then, and eight run at once"
    assert moved.kv_used_ratio == pytest.approx(0.25 + 8 * (80 + 50) / 10_000)
    assert moved.iterations is not None
    assert moved.iterations[0] > 100, "its clock goes on"


def test_G2_gauges_move_down_where_nothing_runs_any_more() -> None:
    scene = Scene(*(ended(f"{number}") for number in range(4)))
    scene.world.run(11.0)
    moved = looked_at(scene, replace(SAMPLE, running=4, waiting=3))
    assert (moved.running, moved.waiting) == (3, 0), "four of the seven were these"


def test_G2_between_recorded_looks_an_engine_is_looked_at() -> None:
    scene = Scene(ended("a"))
    scene.world.at(0.0, scene.engine.keep_looking)
    scene.world.run(2.0)
    assert [at_s for at_s, _ in scene.heard(ReplicaSampled)] == [0.0, 0.5, 1.0, 1.5, 2.0]
    scene.engine.unseen(unreachable=False)
    scene.world.run(4.0)
    assert len(scene.heard(ReplicaSampled)) == 5, "nothing was seen of it"


def test_G2_an_answer_nobody_saw_the_end_of_is_longer_than_what_was_seen() -> None:
    short = [ended(f"s{number}", usage=Usage(80, 0, 10, 1.0, "stop", True)) for number in range(9)]
    cut = ended("cut", outcome="cancelled", usage=Usage(80, 0, 60, 0.0, "cancelled", False), evidence="E3a", unconfirmed_s=0.1)
    model = Model(Life("g", "b", 0.0, 0.0, True, "", arrivals=[Arrival(9.0, one) for one in (*short, ended("long"), cut)]))
    course = model.course(Arrival(9.0, cut), 1, 200, same=False)
    assert course.usage.output_tokens == 100, "of ten answers one was longer than sixty tokens"
    assert course.first_s == pytest.approx(0.5)
    assert isinstance(course, Course)


# requests


def asked_for(policy: Policy, **fields: Any) -> Any:
    return request_of(Arrival(9.0, ended("a", **fields)), POLICY, policy)


def test_G2_a_time_limit_of_its_class_is_that_of_the_new_class() -> None:
    classes = {**POLICY.classes, "interactive": ClassPolicy("interactive", gateway_s=20.0)}
    assert asked_for(POLICY).finish_by_s == 9.0 + 55.0
    assert asked_for(replace(POLICY, classes=classes)).finish_by_s == 9.0 + 20.0
    longer = {**POLICY.classes, "interactive": ClassPolicy("interactive", gateway_s=90.0)}
    assert asked_for(replace(POLICY, classes=longer)).finish_by_s == 9.0 + 90.0
    own = Asked(100, None, 200, 0, 1, True, False, False, 0, None, 30.0)
    assert asked_for(replace(POLICY, classes=longer), asked=own).finish_by_s == 9.0 + 30.0, "its client's own"


def test_G2_a_tenants_usual_class_of_then_is_its_usual_class_of_now() -> None:
    moved = replace(POLICY, tenants={"acme": TenantPolicy("acme", classes=("interactive", "bulk"), service_class="bulk")})
    assert asked_for(moved).service_class == "bulk"
    assert asked_for(POLICY, service_class="bulk").service_class == "bulk", "it named another than its usual one"
    narrowed = replace(POLICY, tenants={"acme": TenantPolicy("acme", classes=("interactive",))})
    assert asked_for(narrowed, service_class="bulk").service_class == "interactive"


def test_G2_who_is_not_known_any_more_has_no_request() -> None:
    assert asked_for(replace(POLICY, tenants={})) is None
    assert asked_for(POLICY, model="other") is None
    models = replace(POLICY, tenants={"acme": TenantPolicy("acme", models=("other",))})
    assert asked_for(models) is None


def test_G2_a_key_that_was_minted_is_not_claimed() -> None:
    assert asked_for(POLICY).key == ("acme", "a")
    assert not asked_for(POLICY).key_given
    given = Asked(100, None, 200, 0, 1, True, False, True, 0, 2.0, 55.0)
    request = asked_for(POLICY, asked=given, key=RequestKey("acme", "mine"))
    assert (request.key, request.key_given, request.start_by_s) == (("acme", "mine"), True, 11.0)
