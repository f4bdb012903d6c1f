"""How soon a real engine stops working for a client that left, and how soon what it held is free again.

Part one, one request at a time in an otherwise idle engine: from the moment a client closes its socket to the end of the
first look at the engine's own gauges (running + waiting, read from the engine, not from headworks) that no longer counts
it. A look begins 10 ms after the one before has ended; one takes 5 to 15 ms and is part of the figure. Four moments:

- *queued*: the only place in the pool is taken by a long stream, so this one waits in headworks. Here the figure is when
  headworks' own snapshot no longer holds it, and nothing of it may have reached the engine;
- *before first token*: in the second step of a long prompt. No engine stops in the middle of a step, and the gauges show a
  request only after its first, so `--prompt-tokens` has to be more than the engine takes in one step (2,048), and what is
  over decides most of the figure;
- *mid-stream*: after a few events;
- *non-streaming*: while an answer in one piece is being made.

Beside it stand the same trials straight to the engine, which is what the engine itself needs, and, from the decision
log, how long each reservation stayed charged after the client had left, with the evidence that ended it.

Part two, under three times the engine's saturation (`--rate`): two thirds of the calls are recorded conversations whose
clients wait 2 s for a first token, one third are clients that leave at a random moment within 2 s. The figure is
`unconfirmed_s` of the decision log's outcomes: from the wish to cancel to the clock proof (E3a). Four steps of the engine and
two looks at it are in it, so what the engine does in one step decides: give it `--max-num-batched-tokens`, as who serves chat
does.

    python bench/disconnects.py --engine http://127.0.0.1:8000 --rate 33

Targets: every moment p99 <= 200 ms; E3a under load p99 <= 250 ms. Use an engine nobody else uses: a trial in which its
gauges show a stranger is made again, and the count of those is printed. Prints JSON with --json, else the table. Exit 1
where a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import httpx
import uvloop

from disconnects_client import Caller, Leaver, Occupier
from disconnects_trials import MOMENTS, QUEUED, Scene, spread
from headworks.logs import reading
from headworks.tools.load import Plan, base_of, run
from headworks.tools.load_engine import Words, calibrate, target
from servers import free_port, process

GONE_P99_S_MAX, RELEASED_P99_S_MAX = 0.2, 0.25
GATEWAY_START_S_MAX = 20.0
LOAD_PATIENCE_S, LEAVES_WITHIN_S, LEAVERS_RATIO = 2.0, 2.0, 1 / 3
LOG_FLUSH_S = 1.5
PERCENTILES = ("p50_s", "p95_s", "p99_s", "max_s")
SAY_EVERY_TRIALS = 10
WARM_UP_S = 10.0
"""Of the same load before the load that counts: an engine that has just started takes up to 0.7 s for a step of a shape it
meets for the first time, and four steps have to pass."""
PROVED_S = 7.0
"""After the last trial: what an engine that has nothing to do cannot prove by its clock takes a lease of 5 s to count out."""
KEY = f"hw-bench-{secrets.token_hex(16)}"


class Bench:
    """Both parts, in order."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._engine = base_of(options.engine)
        self._random = Random(options.seed)
        self._times_s: dict[tuple[str, str], list[float]] = {}
        self._reached = 0
        self._spoilt: Counter[str] = Counter()
        self._outcomes: list[dict[str, Any]] = []
        self._load_outcomes: list[dict[str, Any]] = []

    async def measure(self) -> dict[str, Any]:
        caller = await self._prepared()
        if "moments" in self._options.parts:
            with gateway(self._engine, caller.served.model, SOME_PLACES, self._outcomes) as (url, admin):
                await self._moments(caller, url, admin)
            with gateway(self._engine, caller.served.model, ONE_PLACE, self._outcomes) as (url, admin):
                await self._queued(caller, url, admin)
        if "load" in self._options.parts:
            with gateway(self._engine, caller.served.model, AS_IN_OVERLOAD, []) as (url, _):
                await self._under_load(caller, url, WARM_UP_S)
            with gateway(self._engine, caller.served.model, AS_IN_OVERLOAD, self._load_outcomes) as (url, _):
                await self._under_load(caller, url, self._options.seconds)
        return self._report()

    async def _prepared(self) -> Caller:
        async with httpx.AsyncClient(base_url=self._engine, timeout=30.0) as client:
            served = await target(client, None, None)
            words = Words(self._options.seed, f"{time.time_ns() // 1_000_000 % 10**9:09d}")
            await calibrate(client, words, "/v1/chat/completions", {"model": served.model}, chat=True)
        return Caller(served, words, KEY, self._options.prompt_tokens)

    async def _moments(self, caller: Caller, url: str, admin: str) -> None:
        """The moments and the two ways take turns, so that what else the machine does falls on all of them."""
        async with (
            contextlib.aclosing(Scene(self._engine, url, admin, caller, self._random)) as through,
            contextlib.aclosing(Scene(self._engine, self._engine, "", caller, self._random)) as direct,
        ):
            for number in range(self._options.trials):
                for moment in MOMENTS:
                    self._enter("headworks", moment, await through.trial(moment))
                    if number % 2 == 0:
                        self._enter("direct", moment, await direct.trial(moment))
                if (number + 1) % SAY_EVERY_TRIALS == 0:
                    say(f"trial {number + 1} of {self._options.trials} in {', '.join(MOMENTS)}")
            self._spoilt.update(headworks=through.spoilt, direct=direct.spoilt)
        await asyncio.sleep(PROVED_S)

    async def _queued(self, caller: Caller, url: str, admin: str) -> None:
        async with (
            contextlib.aclosing(Scene(self._engine, url, admin, caller, self._random)) as through,
            contextlib.aclosing(Occupier(caller, url)) as occupier,
        ):
            for _ in range(self._options.trials):
                took_s, reached = await through.queued_trial(occupier)
                self._enter("headworks", QUEUED, took_s)
                self._reached += reached
            self._spoilt.update(headworks=through.spoilt)

    def _enter(self, way: str, moment: str, took_s: float) -> None:
        self._times_s.setdefault((way, moment), []).append(took_s)

    async def _under_load(self, caller: Caller, url: str, seconds: float) -> None:
        rate_per_s = self._options.rate
        plan = Plan(
            url=url,
            rate_per_s=rate_per_s * (1 - LEAVERS_RATIO),
            seconds=seconds,
            patience_s=LOAD_PATIENCE_S,
            seed=self._options.seed,
            headers=(("Authorization", f"Bearer {KEY}"),),
        )
        leaver = Leaver(caller, url, self._random, LEAVES_WITHIN_S)
        await asyncio.gather(run(plan), leaver.run(rate_per_s * LEAVERS_RATIO, seconds))

    def _report(self) -> dict[str, Any]:
        moments = [self._moment(moment) for moment in (QUEUED, *MOMENTS)] if self._times_s else []
        under_load = self._load() if "load" in self._options.parts else None
        holds = {f"{one['moment']} p99 <= {GONE_P99_S_MAX:g} s": met(one["headworks"], GONE_P99_S_MAX) for one in moments}
        if moments:
            holds["nothing queued reached the engine"] = self._reached == 0 and not self._sent_while_queued()
        if under_load:
            name = f"released by E3a under load p99 <= {RELEASED_P99_S_MAX:g} s"
            holds[name] = met(under_load["unconfirmed_by_evidence"].get("E3a"), RELEASED_P99_S_MAX)
        return {
            "measured": time.strftime("%Y-%m-%d", time.gmtime()),
            "cores": os.cpu_count(),
            "load_average": round(os.getloadavg()[0], 2),
            "trials": self._options.trials,
            "spoilt_trials": dict(self._spoilt),
            "moments": moments,
            "under_load": under_load,
            "holds": holds,
        }

    def _moment(self, moment: str) -> dict[str, Any]:
        mine = [record for record in self._outcomes if record["key"][1].startswith(f"{moment}-")]
        return {
            "moment": moment,
            "headworks": asdict(spread(self._times_s.get(("headworks", moment), []))),
            "direct": asdict(spread(self._times_s.get(("direct", moment), []))),
            "unconfirmed_by_evidence": by_evidence(mine),
        }

    def _sent_while_queued(self) -> int:
        queued = [record for record in self._outcomes if record["key"][1].startswith(f"{QUEUED}-")]
        return sum(record["sent_s"] is not None for record in queued)

    def _load(self) -> dict[str, Any]:
        return {
            "offered_per_s": self._options.rate,
            "seconds": self._options.seconds,
            "outcomes": dict(Counter(record["outcome"] for record in self._load_outcomes)),
            "unconfirmed_by_evidence": by_evidence(self._load_outcomes),
        }


