"""The only caller of the gate: turns what happens into events, and the gate's effects into I/O.

There is one queue of events and one loop over it, at the end of each turn of the event loop in which something came. Performing
an effect may cause the next event at once (a ledger in memory answers before `apply` returns, an engine may refuse before `run`
does): that event is queued, never handled from within. With room in the pool a request is thus admitted, charged and sent in
the turn in which it arrived, together with all the others that did.

Each event has an instant of its own, by the clock and by its place in its turn (`core/instants.py`): what is written down of an
event says when it was handled and after which others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Protocol

from headworks.core import effects, events
from headworks.core.commands import Answer, Command, Shortfall
from headworks.core.effects import Ask, Record, Run
from headworks.core.gate import Gate
from headworks.core.instants import INSTANTS_PER_S
from headworks.core.seams import LedgerStore
from headworks.core.types import Decision, Execution, Request, Usage
from headworks.engines.base import Engine
from headworks.engines.outbox import Outbox
from headworks.gateway.clock import TurnClock
from headworks.gateway.compute_watch import ComputeWatch
from headworks.gateway.samplers import Samplers

log = logging.getLogger("headworks.gateway")

CLOSE_S = 2.0
"""How long after a drain's limit the proofs and last answers are waited for."""
DRAIN_LOOK_S = 0.02
FAULT_LOOK_S = 0.1
SILENCE_LOOK_S = 1.0
FACTS = frozenset(
    {
        *(events.ReplicaDescribed, events.ReplicaSampled, events.SampleFailed, events.UsageRead),
        *(events.Drain, events.PolicyChanged, events.Tick),
    }
)
"""Events about no request, which decisions depend on."""


class Call(Protocol):
    """What a request needs done for it: `gateway/proxy.py` has the real one."""

    request: Request

    def send(self, engine: Engine, run: effects.Run) -> Attempt:
        """Send it now, on this engine, under this execution."""
        ...

    def join(self, execution: str, decision: Decision) -> bool:
        """Share the answer of an execution that was sent for another call. False: it is not kept."""
        ...

    def refuse(self, decision: Decision, usage: Usage | None = None) -> None:
        """Answer the client that it does not run; `usage` is what its key has used already."""
        ...

    def serve(self, decision: Decision) -> None:
        """Answer it with what is kept of an equal request."""
        ...

    def ended(self) -> None:
        """It is over: its client has had its whole answer."""
        ...

    def fail(self, fault: Exception) -> None:
        """It could not be taken in or sent, which is a fault of ours: its client is told so."""
        ...


class Attempt(Protocol):
    """One execution on its way: `gateway/relay.py` has the real one."""

    def abort(self, reason: str, shortfall: Shortfall | None = None, retry_after_s: float | None = None) -> None:
        """Stop it upstream; what its client is told, if it is still there, is `reason`, with the limit that decided, and
        when to come back."""
        ...

    def cut_short(self) -> None:
        """Stop it upstream; for its client it ends as any answer that has reached its limit."""
        ...

    def watch(self, output_tokens: int) -> None:
        """Report as soon as so many tokens are counted."""
        ...

    def check_silence(self, now_s: float) -> None:
        """Tell the gate if the engine has been silent for too long."""
        ...


class Recorder(Protocol):
    """Who writes down decisions, outcomes and alarms."""

    def record(self, record: Decision | effects.Outcome | effects.TurnedAway) -> None: ...

    def alarm(self, alarm: effects.Alarm) -> None: ...

    def attempt(self, replica: str, outcome: str) -> None: ...

    def ledger(self, operation: str, outcome: str, seconds: float) -> None: ...


