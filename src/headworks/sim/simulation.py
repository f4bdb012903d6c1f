"""One simulated run: clients, gateways, ledger and engines put together, and what became of everybody.

This is the wiring diagram of the virtual world. It stands where the network stands: between callers and gateways (whose
`Door` and `Front` it is), and it keeps the two books the results are made from: what the clients saw, and what the
engines did, each without asking the gate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from headworks.core.book import Book
from headworks.core.effects import Alarm, Outcome, Run
from headworks.core.events import Drain, Freed, PolicyChanged, ReplicaDescribed
from headworks.core.fair import Wake
from headworks.core.policy import Policy
from headworks.core.types import Decision, Leeway, Request, RequestKey
from headworks.sim.agents import Agent, Agents, begin
from headworks.sim.autoscaler import Autoscaler, Scaling
from headworks.sim.clients import Attempt, Caller, Temper
from headworks.sim.connection import Distance, Sending
from headworks.sim.engine import EngineModel, Gauges, on_grid_s
from headworks.sim.faults import Fault, schedule
from headworks.sim.ledger import BookLike, Line, SimLedger
from headworks.sim.replica import SimReplica
from headworks.sim.runner import GateLike, SimRunner
from headworks.sim.traffic import Planned
from headworks.sim.world import World

WARM_S = 1.0
"""The world is this old when a scenario's time begins: gateways have their lease, and engines have been looked at."""
DRAIN_LOOK_S = 0.05
CUT_S = 0.5
"""After the limit of a drain streams are cut; a process that is still not done this much later goes anyway."""
GAUGES_EVERY_S = 0.25
"""How often the engines' own gauges are looked at for the results (no policy sees these looks)."""
DRAIN_S_MAX = 3600.0
"""A run that is not over so long after its last arrival is reported as stuck."""
REACHED_S = 0.3
"""Gateways find the store that is there again so much apart."""

MakeGate = Callable[[Policy, str, int, str], GateLike]  # policy, gateway's name, seed, boot
MakeBook = Callable[[Policy], BookLike]


@dataclass(slots=True)
class Source:
    """Where requests come from: one client of one tenant, and what it asks for."""

    tenant: str
    client: str
    service_class: str
    model: str
    pool: str
    temper: Temper
    samples: int = 1
    output_tokens_max: int | None = None
    """What its requests allow; None: they say nothing and the context is the limit. 0: prompts are only read (embeddings)."""
    bytes_per_token: float = 4.0
    exact_prompt: bool = False
    """Sends token ids, so that the gate knows the prompt exactly."""
    agents: Agents | None = None
    gateway: int | None = None
    """The gateway its requests go to while that listens; None: they are spread over all."""


@dataclass(slots=True)
class Setup:
    """Everything a run is made from. The same setup and seed give the same run."""

    policy: Policy
    engines: dict[str, Callable[[], EngineModel]]
    """By the replica's name in the policy."""
    sources: list[Source]
    planned: list[Planned]
    duration_s: float
    seed: int
    make_gate: MakeGate
    make_book: MakeBook
    context_tokens: int = 8192
    line: Line = field(default_factory=Line)
    distance: Distance = field(default_factory=Distance)
    gateways: int = 1
    faults: list[Fault] = field(default_factory=list)
    shared: bool = False
    """The ledger is a store that several gateways share, and which may be another one tomorrow."""
    make_runner: Callable[..., SimRunner] = SimRunner
    scaling: Scaling | None = None
    """An autoscaler; without one every replica is there from the beginning."""


class Arrival:
    """One attempt at the gateway's door, with both sides of its story."""

    __slots__ = ("attempt", "caller", "decision", "degraded", "gateway", "outcome", "outcomes", "sent_s")

    def __init__(self, caller: Caller, attempt: Attempt, gateway: SimRunner) -> None:
        self.caller = caller
        self.attempt = attempt
        self.gateway = gateway
        self.decision: Decision | None = None
        """The first one: the admission decision."""
        self.degraded: tuple[str, ...] = ()
        """The steps that were taken with it, so that it could run."""
        self.outcome: Outcome | None = None
        self.outcomes = 0
        self.sent_s: float | None = None


