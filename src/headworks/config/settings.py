"""The rest of the configuration as values: what the gateway's edges need and the core never sees."""

from __future__ import annotations

from dataclasses import dataclass, field

from headworks.config.address import Address
from headworks.config.secret import Secret


@dataclass(slots=True)
class ConnectionLimits:
    """What one connection may cost before anything is known about it; the names are those of `server.limits`."""

    body_bytes_max: int
    header_bytes_max: int
    headers_max: int
    header_s: float
    body_s: float
    idle_s: float
    write_stall_s: float
    connections_max: int


@dataclass(slots=True)
class GuardSettings:
    """When the gateway refuses new work for its own sake; the names are those of `server.guard`."""

    loop_lag_shed_bulk_s: float
    loop_lag_shed_s: float
    rss_shed_bytes: int
    fds_stop_accept_ratio: float


@dataclass(slots=True)
class TlsFiles:
    """Certificate chain and key, PEM."""

    cert: str
    key: str


@dataclass(slots=True)
class ReplicaSettings:
    """How one engine is reached. `name` is `POOL/NUMBER`, as in the core's policy."""

    name: str
    pool: str
    url: str
    """Scheme, host and port, without a path."""
    engine: str
    """`vllm` or `openai`."""
    api_key: Secret | None
    exclusive: bool
    compute_url: str | None = None
    """Where an exporter shows the accelerator's compute use."""
    ca: str | None = None
    """File with the authorities that an https:// engine is verified by; None: the system's."""


@dataclass(slots=True)
class ClientKey:
    """One API key. `client` is `TENANT/VARIABLE`: it may stand in logs, the key may not."""

    tenant: str
    client: str
    key: Secret


@dataclass(slots=True)
class IssuerKeys:
    """Where the keys are that an issuer's tokens are verified by: one of the two."""

    url: str | None
    file: str | None
    ca: str | None


@dataclass(slots=True)
class TokenRules:
    """What a signed token has to say, and whom it then names; the names are those of `jwt`."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    tenant_claim: tuple[str, ...]
    tenants: dict[str, str]
    client_claim: tuple[str, ...]
    classes_claim: tuple[str, ...] | None
    models_claim: tuple[str, ...] | None
    leeway_s: float
    refresh_s: float
    keep_s: float


@dataclass(slots=True)
class DecisionLogSettings:
    """Where decisions are written down. `directory` None: nowhere."""

    directory: str | None
    rotate_bytes: int
    keep_days: int


@dataclass(slots=True)
class UsageSettings:
    """Where what was used is written down. `directory` None: nowhere, and a restart forgets what quotas have used."""

    directory: str | None
    keep_days: int


@dataclass(slots=True)
class PartPrices:
    """What images and audio take of a model's prompt at most. None: they are refused."""

    image_tokens: int | None = None
    image_low_tokens: int | None = None
    """Of one that is asked for with `detail: low`; None: as of any other."""
    image_tile_px: int | None = None
    """The side of a tile of which each takes so much; None: any image takes the same."""
    image_tile_tokens: int = 1
    image_base_tokens: int = 0
    image_least_tokens: int = 1
    images_max: int = 0
    """In one request."""
    audio_tokens_per_s: float | None = None
    audio_s_max: float = 0.0
    """In one part."""


@dataclass(slots=True)
class MirrorSettings:
    """Where copies of a pool's requests go, and which share of them."""

    pool: str
    copied_ratio: float


@dataclass(slots=True)
class TelemetrySettings:
    """Where traces and metrics are sent. `otlp_url` None: nowhere."""

    otlp_url: str | None = None
    traces_ratio: float = 0.01


@dataclass(slots=True)
class Settings:
    """What a gateway is built from, beside its policy."""

    listen: Address
    admin: Address
    admin_key: Secret | None
    tls: TlsFiles | None
    """For both ports; None: they speak plain HTTP."""
    limits: ConnectionLimits
    guard: GuardSettings
    drain_s: float
    ledger_url: str
    """With user and password, if it has any."""
    domain: str
    """Everything that shares limits shares one, where several gateways share a ledger."""
    lease_s: float
    remember_s: float
    durability: str
    """`process` or `power`: what a ledger in a file survives."""
    replay_bytes_max: int
    replay_total_bytes_max: int
    replicas: tuple[ReplicaSettings, ...]
    keys: tuple[ClientKey, ...]
    is_anonymous: bool
    """No tenants are configured: whoever reaches the port is tenant `ANONYMOUS`, without a key."""
    decision_log: DecisionLogSettings
    usage: UsageSettings
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    workers: int = 1
    """Gateway processes that listen on the same port."""
    when_lost: str = "closed"
    """`closed` or `share`: what is admitted while a shared ledger does not answer."""
    keys_secret: Secret | None = None
    """What stored keys are hashed under, if the operator gives it."""
    tokenizers: dict[str, str] = field(default_factory=dict)
    """Model → the file that counts its prompts."""
    grpc: Address | None = None
    """Where Envoy and KEDA ask; None: nowhere."""
    parts: dict[str, PartPrices] = field(default_factory=dict)
    """Model → what images and audio take of its prompts."""
    issuer_keys: IssuerKeys | None = None
    token_rules: TokenRules | None = None
    """Both or none: tokens that name a tenant, beside keys."""
    mirrors: dict[str, MirrorSettings] = field(default_factory=dict)
    """By the pool that is copied."""