class Runner:
    """Feeds the gate and does what it says."""

    def __init__(
        self,
        gate: Gate,
        store: LedgerStore,
        engines: MutableMapping[str, Engine],
        recorder: Recorder,
        clock_s: Callable[[], float],
        computes: Mapping[str, ComputeWatch] | None = None,
        turns: TurnClock | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        self.gate, self.recorder, self._store, self._engines, self._clock_s = gate, recorder, store, engines, clock_s
        self._events: deque[events.Event] = deque()
        self.turns, self._outbox = turns or TurnClock(clock_s), outbox or Outbox()
        self._is_due = False
        """What has come is handled at the end of this turn of the loop, or is being handled."""
        self._asked: list[Command] = []
        """What the ledger is asked when it has been."""
        self._calls: dict[str, Call] = {}
        self._expected: dict[str, Callable[[Any], object]] = {}
        """By arrival, who opens or closes a session; bounded by the open connections."""
        self._attempts: dict[str, Attempt] = {}
        self._over: set[str] = set()
        """Executions that ended before their sending returned."""
        self.samplers = Samplers(engines, self.feed, clock_s)
        for name in engines:
            self.samplers.watch(name, (computes or {}).get(name))
        self.on_fact: Callable[[events.Event, float], None] = _nobody
        """Who else wants to know of `FACTS`, and at which instant the gate is told."""
        self._timer: asyncio.TimerHandle | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._perform: dict[type[Any], Callable[[Any], None]] = {  # beside those of every request, which `_do` knows
            effects.Abort: self._abort,
            effects.Watch: self._watch,
            effects.Reply: self._reply,
            effects.Opened: self._told,
            effects.Closed: self._told,
            effects.Judged: self._told,
            effects.Serve: self._serve,
            effects.Attach: self._attach,
            effects.Observe: self._observe,
            effects.Forget: self._forget_replica,
            effects.Alarm: self._alarm,
            effects.WakeAt: self._wake_at,
        }

    def start(self) -> None:
        """Begin: the first tick asks the ledger for standing, the samplers ask the engines what they can hold."""
        self.feed(events.Tick())
        self.samplers.start()
        self._check_silence()

    def _check_silence(self) -> None:
        """One look a second at all open answers, instead of a timer each."""
        now_s = self._clock_s()
        for attempt in list(self._attempts.values()):
            attempt.check_silence(now_s)
        self._silence = asyncio.get_running_loop().call_later(SILENCE_LOOK_S, self._check_silence)

    def admit(self, call: Call) -> None:
        """Hand a request to the gate. Whoever does so owns the ending: `forget`, and `ClientGone` if it left before."""
        request = call.request
        self._calls[request.id] = call
        self.feed(events.Arrived(request))

    def expect(self, name: str, told: Callable[[Any], object] | None) -> None:
        """Whoever opens or closes a session under this name, or passes by, wants to hear what became of it; None: no more."""
        if told is None:
            self._expected.pop(name, None)
        else:
            self._expected[name] = told

    def forget(self, name: str) -> None:
        """Nobody waits for this arrival any more."""
        self._calls.pop(name, None)

    def feed(self, event: events.Event) -> None:
        """Take an event in. It is handled in this turn of the loop, with all that came from other sockets in it."""
        self._events.append(event)
        if not self._is_due:
            self._is_due = True
            self._outbox.when_written(self._turn)

    def take_in(self) -> None:
        """Handle at once what has come, for whoever is to answer that it holds."""
        if self._is_due:
            self._turn()

    def _turn(self) -> None:
        """Handle what has come and everything that follows from it, at one time by the clock, each at its own instant.

        One after another, so that what is done for each is still warm for the next; and what they ask of the ledger goes there
        together. A fault of ours costs that event or that effect, and nothing beside it.
        """
        waiting, turns = self._events, self.turns
        self._outbox.begin_turn()
        turns.begin_turn()
        try:
            while waiting or self._asked:
                if not waiting:
                    self._ask()
                    continue
                event = waiting.popleft()
                turns.instant += 1
                now_s = turns.instant / INSTANTS_PER_S
                try:
                    if type(event) in FACTS:
                        self.on_fact(event, now_s)
                    made = self.gate.handle(event, now_s)
                except Exception as fault:
                    self.faulted(event, fault)
                    continue
                if made:
                    self._do(made)
        finally:
            self._is_due = False
            self._outbox.end_turn()

    def _do(self, made: list[effects.Effect]) -> None:
        for effect in made:
            try:
                if type(effect) is Ask:
                    self._asked += effect.commands
                elif type(effect) is Record:
                    self.recorder.record(effect.record)
                elif type(effect) is Run:
                    self._run(effect)
                else:
                    self._perform[type(effect)](effect)
            except Exception as fault:
                self.faulted(effect, fault)

    def faulted(self, what: events.Event | effects.Effect, fault: Exception) -> None:
        """Reported loudly and served through; the next tick may have been lost with it, so there is one soon."""
        log.error("%s could not be handled", type(what).__name__, exc_info=fault)
        self.recorder.alarm(effects.Alarm("gateway_fault", type(what).__name__, repr(fault)))
        self._wake_at(effects.WakeAt(self._clock_s() + FAULT_LOOK_S))
        if isinstance(what, events.Arrived):
            call = self._calls.get(what.request.id)
            if call is not None:
                call.fail(fault)

    # effects

    def _ask(self) -> None:
        commands, self._asked = self._asked, []
        begun_s = self._clock_s()
        operation = type(commands[0]).__name__.lower() if len(commands) == 1 else "batch"

        def answered(answers: list[Answer]) -> None:
            self.recorder.ledger(operation, "ok", self._clock_s() - begun_s)  # what is lost has no answer, and no round trip
            self.feed(events.LedgerAnswered(answers))

        try:
            self._store.apply(commands, answered)
        except Exception as fault:
            self.faulted(Ask(commands), fault)

    def _run(self, effect: effects.Run) -> None:
        call = self._calls.get(effect.id)
        if call is None:  # it left in this very turn: nothing has been sent, and nothing will be
            self.feed(events.NotSent(effect.execution.id, "gone"))
            return
        execution = effect.execution.id
        try:
            attempt = call.send(self._engines[effect.execution.replica], effect)
        except Exception as fault:
            self._could_not_send(effect, fault)
            return
        if execution in self._over:  # it ended before `send` returned
            self._over.discard(execution)
        else:
            self._attempts[execution] = attempt
        for name in effect.others or ():
            other = self._calls.get(name)
            if other is not None:
                other.join(execution, effect.decision)

    def _could_not_send(self, effect: effects.Run, fault: Exception) -> None:
        """Whoever waits for it is answered, and what was charged for it comes back."""
        self.faulted(effect, fault)
        for name in (effect.id, *(effect.others or ())):
            call = self._calls.get(name)
            if call is not None:
                call.fail(fault)
        self.feed(events.NotSent(effect.execution.id, "fault"))

    def ended(self, execution: Execution, outcome: str) -> None:
        """Nothing more will come from this execution's connection. `outcome` is empty if nothing was sent on it."""
        if outcome:
            self.recorder.attempt(execution.replica, outcome)
        if self._attempts.pop(execution.id, None) is None:
            self._over.add(execution.id)

    def _abort(self, effect: effects.Abort) -> None:
        attempt = self._attempts.get(effect.execution)
        if attempt is None:
            return
        if effect.as_length:
            attempt.cut_short()
        else:
            attempt.abort(effect.reason, effect.shortfall, effect.retry_after_s)

    def _watch(self, effect: effects.Watch) -> None:
        attempt = self._attempts.get(effect.execution)
        if attempt is not None:
            attempt.watch(effect.output_tokens)

    def _reply(self, effect: effects.Reply) -> None:
        call = self._calls.get(effect.id)
        if call is None:
            return
        try:
            call.refuse(effect.decision, effect.usage)
        except Exception as fault:  # the gate believes it answered: whoever waits must not do so for ever
            self.faulted(effect, fault)
            call.fail(fault)
        else:
            call.ended()

    def _told(self, effect: effects.Opened | effects.Closed | effects.Judged) -> None:
        told = self._expected.pop(effect.id, None)
        if told is not None:
            told(effect)
        elif isinstance(effect, effects.Opened):  # its client left in this very turn: nobody knows its name
            self.feed(events.CloseAsked(effect.id, effect.session.scope))

    def _serve(self, effect: effects.Serve) -> None:
        call = self._calls.get(effect.id)
        if call is None:
            return
        try:
            call.serve(effect.decision)
        except Exception as fault:  # as of `_reply`
            self.faulted(effect, fault)
            call.fail(fault)

    def _attach(self, effect: effects.Attach) -> None:
        call = self._calls.get(effect.id)
        try:
            shares = call is not None and call.join(effect.execution, effect.decision)
        except Exception as fault:
            self.faulted(effect, fault)
            shares = False
        self.feed(events.Attached(effect.id, shares))

    def _observe(self, effect: effects.Observe) -> None:
        self.samplers.wish(effect.replica, effect.at_s)

    def _forget_replica(self, effect: effects.Forget) -> None:
        log.warning("%s is withdrawn: nothing of it is left", effect.replica)
        self.samplers.forget(effect.replica)

    def _alarm(self, effect: effects.Alarm) -> None:
        log.warning("%s: %s: %s", effect.name, effect.subject, effect.detail)
        self.recorder.alarm(effect)

    def _wake_at(self, effect: effects.WakeAt) -> None:
        if self._timer is not None:
            self._timer.cancel()
        tick, in_s = events.Tick(effect.at_s), effect.at_s - self._clock_s()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, in_s), self.feed, tick)

    # ending

    async def drain(self, limit_s: float) -> None:
        """Stop admitting, let streams run up to the limit, then cut them; returns when nothing is left to settle here."""
        self.feed(events.Drain(self._clock_s() + limit_s))
        for _ in range(int((limit_s + CLOSE_S) / DRAIN_LOOK_S)):
            if self.gate.drained() and not self._calls:
                return
            await asyncio.sleep(DRAIN_LOOK_S)

    async def close(self) -> None:
        """The last act: release the boot, so that what could not be proved stopped is adopted at once."""
        self._do(self.gate.depart())
        self._turn()
        for timer in (self._timer, self._silence):
            if timer is not None:
                timer.cancel()
        await self.samplers.close()
        self._store.close()


def _nobody(event: events.Event, now_s: float) -> None:
    """Until somebody asks to be told."""
