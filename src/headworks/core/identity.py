"""One key, one execution: requests whose client gave an `Idempotency-Key` (A6).

Such a request claims its key in the ledger before anything else is decided about it. The answer says what becomes of it:

    claimed   the key is free, or its last attempt ended without an answer worth repeating: it goes on like any other
    attach    an execution of the key lives: it shares that answer if that one runs here, else 409 and come back
    replay    an execution of the key has completed: it gets the kept answer, or 409 with what was used
    conflict  the key belongs to other parameters: 422

Nothing is charged for a claim. Whoever holds a key and does not run gives it back, so that no refusal is kept.

An arrival that shares an answer stands among the subscribers of the life whose answer it is, so the last of them to leave
is the one that cancels it. It has a decision and an outcome of its own (`Life.sharers`), and used nothing: the execution
is billed once, to the arrival that it was run for.
"""

from __future__ import annotations

from typing import NamedTuple

from headworks.core.boot import Boot
from headworks.core.commands import Answer, Claim, Stop
from headworks.core.course import Course
from headworks.core.desk import Desk
from headworks.core.effects import Attach
from headworks.core.events import Attached
from headworks.core.last_moment import start_by_s
from headworks.core.life import ASKED, CLAIMING, ENDED, QUEUED, RUNNING, SENT, SETTLING, Life
from headworks.core.policy import INFINITE_S
from headworks.core.refusing import Refusing
from headworks.core.types import Execution, Forecast, Request, Usage, Work

NOTHING = Work(0, 0, 0, 0.0, 0, 0, "shared")
"""What is reserved for a request whose key somebody has already."""
BY_KEY = Forecast(None, 0.0, None, None, None, 1.0, "key")
ATTACHED = Forecast(None, 0.0, None, None, None, 1.0, "attached")
REPLAYED = Forecast(None, 0.0, None, None, None, 1.0, "replayed")
"""Forecasts of such a request: its key decides, and no time is predicted."""
JOINABLE = frozenset({CLAIMING, QUEUED, ASKED, SENT, RUNNING})


class _Joining(NamedTuple):
    """An arrival that has been told to whoever holds the bytes, and not been answered for."""

    life: Life
    completed: bool
    usage: Usage | None


