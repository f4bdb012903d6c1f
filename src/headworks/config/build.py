"""A checked `Config` → the values the product runs on: `Policy` for the core, `Settings` for everything around it.

Whoever adds a key adds its way from here to where it acts, and takes it from `schema.NOT_YET_IN_FORCE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256

from headworks.config import jwt, secret
from headworks.config.address import address
from headworks.config.pools import Discipline, Model, Pool, Price, Spill
from headworks.config.schema import Config
from headworks.config.secret import ENVIRONMENT_NAME
from headworks.config.settings import (
    ClientKey,
    ConnectionLimits,
    DecisionLogSettings,
    GuardSettings,
    MirrorSettings,
    PartPrices,
    ReplicaSettings,
    Settings,
    TelemetrySettings,
    TlsFiles,
    UsageSettings,
)
from headworks.config.traffic import STEP_ACTIONS, PressureStep, Quota, Rate, ServiceClass, Tenant
from headworks.core.policy import (
    MIRROR,
    BreakerPolicy,
    ClassPolicy,
    DisciplinePolicy,
    GatePolicy,
    Policy,
    PoolPolicy,
    PreemptionPolicy,
    PressurePolicy,
    PricePolicy,
    QuotaPolicy,
    RatePolicy,
    ReplicaPolicy,
    SpillPolicy,
    StepPolicy,
    TenantPolicy,
)

ANONYMOUS = "anonymous"
DEFAULT_CLASS = "interactive"
VERSION_LENGTH = 12
OWN_SECTIONS = ("server", "log", "usage", "telemetry")
"""What each gateway of a fleet may have otherwise under the same policy: ports, files, observing."""
PREEMPTIONS_UNTOLD = ("sglang", "llamacpp")
"""Engines of which it is not seen that their memory is full: SGLang's pages do not count it, llama.cpp fails everybody."""
COPY_START_S = 1.0
"""A copy has room when it is made; by then it has been sent, or is given up."""
SPILL_LOOK_S = 30.0
"""Somebody else's API is asked for its models so often, to see whether it is there."""


def policy(config: Config, *, number: int) -> Policy:
    """What the core decides by. `number` orders versions: each reload takes a larger one."""
    classes = {name: _class(name, section, config) for name, section in config.classes.items()}
    tenants = {name: _tenant(name, section, tuple(classes)) for name, section in config.tenants.items()}
    if not tenants:
        classes = {DEFAULT_CLASS: classes[DEFAULT_CLASS]}
        tenants = {ANONYMOUS: TenantPolicy(ANONYMOUS, classes=(DEFAULT_CLASS,), service_class=DEFAULT_CLASS)}
    return Policy(
        version=version(config),
        number=number,
        classes=classes,
        tenants=tenants,
        pools={
            **{name: _pool(name, section) for name, section in config.pools.items()},
            **{name: _spill(name, section) for name, section in config.spill.items()},
        },
        observe=config.server.mode == "observe",
        lease_s=config.ledger.lease_s,
        remember_s=config.ledger.remember_s,
        prices={name: _price(model.price_per_mtoken) for name, model in config.models.items() if model.price_per_mtoken},
        price_version=_price_version(config),
        asides={MIRROR: _of_copies(classes)} if any(pool.mirror for pool in config.pools.values()) else {},
    )


def version(config: Config) -> str:
    """Names a configuration by its content. Secrets are references in it, so rotating one keeps the version."""
    return sha256(config.model_dump_json(by_alias=True, exclude=set(OWN_SECTIONS)).encode()).hexdigest()[:VERSION_LENGTH]


def _of_copies(classes: Mapping[str, ClassPolicy]) -> ClassPolicy:
    """Of what is mirrored: it gives way to everybody, waits for nothing but the ledger's answer, and is tried once."""
    share = min(one.share for one in classes.values())
    return ClassPolicy(MIRROR, share, ttft_slo_s=None, wait_s_max=COPY_START_S, preemptible=True, tries_again=False)


