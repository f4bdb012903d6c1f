"""How tight reservations of output are, and how often they suffice, on recorded traffic (C2).

Each request of the trace is sized by the core's own estimator as it arrives, allowed `--allowed` output tokens, and its answer
is learnt from when it ends: `PREFILL_S` and `TOKEN_S` a token later, so that many others arrive before it is known. Nothing
waits or is refused. In output tokens:

    reserved_over_used   Σ reserved at arrival ÷ Σ written
    grown_over_used      Σ reserved at the end ÷ Σ written, with the growth that the core asks for
    covered_ratio        answers that stayed within what was reserved at arrival
    asks_per_answer      how often more was asked for

`worst` is the tenant with the least covered of those with `REQUESTS_MIN` requests and more, `loosest` the one with the most
reserved; `tenants` has all of them. Beside each stands the least that could be reserved for it by somebody who knew all its
answers beforehand, though not which request gets which, and still had to cover `COVERED_RATIO_MIN` of them:

    least_over_used      with one length for all of them, Σ ÷ Σ written: a quantile of what the tenant really wrote
    least_sized          with one length for each size of prompt, by powers of two (a bound: `least_by_size`)

Of the whole trace, for comparison: its largest answer (a stand-in for what clients allow), and the 95 % quantile of the pool's
last 300 answers. The costs are medians of one arrival's sizing and of one answer's learning, in µs of this process.

Target: reserved_over_used ≤ 2.3 at ≥ 0.93 covered for every tenant with 200 requests and more. Exit 1 where it is missed, 2
where a trace cannot be read.

    python bench/estimate.py --json [--trace NAME_OR_PATH ...] [--single-tenant]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from statistics import median
from typing import Any

from headworks.core.estimate import SLACK_TOKENS, Estimator
from headworks.core.output_lengths import LENGTHS_KEPT, LENGTHS_MIN
from headworks.core.policy import PoolPolicy, ReplicaPolicy, TenantPolicy
from headworks.core.pool import Pool
from headworks.core.stats import Window
from headworks.core.types import Capacity, Request, RequestKey, Usage, Work
from headworks.sim.traces import Row, TraceError, read

TRACES = ("servegen_mlarge_1h",)
PREFILL_S, TOKEN_S = 0.2, 0.02
BYTES_A_TOKEN = 4
REQUESTS_MIN = 200
RESERVED_OVER_USED_MAX, COVERED_RATIO_MIN = 2.3, 0.93
QUANTILE = 0.95
CONTEXT_TOKENS = 200_000
PRICE_STEP, PRICE_MAX = 1.03, 1e8


@dataclass(slots=True)
class Sums:
    """One tenant, or all of them."""

    requests: int = 0
    covered: int = 0
    reserved_tokens: int = 0
    grown_tokens: int = 0
    used_tokens: int = 0
    asks: int = 0

    def add(self, reserved: int, grown: int, used: int, asks: int) -> None:
        self.requests += 1
        self.covered += used <= reserved
        self.reserved_tokens += reserved
        self.grown_tokens += grown
        self.used_tokens += used
        self.asks += asks

    def figures(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "covered_ratio": round(self.covered / self.requests, 4),
            "reserved_over_used": round(self.reserved_tokens / self.used_tokens, 3),
            "grown_over_used": round(self.grown_tokens / self.used_tokens, 3),
            "asks_per_answer": round(self.asks / self.requests, 3),
        }


@dataclass(slots=True)
class Study:
    """A trace gone through once."""

    whole: Sums = field(default_factory=Sums)
    pooled: Sums = field(default_factory=Sums)
    largest: Sums = field(default_factory=Sums)
    tenants: dict[str, Sums] = field(default_factory=lambda: defaultdict(Sums))
    pooled_tenants: dict[str, Sums] = field(default_factory=lambda: defaultdict(Sums))
    written: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Of each tenant, size of the prompt and length of the answer."""
    arrivals_us: list[float] = field(default_factory=list)
    ends_us: list[float] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description="reserved against used output tokens on recorded traffic")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--trace", action="append", help=f"name or path of a trace; {', '.join(TRACES)} if none is given")
    parser.add_argument("--allowed", type=int, default=32_768, help="output tokens every client allows")
    parser.add_argument("--single-tenant", action="store_true", help="as if one tenant had sent all of it")
    options = parser.parse_args()
    try:
        report = {name: studied(name, options) for name in options.trace or TRACES}
    except TraceError as error:
        print(f"estimate: {error}", file=sys.stderr)
        return 2
    holds = all(figures["holds"] for figures in report.values())
    print(json.dumps({"traces": report, "holds": holds}, indent=1) if options.json else table(report))
    return 0 if holds else 1


