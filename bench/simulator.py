"""How far is the simulated engine from the real one? The same requests at the same instants, to both.

    python bench/simulator.py http://127.0.0.1:8000 --running-max 16 --trace azure2023_conv
    python bench/simulator.py URL --quick --json

Three parts, on a running engine that nobody else uses:

1. *Fit.* First tokens of single prompts of several lengths make a parabola: what a request costs before its first token, a
   token of a prompt, and a pair of tokens. So many answers at once give a line: what a step costs, and a sequence in it.
   `--running-max` and `--batch-tokens` are the engine's own flags, which it does not tell.
2. *Saturation*: the largest rate at which 99 % of the trace's requests have their first token within the promise, found in the
   same way for both. Both get the same rows at the same times.
3. *Errors*: the same requests at 0.8 of the real saturation. What each had in the simulation is compared with what it had.

Figures: `saturation.{real,simulated}_per_s`, `saturation.error_ratio` (simulated ÷ real − 1), and of `ttft` and `e2e` the
medians and 95 % quantiles of both and `error_ratio_p50`, the median over requests of |simulated − real| ÷ real. Holds if the
saturation is within 10 %. The client runs beside the engine: on two cores both figures include what it takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from statistics import median
from urllib.parse import urlsplit

import httpx

from headworks.sim import traces
from headworks.sim.batching import ContinuousBatching
from headworks.sim.insertion import Given, Playing
from headworks.sim.presets import BatchingSettings, StepCost
from headworks.tools import load
from headworks.tools.load_engine import Words, calibrate, target
from headworks.tools.load_figures import spread
from headworks.tools.load_wire import COMPLETE, Attempt, Pool
from real_engine import Report, say

GOOD_RATIO = 0.99
ERROR_RATIO_MAX = 0.10
LOADED_RATIO = 0.8
PROMPTS = (16, 128, 512, 1024, 2048, 3500)
"""Lengths of single prompts; those that the context cannot hold are left out."""
ANSWER_TOKENS = 96
REPEATS = 5
LIMIT_S = 120.0


def main() -> int:
    options = arguments().parse_args()
    report = asyncio.run(compared(options))
    print(json.dumps(report, indent=1) if options.json else page(report))
    return 0 if report["holds"]["saturation within 10 %"] else 1


def arguments() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("url")
    flags.add_argument("--trace", default="azure2023_conv", help="a trace of the package, or a CSV file")
    flags.add_argument("--running-max", type=int, default=16, help="the engine's --max-num-seqs")
    flags.add_argument("--batch-tokens", type=int, default=2048, help="the engine's --max-num-batched-tokens")
    flags.add_argument("--block-tokens", type=int, default=128)
    flags.add_argument("--kv-tokens", type=int, default=524_288)
    flags.add_argument("--seconds", type=float, default=40.0, help="of each run")
    flags.add_argument("--slo-s", type=float, default=1.0)
    flags.add_argument("--first-per-s", type=float, default=2.0)
    flags.add_argument("--step-ratio", type=float, default=0.05, help="the saturation is found to this part of it")
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--quick", action="store_true", help="shorter runs: says less")
    flags.add_argument("--json", action="store_true")
    return flags


async def compared(options: argparse.Namespace) -> Report:
    """All three parts."""
    seconds = min(options.seconds, 15.0) if options.quick else options.seconds
    say("fit: single prompts, then answers side by side")
    fit = await fitted(options.url, options.running_max, options.seed)
    settings = settings_of(fit, options)
    plan = load.Plan(
        url=options.url,
        trace=options.trace,
        seconds=seconds,
        patience_s=LIMIT_S,
        ttft_slo_s=options.slo_s,
        limit_s=LIMIT_S,
        seed=options.seed,
    )
    real_per_s = await found(lambda rate: real_run(plan, rate), options, "real")
    simulated_per_s = await found(lambda rate: simulated_run(plan, rate, settings, fit), options, "simulated")
    loaded = replace(plan, seconds=2 * seconds)
    at_per_s = LOADED_RATIO * real_per_s
    real = await real_run(loaded, at_per_s)
    simulated = await simulated_run(loaded, at_per_s, settings, fit)
    error = simulated_per_s / real_per_s - 1.0
    return {
        "trace": options.trace,
        "context_tokens": fit.context_tokens,
        "cost": {name: getattr(fit.cost, name) for name in StepCost.__slots__},
        "front_s": fit.front_s,
        "saturation": {"real_per_s": real_per_s, "simulated_per_s": simulated_per_s, "error_ratio": error},
        "loaded_per_s": at_per_s,
        "requests": len(real),
        "ttft": beside([one.ttft_s for one in real], [one.ttft_s for one in simulated]),
        "e2e": beside([one.e2e_s for one in real], [one.e2e_s for one in simulated]),
        "holds": {"saturation within 10 %": abs(error) <= ERROR_RATIO_MAX},
    }


@dataclass(slots=True)
class Seen:
    """What one request got."""

    ttft_s: float
    e2e_s: float


Run = Callable[[float], Awaitable[list[Seen]]]
"""The trace at a rate, to its end."""


def beside(real: list[float], simulated: list[float]) -> dict[str, float | None]:
    """Both as they are spread, and how far apart each request's two are."""
    shown: dict[str, float | None] = {}
    for name, times in (("real", real), ("simulated", simulated)):
        shown[f"{name}_p50_s"], shown[f"{name}_p95_s"] = spread(times).p50_s, spread(times).p95_s
    shown["error_ratio_p50"] = median(abs(s - r) / r for r, s in zip(real, simulated, strict=True))
    return shown


