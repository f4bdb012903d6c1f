"""Keys about who answers: pools and their replicas, models, and where work may spill."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from headworks.config.values import (
    Count,
    CountOrAuto,
    CountOrFeedback,
    CountOrNone,
    CountOrZero,
    EngineUrl,
    FactorOrAuto,
    ModelName,
    Name,
    NotNegative,
    Positive,
    Ratio,
    Seconds,
    SecondsOrZero,
    SecretReference,
    Section,
    Text,
    WebUrl,
    section,
)

REPLICAS_MAX = 1_000
MODELS_MAX = 1_000

EngineKind = Literal["vllm", "sglang", "llamacpp", "openai"]
DisciplineKind = Literal["fifo", "fifo_tail_drop", "lifo_drop_head", "predictive_ttft", "class_priority", "wfq"]
EvidenceLevel = Literal["E1", "E2", "E3", "E3a", "E3b", "E4"]


class Discipline(Section):
    """Who is next. A bare name is short for `{kind: NAME}`."""

    kind: DisciplineKind = Field("wfq", description="The rule that picks the next request.")
    queue_max: CountOrNone | None = Field(
        None, description="Length at which a dropping rule drops; none: no bound and no wait limit, for baselines."
    )
    propagate_cancel: bool = Field(True, description="Tell the engine when a client has left.")
    drop_late: bool = Field(True, description="Drop what can no longer be on time before it costs a prefill.")

    @model_validator(mode="before")
    @classmethod
    def _name_is_kind(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        section = handler.resolve_ref_schema(handler(core))
        return {"anyOf": [{"enum": section["properties"]["kind"]["enum"]}, section]}


class Guaranteed(Section):
    """Memory of one model on every replica."""

    kv_tokens_min: Count = Field(description="KV tokens other models may not take.")


class Pressure(Section):
    """When a pool counts as pressed. Pressure and scaling are never coupled."""

    compute_ratio: Ratio = Field(0.85, description="Compute use above which the pool is pressed.")
    kv_ratio: Ratio = Field(0.80, description="KV use above which the pool is pressed.")
    engage_ratio: Ratio = Field(0.75, description="Utilisation above which admission pressure begins.")
    release_ratio: Ratio = Field(0.65, description="Utilisation below which it ends, if held for release_hold_s.")
    scale_ratio: Ratio = Field(0.80, description="Utilisation above which more replicas are asked for.")
    release_hold_s: SecondsOrZero = Field(30, description="How long utilisation must stay below release_ratio.")


class Prefill(Section):
    """Caps on prompts that one engine reads at once."""

    heavy_tokens: Count = Field(4096, description="Prompts of this length or more are heavy.")
    heavy_max: CountOrAuto = Field("auto", description="Heavy prompts an engine reads at once; auto: from how fast it reads.")
    tokens_in_flight_max: CountOrAuto = Field(
        "auto", description="Prompt tokens likewise; auto: what it reads within the smallest ttft_s."
    )


class Estimating(Section):
    """How many tokens a request will take."""

    quantile: Ratio = Field(0.95, description="Share of answers that should fit their reservation.")
    tokenizer_from_chars: CountOrZero = Field(
        5000, description="Prompts of so many characters are counted, where their model has a tokenizer."
    )
    output_tokens_cold: Count = Field(256, description="Output expected of a request while nothing is known.")


class Growth(Section):
    """A reservation that turns out too small asks for more."""

    step_tokens: Count = Field(64, description="How much is asked for at a time.")
    ahead_tokens: CountOrZero = Field(16, description="How long before the bound it is asked for.")


class Predict(Section):
    """Bounds on predicted times."""

    buffer_ratio: Positive = Field(1.3, description="Factor on predicted times until enough has been observed.")
    coverage: Ratio = Field(0.9, description="Share of requests the calibrated bound should cover.")


class Preemption(Section):
    """When running work may be stopped for more urgent work."""

    remaining_ratio: Ratio = Field(0.5, description="Only if time to deadline < this × the victim's remaining time.")
    running_ratio_per_min_max: Ratio = Field(0.02, description="Share of running requests stopped in a minute.")


class Sessions(Section):
    """Budgets held for a series of calls."""

    pool_ratio_max: Ratio = Field(0.3, description="Share of the pool all sessions together may hold.")
    idle_s: Seconds = Field(60, description="A session without a call for so long is closed.")


class Observe(Section):
    """How often engines are looked at, and how long a look counts."""

    every_s: Seconds = Field(0.5, description="Time between two samples.")
    unconfirmed_every_s: Seconds = Field(0.1, description="The same while a stop waits for its evidence.")
    stale_s: Seconds = Field(2, description="A sample older than this is shown as stale.")
    forget_s: Seconds = Field(10, description="A sample older than this is not used: the ledger alone decides.")
    stalled_s: Seconds = Field(5, description="An engine with work and no progress for so long takes no more.")


class Breaker(Section):
    """A replica that fails too often is left alone for a while."""

    error_ratio: Ratio = Field(0.15, description="Share of failures that opens it.")
    window_s: Seconds = Field(10, description="Over this time.")
    requests_min: Count = Field(20, description="If so many requests were seen.")
    open_s: Seconds = Field(30, description="How long it stays open; doubles with each failed probe.")
    open_s_max: Seconds = Field(60, description="The longest it stays open.")


class Retries(Section):
    """Our own second tries upstream, where nothing can have run."""

    ratio_max: Ratio = Field(0.1, description="As a share of the pool's requests.")


class Mirror(Section):
    """A share of requests is also sent to a second pool. Never delays, bills or retries."""

    pool: Name = Field(description="The pool that gets the copies.")
    ratio: Ratio = Field(0.01, description="Share of requests that are copied.")


class ReplicaTls(Section):
    """How an https:// replica is verified."""

    ca: Text = Field(description="File with the certificate authorities trusted for it.")


