"""What must fit together in a file: relations between keys that no single key can refuse.

Each check is a generator over the whole configuration. A finding names every place it compared, the one to change first,
so that `load.py` can leave out what rests on a value that was already refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from headworks.config import jwt, ledger_url, secret
from headworks.config.address import address
from headworks.config.checks_pools import POOL_CHECKS
from headworks.config.document import Path
from headworks.config.findings import Finding
from headworks.config.schema import LEDGERS_IN_FORCE, Config
from headworks.config.secret import ENVIRONMENT_NAME
from headworks.config.traffic import STEP_ACTIONS, PressureStep

NO_KEY = "no key stands here; unless one is stored (headworks keys add), nobody can ask as this tenant"
EMBEDDED = ("memory", "sqlite")
"""Ledgers that one process has to itself."""
KEY_LENGTH_SAFE = 20
"""Shorter API keys can be guessed; 256 random bits are 43 characters."""


@dataclass(slots=True)
class Surroundings:
    """What a file is judged against besides itself."""

    environment: Mapping[str, str]
    exposed_ok: bool


def findings(config: Config, environment: Mapping[str, str], exposed_ok: bool) -> Iterator[Finding]:
    """Everything that does not fit together."""
    for check in CHECKS:
        yield from check(config)
    for pool_check in POOL_CHECKS:
        yield from pool_check(config)
    yield from jwt.findings(config.jwt, config.tenants)
    around = Surroundings(environment, exposed_ok)
    yield from _ledger(config, around)
    yield from _secrets(config, around)
    yield from _exposure(config, around)


def _timeouts(config: Config) -> Iterator[Finding]:
    """E3: client > gateway > wait + first byte."""
    for name, service_class in config.classes.items():
        times, wait_s = service_class.timeouts, service_class.queue.wait_s_max
        here: Path = ("classes", name, "timeouts")
        gateway, client = (*here, "gateway_s"), (*here, "client_s")
        if times.client_s <= times.gateway_s:
            text = f"gateway_s is {times.gateway_s:g}; it must be less than client_s, which is {times.client_s:g}"
            yield Finding((gateway, client), f"{text}: the client has to hear the answer while it still listens")
        least_s = wait_s + times.first_byte_s
        if times.gateway_s <= least_s:
            text = f"gateway_s is {times.gateway_s:g}; it must be more than queue.wait_s_max + first_byte_s"
            wait, first = ("classes", name, "queue", "wait_s_max"), (*here, "first_byte_s")
            yield Finding((gateway, wait, first), f"{text} = {wait_s:g} + {times.first_byte_s:g} = {least_s:g}")


def _classes(config: Config) -> Iterator[Finding]:
    floors = sum(service_class.floor_ratio for service_class in config.classes.values())
    if floors > 1 + 1e-9:
        paths = tuple(("classes", name, "floor_ratio") for name in config.classes)
        yield Finding(paths, f"the floors of all classes add up to {floors:g}; at most 1 can be kept")
    for name, service_class in config.classes.items():
        here: Path = ("classes", name)
        if service_class.preempts and service_class.preemptible:
            text = "a class that may be preempted cannot preempt; set one of the two to false"
            yield Finding(((*here, "preemptible"), (*here, "preempts")), text)
        for number, step in enumerate(service_class.on_pressure):
            yield from _pressure_step(config, (*here, "on_pressure", number), step)


def _pressure_step(config: Config, here: Path, step: PressureStep) -> Iterator[Finding]:
    actions = [action for action in STEP_ACTIONS if getattr(step, action) not in (None, False)]
    if len(actions) != 1:
        yield Finding((here,), f"a step has {len(actions)} actions; exactly one is allowed of {', '.join(STEP_ACTIONS)}")
    if step.enter_ratio <= step.leave_ratio:
        text = f"enter_ratio {step.enter_ratio:g} must be above leave_ratio {step.leave_ratio:g}, or the step flutters"
        yield Finding((here,), text)
    if step.spill is not None and step.spill not in config.spill:
        yield Finding(((*here, "spill"), ("spill",)), f"{step.spill} is not in spill: {_listed(config.spill)}")
    if step.no_speculation and not plain_beside_speculative(config):
        text = (
            "no pool has replicas with speculative decoding (speculative: true) and others without: there is nothing to choose"
        )
        yield Finding(((*here, "no_speculation"), ("pools",)), text)
    served = served_models(config)
    if step.smaller_model is not None and served is not None and step.smaller_model not in served:
        text = f"no pool serves {step.smaller_model}; served are {_listed(served)}"
        yield Finding(((*here, "smaller_model"), ("pools",)), text)


def _tenants(config: Config) -> Iterator[Finding]:
    served = served_models(config)
    for name, tenant in config.tenants.items():
        here: Path = ("tenants", name)
        for number, class_name in enumerate(tenant.classes or ()):
            if class_name not in config.classes:
                text = f"there is no class {class_name}; there are {_listed(config.classes)}"
                yield Finding(((*here, "classes", number), ("classes",)), text)
        for class_name in tenant.slo:
            if class_name not in config.classes:
                text = f"there is no class {class_name}; there are {_listed(config.classes)}"
                yield Finding(((*here, "slo", class_name), ("classes",)), text)
        allowed = tenant.classes or list(config.classes)
        if tenant.service_class is not None and tenant.service_class not in allowed:
            text = f"{tenant.service_class} is not among the tenant's classes: {_listed(allowed)}"
            yield Finding(((*here, "class"), (*here, "classes"), ("classes",)), text)
        for number, model in enumerate(tenant.models or ()):
            if served is not None and model not in served:
                text = f"no pool serves {model}; served are {_listed(served)}"
                yield Finding(((*here, "models", number), ("pools",)), text)
        if not tenant.keys and not (config.jwt is not None and config.jwt.names(name)):
            yield Finding(((*here, "keys"), here), NO_KEY, is_warning=True)
        yield from _tenant_limits(config, name)


def _tenant_limits(config: Config, name: str) -> Iterator[Finding]:
    tenant = config.tenants[name]
    here: Path = ("tenants", name)
    kept = tenant.reserved
    for unit, most in (("tokens", tenant.active_tokens_max), ("requests", tenant.active_requests_max)):
        amount = getattr(kept, unit) if kept else 0
        if most is not None and amount > most:
            text = f"reserved.{unit} is {amount}; the tenant may only hold active_{unit}_max = {most}"
            yield Finding(((*here, "reserved", unit), (*here, f"active_{unit}_max")), text)
    allowed = [config.classes[one] for one in tenant.classes or config.classes if one in config.classes]
    if kept and (kept.tokens or kept.requests) and allowed and all(one.preemptible for one in allowed):
        text = "all of its classes are preemptible, and their work stands on what is lent: nothing would ever be kept for it"
        yield Finding(((*here, "reserved"), (*here, "classes"), ("classes",)), text)
    yield from _rates_and_quota(config, name)
    budgets = [pool.active_tokens_max for pool in config.pools.values()]
    numbers = [budget for budget in budgets if isinstance(budget, int)]
    if tenant.active_tokens_max is not None and len(numbers) == len(budgets) and tenant.active_tokens_max > sum(numbers):
        text = f"{tenant.active_tokens_max} is more than all pools together hold ({sum(numbers)}): it limits nothing"
        yield Finding(((*here, "active_tokens_max"), ("pools",)), text, is_warning=True)


def _rates_and_quota(config: Config, name: str) -> Iterator[Finding]:
    """What limits nothing, or not what it seems to."""
    tenant = config.tenants[name]
    for key, rate in (("rate", tenant.rate), ("client_rate", tenant.client_rate)):
        here: Path = ("tenants", name, key)
        for size, refill in (("burst_tokens", "tokens_per_s"), ("burst_requests", "requests_per_s")):
            if rate is not None and getattr(rate, size) is not None and getattr(rate, refill) is None:
                yield Finding(((*here, size), (*here, refill)), f"{size} limits nothing without {refill}")
        if rate is not None and rate.debt_tokens_max is not None and rate.tokens_per_s is None:
            text = "debt_tokens_max limits nothing without tokens_per_s"
            yield Finding(((*here, "debt_tokens_max"), (*here, "tokens_per_s")), text)
    quota = tenant.quota
    if tenant.over_quota == "demote" and quota is None and (tenant.rate is None or tenant.rate.tokens_per_s is None):
        text = "it has neither rate.tokens_per_s nor a quota, so nothing is ever over it"
        yield Finding((("tenants", name, "over_quota"), ("tenants", name, "quota")), text, is_warning=True)
    if quota is None:
        return
    here = ("tenants", name, "quota")
    if quota.tokens is None and quota.money is None:
        yield Finding((here,), "a quota of neither tokens nor money limits nothing")
    allowed = tenant.models if tenant.models is not None else served_models(config)
    unpriced = [model for model in allowed or () if _price_of(config, model) is None]
    if quota.money is not None and (unpriced or not config.models):
        text = f"models without price_per_mtoken cost nothing: {_listed(unpriced) if unpriced else 'all of them'}"
        yield Finding(((*here, "money"), ("models",)), text, is_warning=True)
    if config.usage.path is None:
        text = "without a usage journal a restart forgets what has been used of the quota"
        yield Finding((here, ("usage", "path")), text, is_warning=True)


def _reserves(config: Config) -> Iterator[Finding]:
    """B11: what is promised of a pool is no more than it has, as far as the file says what that is."""
    for name, pool in config.pools.items():
        for unit, most in (("tokens", pool.active_tokens_max), ("requests", pool.active_requests_max)):
            places = most * (len(pool.replicas) if unit == "requests" else 1) if isinstance(most, int) else None
            amounts = {
                tenant: getattr(one.reserved, unit)
                for tenant, one in config.tenants.items()
                if one.reserved is not None and _may_ask(one.models, pool.models)
            }
            total = sum(amounts.values())
            if places is not None and total > places:
                text = f"the reserves of all tenants come to {total} {unit}; pool {name} has {places}"
                first = next(tenant for tenant, amount in amounts.items() if amount)
                yield Finding((("tenants", first, "reserved", unit), ("pools", name, f"active_{unit}_max")), text)


def _may_ask(allowed: list[str] | None, served: list[str] | None) -> bool:
    return allowed is None or served is None or not set(allowed).isdisjoint(served)


def _price_of(config: Config, model: str) -> object:
    known = config.models.get(model)
    return known.price_per_mtoken if known is not None else None


def _listeners(config: Config) -> Iterator[Finding]:
    listen, admin = address(config.server.listen), address(config.server.admin)
    if listen.port and listen == admin:
        paths: tuple[Path, ...] = (("server", "admin"), ("server", "listen"))
        yield Finding(paths, f"{config.server.admin} is also where clients connect; choose another port")
    last = admin.port + config.server.workers - 1
    if admin.port and (last > 65_535 or (admin.host == listen.host and admin.port < listen.port <= last)):
        text = f"{config.server.workers} workers have the admin ports {admin.port} to {last}, which are not all free"
        yield Finding((("server", "admin"), ("server", "workers")), text)


def _envoy(config: Config) -> Iterator[Finding]:
    """What cannot be had where Envoy carries requests to engines."""
    here, server = ("server", "grpc"), config.server
    if server.grpc is None:
        return
    for other in ("listen", "admin"):
        if address(server.grpc).port and server.grpc == getattr(server, other):
            yield Finding((here, ("server", other)), f"{server.grpc} is also server.{other}; choose another port")
    if config.spill:
        text = "what comes through Envoy goes to an engine of ours or nowhere: leave spill or server.grpc out"
        yield Finding((here, ("spill",)), text)
    for name, pool in config.pools.items():
        if any(replica.engine == "openai" for replica in pool.replicas):
            text = f"Envoy drops what its client has left, and an engine of kind openai in {name} cannot prove that it stopped"
            yield Finding((here, ("pools", name, "replicas")), text, is_warning=True)


def plain_beside_speculative(config: Config) -> bool:
    """Whether some pool has replicas of both kinds."""
    kinds = [[replica.speculative for replica in pool.replicas] for pool in config.pools.values()]
    return any(True in found and False in found for found in kinds)


def _spills(config: Config) -> Iterator[Finding]:
    used = {step.spill for service_class in config.classes.values() for step in service_class.on_pressure}
    for name in config.spill:
        if name in config.pools:
            yield Finding(
                (("spill", name), ("pools", name)), f"{name} is the name of a pool as well; call one of the two otherwise"
            )
        if name not in used:
            text = f"no class has a step spill: {name} in on_pressure, so nothing is ever sent there"
            yield Finding((("spill", name), ("classes",)), text, is_warning=True)


CHECKS: tuple[Callable[[Config], Iterator[Finding]], ...] = (
    _timeouts,
    _classes,
    _tenants,
    _reserves,
    _listeners,
    _envoy,
    _spills,
)


def _ledger(config: Config, around: Surroundings) -> Iterator[Finding]:
    here: Path = ("ledger", "url")
    url = config.ledger.url
    if ENVIRONMENT_NAME.fullmatch(url):
        text = secret.fault(url, around.environment)
        if text is not None:
            yield Finding((here,), text)
            return
        url = secret.resolve(url, around.environment).reveal()
    if ledger_url.is_shared(url):
        try:
            ledger_url.parse(url)
        except ValueError as error:
            yield Finding((here,), str(error))
    elif url.partition(":")[0] not in LEDGERS_IN_FORCE:
        yield Finding((here,), "the variable holds none of memory: · sqlite:PATH · valkey://HOST:PORT/0")
    if config.ledger.durability == "power" and not url.startswith("sqlite:"):
        text = "memory: forgets everything with its process" if url == "memory:" else "a shared ledger lasts as its server does"
        yield Finding((("ledger", "durability"), here), f"{text}; durability: power needs sqlite:PATH")
    if not ledger_url.is_shared(url):
        yield from _alone(config, url.partition(":")[0])
    if config.server.workers > 1 and not address(config.server.listen).port:
        yield Finding((("server", "listen"), ("server", "workers")), "several workers listen on one port; name it")


def _alone(config: Config, scheme: str) -> Iterator[Finding]:
    """What a ledger that one process has to itself cannot do."""
    here: Path = ("ledger", "url")
    if config.server.workers > 1:
        text = f"server.workers is {config.server.workers}, and a ledger of {scheme} belongs to one process: each of them would"
        yield Finding((("server", "workers"), here), f"{text} admit a whole budget; several need valkey://HOST:PORT")
    if config.ledger.when_lost == "share":
        yield Finding((("ledger", "when_lost"), here), f"a ledger of {scheme} has one gateway; there is nothing to share")


def _secrets(config: Config, around: Surroundings) -> Iterator[Finding]:
    """Every reference must resolve, and no two clients may share a key. Values are compared, never shown."""
    holders: dict[str, Path] = {}
    for path, reference in references(config):
        text = secret.fault(reference, around.environment)
        if text is not None:
            yield Finding((path,), text)
            continue
        value = secret.resolve(reference, around.environment).reveal()
        if path == ("ledger", "keys_secret") and len(value) < secret.KEYS_SECRET_LENGTH_MIN:
            text = f"the secret in {secret.variable(reference)} must have at least {secret.KEYS_SECRET_LENGTH_MIN} characters"
            yield Finding((path,), text)
        if path[0] != "tenants":
            continue
        if value in holders:
            other = holders[value]
            text = f"holds the same key as tenants.{other[1]}.keys[{other[3]}]; a key belongs to one client"
            yield Finding((path, other), text)
        holders.setdefault(value, path)
        if len(value) < KEY_LENGTH_SAFE:
            text = f"the key in {secret.variable(reference)} has fewer than {KEY_LENGTH_SAFE} characters and can be guessed"
            yield Finding((path,), text, is_warning=True)


def references(config: Config) -> Iterator[tuple[Path, str]]:
    """Every env:NAME of the file that is a secret, and where it stands."""
    if config.server.admin_key is not None:
        yield ("server", "admin_key"), config.server.admin_key
    if config.ledger.keys_secret is not None:
        yield ("ledger", "keys_secret"), config.ledger.keys_secret
    for name, tenant in config.tenants.items():
        for number, reference in enumerate(tenant.keys):
            yield ("tenants", name, "keys", number), reference
    for name, pool in config.pools.items():
        for number, replica in enumerate(pool.replicas):
            if replica.api_key is not None:
                yield ("pools", name, "replicas", number, "api_key"), replica.api_key
    for name, spill in config.spill.items():
        if spill.api_key is not None:
            yield ("spill", name, "api_key"), spill.api_key


def _exposure(config: Config, around: Surroundings) -> Iterator[Finding]:
    """H1: off loopback only with TLS and keys, unless told."""
    server = config.server
    grpc = [("grpc", server.grpc, bool(config.tenants), "tenants with keys", ("tenants",))] if server.grpc else []
    ports = (
        ("listen", server.listen, bool(config.tenants), "tenants with keys", ("tenants",)),
        *grpc,
        ("admin", server.admin, server.admin_key is not None, "an admin_key", ("server", "admin_key")),
    )
    for name, text, has_keys, keys, keys_path in ports:
        missing = ([] if has_keys else [keys]) + (["TLS"] if server.tls is None else [])
        if around.exposed_ok or address(text).is_loopback or not missing:
            continue
        advice = "listen on 127.0.0.1, or say --exposed if something in front protects it"
        sentence = f"{text} can be reached from other machines, without {' and without '.join(missing)}; {advice}"
        yield Finding((("server", name), ("server", "tls"), keys_path), sentence)


def served_models(config: Config) -> list[str] | None:
    """The models of all pools, or None if a pool takes them from its engines."""
    served: list[str] = []
    for pool in config.pools.values():
        if pool.models is None:
            return None
        served += pool.models
    return served


def _listed(names: object) -> str:
    listed = [str(name) for name in names] if isinstance(names, (dict, list)) else []
    return ", ".join(listed[:10]) + (" …" if len(listed) > 10 else "") if listed else "none"
