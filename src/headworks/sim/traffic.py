"""What arrives when, and how long it is: arrival times and token lengths, all from one seed.

Arrivals are written down before a run starts, so every discipline that is compared meets the very same requests. The
true output length is known here and to the engine model only; the gate sees what a gateway would see: the bytes of the
prompt and the limit its client set.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

ARRIVALS_MAX = 5_000_000
"""A profile that would make more is refused: the list is held in memory."""


@dataclass(slots=True)
class Segment:
    """From `from_s` on, requests come at this rate, until the next segment or the end."""

    from_s: float
    rate_per_s: float


@dataclass(slots=True)
class Lengths:
    """A distribution of token counts.

    `fixed`: always `tokens`. `uniform`: between `low` and `high`. `lognormal`: median `tokens`, spread `sigma`,
    cut to `low`..`high`. `empirical`: a draw from `values`.
    """

    kind: str = "fixed"
    tokens: int = 100
    low: int = 1
    high: int = 1_000_000
    sigma: float = 1.0
    values: Sequence[int] = ()

    def check(self) -> None:
        """Raises `ValueError` for what nothing can be drawn from."""
        if self.kind not in ("fixed", "uniform", "lognormal", "empirical"):
            raise ValueError(f"no such kind of length {self.kind!r}; known: fixed, uniform, lognormal, empirical")
        least = {"empirical": min(self.values, default=0), "uniform": self.low}.get(self.kind, self.tokens)
        if least < 1 or (self.kind != "fixed" and not 1 <= self.low <= self.high):
            raise ValueError("a length is at least one token, and low is not above high")

    def draw(self, random: Random) -> int:
        if self.kind == "fixed":
            return self.tokens
        if self.kind == "uniform":
            return random.randint(self.low, self.high)
        if self.kind == "empirical":
            return self.values[random.randrange(len(self.values))]
        assert self.kind == "lognormal", self.kind
        drawn = math.exp(random.gauss(math.log(self.tokens), self.sigma))
        return max(self.low, min(self.high, round(drawn)))


@dataclass(slots=True)
class Planned:
    """One request somebody will want: when, and how much work it truly is."""

    at_s: float
    source: int
    """Index of the traffic source it belongs to."""
    prompt_tokens: int
    output_tokens: int
    """Tokens the engine would produce if nobody stopped it, per sample."""
    prefix: tuple[int, ...]
    """Ids of the prompt's leading blocks that other requests may share."""
    number: int | None = None
    """What it is called by; None: its place in the list. Others can then be left out, and it stays what it was."""


def constant(segments: Sequence[Segment], until_s: float) -> Iterator[float]:
    """Evenly spaced arrivals. Times are multiples, not sums, so that the k-th request is exactly where it should be."""
    for start_s, end_s, rate_per_s in _stretches(segments, until_s):
        number = 0
        while start_s + number / rate_per_s < end_s:
            yield start_s + number / rate_per_s
            number += 1


def poisson(segments: Sequence[Segment], until_s: float, random: Random) -> Iterator[float]:
    """Independent arrivals at a rate that may change: memoryless, so each stretch starts afresh."""
    for start_s, end_s, rate_per_s in _stretches(segments, until_s):
        at_s = start_s + random.expovariate(rate_per_s)
        while at_s < end_s:
            yield at_s
            at_s += random.expovariate(rate_per_s)


def count(segments: Sequence[Segment], until_s: float) -> float:
    """How many arrivals that makes, on average. Raises `ValueError` for more than can be held."""
    return sum((end_s - start_s) * rate_per_s for start_s, end_s, rate_per_s in _stretches(segments, until_s))


def _stretches(segments: Sequence[Segment], until_s: float) -> Iterator[tuple[float, float, float]]:
    total = 0.0
    for number, segment in enumerate(segments):
        end_s = segments[number + 1].from_s if number + 1 < len(segments) else until_s
        total += max(0.0, end_s - segment.from_s) * segment.rate_per_s
        if total > ARRIVALS_MAX:
            raise ValueError(f"this profile makes more than {ARRIVALS_MAX:,} arrivals")
        if segment.rate_per_s > 0 and end_s > segment.from_s:
            yield segment.from_s, min(end_s, until_s), segment.rate_per_s


class Prefixes:
    """Who shares a prompt's beginning: a few popular system prompts, drawn by Zipf's law."""

    def __init__(self, popular: int, shared_blocks: int, exponent: float = 1.1) -> None:
        weights = [1 / rank**exponent for rank in range(1, popular + 1)]
        total = sum(weights)
        running = 0.0
        self._edges: list[float] = []
        for weight in weights:
            running += weight / total
            self._edges.append(running)
        self._shared_blocks = shared_blocks

    def draw(self, random: Random) -> tuple[int, ...]:
        if not self._edges or self._shared_blocks == 0:
            return ()
        which = min(bisect.bisect_left(self._edges, random.random()), len(self._edges) - 1)
        return tuple(which * 1_000_000 + block for block in range(self._shared_blocks))
