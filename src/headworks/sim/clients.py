"""Clients as they are: impatient, sometimes silent about leaving, and retrying by the rules of the common SDKs.

One `Caller` is one wish: a unique piece of work somebody wants done. It may take several attempts, each a request of
its own to the gateway. The rules are those of the stock OpenAI SDK: at most two retries; 408, 409, 429, 5xx and broken
connections are retried unless `x-should-retry: false` came; a hint of up to 60 s is obeyed exactly and without jitter;
without one the wait is 0.5 s × 2^k, at most 8 s, less up to a quarter of it. An answer that has begun is not retried.

*Useful* is an answer that was complete while its caller still wanted it. *Goodput* is useful and within its service
level as well. What the engine did for anybody else is *wasted*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from headworks.core.reasons import REASONS
from headworks.core.types import Budget, Decision
from headworks.sim.traffic import Planned
from headworks.sim.world import World

HINT_S_MAX = 60.0
BACKOFF_S_MAX = 8.0
LEAVE_MOMENTS = ("queued", "before_first_byte", "mid_stream", "at_end")


@dataclass(slots=True)
class Temper:
    """How callers of one source behave. Ratios are chances, drawn once per caller."""

    patience_s: float = float("inf")
    """Leaves when no first token came by then."""
    leave_ratio: float = 0.0
    """Leaves for no reason, at a random one of `LEAVE_MOMENTS`."""
    hidden_ratio: float = 0.0
    """Of those who leave: the gateway cannot see it (pipelined bytes, then close)."""
    retries_max: int = 0
    retries_after_leaving: bool = False
    """Running out of patience is a client time-out, and SDKs retry those as well, under the same key."""
    key_ratio: float = 0.0
    """Sends an `Idempotency-Key`."""
    shared_key_ratio: float = 0.0
    """Of those keys: share that is one and the same for all its callers, each with a body of its own."""
    says_deadline: bool = False
    """Tells its patience in `Headworks-Deadline`."""


@dataclass(slots=True)
class Attempt:
    """One request to the gateway. `id` is the arrival's id, everything else is what became of it on the client's side."""

    id: str
    number: int
    arrived_s: float
    first_byte_s: float | None = None
    ended_s: float | None = None
    left_s: float | None = None
    end: str = ""
    """`completed`, `cut` (whole, and ended by the gateway), `refused`, `broken`, `lost` (connection error before any byte),
    or empty while it runs."""
    reason: str = ""


class Door(Protocol):
    """The way into a gateway, as a client sees it."""

    def send(self, caller: Caller, attempt: Attempt) -> bool:
        """Deliver a request. False: nobody listens there."""
        ...

    def leave(self, attempt: Attempt) -> None:
        """Close the client's side of it, visibly."""
        ...


