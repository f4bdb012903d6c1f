"""Every key of `headworks.yaml`: its place, its unit (in its name), its default, its bounds and one sentence.

The editor's JSON Schema, `docs/config.example.yaml` and the texts of problems come from here. Keys about who asks are in
`traffic.py`, keys about who answers in `pools.py`; the gateway's own are below, with the list of what this version accepts
but does not do yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from headworks.config.jwt import Jwt
from headworks.config.pools import Model, Pool, Spill
from headworks.config.traffic import CLASSES_MAX, TENANTS_MAX, ServiceClass, Tenant, with_built_in_classes
from headworks.config.values import (
    Count,
    CountOrZero,
    LedgerUrl,
    ListenAddress,
    Mode,
    ModelName,
    Name,
    Ratio,
    Seconds,
    SecondsOrZero,
    SecretReference,
    Section,
    Text,
    WebUrl,
    section,
)

POOLS_MAX = 100
WORKERS_MAX = 64
REPLAY_BYTES_MAX = 1_000_000
"""A kept answer is given to a client at once, and no more than that may wait for one that reads slowly."""
ReplayBytes = Annotated[int, Field(ge=0, le=REPLAY_BYTES_MAX)]


class Tls(Section):
    """Certificate and key of both ports."""

    cert: Text = Field(description="File with the certificate chain, PEM.")
    key: Text = Field(description="File with its private key, PEM.")


class Limits(Section):
    """What one connection may cost before anything is known about it."""

    body_bytes_max: Count = Field(8_388_608, description="Longest request body; longer: 413.")
    header_bytes_max: Count = Field(32_768, description="Longest request head; longer: 431.")
    headers_max: Count = Field(100, description="Most header lines; more: 431.")
    header_s: Seconds = Field(10, description="Time for a complete head.")
    body_s: Seconds = Field(30, description="Time for a complete body.")
    idle_s: Seconds = Field(75, description="How long a connection may be idle between two requests.")
    write_stall_s: Seconds = Field(30, description="A client that takes no byte for so long counts as gone.")
    connections_max: Count = Field(10_000, description="Connections open at once.")


class Guard(Section):
    """When the gateway sheds for its own sake."""

    loop_lag_shed_bulk_s: Seconds = Field(0.1, description="Lag of the event loop above which bulk is refused.")
    loop_lag_shed_s: Seconds = Field(0.25, description="Lag above which all new work is refused.")
    rss_shed_bytes: Count = Field(4_000_000_000, description="Resident memory above which new work is refused.")
    fds_stop_accept_ratio: Ratio = Field(0.9, description="Share of file descriptors above which nothing is accepted.")


class Server(Section):
    """The gateway process itself."""

    listen: ListenAddress = Field("127.0.0.1:8080", description="Where clients connect.")
    admin: ListenAddress = Field("127.0.0.1:8081", description="/livez /readyz /metrics /admin/*.")
    admin_key: SecretReference | None = Field(None, description="env:NAME; the credential of /admin/*.")
    grpc: ListenAddress | None = Field(None, description="Where Envoy and KEDA ask over gRPC (extra: envoy); null: nowhere.")
    mode: Mode = Field("enforce", description="observe: decide and record, refuse nothing.")
    workers: Annotated[int, Field(ge=1, le=WORKERS_MAX)] = Field(1, description="Gateway processes.")
    tls: Tls | None = Field(None, description="Certificate and key of both ports.")
    limits: Limits = section(Limits, "What one connection may cost.")
    guard: Guard = section(Guard, "When the gateway sheds for its own sake.")
    drain_s: SecondsOrZero = Field(60, description="How long running answers may take at shutdown before they are cut.")


class Ledger(Section):
    """Where it is counted what is in use."""

    url: LedgerUrl = Field("sqlite:headworks.db", description="memory: · sqlite:PATH · valkey://HOST:PORT/0, or env:NAME.")
    keys_secret: SecretReference | None = Field(
        None, description="env:NAME; what stored API keys are hashed under, instead of a file beside the ledger's."
    )
    domain: Name = Field("main", description="Everything that shares limits shares one domain.")
    lease_s: Seconds = Field(5, description="A gateway silent for so long leaves its work to the others.")
    remember_s: Seconds = Field(3600, description="How long a finished request's Idempotency-Key still answers.")
    replay_bytes_max: ReplayBytes = Field(262_144, description="Answers up to this size are kept for replay; 0: off.")
    replay_total_bytes_max: CountOrZero = Field(67_108_864, description="Memory for kept answers.")
    durability: Literal["process", "power"] = Field("process", description="power: one fsync a batch; sqlite only.")
    when_lost: Literal["closed", "share"] = Field(
        "closed", description="share: go on within this gateway's last known share of every limit."
    )


class UsageJournal(Section):
    """The source of quotas and statements."""

    path: Text | None = Field("usage/", description="Directory of the append-only journal; null: none is kept.")
    keep_days: Count = Field(400, description="Days a file is kept.")


class Log(Section):
    """What is written down of decisions. Never a prompt."""

    decisions: Text | None = Field("decisions/", description="Directory of the decision log; null: none is kept.")
    rotate_bytes: Count = Field(268_435_456, description="Size at which a new file begins.")
    keep_days: Count = Field(30, description="Days a file is kept.")


class Telemetry(Section):
    """Traces and gen_ai metrics for an OpenTelemetry collector (extra: otel)."""

    otlp_url: WebUrl | None = Field(None, description="The collector, over OTLP/HTTP: http://HOST:4318. null: nothing is sent.")
    traces_ratio: Ratio = Field(
        0.01, description="Share of requests recorded that come without a traceparent; with one, its sampling decides."
    )


def _nothing_is_none_of_them(value: Any) -> Any:
    return {} if value is None else value


class Config(Section):
    """The whole file."""

    server: Server = section(Server, "The gateway process itself.")
    ledger: Ledger = section(Ledger, "Where it is counted what is in use.")
    usage: UsageJournal = section(UsageJournal, "The source of quotas and statements.")
    log: Log = section(Log, "What is written down of decisions.")
    telemetry: Telemetry = section(Telemetry, "Traces and gen_ai metrics for an OpenTelemetry collector.")
    classes: Annotated[dict[Name, ServiceClass], BeforeValidator(with_built_in_classes)] = Field(
        {},
        max_length=CLASSES_MAX,
        validate_default=True,
        description="Service classes. interactive, batch and bulk always exist; a section changes the keys it states.",
    )
    tenants: Annotated[dict[Name, Tenant], BeforeValidator(_nothing_is_none_of_them)] = Field(
        {}, max_length=TENANTS_MAX, description="Who may ask. None: one anonymous tenant, on loopback only."
    )
    jwt: Jwt | None = Field(None, description="Tokens of an issuer that name a tenant, beside API keys (extra: jwt).")
    models: Annotated[dict[ModelName, Model], BeforeValidator(_nothing_is_none_of_them)] = Field(
        {}, description="What is known of models beforehand."
    )
    pools: dict[Name, Pool] = Field(min_length=1, max_length=POOLS_MAX, description="Who answers.")
    spill: Annotated[dict[Name, Spill], BeforeValidator(_nothing_is_none_of_them)] = Field(
        {}, description="Where on_pressure: spill may send work, for money."
    )


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the file, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema(), "title": "headworks.yaml"}


LEDGERS_IN_FORCE = ("memory", "sqlite", "valkey")
"""Ledger schemes this version has. Another is refused: gateways that do not share one would each admit a whole budget."""


@dataclass(slots=True)
class NotYet:
    """A key that is accepted and has no effect in this version."""

    key: str
    """Its place; `*` stands for any name or position."""
    instead: str
    """What this version does."""
    only: tuple[object, ...] = ()
    """If stated: only these values have no effect."""
    but: tuple[object, ...] = ()
    """Values that say what is done anyway."""


NOT_YET_IN_FORCE: tuple[NotYet, ...] = (
    NotYet("classes.*.slo.goodput_ratio", "each promise decides by its own percentile"),
    NotYet("tenants.*.slo", "the class's promises hold"),
    NotYet("models.*.kv_bytes_per_token", "memory is counted in tokens"),
)