def studied(name: str, options: argparse.Namespace) -> dict[str, Any]:
    rows = read(name).rows
    study = gone_through(rows, options.allowed, options.single_tenant)
    worst, pooled_worst = least_covered(study.tenants), least_covered(study.pooled_tenants)
    figures, tenants = study.whole.figures(), of_tenants(study)
    covered = worst is None or worst[1].covered >= COVERED_RATIO_MIN * worst[1].requests
    return {
        "headworks": figures,
        "worst": None if worst is None else {"tenant": worst[0], **worst[1].figures()},
        "tenants_counted": len(tenants),
        "loosest": max(tenants.values(), key=lambda one: float(one["reserved_over_used"]), default=None),
        "tenants_within": sum(one["reserved_over_used"] <= RESERVED_OVER_USED_MAX for one in tenants.values()),
        "tenants_that_could_be": sum(one["least_over_used"] <= RESERVED_OVER_USED_MAX for one in tenants.values()),
        "tenants_that_could_be_by_size": sum(one["least_sized"] <= RESERVED_OVER_USED_MAX for one in tenants.values()),
        "tenants": tenants,
        "pooled": study.pooled.figures(),
        "pooled_worst_covered_ratio": None if pooled_worst is None else pooled_worst[1].figures()["covered_ratio"],
        "largest": study.largest.figures(),
        "arrival_us": round(median(study.arrivals_us), 2),
        "end_us": round(median(study.ends_us), 2),
        "holds": covered and figures["reserved_over_used"] <= RESERVED_OVER_USED_MAX,
    }


def of_tenants(study: Study) -> dict[str, dict[str, Any]]:
    """Each with requests enough, and the least that could have been reserved for it."""
    return {
        name: {
            "tenant": name,
            **sums.figures(),
            "least_over_used": round(least([used for _, used in study.written[name]]), 3),
            "least_sized": round(least_by_size(study.written[name]), 3),
        }
        for name, sums in study.tenants.items()
        if sums.requests >= REQUESTS_MIN
    }


def least(written: list[int]) -> float:
    """One length for all: the shortest that covers enough of them."""
    length = sorted(written)[ceil(COVERED_RATIO_MIN * len(written)) - 1]
    return length * len(written) / sum(written)


def least_by_size(written: list[tuple[int, int]]) -> float:
    """A bound from below on what any choice of one length a size reserves that covers enough of all.

    Covering c answers of a size of n costs n times the c-th shortest. By Lagrangian relaxation, for any price of an answer:
    what the wanted number of them costs at that price, and the cheapest choice less what its own are worth at it, together
    cost no more than the best choice that covers enough. Prices are tried in steps of 3 %.
    """
    sizes: dict[int, list[int]] = defaultdict(list)
    for size, used in written:
        sizes[size].append(used)
    choices = [[(0, 0), *((count, len(one) * length) for count, length in enumerate(sorted(one), 1))] for one in sizes.values()]
    wanted, best, price = ceil(COVERED_RATIO_MIN * len(written)), 0.0, 1.0
    while price < PRICE_MAX:
        bound = wanted * price + sum(min(cost - price * count for count, cost in one) for one in choices)
        best, price = max(best, bound), price * PRICE_STEP
    return best / sum(used for _, used in written)


def gone_through(rows: list[Row], allowed: int, single_tenant: bool) -> Study:
    """Arrivals, asks for more and ends in the order of time."""
    estimator, pool, nobody = Estimator(), a_pool(), TenantPolicy("nobody")
    pooled, study, running = Window(LENGTHS_KEPT), Study(), Running(estimator, pool.policy)
    largest = max(row.output_tokens for row in rows)
    for number, row in enumerate(rows):
        running.until(row.t_s, study, pooled)
        asked = request(number, row, allowed, "all" if single_tenant else row.client)
        used = min(row.output_tokens, allowed)
        work, took_us = timed(estimator.work, asked, pool, nobody)
        study.arrivals_us.append(took_us)
        by_pool = int(pooled.quantile(QUANTILE)) if len(pooled) >= LENGTHS_MIN else pool.policy.output_tokens_cold
        for sums in (study.pooled, study.pooled_tenants[row.client]):
            sums.add(by_pool, max(by_pool, used), used, 0)
        study.largest.add(largest, largest, used, 0)
        study.written[row.client].append(((BYTES_A_TOKEN * row.prompt_tokens).bit_length(), used))
        running.begin(Answer(row, asked, work, used, work.output_tokens))
    running.until(float("inf"), study, pooled)
    return study


