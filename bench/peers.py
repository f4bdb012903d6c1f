"""headworks beside everything a user would put in its place: what each costs, in one run.

nginx, HAProxy, Envoy, vllm-router and sglang-router (both Rust), LiteLLM, FastAPI with httpx, and headworks as in production
(`peers/headworks.yaml`), each pinned to one core in front of a mock engine of its own (bench/native) that shares the other core
with the generator. They take turns, there and back; a figure is the median over the rounds, a ratio that of medians of the same
run. CPU time is the scheduler's count of the proxy's process tree ÷ all that it carried (`generator.py`), so other work on the
machine blurs ratios less than rates; `other_work_cores` says how much of it there was. Parts (`peers_parts.py`):

    memory     resident when idle, and more for each of 1,000 open streams
    request    CPU a request of 1 KB, 64 connections        body_32k   the same with 32 KB
    latency    one connection, less the engine's own        chunk      CPU, added delay, 500 streams × 20 ms
    refusal    refused ÷ admitted, per CPU second           flood      good traffic's p99 beside 5,000 refusals/s ÷ alone
    ledgers    journal and Valkey ÷ memory, per CPU second  leaving    streams left 1 s after 1,000 clients left

A part by itself takes two minutes at most with all peers, everything about ten; `--quick` makes two short rounds of the first
five without bodies, within 50 s for two peers. What has to be installed first is not counted.

    python bench/peers.py --json [--quick] [--only nginx,envoy] [--parts request,chunk] [--compiled] [--docs docs]

Exit 1 where a bar is missed, 2 where the run could not be made. `--docs` writes the page and its picture.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from generator import Unusable, build, cpu_s, mock, port_of
from headworks import RUNS_AS
from headworks.testing.servers import ServerError
from peers_claims import claims
from peers_page import page, picture
from peers_parts import OURS, PARTS, QUICK, Bench, Notes
from proxies import ALL, Missing, compile_first, new_keys

ROUNDS, ROUNDS_QUICK = 4, 2


def main() -> int:
    options = parsed()
    try:
        if options.compiled:
            compile_first()
        report = measured(options)
    except (subprocess.CalledProcessError, Missing, ServerError, Unusable) as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2
    if options.docs:
        (options.docs / "peers.md").write_text(page(report))
        picture(report, options.docs / "peers.png")
    print(json.dumps(report, indent=1) if options.json else page(report))
    return 0 if all(claim["must"] for claim in report["claims"].values()) else 1


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="headworks beside what a user would put in its place")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help=f"{ROUNDS_QUICK} rounds, half as long, of {', '.join(QUICK)}")
    parser.add_argument("--only", type=names(set(ALL)), default=list(ALL), help="these peers, comma between; headworks always")
    parser.add_argument("--parts", type=names(set(PARTS)), help="these parts, comma between")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--compiled", action="store_true", help="compile the sources at hand first, unless they are already")
    parser.add_argument("--docs", type=Path, help="folder for the page and its picture")
    options = parser.parse_args()
    options.rounds = options.rounds or (ROUNDS_QUICK if options.quick else ROUNDS)
    options.parts = options.parts or list(QUICK if options.quick else PARTS)
    return options


def names(known: set[str]) -> Any:
    """A list of known names, with commas between."""

    def of(text: str) -> list[str]:
        given = text.replace("-", "_").split(",")
        unknown = sorted(set(given) - known)
        if unknown:
            raise argparse.ArgumentTypeError(f"not known: {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        return given

    return of


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Start all, measure part by part, compare."""
    build()
    notes, chosen = Notes(), [name for name in ALL if name == OURS or name in options.only]
    took_s: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        began_s = time.monotonic()
        bench = started(stack, chosen, options, notes)
        took_s["start"] = round(time.monotonic() - began_s, 1)
        began, other = busy_s(), os.cpu_count()
        whole_s = time.monotonic()
        for name in (name for name in PARTS if name in options.parts):
            began_s = time.monotonic()
            PARTS[name](bench)
            took_s[name] = round(time.monotonic() - began_s, 1)
        other_cores = (busy_s() - began) / max(1e-9, time.monotonic() - whole_s)
    figures = notes.medians()
    return {
        **{name: figures.get(name, {}) for name in chosen},
        "claims": claims(figures),
        "missing": notes.missing,
        "values": notes.values,
        "measured": time.strftime("%Y-%m-%d", time.gmtime()),
        "runs_as": RUNS_AS,
        "cores": other,
        "rounds": options.rounds,
        "parts": options.parts,
        "is_quick": options.quick,
        "took_s": took_s,
        "other_work_cores": round(other_cores, 2),
    }


def started(stack: contextlib.ExitStack, chosen: list[str], options: argparse.Namespace, notes: Notes) -> Bench:
    """Every proxy in front of an engine of its own, so that what one leaves there stands in nobody else's figures."""
    keys, engines, proxies = new_keys(), {}, {}
    for name in chosen:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engines[name] = stack.enter_context(mock())
        proxies[name] = stack.enter_context(ALL[name].start(folder, port_of(engines[name]), keys))
    return Bench(proxies, engines, keys, options.rounds, options.quick, notes)


def busy_s() -> float:
    """CPU time that everybody but us has had since this machine started."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    everybody_s = (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return everybody_s - cpu_s(os.getpid()) - ended.ru_utime - ended.ru_stime


if __name__ == "__main__":
    sys.exit(main())