class Caller:
    """One wish and its attempts. Ends once: `settled` is called with it."""

    __slots__ = (
        "_door",
        "_leave_moment",
        "_random",
        "_settled",
        "_temper",
        "_world",
        "attempts",
        "done",
        "hidden",
        "key",
        "name",
        "number",
        "opens",
        "planned",
        "session",
    )

    def __init__(
        self,
        number: int,
        planned: Planned,
        temper: Temper,
        world: World,
        door: Door,
        random: Random,
        settled: Callable[[Caller], None],
        name: str = "",
    ) -> None:
        """`name`: what its attempts are called after; empty: its number."""
        self.name = name or f"r{number}"
        self.session = ""
        """The session it is a call of, or that it opens."""
        self.opens: Budget | None = None
        self.number = number
        self.planned = planned
        self.attempts: list[Attempt] = []
        self.done = False
        self.key = f"key-{self.name}" if random.random() < temper.key_ratio else ""
        self.hidden = random.random() < temper.hidden_ratio
        leaves = random.random() < temper.leave_ratio
        self._leave_moment = random.choice(LEAVE_MOMENTS) if leaves else ""
        if self.key and temper.shared_key_ratio and random.random() < temper.shared_key_ratio:
            self.key = "key-shared"
        self._temper = temper
        self._world = world
        self._door = door
        self._random = random
        self._settled = settled

    @property
    def deadline_s(self) -> float:
        """What it tells the gateway about its patience: seconds from receipt, or infinity."""
        return self._temper.patience_s if self._temper.says_deadline else float("inf")

    def start(self) -> None:
        """Send the request, once more if it was sent before."""
        attempt = Attempt(f"{self.name}.{len(self.attempts)}", len(self.attempts), self._world.now_s)
        self.attempts.append(attempt)
        if not self._door.send(self, attempt):
            self._end(attempt, "lost", "connect")
            return
        if self._temper.patience_s != float("inf"):
            self._world.after(self._temper.patience_s, lambda: self._out_of_patience(attempt))
        if self._leave_moment in ("queued", "before_first_byte"):
            # A queued request waits milliseconds when there is room, so "queued" has to be soon to be hit at all.
            spread_s = 0.02 if self._leave_moment == "queued" else 0.5
            self._world.after(self._random.random() * spread_s, lambda: self._leave(attempt))

    def on_first_byte(self, attempt: Attempt) -> None:
        if attempt.first_byte_s is None and not attempt.end:
            attempt.first_byte_s = self._world.now_s
            if self._leave_moment == "mid_stream":
                self._world.after(self._random.random() * 0.5, lambda: self._leave(attempt))

    def on_completed(self, attempt: Attempt) -> None:
        """The whole answer is here. Someone who leaves right at the end does so in this very instant."""
        if attempt.end:
            return
        if attempt.first_byte_s is None:  # a session that is open has no stream
            attempt.first_byte_s = self._world.now_s
        self._end(attempt, "completed", "")
        if self._leave_moment == "at_end" and not self.hidden:
            self._door.leave(attempt)

    def on_cut_short(self, attempt: Attempt) -> None:
        """It ends with `finish_reason: length`, and not where it would have: nothing an SDK repeats."""
        if not attempt.end:
            self._end(attempt, "cut", "length")

    def on_refused(self, attempt: Attempt, decision: Decision) -> None:
        """An error status instead of an answer."""
        if attempt.end:
            return
        row = REASONS.get(decision.reason)
        may_retry = row is not None and row.status in (408, 409, 429, 500, 502, 503, 504) and row.retry != "never"
        hint_s = decision.retry_after_s
        if row is not None and row.retry in ("ticket", "refill") and hint_s is not None and hint_s > HINT_S_MAX:
            may_retry = False
        self._end(attempt, "refused", decision.reason, may_retry, hint_s)

    def on_broken(self, attempt: Attempt, reason: str) -> None:
        """The connection broke, or an error event came in the middle of the stream."""
        if not attempt.end:
            self._end(attempt, "lost" if attempt.first_byte_s is None else "broken", reason)

    def _out_of_patience(self, attempt: Attempt) -> None:
        if attempt.first_byte_s is None:
            self._leave(attempt)

    def _leave(self, attempt: Attempt) -> None:
        if attempt.end or attempt.left_s is not None:
            return
        attempt.left_s = self._world.now_s
        if not self.hidden:
            self._door.leave(attempt)
        if self._temper.retries_after_leaving and attempt.first_byte_s is None and self._may_try_again():
            self._try_again(None)
        else:
            self._settle()

    def _end(self, attempt: Attempt, end: str, reason: str, may_retry: bool = True, hint_s: float | None = None) -> None:
        attempt.end, attempt.reason, attempt.ended_s = end, reason, self._world.now_s
        if attempt.left_s is not None:
            return
        if end in ("refused", "lost") and may_retry and self._may_try_again():
            self._try_again(hint_s)
        else:
            self._settle()

    def _may_try_again(self) -> bool:
        return len(self.attempts) <= self._temper.retries_max

    def _try_again(self, hint_s: float | None) -> None:
        if hint_s is not None and 0 < hint_s <= HINT_S_MAX:
            self._world.after(hint_s, self.start)
            return
        backoff_s = min(0.5 * 2 ** (len(self.attempts) - 1), BACKOFF_S_MAX)
        self._world.after(backoff_s * (1 - 0.25 * self._random.random()), self.start)

    def _settle(self) -> None:
        if not self.done:
            self.done = True
            self._settled(self)
