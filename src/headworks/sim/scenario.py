"""Scenarios: an overload told in YAML, what is compared in it, and what is expected to come out.

The file names engines, limits, traffic, clients, faults and the disciplines to compare; `cases` repeat the comparison
with some of that changed. Keys are those of the core's own policy and of the simulator's parts, so a scenario can say
whatever the simulator can do; an unknown key is an error. Nothing in a scenario depends on when or where it runs.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from headworks.core.disciplines import KINDS as OWN_KINDS
from headworks.core.policy import ClassPolicy, DisciplinePolicy, PoolPolicy, TenantPolicy
from headworks.sim.agents import Agents
from headworks.sim.autoscaler import Scaling
from headworks.sim.baseline_published import RULES
from headworks.sim.baselines import Tuning
from headworks.sim.clients import Temper
from headworks.sim.connection import Distance
from headworks.sim.expect import Condition
from headworks.sim.faults import KINDS, Fault
from headworks.sim.ledger import Line
from headworks.sim.presets import PRESETS, FixedRateSettings
from headworks.sim.traffic import Lengths, Segment, count

FILE_BYTES_MAX = 1_000_000
Value = TypeVar("Value")
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


class ScenarioError(ValueError):
    """The scenario cannot be run. The text says which file, which key and what is allowed."""


def _value(kind: type[Value], given: dict[str, Any], **known: Any) -> Value:
    """A plain value class of the core or the simulator from a mapping; unknown keys are refused."""
    assert dataclasses.is_dataclass(kind)
    allowed = [one.name for one in dataclasses.fields(kind) if one.name not in known]
    for key in given:
        if key not in allowed:
            raise ScenarioError(f"no key {key!r} here; known: {', '.join(allowed)}")
        if given[key] != given[key]:
            raise ScenarioError(f"{key}: .nan is no number")
    return cast(Value, TypeAdapter(kind).validate_python({**given, **known}))


class EngineScenario(BaseModel):
    """The replicas of the pool: so many engines of one model."""

    model_config = STRICT

    kind: Literal["fixed_rate", "continuous_batching"] = "continuous_batching"
    replicas: int = Field(default=1, ge=1, le=256)
    preset: str = "a100_8b"
    settings: dict[str, Any] = {}
    """`fixed_rate`: all of it; `continuous_batching`: what differs from the preset, also inside its `cost`."""
    scaling: dict[str, float] | None = None
    """An autoscaler: how many replicas are `ready` at the beginning, and after how long (`start_s`) a further one is."""
    distance: dict[str, float] = {}

    @field_validator("preset")
    @classmethod
    def _is_known(cls, preset: str) -> str:
        if preset not in PRESETS:
            raise ValueError(f"no such preset; known: {', '.join(PRESETS)}")
        return preset

    def autoscaler(self) -> Scaling | None:
        return None if self.scaling is None else _value(Scaling, dict(self.scaling))

    def fixed_rate(self) -> FixedRateSettings:
        return _value(FixedRateSettings, self.settings)


class TrafficScenario(BaseModel):
    """One source of requests."""

    model_config = STRICT

    tenant: str = "acme"
    client: str = ""
    service_class: str = "interactive"
    arrivals: Literal["constant", "poisson", "trace"] = "constant"
    rate_per_s: float | None = Field(default=None, gt=0)
    steps: list[dict[str, float]] = []
    """Instead of one rate: `{from_s, rate_per_s}` in order."""
    trace: str = ""
    """A recorded trace: with `poisson` its lengths, with `trace` its arrivals as well."""
    by_client: bool = False
    """Each client of the trace is a tenant of its own, `TENANT-CLIENT`, with the limits of `tenant`."""
    prompt: dict[str, Any] = {"kind": "fixed", "tokens": 32}
    output: dict[str, Any] = {"kind": "fixed", "tokens": 64}
    output_tokens_max: int | None = Field(default=None, ge=0)
    """0: prompts that are only read, as embeddings are."""
    samples: int = Field(default=1, ge=1, le=128)
    bytes_per_token: float = Field(default=4.0, gt=0)
    exact_prompt: bool = False
    prefixes: dict[str, Any] = {}
    """Shared beginnings: `{popular, shared_blocks}`."""
    gateway: int | None = Field(default=None, ge=0)
    """All of it goes to this gateway, counted from 0; otherwise it is spread over all of them."""
    clients: dict[str, Any] = {}
    """What differs from the scenario's `clients` for this source."""
    agents: dict[str, Any] | None = None
    """Each arrival is an agent with a task of several calls: `{calls, think_s, session_tokens, lasts_s}`."""

    def agents_of(self) -> Agents | None:
        return None if self.agents is None else _value(Agents, self.agents)

    def segments(self) -> list[Segment]:
        if self.steps:
            return [_value(Segment, dict(step)) for step in self.steps]
        if self.rate_per_s is None:
            raise ScenarioError("traffic: say rate_per_s or steps")
        return [Segment(0.0, self.rate_per_s)]

    def check(self, until_s: float) -> None:
        """Nothing of it comes of a trace: is there so much, and is it of a length?"""
        try:
            count(self.segments(), until_s)
            for lengths in self.lengths():
                lengths.check()
        except ValueError as error:
            raise ScenarioError(f"traffic: {error}") from error

    def lengths(self) -> tuple[Lengths, Lengths]:
        return _value(Lengths, self.prompt), _value(Lengths, self.output)


