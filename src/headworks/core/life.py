"""The local life of a request: the table of design section 4 as data. `Desk.move` applies it.

A move that is not in the table changes nothing; the gate reports it. Whoever wants to know what can happen to a request
reads `MOVES`, and the drawing in the docs is made from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headworks.core.commands import Command, Grow, Shortfall
from headworks.core.policy import INFINITE_S
from headworks.core.types import Decision, Execution, Forecast, Request, Row, Usage, Variant, Work

if TYPE_CHECKING:
    from headworks.core.lane import Lane
    from headworks.core.metering import Draw
    from headworks.core.quota import QuotaCharge
    from headworks.core.replica import Replica

CLAIMING = "claiming"
QUEUED = "queued"
ASKED = "asked"
UNASKED = "unasked"
SENT = "sent"
RUNNING = "running"
LEAVING = "leaving"
SETTLING = "settling"
ENDED = "ended"

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
    (ASKED, "opened"): ENDED,
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
    (SENT, "preempted"): LEAVING,
    (SENT, "proved"): SETTLING,
    (RUNNING, "gone"): LEAVING,
    (RUNNING, "ended"): SETTLING,
    (RUNNING, "lost"): LEAVING,
    (RUNNING, "silent"): LEAVING,
    (RUNNING, "time_over"): LEAVING,
    (RUNNING, "away"): LEAVING,
    (RUNNING, "preempted"): LEAVING,
    (RUNNING, "growth_refused"): LEAVING,
    (RUNNING, "proved"): SETTLING,
    (LEAVING, "not_sent"): SETTLING,
    (LEAVING, "ended"): SETTLING,
    (LEAVING, "proved"): SETTLING,
    (LEAVING, "lost"): LEAVING,
    (SETTLING, "stop_refused"): LEAVING,
    (SETTLING, "stop_answered"): ENDED,
}
MOVES_FROM = {state: {what: then for (before, what), then in MOVES.items() if before == state} for state, _ in MOVES}
"""The same by state: looked up four times for every request. Nothing leads out of `ENDED`."""
MOVES_FROM[ENDED] = {}


NOWHERE = Execution("", "")
"""Until it is asked for."""
MARKS_MAX = 100
"""Of one answer that grew, the last instants at which something was heard of it."""


class Life:
    """One arrival on its way through this gateway, or one attempt of it that must still be settled.

    Everything is set when it is made, though most lives change little of it: what is looked up on the class instead costs
    several times as much, and every request looks some fifty times.
    """

    # fmt: off
    __slots__ = (
        "admitted_s", "ahead_tokens", "ask", "ask_late_s", "assembled", "batch", "blocked_by", "claim", "cut", "decided",
        "decision", "drawn", "end_reason", "evidence", "execution", "failed", "first_byte_s", "forecast", "growing",
        "growing_late_s",
        "growth_refused", "growths", "growths_refused", "is_held", "lacks", "lane", "leaving_s", "marks", "number",
        "opening_tokens", "output_tokens", "preempts", "quota", "reading_tokens", "reads", "replica", "reported", "request",
        "retry_kind", "rows", "sent_s", "sharers", "shortfall", "spare_tokens", "start_by_s", "state", "subscribers", "timed_s",
        "timer_number", "timer_s", "told_s", "turn_share", "turn_tokens", "unread_until_s", "usage", "variant", "waits_from_s",
        "was_held", "work",
    )
    # fmt: on

    execution: Execution
    claim: str
    """The execution its client's key was claimed for; empty where there is no such key (`core/identity.py`)."""
    sharers: dict[str, Life] | None
    """Arrivals that repeat its key and get its answer, each with a record of its own."""
    replica: Replica | None
    """Where it was asked for."""
    decision: Decision | None
    """The last, until its answer streams: from then on nothing else can become of it, and it holds no more of what it was."""
    decided: Work | None
    """What it was taken for when it was sent; its work may have grown since."""
    ask: Command | None
    """The command whose answer is awaited; asked again, the same, until it comes."""
    blocked_by: str
    """The reason code that kept it waiting last: after waiting, the answer names what was binding (A2)."""
    timer_s: float
    timed_s: float
    """The earliest entry of it among the timers."""
    timer_number: int
    """Its name there, from its first timer on."""
    ask_late_s: float
    growing_late_s: float
    """From when on an answer to `ask`, or to `growing`, is late."""
    told_s: float | None
    """When the gate was told of it: what let it wait or go may be known only later."""
    admitted_s: float | None
    sent_s: float | None
    first_byte_s: float | None
    batch: int
    """Sequences of ours in the engine when its first token came."""
    opening_tokens: int
    """What the engine has to read of its prompt (`core/unread.py`), from the ask on; 0 once its first token came."""
    ahead_tokens: int
    """What stood before that when it was asked for."""
    leaving_s: float | None
    output_tokens: int
    reading_tokens: int
    """Its prompt, while the engine may still be reading it and others must not have to wait for that (`core/shares.py`)."""
    reads: tuple[tuple[str, str, int], ...]
    """What it is charged until its prompt has been read (`core/reading.py`); nothing for most, and after the first token."""
    turn_tokens: int
    """What its flow was charged for it at this gateway (`core/queue.py`); 0 where nobody else waited."""
    turn_share: float
    """The weight of its tenant that was counted by then; there is one where there are `turn_tokens`."""
    unread_until_s: float
    """Until then its answer was not being read (a slow client): infinity while it is paused."""
    usage: Usage | None
    evidence: str
    end_reason: str
    """Why it ended other than well: a code of `core/reasons.py`, or empty."""
    failed: bool
    reported: bool
    assembled: bool
    """Its client wants one piece, and the engine streams it, so that it can grow."""
    growing: Grow | None
    """More is asked for, and not answered yet."""
    growth_refused: bool
    """The last ask for more was refused; it goes on to its bound, and asks again when something is freed."""
    shortfall: Shortfall | None
    """What that lacked, if the ledger said so."""
    growths: int
    growths_refused: int
    marks: list[tuple[float, int]] | None
    """When how many of its tokens had been counted, as far as it was heard of; none where it was granted more then."""
    spare_tokens: int
    """Of its work, what was granted from the pool's spare room and is not charged to its tenant."""
    cut: bool
    """Ended at what was reserved, with `finish_reason: length`."""
    drawn: tuple[Draw, ...]
    """What it drew on the buckets of its tenant and client when it was let in."""
    quota: QuotaCharge | None
    """What it has outstanding against its tenant's quota, from its ask on."""
    variant: Variant | None
    """What was made of it, so that it can run; None: nothing, and for most."""
    is_held: bool
    """It broke off, and its client, who has heard nothing of it, waits for proof that it stopped (`core/second_tries.py`)."""
    was_held: bool
    """That has been so, of this attempt or of the one before."""
    lacks: tuple[Shortfall, ...]
    """What the ledger had too little of when it refused it last."""
    preempts: bool
    """Something was stopped for it, once."""
    retry_kind: str
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
        self.waits_from_s = request.arrived_s
        """From when on the limit of its class counts."""
        self.execution = NOWHERE
        self.decided: Work | None = None
        self.variant = self.replica = self.decision = self.ask = self.sharers = self.growing = self.shortfall = self.quota = (
            self.usage
        ) = None
        self.told_s = self.admitted_s = self.sent_s = self.first_byte_s = self.leaving_s = self.marks = None
        self.claim = self.blocked_by = self.evidence = self.end_reason = self.retry_kind = ""
        self.timer_s = self.timed_s = INFINITE_S
        self.unread_until_s = -INFINITE_S
        self.ask_late_s = self.growing_late_s = 0.0
        self.timer_number = self.batch = self.ahead_tokens = self.opening_tokens = self.reading_tokens = self.turn_tokens = 0
        self.output_tokens = self.spare_tokens = self.growths = self.growths_refused = 0
        self.reads = self.lacks = ()
        self.drawn = ()
        self.failed = self.reported = self.assembled = self.growth_refused = self.cut = self.is_held = self.was_held = False
        self.preempts = False

    def used_tokens(self) -> int:
        """What of its turn was really used: nothing if it never ran, all of it if nobody can say."""
        if self.usage is not None:
            return self.usage.prompt_tokens + self.usage.output_tokens
        return 0 if self.evidence in ("", "E0") else self.turn_tokens

    @property
    def streamed(self) -> bool:
        """Its first token and its progress can be seen."""
        return self.request.stream or self.assembled

    def begin(self, now_s: float) -> None:
        """Its first byte came. A stream cannot be sent again from here on, so what led to it is let go of."""
        self.first_byte_s = now_s
        if self.request.stream:
            self.decision, self.rows = None, []

    def mark(self, now_s: float, output_tokens: int) -> None:
        """It has come so far, or (no tokens) it may go on."""
        self.marks = [*(self.marks or ())[-MARKS_MAX:], (now_s, output_tokens)]

    def stops_unwanted(self) -> bool:
        """A switch of the naive disciplines: without it, work nobody waits for goes on."""
        return self.lane.pool.policy.discipline.propagate_cancel or self.state not in (QUEUED, SENT, RUNNING)

    @property
    def wanted(self) -> bool:
        """Somebody still waits for the answer."""
        return bool(self.subscribers)