def _class(name: str, section: ServiceClass, config: Config) -> ClassPolicy:
    return ClassPolicy(
        name=name,
        share=section.share,
        floor_ratio=section.floor_ratio,
        ttft_slo_s=section.slo.ttft_s,
        tpot_slo_s=section.slo.tpot_s,
        e2e_slo_s=section.slo.e2e_s,
        ttft_kept_ratio=section.slo.ttft_percentile / 100.0,
        tpot_kept_ratio=section.slo.tpot_percentile / 100.0,
        e2e_kept_ratio=section.slo.e2e_percentile / 100.0,
        wait_s_max=section.queue.wait_s_max,
        queue_requests_max=section.queue.requests_max,
        queue_bytes_max=section.queue.bytes_max,
        client_s=section.timeouts.client_s,
        gateway_s=section.timeouts.gateway_s,
        first_byte_s=section.timeouts.first_byte_s,
        idle_s=section.timeouts.idle_s,
        on_tenant_full=section.on_tenant_full,
        on_growth_refused=section.on_growth_refused,
        preempts=section.preempts,
        preemptible=section.preemptible,
        refuse_when=None if section.refuse_when is None else GatePolicy(**section.refuse_when.model_dump()),
        observe=section.mode == "observe",
        on_pressure=tuple(_step(step, config) for step in section.on_pressure),
    )


def _step(section: PressureStep, config: Config) -> StepPolicy:
    action = next(name for name in STEP_ACTIONS if getattr(section, name) not in (None, False))
    model, pool = section.smaller_model or "", ""
    if section.spill is not None:
        model, pool = config.spill[section.spill].model, section.spill
    elif model:
        pool = next((name for name, known in config.pools.items() if model in (known.models or ())), "")
    clamp = section.clamp_output or 1
    return StepPolicy(action, section.enter_ratio, section.leave_ratio, section.dwell_s, clamp, model, pool)


def _spill(name: str, section: Spill) -> PoolPolicy:
    """A pool of its own that no client can ask for: it is only ever tried for what others refuse."""
    nanomoney = round(section.money_per_day_max * 1_000_000_000)
    return PoolPolicy(
        name=name,
        models=(section.model,),
        replicas=(ReplicaPolicy(replica_name(name, 0), exclusive=False),),
        evidence_min="E1",
        observe_every_s=SPILL_LOOK_S,
        spill=SpillPolicy(section.model, _price(section.price_per_mtoken), nanomoney),
    )


def _tenant(name: str, section: Tenant, all_classes: tuple[str, ...]) -> TenantPolicy:
    classes = tuple(section.classes) if section.classes else all_classes
    usual = DEFAULT_CLASS if DEFAULT_CLASS in classes else classes[0]
    return TenantPolicy(
        name=name,
        share=section.share,
        classes=classes,
        service_class=section.service_class or usual,
        models=None if section.models is None else tuple(section.models),
        active_tokens_max=section.active_tokens_max,
        active_requests_max=section.active_requests_max,
        reserved_tokens=section.reserved.tokens if section.reserved is not None else 0,
        reserved_requests=section.reserved.requests if section.reserved is not None else 0,
        queue_requests_max=section.queue.requests_max,
        queue_bytes_max=section.queue.bytes_max,
        observe=section.mode == "observe",
        rate=_rate(section.rate),
        client_rate=_rate(section.client_rate),
        retry_ratio=section.client_rate.retry_ratio if section.client_rate is not None else None,
        quota=_quota(section.quota),
        demotes=section.over_quota == "demote",
    )


def _rate(section: Rate | None) -> RatePolicy | None:
    if section is None or (section.tokens_per_s is None and section.requests_per_s is None):
        return None
    return RatePolicy(
        tokens_per_s=section.tokens_per_s,
        burst_tokens=section.burst_tokens,
        debt_tokens_max=section.debt_tokens_max or 0,
        requests_per_s=section.requests_per_s,
        burst_requests=section.burst_requests,
    )


def _quota(section: Quota | None) -> QuotaPolicy | None:
    if section is None or (section.tokens is None and section.money is None):
        return None
    nanomoney = None if section.money is None else round(section.money * 1_000_000_000)
    return QuotaPolicy(period=section.period, tokens=section.tokens, nanomoney=nanomoney, bill=section.bill)


def _price(section: Price) -> PricePolicy:
    return PricePolicy(section.prompt, section.prompt if section.cached is None else section.cached, section.output)


