"""How the work of one decision, and its memory, grow with all there can be many of: gate and ledger, without sockets.

One kind at a time is made ten times more and the others stay (`growth_world.Size`): requests that wait, tenants, live
reservations, replicas, gateways over one ledger. A *decision* is that of `decide.py`: an arrival, and an end that lets another
begin, effects and ledger included. Each row is a process of its own, so that its memory is its own. Of each:

    steps        of the interpreter, a decision, the median: exact, whatever else the machine does (plain Python only)
    median_us    CPU of a decision; p99_us of all, p99_without_collector_us of those in which the collector did not run
    tick_us      CPU of the longest of the ticks of 11 s, ten a second; look_us of a look at one replica
    bytes_each   resident memory ÷ how many there are of the kind, beyond the row before
    pause_ms     the longest single run of the collector, from the first arrival on, set as `headworks serve` sets it

Claims. From a row to the next, ten times as many (of gateways four times), steps grow by at most the factor of their kind: 1.5
for what waits, tenants, reservations and gateways, which is room for a logarithm; for replicas 10, since each place is looked
at. Time grows by no more than twice that, for cold caches and noise. Where there are several gateways the ledger refuses
some of what is asked: at most six asks a decision (`asks`), with those that keep marks fresh; and no place stays empty while
somebody waits (`taken_ratio`: the mean over the decisions). No run of the collector is longer than 10 ms, no tick longer than
25 ms with up to 10,000 of a kind.

    python bench/growth.py --json [--quick] [--only waiting,tenants]

Exit 1 where a claim is missed. `--quick` leaves out the largest row of each kind. All of it takes four minutes, one kind one.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from growth_world import Fleet, Size, Sized, Steps
from headworks import IS_COMPILED, RUNS_AS
from headworks.gateway.collector import collect_rarely

ROWS = {
    "waiting": (10, 100, 1_000, 10_000, 100_000),
    "tenants": (1, 10, 100, 1_000, 10_000),
    "reservations": (10, 100, 1_000, 10_000, 100_000),
    "replicas": (1, 10, 100, 1_000),
    "gateways": (1, 4, 16),
}
FACTORS = {"waiting": 1.5, "tenants": 1.5, "reservations": 1.5, "replicas": 10.0, "gateways": 1.5}
"""What steps may grow by from a row to the next."""
NOISE = 2.0
PAUSE_MS_MAX = 10.0
TAKEN_RATIO_MIN = 0.98
ASKS_MAX = 6.0
WAITING_FOR_TENANTS, WAITING_FOR_GATEWAYS = 1_000, 1_000
DECISIONS, DECISIONS_QUICK, TRACED = 1_000, 300, 25
ROW_S_MAX = 300.0
TICKS = 110
TICK_MS_MAX, TICK_ROW_MAX = 25.0, 10_000


def main() -> int:
    options = parsed()
    if options.row:
        kind, many = options.row.split("=")
        print(json.dumps(row(kind, int(many), options.quick)))
        return 0
    report = measured(options)
    print(json.dumps(report, indent=1) if options.json else table(report))
    return 0 if all(report["holds"].values()) else 1


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How work and memory grow with everything there can be many of")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="without the largest row of each kind, and fewer decisions")
    parser.add_argument("--only", default=",".join(ROWS), help="these kinds, comma between")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = sorted(set(options.only.split(",")) - set(ROWS))
    if unknown:
        parser.error(f"not known: {', '.join(unknown)}; known: {', '.join(ROWS)}")
    return options


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Every row, each by a process of its own."""
    kinds: dict[str, dict[int, dict[str, float]]] = {}
    for kind in options.only.split(","):
        rows = ROWS[kind][:-1] if options.quick else ROWS[kind]
        found = {many: told(kind, many, options.quick) for many in rows}
        for before, many in pairwise(rows):
            more_bytes = found[many]["rss_bytes"] - found[before]["rss_bytes"]
            found[many]["bytes_each"] = round(more_bytes / (many - before))
        kinds[kind] = found
    return {
        "measured": time.strftime("%Y-%m-%d", time.gmtime()),
        "runs_as": RUNS_AS,
        **kinds,
        "holds": {claim: held for kind, found in kinds.items() for claim, held in judged(kind, found).items()},
    }


def told(kind: str, many: int, is_quick: bool) -> dict[str, float]:
    words = [sys.executable, __file__, "--row", f"{kind}={many}", *(["--quick"] if is_quick else [])]
    ran = subprocess.run(words, check=True, capture_output=True, text=True, timeout=ROW_S_MAX)
    figures: dict[str, float] = json.loads(ran.stdout)
    return figures


