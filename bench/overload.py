"""What happens to a real engine under more load than it can carry: alone, with its own valve, and behind headworks.

headworks may have one request more in the engine than that runs at once (its 16 places), so that a place that falls free
is taken in the next step and not a round trip later.

Three ways to the same vLLM, the same recorded conversation lengths, Poisson arrivals at 1, 2 and 3 times its saturation,
clients that leave after 2 s without a first token, a first-token SLO of 1 s, no retries:

- *direct*: straight to the engine;
- *valve*: the engine started with --max-num-queued-reqs at the best of a few values (tried at 3 times saturation);
- *headworks*: through `headworks serve` with one tenant, one class and its key.

*Saturation* is the largest Poisson rate, to half a request a second, at which at least 99 % of calls over 20 s get a
whole answer with its first token within the SLO, measured straight to the engine before everything else. Each figure is
the median of the rounds; the ways take turns within a round. Definitions of goodput and waste: tools/load_figures.py.

    python bench/overload.py --engine-command 'run-vllm {port} --max-num-seqs 16' --out docs

The engine's command is run as given, `{port}` replaced, the valve's flag appended; HEADWORKS_BENCH_ENGINE stands in for
the option. `--engine URL` takes a running engine instead and leaves the valve out. Prints JSON with --json, else the
table; writes overload.md, overload.png and overload.json into --out. Exit 1 where a figure misses its target.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import secrets
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

import servers
from headworks.tools.load import Plan, Run, run
from headworks.tools.load_figures import Figures, figures
from overload_page import page, picture
from real_engine import saturation_per_s, say, told

PATIENCE_S, SLO_S = 2.0, 1.0
GOOD_RATIO_AT_SATURATION = 0.99
SATURATION_STEP_PER_S = 0.5
VALVES = (16, 18, 22, 32)
SEND_LAG_S_MAX, RETRIES_WHEN_LATE = 0.1, 2
"""A run in which the load driver itself was later than this says nothing about the engine and is made again."""
WAYS = ("direct", "valve", "headworks")
REPOSITORY = Path(__file__).resolve().parent.parent


def main() -> int:
    options = parsed()
    bench = Bench(options)
    bench.measure()
    return told(bench.report(), "overload", options.out, page, picture, options.json)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="overload of a real engine, three ways")
    parser.add_argument("--engine-command", default=os.environ.get("HEADWORKS_BENCH_ENGINE"))
    parser.add_argument("--engine", help="URL of a running engine; leaves the valve out")
    parser.add_argument("--ways", default=",".join(WAYS), help="which of direct,valve,headworks")
    parser.add_argument("--saturation", type=float, help="requests a second, instead of measuring it")
    parser.add_argument("--valve", type=int, help="value of --max-num-queued-reqs, instead of trying a few")
    parser.add_argument("--multiples", default="1,2,3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--config", type=Path, help="headworks.yaml with {engine}, {port}, {admin}; default: built in")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "bench" / ".build" / "overload")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one round, 12 s, only the largest multiple")
    options = parser.parse_args()
    if not options.engine_command and not options.engine:
        parser.error("give --engine-command, HEADWORKS_BENCH_ENGINE or --engine")
    options.ways = tuple(way for way in options.ways.split(",") if not (way == "valve" and options.engine))
    options.multiples = tuple(float(one) for one in options.multiples.split(","))
    if options.quick:
        options.rounds, options.seconds, options.multiples = 1, 12.0, (max(options.multiples),)
    return options


class Bench:
    """The whole experiment, in the order of `measure`."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._runs: list[dict[str, Any]] = []
        self._tries: list[dict[str, Any]] = []
        self.saturation_per_s = options.saturation or 0.0
        self.valve = options.valve or 0

    def measure(self) -> None:
        if not self.saturation_per_s:
            with self._engine() as engine:
                self.saturation_per_s = self._saturation(engine)
        if "valve" in self._options.ways and not self.valve:
            self.valve = self._best_valve()
        for number in range(1, self._options.rounds + 1):
            self._round(number)

    def _saturation(self, engine: str) -> float:
        self._offer(engine, engine, 2.0, 5.0, seed=7)  # the first calls after a start are slower
        return saturation_per_s(partial(self._carries, engine), 1.0, SATURATION_STEP_PER_S)

    def _carries(self, engine: str, rate_per_s: float) -> bool:
        made = self._offer(engine, engine, rate_per_s, 10.0 if self._options.quick else 20.0, seed=11)
        self._tries.append({"saturation_try_per_s": rate_per_s, "good_ratio": made.goodput_ratio})
        say(f"{rate_per_s:.2f}/s: {made.goodput_ratio:.1%} good")
        return made.goodput_ratio >= GOOD_RATIO_AT_SATURATION

    def _best_valve(self) -> int:
        best, best_per_s = 0, -1.0
        for valve in VALVES:
            with self._engine(valve) as engine:
                made = self._offer(engine, engine, 3 * self.saturation_per_s, 15.0, seed=13)
            say(f"valve {valve}: {made.goodput_per_s:.2f}/s good, first token p95 {made.ttft.p95_s}")
            self._tries.append({"valve": valve, "goodput_per_s": made.goodput_per_s, "ttft_p95_s": made.ttft.p95_s})
            if made.goodput_per_s > best_per_s:
                best, best_per_s = valve, made.goodput_per_s
        return best

    def _round(self, number: int) -> None:
        """One engine for direct and headworks in turn, a second one with the valve."""
        ways = self._options.ways
        if "direct" in ways or "headworks" in ways:
            with self._engine() as engine, self._gateway(engine, "headworks" in ways) as gateway:
                for multiple in self._options.multiples:
                    if "direct" in ways:
                        self._one("direct", number, multiple, engine, engine)
                    if "headworks" in ways:
                        self._one("headworks", number, multiple, gateway, engine)
        if "valve" in ways:
            with self._engine(self.valve) as engine:
                for multiple in self._options.multiples:
                    self._one("valve", number, multiple, engine, engine)

    def _one(self, way: str, number: int, multiple: float, url: str, engine: str) -> None:
        rate_per_s = multiple * self.saturation_per_s
        for _ in range(1 + RETRIES_WHEN_LATE):
            made = self._offer(url, engine, rate_per_s, self._options.seconds, seed=100 * number + round(10 * multiple))
            if made.send_lag_p99_s <= SEND_LAG_S_MAX:
                break
            say(f"{way} {multiple:g}x: the driver itself was {made.send_lag_p99_s:.2f} s late; the machine is busy")
        say(f"round {number} {way} {multiple:g}x: {made.goodput_per_s:.2f}/s good, {made.ends}")
        self._runs.append({"way": way, "round": number, "multiple": multiple, "figures": dataclasses.asdict(made)})

    def _offer(self, url: str, engine: str, rate_per_s: float, seconds: float, seed: int) -> Figures:
        plan = Plan(
            url=url,
            rate_per_s=rate_per_s,
            seconds=seconds,
            patience_s=PATIENCE_S,
            ttft_slo_s=SLO_S,
            seed=seed,
            engine_metrics=engine,
            headers=(("Authorization", f"Bearer {KEY}"),) if url != engine else (),
        )
        seen: Run = uvloop.run(run(plan))
        return figures(seen)

    @contextlib.contextmanager
    def _engine(self, valve: int = 0) -> Iterator[str]:
        if self._options.engine:
            yield self._options.engine.rstrip("/")
            return
        flags = ["--max-num-queued-reqs", str(valve)] if valve else []
        with servers.engine(self._options.engine_command, *flags) as engine:
            yield engine.url

    @contextlib.contextmanager
    def _gateway(self, engine: str, wanted: bool) -> Iterator[str]:
        if not wanted:
            yield ""
            return
        config = self._options.config.read_text() if self._options.config else CONFIG
        with servers.gateway(config, engine, {"HEADWORKS_API_KEY": KEY}) as gateway:
            yield gateway

    def report(self) -> dict[str, Any]:
        medians = [
            middle(
                way,
                multiple,
                [entry["figures"] for entry in self._runs if (entry["way"], entry["multiple"]) == (way, multiple)],
            )
            for multiple in self._options.multiples
            for way in self._options.ways
        ]
        return {
            "measured": time.strftime("%Y-%m-%d", time.gmtime()),
            "cores": os.cpu_count(),
            "patience_s": PATIENCE_S,
            "ttft_slo_s": SLO_S,
            "saturation_per_s": self.saturation_per_s,
            "valve": self.valve,
            "rounds": self._options.rounds,
            "seconds": self._options.seconds,
            "medians": medians,
            "holds": targets(medians, self.saturation_per_s, max(self._options.multiples)),
            "tries": self._tries,
            "runs": self._runs,
        }


