"""What a run of the load driver says in figures. Each is defined here, once.

*Good* is an answer that came whole, whose first token came within the SLO after its attempt began, to a client that had
not left. *Goodput* counts good answers by the moment they ended: those that ended while load was offered, per second of
it; in the second half likewise, so that neither the empty start nor the tail after the last arrival flatters it.

*Wasted tokens*: output tokens the engine generated during the run (its own counter, read before and after it had settled)
that are in no good answer, over all it generated. *Wasted work* is the same with prompt tokens added on both sides.
Without the engine's counters both are taken from what the clients saw, which misses what was made for those who left.

Refusals are timed from the attempt's start to the end of the refusal. Percentiles are nearest-rank.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from headworks.tools.load import Call, Run
from headworks.tools.load_engine import EngineSample
from headworks.tools.load_wire import COMPLETE, CUT, LEFT, OVERDUE, REFUSED, UNCONNECTED, Attempt


@dataclass(slots=True)
class Spread:
    """Percentiles of some times; all None where there were none."""

    count: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    max_s: float | None


@dataclass(slots=True)
class EngineFigures:
    """The engine's own gauges while load was offered."""

    samples: int
    waiting_requests_mean: float
    waiting_requests_max: float
    running_requests_mean: float
    kv_used_ratio_max: float
    preemptions: float
    generation_tokens: float
    prompt_tokens: float


@dataclass(slots=True)
class Half:
    """The same for the second half of the run only: arrivals, and answers that ended, in it."""

    offered: int
    goodput_per_s: float
    slo_met_ratio: float
    """Arrivals of the half that got a good answer, now or later."""
    ttft: Spread
    waiting_requests_mean: float | None


@dataclass(slots=True)
class Figures:
    """Everything `headworks load --json` prints."""

    url: str
    trace: str
    model: str
    context_tokens: int
    seed: int
    arrivals: str
    seconds: float
    patience_s: float
    ttft_slo_s: float
    retries_mode: str
    rate_per_s: float
    offered: int
    attempts: int
    retries: int
    good: int
    goodput_per_s: float
    goodput_ratio: float
    answers: dict[str, int]
    """Attempts by how they ended: `200`, `429 queue_delay_exceeded`, `left`, …"""
    ends: dict[str, int]
    """Calls by what the client had in the end: good, late, refused, left, cut, overdue, unconnected."""
    ttft: Spread
    refusal: Spread
    prompt_tokens_offered: int
    output_tokens_offered: int
    output_tokens_good: int
    wasted_ratio: float | None
    wasted_work_ratio: float | None
    wasted_basis: str
    """`engine` or `clients`."""
    second_half: Half
    engine: EngineFigures | None
    send_lag_p99_s: float
    """How late the driver itself was. Past some 0.01 s, distrust the run."""
    generator_cpu_ratio: float


def figures(run: Run) -> Figures:
    """All figures of one run."""
    plan, slo_s, seconds = run.plan, run.plan.ttft_slo_s, run.plan.seconds
    attempts = [attempt for call in run.calls for attempt in call.attempts]
    good = [attempt for attempt in attempts if is_good(attempt, slo_s)]
    refused = [attempt.ended_s - attempt.started_s for attempt in attempts if attempt.end == REFUSED]
    wasted_ratio, wasted_work_ratio, basis = _wasted(run, attempts, good)
    return Figures(
        url=plan.url,
        trace=plan.trace,
        model=run.target.model,
        context_tokens=run.target.context_tokens,
        seed=plan.seed,
        arrivals=plan.arrivals,
        seconds=seconds,
        patience_s=plan.patience_s,
        ttft_slo_s=slo_s,
        retries_mode=plan.retries,
        rate_per_s=run.rate_per_s,
        offered=len(run.calls),
        attempts=len(attempts),
        retries=len(attempts) - len(run.calls),
        good=len(good),
        goodput_per_s=_ended_between(run, good, 0.0, seconds) / seconds,
        goodput_ratio=_ratio(len(good), len(run.calls)),
        answers=dict(sorted(Counter(_answer(attempt) for attempt in attempts).items())),
        ends=dict(sorted(Counter(end_of(call, slo_s) for call in run.calls).items())),
        ttft=spread([attempt.ttft_s for attempt in attempts if attempt.first_token_s]),
        refusal=spread(refused),
        prompt_tokens_offered=sum(call.row.prompt_tokens for call in run.calls),
        output_tokens_offered=sum(call.row.output_tokens for call in run.calls),
        output_tokens_good=sum(attempt.output_tokens for attempt in good),
        wasted_ratio=wasted_ratio,
        wasted_work_ratio=wasted_work_ratio,
        wasted_basis=basis,
        second_half=_second_half(run, good),
        engine=_engine(run),
        send_lag_p99_s=spread(run.send_lags_s).p99_s or 0.0,
        generator_cpu_ratio=run.generator_cpu_ratio,
    )


