"""What the gate wants done. The runner performs each effect once; what may be lost the gate asks again by itself."""

from __future__ import annotations

from dataclasses import dataclass

from headworks.core.commands import Command
from headworks.core.types import Decision, Execution, RequestKey, Usage, Work


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


@dataclass(slots=True)
class Abort:
    """Stop the execution upstream (half-close and read on). `reason` is what its client is told, empty if it is gone."""

    execution: str
    reason: str


@dataclass(slots=True)
class Reply:
    """The final answer to an arrival that does not run (or not any more, with nothing sent to its client yet)."""

    id: str
    decision: Decision


@dataclass(slots=True)
class Attach:
    """This arrival repeats a key whose execution runs here (or ran here and is kept): it shares that answer."""

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
    retry_kind: str = ""
    """Of a retry: `ticket_kept`, `early` or `over_budget`."""


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
class Alarm:
    """Something that should not be: evidence overdue, foreign load, audit difference, a move the tables do not have."""

    name: str
    subject: str
    detail: str


@dataclass(slots=True)
class WakeAt:
    """Send `Tick` at this time. Each `WakeAt` replaces the one before."""

    at_s: float


Effect = Ask | Run | Abort | Reply | Attach | Record | Observe | Alarm | WakeAt
