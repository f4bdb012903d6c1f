"""What a ledger costs: requests per CPU second of the whole gateway, with one in a file, or in a store, and with one in memory.

Both gateways stand in front of a mock engine of their own (bench/native) and take turns, each on the same core; a figure is the
median over the rounds of

    requests carried / CPU time of the gateway's process, its threads included (schedstat, before and after),

so the checkpoints that a thread makes are in it. The file is in the directory given, or a temporary one: on a slow disk the
commits cost no more, since nobody waits for the disk. With `--power` each batch is synced, and somebody does.

A commit is shared by what comes in one turn of the loop, so it costs most where nothing shares: *alone* is one connection,
*few* eight, *many* sixty-four. Target: with the journal at least 0.85 of memory's requests per CPU second at sixty-four. Exit 1
where it is missed, 2 where the run could not be made.

With `--store valkey` the other ledger is a store server of this machine, on the load's core. Nothing is charged or freed there
before the server has answered, so what comes in one turn of the loop shares a call, and so does what comes while two calls are
under way: a connection alone pays for a whole call, and is much the dearer. Target: 0.55 at sixty-four.

    python bench/journal.py --json [--quick] [--power | --store valkey]
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
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from generator import LOAD_CORE, Unusable, build, mock, port_of, run
from headworks.testing.servers import ServerError, single
from proxies import HEADWORKS, KEY, headworks, new_keys
from servers import Server

CASES = {
    name: ["closed", "-c", connections, "-d", "1.4", "-w", "0.4", "-b", "1024"]
    for name, connections in (("alone", "1"), ("few", "8"), ("many", "64"))
}
TARGET_CASE, TARGET_RATIOS = "many", {"journal": 0.85, "valkey": 0.55}
ROUNDS, ROUNDS_QUICK = 5, 2


def main() -> int:
    options = parsed()
    try:
        report = measured(options)
    except (subprocess.CalledProcessError, ServerError, Unusable) as error:
        print(f"journal: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report, indent=1) if options.json else table(report))
    return 0 if report["holds"] else 1


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="requests per CPU second, with the journal and without")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help=f"{ROUNDS_QUICK} rounds instead of {ROUNDS}")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--power", action="store_true", help="one sync a batch")
    parser.add_argument("--store", choices=sorted(TARGET_RATIOS), default="journal", help="what is compared with memory")
    parser.add_argument("--directory", type=Path, help="where the file stands")
    options = parser.parse_args()
    options.rounds = options.rounds or (ROUNDS_QUICK if options.quick else ROUNDS)
    return options


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Start both, take turns, compare."""
    build()
    keys = new_keys()
    per_cpu_s: dict[str, dict[str, list[float]]] = {case: {"memory": [], options.store: []} for case in CASES}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory)))
        gateways: dict[str, Server] = {}
        for name in ("memory", options.store):
            own = folder / name
            own.mkdir()
            text = configured(stack.enter_context(standing(name, folder)), options.power and name == "journal")
            gateways[name] = stack.enter_context(headworks(own, port_of(stack.enter_context(mock())), keys, text))
        for gateway in gateways.values():  # the first requests of a process pay for what all later ones have
            with contextlib.suppress(Unusable):  # and teach it how long this machine takes
                run(gateway, CASES["many"], keys[KEY])
        for number in range(options.rounds):
            for case, arguments in CASES.items():
                for name in sorted(gateways, reverse=bool(number % 2)):
                    per_cpu_s[case][name].append(run(gateways[name], arguments, keys[KEY]).per_cpu_s)
        file_bytes = sum(path.stat().st_size for path in folder.glob("ledger.db*"))
    return compared(per_cpu_s, options, file_bytes)


@contextlib.contextmanager
def standing(store: str, folder: Path) -> Iterator[str]:
    """The URL of a ledger, there for as long as it is asked."""
    if store == "memory":
        yield "memory:"
        return
    if store == "journal":
        yield f"sqlite:{folder}/ledger.db"
        return
    with single() as server:
        subprocess.run(["taskset", "-a", "-c", "-p", LOAD_CORE, str(server.pid)], check=True, capture_output=True)
        yield server.url


def configured(url: str, power: bool = False) -> str:
    durability = "power" if power else "process"
    return HEADWORKS.replace('{url: "memory:"}', f'{{url: "{url}", durability: {durability}}}')


def compared(per_cpu_s: dict[str, dict[str, list[float]]], options: argparse.Namespace, file_bytes: int) -> dict[str, Any]:
    rows = {}
    for case, by_store in per_cpu_s.items():
        pairs = zip(by_store[options.store], by_store["memory"], strict=True)
        rows[case] = {
            **{f"{name}_requests_per_cpu_s": round(median(values)) for name, values in by_store.items()},
            "ratio": round(median(other / memory for other, memory in pairs), 3),
        }
    return {
        "measured": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": os.cpu_count(),
        "rounds": options.rounds,
        "store": options.store,
        "durability": "power" if options.power else "process",
        "cases": rows,
        "file_bytes": file_bytes,
        "target_ratio": TARGET_RATIOS[options.store],
        "holds": rows[TARGET_CASE]["ratio"] >= TARGET_RATIOS[options.store],
    }


def table(report: dict[str, Any]) -> str:
    store = report["store"]
    lines = [f"| connections | memory, requests/CPU s | {store} | ratio |", "|---|--:|--:|--:|"]
    for case, row in report["cases"].items():
        figures = (row["memory_requests_per_cpu_s"], row[f"{store}_requests_per_cpu_s"], row["ratio"])
        lines.append(f"| {case} | " + " | ".join(str(figure) for figure in figures) + " |")
    lines.append(f"\n{'holds' if report['holds'] else 'MISSED'}: {TARGET_CASE} >= {report['target_ratio']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
