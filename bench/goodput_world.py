"""The world of `goodput.py`: which traffic, which promises, which clients, which engine, and who stands in front of it."""

from __future__ import annotations

import bisect
import dataclasses
from dataclasses import dataclass
from random import Random

from headworks.config import build
from headworks.config.load import load_bytes
from headworks.core.policy import Policy
from headworks.sim import traces
from headworks.sim.baseline_published import RULES
from headworks.sim.baselines import Baseline, Tuning
from headworks.sim.clients import Temper
from headworks.sim.compare import make_book, make_gate
from headworks.sim.connection import Distance
from headworks.sim.faults import Fault
from headworks.sim.insertion import RecordedEngine
from headworks.sim.oracle import Oracle
from headworks.sim.presets import PRESETS, BatchingSettings
from headworks.sim.runner import GateLike
from headworks.sim.simulation import WARM_S, MakeGate, Setup, Source
from headworks.sim.traffic import Planned

CONTEXT_TOKENS = 131_072
KV_RATIO_MAX, KV_RATIO_DEFAULT = 0.95, 0.85
"""How full an engine says it may be before no more is sent (B3). By default a seventh of its memory is never used; all of that
would count as refused for nothing, so what is kept free is stated here, and `DEFAULT_GATE` is measured beside it."""
DEFAULT_GATE = "headworks_default_gate"
CLASSES = (("interactive", 0.7, 1.0), ("batch", 0.2, 5.0), ("bulk", 0.1, 15.0))
"""Name, share of the requests, and how many times the trace's promise it is promised."""
TENANTS, ZIPF_EXPONENT = 20, 1.1
BYTES_PER_TOKEN = (3.0, 5.0)
"""Each tenant writes in its own way; no policy is told."""
PATIENCE_PROMISES = 2.0
RETRIES_MAX = 2
LEAVE_RATIO = 0.02
MEASURED_S_MIN, MEASURED_S_QUICK = 200.0, 30.0
"""A run counts at least so long. What is begun and not ended in it counts for nobody, and answers take up to 100 s beside many
others: a shorter run favours whoever lets few run at once (decision 27)."""
WARM_RATIO = 0.4
STRETCHES = (0.4, 0.7)
"""Where in a run the stretches begin whose refusals are tried again, as a part of it."""
REPORT_TOKENS = 8
"""An answer reports so many tokens at a time: coarser is faster, and less than a growth step."""
SCRAPE_S = (0.4, 2.0)
"""A scrape takes between these, its figures being those of its middle. So with one every 0.5 s they are 0.2 to 2 s old."""


@dataclass(slots=True)
class Promise:
    """What a trace's interactive class is promised, and what its clients allow."""

    ttft_s: float
    tpot_s: float
    output_tokens_max: int


PROMISES = {
    # A first token within a second and a pace that is read along (five tokens a second), as chat is promised.
    "azure2023_conv": Promise(1.0, 0.2, 1_024),
    "servegen_mlarge_1h": Promise(1.0, 0.2, 8_192),
    # Code: two seconds. Reasoning: five, as prompts of up to 39,000 tokens take this engine four alone.
    "azure2023_code": Promise(2.0, 0.2, 2_048),
    "servegen_r1_1h": Promise(5.0, 0.2, 32_768),
    # Prompts of up to 126,000 tokens take this engine 22 s alone.
    "mooncake_conversation": Promise(30.0, 0.5, 2_048),
}


@dataclass(slots=True)
class Variation:
    """What a stress changes: errors of the engine's coefficients, noise on lengths, an engine that is slow for a while."""

    name: str = "none"
    cost_ratios: tuple[float, ...] = (1.0,) * 5
    length_noise_ratio: float = 0.0
    slow_factor: float = 1.0
    slow_for_s: float = 0.0