class PolicyScenario(BaseModel):
    """Limits and promises, in the words of the core's policy."""

    model_config = STRICT

    classes: dict[str, dict[str, Any]] = Field(default={"interactive": {}}, min_length=1)
    tenants: dict[str, dict[str, Any]] = {"acme": {}}
    pool: dict[str, Any] = {}
    lease_s: float = Field(default=5.0, gt=0)
    ask_late_s: float = Field(default=0.25, gt=0)

    def class_policies(self) -> dict[str, ClassPolicy]:
        return {name: _value(ClassPolicy, given, name=name) for name, given in self.classes.items()}

    def tenant_policies(self) -> dict[str, TenantPolicy]:
        every = tuple(self.classes)
        first = every[0]
        return {
            name: _value(TenantPolicy, {"classes": every, "service_class": first, **given}, name=name)
            for name, given in self.tenants.items()
        }

    def pool_policy(self, **known: Any) -> PoolPolicy:
        return _value(PoolPolicy, self.pool, **known)


class BesideScenario(BaseModel):
    """A further pool, for what the classes' `on_pressure` sends there."""

    model_config = STRICT

    engines: EngineScenario = EngineScenario()
    pool: dict[str, Any] = {}

    def pool_policy(self, **known: Any) -> PoolPolicy:
        return _value(PoolPolicy, self.pool, **known)


class Comparison(BaseModel):
    """One world and the disciplines that are tried in it."""

    model_config = STRICT

    duration_s: float = Field(default=60.0, gt=0, le=86_400)
    context_tokens: int = Field(default=8192, ge=1)
    gateways: int = Field(default=1, ge=1, le=64)
    engines: EngineScenario = EngineScenario()
    policy: PolicyScenario = PolicyScenario()
    beside: dict[str, BesideScenario] = {}
    """Further pools by name, each serving a model of that name. Traffic asks for the first pool only."""
    disciplines: dict[str, dict[str, Any]] = Field(min_length=1)
    traffic: list[TrafficScenario] = Field(min_length=1)
    clients: dict[str, Any] = {}
    ledger: dict[str, float] = {}
    faults: list[dict[str, Any]] = []

    def discipline(self, name: str) -> DisciplinePolicy:
        if self.is_baseline(name):
            return DisciplinePolicy()
        found = _value(DisciplinePolicy, self.disciplines[name])
        if found.kind not in OWN_KINDS:
            raise ScenarioError(f"disciplines.{name}: no such kind {found.kind!r}; known: {', '.join((*OWN_KINDS, *RULES))}")
        return found

    def is_baseline(self, name: str) -> bool:
        """Its kind is one of `sim/baseline_published.py`, not one of the gate's own disciplines."""
        kind = self.disciplines[name].get("kind")
        return isinstance(kind, str) and kind in RULES

    def tuning(self, name: str) -> Tuning:
        return _value(Tuning, {key: value for key, value in self.disciplines[name].items() if key != "kind"})

    def temper(self, traffic: TrafficScenario) -> Temper:
        return _value(Temper, {**self.clients, **traffic.clients})

    def line(self) -> Line:
        return _value(Line, dict(self.ledger))

    def distance(self) -> Distance:
        return _value(Distance, dict(self.engines.distance))

    def fault_list(self) -> list[Fault]:
        found = [_value(Fault, given) for given in self.faults]
        for fault in found:
            if fault.kind not in KINDS:
                raise ScenarioError(f"faults: no such kind {fault.kind!r}; known: {', '.join(KINDS)}")
            known = self._targets(fault.kind)
            if known and fault.target not in known:
                raise ScenarioError(f"faults: {fault.kind} has no target {fault.target!r}; known: {', '.join(known)}")
        return found

    def _targets(self, kind: str) -> list[str]:
        """What such a fault can befall; nothing where it befalls everything."""
        if kind in ("ledger_cut_off", "reload"):
            return []
        if kind.startswith("gateway_"):
            return [str(number) for number in range(self.gateways)]
        return [f"main/{number}" for number in range(self.engines.replicas)]