# the fit


@dataclass(slots=True)
class Fit:
    """What the engine costs, and what it holds."""

    cost: StepCost
    front_s: float
    context_tokens: int


async def fitted(url: str, running_max: int, seed: int) -> Fit:
    """Single prompts, then answers side by side."""
    plan = load.Plan(url=url, seed=seed)
    async with httpx.AsyncClient(base_url=load.base_of(url), timeout=30.0) as client:
        served = await target(client, None, None)
        words = Words(seed, f"{time.time_ns() // 1_000_000 % 10**9:09d}")
        await calibrate(client, words, load.path_of(plan), {"model": served.model}, True)
    sender = Sender(plan, served.model, words)
    lengths = [length for length in PROMPTS if length + ANSWER_TOKENS < served.context_tokens]
    points = []
    for length in lengths:
        attempts = [await sender.one(length, 2) for _ in range(REPEATS)]
        points.append((median(one.prompt_tokens for one in attempts), median(one.ttft_s for one in attempts)))
    at_once = sorted({1, 2, 4, max(1, running_max // 2), running_max})
    steps = []
    for count in at_once:
        answers = await asyncio.gather(*(sender.one(16, ANSWER_TOKENS) for _ in range(count)))
        steps.append((count, median(token_s(one) for one in answers)))
    sender.pool.close()
    base_s, sequence_s = line(steps)
    first_s, prefill_s, pair_s = parabola(points)
    # A chunk of n tokens looks at about n²/2 pairs, which is what the parabola's last coefficient stands for.
    cost = StepCost(base_s, max(0.0, prefill_s), max(0.0, 2.0 * pair_s), max(0.0, sequence_s), 0.0)
    return Fit(cost, max(0.0, first_s - base_s), served.context_tokens)


def token_s(attempt: Attempt) -> float:
    """Seconds a token after the first."""
    return (attempt.ended_s - attempt.first_token_s) / (attempt.output_tokens - 1)


class Sender:
    """Single requests of exact lengths."""

    def __init__(self, plan: load.Plan, model: str, words: Words) -> None:
        self.pool = Pool(asyncio.get_running_loop(), urlsplit(load.base_of(plan.url)))
        self._words = words
        self._fields = load.fields_of(plan, load.Target(model, 0))
        self._head = load.head_of(plan)
        self._sent = 0

    async def one(self, prompt_tokens: int, output_tokens: int) -> Attempt:
        self._sent += 1
        question = f'"messages":[{{"role":"user","content":"{self._words.prompt(self._sent, prompt_tokens)}"}}]'
        body = f'{{{self._fields},"max_tokens":{output_tokens},{question}}}'.encode()
        attempt = await self.pool.run(self._head % (0, len(body)) + body, LIMIT_S, LIMIT_S)
        if attempt.end != COMPLETE:
            raise SystemExit(f"a request of the fit ended as {attempt.end} ({attempt.status} {attempt.code})")
        return attempt


def line(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Least squares: intercept and slope."""
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread_x = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread_x if spread_x else 0.0
    return mean_y - slope * mean_x, slope


def parabola(points: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Least squares of a + b·x + c·x², by the normal equations; lengths in thousands keep them well conditioned."""
    rows = [(1.0, x / 1000.0, (x / 1000.0) ** 2, y) for x, y in points]
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in range(3)] + [sum(row[i] * row[3] for row in rows)] for i in range(3)
    ]
    for i in range(3):
        pivot = max(range(i, 3), key=lambda k: abs(matrix[k][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for k in range(3):
            if k != i:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [a - factor * b for a, b in zip(matrix[k], matrix[i], strict=True)]
    first, linear, square = (matrix[i][3] / matrix[i][i] for i in range(3))
    return first, linear / 1000.0, square / 1e6


def settings_of(fit: Fit, options: argparse.Namespace) -> BatchingSettings:
    """The engine model of this fit."""
    return BatchingSettings(
        cost=fit.cost,
        running_max=options.running_max,
        batch_tokens_max=options.batch_tokens,
        kv_blocks=options.kv_tokens // options.block_tokens + 1,
        block_tokens=options.block_tokens,
        front_s=fit.front_s,
    )


# runs


async def found(run: Run, options: argparse.Namespace, name: str) -> float:
    """The saturation, by the same search for both: doubled until it fails, then the gap is halved by factors."""
    good, bad = 0.0, options.first_per_s
    while await carries(run, bad, options.slo_s, name):
        good, bad = bad, bad * 2
    if not good:
        raise SystemExit(f"{name}: not even {bad:g} requests/s are carried; --first-per-s says where to begin")
    while bad / good > 1.0 + options.step_ratio:
        middle = (good * bad) ** 0.5
        good, bad = (middle, bad) if await carries(run, middle, options.slo_s, name) else (good, middle)
    return good


async def carries(run: Run, rate_per_s: float, slo_s: float, name: str) -> bool:
    """Whether nearly all have their first token in time."""
    seen = await run(rate_per_s)
    on_time_ratio = sum(one.ttft_s <= slo_s for one in seen) / len(seen)
    say(f"{name}: {rate_per_s:.2f}/s, {on_time_ratio:.1%} of {len(seen)} on time")
    return on_time_ratio >= GOOD_RATIO


async def real_run(plan: load.Plan, rate_per_s: float) -> list[Seen]:
    """What the requests of the trace got from the engine, in their order."""
    done = await load.run(replace(plan, rate_per_s=rate_per_s))
    attempts = [call.attempts[-1] for call in done.calls]
    broken = [one.end for one in attempts if one.end != COMPLETE]
    if broken:
        raise SystemExit(f"{len(broken)} of {len(attempts)} requests were not answered whole: {broken[0]}")
    return [Seen(one.ttft_s, one.ended_s - one.started_s) for one in attempts]


async def simulated_run(plan: load.Plan, rate_per_s: float, settings: BatchingSettings, fit: Fit) -> list[Seen]:
    """The same requests at the same times in the engine model, alone."""
    trace = traces.scaled(traces.read(plan.trace), fit.context_tokens)
    rows = traces.poisson(trace, rate_per_s=rate_per_s, seconds=plan.seconds, seed=plan.seed)
    given = [
        Given(row.t_s, number, "submit", (str(number), row.prompt_tokens, row.output_tokens, 1, ()))
        for number, row in enumerate(rows)
    ]
    playing = Playing(ContinuousBatching(settings), given)
    while playing.step(float("inf")) is not None:
        pass
    return [Seen(playing.first_s[str(n)] - row.t_s, playing.ended_s[str(n)] - row.t_s) for n, row in enumerate(rows)]


def page(report: Report) -> str:
    """For people."""
    saturation, lines = report["saturation"], []
    lines.append(f"saturation on {report['trace']}: real {saturation['real_per_s']:.2f}/s,")
    lines.append(f"simulated {saturation['simulated_per_s']:.2f}/s ({saturation['error_ratio']:+.1%})")
    for name in ("ttft", "e2e"):
        both = report[name]
        lines.append(
            f"{name} of {report['requests']} requests at {report['loaded_per_s']:.2f}/s: real p50 {both['real_p50_s']:.3f} s,"
            f" p95 {both['real_p95_s']:.3f} s; simulated {both['simulated_p50_s']:.3f} s, {both['simulated_p95_s']:.3f} s;"
            f" median error of a request {both['error_ratio_p50']:.0%}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
