"""The runner of the simulated world: the only caller of one `Gate`, in virtual time.

It does what the gateway's runner does and nothing else: it queues events, hands them to `handle` one at a time (an
answer that comes while effects are being performed waits its turn), performs each effect once, and stands between
clients and engine connections as the relay does. A killed runner falls silent at once: what it had in mind is lost,
its connections are closed by its kernel, and what the ledger holds under its boot stays charged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from headworks.core.commands import Answer
from headworks.core.effects import (
    Abort,
    Alarm,
    Ask,
    Attach,
    Effect,
    Observe,
    Opened,
    Outcome,
    Record,
    Reply,
    Run,
    WakeAt,
    Watch,
)
from headworks.core.events import (
    Arrived,
    Attached,
    ClientGone,
    EngineClosed,
    EngineLost,
    EngineSilent,
    Event,
    FirstByte,
    LedgerAnswered,
    LedgerLost,
    NotSent,
    Progressed,
    ReplicaDescribed,
    ReplicaSampled,
    SampleFailed,
    Stopped,
    StoreChanged,
    Tick,
)
from headworks.core.types import Capacity, Decision, ReplicaSample, Request, Usage
from headworks.sim.connection import Listener, Sending
from headworks.sim.ledger import SimLedger
from headworks.sim.world import Action, World

REPLAYS_MAX = 10_000
"""Completed executions remembered, so that a late `Attach` can still be answered."""


class GateLike(Protocol):
    """What the runner needs of a gate."""

    def handle(self, event: Event, now_s: float) -> list[Effect]: ...

    def check(self) -> list[str]: ...

    def drained(self) -> bool: ...

    def depart(self) -> list[Effect]: ...


@runtime_checkable
class Shown(Protocol):
    """A gate that can be looked into."""

    def snapshot(self, now_s: float) -> dict[str, Any]: ...


class ReplicaLike(Protocol):
    """What the runner needs of an engine: `SimReplica`, or one that a log remembers (`tools/replay_engine.py`)."""

    def open(self, sending: Sending, listener: Listener) -> None: ...

    def abort(self, execution: str) -> None: ...

    def watch(self, execution: str, output_tokens: int) -> None: ...

    def scrape(self, answered: Callable[[ReplicaSample | None], None]) -> None: ...

    def forsake(self, listener: Listener) -> None: ...


class Front(Protocol):
    """The clients' side of a gateway, by arrival id."""

    def on_first_byte(self, id: str) -> None: ...

    def on_completed(self, id: str) -> None: ...

    def on_refused(self, id: str, decision: Decision) -> None: ...

    def on_broken(self, id: str, reason: str) -> None: ...

    def on_cut_short(self, id: str) -> None: ...

    def on_attached(self, id: str, execution: str) -> None: ...

    def on_record(self, record: Decision | Outcome) -> None: ...

    def on_alarm(self, alarm: Alarm) -> None: ...


class _Stream:
    """One execution's answer on its way through the gateway, and who gets it."""

    __slots__ = ("begun", "ids", "progressed_s", "telling")

    def __init__(self, id: str) -> None:
        self.ids = [id]
        self.begun = False
        self.progressed_s = 0.0
        self.telling = True
        """False once its clients were told how it ended."""