def is_good(attempt: Attempt, slo_s: float) -> bool:
    """Whole, and its first token within the SLO."""
    return attempt.end == COMPLETE and attempt.ttft_s <= slo_s


def end_of(call: Call, slo_s: float) -> str:
    """What the client had in the end: `good`, `late`, or how its last attempt ended."""
    if not call.attempts:
        return UNCONNECTED
    last = call.attempts[-1]
    if last.end != COMPLETE:
        return last.end
    return "good" if is_good(last, slo_s) else "late"


def spread(times_s: list[float]) -> Spread:
    """Nearest-rank percentiles."""
    if not times_s:
        return Spread(0, None, None, None, None)
    ranked = sorted(times_s)

    def at(percent: int) -> float:
        return ranked[max(0, -(-percent * len(ranked) // 100) - 1)]

    return Spread(len(ranked), at(50), at(95), at(99), ranked[-1])


def _answer(attempt: Attempt) -> str:
    if attempt.end in (LEFT, CUT, OVERDUE, UNCONNECTED):
        return f"{attempt.end} {attempt.code}".strip()
    return f"{attempt.status} {attempt.code}".strip()


def _ended_between(run: Run, attempts: list[Attempt], from_s: float, to_s: float) -> int:
    return sum(1 for attempt in attempts if from_s <= attempt.ended_s - run.started_s < to_s)


def _second_half(run: Run, good: list[Attempt]) -> Half:
    middle_s, end_s = run.plan.seconds / 2, run.plan.seconds
    calls = [call for call in run.calls if call.row.t_s >= middle_s]
    met = sum(1 for call in calls if end_of(call, run.plan.ttft_slo_s) == "good")
    samples = _offering(run, middle_s)
    return Half(
        offered=len(calls),
        goodput_per_s=_ended_between(run, good, middle_s, end_s) / (end_s - middle_s),
        slo_met_ratio=_ratio(met, len(calls)),
        ttft=spread([attempt.ttft_s for call in calls for attempt in call.attempts if attempt.first_token_s]),
        waiting_requests_mean=_mean([sample.waiting for sample in samples]) if samples else None,
    )


def _offering(run: Run, from_s: float) -> list[EngineSample]:
    """The samples taken while load was offered."""
    return [sample for sample in run.samples if from_s <= sample.at_s - run.started_s <= run.plan.seconds]


def _engine(run: Run) -> EngineFigures | None:
    during = _offering(run, 0.0)
    if not during:
        return None
    first, last = run.samples[0], run.samples[-1]
    return EngineFigures(
        samples=len(during),
        waiting_requests_mean=_mean([sample.waiting for sample in during]),
        waiting_requests_max=max(sample.waiting for sample in during),
        running_requests_mean=_mean([sample.running for sample in during]),
        kv_used_ratio_max=max(sample.kv_used_ratio for sample in during),
        preemptions=last.preemptions_total - first.preemptions_total,
        generation_tokens=last.generation_tokens_total - first.generation_tokens_total,
        prompt_tokens=last.prompt_tokens_total - first.prompt_tokens_total,
    )


def _wasted(run: Run, attempts: list[Attempt], good: list[Attempt]) -> tuple[float | None, float | None, str]:
    output_good, prompt_good = (
        sum(attempt.output_tokens for attempt in good),
        sum(attempt.prompt_tokens for attempt in good),
    )
    engine = _engine(run)
    if engine is not None:
        output_all, prompt_all, basis = engine.generation_tokens, engine.prompt_tokens, "engine"
    else:
        output_all = sum(attempt.output_tokens for attempt in attempts)
        prompt_all, basis = sum(attempt.prompt_tokens for attempt in attempts), "clients"
    if not output_all:
        return None, None, basis
    return 1.0 - output_good / output_all, 1.0 - (output_good + prompt_good) / (output_all + prompt_all), basis


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