def _price_version(config: Config) -> str:
    """Names the prices by their content, so that a line of the usage journal says by which it was billed."""
    prices = {name: model.price_per_mtoken for name, model in config.models.items() if model.price_per_mtoken is not None}
    said = [f"{name}={price.model_dump_json()}" for name, price in sorted(prices.items())]
    said += [f"pool {name}={cost}" for name, pool in sorted(config.pools.items()) if (cost := _nanomoney_per_h(pool))]
    said += [f"spill {name}={spill.price_per_mtoken.model_dump_json()}" for name, spill in sorted(config.spill.items())]
    return sha256(";".join(said).encode()).hexdigest()[:VERSION_LENGTH] if said else ""


def _nanomoney_per_h(section: Pool) -> int:
    """What one of its engines costs: the price of an accelerator, for each that it has."""
    return round((section.gpu_price_per_h or 0.0) * 1_000_000_000) * (section.gpus or 1)


def _pool(name: str, section: Pool) -> PoolPolicy:
    return PoolPolicy(
        name=name,
        models=tuple(section.models or ()),
        replicas=tuple(
            ReplicaPolicy(replica_name(name, replica.name or number), replica.exclusive, replica.speculative, replica.drain)
            for number, replica in enumerate(section.replicas)
        ),
        active_tokens_max=_number(section.active_tokens_max),
        active_requests_max=_least(_number(section.active_requests_max), _number(section.limit)),
        floors={model: guaranteed.kv_tokens_min for model, guaranteed in section.memory.items()},
        kv_ratio_max=section.kv_ratio_max,
        discipline=_discipline(section.discipline),
        output_tokens_cold=section.estimate.output_tokens_cold,
        quantile=section.estimate.quantile,
        tokenizer_from_chars=section.estimate.tokenizer_from_chars,
        growth=True,
        growth_step_tokens=section.growth.step_tokens,
        growth_ahead_tokens=section.growth.ahead_tokens,
        buffer_ratio=section.predict.buffer_ratio,
        coverage_ratio=section.predict.coverage,
        over_commit=_over_commit(section),
        heavy_tokens=section.prefill.heavy_tokens,
        heavy_prefills_max=_number(section.prefill.heavy_max),
        prefill_tokens_max=_number(section.prefill.tokens_in_flight_max),
        evidence_min=section.evidence_min,
        observe_every_s=section.observe.every_s,
        unconfirmed_every_s=section.observe.unconfirmed_every_s,
        stale_s=section.observe.stale_s,
        forget_s=section.observe.forget_s,
        stalled_s=section.observe.stalled_s,
        pressure=PressurePolicy(**section.pressure.model_dump()),
        breaker=BreakerPolicy(**section.breaker.model_dump()),
        preemption=PreemptionPolicy(section.preemption.remaining_ratio, section.preemption.running_ratio_per_min_max),
        retries_ratio_max=section.retries.ratio_max,
        sessions_ratio_max=section.sessions.pool_ratio_max,
        session_idle_s=section.sessions.idle_s,
        nanomoney_per_h=_nanomoney_per_h(section),
    )


def _over_commit(section: Pool) -> float | None:
    """None: learnt, from how often an engine preempts. Where that is not told, no more is reserved than there is."""
    if section.over_commit != "auto":
        return section.over_commit
    return 1.0 if any(replica.engine in PREEMPTIONS_UNTOLD for replica in section.replicas) else None


def replica_name(pool: str, name: str | int) -> str:
    """`POOL/NAME`; without a name, by the position in the file, from 0."""
    return f"{pool}/{name}"


def _number(value: int | str) -> int | None:
    """`auto` and `feedback` are None in the core: from the engines, and found."""
    return value if isinstance(value, int) else None


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _discipline(section: Discipline) -> DisciplinePolicy:
    return DisciplinePolicy(
        kind=section.kind,
        queue_max=section.queue_max if isinstance(section.queue_max, int) else None,
        unbounded=section.queue_max == "none",
        propagate_cancel=section.propagate_cancel,
        drop_late=section.drop_late,
    )


