"""Keys about who asks: service classes and tenants.

A tenant has no limit it was not given. The three built-in classes always exist; a section changes the keys it states.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from headworks.config.values import (
    Count,
    CountOrZero,
    Mode,
    ModelName,
    Name,
    NotNegative,
    Percentile,
    Positive,
    Ratio,
    Seconds,
    SecondsOrZero,
    SecretReference,
    Section,
    section,
)

CLASSES_MAX = 16
TENANTS_MAX = 10_000
KEYS_PER_TENANT_MAX = 16
STEPS_MAX = 16


class Slo(Section):
    """What a class, or a tenant in it, is promised. A promise that is not stated is not made."""

    ttft_s: Seconds | None = Field(None, description="Time to the first token; a request predicted to miss it is refused.")
    ttft_percentile: Percentile = Field(95, description="Share of requests, in per cent, that must meet ttft_s.")
    tpot_s: Seconds | None = Field(None, description="Time per output token after the first; too many beside it: it waits.")
    tpot_percentile: Percentile = Field(95, description="Share of requests, in per cent, that must meet tpot_s.")
    e2e_s: Seconds | None = Field(None, description="Time to the complete answer; predicted to miss it for load: refused.")
    e2e_percentile: Percentile = Field(99, description="Share of requests, in per cent, that must meet e2e_s.")
    goodput_ratio: Ratio | None = Field(None, description="Share of arrivals that must meet every promise.")


class ClassQueue(Section):
    """How much of a class may wait, over the whole fleet."""

    wait_s_max: SecondsOrZero = Field(0.5, description="The longest a request waits before it is refused.")
    requests_max: CountOrZero = Field(500, description="Requests that may wait; 0: nothing waits.")
    bytes_max: CountOrZero = Field(67_108_864, description="Bytes of request bodies that may wait.")
    order: Literal["deadline"] = Field("deadline", description="Who is next inside one tenant's queue.")


class Timeouts(Section):
    """Must hold: client_s > gateway_s > queue.wait_s_max + first_byte_s."""

    client_s: Seconds = Field(60, description="How long a client of this class waits for its answer.")
    gateway_s: Seconds = Field(55, description="The time budget of a request here; then 504.")
    first_byte_s: Seconds = Field(10, description="How long an engine may be silent before its first byte.")
    idle_s: Seconds = Field(10, description="How long an engine may be silent between two chunks.")


class RefuseWhen(Section):
    """Gates of a class: a new request is refused while one of them holds."""

    ttft_p95_s: Seconds | None = Field(None, description="Refuse while the observed 95th percentile of TTFT is above it.")
    waiting_requests: CountOrZero | None = Field(
        None, description="Refuse while more requests than this wait for the pool, here and in its engines."
    )
    compute_ratio: Ratio | None = Field(None, description="Refuse while compute use of the pool is above it.")


def _step(value: Any) -> Any:
    """`cached` is short for `{cached: true}`."""
    return {value: True} if isinstance(value, str) else value


class PressureStep(Section):
    """One step of degradation. Exactly one of the actions is stated; enter, leave and dwell may stand with any."""

    smaller_model: ModelName | None = Field(None, description="Answer with this model instead.")
    spill: Name | None = Field(None, description="Send it to this entry of spill.")
    clamp_output: Count | None = Field(None, description="Allow at most this many output tokens.")
    strip_few_shot: bool | None = Field(None, description="Drop the examples before the last user message.")
    drop_n: bool | None = Field(None, description="Answer with one sample.")
    no_speculation: bool | None = Field(None, description="Prefer a replica without speculative decoding.")
    cached: bool | None = Field(None, description="Answer an equal request of the same tenant from memory.")
    enter_ratio: Ratio = Field(0.80, description="Pressure above which the step is taken.")
    leave_ratio: Ratio = Field(0.65, description="Pressure below which it is taken back.")
    dwell_s: SecondsOrZero = Field(10, description="The least time between two changes of this step.")


STEP_ACTIONS = tuple(name for name in PressureStep.model_fields if name not in ("enter_ratio", "leave_ratio", "dwell_s"))


class ServiceClass(Section):
    """One service class: its promise, how long it may wait, and what happens when a limit is met."""

    mode: Mode = Field("enforce", description="observe: decide and record, refuse nothing of this class.")
    share: Positive = Field(1, description="Weight among the classes that wait.")
    floor_ratio: Ratio = Field(0, description="Share of a pool that is this class's while it waits, whoever else does.")
    slo: Slo = section(Slo, "What the class is promised.")
    queue: ClassQueue = section(ClassQueue, "How much may wait, over the whole fleet.")
    timeouts: Timeouts = section(Timeouts, "Time limits; client > gateway > wait + first byte.")
    on_tenant_full: Literal["queue", "refuse"] = Field(
        "queue", description="What to do while the tenant's own concurrent limit is met."
    )
    on_growth_refused: Literal["length", "spare", "stop"] = Field(
        "length", description="What to do with an answer that may not grow: end it, go on in spare room, or stop it."
    )
    refuse_when: RefuseWhen | None = Field(None, description="Gates: refuse new requests of the class while one holds.")
    preempts: bool = Field(False, description="A request about to be late may stop one of a preemptible class.")
    preemptible: bool = Field(False, description="Requests of this class may be stopped for a more urgent one.")
    on_pressure: list[Annotated[PressureStep, BeforeValidator(_step)]] = Field(
        [], max_length=STEPS_MAX, description="Steps of degradation, tried in this order before refusing."
    )


BUILT_IN_CLASSES: dict[str, dict[str, Any]] = {
    "interactive": {
        "share": 10,
        "floor_ratio": 0.20,
        "slo": {"ttft_s": 1.0, "tpot_s": 0.035, "e2e_s": 5.0, "e2e_percentile": 99, "goodput_ratio": 0.999},
        "queue": {"wait_s_max": 0.5, "requests_max": 500},
        "timeouts": {"client_s": 60, "gateway_s": 55, "first_byte_s": 10, "idle_s": 10},
        "preempts": True,
    },
    "batch": {
        "share": 3,
        "floor_ratio": 0.10,
        "slo": {"e2e_s": 120, "e2e_percentile": 95, "goodput_ratio": 0.99},
        "queue": {"wait_s_max": 30, "requests_max": 500},
        "timeouts": {"client_s": 300, "gateway_s": 290, "first_byte_s": 60, "idle_s": 30},
    },
    "bulk": {
        "share": 1,
        "floor_ratio": 0.05,
        "queue": {"wait_s_max": 300, "requests_max": 5000},
        "timeouts": {"client_s": 1800, "gateway_s": 1790, "first_byte_s": 600, "idle_s": 60},
        "preemptible": True,
    },
}


def with_built_in_classes(value: Any) -> Any:
    """The classes of a file laid over the built-in ones, key by key. What is no mapping is left for the schema to refuse."""
    if value is not None and not isinstance(value, dict):
        return value
    given = value or {}
    return {name: _laid_over(BUILT_IN_CLASSES.get(name, {}), given.get(name)) for name in [*BUILT_IN_CLASSES, *given]}


def _laid_over(below: Any, above: Any) -> Any:
    if above is None:
        return below
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {**below, **{key: _over_key(below, key, value) for key, value in above.items()}}


def _over_key(below: dict[str, Any], key: str, value: Any) -> Any:
    """A section is merged; a stated null of a plain key is kept: it takes a promise back."""
    return _laid_over(below[key], value) if isinstance(below.get(key), dict) else value


class Reserved(Section):
    """Capacity nobody else may hold, in each pool the tenant may ask. The unused part is lent to preemptible classes."""

    tokens: CountOrZero = Field(0, description="Tokens kept for this tenant, as its pools count them: in whole memory blocks.")
    requests: CountOrZero = Field(0, description="Sequences kept for this tenant.")


class Rate(Section):
    """Token buckets, in tokens and in requests. A bucket whose size is not stated holds ten seconds of its rate."""

    tokens_per_s: Positive | None = Field(None, description="Tokens that come back each second.")
    burst_tokens: Count | None = Field(None, description="Tokens that may be spent at once.")
    debt_tokens_max: CountOrZero | None = Field(None, description="Tokens that may be borrowed; paid back first.")
    requests_per_s: Positive | None = Field(None, description="Requests that come back each second.")
    burst_requests: Count | None = Field(None, description="Requests that may be made at once.")


class ClientRate(Rate):
    """Limits of each API key of the tenant."""

    retry_ratio: Ratio | None = Field(
        None, description="Retries allowed beside those that keep their slot, as a share of first attempts."
    )


class Quota(Section):
    """What a tenant may use in a period."""

    period: Literal["hour", "day", "week", "month"] = Field("month", description="Periods are those of the store's UTC clock.")
    tokens: Count | None = Field(None, description="Tokens in a period.")
    money: NotNegative | None = Field(None, description="Money in a period, by the prices of models.")
    bill: Literal["used", "reserved"] = Field("used", description="What cancelled work is billed.")


class TenantQueue(Section):
    """Tighter than the class's."""

    requests_max: CountOrZero | None = Field(None, description="Requests of this tenant that may wait.")
    bytes_max: CountOrZero | None = Field(None, description="Bytes of its request bodies that may wait.")


