"""What the core knows, as values.

Every class here is slotted, built once and never assigned to afterwards (`tests/test_tidy.py` looks for assignments;
freezing at run time would cost 25 µs a request). Units are in the names: `_s` seconds on the caller's monotonic clock,
`_ms` the ledger's own clock, `_tokens` whole tokens, `_ratio` 0 to 1, `_per_s` a rate, `_bytes` bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple


class RequestKey(NamedTuple):
    """Who is asking for what, once: the tenant and the idempotency key it gave, or one minted for it."""

    tenant: str
    request_id: str


class Owner(NamedTuple):
    """One life of one gateway process. A restarted gateway is another owner: its `boot` differs."""

    gateway: str
    boot: str


class Charge(NamedTuple):
    """`amount` of `unit` held against `scope`. The ledger adds these up and does not know what a scope means.

    Scopes: `tenant:T`, `client:C`, `class:K`, `pool:P`, `replica:P/R`, `model:M`, `session:S`, `reserved:P:T`, `lent:P`,
    `sessions:P`, all sessions of a pool together, and `observed:P`, what no limit holds up (`book_counters.py`).
    Units: `tokens`, `requests`, `prefill_tokens`, `heavy_prefills`.
    """

    scope: str
    unit: str
    amount: int


READ_UNITS = frozenset({"prefill_tokens", "heavy_prefills"})
"""Units that an execution holds only until its prompt has been read: they come back at its `Start`, the rest at its end.
Whoever is alone in such a scope always fits, since a prompt that is longer than a cap must be read all the same (B7)."""


@dataclass(slots=True)
class Request:
    """One arrival, after authentication and parsing. `id` names this arrival and is also its decision's id."""

    id: str
    key: RequestKey
    key_given: bool
    """The client gave the key: it is claimed in the ledger and remembered. A minted one is forgotten soon."""
    fingerprint: str
    client: str
    service_class: str
    model: str
    pool: str
    prompt_bytes: int
    prompt_tokens: int | None
    """Known only for token-id prompts or after counting; else the estimator works from `prompt_bytes`."""
    output_tokens_max: int | None
    """What the client allows a sample, or None: then the rest of the model's context. 0: its prompt is only read."""
    samples: int
    """Sequences the engine will run: n × number of prompts."""
    stream: bool
    prefix: Sequence[Hashable]
    """Its whole blocks from the beginning, each named by all of the prompt up to its end; empty where nobody asks."""
    session: str | None
    """The scope of the session that it is a call of, or that it opens."""
    retry_count: int
    arrived_s: float
    start_by_s: float
    """The client's own limit on the first token (deadline header, read time-out), or infinity."""
    finish_by_s: float
    output_tokens_min: int = 0
    """What a sample certainly writes, as far as its client decides that (`min_tokens`, `ignore_eos`)."""
    assembles: bool = False
    """It wants its answer in one piece, and what is put together from a stream is exactly that answer."""
    prompt_kind: str = "text"
    """What it is made of, as far as that decides its tokens a byte, or `counted` (`core/prompt_sizes.py`)."""
    leeway: Leeway | None = None
    """None: its class consents to nothing, or its body cannot be changed."""
    route: str = ""
    """The path it came by, for people."""
    opens: Budget | None = None
    """It asks for nothing but a session of that budget."""


class Leeway(NamedTuple):
    """What its class's degradation may make of a request, as far as its body allows (`core/fallback.py`)."""

    samples: int
    """With one answer a prompt."""
    prompt_bytes: int
    """Without the examples before the last message of its user."""
    is_kept: bool
    """An equal request's answer is kept for its tenant."""


class Budget(NamedTuple):
    """What a session is to hold, and for how long at most (B14)."""

    tokens: int
    lasts_s: float


class Variant(NamedTuple):
    """What was made of a request, so that it can run (E5)."""

    model: str
    """Asked for in place of its own; empty: its own."""
    drops_n: bool
    strips: bool
    """The examples before the last message of its user are left out."""
    told: tuple[str, ...]
    """Each step as its client is told of it: `clamp_output=64`."""


@dataclass(slots=True)
class Work:
    """What is reserved: `tokens` = samples × (prompt + output), block-rounded for memory scopes by the pool."""

    tokens: int
    prefill_tokens: int
    sequences: int
    engine_s: float
    kv_tokens: int
    """`tokens` rounded up to whole KV blocks per sequence."""
    output_tokens: int
    """Output reserved per sample: generation never passes it plus one growth step."""
    basis: str = "exact"
    """How the prompt was sized: `exact`, `counted` by a tokenizer, `learnt` from this tenant's answers, or its `bytes` as the
    upper bound. `shared`: nothing is reserved, as its key has an execution already."""
    output_tokens_max: int = 0
    """What a sample may write at most, which the engine is told. More than `output_tokens`: it grows (A8)."""
    bound_tokens: int = 0
    """What a sample's prompt may come to, where nobody counted it and its tenant's limit is charged less: memory is not."""


class Verdict(NamedTuple):
    """One check's answer: what was compared with what. Failed checks stand in the record even when another is reported."""

    check: str
    scope: str
    value: float
    limit: float
    unit: str
    passed: bool
    reason: str
    """A code of `core/reasons.py` when failed, else empty."""


Row = tuple[str, str, int | float, int | float, str, str]
"""A verdict as it is first written down: check, scope, value, limit, unit, and the reason it has if it fails. Every
request has half a dozen, and most are never looked at again: `verdicts` makes the values people and programs read.
A count is an `int` and stays one, compiled or not."""


