"""Counters, histograms and gauges of `metrics_table.py`, kept on slots and rendered by ourselves (F1).

A scrape must not block the loop: with the usual client library 10,000 series cost 84 ms, so each series holds its line
up to the value, ready made, and a scrape only appends numbers. Counters and histograms are fed by what the gate writes
down; gauges are read when a scrape asks.

No label value comes from a request. Values are those of the configuration (`Registry.allow`) or of the closed sets in
the table, else `other`. A series that would pass the budget is not made; its family counts in one without it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from headworks.gateway.metrics_table import CLOSED, CONFIGURED, METRICS, OTHER, PREFIX, Metric

SERIES_MAX = 20_000
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Reading(NamedTuple):
    """A gauge's value now, or a counter's that somebody else counts."""

    name: str
    labels: tuple[str, ...]
    value: float


class Counter:
    """One series of a counter."""

    __slots__ = ("line", "value")

    def __init__(self, line: str) -> None:
        self.line = line
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        self.value += amount


class Histogram:
    """One labelled histogram: a slot for each bucket, summed up when it is rendered."""

    __slots__ = ("_bounds", "_counts", "_lines", "total")

    def __init__(self, bounds: tuple[float, ...], lines: tuple[str, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._lines = lines
        """A line's beginning for each bucket, then those of sum and count."""
        self.total = 0.0

    @property
    def counts(self) -> list[int]:
        """Observations in each bucket, and one more for those above the last bound."""
        return list(self._counts)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def observe_all(self, values: list[float]) -> None:
        """Each of them. Sorting many and then looking for the bounds costs a fifth of placing each among the bounds."""
        values.sort()
        counts, placed, number = self._counts, 0, len(values)
        for index, bound in enumerate(self._bounds):
            if placed == number:
                break
            upto = bisect_right(values, bound, placed)
            counts[index] += upto - placed
            placed = upto
        counts[-1] += number - placed
        self.total += sum(values)

    def render(self, out: list[str]) -> None:
        running = 0
        lines = self._lines
        for index, count in enumerate(self._counts):
            running += count
            out.append(f"{lines[index]}{running}")
        out.append(f"{lines[-2]}{self.total!r}")
        out.append(f"{lines[-1]}{running}")


