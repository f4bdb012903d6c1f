"""The mock engine and the load generator of bench/native, and what a proxy used of the machine while it was between them.

One core is the proxy's, another belongs to both programs. A figure is

    CPU time of the proxy's process tree (schedstat, before and after) / all requests or chunks it carried,

so a machine that is busy with other things makes a run longer and the figure only somewhat larger (cold caches).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers import Server, free_port, process

BENCH = Path(__file__).resolve().parent
BUILD = BENCH / ".build"
PROXY_CORE, LOAD_CORE = "0", "1"
START_S_MAX = 60.0
RUN_S_MAX = 60.0
SETTLE_S = 0.3
"""What a proxy does about streams cut by the end of a run is no part of the next one."""


class Unusable(Exception):
    """A run whose figures mean nothing: the text says why."""


@dataclass(slots=True)
class Run:
    """What one run of the generator carried, and what it cost the proxy."""

    cost_us: float
    """CPU a request, or a chunk of a stream."""
    carried: int
    seen: dict[str, Any]
    """What the generator printed."""

    @property
    def per_cpu_s(self) -> float:
        return 1e6 / self.cost_us


def build() -> None:
    """Both programs, if they are older than their sources."""
    BUILD.mkdir(exist_ok=True)
    for program in ("mock_upstream", "loadgen"):
        source, built = BENCH / "native" / f"{program}.c", BUILD / program
        if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
            subprocess.run(["gcc", "-O2", "-o", str(built), str(source)], check=True)


@contextlib.contextmanager
def mock(*words: str) -> Iterator[Server]:
    """A mock engine on the load's core; `sync` makes all its streams emit on common ticks."""
    port = free_port()
    command = ["taskset", "-c", LOAD_CORE, str(BUILD / "mock_upstream"), str(port), *words]
    with process(command, f"http://127.0.0.1:{port}/health", START_S_MAX) as server:
        yield server


def port_of(server: Server) -> int:
    return int(server.url.rsplit(":", 1)[1])


def loading(port: int, arguments: list[str], key: str) -> list[str]:
    """The command of one run. Usage is not asked for: a gateway that needs it asks by itself, and hides it."""
    mode, *rest = arguments
    headers = ["-H", f"Authorization: Bearer {key}"]
    return ["taskset", "-c", LOAD_CORE, str(BUILD / "loadgen"), mode, "-p", str(port), "-U", *headers, *rest]


def generated(port: int, arguments: list[str], key: str) -> dict[str, Any]:
    """One run of the generator, whatever came of it."""
    ran = subprocess.run(loading(port, arguments, key), check=True, capture_output=True, timeout=RUN_S_MAX)
    seen: dict[str, Any] = json.loads(ran.stdout)
    return seen


def run(proxy: Server, arguments: list[str], key: str, refused: bool = False) -> Run:
    """One run through one proxy in which everything goes well; with `refused`, in which everything is refused."""
    before_s = cpu_s(proxy.pid)
    seen = generated(port_of(proxy), arguments, key)
    used_s = cpu_s(proxy.pid) - before_s
    carried = seen["all_chunks"] if arguments[0] == "stream" else seen["all_done"]
    failed = seen["conn_errors"] + seen["status5xx"]
    failed += seen["done"] + seen["errors"] - seen["status4xx"] if refused else seen["errors"]
    if failed or not carried:
        raise Unusable(f"{proxy.url} {' '.join(arguments)}: {failed} failures in {carried}: {seen}")
    time.sleep(SETTLE_S)
    return Run(used_s * 1e6 / carried, carried, seen)


def cpu_s(pid: int) -> float:
    """CPU time of a process, its threads and its children, from the scheduler's own count."""
    total_ns = 0
    for folder in tree(pid):
        for task in (folder / "task").iterdir():
            with contextlib.suppress(FileNotFoundError):  # a thread may end meanwhile
                total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def rss_bytes(pid: int) -> int:
    """Resident memory of a process and its children, each page counted for each that has it."""
    pages = sum(int((folder / "statm").read_text().split()[1]) for folder in tree(pid))
    return pages * 4096


def tree(pid: int) -> Iterator[Path]:
    """The folders of a process and all below it."""
    waiting = [pid]
    while waiting:
        folder = Path("/proc") / str(waiting.pop())
        yield folder
        for task in (folder / "task").iterdir():
            with contextlib.suppress(FileNotFoundError):
                waiting += [int(child) for child in (task / "children").read_text().split()]