class Scenario(Comparison):
    """A whole file."""

    what: str
    """One sentence: what is shown."""
    seed: int = 1
    baseline: str = ""
    """The discipline whose queue is shown at the top of the results; the first by default."""
    cases: dict[str, dict[str, Any]] = {}
    """Further comparisons: what differs from this one. `compare` names the disciplines, all by default."""
    expect: dict[str, Condition] = {}

    def comparison(self, case: str = "") -> Comparison:
        """The scenario's own comparison, or that of a case: the file with the case's keys laid over it."""
        own = self.model_dump(exclude={"what", "seed", "baseline", "cases", "expect"})
        if not case:
            return Comparison.model_validate(own)
        given = dict(self.cases[case])
        names = given.pop("compare", list(self.disciplines))
        merged = _laid_over(own, given)
        unknown = [name for name in names if name not in merged["disciplines"]]
        if unknown:
            raise ScenarioError(f"cases.{case}.compare: no discipline {unknown[0]!r}")
        merged["disciplines"] = {name: merged["disciplines"][name] for name in names}
        return Comparison.model_validate(merged)


def load(path: Path) -> Scenario:
    """Read and check a scenario file, its cases included."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: the file is not UTF-8 text") from error
    if len(text) > FILE_BYTES_MAX:
        raise ScenarioError(f"{path}: larger than {FILE_BYTES_MAX} bytes")
    try:
        scenario = Scenario.model_validate(yaml.safe_load(text))
        if scenario.baseline and scenario.baseline not in scenario.disciplines:
            raise ScenarioError(f"baseline: no discipline {scenario.baseline!r}")
        for comparison in (scenario.comparison(), *(scenario.comparison(case) for case in scenario.cases)):
            _check_values(comparison)
    except ValidationError as error:
        problems = [f"{path}: {'.'.join(map(str, one['loc'])) or 'file'}: {one['msg']}" for one in error.errors()]
        raise ScenarioError("\n".join(problems)) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ScenarioError(f"{path}: not YAML: {error}") from error
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from error
    return scenario


def _check_values(comparison: Comparison) -> None:
    """Build every value once, so that a wrong key is found before anything runs."""
    comparison.policy.class_policies()
    comparison.policy.tenant_policies()
    comparison.policy.pool_policy(name="main", models=("model",), replicas=())
    for name, beside in comparison.beside.items():
        beside.pool_policy(name=name, models=(name,), replicas=())
    comparison.line()
    comparison.distance()
    comparison.engines.autoscaler()
    comparison.fault_list()
    for name in comparison.disciplines:
        comparison.discipline(name)
        if comparison.is_baseline(name):
            comparison.tuning(name)
    for traffic in comparison.traffic:
        comparison.temper(traffic)
        traffic.agents_of()
        if traffic.by_client and not traffic.trace:
            raise ScenarioError("traffic: by_client needs a trace")
        if not traffic.trace:  # a trace has a rate of its own
            traffic.check(comparison.duration_s)
        for where, name, known in (
            ("service_class", traffic.service_class, comparison.policy.classes),
            ("tenant", traffic.tenant, comparison.policy.tenants),
        ):
            if name not in known:
                raise ScenarioError(f"traffic: no {where} {name!r}; known: {', '.join(known)}")


def _laid_over(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Mappings are merged key by key, a list of mappings element by element; everything else is replaced."""
    merged = dict(under)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = _laid_over(old, value)
        elif isinstance(old, list) and isinstance(value, list) and all(isinstance(one, dict) for one in [*old, *value]):
            both = [_laid_over(one, change) for one, change in zip(old, value, strict=False)]
            merged[key] = [*both, *old[len(both) :], *value[len(both) :]]
        else:
            merged[key] = value
    return merged
