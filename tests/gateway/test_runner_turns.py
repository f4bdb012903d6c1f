"""The runner handles what came in one turn of the loop together: one list for the ledger, one for its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from headworks.core import effects, events
from headworks.core.book import Book
from headworks.core.commands import Answer, Command
from headworks.core.gate import Gate
from headworks.core.policy import ClassPolicy, Policy, PoolPolicy, ReplicaPolicy, StepPolicy, TenantPolicy
from headworks.core.types import Capacity, Decision, Leeway, Request, RequestKey, Usage
from headworks.engines.outbox import Outbox
from headworks.gateway.clock import TurnClock
from headworks.gateway.runner import Runner
from headworks.ledgers.memory import MemoryStore

POLICY = Policy(
    version="v1",
    number=1,
    classes={"interactive": ClassPolicy("interactive")},
    tenants={"acme": TenantPolicy("acme")},
    pools={"p": PoolPolicy("p", ("m",), (ReplicaPolicy("p/0"),))},
)
CAPACITY = Capacity("p/0", "fake", "1", "a", 32_768, 40_000, 1, None, ("E1",))
USED = Usage(10, 0, 5, 0.1, "stop", True)


class Asked(MemoryStore):
    """A ledger that keeps what it was asked, list by list."""

    def __init__(self) -> None:
        super().__init__(Book(5_000, 3_600_000), lambda: 1_000)
        self.lists: list[list[str]] = []

    def apply(self, commands: Sequence[Command], answered: Callable[[list[Answer]], None]) -> None:
        self.lists.append([type(one).__name__ for one in commands])
        super().apply(commands, answered)


class Caller:
    """A client of which the runner knows no more than that it asks."""

    def __init__(self, name: str) -> None:
        self.request = Request(
            id=name, key=RequestKey("acme", name), key_given=False, fingerprint="", client="acme/key",
            service_class="interactive", model="m", pool="p", prompt_bytes=40, prompt_tokens=10, output_tokens_max=5,
            samples=1, stream=False, prefix=(), session=None, retry_count=0, arrived_s=100.0, start_by_s=float("inf"),
            finish_by_s=float("inf"),
        )  # fmt: skip
        self.sent: list[str] = []
        self.fault: Exception | None = None

    def send(self, engine: Any, run: effects.Run) -> Any:
        self.sent.append(run.execution.id)

    def join(self, execution: str, decision: Decision) -> bool:
        return False

    def refuse(self, decision: Decision, usage: Usage | None = None) -> None: ...
    def ended(self) -> None: ...

    def fail(self, fault: Exception) -> None:
        self.fault = fault


class Silent:
    """Nothing is written down."""

    def record(self, record: Any) -> None: ...
    def alarm(self, alarm: Any) -> None: ...
    def attempt(self, replica: str, outcome: str) -> None: ...
    def ledger(self, operation: str, outcome: str, seconds: float) -> None: ...


async def ready(store: Asked, outbox: Outbox | None = None) -> Runner:
    gate = Gate(POLICY, "g1", b"seed", "boot")
    runner = Runner(gate, store, {}, Silent(), lambda: 100.0, outbox=outbox)
    runner._engines = {"p/0": None}  # type: ignore[dict-item]
    runner.feed(events.Tick())
    runner.feed(events.ReplicaDescribed(CAPACITY))
    await asyncio.sleep(0)
    store.lists.clear()
    return runner


def test_A3_what_arrives_in_one_turn_is_asked_for_in_one_list() -> None:
    async def steps() -> None:
        store = Asked()
        runner = await ready(store)
        callers = [Caller(f"r{number}") for number in range(3)]
        for caller in callers:
            runner.admit(caller)
        assert store.lists == [], "nothing is asked before the turn is over"
        await asyncio.sleep(0)
        assert store.lists == [["Reserve"] * 3]
        executions = [execution for caller in callers for execution in caller.sent]
        assert len(set(executions)) == 3
        for execution in executions:
            runner.feed(events.Stopped(execution, USED, False, at_once=True))
        await asyncio.sleep(0)
        assert store.lists[1:] == [["Stop"] * 3]
        assert store.book.charged() == []

    asyncio.run(steps())


class Held:
    """Something to be written, which keeps when it was: how often the ledger had been asked by then."""

    def __init__(self, store: Asked) -> None:
        self._store = store
        self.sent: list[int] = []

    def send(self) -> None:
        self.sent.append(len(self._store.lists))


class Sends(Caller):
    """Has something to write when it is sent."""

    def __init__(self, name: str, outbox: Outbox, held: Held) -> None:
        super().__init__(name)
        self._outbox, self._held = outbox, held

    def send(self, engine: Any, run: effects.Run) -> Any:
        self._outbox.hold(self._held)


def test_E2_answers_go_out_before_a_turn_and_what_it_sends_right_after_it() -> None:
    async def steps() -> None:
        store, outbox = Asked(), Outbox()
        runner = await ready(store, outbox)
        answer, request = Held(store), Held(store)
        runner.admit(Sends("r", outbox, request))
        later: list[list[int]] = []
        outbox.hold(answer)
        await asyncio.sleep(0)
        assert (answer.sent, store.lists) == ([0], []), "and a loop that writes at the end of a turn has written it"
        asyncio.get_running_loop().call_soon(lambda: later.append(list(request.sent)))
        await asyncio.sleep(0)
        assert later == [[1]], "what was decided then went out before the loop did anything else"

    asyncio.run(steps())


def test_F1_a_fault_of_one_arrival_reaches_its_own_caller_and_no_other() -> None:
    async def steps() -> None:
        store = Asked()
        runner = await ready(store)
        broken, sound = Caller("broken"), Caller("sound")
        broken.request.pool = "no such pool"
        runner.admit(broken)
        runner.admit(sound)
        await asyncio.sleep(0)
        assert isinstance(broken.fault, KeyError)
        assert sound.fault is None
        assert len(sound.sent) == 1
        runner.feed(events.Tick())
        await asyncio.sleep(0)
        assert runner._timer is not None
        runner._timer.cancel()

    asyncio.run(steps())


class Broken(Caller):
    """Answering it fails, which is a fault of ours."""

    def refuse(self, decision: Decision, usage: Usage | None = None) -> None:
        raise RuntimeError("no answer")


def test_F1_a_refusal_that_cannot_be_told_fails_its_caller_and_leaves_nobody_waiting() -> None:
    async def steps() -> None:
        runner = await ready(Asked())
        runner.feed(events.Drain(1_000.0))
        broken = Broken("r1")
        runner.admit(broken)
        await asyncio.sleep(0)
        assert isinstance(broken.fault, RuntimeError)

    asyncio.run(steps())


class Unserved(Caller):
    """An answer is kept for it, and giving it fails."""

    def serve(self, decision: Decision) -> None:
        raise RuntimeError("no answer")


def test_F1_a_kept_answer_that_cannot_be_given_fails_its_caller_and_leaves_nobody_waiting() -> None:
    async def steps() -> None:
        step = ClassPolicy("interactive", on_pressure=(StepPolicy("cached"),))
        gate = Gate(replace(POLICY, classes={"interactive": step}), "g1", b"seed", "boot")
        cascade = gate._desk.cascades.of("p", "interactive")
        assert cascade is not None
        cascade.change(1, 100.0)
        runner = Runner(gate, Asked(), {}, Silent(), lambda: 100.0)
        runner.feed(events.Tick())
        await asyncio.sleep(0)
        broken = Unserved("r1")  # nothing is known of any engine, so it would be refused
        broken.request.leeway = Leeway(samples=1, prompt_bytes=40, is_kept=True)
        runner.admit(broken)
        await asyncio.sleep(0)
        assert isinstance(broken.fault, RuntimeError)
        assert gate._desk.lives == {}

    asyncio.run(steps())


class Throws(Asked):
    """A ledger that once cannot even be asked."""

    broken = False

    def apply(self, commands: Sequence[Command], answered: Callable[[list[Answer]], None]) -> None:
        if self.broken:
            self.broken = False
            raise OSError("no such store")
        super().apply(commands, answered)


def test_F1_a_ledger_that_throws_costs_that_ask_and_it_is_asked_again() -> None:
    async def steps() -> None:
        store = Throws()
        runner = await ready(store)
        alarms: list[str] = []
        runner.recorder.alarm = lambda alarm: alarms.append(f"{alarm.name} {alarm.subject}")  # type: ignore[method-assign]
        store.broken = True
        first, second = Caller("first"), Caller("second")
        runner.admit(first)
        await asyncio.sleep(0)
        assert (first.sent, first.fault, alarms) == ([], None, ["gateway_fault Ask"])
        runner.admit(second)
        await asyncio.sleep(0)
        assert len(second.sent) == 1, "the next turn goes on as if nothing had been"
        runner.turns._clock_s = lambda: 100.3
        runner.feed(events.Tick())
        await asyncio.sleep(0)
        assert len(first.sent) == 1, "what was not answered is asked again"

    asyncio.run(steps())


def test_G2_each_event_of_a_turn_has_an_instant_of_its_own_in_the_order_in_which_it_came() -> None:
    """The clock stands still: the next turn is ten microseconds on, and the next event of a turn ten nanoseconds."""

    async def steps() -> None:
        store = Asked()
        runner = await ready(store)
        told: list[tuple[str, float]] = []
        runner.on_fact = lambda event, at_s: told.append((type(event).__name__, at_s))
        callers = [Caller(f"r{number}") for number in range(2)]
        for caller in callers:
            runner.admit(caller)
        runner.feed(events.Drain(200.0))
        await asyncio.sleep(0)
        lives = runner.gate._desk.lives
        assert [lives[caller.request.id].told_s for caller in callers] == [100.00002001, 100.00002002]
        assert told == [("Drain", 100.00002003)]
        assert [lives[caller.request.id].sent_s for caller in callers] == [100.00002004] * 2, "one answer of the ledger"
        runner.feed(events.Tick(99.0))
        await asyncio.sleep(0)
        assert told[1:] == [("Tick", 100.00003001)]

    asyncio.run(steps())


def test_A9_the_ledger_of_this_process_counts_by_the_turns_of_the_gate() -> None:
    """So that whose turn it is follows from what the log has, however long a turn takes."""
    now_s = [50.0]
    turns = TurnClock(lambda: now_s[0])
    turns.begin_turn()
    turns.instant += 3
    now_s[0] = 50.4
    assert turns.now_ms() == 50_000
    turns.begin_turn()
    assert turns.now_ms() == 50_400
    turns.instant += 2_500
    turns.begin_turn()
    assert turns.instant == 5_040_003_000, "a turn of so many events has run on, and the next begins behind it"