class SimRunner:
    """One boot of one gateway."""

    def __init__(
        self,
        gate: GateLike,
        world: World,
        ledger: SimLedger,
        replicas: Mapping[str, ReplicaLike],
        front: Front,
        sending: Callable[[Run], Sending],
        idle_s: Callable[[str], float],
        wake_at: Callable[[float, Action], None] | None = None,
    ) -> None:
        self.gate = gate
        self.alive = True
        self.handled = 0
        self._world = world
        self._ledger = ledger
        self._replicas = replicas
        self._front = front
        self._sending = sending
        """The bytes of a request, as it were: what arrival `id` makes the engine do."""
        self._idle_s = idle_s
        self._wake_at = wake_at or world.at
        """Wake-ups come on time, or when it is known that they came."""
        self._epoch = 1
        """Of the ledger it is connected to."""
        self._events: deque[Event] = deque()
        self._busy = False
        self._wake_s: float | None = None
        self._observe_s: dict[str, float] = {}
        self._streams: dict[str, _Stream] = {}
        self._placed: dict[str, ReplicaLike] = {}
        self._replays: dict[str, bool] = {}

    # --- in: facts become events --------------------------------------------------------------------------------

    def start(self, capacities: Sequence[Capacity]) -> None:
        """The process is up: the engines have been described, and time begins for the gate."""
        for capacity in capacities:
            self.tell(ReplicaDescribed(capacity))
        self.tell(Tick())

    def arrive(self, request: Request) -> None:
        self.tell(Arrived(request))

    def client_gone(self, id: str) -> None:
        self.tell(ClientGone(id))

    def lose_ledger(self) -> None:
        """The connection to the store broke."""
        self.tell(LedgerLost())

    def reach_ledger(self) -> None:
        """It is connected to the store that answers now: for the first time, or because that is another one."""
        self._epoch = self._ledger.epoch
        self.tell(StoreChanged(str(self._epoch)))

    def kill(self) -> None:
        """SIGKILL. Whoever was connected sees a broken connection; telling them is the network's business."""
        self.alive = False
        self._events.clear()
        for replica in self._replicas.values():
            replica.forsake(self)

    def depart(self) -> None:
        """An orderly end: the boot is released, then the process goes. What is still charged can be adopted at once."""
        if self.alive:
            for effect in self.gate.depart():
                self._perform(effect)
            self.kill()

    def tell(self, event: Event) -> None:
        """Queue an event; handle it now unless one is being handled."""
        if not self.alive:
            return
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        while self._events:
            self.handled += 1
            for effect in self.gate.handle(self._events.popleft(), self._world.now_s):
                self._perform(effect)
        self._busy = False

    def scale_wanted_ratio(self) -> float:
        """What this gateway's gauge of that name shows an autoscaler now, of whichever pool wants most."""
        if not isinstance(self.gate, Shown):
            return 1.0  # a published rule that has no such gauge
        pools = self.gate.snapshot(self._world.now_s)["pools"].values()
        return max(float(pool["pressure"]["scale_wanted_ratio"]) for pool in pools)

    # --- out: effects are performed, each once ------------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Ask():
                self._ledger.apply(effect.commands, self._on_answers, self._epoch)
            case Run():
                self._run(effect)
            case Abort():
                self._abort(effect)
            case Watch():
                self._watch(effect)
            case Reply() if effect.decision.reason == "upstream_lost":  # by the gate: it had said nothing yet
                self._front.on_broken(effect.id, effect.decision.reason)
            case Reply():
                self._front.on_refused(effect.id, effect.decision)
            case Opened():
                self._front.on_completed(effect.id)
            case Attach():
                self._attach(effect)
            case Record():
                self._front.on_record(effect.record)
            case Observe():
                self._observe(effect)
            case Alarm():
                self._front.on_alarm(effect)
            case WakeAt():
                self._wake(effect.at_s)

    def _on_answers(self, answers: list[Answer]) -> None:
        self.tell(LedgerAnswered(answers))

    def _run(self, effect: Run) -> None:
        execution = effect.execution
        replica = self._replicas[execution.replica]
        self._streams[execution.id] = stream = _Stream(effect.id)
        for id in effect.others or ():
            stream.ids.append(id)
            self._front.on_attached(id, execution.id)
        self._placed[execution.id] = replica
        replica.open(self._sending(effect), self)

    def _abort(self, effect: Abort) -> None:
        stream = self._streams.get(effect.execution)
        if stream is not None and effect.as_length:
            self._cut_short(stream)
        elif stream is not None and effect.reason:
            self._break(stream, effect.reason)
        replica = self._placed.get(effect.execution)
        if replica is not None:
            replica.abort(effect.execution)

    def _watch(self, effect: Watch) -> None:
        replica = self._placed.get(effect.execution)
        if replica is not None:
            replica.watch(effect.execution, effect.output_tokens)

    def _attach(self, effect: Attach) -> None:
        stream = self._streams.get(effect.execution)
        if stream is not None and stream.telling:
            self._front.on_attached(effect.id, effect.execution)
            stream.ids.append(effect.id)
            if stream.begun:
                self._front.on_first_byte(effect.id)
        elif effect.execution in self._replays:
            self._front.on_attached(effect.id, effect.execution)
            self._front.on_first_byte(effect.id)
            self._front.on_completed(effect.id)
        else:
            self.tell(Attached(effect.id, False))
            return
        self.tell(Attached(effect.id, True))

    def _observe(self, effect: Observe) -> None:
        waiting_s = self._observe_s.get(effect.replica)
        at_s = max(effect.at_s, self._world.now_s)
        if waiting_s is not None and waiting_s <= at_s:
            return
        self._observe_s[effect.replica] = at_s
        self._world.at(at_s, lambda: self._scrape(effect.replica, at_s))

    def _scrape(self, replica: str, at_s: float) -> None:
        if not self.alive or self._observe_s.get(replica) != at_s:
            return
        del self._observe_s[replica]

        def answered(sample: ReplicaSample | None) -> None:
            self.tell(SampleFailed(replica, "no answer") if sample is None else ReplicaSampled(sample))

        self._replicas[replica].scrape(answered)

    def _wake(self, at_s: float) -> None:
        if self._wake_s == at_s:
            return
        self._wake_s = at_s

        def wake() -> None:
            if self._wake_s == at_s:
                self._wake_s = None
                self.tell(Tick())

        self._wake_at(at_s, wake)

    # --- the relay: engine connections to clients ---------------------------------------------------------------

    def on_not_sent(self, execution: str, reason: str) -> None:
        self._close(execution)
        self.tell(NotSent(execution, reason))

    def on_first_byte(self, execution: str) -> None:
        stream = self._streams.get(execution)
        if stream is not None:
            stream.begun = True
            stream.progressed_s = self._world.now_s
            for id in stream.ids:
                self._front.on_first_byte(id)
            self._watch_idle(execution, stream)
        self.tell(FirstByte(execution))

    def on_progress(self, execution: str, output_tokens: int) -> None:
        stream = self._streams.get(execution)
        if stream is not None:
            stream.progressed_s = self._world.now_s
        self.tell(Progressed(execution, output_tokens))

    def on_stopped(self, execution: str, usage: Usage, failed: bool) -> None:
        stream = self._close(execution)
        if stream is not None and stream.telling and not failed:
            if len(self._replays) < REPLAYS_MAX:
                self._replays[execution] = True
            stream.telling = False
            for id in stream.ids:
                self._front.on_completed(id)
        elif stream is not None and failed:
            self._break(stream, "engine_refused")
        self.tell(Stopped(execution, usage, failed))

    def on_lost(self, execution: str, cause: str) -> None:
        stream = self._close(execution)
        unheard = stream is not None and stream.telling and not stream.begun and isinstance(self.gate, Shown)
        if stream is not None and not unheard:
            self._break(stream, "upstream_lost")
        self.tell(EngineLost(execution, cause, unheard=unheard))

    def on_closed(self, execution: str) -> None:
        self._close(execution)
        self.tell(EngineClosed(execution))

    def _close(self, execution: str) -> _Stream | None:
        self._placed.pop(execution, None)
        return self._streams.pop(execution, None)

    def _break(self, stream: _Stream, reason: str) -> None:
        if stream.telling:
            stream.telling = False
            for id in stream.ids:
                self._front.on_broken(id, reason)

    def _cut_short(self, stream: _Stream) -> None:
        """Its clients get an answer that ends well, with less in it than they wanted."""
        if stream.telling:
            stream.telling = False
            for id in stream.ids:
                self._front.on_cut_short(id)

    def _watch_idle(self, execution: str, stream: _Stream) -> None:
        """A stream that has begun and then stays silent is reported, and watched on: telling twice does no harm."""
        limit_s = self._idle_s(stream.ids[0])

        def look() -> None:
            if not self.alive or self._streams.get(execution) is not stream:
                return
            due_s = stream.progressed_s + limit_s
            if self._world.now_s < due_s:
                self._world.at(due_s, look)
            else:
                self.tell(EngineSilent(execution, self._world.now_s - stream.progressed_s))
                self._world.after(limit_s, look)

        if limit_s != float("inf"):
            self._world.after(limit_s, look)