class Identity:
    """Who has which key, at the gate's desk."""

    def __init__(self, desk: Desk, course: Course, boot: Boot, refusing: Refusing) -> None:
        self._desk = desk
        self._course = course
        self._boot = boot
        self._refusing = refusing
        self._claimed: dict[str, Life] = {}
        """Arrival → its claim, from the ledger's answer until it is taken up in the same turn."""
        self._joining: dict[str, _Joining] = {}
        """By arrival."""

    # claiming

    def claims_first(self, request: Request, now_s: float) -> bool:
        """Whether this arrival's key is asked for before it is looked at. Observing, nothing is shared or refused.

        While nothing may be asked of the ledger it is refused for that, like any other.
        """
        desk = self._desk
        lane = desk.lane(request.key.tenant, request.service_class, request.pool)
        if lane.observes or request.id in self._claimed or not self._boot.open(now_s):
            return False
        life = Life(request, 0, lane, NOTHING, BY_KEY)
        life.told_s = now_s
        life.start_by_s = max(start_by_s(life, 0.0), now_s + desk.policy.ask_late_s)
        desk.lives[request.id] = life
        self.claim(life, now_s)
        return True

    def claim(self, life: Life, now_s: float) -> None:
        """Ask for its key under a new execution, until that is answered or its time is over."""
        desk, request = self._desk, life.request
        life.state = CLAIMING
        life.claim = desk.mint()
        desk.claims[life.claim] = life
        desk.set_timer(life, life.start_by_s)
        desk.ask(life, Claim(life.claim, request.key, request.fingerprint, desk.owner), now_s)

    def answered(self, answer: Answer, now_s: float) -> Life | None:
        """An answer to a claim. Returns the life that holds its key from now on and is to be decided about."""
        desk = self._desk
        life = desk.claims.get(answer.asked)
        if life is None:
            if answer.outcome == "claimed":  # it was asked twice, and given up after the first answer
                desk.command(Stop(answer.asked, desk.owner, "E0", "cancelled", None))
            return None
        if life.state != CLAIMING:
            return None
        if answer.outcome == "fenced":  # asked again, the same, when it is late
            self._boot.fenced(now_s)
            return None
        desk.heard(life)
        desk.set_timer(life, INFINITE_S)
        if answer.outcome == "claimed":
            if life.work is NOTHING:
                self._claimed[life.request.id] = life
            return life
        del desk.claims[life.claim]
        life.claim = ""
        self._taken(life, answer, now_s)
        return None

    def take_up(self, life: Life) -> None:
        """The arrival has been looked at: it holds the key now, and whoever attached meanwhile waits for it."""
        desk, claimed = self._desk, self._claimed.pop(life.request.id, None)
        if claimed is None:
            return
        life.claim, life.sharers, life.subscribers = claimed.claim, claimed.sharers, claimed.subscribers
        life.told_s = claimed.told_s
        desk.claims[life.claim] = life
        del desk.lives[life.request.id]  # its own client may have left
        for arrival in life.subscribers:
            desk.lives[arrival] = life

    def late(self, life: Life, now_s: float) -> None:
        """The ledger has not answered its claim in time."""
        self._refusing.turn_away(life, "ledger_unavailable", now_s)

    def released(self, execution: str) -> None:
        """The ledger has heard that a key was given back."""
        life = self._desk.claims.get(execution)
        if life is not None and life.state == ENDED:
            del self._desk.claims[execution]
            life.ask = None

    # somebody has the key

    def _taken(self, life: Life, answer: Answer, now_s: float) -> None:
        desk, outcome = self._desk, answer.outcome
        if outcome == "conflict":
            self._refusing.turn_away(life, "idempotency_key_reused", now_s)
        elif outcome == "dead":
            self._refusing.turn_away(life, "ledger_unavailable", now_s)
        elif life.work is not NOTHING:  # a second attempt whose key another request got hold of in between
            self._refusing.turn_away(life, "idempotency_in_progress", now_s)
        elif outcome == "replay":
            self._replay(life, answer.execution, answer.usage, now_s)
        else:
            other = desk.runs.get(answer.execution) or desk.claims.get(answer.execution)
            if other is not None and other.state in JOINABLE:
                self._attach(life, other, answer.execution, now_s)
            elif other is not None and other.state == SETTLING and other.evidence == "E1" and not other.failed:
                self._replay(life, answer.execution, other.usage, now_s)  # the ledger is about to hear of its end
            else:
                self._refusing.turn_away(life, "idempotency_in_progress", now_s)

    def _attach(self, life: Life, other: Life, execution: str, now_s: float) -> None:
        """Wait for the same answer; if it is on its way already, get what there was of it."""
        arrival = life.request.id
        other.subscribers.append(arrival)
        if other.sharers is None:
            other.sharers = {}
        other.sharers[arrival] = life
        self._desk.lives[arrival] = other
        life.variant = other.variant
        self._share(life, execution, ATTACHED, now_s)
        if other.state in (SENT, RUNNING):
            self._join(life, False, None)
        else:
            self._desk.move(life, "attached")

    def _replay(self, life: Life, execution: str, usage: Usage | None, now_s: float) -> None:
        self._share(life, execution, REPLAYED, now_s)
        self._join(life, True, usage)

    def _share(self, life: Life, execution: str, forecast: Forecast, now_s: float) -> None:
        """It gets the answer of that execution."""
        life.execution = Execution(execution, "")
        life.forecast = forecast
        life.admitted_s = now_s
        life.decision = self._desk.decider.decision(life, "admit", "", now_s)
        self._desk.record(life.decision)

    def _join(self, life: Life, completed: bool, usage: Usage | None) -> None:
        assert life.decision is not None
        self._joining[life.request.id] = _Joining(life, completed, usage)
        self._desk.effect(Attach(life.request.id, life.execution.id, life.decision))

    def attached(self, event: Attached, now_s: float) -> Life | None:
        """What came of it. Returns the life it has left again, which may have nobody waiting for it now."""
        joining = self._joining.pop(event.id, None)
        if joining is None or joining.life.state == ENDED:
            return None
        life = joining.life
        if event.shares and not joining.completed:
            self._desk.move(life, "attached")
            return None
        other = self._desk.lives.pop(event.id, None)
        if event.shares:
            self._desk.move(life, "attached")
            self._course.report(life, now_s, "replayed")
            return None
        if other is not None and other is not life:
            self._part(other, event.id)
        reason = "idempotency_result_gone" if joining.completed else "idempotency_in_progress"
        life.admitted_s, life.forecast = None, BY_KEY
        self._refusing.turn_away(life, reason, now_s, usage=joining.usage)
        return other if other is not life else None

    # leaving

    def left(self, life: Life, arrival: str, now_s: float) -> None:
        """One of those that share an answer has left."""
        sharer = life.sharers.pop(arrival, None) if life.sharers else None
        if sharer is not None:
            self._joining.pop(arrival, None)
            self._course.report(sharer, now_s, "cancelled")

    @staticmethod
    def _part(other: Life, arrival: str) -> None:
        other.subscribers.remove(arrival)
        if other.sharers:
            other.sharers.pop(arrival, None)
