"""The largest rate an engine carries alone, and what it is like then: `k` counts in it, and baselines are tuned by it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import Any

from goodput_world import Ground, policy, traffic
from headworks.core.policy import ClassPolicy
from headworks.sim.baselines import Tuning
from headworks.sim.batching import ContinuousBatching
from headworks.sim.engine import ENDED, Finished
from headworks.sim.insertion import Given, Playing
from headworks.sim.traffic import Planned

GOOD_RATIO = 0.99
STEP_RATIO = 1.02
"""Found to this factor."""
START_PER_S = 0.25
RATE_PER_S_MAX = 10_000.0


@dataclass(slots=True)
class Saturation:
    """What was measured."""

    rate_per_s: float
    inside_mean: float
    """Requests inside the engine, on average."""
    inside_max: int
    tokens_per_s: float
    prefill_token_s: float
    promise_s: float
    places: int = 0
    """The best number of requests to run at a time, of a few that were tried; 0 before."""

    def tuning(self, places: int = 0) -> Tuning:
        """The numbers an operator would take from it. A queue of what is served within the promise of most is not too long."""
        return Tuning(
            concurrency=places or self.places or max(1, round(self.inside_mean)),
            queue_max=max(1, round(self.rate_per_s * self.promise_s)),
            tokens_per_s=self.tokens_per_s,
            prefill_token_s=self.prefill_token_s,
        )

    def shown(self, peak: dict[str, Any]) -> dict[str, Any]:
        return {
            "requests_per_s": round(self.rate_per_s, 4),
            "tokens_per_s": round(self.tokens_per_s, 1),
            "inside_mean": round(self.inside_mean, 2),
            "inside_max": self.inside_max,
            "places_tuned": self.places,
            "peak": peak,
        }


def measured(place: Ground, seeds: list[int], requests: int) -> Saturation:
    """Double until it fails, then halve the gap, by factors, down to the step."""
    good, bad = 0.0, START_PER_S
    while bad < RATE_PER_S_MAX and _carries(place, bad, seeds, requests):
        good, bad = bad, bad * 2
    if not good:
        raise SystemExit(f"{place.trace.name}: the engine does not carry {START_PER_S} requests/s within the promises")
    while bad / good > STEP_RATIO:
        middle = (good * bad) ** 0.5
        good, bad = (middle, bad) if _carries(place, middle, seeds, requests) else (good, middle)
    runs = [alone(place, good, seed, requests) for seed in seeds]
    return Saturation(
        rate_per_s=good,
        inside_mean=mean(run.inside_mean for run in runs),
        inside_max=max(run.inside_max for run in runs),
        tokens_per_s=mean(run.tokens / run.seconds for run in runs),
        prefill_token_s=place.settings.cost.prefill_token_s,
        promise_s=place.promise.ttft_s,
    )


def _carries(place: Ground, rate_per_s: float, seeds: list[int], requests: int) -> bool:
    """Over all seeds together; it stops as soon as too many are late."""
    offered = late = 0
    runs = []
    for seed in seeds:
        run = alone(place, rate_per_s, seed, requests, late_ratio_max=(1 - GOOD_RATIO) * len(seeds))
        runs.append(run)
        offered, late = offered + run.requests, late + run.late
        if run.stopped:
            return False
    return late <= (1 - GOOD_RATIO) * offered


@dataclass(slots=True)
class Alone:
    """One run of the engine with nothing in front of it."""

    requests: int
    late: int
    stopped: bool
    seconds: float
    tokens: int
    inside_mean: float
    inside_max: int


def alone(place: Ground, rate_per_s: float, seed: int, requests: int, late_ratio_max: float = 1.0) -> Alone:
    """Everything is sent as it comes, and nobody leaves. It takes as long as any other run: a queue that grows slowly shows."""
    warm_s, measured_s = place.lengths_s(rate_per_s, requests)
    seconds = warm_s + measured_s
    offered = traffic(place, rate_per_s, seconds, seed)
    classes = policy(place, offered.sources).classes
    limits = [classes[source.service_class] for source in offered.sources]
    planned = offered.planned
    given = [
        Given(one.at_s, number, "submit", (str(number), one.prompt_tokens, one.output_tokens, 1, one.prefix))
        for number, one in enumerate(planned)
    ]
    playing = Playing(ContinuousBatching(place.settings), given)
    late, late_max, inside_s, inside_max = 0, late_ratio_max * len(planned), 0.0, 0
    while (outputs := playing.step(float("inf"))) is not None:
        for output in outputs:
            if isinstance(output, Finished) and output.reason == ENDED:
                one = planned[int(output.execution)]
                late += _is_late(one, limits[one.source], playing.first_s[output.execution], output.at_s)
                inside_s += output.at_s - one.at_s
        inside_max = max(inside_max, playing.engine.inside)
        if late > late_max:
            break
    tokens = sum(one.prompt_tokens + one.output_tokens for one in planned)
    return Alone(len(planned), late, late > late_max, seconds, tokens, inside_s / seconds, inside_max)


def _is_late(planned: Planned, limits: ClassPolicy, first_s: float, ended_s: float) -> bool:
    slow_s = (ended_s - first_s) / max(1, planned.output_tokens - 1)
    assert limits.ttft_slo_s is not None
    assert limits.tpot_slo_s is not None
    return first_s - planned.at_s > limits.ttft_slo_s or slow_s > limits.tpot_slo_s