class Tenant(Section):
    """One tenant: who it is, what it may use, and the limits it was given."""

    mode: Mode = Field("enforce", description="observe: decide and record, refuse nothing of this tenant.")
    share: Positive = Field(1, description="Contract weight inside a class.")
    keys: list[SecretReference] = Field(
        [], max_length=KEYS_PER_TENANT_MAX, description="API keys, each env:NAME; each key is one client."
    )
    classes: list[Name] | None = Field(None, min_length=1, description="Classes it may ask for; all if not stated.")
    service_class: Name | None = Field(
        None, alias="class", description="Its class when a request names none; else interactive, or the first allowed."
    )
    models: list[ModelName] | None = Field(None, description="Models it may ask for; all if not stated.")
    active_tokens_max: Count | None = Field(None, description="Tokens it may hold at once.")
    active_requests_max: Count | None = Field(None, description="Sequences it may have running at once.")
    reserved: Reserved | None = Field(None, description="Capacity nobody else may hold.")
    rate: Rate | None = Field(None, description="Tokens and requests over time.")
    client_rate: ClientRate | None = Field(None, description="The same for each of its API keys.")
    quota: Quota | None = Field(None, description="What it may use in a period.")
    over_quota: Literal["refuse", "demote"] = Field(
        "refuse", description="What happens above its rate or quota in tokens; demote: it weighs less among those that wait."
    )
    queue: TenantQueue = section(TenantQueue, "Tighter than the class's queue.")
    slo: dict[Name, Slo] = Field({}, description="Its own promises by class, key by key over the class's.")
