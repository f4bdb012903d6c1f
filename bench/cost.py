"""What headworks costs: CPU microseconds a request and a streamed chunk, beside nginx in the same run.

Both proxies stand in front of a mock of their own and take turns (`generator.py`, `proxies.py`: what `peers.py` compares with
more of them is started by the same functions); each figure is the median over the rounds. headworks runs as it would in
production (`peers/headworks.yaml`). Cases:

- *request*: 1 KB prompts, 64 connections, one request at a time on each;
- *chunk_500*, *chunk_50*: so many streams with a chunk every 20 ms.

`stages` are microbenchmarks of the same classes, one by one, in this process. Targets: 2.2 times nginx a request, 1.6
times a chunk at 500 streams. Exit 1 where a target is missed, 2 where the run could not be made.

    python bench/cost.py --compiled --json [--quick]

With `--compiled` the sources at hand are compiled first (`scripts/compile`); without it, what runs is what `headworks` runs:
compiled modules if they are current, else Python. The report says which it was.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from cost_stages import stages_us
from generator import Unusable, build, mock, port_of, run
from headworks import RUNS_AS
from proxies import HEADWORKS, KEY, Missing, compile_first, headworks, new_keys, nginx
from servers import Server

CASES = {
    "request": ["closed", "-c", "64", "-d", "1.4", "-w", "0.4", "-b", "1024"],
    "chunk_500": ["stream", "-c", "500", "-n", "220", "-P", "20000", "-d", "1.8", "-w", "1.5"],
    "chunk_50": ["stream", "-c", "50", "-n", "200", "-P", "20000", "-d", "1.6", "-w", "1"],
}
TARGETS = {"request": 2.2, "chunk_500": 1.6}
ROUNDS, ROUNDS_QUICK = 5, 2


def main() -> int:
    options = parsed()
    try:
        if options.compiled:
            compile_first()
        report = measured(options)
    except (subprocess.CalledProcessError, Missing, Unusable) as error:
        print(f"cost: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report, indent=1) if options.json else table(report))
    return 0 if all(report["holds"].values()) else 1


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="CPU a request and a chunk, beside nginx")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help=f"{ROUNDS_QUICK} rounds instead of {ROUNDS}")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--compiled", action="store_true", help="compile the sources at hand first, unless they are already")
    parser.add_argument("--only", choices=["nginx", "headworks"], help="one proxy; nothing is compared")
    parser.add_argument(
        "--config", type=Path, help="headworks.yaml with {engine}, {port}, {admin}, {folder}; default: built in"
    )
    options = parser.parse_args()
    options.rounds = options.rounds or (ROUNDS_QUICK if options.quick else ROUNDS)
    return options


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Build, start everything, take turns, compare."""
    build()
    keys = new_keys()
    costs_us: dict[str, dict[str, list[float]]] = {case: {} for case in CASES}
    runs: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        proxies: dict[str, Server] = {}
        if options.only != "headworks":
            proxies["nginx"] = stack.enter_context(nginx(folder, port_of(stack.enter_context(mock())), keys))
        if options.only != "nginx":
            text = options.config.read_text() if options.config else HEADWORKS
            proxies["headworks"] = stack.enter_context(headworks(folder, port_of(stack.enter_context(mock())), keys, text))
        for proxy in proxies.values():  # the first requests of a process pay for what all later ones have
            one(proxy, CASES["request"], keys[KEY])
        for _ in range(options.rounds):
            for case, arguments in CASES.items():
                for name, proxy in proxies.items():
                    seen = one(proxy, arguments, keys[KEY])
                    runs.append({"case": case, "proxy": name, **seen})
                    costs_us[case].setdefault(name, []).append(seen["cost_us"])
    return compared(costs_us, runs, options.rounds)


def one(proxy: Server, arguments: list[str], key: str) -> dict[str, Any]:
    """One run of the generator through one proxy."""
    done = run(proxy, arguments, key)
    kind, rate = ("delay", "chunks_s") if arguments[0] == "stream" else ("lat", "rps")
    return {
        "cost_us": done.cost_us,
        "carried": done.carried,
        "latency_p50_us": done.seen[f"{kind}_p50"],
        "latency_p99_us": done.seen[f"{kind}_p99"],
        "per_s": done.seen[rate],
    }


def compared(costs_us: dict[str, dict[str, list[float]]], runs: list[dict[str, Any]], rounds: int) -> dict[str, Any]:
    report: dict[str, Any] = {"measured": time.strftime("%Y-%m-%d", time.gmtime()), "cores": os.cpu_count(), "rounds": rounds}
    holds: dict[str, bool] = {}
    for case, by_proxy in costs_us.items():
        middle = {f"{name}_us": round(median(values), 2) for name, values in by_proxy.items()}
        if len(middle) == 2:
            middle["ratio"] = round(middle["headworks_us"] / middle["nginx_us"], 3)
            if case in TARGETS:
                holds[f"{case} <= {TARGETS[case]} x nginx"] = middle["ratio"] <= TARGETS[case]
        report[case] = middle
    report["runs_as"] = RUNS_AS
    report["stages_us"] = stages_us()
    report["holds"] = holds
    report["runs"] = runs
    return report


def table(report: dict[str, Any]) -> str:
    lines = ["| | nginx, µs | headworks, µs | ratio |", "|---|--:|--:|--:|"]
    for case in CASES:
        row = report[case]
        lines.append(f"| {case} | {row.get('nginx_us', '–')} | {row.get('headworks_us', '–')} | {row.get('ratio', '–')} |")
    lines += ["", "| stage | µs |", "|---|--:|", *(f"| {name} | {cost:.2f} |" for name, cost in report["stages_us"].items())]
    lines += ["", report["runs_as"]]
    return "\n".join([*lines, "", *(f"- {'holds' if held else 'MISSED'}: {claim}" for claim, held in report["holds"].items())])


if __name__ == "__main__":
    sys.exit(main())