class Simulation:
    """Build with a setup, then `run`. Everything it knows afterwards is public, for the report."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.world = World()
        self.policy = setup.policy
        """The one in force; reloads replace it."""
        self.ledger = SimLedger(self.world, setup.make_book(setup.policy), setup.line, setup.seed)
        self.replicas = {
            name: SimReplica(name, make(), self.world, setup.distance, setup.seed) for name, make in setup.engines.items()
        }
        self.autoscaler = Autoscaler(setup.scaling, self) if setup.scaling is not None else None
        self.ledger.woken = self._woken
        self.runners: list[SimRunner | None] = [None] * setup.gateways
        self._boots: dict[str, SimRunner] = {}
        self.callers: list[Caller] = []
        self.agents: list[Agent] = []
        self.arrivals: dict[str, Arrival] = {}
        self.executions: dict[str, list[str]] = {}
        """Execution → the arrivals that share its answer, first the one it was run for."""
        self.decisions = 0
        self.alarms: list[tuple[float, Alarm]] = []
        self.gauges: list[tuple[float, dict[str, Gauges]]] = []
        self.boots = 0
        self._open = 0
        self._unfinished = 0
        """Arrivals at living gateways without an outcome yet."""
        self._classes = setup.policy.classes
        self._models = tuple(sorted({source.model for source in setup.sources}))

    # --- running ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until the last caller has what it will get and nothing is held any more."""
        self.begin()
        self.world.run(self.end_s)
        self.world.run(self.end_s + DRAIN_S_MAX, self.is_over)

    @property
    def end_s(self) -> float:
        """The world's time at which the scenario's duration is over."""
        return WARM_S + self.setup.duration_s

    def begin(self) -> None:
        """Everything comes up; every arrival and every fault stands in the world's list."""
        for number in range(self.setup.gateways):
            self.boot(number)
        for place, planned in enumerate(self.setup.planned):
            number = place if planned.number is None else planned.number
            source = self.setup.sources[planned.source]
            if begin(self, number, planned, source.agents):
                continue
            random = Random(f"caller-{number}-{self.setup.seed}")
            caller = Caller(number, planned, source.temper, self.world, self, random, self._settled)
            self.callers.append(caller)
            self._open += 1
            # On the engines' grid of a nanosecond, so that an arrival and an end that are due together are due together.
            self.world.at(on_grid_s(WARM_S + planned.at_s), caller.start)
        schedule(self.setup.faults, WARM_S, self)
        if self.autoscaler is not None:
            self.world.at(WARM_S, self.autoscaler.begin)
        self.world.at(WARM_S, self._look_at_gauges)

    def is_over(self) -> bool:
        """Nobody waits, every arrival has its outcome, and no engine holds anything."""
        if self._open or self._unfinished or self.world.now_s < self.end_s or any(not one.ended for one in self.agents):
            return False
        return not any(replica.model.held(self.world.now_s) for replica in self.replicas.values())

    def boot(self, number: int) -> SimRunner:
        """Start a gateway process: a new life with a new boot id and an empty gate."""
        self.boots += 1
        gate = self.setup.make_gate(self.policy, f"gateway-{number}", self.setup.seed + 7919 * self.boots, f"boot-{self.boots}")
        runner = self.setup.make_runner(gate, self.world, self.ledger, self.replicas, self, self._sending, self._idle_s)
        self.runners[number] = self._boots[f"boot-{self.boots}"] = runner
        if self.setup.shared:
            runner.reach_ledger()
        there = [replica for replica in self.replicas.values() if not replica.stands_by]
        runner.start([replica.describe(self.setup.context_tokens, self._models) for replica in there])
        return runner

    def lose_ledger(self, for_s: float, kept: Any = None) -> None:
        """The store dies. After `for_s` another one answers, with the copy that was `kept` or with nothing."""
        self.ledger.cut_off(for_s)
        for runner in self.runners:
            if runner is not None:
                runner.lose_ledger()
        self.world.after(for_s, lambda: self._another_ledger(kept))

    def _another_ledger(self, kept: Any) -> None:
        book = self.setup.make_book(self.policy)
        if kept is not None:
            assert isinstance(book, Book)
            book.restore(kept)
        self.ledger.replace(book)
        for number, runner in enumerate(self.runners):
            if runner is not None:  # one after the other: nobody knows who finds it first
                self.world.after(number * REACHED_S, runner.reach_ledger)

    def is_alive(self, boot: str) -> bool:
        """Whether this life of a gateway goes on."""
        return (runner := self._boots.get(boot)) is not None and runner.alive

    def _woken(self, wake: Wake) -> None:
        """The ledger tells a gateway that something came free for it."""
        if (runner := self._boots.get(wake.owner.boot)) is not None:
            runner.tell(Freed(wake.pool, wake.flow))

    def describe(self, replica: str) -> None:
        """A restarted engine is asked again what it can hold."""
        capacity = self.replicas[replica].describe(self.setup.context_tokens, self._models)
        for runner in self.runners:
            if runner is not None:
                runner.tell(ReplicaDescribed(capacity))

    def kill(self, number: int) -> None:
        """kill -9: its clients see their connections break, its boot's lease is left to lapse."""
        runner = self.runners[number]
        if runner is None:
            return
        self.runners[number] = None
        runner.kill()
        self._lose_clients(runner)

    def _lose_clients(self, runner: SimRunner) -> None:
        for arrival in list(self.arrivals.values()):
            if arrival.gateway is not runner:
                continue
            self._unfinished -= arrival.outcome is None
            if not arrival.attempt.end:
                arrival.caller.on_broken(arrival.attempt, "gateway_killed")

    def drain(self, number: int, for_s: float) -> None:
        """An orderly restart: admit nobody new, let streams run for so long, release the boot, start the next process."""
        runner = self.runners[number]
        if runner is None:
            return
        until_s = self.world.now_s + for_s
        runner.tell(Drain(until_s))

        def look() -> None:
            if runner.alive and not runner.gate.drained() and self.world.now_s < until_s + CUT_S:
                self.world.after(DRAIN_LOOK_S, look)
            elif runner.alive:
                runner.depart()
                self._lose_clients(runner)
                self.boot(number)

        self.world.after(DRAIN_LOOK_S, look)

    def reload(self, ratio: float) -> None:
        """Every gateway gets a new policy: every tenant's limit, or a limit where it had none, times `ratio`."""
        old = self.policy
        tenants = {
            name: replace(one, active_tokens_max=max(1, int(ratio * (one.active_tokens_max or self.setup.context_tokens))))
            for name, one in old.tenants.items()
        }
        self.policy = replace(old, version=f"reload-{old.number}", number=old.number + 1, tenants=tenants)
        for runner in self.runners:
            if runner is not None:
                runner.tell(PolicyChanged(self.policy))

    # --- Door: what callers do ----------------------------------------------------------------------------------

    def send(self, caller: Caller, attempt: Attempt) -> bool:
        runner = self._runner_for(caller)
        if runner is None:
            return False
        self.arrivals[attempt.id] = Arrival(caller, attempt, runner)
        self._unfinished += 1
        runner.arrive(self._request(caller, attempt))
        return True

    def leave(self, attempt: Attempt) -> None:
        self.arrivals[attempt.id].gateway.client_gone(attempt.id)

    def _runner_for(self, caller: Caller) -> SimRunner | None:
        """A balancer in front: its own gateway, or the next one that listens."""
        count = len(self.runners)
        own = self.setup.sources[caller.planned.source].gateway
        for step in range(count):
            runner = self.runners[((caller.number if own is None else own) + step) % count]
            if runner is not None:
                return runner
        return None

    def _request(self, caller: Caller, attempt: Attempt) -> Request:
        source, planned, now_s = self.setup.sources[caller.planned.source], caller.planned, self.world.now_s
        prompt_bytes = round(planned.prompt_tokens * source.bytes_per_token)
        return Request(
            id=attempt.id,
            key=RequestKey(source.tenant, caller.key or f"minted-{attempt.id}"),
            key_given=bool(caller.key),
            fingerprint=f"body-{caller.number}",
            client=source.client,
            service_class=source.service_class,
            model=source.model,
            pool=source.pool,
            prompt_bytes=prompt_bytes,
            prompt_tokens=planned.prompt_tokens if source.exact_prompt else None,
            output_tokens_max=source.output_tokens_max,
            samples=source.samples,
            stream=source.output_tokens_max != 0,
            prefix=planned.prefix,
            session=f"{caller.session}.{attempt.number}" if caller.opens else caller.session or None,
            retry_count=attempt.number,
            arrived_s=now_s,
            start_by_s=now_s + caller.deadline_s,
            finish_by_s=now_s + self._classes[source.service_class].gateway_s,
            opens=caller.opens,
            leeway=Leeway(1, prompt_bytes, False) if self._classes[source.service_class].on_pressure else None,
        )

    def _settled(self, caller: Caller) -> None:
        self._open -= 1

    # --- Front: what a gateway does to clients ------------------------------------------------------------------

    def on_first_byte(self, id: str) -> None:
        arrival = self.arrivals[id]
        arrival.caller.on_first_byte(arrival.attempt)

    def on_completed(self, id: str) -> None:
        arrival = self.arrivals[id]
        arrival.caller.on_completed(arrival.attempt)

    def on_refused(self, id: str, decision: Decision) -> None:
        arrival = self.arrivals[id]
        arrival.caller.on_refused(arrival.attempt, decision)

    def on_broken(self, id: str, reason: str) -> None:
        arrival = self.arrivals[id]
        arrival.caller.on_broken(arrival.attempt, reason)

    def on_cut_short(self, id: str) -> None:
        arrival = self.arrivals[id]
        arrival.caller.on_cut_short(arrival.attempt)

    def on_attached(self, id: str, execution: str) -> None:
        self.executions.setdefault(execution, []).append(id)

    def on_record(self, record: Decision | Outcome) -> None:
        arrival = self.arrivals[record.id]
        if isinstance(record, Decision):
            self.decisions += 1
            if arrival.decision is None:
                arrival.decision = record
            if record.degraded and record.outcome == "admit":
                arrival.degraded = tuple(step.partition("=")[0] for step in record.degraded.split(", "))
        else:
            self._unfinished -= arrival.outcome is None
            arrival.outcomes += 1
            arrival.outcome = record

    def on_alarm(self, alarm: Alarm) -> None:
        self.alarms.append((self.world.now_s, alarm))

    # --- what a gateway puts on the wire ------------------------------------------------------------------------

    def _sending(self, run: Run) -> Sending:
        """The engine produces what it would produce, or what it was allowed to: whichever is less."""
        arrival = self.arrivals[run.id]
        arrival.sent_s = self.world.now_s
        self.executions.setdefault(run.execution.id, []).append(run.id)
        source, planned = self.setup.sources[arrival.caller.planned.source], arrival.caller.planned
        return Sending(
            execution=run.execution.id,
            prompt_tokens=planned.prompt_tokens,
            output_tokens=min(max(1, planned.output_tokens), run.output_tokens_max),
            output_tokens_max=run.output_tokens_max,
            samples=1 if run.variant is not None and run.variant.drops_n else source.samples,
            prefix=planned.prefix,
            send_before_s=run.send_before_s,
            watch_tokens=run.watch_tokens,
        )

    def _idle_s(self, id: str) -> float:
        source = self.setup.sources[self.arrivals[id].caller.planned.source]
        return self._classes[source.service_class].idle_s

    def _look_at_gauges(self) -> None:
        now_s = self.world.now_s
        self.gauges.append((now_s, {name: replica.model.sample(now_s) for name, replica in self.replicas.items()}))
        if now_s < self.end_s:
            self.world.after(GAUGES_EVERY_S, self._look_at_gauges)
