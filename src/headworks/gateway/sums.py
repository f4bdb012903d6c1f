"""Series of one metric added up by some of their labels, for whoever looks again and again (F9).

With a thousand tenants there are ten thousand series, and finding out which belong together costs more than adding them. It is
found out once for each: series of a registry only become more, in the order in which they were first seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from headworks.gateway.metrics import Counter, Histogram, Registry

Labels = tuple[str, ...]
One = TypeVar("One", Counter, Histogram)


@dataclass(slots=True)
class Groups(Generic[One]):
    """Series by the labels they share, and how many of them have been looked at."""

    series: dict[Labels, list[One]] = field(default_factory=dict)
    seen: int = 0

    def take(self, family: Mapping[Labels, One], places: tuple[int, ...]) -> None:
        """What has come since."""
        for labels, one in islice(family.items(), self.seen, None):
            self.series.setdefault(tuple(labels[place] for place in places), []).append(one)
        self.seen = len(family)


class Sums:
    """Over one registry. What is asked for is a place of the code, so there are a few groupings and no more."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._counters: dict[tuple[str, tuple[int, ...]], Groups[Counter]] = {}
        self._histograms: dict[tuple[str, tuple[int, ...]], Groups[Histogram]] = {}

    def total(self, name: str, *places: int) -> dict[Labels, int]:
        """A counter, by the labels at these places."""
        groups = self._counters.setdefault((name, places), Groups())
        groups.take(self._registry.counters(name), places)
        return {labels: round(sum([one.value for one in same])) for labels, same in groups.series.items()}

    def counts(self, name: str, *places: int) -> dict[Labels, list[int]]:
        """A histogram's observations by bucket, in the same way."""
        groups = self._histograms.setdefault((name, places), Groups())
        groups.take(self._registry.histograms(name), places)
        return {
            labels: [sum(each) for each in zip(*(one.counts for one in same), strict=True)]
            for labels, same in groups.series.items()
        }