VALUE: Final = 2
LIMIT: Final = 3
REASON: Final = 5
"""Their places in a row."""


def verdicts(rows: Sequence[Row]) -> tuple[Verdict, ...]:
    """A check is passed when its value is within its limit."""
    return tuple(
        Verdict(check, scope, value, limit, unit, value <= limit, "" if value <= limit else reason)
        for check, scope, value, limit, unit, reason in rows
    )


@dataclass(slots=True)
class Forecast:
    """What is expected for a request. Waits are None where nothing has been measured yet: unknown is not zero."""

    wait_s: float | None
    prefill_s: float
    """From sending to the first byte, as its class's percentile of such requests stays within; 0 while nothing is known."""
    ttft_s: float | None
    """The bound of the first token that the pool's `coverage` of such requests stays within."""
    total_s: float | None
    """The same of the whole answer."""
    drain_tokens_per_s: float | None
    buffer_ratio: float
    """`ttft_s` ÷ what is fitted for it."""
    basis: str
    wait_most_s: float | None = None
    """What the wait stays under at its class's percentile: a request that could not be on time then is told so at once."""
    tpot_s: float | None = None
    """For each further token, as fitted, at the batch it would join."""
    drain_error_ratio: float | None = None
    """Half of the drain rate's 95 % interval, as a part of it."""
    wait_spread_s: float = 0.0
    """How much longer than `wait_s` the sum of so many random gaps hardly takes."""


@dataclass(slots=True)
class Decision:
    """The admission outcome of one arrival, with everything that decided it."""

    id: str
    key: RequestKey
    outcome: str
    """`admit`, `queue` or `refuse`."""
    reason: str
    """A code of `core/reasons.py`, or empty."""
    rows: tuple[Row, ...]
    """Its verdicts, as they were written down."""
    forecast: Forecast
    work: Work
    retry_after_s: float | None
    """The return slot of a ticketed refusal."""
    position: int
    degraded: str
    decided_s: float
    waited_s: float
    gateway: str
    policy_version: str
    service_class: str
    model: str
    pool: str
    at_arrival: bool = True
    """The first decision about this arrival; later ones say what became of one that had to wait."""

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Every check's answer, in the order in which failures are reported."""
        return verdicts(self.rows)


@dataclass(slots=True)
class Execution:
    """One run of one attempt on one replica. `id` is 128 unguessable bits in hex, also the id sent to the engine."""

    id: str
    replica: str


@dataclass(slots=True)
class Usage:
    """What an execution really used, as far as anybody can say."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    engine_s: float
    end: str
    """`stop`, `length`, `cancelled`, `failed`, …: the engine's finish reason or how it ended."""
    exact: bool
    """False: counted from events or unknown, and at most what was reserved."""


@dataclass(slots=True)
class Reservation:
    """A ledger record. Amounts that are freed are read from here, never from the command that frees them."""

    execution: str
    key: RequestKey | None
    fingerprint: str
    state: str
    was: str
    """The state before ORPHANED, so that its owner can take it back."""
    seen: bool
    """The engine has shown a byte of it."""
    owner: Owner
    reserved_by: Owner
    replica: str
    incarnation: int
    charges: tuple[Charge, ...]
    usage: Usage | None
    evidence: str
    reserved_ms: int
    started_ms: int
    ended_ms: int


@dataclass(slots=True)
class SessionRecord:
    """A budget that is held for a series of calls, as the ledger has it (B14): tokens = spent + live + unspent.

    What is unspent is charged to each of `scopes`; what is live is charged to them by the calls themselves. Once it has
    `ended`, nothing of it is unspent, and `returned_tokens` says what came back then.
    """

    scope: str
    """`session:TENANT/CLIENT/ID`: whoever names another's session names none."""
    pool: str
    flow: tuple[str, str]
    weights: tuple[float, float]
    scopes: tuple[str, ...]
    tokens: int
    spent_tokens: int
    live_tokens: int
    unspent_tokens: int
    returned_tokens: int
    ended: str
    """Empty while it is open; else `closed`, `idle`, `deadline` or `exhausted`."""
    idle_ms: int
    idle_left_ms: int
    """Until it is idle for too long, if nothing runs in it."""
    left_ms: int
    """Until its deadline."""


@dataclass(slots=True)
class ReplicaSample:
    """One look at an engine. `iterations` is its progress clock; None means the engine does not say, never zero."""

    replica: str
    incarnation: str
    begun_s: float
    ended_s: float
    iterations: tuple[int, ...] | None
    """One counter per data-parallel rank."""
    running: int | None
    waiting: int | None
    kv_used_ratio: float | None
    compute_used_ratio: float | None
    preemptions_total: int | None
    rank_loads: tuple[int, ...] | None = None
    """Running + waiting per rank, in the order of `iterations`."""


@dataclass(slots=True)
class Capacity:
    """What an engine says it can hold, and what its adapter can prove."""

    replica: str
    engine: str
    version: str
    incarnation: str
    context_tokens: int
    kv_tokens: int | None
    block_tokens: int
    running_max: int | None
    evidence: tuple[str, ...]
    """Levels this adapter can give, best first, such as ("E1", "E3a", "E3b", "E4")."""
    models: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """What the operator should know, such as a missing metric."""
    routes: tuple[str, ...] = ()
    """Paths that it answers at; empty: it does not say."""