def met(figures: dict[str, Any] | None, limit_s: float) -> bool:
    return figures is not None and figures["p99_s"] is not None and figures["p99_s"] <= limit_s


def by_evidence(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """How long reservations of gone clients stayed charged, by what ended them."""
    times_s: dict[str, list[float]] = {}
    for record in outcomes:
        if record["unconfirmed_s"] is not None:
            times_s.setdefault(record["evidence"], []).append(record["unconfirmed_s"])
    return {level: asdict(spread(values)) for level, values in sorted(times_s.items())}


@contextlib.contextmanager
def gateway(engine: str, model: str, policy: dict[str, str], outcomes: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """`headworks serve` in front of the engine, its two URLs; its log's outcomes are read once it has ended."""
    port, admin = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        config, text = Path(folder) / "headworks.yaml", CONFIG
        places = {"{engine}": engine, "{model}": model, "{port}": str(port), "{admin}": str(admin), "{folder}": folder}
        for name, value in (policy | places).items():
            text = text.replace(name, value)
        config.write_text(text)
        command = [str(Path(sys.executable).with_name("headworks")), "serve", "--config", str(config)]
        ready = f"http://127.0.0.1:{admin}/readyz"
        with process(command, ready, GATEWAY_START_S_MAX, {"HEADWORKS_API_KEY": KEY}):
            yield f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}"
            time.sleep(LOG_FLUSH_S)
        for path in sorted(Path(folder, "decisions").glob("*.jsonl")):
            outcomes.extend(line["record"] for line in reading.lines(path) if line["kind"] == "outcome")


CONFIG = """\
server: {listen: "127.0.0.1:{port}", admin: "127.0.0.1:{admin}"}
ledger: {url: "memory:"}
log: {decisions: "{folder}/decisions/"}
usage: {path: "{folder}/usage/"}
tenants:
  bench: {keys: ["env:HEADWORKS_API_KEY"], class: {class}}
pools:
  engine:
    models: ["{model}"]
    replicas: [{url: "{engine}", engine: vllm, exclusive: true}]
    active_requests_max: {places}
    discipline: {discipline}
"""
SOME_PLACES = {"{class}": "batch", "{places}": "12", "{discipline}": "fifo"}
"""One request runs at a time; the others are places of those that still wait for their proof."""
ONE_PLACE = {"{class}": "batch", "{places}": "1", "{discipline}": "fifo"}
"""A class that promises no first token, so that a queued trial waits instead of being refused."""
AS_IN_OVERLOAD = {"{class}": "interactive", "{places}": "16", "{discipline}": "predictive_ttft"}


def page(report: dict[str, Any]) -> str:
    """The tables, as text."""
    lines = [f"{report['measured']}, {report['cores']} cores, load average {report['load_average']}", ""]
    if report["moments"]:
        lines.append(
            "client gone → no longer counted (queued: no longer in the snapshot), ms; spoilt and made again: "
            f"{report['spoilt_trials']}"
        )
        lines.append(row("moment", "way", "trials", "p50", "p95", "p99", "max"))
        for one in report["moments"]:
            for way in ("headworks", "direct"):
                if one[way]["count"]:
                    lines.append(figures_row(one["moment"], way, one[way]))
        lines += ["", "client gone → reservation released, ms", row("moment", "evidence", "count", "p50", "p95", "p99", "max")]
        for one in report["moments"]:
            for level, figures in one["unconfirmed_by_evidence"].items():
                lines.append(figures_row(one["moment"], level, figures))
    under_load = report["under_load"]
    if under_load:
        lines += [
            "",
            f"at {under_load['offered_per_s']:g} requests/s for {under_load['seconds']:g} s: {under_load['outcomes']}",
        ]
        lines.append(row("released", "evidence", "count", "p50", "p95", "p99", "max"))
        lines += [figures_row("under load", level, one) for level, one in under_load["unconfirmed_by_evidence"].items()]
    lines += ["", *(f"{'holds ' if held else 'MISSED'}  {claim}" for claim, held in report["holds"].items())]
    return "\n".join(lines)


def figures_row(first: str, second: str, figures: dict[str, Any]) -> str:
    return row(first, second, str(figures["count"]), *(f"{1e3 * figures[name]:.0f}" for name in PERCENTILES))


def row(*cells: str) -> str:
    return f"{cells[0]:<20}{cells[1]:<12}" + "".join(f"{cell:>8}" for cell in cells[2:])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="how soon an engine stops for a client that left, and what it held is free")
    parser.add_argument("--engine", required=True, help="URL of a running vLLM nobody else uses")
    parser.add_argument("--trials", type=int, default=200, help="in each moment; straight to the engine, half as many")
    parser.add_argument("--rate", type=float, default=33.0, help="requests a second under load: 3 x the engine's saturation")
    parser.add_argument("--seconds", type=float, default=90.0, help="of load")
    parser.add_argument("--parts", default="moments,load", help="which of moments,load")
    parser.add_argument("--prompt-tokens", type=int, default=3_000, help="of the prompt that is left before its first token")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="20 trials, 20 s of load")
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    if options.quick:
        options.trials, options.seconds = 20, 20.0
    return options


def main() -> int:
    options = parsed()
    report = uvloop.run(Bench(options).measure())
    print(json.dumps(report, indent=1) if options.json else page(report))
    return 0 if all(report["holds"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
