"""What waits for a pool at other gateways, and how quickly all of them get on, as they tell it with their heartbeats (B2).

A newcomer waits for all that will be served before it, whichever gateway that waits at, and is served as quickly as all of them
together are:

    W_est = (work ahead here + there) ÷ (what was granted here + there, by the second)

Each gateway tells what waits at it, in all, by class and by flow, and what it was granted since it began. So the rate is that
of the last beats at which something waited anywhere; one gateway's own gaps do not show it, since of one flow the gateway that
asks first is served, for seconds at a time. What is told to become less goes on to; what becomes more is told with the next
beat.

It is told as profiles are (`core/peak.py`): whole numbers under a name, which the ledger adds up over the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headworks.core.peak import Profile
    from headworks.core.pool import Pool
    from headworks.core.queue import PoolQueue

FLOWS_MAX = 64
"""Flows of a pool that are told by themselves; what more there are is told with their class."""
FRESH_S = 3.0
"""What was told so long ago is not believed any more: three heartbeats."""
BEATS_MIN, BEATS = 3, 12
"""The rate is that over so many."""
APART_S = 0.5
"""The first and the last of them are at least so far apart."""
SCALE = 1_000
"""Weights are told in thousandths."""
WAITS, SERVED = "waits:", "served:"

Kind = tuple[str, ...]
"""(): all of a pool; (class,); (class, tenant)."""


class Beside(NamedTuple):
    """What the others have waiting of one kind, added up, and how quickly all get on that have."""

    tokens: int = 0
    gateways: int = 0
    """So many of them have something waiting."""
    tokens_per_s: float | None = None
    requests_per_s: float | None = None
    """Granted at all gateways, this one included. None until two beats have told it."""
    flows_ratio: float = 0.0
    """The weights of those flows of a class that wait there and not here."""


NOBODY = Beside()


class Elsewhere:
    """Of one pool."""

    __slots__ = ("_falls_per_s", "_served", "_told", "_told_s")

    def __init__(self) -> None:
        self._told: dict[Kind, Beside] = {}
        self._told_s = 0.0
        self._falls_per_s: dict[Kind, float] = {}
        """How quickly what waits there became less between the last two beats."""
        self._served: dict[Kind, deque[tuple[float, int, int]]] = {}
        """When, and what had been granted at all gateways by then, while something waited. Bounded by the classes there are."""

    @property
    def is_quiet(self) -> bool:
        """Nobody else has told of anything that waits."""
        return not self._told

    def of(self, now_s: float, kind: Kind = ()) -> Beside:
        """As things should stand now."""
        beside = self._told.get(kind) if self._told else None
        if beside is None or now_s > self._told_s + FRESH_S:
            return NOBODY
        fallen = self._falls_per_s.get(kind, 0.0) * (now_s - self._told_s)
        return beside if not fallen else beside._replace(tokens=max(0, beside.tokens - int(fallen)))

    def learn(self, pool: Pool, profiles: dict[str, Profile], now_s: float) -> None:
        """What a heartbeat's answer says of the others; nothing where nothing waits there."""
        waits, served = _of_pool(WAITS, pool, profiles), _of_pool(SERVED, pool, profiles)
        for kind, (tokens, requests) in _served_here(pool):
            there = served.get(kind, (0, 0))
            self._count(kind, tokens + there[0], requests + there[1], kind in waits or _waits_here(pool, kind), now_s)
        told = {kind: self._beside(kind, values, waits, pool.queue) for kind, values in waits.items()}
        passed_s = now_s - self._told_s
        self._falls_per_s = {
            kind: (before.tokens - told[kind].tokens) / passed_s
            for kind, before in self._told.items()
            if kind in told and told[kind].tokens < before.tokens and 0.0 < passed_s <= FRESH_S
        }
        self._told, self._told_s = told, now_s

    def _count(self, kind: Kind, tokens: int, requests: int, waits: bool, now_s: float) -> None:
        """Where nobody waits, what is granted is what is asked, and says nothing; nor does a sum over others than before."""
        beats = self._served.setdefault(kind, deque(maxlen=BEATS))
        if not waits or (beats and tokens < beats[-1][1]):
            beats.clear()
        if waits:
            beats.append((now_s, tokens, requests))

    def _beside(self, kind: Kind, values: Profile, waits: dict[Kind, Profile], queue: PoolQueue) -> Beside:
        beats, share = self._served.get(kind), 0.0
        if len(kind) == 1:
            share = sum(_share(told) for flow, told in waits.items() if flow[:1] == kind != flow and flow not in queue.lines)
        if beats is None or len(beats) < BEATS_MIN:
            return Beside(values[0], values[1], None, None, share)
        (from_s, *first), (until_s, *last) = beats[1], beats[-1]  # up to the very first, not all had something waiting
        tokens, requests, passed_s = last[0] - first[0], last[1] - first[1], until_s - from_s
        if not tokens or passed_s < APART_S:
            return Beside(values[0], values[1], None, None, share)
        return Beside(values[0], values[1], tokens / passed_s, requests / passed_s, share)


def told_of(pool: Pool) -> Iterator[tuple[str, Profile]]:
    """What the others are told of this pool."""
    for kind, served in _served_here(pool):
        if served[0]:
            yield _name(SERVED, pool, kind), served
    queue = pool.queue
    if not queue.requests:
        return
    yield _name(WAITS, pool, ()), (queue.tokens, 1)
    for name, waiting in queue.classes.items():
        if waiting.requests:
            yield _name(WAITS, pool, (name,)), (waiting.tokens, 1)
    for line in islice(queue.lines.values(), FLOWS_MAX):
        yield _name(WAITS, pool, line.flow), (line.tokens, 1, round(line.share * SCALE))


def _served_here(pool: Pool) -> Iterator[tuple[Kind, tuple[int, int]]]:
    yield (), (pool.served_tokens, pool.served_requests)
    for name, use in pool.class_uses.items():
        yield (name,), (use.served_tokens, use.served_requests)


def _waits_here(pool: Pool, kind: Kind) -> bool:
    return pool.queue.of_class(kind[0]).requests > 0 if kind else pool.queue.requests > 0


def _name(head: str, pool: Pool, kind: Kind) -> str:
    return "\0".join((f"{head}{pool.name}", *kind))


def _of_pool(head: str, pool: Pool, profiles: dict[str, Profile]) -> dict[Kind, Profile]:
    named = ((name.split("\0"), values) for name, values in profiles.items())
    return {tuple(parts[1:]): values for parts, values in named if parts[0] == f"{head}{pool.name}"}


def _share(told: Profile) -> float:
    """Every gateway of a flow tells the same weight."""
    return told[2] / SCALE / told[1]
