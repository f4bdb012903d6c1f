"""The simulated runner: one event queue, each effect once, and silence after a kill."""

from __future__ import annotations

from collections.abc import Callable

from sim_values import decision

from headworks.core.commands import Heartbeat
from headworks.core.effects import Abort, Alarm, Ask, Attach, Effect, Observe, Outcome, Run, WakeAt, Watch
from headworks.core.events import Drain, Event, FirstByte, LedgerAnswered, Progressed, ReplicaSampled, Tick
from headworks.core.types import Decision, Execution, Owner
from headworks.sim.batching import ContinuousBatching
from headworks.sim.campaign_worlds import small_world
from headworks.sim.compare import make_book
from headworks.sim.connection import Distance, Sending
from headworks.sim.ledger import Line, SimLedger
from headworks.sim.presets import tiny
from headworks.sim.replica import SimReplica
from headworks.sim.runner import SimRunner
from headworks.sim.world import World

OWNER = Owner("g", "b")
FOREVER = float("inf")


class Script:
    """A gate that answers each event with what the test says, and remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[float, Event]] = []
        self.on: Callable[[Event], list[Effect]] = lambda event: []

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        self.told.append((now_s, event))
        return self.on(event)

    def check(self) -> list[str]:
        return []

    def times_s(self, kind: type[Event]) -> list[float]:
        return [round(at_s, 6) for at_s, event in self.told if isinstance(event, kind)]


class Clients:
    """Whoever is at the other end, as a list of what they saw."""

    def __init__(self) -> None:
        self.saw: list[tuple[str, ...]] = []

    def on_first_byte(self, id: str) -> None:
        self.saw.append(("first_byte", id))

    def on_completed(self, id: str) -> None:
        self.saw.append(("completed", id))

    def on_refused(self, id: str, decision: Decision) -> None:
        self.saw.append(("refused", id))

    def on_broken(self, id: str, reason: str) -> None:
        self.saw.append(("broken", id, reason))

    def on_cut_short(self, id: str) -> None:
        self.saw.append(("cut_short", id))

    def on_attached(self, id: str, execution: str) -> None:
        self.saw.append(("attached", id))

    def on_record(self, record: Decision | Outcome) -> None:
        """Nothing to see."""

    def on_alarm(self, alarm: Alarm) -> None:
        """Nothing to hear."""


def bench(*, latency_s: float = 0.0, idle_s: float = FOREVER) -> tuple[World, Script, Clients, SimRunner, SimReplica]:
    world, script, clients = World(), Script(), Clients()
    ledger = SimLedger(world, make_book(small_world(1).policy), Line(latency_s=latency_s), 1)
    replica = SimReplica("p/0", ContinuousBatching(tiny()), world, Distance(scrape_s=0.02), 1)
    runner = SimRunner(script, world, ledger, {"p/0": replica}, clients, sending, lambda id: idle_s)
    return world, script, clients, runner, replica


def sending(run: Run) -> Sending:
    return Sending(run.execution.id, 16, min(20, run.output_tokens_max), run.output_tokens_max, 1, (), run.send_before_s)


def run_of(id: str, execution: str = "x") -> Run:
    return Run(id, Execution(execution, "p/0"), 20, FOREVER, decision(id))


def test_G1_events_are_handled_one_at_a_time_even_when_effects_cause_them_at_once() -> None:
    _, script, _, runner, _ = bench()
    depth: list[str] = []

    def on(event: Event) -> list[Effect]:
        depth.append("in")
        if isinstance(event, Drain):
            runner.tell(Tick())  # as an effect performed on the spot might
        depth.append("out")
        return []

    script.on = on
    runner.tell(Drain(0.0))
    assert depth == ["in", "out", "in", "out"]
    assert [type(event) for _, event in script.told] == [Drain, Tick]


def test_G1_a_later_wake_replaces_the_one_before() -> None:
    world, script, _, runner, _ = bench()
    wakes = iter([[WakeAt(1.0)], [WakeAt(2.0)]])
    script.on = lambda event: list(next(wakes, []))
    runner.tell(Drain(0.0))
    runner.tell(Drain(0.0))
    world.run(5.0)
    assert script.times_s(Tick) == [2.0]


def test_G1_of_two_wishes_to_look_at_an_engine_the_earlier_holds() -> None:
    world, script, _, runner, _ = bench()
    wishes = iter([[Observe("p/0", 3.0)], [Observe("p/0", 1.0)], [Observe("p/0", 2.0)]])
    script.on = lambda event: list(next(wishes, []))
    for _ in range(3):
        runner.tell(Drain(0.0))
    world.run(5.0)
    assert script.times_s(ReplicaSampled) == [1.02]


def test_G1_answers_of_the_ledger_come_back_as_one_event_a_list() -> None:
    world, script, _, runner, _ = bench(latency_s=0.1)
    script.on = lambda event: [Ask([Heartbeat(OWNER, 1), Heartbeat(OWNER, 2)])] if isinstance(event, Drain) else []
    runner.tell(Drain(0.0))
    world.run(1.0)
    (answered,) = [event for _, event in script.told if isinstance(event, LedgerAnswered)]
    assert [answer.step for answer in answered.answers] == [1, 2]
    assert script.times_s(LedgerAnswered) == [0.2]


def test_A6_whoever_attaches_shares_the_stream_and_a_late_one_gets_the_kept_answer() -> None:
    world, script, clients, runner, _ = bench()
    steps = iter([[run_of("r1")], [Attach("r2", "x", decision("r2"))], [Attach("r3", "x", decision("r3"))]])
    script.on = lambda event: list(next(steps)) if isinstance(event, Drain) else []
    for at_s in (0.0, 0.05, 1.0):
        world.at(at_s, lambda: runner.tell(Drain(0.0)))
    world.run(2.0)
    got = {id: [words[0] for words in clients.saw if words[1] == id] for id in ("r1", "r2", "r3")}
    assert got["r1"] == ["first_byte", "completed"]
    assert got["r2"] == got["r3"] == ["attached", "first_byte", "completed"]


def test_I34_an_abort_with_a_reason_is_told_to_the_client_as_a_broken_stream() -> None:
    world, script, clients, runner, _ = bench()
    steps = iter([[run_of("r1")], [Abort("x", "deadline_exceeded")]])
    script.on = lambda event: list(next(steps)) if isinstance(event, Drain) else []
    for at_s in (0.0, 0.1):
        world.at(at_s, lambda: runner.tell(Drain(0.0)))
    world.run(2.0)
    assert clients.saw == [("first_byte", "r1"), ("broken", "r1", "deadline_exceeded")]


def test_A8_an_abort_as_length_is_told_to_the_client_as_an_end() -> None:
    world, script, clients, runner, _ = bench()
    steps = iter([[run_of("r1")], [Abort("x", "kv_saturation", as_length=True)]])
    script.on = lambda event: list(next(steps)) if isinstance(event, Drain) else []
    for at_s in (0.0, 0.1):
        world.at(at_s, lambda: runner.tell(Drain(0.0)))
    world.run(2.0)
    assert clients.saw == [("first_byte", "r1"), ("cut_short", "r1")]


def test_A8_progress_is_told_when_it_is_watched_for() -> None:
    world, script, _, runner, _ = bench()
    script.on = lambda event: [run_of("r1"), Watch("x", 7)] if isinstance(event, Drain) else []
    runner.tell(Drain(0.0))
    world.run(2.0)
    told = [event.output_tokens for _, event in script.told if isinstance(event, Progressed)]
    assert told == [7], "a token every 10 ms; the next quarter of a second ends after its last"


def test_E3_a_silent_stream_is_reported_after_the_idle_limit() -> None:
    world, script, _, runner, replica = bench(idle_s=0.5)
    script.on = lambda event: [run_of("r1")] if isinstance(event, Drain) else []
    runner.tell(Drain(0.0))
    world.at(0.1, lambda: replica.hang(0.9))
    world.run(0.9)
    silent = [type(event).__name__ for _, event in script.told if type(event).__name__ == "EngineSilent"]
    assert silent == ["EngineSilent"]


def test_K17_a_killed_runner_handles_nothing_more_and_its_engine_connections_are_forsaken() -> None:
    world, script, clients, runner, replica = bench()
    script.on = lambda event: [run_of("r1"), WakeAt(1.0)] if isinstance(event, Drain) else []
    runner.tell(Drain(0.0))
    world.run(0.05)
    handled = len(script.told)
    assert script.times_s(FirstByte) == [0.01]
    runner.kill()
    runner.tell(Drain(0.0))
    world.run(5.0)
    assert len(script.told) == handled
    assert clients.saw == [("first_byte", "r1")]
    assert replica.model.held(world.now_s) == {}
