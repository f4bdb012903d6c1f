"""Looks at the gateway, one after the other: each has a version, and rates over the last seconds (F9).

The page, `headworks top` and `/admin/snapshot` show the same look, so nobody computes a figure of his own. Amounts are those
of now (`standing.py`). A rate is what was added to a total since a look some `WINDOW_S` ago, over the time between them, and a
percentile is read in the same way from what was added to the buckets of a histogram: as fine as they are. Where nobody
looked, nothing was kept: the first look has no rates. What nothing was seen of is None, which is not zero.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

WINDOW_S = 10.0
"""Rates and percentiles are over so long, so that a glance tells something."""
APART_S = 0.2
"""A look that comes sooner after another is shown, and not kept for rates."""
FORGET_S = 2.0 * WINDOW_S
"""With nobody looking for so long, rates begin anew: over half an hour they would say nothing of now."""
TOTALS_MAX = int(FORGET_S / APART_S)
KEPT_MAX = 16
"""Looks that can be had once more by their version: what a page shows now, and a moment ago."""
PERCENTILE_RATIO = 0.95

Row = dict[str, Any]


@dataclass(slots=True)
class Totals:
    """What a later look is compared with: total by its place in the state."""

    at_s: float
    totals: dict[tuple[str, str, str], float]
    counts: dict[str, list[int]]
    """First tokens by bucket, of each class."""


RATES = {
    "tenants": ("admitted", "refused"),
    "classes": ("arrivals", "refused", "refused_for_own_limits", "good"),
    "decided": ("",),
    "refusals": ("",),
}
"""What has totals, `NAME_total`, in each of its rows. What they grew by is written beside them, as `NAME_per_s`."""
TOKENS = "tokens"
"""The one section that is a row itself."""


class Looks:
    """Looks at `state`, which is plain values with totals."""

    def __init__(self, state: Callable[[], Row]) -> None:
        self._state = state
        self._version = 0
        self._totals: deque[Totals] = deque(maxlen=TOTALS_MAX)
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT_MAX)

    def look(self) -> tuple[int, bytes]:
        """A look of now: its version and itself as JSON. What is not finite is null there."""
        state = self._state()
        now = _totals(state)
        before = self._before(now)
        self._version += 1
        state["version"] = self._version
        state["span_s"] = now.at_s - before.at_s
        _add_rates(state, before, now)
        made = self._version, msgspec.json.encode(state)
        self._kept.append(made)
        return made

    def kept(self, version: int) -> bytes | None:
        """One of the last `KEPT_MAX`, as it was shown."""
        return next((body for number, body in self._kept if number == version), None)

    def _before(self, now: Totals) -> Totals:
        """What this look is compared with: itself, if it is the first."""
        totals = self._totals
        if totals and now.at_s - totals[-1].at_s > FORGET_S:
            totals.clear()
        if not totals or now.at_s - totals[-1].at_s >= APART_S:
            totals.append(now)
        while len(totals) > 2 and now.at_s - totals[1].at_s >= WINDOW_S:
            totals.popleft()
        return totals[0]


def _totals(state: Row) -> Totals:
    found = {}
    for section, names in RATES.items():
        for key, row in state[section].items():
            for name in names:
                found[section, key, name] = float(row[f"{name}_total" if name else "total"])
    for name, total in state[TOKENS].items():
        found[TOKENS, "", name.removesuffix("_total")] = float(total)
    return Totals(state["at_s"], found, {name: row["ttft_counts"] for name, row in state["classes"].items()})


def _add_rates(state: Row, before: Totals, now: Totals) -> None:
    span_s = now.at_s - before.at_s
    grown = {place: max(0.0, total - before.totals.get(place, 0.0)) for place, total in now.totals.items()}
    for place, more in grown.items():
        section, key, name = place
        row = state[section][key] if key else state[section]
        # A tenant that was not looked at then has totals of long ago; a reason that was not there had none.
        is_known = span_s > 0 and (section != "tenants" or place in before.totals)
        row[f"{name}_per_s" if name else "per_s"] = more / span_s if is_known else None
    for name, row in state["classes"].items():
        counted = grown["classes", name, "arrivals"] - grown["classes", name, "refused_for_own_limits"]
        row["good_lately_ratio"] = grown["classes", name, "good"] / counted if counted > 0 and span_s > 0 else None
        was = before.counts.get(name) or [0] * len(row["ttft_counts"])
        seen = [later - earlier for later, earlier in zip(row["ttft_counts"], was, strict=True)]
        row["ttft_p95_s"] = quantile_s(state["ttft_bounds_s"], seen, PERCENTILE_RATIO)
    output = grown[TOKENS, "", "output"]
    state[TOKENS]["wasted_ratio"] = grown[TOKENS, "", "wasted"] / output if output > 0 and span_s > 0 else None


def quantile_s(bounds_s: Sequence[float], counts: Sequence[int], ratio: float) -> float | None:
    """A quantile of what fell into buckets, on a straight line inside its bucket; beyond the last bound, that bound."""
    total = sum(counts)
    if total <= 0:
        return None
    wanted, below, lower_s = ratio * total, 0, 0.0
    for bound_s, count in zip(bounds_s, counts, strict=False):
        if count and below + count >= wanted:
            return lower_s + (bound_s - lower_s) * (wanted - below) / count
        below, lower_s = below + count, bound_s
    return bounds_s[-1]
