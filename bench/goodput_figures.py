"""What `goodput.py` counts in one run. Each figure's meaning stands in that bench's head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from goodput_world import CLASSES, PATIENCE_PROMISES, Ground
from headworks.sim.insertion import FOLLOW_PROMISES, Insertions, Promise, RecordedEngine, Refused
from headworks.sim.report import in_slo, quantile
from headworks.sim.report_tenants import is_useful
from headworks.sim.simulation import WARM_S, Arrival, Simulation

T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Of Student's distribution, by the number of seeds."""


class Window:
    """The part of a run that counts: from `warm_s` of the scenario's time to its end."""

    def __init__(self, ground: Ground, simulation: Simulation, engine: RecordedEngine, warm_s: float) -> None:
        self.ground = ground
        self.simulation = simulation
        self.engine = engine
        self.from_s = WARM_S + warm_s
        self.until_s = simulation.end_s
        self.arrivals = list(simulation.arrivals.values())
        self.good = [one for one in self.arrivals if is_useful(one.attempt) and in_slo(one, simulation)]

    @property
    def seconds(self) -> float:
        return self.until_s - self.from_s

    def holds(self, at_s: float | None) -> bool:
        return at_s is not None and self.from_s <= at_s <= self.until_s

    def class_of(self, arrival: Arrival) -> str:
        return self.simulation.setup.sources[arrival.caller.planned.source].service_class

    def promise_s(self, arrival: Arrival) -> float:
        promise_s = self.simulation.setup.policy.classes[self.class_of(arrival)].ttft_slo_s
        assert promise_s is not None
        return promise_s


def figures(window: Window, *, reserves: bool, refusals_max: int) -> dict[str, Any]:
    """Everything about one run that is not relative to the peak."""
    good = [one for one in window.good if window.holds(one.attempt.ended_s)]
    return {
        "goodput_tokens_per_s": sum(_tokens(one) for one in good) / window.seconds,
        "goodput_requests_per_s": len(good) / window.seconds,
        **_callers(window),
        "wasted_ratio": _wasted_ratio(window),
        "late_ratio": _late_ratio(window),
        "false_refusal_ratio": false_refusal_ratio(window, refusals_max),
        "false_refusal_unpreempting_ratio": false_refusal_ratio(window, refusals_max, may_preempt=False),
        "reserved_over_used": _reserved_over_used(window) if reserves else None,
        "preemptions_per_1000": 1000 * _preemptions(window),
        "ttft_p99_s": {name: _ttft_p99_s(window, name) for name, _, _ in CLASSES},
    }


def _tokens(arrival: Arrival) -> int:
    planned = arrival.caller.planned
    return planned.prompt_tokens + planned.output_tokens


def _callers(window: Window) -> dict[str, float]:
    """Unique wishes that came within the window. Served are those that were while the traffic lasted: later all would be."""
    served = {one.caller.number for one in window.good if window.holds(one.attempt.ended_s)}
    wishes = [one for one in window.simulation.callers if one.attempts and window.holds(one.attempts[0].arrived_s)]
    return {
        "success_ratio": sum(one.number in served for one in wishes) / max(1, len(wishes)),
        "attempts": sum(len(one.attempts) for one in wishes) / max(1, len(wishes)),
    }


def _wasted_ratio(window: Window) -> float:
    simulation, everything, wasted = window.simulation, 0, 0
    for replica in simulation.replicas.values():
        for execution, tokens in replica.work_tokens.items():
            if window.holds(replica.ended_s.get(execution)):
                everything += tokens
                ids = simulation.executions.get(execution, ())
                wasted += 0 if any(is_useful(simulation.arrivals[id].attempt) for id in ids) else tokens
    return wasted / max(1, everything)


def _left_by_whim(window: Window, arrival: Arrival) -> bool:
    """It left although its patience was not over."""
    attempt = arrival.attempt
    if attempt.left_s is None:
        return False
    if attempt.first_byte_s is not None and attempt.first_byte_s <= attempt.left_s:
        return True  # they wait for a first token only: who has it and leaves does not leave for that
    return attempt.left_s - attempt.arrived_s < PATIENCE_PROMISES * window.promise_s(arrival) - 1e-6


