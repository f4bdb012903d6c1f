"""The local life of a request: the table of design section 4 as data. `Desk.move` applies it.

A move that is not in the table changes nothing; the gate reports it. Whoever wants to know what can happen to a request
reads `MOVES`, and the drawing in the docs is made from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headworks.core.commands import Command, Grow, Shortfall
from headworks.core.policy import INFINITE_S
from headworks.core.types import Decision, Execution, Forecast, Request, Row, Usage, Work

if TYPE_CHECKING:
    from headworks.core.lane import Lane
    from headworks.core.metering import Draw
    from headworks.core.pool import Replica
    from headworks.core.quota import QuotaCharge

CLAIMING, QUEUED, ASKED, UNASKED, SENT, RUNNING, LEAVING, SETTLING, ENDED = (
    "claiming",
    "queued",
    "asked",
    "unasked",
    "sent",
    "running",
    "leaving",
    "settling",
    "ended",
)

CHARGED_HERE = frozenset({ASKED, UNASKED, SENT, RUNNING, LEAVING, SETTLING})
"""States whose work counts as taken at this gateway, granted or not: what was asked for may have been granted."""

MOVES: dict[tuple[str, str], str] = {
    # state, what happened → state
    (CLAIMING, "claimed"): QUEUED,
    (CLAIMING, "attached"): ENDED,
    (CLAIMING, "gone"): ENDED,
    (CLAIMING, "refused_for_good"): ENDED,
    (QUEUED, "picked"): ASKED,
    (QUEUED, "gone"): ENDED,
    (QUEUED, "refused_for_good"): ENDED,
    (ASKED, "granted"): SENT,
    (ASKED, "not_now"): QUEUED,
    (ASKED, "refused_for_good"): ENDED,
    (ASKED, "gone"): UNASKED,
    (ASKED, "too_late"): UNASKED,
    (UNASKED, "stop_answered"): ENDED,
    (SENT, "gone"): LEAVING,
    (SENT, "not_sent"): SETTLING,
    (SENT, "first_byte"): RUNNING,
    (SENT, "ended"): SETTLING,
    (SENT, "lost"): LEAVING,
    (SENT, "silent"): LEAVING,
    (SENT, "time_over"): LEAVING,
    (SENT, "away"): LEAVING,
    (SENT, "proved"): SETTLING,
    (RUNNING, "gone"): LEAVING,
    (RUNNING, "ended"): SETTLING,
    (RUNNING, "lost"): LEAVING,
    (RUNNING, "silent"): LEAVING,
    (RUNNING, "time_over"): LEAVING,
    (RUNNING, "away"): LEAVING,
    (RUNNING, "growth_refused"): LEAVING,
    (RUNNING, "proved"): SETTLING,
    (LEAVING, "not_sent"): SETTLING,
    (LEAVING, "ended"): SETTLING,
    (LEAVING, "proved"): SETTLING,
    (LEAVING, "lost"): LEAVING,
    (SETTLING, "stop_refused"): LEAVING,
    (SETTLING, "stop_answered"): ENDED,
}


class Life:
    """One arrival on its way through this gateway, or one attempt of it that must still be settled.

    What most lives never set stands on the class: a life is made for every request.
    """

    execution = Execution("", "")
    claim = ""
    """The execution its client's key was claimed for; empty where there is no such key (`core/identity.py`)."""
    sharers: dict[str, Life] | None = None
    """Arrivals that repeat its key and get its answer, each with a record of its own."""
    replica: Replica | None = None
    """Where it was asked for."""
    decision: Decision | None = None
    ask: Command | None = None
    """The command whose answer is awaited; asked again, the same, until it comes."""
    blocked_by = ""
    """The reason code that kept it waiting last: after waiting, the answer names what was binding (A2)."""
    timer_s = INFINITE_S
    timed_s = INFINITE_S
    """The earliest entry of it among the timers."""
    timer_number = 0
    """Its name there, from its first timer on."""
    ask_late_s = growing_late_s = 0.0
    """From when on an answer to `ask`, or to `growing`, is late."""
    told_s: float | None = None
    """When the gate was told of it: what let it wait or go may be known only later."""
    admitted_s: float | None = None
    sent_s: float | None = None
    first_byte_s: float | None = None
    batch = 0
    """Sequences of ours in the engine when its first token came."""
    opening_tokens = 0
    """Prompt tokens the engine had to read before its first token when it was sent, its own among them; 0 once it came."""
    leaving_s: float | None = None
    output_tokens = 0
    reading_tokens = 0
    """Its prompt, while the engine may still be reading it and others must not have to wait for that (`core/shares.py`)."""
    reads: tuple[tuple[str, str, int], ...] = ()
    """What it is charged until its prompt has been read (`core/reading.py`); nothing for most, and after the first token."""
    turn_tokens = 0
    """What its flow was charged for it at this gateway (`core/queue.py`); 0 where nobody else waited."""
    unread_until_s = -INFINITE_S
    """Until then its answer was not being read (a slow client): infinity while it is paused."""
    usage: Usage | None = None
    evidence = ""
    end_reason = ""
    """Why it ended other than well: a code of `core/reasons.py`, or empty."""
    failed = False
    reported = False
    assembled = False
    """Its client wants one piece, and the engine streams it, so that it can grow."""
    growing: Grow | None = None
    """More is asked for, and not answered yet."""
    growth_refused = False
    """The last ask for more was refused; it goes on to its bound, and asks again when something is freed."""
    shortfall: Shortfall | None = None
    """What that lacked, if the ledger said so."""
    growths = growths_refused = 0
    marks: list[tuple[float, int]] | None = None
    """When how many of its tokens had been counted, as far as it was heard of."""
    spare_tokens = 0
    """Of its work, what was granted from the pool's spare room and is not charged to its tenant."""
    cut = False
    """Ended at what was reserved, with `finish_reason: length`."""
    drawn: tuple[Draw, ...] = ()
    """What it drew on the buckets of its tenant and client when it was let in."""
    quota: QuotaCharge | None = None
    """What it has outstanding against its tenant's quota, from its ask on."""
    retry_kind = ""
    """Of a retry: `ticket_kept` or `early`."""

    def __init__(self, request: Request, number: int, lane: Lane, work: Work, forecast: Forecast) -> None:
        self.request = request
        self.number = number
        """Arrival order at this gateway."""
        self.lane = lane
        self.work = work
        self.forecast = forecast
        self.rows: list[Row] = []
        """What its checks compared (`types.verdicts`)."""
        self.subscribers = [request.id]
        """Arrivals that wait for this answer. Only the last to leave is a client gone."""
        self.state = QUEUED
        self.start_by_s = request.start_by_s

    def used_tokens(self) -> int:
        """What of its turn was really used: nothing if it never ran, all of it if nobody can say."""
        if self.usage is not None:
            return self.usage.prompt_tokens + self.usage.output_tokens
        return 0 if self.evidence in ("", "E0") else self.turn_tokens

    @property
    def streamed(self) -> bool:
        """Its first token and its progress can be seen."""
        return self.request.stream or self.assembled

    def stops_unwanted(self) -> bool:
        """A switch of the naive disciplines: without it, work nobody waits for goes on."""
        return self.lane.pool.policy.discipline.propagate_cancel or self.state not in (QUEUED, SENT, RUNNING)

    @property
    def wanted(self) -> bool:
        """Somebody still waits for the answer."""
        return bool(self.subscribers)
