"""What became of arrivals, second by second: the curves of the HTML report and, the same numbers, of `--json`.

Time is cut into at most `BINS_MAX` equal parts. A rate or a time to first token stands in the part in which its request
came; what waits, runs and fills memory is looked at as each part begins.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headworks.sim.report import in_slo, quantile
from headworks.sim.report_tenants import is_useful
from headworks.sim.simulation import WARM_S, Arrival, Simulation

BINS_MAX = 120
BIN_S_MIN = 0.5
TENANTS_MAX = 12
"""By name, those with the most tokens; the others are added up."""
OTHERS = "all others"
GOOD, LATE, REFUSED, LEFT, FAILED = "in time", "late", "refused", "left", "failed"
ENDS = (GOOD, LATE, REFUSED, LEFT, FAILED)
"""Complete within every promise; complete, and not; turned away at once or after waiting; its client left; anything else."""


@dataclass(slots=True)
class Told:
    """One arrival, as far as its curves need it. Seconds count from the beginning of what is shown."""

    arrived_s: float
    sent_s: float | None
    first_byte_s: float | None
    ended_s: float
    end: str
    tenant: str
    service_class: str
    tokens: int
    """What it used of an engine, prompt and output."""


def series(told: Sequence[Told], kv_used: Sequence[tuple[float, float]], duration_s: float) -> dict[str, Any]:
    """Plain values, rounded to a millionth. `kv_used`: how full the engines' memory was, when it was looked at."""
    bin_s = max(BIN_S_MIN, duration_s / BINS_MAX)
    bins = max(1, math.ceil(duration_s / bin_s - 1e-9))
    places = [min(bins - 1, max(0, int(one.arrived_s / bin_s))) for one in told]
    ends = {end: [0] * bins for end in ENDS}
    for one, place in zip(told, places, strict=True):
        ends[one.end][place] += 1
    waits = [(one.arrived_s, min(one.ended_s, one.ended_s if one.sent_s is None else one.sent_s)) for one in told]
    runs = [(one.sent_s, one.ended_s) for one in told if one.sent_s is not None]
    at_s = [place * bin_s for place in range(bins)]
    return {
        "bin_s": round(bin_s, 6),
        "per_s": {end: [round(count / bin_s, 6) for count in counts] for end, counts in ends.items()},
        "waiting": _open_at(waits, at_s),
        "running": _open_at(runs, at_s),
        "kv_used_ratio": _last_by(kv_used, at_s),
        "ttft_p95_s": _first_tokens(told, places, bins),
        "tokens_by_tenant": _tenants(told),
    }


def _open_at(spans: Iterable[tuple[float, float]], at_s: Sequence[float]) -> list[int]:
    """How many spans each instant lies in."""
    begins, ends = [], []
    for begin_s, end_s in spans:
        begins.append(begin_s)
        ends.append(end_s)
    begins.sort()
    ends.sort()
    return [bisect_right(begins, instant_s) - bisect_right(ends, instant_s) for instant_s in at_s]


def _last_by(looks: Sequence[tuple[float, float]], at_s: Sequence[float]) -> list[float | None]:
    """What the last look by then showed."""
    times_s = [look_s for look_s, _ in looks]
    places = [bisect_right(times_s, instant_s) - 1 for instant_s in at_s]
    return [round(looks[place][1], 6) if place >= 0 else None for place in places]


def _first_tokens(told: Sequence[Told], places: Sequence[int], bins: int) -> dict[str, list[float | None]]:
    found: dict[str, list[list[float]]] = {}
    for one, place in zip(told, places, strict=True):
        own = found.setdefault(one.service_class, [[] for _ in range(bins)])
        if one.first_byte_s is not None:
            own[place].append(one.first_byte_s - one.arrived_s)
    return {
        name: [None if value is None else round(value, 6) for value in (quantile(part, 0.95) for part in parts)]
        for name, parts in sorted(found.items())
    }


def _tenants(told: Iterable[Told]) -> dict[str, int]:
    tokens: dict[str, int] = {}
    for one in told:
        tokens[one.tenant] = tokens.get(one.tenant, 0) + one.tokens
    ranked = sorted(tokens.items(), key=lambda item: (-item[1], item[0]))
    kept = dict(ranked[:TENANTS_MAX])
    if len(ranked) > TENANTS_MAX:
        kept[OTHERS] = sum(count for _, count in ranked[TENANTS_MAX:])
    return kept


def simulated(simulation: Simulation) -> dict[str, Any]:
    """The curves of one discipline."""
    duration_s = simulation.setup.duration_s
    told = [one for one in (_told(arrival, simulation) for arrival in simulation.arrivals.values()) if one is not None]
    kv_used = [
        (at_s - WARM_S, sum(one.kv_used_ratio for one in looks.values()) / len(looks)) for at_s, looks in simulation.gauges
    ]
    return series([one for one in told if one.arrived_s < duration_s], kv_used, duration_s)


def _told(arrival: Arrival, simulation: Simulation) -> Told | None:
    """As its client saw it. None of what was lost with its gateway."""
    outcome, attempt = arrival.outcome, arrival.attempt
    if outcome is None:
        return None
    usage = outcome.usage
    return Told(
        arrived_s=attempt.arrived_s - WARM_S,
        sent_s=None if arrival.sent_s is None else arrival.sent_s - WARM_S,
        first_byte_s=None if attempt.first_byte_s is None else attempt.first_byte_s - WARM_S,
        ended_s=outcome.ended_s - WARM_S,
        end=_end(arrival, simulation),
        tenant=outcome.key.tenant,
        service_class=outcome.service_class,
        tokens=usage.prompt_tokens + usage.output_tokens if usage is not None else 0,
    )


def _end(arrival: Arrival, simulation: Simulation) -> str:
    if is_useful(arrival.attempt):
        return GOOD if in_slo(arrival, simulation) else LATE
    assert arrival.outcome is not None
    return end_of(arrival.outcome.outcome, in_slo=False, left=arrival.attempt.left_s is not None)


def end_of(outcome: str, *, in_slo: bool, left: bool = False) -> str:
    """One of `ENDS` for an outcome of the gate."""
    if outcome in ("completed", "replayed") and not left:
        return GOOD if in_slo else LATE
    if outcome in ("refused", "expired", "unknown"):
        return REFUSED
    return LEFT if left or outcome == "cancelled" else FAILED