def _late_ratio(window: Window) -> float:
    good = {one.attempt.id for one in window.good}
    sent = [one for one in window.arrivals if window.holds(one.sent_s) and not _left_by_whim(window, one)]
    return sum(one.attempt.id not in good for one in sent) / max(1, len(sent))


def _reserved_over_used(window: Window) -> float | None:
    outcomes = [one.outcome for one in window.arrivals if one.outcome is not None and window.holds(one.outcome.ended_s)]
    ended = [one for one in outcomes if one.usage is not None and one.outcome == "completed"]
    used = sum(one.usage.output_tokens for one in ended if one.usage is not None)
    return sum(one.work.output_tokens for one in ended) / used if used else None


def _preemptions(window: Window) -> float:
    """Of all that an engine was given."""
    gauges = window.engine.sample(window.simulation.world.now_s)
    return gauges.preemptions / max(1, sum(given.verb == "submit" for given in window.engine.given))


def _ttft_p99_s(window: Window, name: str) -> float | None:
    firsts_s = [
        one.attempt.first_byte_s - one.attempt.arrived_s
        for one in window.arrivals
        if one.attempt.first_byte_s is not None and window.holds(one.attempt.first_byte_s) and window.class_of(one) == name
    ]
    return quantile(firsts_s, 0.99)


def false_refusal_ratio(window: Window, refusals_max: int, may_preempt: bool = True) -> float | None:
    """Of the refused in a few stretches of the run, how many together could have been inserted (`sim/insertion.py`)."""
    refused = [_refused(window, one) for one in window.arrivals if one.sent_s is None and not _left_by_whim(window, one)]
    refused.sort(key=lambda one: one.at_s)
    if not window.engine.kept or not refused:
        return None
    promises = _promises(window)
    follow_s = FOLLOW_PROMISES * window.ground.promise.ttft_s * max(times for _, _, times in CLASSES[:2])
    tried = inserted = 0
    for from_s, place, kept in window.engine.kept:
        insertions = Insertions(kept, place, window.engine.given, promises, follow_s, may_preempt)
        for one in refused:
            if from_s <= one.at_s and insertions.tried < refusals_max / len(window.engine.kept):
                insertions.offer(one)
        tried += insertions.tried
        inserted += len(insertions.inserted)
    return inserted / tried if tried else None


def _refused(window: Window, arrival: Arrival) -> Refused:
    limits = window.simulation.setup.policy.classes[window.class_of(arrival)]
    planned = arrival.caller.planned
    token_s = limits.tpot_slo_s or math.inf
    return Refused(arrival.caller.number, arrival.attempt.arrived_s, planned, window.promise_s(arrival), token_s)


def _promises(window: Window) -> dict[str, Promise]:
    """Of every execution that was on time in the actual run."""
    simulation, found = window.simulation, {}
    good = {one.attempt.id: one for one in window.good}
    for execution, ids in simulation.executions.items():
        one = good.get(ids[0])
        if one is not None and one.attempt.first_byte_s is not None:
            limits = simulation.setup.policy.classes[window.class_of(one)]
            found[execution] = Promise(
                one.attempt.arrived_s + window.promise_s(one),
                limits.tpot_slo_s or math.inf,
                one.caller.planned.output_tokens,
                one.attempt.first_byte_s,
            )
    return found


def over_seeds(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of each figure, and beside it the interval that holds the true mean with 95 %, where there are seeds enough."""
    found: dict[str, Any] = {}
    intervals: dict[str, Any] = {}
    for key in runs[0]:
        values = [run[key] for run in runs if run[key] is not None]
        if not values:
            found[key] = None
        elif isinstance(values[0], dict):
            found[key] = over_seeds(values)
            intervals[key] = found[key].pop("intervals", None)
        else:
            found[key] = round(mean(values), 6)
            if len(values) >= 2:
                half = T_95.get(len(values), 2.0) * stdev(values) / math.sqrt(len(values))
                intervals[key] = [round(found[key] - half, 6), round(found[key] + half, 6)]
    if any(intervals.values()):
        found["intervals"] = {key: value for key, value in intervals.items() if value}
    return found
