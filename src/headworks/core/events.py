"""What the gate is told. Each event is a fact about the outside; the time comes beside it (`Gate.handle(event, now_s)`)."""

from __future__ import annotations

from dataclasses import dataclass

from headworks.core.commands import Answer
from headworks.core.policy import INFINITE_S, Policy
from headworks.core.types import Capacity, Charge, ReplicaSample, Request, Usage


@dataclass(slots=True)
class Arrived:
    """A request came in, authenticated and parsed."""

    request: Request


@dataclass(slots=True)
class ClientGone:
    """The client of this arrival left, at whatever moment."""

    id: str


@dataclass(slots=True)
class PassedBy:
    """A request that runs elsewhere, of which nobody tells more: it is told `Judged`, and draws on its rates for good."""

    request: Request
    is_spent: bool
    """It has run, and says what it took: that is drawn whatever there is left."""


@dataclass(slots=True)
class Attached:
    """What came of an `Attach`: this arrival gets the answer, or it was not kept and nothing has been sent to it."""

    id: str
    shares: bool


@dataclass(slots=True)
class CloseAsked:
    """A client closes this session; `id` is answered with `Closed`."""

    id: str
    session: str


@dataclass(slots=True)
class LedgerAnswered:
    """Answers in the order of their commands. They may be late, repeated, or belong to asks long given up."""

    answers: list[Answer]


@dataclass(slots=True)
class LedgerLost:
    """The store cannot be reached. Nothing new is admitted until it answers a heartbeat again."""


@dataclass(slots=True)
class StoreChanged:
    """The store that answers is another one than before (restart, failover, restored copy): it must be told everything.

    Also the first word of a store that several gateways share. `epoch` names its process.
    """

    epoch: str


@dataclass(slots=True)
class NotSent:
    """Not one byte of the execution was written and none ever will be.

    `reason`: `late` (fence), `connect`, `gone`, `busy` (a recognised busy answer of the engine before any output), or `fault`,
    which is ours: trying again would only repeat it.
    """

    execution: str
    reason: str
    retry_after_s: float = 0.0
    """With `busy`: when the engine said that it is worth coming back; 0 if it did not say."""


@dataclass(slots=True)
class FirstByte:
    """The engine's answer to this execution began (2xx head, first event)."""

    execution: str


@dataclass(slots=True)
class Progressed:
    """So many output tokens of this execution have been counted (all samples together)."""

    execution: str
    output_tokens: int


@dataclass(slots=True)
class Stopped:
    """The execution ended in band: every choice finished and the stream closed, or a complete body (E1)."""

    execution: str
    usage: Usage
    failed: bool
    """The engine ended it with an error answer in band (its own 4xx/5xx body), so nothing of it runs."""
    at_once: bool = False
    """It had said nothing before: an answer in one piece, whose first byte came with its last and is told with it."""


@dataclass(slots=True)
class EngineLost:
    """The connection broke or garbage came after bytes had been sent: the execution may still run."""

    execution: str
    cause: str
    answered: bool = False
    """Its whole answer came, and was an error of the engine's."""
    unheard: bool = False
    """Its clients have been told nothing of it, nor that it broke off: that is left to the gate."""


@dataclass(slots=True)
class ClientSlow:
    """Reading from the engine has been paused for a slow client, or goes on again: a pause may hide an end (E3b)."""

    execution: str
    paused: bool


@dataclass(slots=True)
class EngineSilent:
    """Between two pieces of the answer the engine has been silent for longer than the class's idle limit."""

    execution: str
    silent_s: float


@dataclass(slots=True)
class EngineClosed:
    """After an abort, the engine's server closed its side of the connection at this moment: the start of E3a."""

    execution: str


@dataclass(slots=True)
class Evidence:
    """Proof from outside the samples that the execution stopped (E2, E5, operator)."""

    execution: str
    level: str


@dataclass(slots=True)
class ReplicaDescribed:
    """An engine said what it can hold."""

    capacity: Capacity


@dataclass(slots=True)
class ReplicaSampled:
    """One look at an engine arrived."""

    sample: ReplicaSample


@dataclass(slots=True)
class SampleFailed:
    """A look at an engine did not come back, or said nothing usable."""

    replica: str
    cause: str
    unreachable: bool = False
    """Not even a connection was made: nothing can be sent there either."""


@dataclass(slots=True)
class Freed:
    """The ledger freed capacity that a flow of this gateway has the lowest mark for."""

    pool: str
    flow: tuple[str, str] | None = None
    """That flow; None: an older ledger says only so much."""


@dataclass(slots=True)
class UsageRead:
    """What the usage journal has of running periods, as (quota scope, unit, amount): at the start, and after a reload."""

    used: tuple[Charge, ...]


@dataclass(slots=True)
class Tick:
    """The time the gate asked to be woken at (`WakeAt`) has come: `due_s`, infinite where nobody asked."""

    due_s: float = INFINITE_S


@dataclass(slots=True)
class Drain:
    """Stop admitting; streams may run until `until_s`."""

    until_s: float


@dataclass(slots=True)
class PolicyChanged:
    """A new validated policy, whole. Each request sees one version."""

    policy: Policy


Event = (
    Arrived
    | ClientGone
    | CloseAsked
    | PassedBy
    | Attached
    | LedgerAnswered
    | LedgerLost
    | StoreChanged
    | NotSent
    | FirstByte
    | Progressed
    | Stopped
    | EngineLost
    | ClientSlow
    | EngineSilent
    | EngineClosed
    | Evidence
    | ReplicaDescribed
    | ReplicaSampled
    | SampleFailed
    | Freed
    | UsageRead
    | Tick
    | Drain
    | PolicyChanged
)