def row(kind: str, many: int, is_quick: bool) -> dict[str, float]:
    """One row, in this process."""
    collect_rarely()
    pauses_ms = watched_collector()
    size = sized(kind, many)
    before_bytes = rss_bytes()
    world = Fleet(size) if kind == "gateways" else Sized(size)
    decisions = DECISIONS_QUICK if is_quick else DECISIONS
    for _ in range(max(decisions, size.reservations if kind == "reservations" and many <= 10_000 else 0) // 4):
        world.decide_us()
    held_bytes = rss_bytes() - before_bytes
    costs_us, quiet_us = [], []
    for _ in range(decisions):
        runs = len(pauses_ms)
        costs_us.append(world.decide_us())
        if len(pauses_ms) == runs:
            quiet_us.append(costs_us[-1])
    figures = {
        "median_us": round(median(costs_us), 1),
        "p99_us": round(quantiles(costs_us, n=100)[98], 1),
        "p99_without_collector_us": round(quantiles(quiet_us, n=100)[98], 1),
        "pause_ms": round(max(pauses_ms, default=0.0), 2),
        "collections": len(pauses_ms),
        "rss_bytes": held_bytes,
    }
    if isinstance(world, Fleet):
        figures["taken_ratio"] = round(world.taken_ratio(), 3)
        figures["asks"] = round(world.asks_each(), 2)
    else:
        figures["tick_us"] = round(max(world.tick_us() for _ in range(TICKS)), 1)
        figures["look_us"] = round(median(world.look_us() for _ in range(20)), 1)
    if not IS_COMPILED:
        figures["steps"] = median(Steps().of(world.decide_us) for _ in range(TRACED))
    assert world.whole(), "what was measured was not the ordinary course"
    return figures


def sized(kind: str, many: int) -> Size:
    """One kind as many as stated, the others as they stand; what waits is enough for the kind to be felt."""
    size = Size(**{kind: many})
    if kind == "tenants":
        size.waiting = WAITING_FOR_TENANTS
    elif kind == "gateways":
        size.waiting = WAITING_FOR_GATEWAYS
    elif kind == "replicas":
        size.waiting, size.reservations = 0, max(64, many)
    return size


def watched_collector() -> list[float]:
    """How long each run of the collector takes from now on, in ms."""
    took_ms: list[float] = []
    began_ns = 0

    def seen(phase: str, about: dict[str, int]) -> None:
        nonlocal began_ns
        if phase == "start":
            began_ns = time.process_time_ns()
        else:
            took_ms.append((time.process_time_ns() - began_ns) / 1e6)

    gc.callbacks.append(seen)
    return took_ms


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def judged(kind: str, rows: dict[int, dict[str, float]]) -> dict[str, bool]:
    """No row is a cliff beside the one before it, no tick is long, and the collector is not felt."""
    claims = {}
    for before, after in pairwise(rows):
        for what, bar in (("steps", FACTORS[kind]), ("median_us", FACTORS[kind] * NOISE)):
            if what in rows[after]:
                grown = rows[after][what] / rows[before][what]
                claims[f"{kind}, {before:,} to {after:,}: {what} grow by {grown:.2f}, <= {bar:g}"] = grown <= bar
    taken_ratio = min((one["taken_ratio"] for one in rows.values() if "taken_ratio" in one), default=None)
    if taken_ratio is not None:
        claims[f"{kind}: of the places {taken_ratio:.3f} are taken, >= {TAKEN_RATIO_MIN:g}"] = taken_ratio >= TAKEN_RATIO_MIN
    asks = max((one["asks"] for one in rows.values() if "asks" in one), default=None)
    if asks is not None:
        claims[f"{kind}: {asks:g} asks a grant, <= {ASKS_MAX:g}"] = asks <= ASKS_MAX
    pause_ms = max(one["pause_ms"] for one in rows.values())
    claims[f"{kind}: the collector runs for {pause_ms:g} ms at most, <= {PAUSE_MS_MAX:g}"] = pause_ms <= PAUSE_MS_MAX
    ticks_us = [one["tick_us"] for many, one in rows.items() if many <= TICK_ROW_MAX and "tick_us" in one]
    if ticks_us:
        tick_ms = max(ticks_us) / 1000
        claims[f"{kind}: a tick takes {tick_ms:.1f} ms at most, <= {TICK_MS_MAX:g}"] = tick_ms <= TICK_MS_MAX
    return claims


COLUMNS = ("steps", "median_us", "p99_us", "p99_without_collector_us", "tick_us", "look_us", "bytes_each", "pause_ms")


def table(report: dict[str, Any]) -> str:
    lines = [f"{report['runs_as']}, {os.cpu_count()} cores", "", "| | " + " | ".join(COLUMNS) + " |"]
    lines.append("|---|" + "--:|" * len(COLUMNS))
    for kind in (kind for kind in ROWS if kind in report):
        for many, figures in report[kind].items():
            cells = (f"{figures[column]:,.5g}" if column in figures else "–" for column in COLUMNS)
            lines.append(f"| {int(many):,} {kind} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"- {'holds' if held else 'MISSED'}: {claim}" for claim, held in report["holds"].items())])


if __name__ == "__main__":
    sys.exit(main())
