"""What must fit together about pools: models, replicas, and the proof of a stop their engines can give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias
from urllib.parse import urlsplit

from headworks.config.address import address, is_loopback
from headworks.config.document import Path
from headworks.config.findings import Finding
from headworks.config.pools import Pool, Replica
from headworks.config.schema import Config

ENGINE_EVIDENCE: dict[str, tuple[str, ...]] = {
    "vllm": ("E1", "E3a", "E3b", "E4"),
    "sglang": ("E1", "E3b", "E4"),
    "llamacpp": ("E1", "E3a", "E3b", "E4"),
    "openai": ("E1",),
}
"""Levels each kind of engine can give; the adapters say the same (`Engine.evidence`), and a test compares them."""

Origin: TypeAlias = tuple[str, str, int]

MEETS: dict[str, tuple[str, ...]] = {
    "E1": ("E1",),
    "E2": ("E2", "E3a", "E3b", "E4"),
    "E3": ("E3a", "E3b"),
    "E3a": ("E3a",),
    "E3b": ("E3b",),
    "E4": ("E4",),
}
"""Which levels an engine must be able to give for a pool that asks for one: any of the row will do."""


def _models(config: Config) -> Iterator[Finding]:
    pool_of: dict[str, str] = {}
    for name, pool in config.pools.items():
        for number, model in enumerate(pool.models or ()):
            here: Path = ("pools", name, "models", number)
            if model in pool_of:
                other = pool_of[model]
                text = f"{model} is already served by pool {other}; a model has one pool, put the replicas into it"
                yield Finding((here, ("pools", other, "models")), text)
            pool_of.setdefault(model, name)
        for model in pool.memory:
            if pool.models is not None and model not in pool.models:
                text = f"the pool does not serve {model}; it serves {', '.join(pool.models)}"
                yield Finding((("pools", name, "memory", model), ("pools", name, "models")), text)
    if all(pool.models for pool in config.pools.values()):
        for model in config.models:
            if model not in pool_of:
                yield Finding((("models", model), ("pools",)), f"no pool serves {model}", is_warning=True)


def _replicas(config: Config) -> Iterator[Finding]:
    first: dict[Origin, Path] = {}
    own = {_origin(f"http://{config.server.listen}"), _origin(f"http://{config.server.admin}")}
    for name, pool in config.pools.items():
        for number, replica in enumerate(pool.replicas):
            here: Path = ("pools", name, "replicas", number, "url")
            origin = _origin(replica.url)
            if origin in own and address(config.server.listen).port:
                yield Finding((here, ("server",)), "this is the gateway's own address; name the engine's")
            if origin in first:
                place = ".".join(str(step) for step in first[origin][:-1])
                text = f"this engine stands already in {place}; it would be counted twice"
                yield Finding((here, first[origin]), text)
            first.setdefault(origin, here)
            yield from _engine(here[:-1], replica)
        names = [replica.name or str(number) for number, replica in enumerate(pool.replicas)]
        for number, called in enumerate(names):
            if called in names[:number]:
                text = f"replica {names.index(called)} of this pool is called {called} already"
                yield Finding((("pools", name, "replicas", number, "name"),), text)
        if all(replica.drain for replica in pool.replicas):
            yield Finding((("pools", name, "replicas"),), "every replica drains: the pool takes no work", is_warning=True)


def _origin(url: str) -> Origin:
    """What makes two URLs the same engine: scheme, host and port, all loopback names being one."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    return parts.scheme, "loopback" if is_loopback(host) else host, parts.port or (443 if parts.scheme == "https" else 80)


def _engine(here: Path, replica: Replica) -> Iterator[Finding]:
    if replica.tls is not None and not replica.url.startswith("https:"):
        yield Finding(((*here, "tls"), (*here, "url")), "tls needs a url that begins with https://")


def _evidence(config: Config) -> Iterator[Finding]:
    """E6: a pool may not ask for a proof its engines cannot give."""
    for name, pool in config.pools.items():
        here: Path = ("pools", name)
        for number, replica in enumerate(pool.replicas):
            given = replica_evidence(replica)
            if any(level in given for level in MEETS[pool.evidence_min]):
                continue
            text = (
                f"{pool.evidence_min} is asked for; replica {number} ({replica.engine}{_why(replica)}) gives {', '.join(given)}"
            )
            advice = "E3" if "E3a" in given or "E3b" in given else "E1"
            replica_path: Path = (*here, "replicas", number)
            paths = ((*here, "evidence_min"), (*replica_path, "engine"), (*replica_path, "url"), (*replica_path, "exclusive"))
            yield Finding(paths, f"{text}; write evidence_min: {advice}")


def replica_evidence(replica: Replica) -> tuple[str, ...]:
    """What can be proved of a stop on this replica: the engine's levels, less what its place makes void."""
    levels = list(ENGINE_EVIDENCE[replica.engine])
    if not replica.exclusive and "E3b" in levels:
        levels.remove("E3b")
    if replica.url.startswith("https:") and "E3a" in levels:
        levels.remove("E3a")
    return tuple(levels)


def _why(replica: Replica) -> str:
    reasons = ([] if replica.exclusive else ["not exclusive"]) + (["over TLS"] if replica.url.startswith("https:") else [])
    return ", " + ", ".join(reasons) if reasons else ""


def _times(config: Config) -> Iterator[Finding]:
    for name, pool in config.pools.items():
        for section, smaller, larger in ORDERED:
            values = getattr(pool, section)
            low, high = getattr(values, smaller), getattr(values, larger)
            if low > high:
                here: Path = ("pools", name, section)
                text = f"{smaller} is {low:g}; it must not be more than {larger}, which is {high:g}"
                yield Finding(((*here, smaller), (*here, larger)), text)
        yield from _discipline(name, pool)


ORDERED = (
    ("observe", "unconfirmed_every_s", "every_s"),
    ("observe", "every_s", "stale_s"),
    ("observe", "stale_s", "forget_s"),
    ("breaker", "open_s", "open_s_max"),
    ("pressure", "release_ratio", "engage_ratio"),
    ("growth", "ahead_tokens", "step_tokens"),
)


def _discipline(name: str, pool: Pool) -> Iterator[Finding]:
    here: Path = ("pools", name, "discipline")
    dropping = pool.discipline.kind in ("fifo_tail_drop", "lifo_drop_head")
    if isinstance(pool.discipline.queue_max, int) and not dropping:
        text = f"queue_max is for fifo_tail_drop and lifo_drop_head; {pool.discipline.kind} keeps to the class's queue"
        yield Finding(((*here, "queue_max"), (*here, "kind"), here), text)


def _mirrors(config: Config) -> Iterator[Finding]:
    for name, pool in config.pools.items():
        if pool.mirror is None:
            continue
        here: Path = ("pools", name, "mirror", "pool")
        if pool.mirror.pool not in config.pools:
            text = f"there is no pool {pool.mirror.pool}; there are {', '.join(config.pools)}"
            yield Finding((here, ("pools",)), text)
        elif pool.mirror.pool == name:
            yield Finding((here,), "a pool cannot mirror to itself")


POOL_CHECKS: tuple[Callable[[Config], Iterator[Finding]], ...] = (_models, _replicas, _evidence, _times, _mirrors)
