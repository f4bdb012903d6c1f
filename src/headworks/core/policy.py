"""Validated settings as values: the only configuration the core sees. `config/` builds them; docs explain each key."""

from __future__ import annotations

from dataclasses import dataclass, field

INFINITE_S = float("inf")
MIRROR = "(mirror)"
"""Tenant and class of copies that go to a second pool (F3). No configuration can name either."""


@dataclass(slots=True)
class GatePolicy:
    """When new requests of a class are refused (B4). None is no gate."""

    ttft_p95_s: float | None = None
    waiting_requests: int | None = None
    compute_ratio: float | None = None


@dataclass(slots=True)
class StepPolicy:
    """One step of a class's degradation (E5)."""

    action: str
    """`smaller_model`, `spill`, `clamp_output`, `strip_few_shot`, `drop_n`, `no_speculation` or `cached`."""
    enter_ratio: float = 0.80
    leave_ratio: float = 0.65
    dwell_s: float = 10.0
    output_tokens_max: int = 1
    """Of `clamp_output`."""
    model: str = ""
    """What `smaller_model` and `spill` ask for."""
    pool: str = ""
    """Where; empty: in whichever pool has engines that serve it."""


@dataclass(slots=True)
class ClassPolicy:
    """One service class: its promise, how long it may wait, and what happens when a limit is met."""

    name: str
    share: float = 1.0
    floor_ratio: float = 0.0
    ttft_slo_s: float | None = 1.0
    tpot_slo_s: float | None = None
    e2e_slo_s: float | None = None
    ttft_kept_ratio: float = 0.95
    """The share of its requests the promise is made for: it is decided by the bound that so many stay within."""
    tpot_kept_ratio: float = 0.95
    e2e_kept_ratio: float = 0.99
    wait_s_max: float = 0.5
    queue_requests_max: int = 500
    queue_bytes_max: int = 67_108_864
    client_s: float = 60.0
    gateway_s: float = 55.0
    first_byte_s: float = 10.0
    idle_s: float = 10.0
    on_tenant_full: str = "queue"
    """`queue` or `refuse`."""
    on_growth_refused: str = "length"
    """`length`, `spare` or `stop`."""
    observe: bool = False
    refuse_when: GatePolicy | None = None
    preempts: bool = False
    """One of its requests that is about to be late may stop one of a preemptible class (B12)."""
    preemptible: bool = False
    tries_again: bool = True
    """What an engine did not take, or lost, may be sent once more (B15)."""
    on_pressure: tuple[StepPolicy, ...] = ()
    """What its requests may be made to be before they are refused, in the order in which it is done."""


@dataclass(slots=True)
class RatePolicy:
    """Tokens and requests over time, of one tenant or of each of its clients. None is no limit."""

    tokens_per_s: float | None = None
    burst_tokens: int | None = None
    """None: `buckets.BURST_S` of the rate, in requests as well."""
    debt_tokens_max: int = 0
    requests_per_s: float | None = None
    burst_requests: int | None = None


@dataclass(slots=True)
class QuotaPolicy:
    """What a tenant may use in a period. None is no limit. Money is counted in billionths, in whole numbers."""

    period: str = "month"
    """`hour`, `day`, `week` or `month`, of UTC."""
    tokens: int | None = None
    nanomoney: int | None = None
    bill: str = "used"
    """What work is billed whose client left before its end: `used` or `reserved`."""


