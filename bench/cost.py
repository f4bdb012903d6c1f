"""What headworks costs: CPU microseconds a request and a streamed chunk, beside nginx in the same run.

One core for the proxy, another for a mock engine and the load generator (bench/native, built here with gcc). Both proxies
stand in front of the same mock; they take turns, and each figure is the median over the rounds of

    CPU time of the proxy's process tree (schedstat, before and after) / all requests or chunks it carried,

so a machine that is busy with other things makes the run longer and the figure only somewhat larger (cold caches).
headworks runs as it would in production: keys, tenants with limits, decision log, metrics, sampling of the engine. Only
the first-token SLO is wide, because a run with refusals in it is no measure of cost. Cases:

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
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from cost_stages import stages_us
from headworks import IS_COMPILED, RUNS_AS, compiled
from servers import Server, free_port, process

BENCH = Path(__file__).resolve().parent
BUILD = BENCH / ".build"
PROXY_CORE, LOAD_CORE = "0", "1"
CASES = {
    "request": ["closed", "-c", "64", "-d", "1.4", "-w", "0.4", "-b", "1024"],
    "chunk_500": ["stream", "-c", "500", "-n", "220", "-P", "20000", "-d", "1.8", "-w", "1.5"],
    "chunk_50": ["stream", "-c", "50", "-n", "200", "-P", "20000", "-d", "1.6", "-w", "1"],
}
TARGETS = {"request": 2.2, "chunk_500": 1.6}
ROUNDS, ROUNDS_QUICK = 5, 2
START_S_MAX = 20.0

NGINX = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events { worker_connections 8192; }
http {
  access_log off;
  client_body_buffer_size 1m;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 100000000;
  upstream engine { server 127.0.0.1:{engine}; keepalive 2048; keepalive_requests 100000000; }
  server {
    listen 127.0.0.1:{port} backlog=4096;
    location / {
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }
  }
}
"""

HEADWORKS = """\
server: {listen: "127.0.0.1:{port}", admin: "127.0.0.1:{admin}"}
ledger: {url: "memory:"}
log: {decisions: "{folder}/decisions/"}
usage: {path: "{folder}/usage/"}
classes:
  interactive:
    slo: {ttft_s: 10.0}
    queue: {wait_s_max: 5, requests_max: 2000}
  bulk:
    queue: {wait_s_max: 300, requests_max: 5000}
tenants:
  acme: {keys: ["env:BENCH_KEY_ACME"], class: interactive, active_tokens_max: 50000000, active_requests_max: 4000}
  other: {keys: ["env:BENCH_KEY_OTHER"], class: bulk, active_tokens_max: 1000000}
pools:
  mock:
    models: [mock]
    active_requests_max: 4000
    discipline: predictive_ttft
    replicas: [{url: "http://127.0.0.1:{engine}", engine: vllm, exclusive: true}]
"""


def main() -> int:
    options = parsed()
    try:
        if options.compiled:
            compile_first()
        report = measured(options)
    except (subprocess.CalledProcessError, FileNotFoundError, Unusable) as error:
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


def compile_first() -> None:
    """And begin anew: this process has loaded what there was before."""
    subprocess.run([str(BENCH.parent / "scripts" / "compile")], check=True)
    if not IS_COMPILED and not os.environ.get(compiled.PURE):
        os.execv(sys.executable, [sys.executable, *sys.argv])


