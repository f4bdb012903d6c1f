"""Who got how much while who waited: the claims of D1 and D2, measured on what was sent to the engines.

Served are the tokens a request was charged with, at the instant at which it was sent. A flow is backlogged while anything of
it is inside a gateway and not sent.

- `pairs`: for two flows of one level, the largest difference of their service, each by its weight, over any interval in which
  both were backlogged throughout; and the bound that `core/fair.py` derives for it, without its estimate error, so it is to be
  compared only where requests use what they are charged with. It says something only where the service is many times it.
- `floors`: for each class that has one, its worst window: the least part of all service that it got in any `WINDOW_S` in which
  it was backlogged throughout, by its floor. 1 is the floor exactly. `returned_by_floor`: the same of the first `RETURN_S` of
  every backlog, in which a share that was lent has to be given back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from headworks.core.fair import PASSES_MAX
from headworks.core.shares import class_weights

if TYPE_CHECKING:
    from headworks.sim.simulation import Simulation

WINDOW_S = 10.0
RETURN_S = 1.0
"""What was lent has to be given back in this time."""
STEP_S = 0.5
"""Windows begin this far apart."""
FLOWS_MAX = 16
"""Of each level, by name, are compared with each other."""

Span = tuple[float, float]


class Flow:
    """One class, or one tenant of a class: when it was backlogged, and what it was served when."""

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.stays: list[Span] = []
        self.served: list[tuple[float, int]] = []

    def largest_tokens(self) -> int:
        return max((tokens for _, tokens in self.served), default=0)

    def backlogged(self) -> list[Span]:
        """Its stays, joined where they touch."""
        spans: list[Span] = []
        for start_s, end_s in sorted(self.stays):
            if spans and start_s <= spans[-1][1]:
                spans[-1] = spans[-1][0], max(spans[-1][1], end_s)
            else:
                spans.append((start_s, end_s))
        return spans


def fairness(simulation: Simulation) -> dict[str, Any]:
    """Of every pair of flows with something to compare, and of every floor."""
    classes, tenants = _flows(simulation)
    pairs: dict[str, Any] = {}
    for level in (classes, *tenants):
        for one, other in combinations(sorted(level, key=lambda flow: flow.name)[:FLOWS_MAX], 2):
            both = list(_both(one.backlogged(), other.backlogged()))
            if both:
                pairs[f"{one.name} and {other.name}"] = _compared(one, other, both, simulation)
    return {
        "pairs": pairs,
        "difference_by_bound_max": max((pair["difference_by_bound"] for pair in pairs.values()), default=None),
        "service_by_bound_min": min((pair["service_by_bound"] for pair in pairs.values()), default=None),
        "floors": dict(_floors(simulation, classes)),
    }


def _flows(simulation: Simulation) -> tuple[list[Flow], list[list[Flow]]]:
    """The classes, and the tenants of each class."""
    policy = simulation.setup.policy
    weights = class_weights(policy.classes)
    classes = {name: Flow(name, weight) for name, weight in weights.items()}
    tenants: dict[str, dict[str, Flow]] = {name: {} for name in weights}
    for arrival in simulation.arrivals.values():
        source = simulation.setup.sources[arrival.caller.planned.source]
        name = source.service_class
        flow = tenants[name].setdefault(source.tenant, Flow(f"{name}/{source.tenant}", policy.tenants[source.tenant].share))
        decision = arrival.decision
        if decision is None or decision.outcome == "refuse":
            continue
        ends_s = [at_s for at_s in (arrival.sent_s, arrival.outcome.ended_s if arrival.outcome else None) if at_s is not None]
        for one in (classes[name], flow):
            if ends_s:
                one.stays.append((arrival.attempt.arrived_s, min(ends_s)))
            if arrival.sent_s is not None:
                one.served.append((arrival.sent_s, decision.work.tokens))
    return list(classes.values()), [list(level.values()) for level in tenants.values()]


def _both(ones: Sequence[Span], others: Sequence[Span]) -> Iterator[Span]:
    """When both were backlogged."""
    for one_s, one_end_s in ones:
        for other_s, other_end_s in others:
            start_s, end_s = max(one_s, other_s), min(one_end_s, other_end_s)
            if end_s > start_s:
                yield start_s, end_s


def _compared(one: Flow, other: Flow, both: Sequence[Span], simulation: Simulation) -> dict[str, float]:
    difference = max(_difference(one, other, span) for span in both)
    served = [sum(tokens for at_s, tokens in flow.served if any(a <= at_s <= b for a, b in both)) for flow in (one, other)]
    backlogged_s = sum(end_s - start_s for start_s, end_s in both)
    line = simulation.setup.line
    round_trip_s = 2 * line.latency_s * (1 + line.jitter_ratio)
    requests = [flow.largest_tokens() / flow.weight for flow in (one, other)]
    # Whoever is larger may be passed by the smaller one, so it is the smaller request that counts sixteen times.
    missed = sum(served) / backlogged_s * round_trip_s / min(one.weight, other.weight)
    bound = sum(requests) + PASSES_MAX * min(requests) + missed
    return {
        "difference": difference,
        "bound": bound,
        "difference_by_bound": difference / bound if bound else 0.0,
        "service_by_bound": min(served[0] / one.weight, served[1] / other.weight) / bound if bound else 0.0,
        "backlogged_s": backlogged_s,
    }


def _difference(one: Flow, other: Flow, span: Span) -> float:
    """The largest change of lead within the span: the highest it stood at less the lowest, whichever was first."""
    start_s, end_s = span
    steps = [(at_s, tokens / one.weight) for at_s, tokens in one.served if start_s <= at_s <= end_s]
    steps += [(at_s, -tokens / other.weight) for at_s, tokens in other.served if start_s <= at_s <= end_s]
    lead = lowest = highest = 0.0
    for _, step in sorted(steps):
        lead += step
        lowest, highest = min(lowest, lead), max(highest, lead)
    return highest - lowest


def _floors(simulation: Simulation, classes: Sequence[Flow]) -> Iterator[tuple[str, Any]]:
    every = sorted(served for flow in classes for served in flow.served)
    for flow in classes:
        floor_ratio = simulation.setup.policy.classes[flow.name].floor_ratio
        if floor_ratio:
            shares = [_share(flow, every, start_s) for start_s in _windows(flow)]
            known = [share for share in shares if share is not None]
            begun = [
                _share(flow, every, start_s, RETURN_S) for start_s, end_s in flow.backlogged() if end_s >= start_s + RETURN_S
            ]
            returned = [share for share in begun if share is not None]
            yield (
                flow.name,
                {
                    "windows": len(known),
                    "worst_by_floor": min(known) / floor_ratio if known else None,
                    "returned_by_floor": min(returned) / floor_ratio if returned else None,
                },
            )


def _windows(flow: Flow) -> Iterator[float]:
    for start_s, end_s in flow.backlogged():
        step = 0
        while start_s + step * STEP_S + WINDOW_S <= end_s:
            yield start_s + step * STEP_S
            step += 1


def _share(flow: Flow, every: Sequence[tuple[float, int]], start_s: float, length_s: float = WINDOW_S) -> float | None:
    all_tokens = sum(tokens for at_s, tokens in every if start_s < at_s <= start_s + length_s)
    own_tokens = sum(tokens for at_s, tokens in flow.served if start_s < at_s <= start_s + length_s)
    return own_tokens / all_tokens if all_tokens else None