class Registry:
    """All series of one gateway."""

    def __init__(self, readings: Callable[[], Iterable[Reading]], series_max: int = SERIES_MAX) -> None:
        self._readings = readings
        self._series_max = series_max
        self._allowed: dict[str, frozenset[str]] = {label: frozenset(values) for label, values in CLOSED.items()}
        self._counters: dict[str, dict[tuple[str, ...], Counter]] = {}
        self._histograms: dict[str, dict[tuple[str, ...], Histogram]] = {}
        self._counters_of: dict[tuple[str, str], dict[tuple[str, ...], Counter]] = {}
        self._histograms_of: dict[tuple[str, str], dict[tuple[str, ...], Histogram]] = {}
        """The same series again, by name and first label: what one tenant asks about itself costs what that tenant has."""
        self.before_look: Callable[[], None] = _nothing
        """Called before anything is shown, or labels become others: who counts several at a time does it then."""
        self.series = 0
        """Lines made so far, gauges apart."""
        self.series_refused = 0

    def allow(self, label: str, values: Iterable[str]) -> None:
        """The values a configured label may take, such as the names of all tenants. A reload replaces them."""
        assert label in CONFIGURED, label
        self.before_look()
        self._allowed[label] = frozenset(values)

    def counter(self, name: str, *values: str) -> Counter:
        """The series of these label values, in the order of the table. Keep it where it is counted often."""
        family = self._counters.get(name)
        if family is None:
            family = self._counters[name] = {}
        child = family.get(values)
        if child is None:
            metric = _metric(name, "counter")
            values = self._checked(metric, values)
            child = family.get(values) or family.setdefault(values, Counter(_line(metric.name, metric.labels, values)))
            self._counters_of.setdefault((name, values[0]), {})[values] = child
        return child

    def histogram(self, name: str, *values: str) -> Histogram:
        """As `counter`."""
        family = self._histograms.get(name)
        if family is None:
            family = self._histograms[name] = {}
        child = family.get(values)
        if child is None:
            metric = _metric(name, "histogram")
            values = self._checked(metric, values)
            child = family.get(values) or family.setdefault(values, _histogram(metric, values))
            self._histograms_of.setdefault((name, values[0]), {})[values] = child
        return child

    def counters(self, name: str) -> Mapping[tuple[str, ...], Counter]:
        """The series of a counter themselves. They only become more, the new ones behind the others."""
        self.before_look()
        return self._counters.get(name, {})

    def histograms(self, name: str) -> Mapping[tuple[str, ...], Histogram]:
        """The same of a histogram."""
        self.before_look()
        return self._histograms.get(name, {})

    def counted(self, name: str, first: str | None = None) -> dict[tuple[str, ...], float]:
        """The series of a counter now, by their labels in the order of the table; those whose first label is `first`."""
        self.before_look()
        series = self._counters.get(name, {}) if first is None else self._counters_of.get((name, first), {})
        return {labels: child.value for labels, child in series.items()}

    def observed(self, name: str, first: str | None = None) -> dict[tuple[str, ...], list[int]]:
        """The same of a histogram: observations by bucket."""
        self.before_look()
        series = self._histograms.get(name, {}) if first is None else self._histograms_of.get((name, first), {})
        return {labels: child.counts for labels, child in series.items()}

    def _checked(self, metric: Metric, values: tuple[str, ...]) -> tuple[str, ...]:
        """Allowed values, or the family's overflow series when the budget is spent."""
        checked = self._labels(metric, values)
        family: Mapping[tuple[str, ...], Counter | Histogram] = (
            self._counters if metric.kind == "counter" else self._histograms
        )[metric.name]
        if checked in family:
            return checked
        lines = len(metric.buckets) + 3 if metric.kind == "histogram" else 1
        if self.series + lines > self._series_max:
            self.series_refused += 1
            return tuple(OTHER for _ in metric.labels)
        self.series += lines
        return checked

    def _labels(self, metric: Metric, values: tuple[str, ...]) -> tuple[str, ...]:
        assert len(values) == len(metric.labels), f"{metric.name} has the labels {metric.labels}"
        allowed = self._allowed
        return tuple(
            value if (label not in allowed and label not in CONFIGURED) or value in allowed.get(label, ()) else OTHER
            for label, value in zip(metric.labels, values, strict=True)
        )

    def render(self) -> bytes:
        """The whole exposition."""
        self.before_look()
        out: list[str] = []
        for name, counters in self._counters.items():
            _head(out, METRICS[name])
            out += [f"{child.line}{child.value!r}" for child in counters.values()]
        for name, histograms in self._histograms.items():
            _head(out, METRICS[name])
            for histogram in histograms.values():
                histogram.render(out)
        self._render_readings(out)
        out.append("")
        return "\n".join(out).encode()

    def _render_readings(self, out: list[str]) -> None:
        """Gauges, a family at a time. A reading outside the budget is left out and counted."""
        families: dict[str, dict[tuple[str, ...], float]] = {}
        room = self._series_max - self.series
        for name, labels, value in self._readings():
            metric = METRICS[name]
            series = families.setdefault(name, {})
            labels = self._labels(metric, labels)
            if labels in series:  # several that are written as `other`
                series[labels] += value
            elif room > 0:
                room -= 1
                series[labels] = value
            else:
                self.series_refused += 1
        for name, series in families.items():
            if name in self._counters:
                continue
            metric = METRICS[name]
            _head(out, metric)
            out += [f"{_line(name, metric.labels, labels)}{value!r}" for labels, value in series.items()]


def _nothing() -> None:
    """Until somebody counts."""


def _metric(name: str, kind: str) -> Metric:
    metric = METRICS[name]
    assert metric.kind == kind, f"{name} is a {metric.kind}"
    return metric


def _head(out: list[str], metric: Metric) -> None:
    out.append(f"# HELP {PREFIX}{metric.name} {metric.meaning}")
    out.append(f"# TYPE {PREFIX}{metric.name} {metric.kind}")


def _line(name: str, labels: tuple[str, ...], values: tuple[str, ...], extra: str = "") -> str:
    """A series' line up to its value."""
    pairs = [f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True)]
    if extra:
        pairs.append(extra)
    return f"{PREFIX}{name}{{{','.join(pairs)}}} " if pairs else f"{PREFIX}{name} "


def _histogram(metric: Metric, values: tuple[str, ...]) -> Histogram:
    bounds = [f"{bound:g}" for bound in metric.buckets] + ["+Inf"]
    lines = [_line(f"{metric.name}_bucket", metric.labels, values, f'le="{bound}"') for bound in bounds]
    lines.append(_line(f"{metric.name}_sum", metric.labels, values))
    lines.append(_line(f"{metric.name}_count", metric.labels, values))
    return Histogram(metric.buckets, tuple(lines))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
