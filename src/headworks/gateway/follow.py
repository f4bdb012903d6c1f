"""From what the relay of one execution hears to events for the gate, and from the gate's wishes back to the relay."""

from __future__ import annotations

from headworks.core import events
from headworks.core.commands import Shortfall
from headworks.core.quota import NANO
from headworks.core.types import Execution, Usage
from headworks.gateway.answers import Answers
from headworks.gateway.audience import Audience
from headworks.gateway.equals import Equals, Name
from headworks.gateway.relay import ANSWERED, Relay
from headworks.gateway.runner import Runner


class Follow:
    """Tells the gate what the relay of one execution hears (`follower.Follower`, `runner.Attempt`)."""

    __slots__ = ("_began", "_execution", "_id", "_idle_s", "_outcome", "_runner", "relay")

    def __init__(self, runner: Runner, execution: Execution, idle_s: float) -> None:
        self._runner = runner
        self._execution = execution
        self._id = execution.id
        self._idle_s = idle_s
        self._began = False
        self._outcome = "cancelled"
        """For the metric of attempts: what it is unless something else is heard of it."""
        self.relay: Relay | None = None

    def abort(self, reason: str, shortfall: Shortfall | None = None, retry_after_s: float | None = None) -> None:
        relay = self.relay
        if relay is None:
            return
        if shortfall is None:
            relay.abort(reason, back_s=retry_after_s)
        elif reason == "kv_saturation":
            relay.abort(reason, value=shortfall.value / shortfall.limit, limit=1.0, unit="")
        elif shortfall.unit == "nanomoney":
            relay.abort(reason, value=shortfall.value / NANO, limit=shortfall.limit / NANO, unit="money")
        else:
            relay.abort(reason, value=shortfall.value, limit=shortfall.limit, unit=shortfall.unit)

    def cut_short(self) -> None:
        if self.relay is not None:
            self.relay.cut_short()

    def watch(self, output_tokens: int) -> None:
        if self.relay is not None:
            self.relay.watch(output_tokens)

    def check_silence(self, now_s: float) -> None:
        """Tell when the engine has said nothing for longer than the class allows, while we were reading."""
        relay = self.relay
        if self._began and relay is not None and not relay.paused and now_s - relay.last_s > self._idle_s:
            self._runner.feed(events.EngineSilent(self._id, now_s - relay.last_s))

    def first_byte(self) -> None:
        self._began = True
        self._runner.feed(events.FirstByte(self._id))

    def progressed(self, output_tokens: int) -> None:
        self._runner.feed(events.Progressed(self._id, output_tokens))

    def slow(self, paused: bool) -> None:
        self._runner.feed(events.ClientSlow(self._id, paused))

    def stopped(self, usage: Usage, failed: bool, at_once: bool = False) -> None:
        self._outcome = "failed" if failed else "completed"
        self._runner.feed(events.Stopped(self._id, usage, failed, at_once))

    def lost(self, cause: str, unheard: bool) -> None:
        self._outcome = "lost"
        self._runner.feed(events.EngineLost(self._id, cause, cause.startswith(ANSWERED), unheard))

    def not_sent(self, reason: str) -> None:
        self._outcome = ""
        self._runner.feed(events.NotSent(self._id, reason))

    def busy(self, retry_after_s: float) -> None:
        self._outcome = "refused"
        self._runner.feed(events.NotSent(self._id, "busy", retry_after_s))

    def closed(self) -> None:
        self._runner.feed(events.EngineClosed(self._id))

    def over(self) -> None:
        self.relay = None  # they point at each other: parted here, both are gone without the garbage collector
        self._runner.ended(self._execution, self._outcome)


class EqualFollow(Follow):
    """Of an execution whose answer an equal request may get under pressure (E5)."""

    __slots__ = ("_audience", "_equals", "_name")

    def __init__(
        self, runner: Runner, execution: Execution, idle_s: float, equals: Equals, name: Name, audience: Audience
    ) -> None:
        super().__init__(runner, execution, idle_s)
        self._equals = equals
        self._name = name
        self._audience = audience

    def over(self) -> None:
        self._equals.over(self._name, self._audience, self._outcome == "completed")
        super().over()


class SharedFollow(Follow):
    """Of an execution whose key may be repeated: when it is over, its answer is kept if it is whole."""

    __slots__ = ("_answers",)

    def __init__(self, runner: Runner, execution: Execution, idle_s: float, answers: Answers) -> None:
        super().__init__(runner, execution, idle_s)
        self._answers = answers

    def over(self) -> None:
        self._answers.over(self._id, self._outcome == "completed")
        super().over()