@dataclass(slots=True)
class PricePolicy:
    """Money for a million tokens of a model."""

    prompt_per_mtoken: float
    cached_per_mtoken: float
    output_per_mtoken: float

    def nanomoney(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> int:
        """What so many tokens cost. Cached ones are among the prompt's."""
        read = (prompt_tokens - cached_tokens) * self.prompt_per_mtoken + cached_tokens * self.cached_per_mtoken
        return round(1000 * (read + output_tokens * self.output_per_mtoken))


@dataclass(slots=True)
class TenantPolicy:
    """One tenant: its share and the limits it was given. None is no limit."""

    name: str
    share: float = 1.0
    classes: tuple[str, ...] = ("interactive",)
    service_class: str = "interactive"
    models: tuple[str, ...] | None = None
    active_tokens_max: int | None = None
    active_requests_max: int | None = None
    reserved_tokens: int = 0
    reserved_requests: int = 0
    """What nobody else may hold, in each pool that it may ask (B11). 0: nothing."""
    queue_requests_max: int | None = None
    queue_bytes_max: int | None = None
    observe: bool = False
    rate: RatePolicy | None = None
    client_rate: RatePolicy | None = None
    retry_ratio: float | None = None
    """Retries a client may make, as a share of its first attempts; those that keep their return slot do not count."""
    quota: QuotaPolicy | None = None
    demotes: bool = False
    """Over its rate or quota in tokens it is not refused, but counts for less (B13)."""
    frozen: bool = False
    """Nothing new of it is taken, in observe mode neither: its operator says so (F13)."""


@dataclass(slots=True)
class DisciplinePolicy:
    """Who is next, and three switches, so that "naive" can be really naive."""

    kind: str = "wfq"
    queue_max: int | None = None
    """Tail-drop length of the discipline itself; None leaves the class's bound."""
    unbounded: bool = False
    """No queue bound at all, and no wait limit: for baselines."""
    propagate_cancel: bool = True
    drop_late: bool = True


@dataclass(slots=True)
class ReplicaPolicy:
    """One engine of a pool. `name` is `POOL/NAME`."""

    name: str
    exclusive: bool = True
    speculative: bool = False
    """It decodes speculatively, which costs compute that is missing under pressure."""
    drains: bool = False
    """It ends what it has, and gets nothing new."""


@dataclass(slots=True)
class PressurePolicy:
    """When a pool counts as pressed, and when more engines are asked for (B4, B9)."""

    compute_ratio: float = 0.85
    kv_ratio: float = 0.80
    engage_ratio: float = 0.75
    release_ratio: float = 0.65
    scale_ratio: float = 0.80
    release_hold_s: float = 30.0


@dataclass(slots=True)
class SpillPolicy:
    """A pool that is paid for by the token, and only ever asked when others refuse."""

    model: str
    price: PricePolicy
    nanomoney_per_day_max: int


@dataclass(slots=True)
class PreemptionPolicy:
    """When a running request is stopped for one that waits, and how often at most (B12)."""

    remaining_ratio: float = 0.5
    running_ratio_max: float = 0.02
    """Of what runs, in a minute."""


@dataclass(slots=True)
class BreakerPolicy:
    """When a failing replica is left alone, and for how long (B16)."""

    error_ratio: float = 0.15
    window_s: float = 10.0
    requests_min: int = 20
    open_s: float = 30.0
    open_s_max: float = 60.0


@dataclass(slots=True)
class PoolPolicy:
    """Engines that serve one set of models under one budget."""

    name: str
    models: tuple[str, ...]
    """Empty: what its engines say they serve."""
    replicas: tuple[ReplicaPolicy, ...]
    active_tokens_max: int | None = None
    """None: from the engines."""
    active_requests_max: int | None = None
    floors: dict[str, int] = field(default_factory=dict)
    """KV tokens guaranteed to models on every replica (B10)."""
    kv_ratio_max: float = 0.85
    discipline: DisciplinePolicy = field(default_factory=DisciplinePolicy)
    output_tokens_cold: int = 256
    quantile: float = 0.95
    tokenizer_from_chars: int = 5_000
    growth: bool = False
    growth_step_tokens: int = 64
    growth_ahead_tokens: int = 16
    buffer_ratio: float = 1.3
    """A forecast's bound ÷ its fit, until enough of its like were seen."""
    coverage_ratio: float = 0.9
    """The share of requests that a forecast's bound should hold for."""
    over_commit: float | None = 1.0
    """How far reservations may go beyond an engine's memory. None: learnt (`memory.py`)."""
    guards_peak: bool = True
    """What is promised beyond the memory has to pass the future peak as well. Without this the sum stands alone: a baseline."""
    heavy_tokens: int = 4096
    """Prompts of this length or more are heavy."""
    heavy_prefills_max: int | None = None
    """Heavy prompts read at once by an engine. None: from how fast it reads (`reading.py`)."""
    prefill_tokens_max: int | None = None
    """Tokens of prompts read at once by an engine. None likewise."""
    evidence_min: str = "E3"
    observe_every_s: float = 0.5
    unconfirmed_every_s: float = 0.1
    stale_s: float = 2.0
    forget_s: float = 10.0
    stalled_s: float = 5.0
    pressure: PressurePolicy = field(default_factory=PressurePolicy)
    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)
    preemption: PreemptionPolicy = field(default_factory=PreemptionPolicy)
    sessions_ratio_max: float = 0.3
    """Share of the pool's tokens that all sessions together may hold."""
    session_idle_s: float = 60.0
    """A session without a call for so long is closed."""
    retries_ratio_max: float = 0.1
    """Our own second tries upstream, as a share of first ones (B15)."""
    follows_prefixes: bool = True
    """Prompts go where their beginning has been read. Without this they do not: a baseline."""
    spill: SpillPolicy | None = None
    """None: an ordinary pool."""
    nanomoney_per_h: int = 0
    """What each of its engines costs, in billionths. 0: not known."""


@dataclass(slots=True)
class Policy:
    """Everything, with the version that stands in every decision."""

    version: str
    number: int
    """Orders the versions: the larger is the newer."""
    classes: dict[str, ClassPolicy]
    tenants: dict[str, TenantPolicy]
    pools: dict[str, PoolPolicy]
    observe: bool = False
    """Decide and record, refuse nothing."""
    lease_s: float = 5.0
    remember_s: float = 3600.0
    ask_late_s: float = 0.25
    """A ledger answer not here by then is asked for again."""
    horizon_s: float = 60.0
    """Return slots are given out this far ahead; beyond, a client is told not to retry."""
    prices: dict[str, PricePolicy] = field(default_factory=dict)
    """By model. One without a price costs nothing."""
    price_version: str = ""
    """Names the prices by their content."""
    asides: dict[str, ClassPolicy] = field(default_factory=dict)
    """Classes that share nothing with the others and that no client can ask for."""

    def class_of(self, name: str) -> ClassPolicy:
        """The class of that name, with the usual promises where a reload has just deleted it."""
        return self.classes.get(name) or self.asides.get(name) or ClassPolicy(name)

    @property
    def first_token_s(self) -> float | None:
        """The smallest promise of a first token among all classes; None where nobody is promised one."""
        return min((one.ttft_slo_s for one in self.classes.values() if one.ttft_slo_s is not None), default=None)