def settings(config: Config, environment: Mapping[str, str], worker: int = 1) -> Settings:
    """What the edges are built from. The environment is the one the file was loaded with: every reference resolves.

    Of several workers each has an admin port of its own: the stated one, and those that follow it.
    """
    server = config.server
    return Settings(
        listen=address(server.listen),
        admin=address(server.admin).after(worker - 1),
        admin_key=_secret(server.admin_key, environment),
        tls=TlsFiles(server.tls.cert, server.tls.key) if server.tls is not None else None,
        limits=ConnectionLimits(**server.limits.model_dump()),
        guard=GuardSettings(**server.guard.model_dump()),
        drain_s=server.drain_s,
        ledger_url=_ledger_url(config.ledger.url, environment),
        domain=config.ledger.domain,
        lease_s=config.ledger.lease_s,
        remember_s=config.ledger.remember_s,
        durability=config.ledger.durability,
        replay_bytes_max=config.ledger.replay_bytes_max,
        replay_total_bytes_max=config.ledger.replay_total_bytes_max,
        replicas=tuple(_replicas(config, environment)),
        keys=tuple(_keys(config, environment)),
        is_anonymous=not config.tenants,
        issuer_keys=None if config.jwt is None else jwt.issuer_keys(config.jwt),
        token_rules=None if config.jwt is None else jwt.token_rules(config.jwt),
        decision_log=DecisionLogSettings(config.log.decisions, config.log.rotate_bytes, config.log.keep_days),
        workers=server.workers,
        grpc=None if server.grpc is None else address(server.grpc),
        when_lost=config.ledger.when_lost,
        keys_secret=_secret(config.ledger.keys_secret, environment),
        usage=UsageSettings(config.usage.path, config.usage.keep_days),
        telemetry=TelemetrySettings(config.telemetry.otlp_url, config.telemetry.traces_ratio),
        tokenizers={name: model.tokenizer for name, model in config.models.items() if model.tokenizer is not None},
        parts={name: _prices(model) for name, model in config.models.items() if model.image or model.audio},
        mirrors={
            name: MirrorSettings(pool.mirror.pool, pool.mirror.ratio)
            for name, pool in config.pools.items()
            if pool.mirror is not None
        },
    )


def _prices(model: Model) -> PartPrices:
    prices, image, audio = PartPrices(), model.image, model.audio
    if image is not None:
        prices = replace(
            prices,
            image_tokens=image.tokens,
            image_low_tokens=image.tokens_low,
            image_tile_px=image.tile_px,
            image_tile_tokens=image.tile_tokens,
            image_base_tokens=image.tokens_base,
            image_least_tokens=image.tokens_min,
            images_max=image.count_max,
        )
    if audio is not None:
        prices = replace(prices, audio_tokens_per_s=audio.tokens_per_s, audio_s_max=audio.seconds_max)
    return prices


def _secret(reference: str | None, environment: Mapping[str, str]) -> secret.Secret | None:
    return None if reference is None else secret.resolve(reference, environment)


def _ledger_url(url: str, environment: Mapping[str, str]) -> str:
    return secret.resolve(url, environment).reveal() if ENVIRONMENT_NAME.fullmatch(url) else url


def _replicas(config: Config, environment: Mapping[str, str]) -> list[ReplicaSettings]:
    return [
        ReplicaSettings(
            name=replica_name(name, replica.name or number),
            pool=name,
            url=replica.url,
            engine=replica.engine,
            api_key=_secret(replica.api_key, environment),
            exclusive=replica.exclusive,
            compute_url=replica.compute_url,
            ca=replica.tls.ca if replica.tls is not None else None,
        )
        for name, pool in config.pools.items()
        for number, replica in enumerate(pool.replicas)
    ] + [
        ReplicaSettings(
            name=replica_name(name, 0),
            pool=name,
            url=spill.url.rstrip("/").removesuffix("/v1"),
            engine="openai",
            api_key=_secret(spill.api_key, environment),
            exclusive=False,
            compute_url=None,
        )
        for name, spill in config.spill.items()
    ]


def _keys(config: Config, environment: Mapping[str, str]) -> list[ClientKey]:
    return [
        ClientKey(name, f"{name}/{secret.variable(reference)}", secret.resolve(reference, environment))
        for name, tenant in config.tenants.items()
        for reference in tenant.keys
    ]