@dataclass(slots=True)
class Ground:
    """One trace on one engine: what all policies and seeds have in common."""

    trace: traces.Trace
    promise: Promise
    settings: BatchingSettings
    variation: Variation
    measured_s_min: float = MEASURED_S_MIN

    def lengths_s(self, saturation_per_s: float, requests: int) -> tuple[float, float]:
        """How long a run warms up, and how long it counts: so many requests come in that at saturation."""
        measured_s = max(self.measured_s_min, requests / saturation_per_s)
        return WARM_RATIO * measured_s, measured_s


def ground(name: str, preset: str, variation: Variation, measured_s_min: float = MEASURED_S_MIN) -> Ground:
    trace = traces.read(name)
    return Ground(trace, PROMISES[name], _settings(preset, trace, variation), variation, measured_s_min)


def _settings(preset: str, trace: traces.Trace, variation: Variation) -> BatchingSettings:
    """The preset; where the trace says what prompts share, with blocks of the size it says it in."""
    settings = PRESETS[preset]()
    block_tokens = trace.prefix_tokens or settings.block_tokens
    kv_blocks = (settings.kv_blocks - 1) * settings.block_tokens // block_tokens + 1
    cost, ratios = settings.cost, variation.cost_ratios
    names = ("base_s", "prefill_token_s", "attention_s", "sequence_s", "kv_token_s")
    cost = dataclasses.replace(cost, **{name: getattr(cost, name) * ratio for name, ratio in zip(names, ratios, strict=True)})
    return dataclasses.replace(settings, cost=cost, block_tokens=block_tokens, kv_blocks=kv_blocks, report_tokens=REPORT_TOKENS)


@dataclass(slots=True)
class Traffic:
    """What is asked for in one run."""

    sources: list[Source]
    planned: list[Planned]


def traffic(ground: Ground, rate_per_s: float, seconds: float, seed: int) -> Traffic:
    """The trace's own arrivals, stretched to the rate. Classes, and tenants where the trace has none, are drawn."""
    random = Random(f"goodput {ground.trace.name} {seed}")
    tenants = sorted({row.client for row in ground.trace.rows if row.client}) or [f"{n:02}" for n in range(TENANTS)]
    drawn_tenants = _zipf(tenants) if not ground.trace.rows[0].client else None
    places = {(tenant, name): place for place, (tenant, name) in enumerate((t, c[0]) for t in tenants for c in CLASSES)}
    sources = [_source(ground, tenant, name, Random(f"bytes {tenant}")) for tenant, name in places]
    planned: list[Planned] = []
    for row in traces.replayed(ground.trace, rate_per_s=rate_per_s, seconds=seconds, seed=seed):
        tenant = row.client if drawn_tenants is None else tenants[bisect.bisect(drawn_tenants, random.random())]
        name = random.choices([one[0] for one in CLASSES], [one[1] for one in CLASSES])[0]
        noise = ground.variation.length_noise_ratio
        output_tokens = max(1, round(row.output_tokens * random.uniform(1 - noise, 1 + noise)))
        output_tokens = min(output_tokens, ground.promise.output_tokens_max)
        planned.append(Planned(row.t_s, places[tenant, name], row.prompt_tokens, output_tokens, row.prefix))
    return Traffic(sources, planned)


def _zipf(tenants: list[str]) -> list[float]:
    weights = [1 / rank**ZIPF_EXPONENT for rank in range(1, len(tenants) + 1)]
    return [sum(weights[:place]) / sum(weights) for place in range(1, len(tenants))]


def _source(ground: Ground, tenant: str, name: str, random: Random) -> Source:
    times = next(one[2] for one in CLASSES if one[0] == name)
    temper = Temper(
        patience_s=PATIENCE_PROMISES * times * ground.promise.ttft_s,
        leave_ratio=LEAVE_RATIO,
        retries_max=RETRIES_MAX,
        retries_after_leaving=True,
    )
    return Source(
        tenant=f"tenant-{tenant}",
        client=f"tenant-{tenant}",
        service_class=name,
        model="model",
        pool="main",
        temper=temper,
        output_tokens_max=ground.promise.output_tokens_max,
        bytes_per_token=random.uniform(*BYTES_PER_TOKEN),
    )


