"""What the gate wants done. The runner performs each effect once; what may be lost the gate asks again by itself."""

from __future__ import annotations

from dataclasses import dataclass

from headworks.core.commands import Command, Shortfall
from headworks.core.types import Decision, Execution, Request, RequestKey, SessionRecord, Usage, Variant, Work


@dataclass(slots=True)
class Ask:
    """Hand these commands to the ledger, in this order. The answers come back as `LedgerAnswered`."""

    commands: list[Command]


@dataclass(slots=True)
class Run:
    """Send the request of arrival `id` to a replica, under the execution's id.

    The sender reads the clock as the last thing before the first byte; past `send_before_s` it sends nothing and says
    `NotSent("late")`. `output_tokens_max` is written into what is sent, per sample.
    """

    id: str
    execution: Execution
    output_tokens_max: int
    send_before_s: float
    decision: Decision
    others: tuple[str, ...] | None = None
    """Arrivals that share its answer already. None: nobody ever will, since its client gave no key."""
    watch_tokens: int = 0
    """As `Watch`, from the start. 0: all that it may write is reserved, so nobody need watch how far it is."""
    variant: Variant | None = None
    """What is to be sent in place of what was asked for; None: that."""


@dataclass(slots=True)
class Watch:
    """Say `Progressed` as soon as so many output tokens of the execution have been counted, all samples together."""

    execution: str
    output_tokens: int


@dataclass(slots=True)
class Abort:
    """Stop the execution upstream (half-close and read on). `reason` is what its client is told, empty if it is gone."""

    execution: str
    reason: str
    shortfall: Shortfall | None = None
    """The limit that decided, where one did."""
    as_length: bool = False
    """Its client is told nothing but `finish_reason: length`, in an answer that ends as any other (A8)."""
    retry_after_s: float | None = None
    """When its client should come back, where it was given a slot."""


@dataclass(slots=True)
class Reply:
    """The final answer to an arrival that does not run (or not any more, with nothing sent to its client yet)."""

    id: str
    decision: Decision
    usage: Usage | None = None
    """What its key has used, where it completed and the answer is gone (A6)."""


@dataclass(slots=True)
class Opened:
    """The session this arrival asked for is open."""

    id: str
    decision: Decision
    session: SessionRecord


@dataclass(slots=True)
class Closed:
    """What became of a session that `id` closed. None: there is none of that name, or the ledger did not say (`reason`)."""

    id: str
    session: SessionRecord | None
    reason: str = ""


@dataclass(slots=True)
class Judged:
    """What a request that passes by is told."""

    id: str
    decision: Decision


@dataclass(slots=True)
class Serve:
    """Answer this arrival with what is kept of an equal request of its tenant."""

    id: str
    decision: Decision


@dataclass(slots=True)
class Attach:
    """This arrival repeats a key whose execution runs here (or ran here and is kept): it shares that answer.

    Whether it does comes back as `Attached`: only whoever holds the bytes knows what is kept of them.
    """

    id: str
    execution: str
    decision: Decision


@dataclass(slots=True)
class Outcome:
    """How an arrival ended: one for each, whatever happened (F2, metrics `requests_total`)."""

    id: str
    key: RequestKey
    execution: str
    outcome: str
    """`completed`, `failed`, `cancelled`, `refused`, `expired` or `replayed`."""
    reason: str
    service_class: str
    model: str
    pool: str
    client: str
    retry: bool
    arrived_s: float
    admitted_s: float | None
    sent_s: float | None
    first_byte_s: float | None
    ended_s: float
    work: Work
    usage: Usage | None
    evidence: str
    unconfirmed_s: float | None
    """From the wish to cancel to the evidence, where there was one."""
    in_slo: bool
    """It met every limit of its class and was still wanted: goodput."""
    predicted_ttft_s: float | None
    grown_tokens: int = 0
    """Of `work.tokens`, what was asked for while it ran; the rest was reserved before."""
    growths: int = 0
    growths_refused: int = 0
    """Asks for more that were granted, and that were not."""
    retry_kind: str = ""
    """Of a retry: `ticket_kept`, `early` or `over_budget`."""
    predicted_total_s: float | None = None
    replica: str = ""
    request: Request | None = None
    """What was asked for, so that it can be decided about again (`headworks plan`)."""
    marks: list[tuple[float, int]] | None = None
    """Of one that grew: when how many of its tokens had been counted; none where it was granted more then."""
    told_s: float | None = None
    """When the gate was told of it; it had come to the gateway a moment before."""
    missed: tuple[str, str] | None = None
    """Of one that is completed: the limit of its class it did not keep (`ttft`, `e2e` or `tpot`) and what took the time:
    `queueing`, `memory`, `upstream` or `compute`."""


@dataclass(slots=True)
class TurnedAway:
    """One that was refused before it was read (`core/turning_away.py`): its decision and its outcome in one."""

    decision: Decision
    request: Request
    """As far as it is known."""
    retry_kind: str

    def outcome(self) -> Outcome:
        """As it would stand in the record of any other."""
        decision, request = self.decision, self.request
        return Outcome(
            request.id,
            request.key,
            "",
            "refused",
            decision.reason,
            request.service_class,
            request.model,
            request.pool,
            request.client,
            request.retry_count > 0,
            request.arrived_s,
            None,
            None,
            None,
            decision.decided_s,
            decision.work,
            None,
            "",
            None,
            False,
            None,
            retry_kind=self.retry_kind,
            request=request,
            told_s=decision.decided_s,
        )


@dataclass(slots=True)
class Record:
    """Write this down: a decision when it is made, an outcome when a request has ended."""

    record: Decision | Outcome


@dataclass(slots=True)
class Observe:
    """Look at this replica not later than `at_s`, and answer `ReplicaSampled` or `SampleFailed`. The earliest wish holds."""

    replica: str
    at_s: float


@dataclass(slots=True)
class Forget:
    """Nothing of a replica that was withdrawn is left: look at it no more, and close what is open to it."""

    replica: str


@dataclass(slots=True)
class Alarm:
    """Something that should not be: evidence overdue, foreign load, audit difference, a move the tables do not have."""

    name: str
    subject: str
    detail: str


@dataclass(slots=True)
class WakeAt:
    """Send `Tick` at this time. Each `WakeAt` replaces the one before."""

    at_s: float


Effect = (
    Ask | Run | Watch | Abort | Reply | Opened | Closed | Judged | Serve | Attach | Record | Observe | Forget | Alarm | WakeAt
)