class Replica(Section):
    """One engine."""

    name: Name | None = Field(
        None, description="What it is called, as POOL/NAME; its place in the list if not stated. Name those that come and go."
    )
    url: EngineUrl = Field(description="Where it listens: http://HOST:PORT.")
    engine: EngineKind = Field(description="What it is; decides how a stop is proved.")
    api_key: SecretReference | None = Field(None, description="env:NAME, sent to this replica only.")
    exclusive: bool = Field(True, description="Nobody but this domain sends to it; allows the counting proof.")
    compute_url: WebUrl | None = Field(
        None, description="Page of an exporter that shows compute use of this replica's accelerators."
    )
    tls: ReplicaTls | None = Field(None, description="How an https:// replica is verified.")
    speculative: bool = Field(False, description="It runs with speculative decoding, which on_pressure: no_speculation avoids.")
    drain: bool = Field(False, description="It ends what it has, and gets nothing new.")


class Pool(Section):
    """Engines that serve one set of models under one budget."""

    models: list[ModelName] | None = Field(
        None, min_length=1, max_length=MODELS_MAX, description="What it serves; from the engines if not stated."
    )
    active_tokens_max: CountOrAuto = Field("auto", description="Tokens that may be reserved at once; auto: as the engines say.")
    active_requests_max: CountOrAuto = Field("auto", description="Sequences that may run at once; auto: as the engines say.")
    memory: dict[ModelName, Guaranteed] = Field({}, description="Memory guaranteed to a model on every replica.")
    kv_ratio_max: Ratio = Field(0.85, description="KV use above which a request waits, if that helps, else is refused.")
    pressure: Pressure = section(Pressure, "When the pool counts as pressed.")
    prefill: Prefill = section(Prefill, "Caps on prompts that one engine reads at once.")
    discipline: Discipline = section(Discipline, "Who is next: a name, or a section.")
    over_commit: FactorOrAuto = Field("auto", description="Reservations may add up to this × the limit; auto: learnt.")
    estimate: Estimating = section(Estimating, "How many tokens a request will take.")
    growth: Growth = section(Growth, "How a reservation grows.")
    predict: Predict = section(Predict, "Bounds on predicted times.")
    limit: CountOrFeedback = Field(
        "feedback", description="Sequences run at once on a replica: follows the promises on tokens, or is fixed."
    )
    preemption: Preemption = section(Preemption, "When running work may be stopped.")
    sessions: Sessions = section(Sessions, "Budgets held for a series of calls.")
    evidence_min: EvidenceLevel = Field("E3", description="The least proof of a stop that frees capacity.")
    observe: Observe = section(Observe, "How often engines are looked at.")
    breaker: Breaker = section(Breaker, "When a failing replica is left alone.")
    retries: Retries = section(Retries, "Second tries upstream.")
    mirror: Mirror | None = Field(None, description="A second pool that gets copies.")
    gpu_price_per_h: NotNegative | None = Field(None, description="Money for an hour of one accelerator.")
    gpus: Count | None = Field(None, description="Accelerators of a replica; 1 if not stated.")
    replicas: list[Replica] = Field(min_length=1, max_length=REPLICAS_MAX, description="The engines.")


class Price(Section):
    """Money for a million tokens."""

    prompt: NotNegative = Field(description="Prompt tokens the engine had to read.")
    cached: NotNegative | None = Field(None, description="Prompt tokens it had in its cache; as prompt if not stated.")
    output: NotNegative = Field(description="Output tokens.")


class ImageRule(Section):
    """What an image takes of a prompt."""

    tokens: Count = Field(description="Prompt tokens of an image, at most: what the model makes of the largest it is given.")
    tokens_low: Count | None = Field(
        None, description="The same of one asked for with detail: low, if its engine heeds that; as tokens if not stated."
    )
    tile_px: Count | None = Field(
        None, description="Where it depends on the size: the side of the square, in pixels, that takes tile_tokens."
    )
    tile_tokens: Count = Field(1, description="Prompt tokens of each such square, a part of one as the whole.")
    tokens_base: CountOrZero = Field(0, description="Prompt tokens of an image beside those of its squares.")
    tokens_min: Count = Field(1, description="Prompt tokens of the smallest image: a model may enlarge it.")
    count_max: Count = Field(8, description="Images of one request.")


class AudioRule(Section):
    """What audio takes of a prompt."""

    tokens_per_s: Positive = Field(description="Prompt tokens of a second of audio, at most.")
    seconds_max: Positive = Field(60, description="The longest one audio part may last.")


class Model(Section):
    """What is known of a model beforehand."""

    price_per_mtoken: Price | None = Field(None, description="Money for a million tokens.")
    kv_bytes_per_token: Count | None = Field(None, description="Memory a token takes while its request runs.")
    tokenizer: Text | None = Field(None, description="Its tokenizer.json, which counts prompt tokens (extra: tokenizer).")
    image: ImageRule | None = Field(None, description="What an image takes of a prompt; refused if not stated.")
    audio: AudioRule | None = Field(None, description="What audio takes of a prompt; refused if not stated.")


class Spill(Section):
    """Somewhere else to send work, for money."""

    url: WebUrl = Field(description="Base URL of an OpenAI-compatible API.")
    api_key: SecretReference | None = Field(None, description="env:NAME, sent there only.")
    model: ModelName = Field(description="What is asked for there.")
    price_per_mtoken: Price = Field(description="Money for a million tokens.")
    money_per_day_max: NotNegative = Field(description="Budget of a day; nothing is sent beyond it.")