class Unusable(Exception):
    """A run whose figures mean nothing: the text says why."""


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Build, start everything, take turns, compare."""
    build()
    keys = {"BENCH_KEY_ACME": f"hw-{secrets.token_hex(16)}", "BENCH_KEY_OTHER": f"hw-{secrets.token_hex(16)}"}
    costs_us: dict[str, dict[str, list[float]]] = {case: {} for case in CASES}
    runs: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        engine_port = free_port()
        mock = ["taskset", "-c", LOAD_CORE, str(BUILD / "mock_upstream"), str(engine_port)]
        stack.enter_context(process(mock, f"http://127.0.0.1:{engine_port}/health", START_S_MAX))
        proxies: dict[str, Server] = {}
        if options.only != "headworks":
            proxies["nginx"] = stack.enter_context(nginx(folder, engine_port))
        if options.only != "nginx":
            proxies["headworks"] = stack.enter_context(headworks(folder, engine_port, keys, options.config))
        for proxy in proxies.values():  # the first requests of a process pay for what all later ones have
            one(proxy, CASES["request"], keys["BENCH_KEY_ACME"])
        for _ in range(options.rounds):
            for case, arguments in CASES.items():
                for name, proxy in proxies.items():
                    seen = one(proxy, arguments, keys["BENCH_KEY_ACME"])
                    runs.append({"case": case, "proxy": name, **seen})
                    costs_us[case].setdefault(name, []).append(seen["cost_us"])
    return compared(costs_us, runs, options.rounds)


def build() -> None:
    BUILD.mkdir(exist_ok=True)
    for program in ("mock_upstream", "loadgen"):
        source, built = BENCH / "native" / f"{program}.c", BUILD / program
        if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
            subprocess.run(["gcc", "-O2", "-o", str(built), str(source)], check=True)


@contextlib.contextmanager
def nginx(folder: str, engine_port: int) -> Iterator[Server]:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise FileNotFoundError("nginx is not installed (Debian: apt-get install nginx-light)")
    port = free_port()
    config = filled(NGINX, Path(folder) / "nginx.conf", folder=folder, engine=engine_port, port=port)
    command = ["taskset", "-c", PROXY_CORE, program, "-c", str(config), "-p", folder, "-e", f"{folder}/error.log"]
    with process(command, f"http://127.0.0.1:{port}/health", START_S_MAX) as server:
        yield server


@contextlib.contextmanager
def headworks(folder: str, engine_port: int, keys: dict[str, str], given: Path | None) -> Iterator[Server]:
    port, admin = free_port(), free_port()
    text = given.read_text() if given else HEADWORKS
    config = filled(text, Path(folder) / "headworks.yaml", folder=folder, engine=engine_port, port=port, admin=admin)
    command = ["taskset", "-c", PROXY_CORE, str(Path(sys.executable).with_name("headworks")), "serve", "--config", str(config)]
    with process(command, f"http://127.0.0.1:{admin}/readyz", START_S_MAX, keys) as server:
        yield Server(f"http://127.0.0.1:{port}", server.pid)


def filled(text: str, path: Path, **values: object) -> Path:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    path.write_text(text)
    return path


def one(proxy: Server, arguments: list[str], key: str) -> dict[str, Any]:
    """One run of the generator through one proxy; its CPU over what it carried."""
    port = proxy.url.rsplit(":", 1)[1]
    command = [
        "taskset",
        "-c",
        LOAD_CORE,
        str(BUILD / "loadgen"),
        arguments[0],
        "-p",
        port,
        "-H",
        f"Authorization: Bearer {key}",
    ]
    before_s = cpu_s(proxy.pid)
    ran = subprocess.run([*command, *arguments[1:]], check=True, capture_output=True, timeout=60)
    used_s = cpu_s(proxy.pid) - before_s
    seen = json.loads(ran.stdout)
    failed = seen["errors"] + seen["conn_errors"] + seen["status4xx"] + seen["status5xx"]
    carried = seen["all_chunks"] if arguments[0] == "stream" else seen["all_done"]
    if failed or not carried:
        raise Unusable(f"{proxy.url} {arguments}: {failed} failures in {carried}: {seen}")
    time.sleep(0.3)  # what the proxy does about streams cut by the end of a run is no part of the next one
    return {
        "cost_us": used_s * 1e6 / carried,
        "carried": carried,
        "latency_p50_us": seen["delay_p50"] if arguments[0] == "stream" else seen["lat_p50"],
        "latency_p99_us": seen["delay_p99"] if arguments[0] == "stream" else seen["lat_p99"],
        "per_s": seen["chunks_s"] if arguments[0] == "stream" else seen["rps"],
    }


def cpu_s(pid: int) -> float:
    """CPU time of a process, its threads and its children, from the scheduler's own count."""
    total_ns = 0
    waiting = [pid]
    while waiting:
        process_folder = Path("/proc") / str(waiting.pop())
        for task in (process_folder / "task").iterdir():
            total_ns += int((task / "schedstat").read_text().split()[0])
            waiting += [int(child) for child in (task / "children").read_text().split()]
    return total_ns / 1e9


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
