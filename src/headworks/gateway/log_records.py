"""The decision log's records as they are encoded: a line, and what stands in it (`decisions.py` fills them).

These types are in a module of their own: what is compiled (decision 24) can use such types and cannot make them. A struct is
written in half the time of a dataclass, and in a quarter of that of a compiled one.
"""

from __future__ import annotations

import msgspec

from headworks.core.types import RequestKey
from headworks.gateway.log_facts import Asked, Fact
from headworks.gateway.verdicts import ShownVerdict


class ForecastRecord(msgspec.Struct, gc=False):
    """The fields of `Forecast`, in its order."""

    wait_s: float | None
    prefill_s: float
    ttft_s: float | None
    total_s: float | None
    drain_tokens_per_s: float | None
    buffer_ratio: float
    basis: str
    wait_most_s: float | None
    tpot_s: float | None
    drain_error_ratio: float | None
    wait_spread_s: float


class WorkRecord(msgspec.Struct, gc=False):
    """The fields of `Work`, in its order."""

    tokens: int
    prefill_tokens: int
    sequences: int
    engine_s: float
    kv_tokens: int
    output_tokens: int
    basis: str
    output_tokens_max: int
    bound_tokens: int


class UsageRecord(msgspec.Struct, gc=False):
    """The fields of `Usage`, in its order."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    engine_s: float
    end: str
    exact: bool


class DecisionRecord(msgspec.Struct, gc=False):
    """A decision as it is logged: the fields of `Decision`, in its order, with verdicts that name theirs."""

    id: str
    key: RequestKey
    outcome: str
    reason: str
    verdicts: list[ShownVerdict]
    forecast: ForecastRecord
    work: WorkRecord
    retry_after_s: float | None
    position: int
    degraded: str
    decided_s: float
    waited_s: float
    gateway: str
    policy_version: str
    service_class: str
    model: str
    pool: str
    at_arrival: bool


class OutcomeRecord(msgspec.Struct, gc=False):
    """The fields of `Outcome`, in its order, and in place of what was asked for its numbers."""

    id: str
    key: RequestKey
    execution: str
    outcome: str
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
    work: WorkRecord
    usage: UsageRecord | None
    evidence: str
    unconfirmed_s: float | None
    in_slo: bool
    predicted_ttft_s: float | None
    grown_tokens: int
    growths: int
    growths_refused: int
    retry_kind: str
    predicted_total_s: float | None
    replica: str
    asked: Asked | None
    marks: list[tuple[float, int]] | None
    told_s: float | None


class NameRecord(msgspec.Struct, gc=False):
    """A client's own name for a request, its `X-Request-Id`: written only where it gave one."""

    id: str
    key: RequestKey
    request_id: str


class Line(msgspec.Struct, gc=False):
    """One line of the log."""

    kind: str
    utc: str
    monotonic_s: float
    record: DecisionRecord | OutcomeRecord | NameRecord | Fact


class Bill(msgspec.Struct, gc=False):
    """What the totals need of a line of the usage journal."""

    tenant: str
    billed_tokens: int
    billed_nanomoney: int
    charged_utc_s: int