def policy(ground: Ground, sources: list[Source], kv_ratio_max: float = KV_RATIO_MAX) -> Policy:
    """What headworks runs on: its own configuration, in which nothing stands but promises, tenants and that headroom."""
    lines = ["classes:"]
    shares = {"interactive": "share: 10, floor_ratio: 0.2", "batch": "share: 3, floor_ratio: 0.1", "bulk": "floor_ratio: 0.05"}
    for name, _, times in CLASSES:
        ttft_s, tpot_s = times * ground.promise.ttft_s, times * ground.promise.tpot_s
        slo = f"slo: {{ttft_s: {ttft_s}, tpot_s: {tpot_s}, e2e_s: null}}"
        queue = f"queue: {{wait_s_max: {ttft_s}, requests_max: 5000}}"
        times_out = f"timeouts: {{client_s: 7300, gateway_s: 7200, first_byte_s: {2 * ttft_s}, idle_s: 60}}"
        lines.append(f"  {name}: {{{shares[name]}, {slo}, {queue}, {times_out}}}")
    lines.append("tenants:")
    keys = {tenant: f"KEY_{number}" for number, tenant in enumerate(sorted({source.tenant for source in sources}))}
    lines += [f'  {tenant}: {{keys: ["env:{key}"]}}' for tenant, key in keys.items()]
    replicas = '[{url: "http://127.0.0.1:8000", engine: vllm}]'
    lines += ["pools:", f"  main: {{models: [model], replicas: {replicas}, kv_ratio_max: {kv_ratio_max}}}"]
    loaded = load_bytes("\n".join(lines).encode(), "goodput.yaml", {key: f"nobody-calls-this-{key}" for key in keys.values()})
    return build.policy(loaded.config_or_raise(), number=1)


def setup(
    ground: Ground, offered: Traffic, name: str, tuning: Tuning, seconds: float, seed: int
) -> tuple[Setup, RecordedEngine]:
    """One run of one policy. The engine comes with it, since the figures look inside."""
    engine = RecordedEngine(ground.settings, [WARM_S + seconds * ratio for ratio in STRETCHES])
    rules = policy(ground, offered.sources, KV_RATIO_DEFAULT if name == DEFAULT_GATE else KV_RATIO_MAX)
    faults = []
    if ground.variation.slow_for_s:
        half = {"at_s": seconds / 2, "for_s": ground.variation.slow_for_s, "ratio": ground.variation.slow_factor}
        faults.append(Fault(kind="engine_slow", target="main/0", **half))
    made = Setup(
        policy=rules,
        engines={"main/0": lambda: engine},
        sources=offered.sources,
        planned=offered.planned,
        duration_s=seconds,
        seed=seed,
        make_gate=_make_gate(ground, offered, name, tuning, engine),
        make_book=make_book,
        context_tokens=CONTEXT_TOKENS,
        distance=Distance(connect_s=0.0005, latency_s=0.0005, scrape_s=SCRAPE_S[0], scrape_s_max=SCRAPE_S[1]),
        faults=faults,
    )
    return made, engine


def _make_gate(ground: Ground, offered: Traffic, name: str, tuning: Tuning, engine: RecordedEngine) -> MakeGate:
    if name in ("headworks", DEFAULT_GATE):
        return make_gate

    def truth(id: str) -> Planned:
        return offered.planned[int(id[1:].partition(".")[0])]

    def made(rules: Policy, gateway: str, seed: int, boot: str) -> GateLike:
        if name == "oracle":
            return Baseline(Oracle(tuning, rules, seed, truth, [engine], ground.settings), rules, boot)
        return Baseline(RULES[name](tuning, rules, seed), rules, boot)

    return made