@dataclass(slots=True, eq=False)
class Answer:
    """One that is being written."""

    row: Row
    asked: Request
    work: Work
    used: int
    reserved: int
    """So far."""
    asks: int = 0


class Running:
    """What is being written, and when each asks for more or ends; as `core/growth.py` does in a pool with room."""

    def __init__(self, estimator: Estimator, policy: PoolPolicy) -> None:
        self._estimator = estimator
        self._policy = policy
        self._due: list[tuple[float, int, Answer]] = []
        self._number = 0

    def begin(self, answer: Answer) -> None:
        most = answer.work.output_tokens_max
        asks_at = answer.reserved - self._policy.growth_ahead_tokens if answer.reserved < most else most
        self._number += 1
        at_s = answer.row.t_s + PREFILL_S + TOKEN_S * min(answer.used, asks_at)
        heappush(self._due, (at_s, self._number, answer))

    def until(self, now_s: float, study: Study, pooled: Window) -> None:
        while self._due and self._due[0][0] <= now_s:
            _, _, answer = heappop(self._due)
            asks_at = answer.reserved - self._policy.growth_ahead_tokens
            if answer.reserved < answer.work.output_tokens_max and answer.used >= asks_at:
                self._ask(answer, asks_at)
                continue
            usage = Usage(answer.row.prompt_tokens, 0, answer.used, 0.0, "stop", True)
            study.ends_us.append(timed(self._estimator.observe, answer.asked, usage, answer.work, QUANTILE)[1])
            pooled.add(answer.used)
            for sums in (study.whole, study.tenants[answer.row.client]):
                sums.add(answer.work.output_tokens, answer.reserved, answer.used, answer.asks)

    def _ask(self, answer: Answer, made: int) -> None:
        self._estimator.reached(answer.asked, made, not answer.asks, QUANTILE)
        longer = self._estimator.longer(answer.asked, answer.reserved)
        wanted = 0 if longer is None else longer + self._policy.growth_ahead_tokens + SLACK_TOKENS
        answer.reserved = min(answer.work.output_tokens_max, max(answer.reserved + self._policy.growth_step_tokens, wanted))
        answer.asks += 1
        self.begin(answer)


def a_pool() -> Pool:
    pool = Pool(PoolPolicy("p", ("m",), (ReplicaPolicy("p/0"),), growth=True, quantile=QUANTILE), 1.0, {})
    pool.replicas["p/0"].capacity = Capacity("p/0", "fake", "1", "a", CONTEXT_TOKENS, 10_000_000, 1, None, ("E1", "E3a"))
    pool.learn_capacity()
    return pool


def request(number: int, row: Row, allowed: int, tenant: str) -> Request:
    return Request(
        id=f"r{number}",
        key=RequestKey(tenant, f"k{number}"),
        key_given=False,
        fingerprint="",
        client="c",
        service_class="interactive",
        model="m",
        pool="p",
        prompt_bytes=BYTES_A_TOKEN * row.prompt_tokens,
        prompt_tokens=None,
        output_tokens_max=allowed,
        samples=1,
        stream=True,
        prefix=(),
        session=None,
        retry_count=0,
        arrived_s=row.t_s,
        start_by_s=float("inf"),
        finish_by_s=float("inf"),
    )


def timed(what: Any, *arguments: Any) -> tuple[Any, float]:
    begun_s = time.perf_counter()
    made = what(*arguments)
    return made, (time.perf_counter() - begun_s) * 1e6


def least_covered(tenants: dict[str, Sums]) -> tuple[str, Sums] | None:
    counted = [(name, sums) for name, sums in tenants.items() if sums.requests >= REQUESTS_MIN]
    return min(counted, key=lambda one: one[1].covered / one[1].requests, default=None)


def table(report: dict[str, Any]) -> str:
    lines = []
    for name, figures in report.items():
        lines.append(f"{name}: {'holds' if figures['holds'] else 'DOES NOT HOLD'}")
        for policy in ("headworks", "worst", "loosest", "pooled", "largest"):
            lines.append(f"  {policy:10} " + "  ".join(f"{key} {value}" for key, value in (figures[policy] or {}).items()))
        counted, within = figures["tenants_counted"], figures["tenants_within"]
        could, by_size = figures["tenants_that_could_be"], figures["tenants_that_could_be_by_size"]
        lines.append(
            f"  {RESERVED_OVER_USED_MAX} kept by {within} tenants of {counted}; by {could} at best with one length each, "
            f"by {by_size} with one a size"
        )
        lines.append(f"  pooled, worst tenant: covered {figures['pooled_worst_covered_ratio']}")
        lines.append(f"  an arrival {figures['arrival_us']} µs, an end {figures['end_us']} µs")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