KEY = f"hw-bench-{secrets.token_hex(16)}"

CONFIG = """\
server: {listen: "127.0.0.1:{port}", admin: "127.0.0.1:{admin}"}
ledger: {url: "memory:"}
log: {decisions: "{folder}/decisions/"}
usage: {path: "{folder}/usage/"}
classes:
  interactive:
    slo: {ttft_s: 1.0, tpot_s: 1.0, e2e_s: 60}
    queue: {wait_s_max: 1.0}
tenants:
  bench: {keys: ["env:HEADWORKS_API_KEY"], class: interactive}
pools:
  engine:
    models: [tiny]
    replicas: [{url: "{engine}", engine: vllm, exclusive: true}]
    active_requests_max: 17
    discipline: predictive_ttft
"""


def middle(way: str, multiple: float, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The median over the rounds of every figure the table shows; None where a round had none."""

    def of(*path: str) -> float | None:
        values: list[float] = []
        for entry in runs:
            value: Any = entry
            for name in path:
                value = value[name] if value is not None else None
            if value is not None:
                values.append(value)
        return median(values) if values else None

    return {
        "way": way,
        "multiple": multiple,
        "offered_per_s": of("rate_per_s"),
        "goodput_per_s": of("goodput_per_s"),
        "second_half_goodput_per_s": of("second_half", "goodput_per_s"),
        "second_half_slo_met_ratio": of("second_half", "slo_met_ratio"),
        "ttft_p50_s": of("ttft", "p50_s"),
        "ttft_p95_s": of("ttft", "p95_s"),
        "ttft_p99_s": of("ttft", "p99_s"),
        "refusal_p99_s": of("refusal", "p99_s"),
        "wasted_ratio": of("wasted_ratio"),
        "wasted_work_ratio": of("wasted_work_ratio"),
        "waiting_requests_mean": of("engine", "waiting_requests_mean"),
    }


def targets(medians: list[dict[str, Any]], saturation_per_s: float, multiple: float) -> dict[str, bool]:
    """What must hold for headworks at the largest multiple. Empty where headworks was not measured."""
    at = {row["way"]: row for row in medians if row["multiple"] == multiple}
    ours = at.get("headworks")
    if ours is None:
        return {}
    holds = {
        "goodput >= 0.9 x saturation": ours["goodput_per_s"] >= 0.9 * saturation_per_s,
        "first token p99 <= 1.0 s": (ours["ttft_p99_s"] or 9e9) <= SLO_S,
        "wasted <= 2 %": (ours["wasted_ratio"] if ours["wasted_ratio"] is not None else 1.0) <= 0.02,
        "engine waiting <= 2 on average": ours["waiting_requests_mean"] <= 2.0,
        "refusals answered p99 <= 20 ms": (ours["refusal_p99_s"] or 0.0) <= 0.020,
    }
    if "valve" in at:
        holds["goodput >= the valve's"] = ours["goodput_per_s"] >= at["valve"]["goodput_per_s"]
    return holds


if __name__ == "__main__":
    sys.exit(main())
