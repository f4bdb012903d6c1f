"""What each tenant got, in its worst and best stretches of time, and how the clients' returns were spread.

A *wish* counts in the second in which it was first asked for, and is served if any attempt at it was useful. So a tenant
that is let down for five seconds shows it, however good the minute was.
"""

from __future__ import annotations

from typing import Any

from headworks.core.metering import WEIGHED
from headworks.core.reserves import INSIDE
from headworks.sim.clients import Attempt
from headworks.sim.simulation import WARM_S, Simulation

WORST_S = 5
BEST_S = 20
WEIGHED_S = 30
"""Weights are told of instants so far apart."""
"""Stretches that are looked at, beginning with each second."""


def by_tenant(simulation: Simulation) -> dict[str, Any]:
    """For each tenant that asked for anything."""
    seconds = int(simulation.setup.duration_s)
    wishes: dict[str, list[int]] = {}
    served: dict[str, list[int]] = {}
    useful: dict[str, list[int]] = {}
    for caller in simulation.callers:
        if not caller.attempts:
            continue
        tenant = simulation.setup.sources[caller.planned.source].tenant
        for counts in (wishes, served, useful):
            counts.setdefault(tenant, [0] * (seconds + 1))
        began = min(seconds, int(caller.attempts[0].arrived_s - WARM_S))
        wishes[tenant][began] += 1
        done = [attempt for attempt in caller.attempts if is_useful(attempt)]
        served[tenant][began] += bool(done)
        for attempt in done:
            if attempt.ended_s is not None:
                useful[tenant][min(seconds, int(attempt.ended_s - WARM_S))] += 1
    inside, weights = _inside(simulation), _weights(simulation)
    return {
        tenant: {
            **_figures(wishes[tenant], served[tenant], useful[tenant], seconds),
            "reserve": inside.get(tenant, NOTHING),
            **weights.get(tenant, {}),
        }
        for tenant in sorted(wishes)
    }


NOTHING = {"inside": 0, "accepted": 0, "accepted_ratio": None}


def _inside(simulation: Simulation) -> dict[str, dict[str, Any]]:
    """Of the requests that came inside their tenant's reserve (B11): how many there were, and how many were not refused."""
    found: dict[str, dict[str, Any]] = {}
    for arrival in simulation.arrivals.values():
        decision, outcome = arrival.decision, arrival.outcome
        if decision is None or not any(unit.endswith(INSIDE) for _, _, _, _, unit, _ in decision.rows):
            continue
        counts = found.setdefault(decision.key.tenant, {**NOTHING, "accepted_ratio": 0.0})
        counts["inside"] += 1
        counts["accepted"] += outcome is None or outcome.outcome not in ("refused", "expired")
        counts["accepted_ratio"] = counts["accepted"] / counts["inside"]
    return found


def _weights(simulation: Simulation) -> dict[str, dict[str, float]]:
    """What of its share each tenant that may be demoted (B13) weighed at instants, by its last request before them."""
    demoted = [name for name, one in simulation.setup.policy.tenants.items() if one.demotes]
    instants = range(WEIGHED_S, int(simulation.setup.duration_s) + 1, WEIGHED_S) if demoted else ()
    found = {name: {f"weight_ratio_at_{at_s}_s": 1.0 for at_s in instants} for name in demoted}
    for arrival in simulation.arrivals.values():
        decision = arrival.decision
        if decision is None or decision.key.tenant not in found:
            continue
        weights = [value / limit for _, _, value, limit, unit, _ in decision.rows if unit == WEIGHED]
        for at_s in instants:
            if at_s - WEIGHED_S <= arrival.attempt.arrived_s - WARM_S < at_s:
                found[decision.key.tenant][f"weight_ratio_at_{at_s}_s"] = weights[0] if weights else 1.0
    return found


def is_useful(attempt: Attempt) -> bool:
    """The answer was complete while its caller still wanted it."""
    return attempt.end == "completed" and attempt.left_s is None


def _figures(wishes: list[int], served: list[int], useful: list[int], seconds: int) -> dict[str, Any]:
    ratios = [
        sum(served[start : start + WORST_S]) / asked
        for start in range(max(1, seconds - WORST_S + 1))
        if (asked := sum(wishes[start : start + WORST_S]))
    ]
    rates_per_s = [sum(useful[start : start + BEST_S]) / BEST_S for start in range(max(1, seconds - BEST_S + 1))]
    return {
        "wishes": sum(wishes),
        "served": sum(served),
        f"served_ratio_worst_{WORST_S}_s": min(ratios, default=None),
        f"useful_per_s_best_{BEST_S}_s": max(rates_per_s),
        f"useful_per_s_worst_{BEST_S}_s": min(rates_per_s),
    }


def returns_per_s_max(simulation: Simulation) -> int:
    """The most returns of clients, of whatever tenant, in any second of the clock."""
    bins: dict[int, int] = {}
    for caller in simulation.callers:
        for attempt in caller.attempts[1:]:
            second = int(attempt.arrived_s - WARM_S)
            bins[second] = bins.get(second, 0) + 1
    return max(bins.values(), default=0)
