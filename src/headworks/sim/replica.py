"""One replica as a gateway meets it: an engine model, the server process round it, and the connections into it.

Everything between a gateway and the model takes time here and can fail: connecting, the request's way in, the answer's
way out, a scrape. A client's FIN is carried like any other message: when it arrives the server closes its side, and the
model lets the sequence go at its next step boundary. That order is what stop evidence E3a rests on, and the faults keep
to it: a server that ignores aborts for a while does not close either, a hung engine closes and stands still, a broken
connection proves nothing because the engine may learn of it much later.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from headworks.core.types import Capacity, ReplicaSample, Usage
from headworks.sim.connection import Connection, Distance, Listener, Sending
from headworks.sim.engine import ENDED, EngineModel, Finished, FirstToken, Output, Submitted, Tokens
from headworks.sim.world import World

PROGRESS_S = 0.25
"""A stream's progress is told this often at most: nobody needs to hear of every token."""


class SimReplica:
    """An engine process at an address. `name` is the replica's name in the policy."""

    def __init__(self, name: str, model: EngineModel, world: World, distance: Distance, seed: int) -> None:
        self.name = name
        self.model = model
        self.work_tokens: dict[str, int] = {}
        """Per execution: prompt tokens read (once) and output tokens produced, for whomever."""
        self.ended_s: dict[str, float] = {}
        """When the engine was through with an execution, however it ended."""
        self.taken: dict[str, float] = {}
        """When the engine took an execution in."""
        self.changed = 0
        """Grows whenever what the model holds may have changed."""
        self.turned_away = 0
        """Requests it was too busy for."""
        self.distance = distance
        self._world = world
        self._random = Random(f"replica-{name}-{seed}")
        self._connections: dict[str, Connection] = {}
        self._down_until_s = -1.0
        self._deaf_until_s = -1.0
        self._unscrapable_until_s = -1.0
        self._due_s: float | None = None

    # --- a request's way in -------------------------------------------------------------------------------------

    def open(self, sending: Sending, listener: Listener) -> None:
        """Connect and send. Exactly one of `on_not_sent`, `on_stopped`, `on_lost` will be told, once."""
        connection = Connection(sending, listener)
        self._connections[sending.execution] = connection
        if self.distance.connect_s:
            self._world.after(self.distance.connect_s, lambda: self._write(connection))
        else:
            self._write(connection)

    def _write(self, connection: Connection) -> None:
        if connection.state != "connecting":
            return
        if self._world.now_s < connection.held_until_s:
            self._world.at(connection.held_until_s, lambda: self._write(connection))
        elif self.is_down:
            self._not_sent(connection, "connect")
        elif self._world.now_s > connection.sending.send_before_s:
            self._not_sent(connection, "late")
        else:
            connection.state = "written"
            incarnation = self.model.incarnation
            self._carry(lambda: self._arrive(connection, incarnation))

    def _arrive(self, connection: Connection, incarnation: int) -> None:
        """The request is read by the server, unless its process has died since the bytes were written."""
        if connection.state != "written":
            return
        if self.is_down or self.model.incarnation != incarnation:
            self._reset(connection)
            return
        sending, now_s = connection.sending, self._world.now_s
        self._advance()
        outcome = self.model.submit(
            sending.execution, sending.prompt_tokens, sending.output_tokens, sending.samples, sending.prefix, now_s
        )
        self.changed += 1
        if outcome is Submitted.BUSY:
            self.turned_away += 1
            self._carry(lambda: self._not_sent(connection, "busy"))
        elif outcome is Submitted.TOO_LONG:
            self._carry(lambda: self._end(connection, Usage(0, 0, 0, 0.0, "failed", True), failed=True))
        else:
            connection.state = "inside"
            connection.begun_s = self.taken[sending.execution] = now_s
            if connection.listener is None:  # its gateway died while the request was on the way
                self.model.abort(sending.execution, now_s)
        self._schedule()

    # --- its way out --------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Be called when the model has something due. A call that comes too early only asks again."""
        next_s = self.model.next_s()
        if next_s is not None and (self._due_s is None or next_s < self._due_s or self._due_s < self._world.now_s):
            self._due_s = next_s
            self._world.at(next_s, self._on_due)

    def _on_due(self) -> None:
        self._due_s = None
        self._advance()
        self._schedule()

    def _advance(self) -> None:
        outputs = self.model.advance(self._world.now_s)
        if outputs:
            self.changed += 1
            self._note_work(outputs)
            self._carry(lambda: self._deliver(outputs))

    def _note_work(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Tokens):
                self.work_tokens[output.execution] = self.work_tokens.get(output.execution, 0) + output.tokens
            elif isinstance(output, FirstToken):
                connection = self._connections.get(output.execution)
                prompt_tokens = connection.sending.prompt_tokens if connection is not None else 0
                self.work_tokens[output.execution] = self.work_tokens.get(output.execution, 0) + prompt_tokens
            elif isinstance(output, Finished):
                self.ended_s[output.execution] = output.at_s

    def _deliver(self, outputs: list[Output]) -> None:
        for output in outputs:
            connection = self._connections.get(output.execution)
            if connection is None or connection.state != "inside":
                continue
            if isinstance(output, FirstToken):
                self._first_byte(connection)
            elif isinstance(output, Tokens):
                self._progress(connection, output.tokens)
            elif isinstance(output, Finished):
                self._finish(connection, output.reason)

    def _first_byte(self, connection: Connection) -> None:
        connection.told_s = self._world.now_s
        if connection.listener is not None:
            connection.listener.on_first_byte(connection.sending.execution)

    def _progress(self, connection: Connection, count: int) -> None:
        connection.output_tokens += count
        reached = 0 < connection.watch_tokens <= connection.output_tokens
        if connection.listener is not None and (reached or self._world.now_s - connection.told_s >= PROGRESS_S):
            connection.told_s = self._world.now_s
            if reached:
                connection.watch_tokens = 0
            connection.listener.on_progress(connection.sending.execution, connection.output_tokens)

    def watch(self, execution: str, output_tokens: int) -> None:
        """Tell of its progress as soon as so many tokens are made."""
        connection = self._connections.get(execution)
        if connection is not None:
            connection.watch_tokens = output_tokens

    def is_listened_to(self, execution: str) -> bool:
        """Its gateway lives, hears of it and has not told it to stop: so it answers for how far it goes."""
        connection = self._connections.get(execution)
        if connection is None or connection.held_until_s:
            return False
        return connection.listener is not None and not connection.closing

    def _finish(self, connection: Connection, reason: str) -> None:
        """In band if the answer is complete; an aborted one is only gone, and its connection is closed already."""
        if reason != ENDED:
            if connection.listener is None:
                self._over(connection)
            return
        sending = connection.sending
        usage = Usage(
            prompt_tokens=sending.prompt_tokens * sending.samples,
            cached_tokens=0,
            output_tokens=connection.output_tokens,
            engine_s=self._world.now_s - connection.begun_s,
            end="length" if 0 < sending.output_tokens_max <= sending.output_tokens else "stop",
            exact=True,
        )
        self._end(connection, usage, failed=False)

    def _end(self, connection: Connection, usage: Usage, failed: bool) -> None:
        listener = self._over(connection)
        if listener is not None:
            listener.on_stopped(connection.sending.execution, usage, failed)

    def _not_sent(self, connection: Connection, reason: str) -> None:
        listener = self._over(connection)
        if listener is not None:
            listener.on_not_sent(connection.sending.execution, reason)

    def _reset(self, connection: Connection) -> None:
        """The engine's side is gone for good. After the gateway's FIN that is just the close it was waiting for."""
        listener = self._over(connection)
        if listener is not None and connection.closing:
            listener.on_closed(connection.sending.execution)
        elif listener is not None:
            listener.on_lost(connection.sending.execution, "reset")

    def _over(self, connection: Connection) -> Listener | None:
        if connection.state == "over":
            return None
        connection.state = "over"
        self._connections.pop(connection.sending.execution, None)
        return connection.listener

    # --- stopping -----------------------------------------------------------------------------------------------

    def abort(self, execution: str) -> None:
        """Half-close and read on. Before a byte was written the request is simply never sent."""
        connection = self._connections.get(execution)
        if connection is None or connection.closing:
            return
        if connection.state == "connecting":
            self._not_sent(connection, "gone")
            return
        connection.closing = True
        self._carry(lambda: self._notice_fin(connection))

    def _notice_fin(self, connection: Connection) -> None:
        """The server sees the FIN: it aborts, and closes its own side."""
        if connection.state == "over":
            return
        if self._world.now_s < self._deaf_until_s:
            self._world.at(self._deaf_until_s, lambda: self._notice_fin(connection))
            return
        self._advance()
        self.model.abort(connection.sending.execution, self._world.now_s)
        self.changed += 1
        self._schedule()
        self._carry(lambda: self._closed(connection))

    def _closed(self, connection: Connection) -> None:
        listener = self._over(connection)
        if listener is not None:
            listener.on_closed(connection.sending.execution)

    # --- being looked at ----------------------------------------------------------------------------------------

    def scrape(self, answered: Callable[[ReplicaSample | None], None]) -> None:
        """One look at the gauges. None: no answer came."""
        begun_s, took_s = self._world.now_s, self.distance.scrape_s
        if self.distance.scrape_s_max > took_s:
            took_s = self._random.uniform(took_s, self.distance.scrape_s_max)
        half_s = took_s / 2

        def look() -> None:
            sample = None if self._is_unscrapable() else self._sample(begun_s, took_s)
            self._world.after(half_s, lambda: answered(sample))

        self._world.after(half_s, look)

    def _sample(self, begun_s: float, took_s: float) -> ReplicaSample:
        gauges = self.model.sample(self._world.now_s)
        return ReplicaSample(
            replica=self.name,
            incarnation=f"{self.name}#{gauges.incarnation}",
            begun_s=begun_s,
            ended_s=begun_s + took_s,
            iterations=(gauges.iterations,),
            running=gauges.running,
            waiting=gauges.waiting,
            kv_used_ratio=gauges.kv_used_ratio,
            compute_used_ratio=None,
            preemptions_total=gauges.preemptions,
            rank_loads=(gauges.running + gauges.waiting,),
        )

    def describe(self, context_tokens: int, models: tuple[str, ...]) -> Capacity:
        """What the engine says it can hold."""
        return Capacity(
            replica=self.name,
            engine="simulated",
            version="",
            incarnation=f"{self.name}#{self.model.incarnation}",
            context_tokens=context_tokens,
            kv_tokens=self.model.kv_tokens,
            block_tokens=self.model.block_tokens,
            running_max=self.model.running_max,
            evidence=("E1", "E3a", "E3b", "E4"),
            models=models,
        )

    # --- what can go wrong --------------------------------------------------------------------------------------

    @property
    def is_down(self) -> bool:
        return self._world.now_s < self._down_until_s

    def stand_by(self) -> None:
        """Nobody has started it yet: whoever connects is refused, whoever looks gets no answer."""
        self._down_until_s = float("inf")

    def come_up(self) -> None:
        """It is there now."""
        self._down_until_s = -1.0

    @property
    def stands_by(self) -> bool:
        return self._down_until_s == float("inf")

    def restart(self, down_s: float) -> None:
        """The process dies; another one answers after `down_s`. Every open connection is reset."""
        self._advance()
        now_s = self._world.now_s
        for execution in self.model.restart(now_s):
            self.ended_s.setdefault(execution, now_s)
        self.changed += 1
        self._down_until_s = now_s + down_s
        lost = [c for c in self._connections.values() if c.state == "inside"]
        self._carry(lambda: self._reset_all(lost))

    def _reset_all(self, connections: list[Connection]) -> None:
        for connection in connections:
            self._reset(connection)

    def hang(self, for_s: float) -> None:
        """Steps stand still; the server still accepts, closes and answers scrapes."""
        self._advance()
        self.model.pause(self._world.now_s)

        def resume() -> None:
            self.model.resume(self._world.now_s)
            self._schedule()

        self._world.after(for_s, resume)

    def slow(self, factor: float, for_s: float) -> None:
        self.model.slow(factor)
        self._world.after(for_s, lambda: self.model.slow(1.0))

    def ignore_aborts(self, for_s: float) -> None:
        """A client's FIN is not acted on until then: the sequence runs on, and the server does not close either."""
        self._deaf_until_s = max(self._deaf_until_s, self._world.now_s + for_s)

    def refuse_scrapes(self, for_s: float) -> None:
        self._unscrapable_until_s = max(self._unscrapable_until_s, self._world.now_s + for_s)

    def break_connections(self, ratio: float) -> None:
        """Something between breaks some connections. The engine notices each later than the gateway does."""
        for connection in list(self._connections.values()):
            listener = connection.listener
            if listener is not None and connection.state != "connecting" and self._random.random() < ratio:
                self._forsake(connection)
                listener.on_lost(connection.sending.execution, "broken")

    def forsake(self, listener: Listener) -> None:
        """A gateway died: its kernel closes every connection. Nobody is told anything any more."""
        for connection in list(self._connections.values()):
            if connection.listener is listener:
                if connection.state == "connecting":
                    self._over(connection)
                else:
                    self._forsake(connection)

    def hold_back(self, listener: Listener, until_s: float) -> None:
        """A gateway stands still: what it was about to write it writes when it goes on, and meanwhile it hears nothing."""
        for connection in self._connections.values():
            if connection.listener is listener:
                connection.held_until_s = until_s

    def mend(self) -> None:
        """Every fault is over (the liveness phase of a campaign)."""
        self._deaf_until_s = self._unscrapable_until_s = -1.0
        self._down_until_s = min(self._down_until_s, self._world.now_s)
        self.model.slow(1.0)

    def _forsake(self, connection: Connection) -> None:
        """From now on nobody listens; the engine will learn it within `notice_s`, and abort."""
        connection.listener = None
        execution, incarnation = connection.sending.execution, self.model.incarnation

        def notice() -> None:
            if self.model.incarnation == incarnation:
                self._advance()
                self.model.abort(execution, self._world.now_s)
                self.changed += 1
                self._schedule()

        self._world.after(self.distance.notice_s * self._random.random(), notice)

    def _is_unscrapable(self) -> bool:
        return self.is_down or self._world.now_s < self._unscrapable_until_s

    def _carry(self, delivery: Callable[[], object]) -> None:
        """One way between gateway and engine; next in turn where there is no distance, never at once."""
        self._world.after(self.distance.latency_s, delivery)
