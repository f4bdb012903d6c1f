"""What bench/peers.py measures, a part for each question. Every part takes turns over the proxies, round by round.

Parts add figures to a `Notes`; where a peer cannot do what is asked of it, the figure stays away and the reason is kept.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from generator import RUN_S_MAX, SETTLE_S, Run, Unusable, generated, loading, mock, port_of, rss_bytes, run
from journal import configured, standing
from proxies import ALL, KEY, KEY_SPENT, headworks
from servers import Server

OURS = "headworks"
RUNNING = re.compile(r"num_requests_running\{[^}]*\} (\d+)")
LEFT_CLIENTS, LEFT_S = 1000, 1.0
PAUSES_US = {"calm": 100_000, "overload": 5_000}
"""Between two chunks of a stream: 10,000 chunks a second can be carried, and 200,000 cannot."""
GOOD_PER_S, REFUSALS_PER_S = 200, 5_000


@dataclass(slots=True)
class Notes:
    """What was seen: every value of every figure of every proxy, and what could not be had."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, proxy: str, **figures: float) -> None:
        for name, value in figures.items():
            self.values.setdefault(proxy, {}).setdefault(name, []).append(value)

    @contextlib.contextmanager
    def excused(self, proxy: str, part: str) -> Iterator[None]:
        """Peers may fail at something; we may not."""
        try:
            yield
        except (Unusable, subprocess.TimeoutExpired, httpx.HTTPError) as error:
            if proxy == OURS:
                raise
            self.missing[f"{proxy}.{part}"] = str(error)[:300]

    def medians(self) -> dict[str, dict[str, float]]:
        everybody = self.values.items()
        return {proxy: {name: round(median(seen), 3) for name, seen in figures.items()} for proxy, figures in everybody}


@dataclass(slots=True)
class Bench:
    """What takes turns, each with an engine of its own."""

    proxies: dict[str, Server]
    engines: dict[str, Server]
    keys: dict[str, str]
    rounds: int
    is_quick: bool
    notes: Notes

    def turns(self, part: str) -> Iterator[tuple[str, Server]]:
        """Round by round, there and back again, so that no proxy always comes after the same one."""
        for number in range(self.rounds):
            for name in sorted(self.proxies, key=list(ALL).index, reverse=bool(number % 2)):
                if f"{name}.{part}" not in self.notes.missing:
                    yield name, self.proxies[name]

    def run(self, proxy: Server, arguments: list[str]) -> Run:
        return run(proxy, arguments, self.keys[KEY])

    def times(self, seconds: float, warm_s: float) -> list[str]:
        """How long a run is, and how much of its beginning does not count."""
        return ["-d", f"{seconds / 2 if self.is_quick else seconds:g}", "-w", f"{warm_s:g}"]

    def direct(self, arguments: list[str]) -> dict[str, Any]:
        """The same run with nothing between."""
        seen = generated(port_of(self.engines[OURS]), arguments, self.keys[KEY])
        time.sleep(SETTLE_S)
        return seen


def memory(bench: Bench) -> None:
    """Resident memory after a few requests, and how much more for each stream that stands open. Once: it never shrinks."""
    for name, proxy in bench.proxies.items():
        with bench.notes.excused(name, "memory"):
            bench.run(proxy, ["closed", "-c", "4", "-d", "1", "-w", "0.5", "-b", "1024"])
            idle_bytes = rss_bytes(proxy.pid)
            bench.notes.add(name, rss_mib=idle_bytes / 2**20)
            held = 0 if bench.is_quick else ALL[name].held
            if held:
                open_bytes = rss_while_open(bench, proxy, held)
                bench.notes.add(name, kib_per_stream=(open_bytes - idle_bytes) / 1024 / held)


def rss_while_open(bench: Bench, proxy: Server, streams: int) -> int:
    """Resident memory while so many streams are open, with a chunk each half a second."""
    arguments = ["stream", "-c", str(streams), "-n", "1000", "-P", "500000", "-R", "1000", "-w", "1.5", "-d", "1"]
    with subprocess.Popen(loading(port_of(proxy), arguments, bench.keys[KEY]), stdout=subprocess.PIPE) as load:
        time.sleep(2.2)
        seen_bytes = rss_bytes(proxy.pid)
        told = json.loads(load.communicate(timeout=RUN_S_MAX)[0])
    if told["streams_open"] != streams:
        raise Unusable(f"of {streams} streams {told['streams_open']} were open")
    time.sleep(LEFT_S)
    return seen_bytes


def request(bench: Bench) -> None:
    """1 KB prompts, 64 connections, one request at a time on each."""
    for name, proxy in bench.turns("request"):
        with bench.notes.excused(name, "request"):
            seen = bench.run(proxy, ["closed", "-c", "64", "-b", "1024", *bench.times(1.4, 0.4)])
            bench.notes.add(name, cpu_us_per_request=seen.cost_us, requests_per_s=seen.seen["rps"])


def body_32k(bench: Bench) -> None:
    """The same with prompts of 32 KB."""
    for name, proxy in bench.turns("body_32k"):
        with bench.notes.excused(name, "body_32k"):
            seen = bench.run(proxy, ["closed", "-c", "64", "-b", "32768", *bench.times(1.4, 0.4)])
            bench.notes.add(name, cpu_us_per_request_32k=seen.cost_us)


def latency(bench: Bench) -> None:
    """One connection, one request at a time: every hop wakes a sleeping process. Less what the engine takes alone."""
    arguments = ["closed", "-c", "1", "-b", "1024", *bench.times(1.0, 0.2)]
    direct_us = median(bench.direct(arguments)["lat_p50"] for _ in range(bench.rounds))
    for name, proxy in bench.turns("latency"):
        with bench.notes.excused(name, "latency"):
            seen = bench.run(proxy, arguments)
            added_us = seen.seen["lat_p50"] - direct_us
            bench.notes.add(name, added_p50_us=added_us, cpu_us_per_request_alone=seen.cost_us)


def chunk(bench: Bench) -> None:
    """500 streams with a chunk each 20 ms: its cost, and how much later it comes than without anything between."""
    arguments = ["-n", "220", "-P", "20000", *bench.times(1.0, 1.0)]
    straight = [bench.direct(["stream", "-c", "500", *arguments]) for _ in range(bench.rounds)]
    direct_us = {percent: median(seen[f"delay_{percent}"] for seen in straight) for percent in ("p50", "p99")}
    for name, proxy in bench.turns("chunk"):
        with bench.notes.excused(name, "chunk"):
            seen = bench.run(proxy, ["stream", "-c", str(ALL[name].streams), *arguments])
            bench.notes.add(name, cpu_us_per_chunk=seen.cost_us, chunks_per_s=seen.seen["chunks_s"])
            added_us = {percent: seen.seen[f"delay_{percent}"] - alone_us for percent, alone_us in direct_us.items()}
            bench.notes.add(name, added_chunk_p50_us=added_us["p50"], added_chunk_p99_us=added_us["p99"])


def refusal(bench: Bench) -> None:
    """Refused and admitted requests per CPU second, in turn."""
    proxy, arguments = bench.proxies[OURS], ["closed", "-c", "64", "-b", "1024", *bench.times(1.0, 0.3)]
    generated(port_of(proxy), ["closed", "-c", "1", "-d", "0.1", "-w", "0"], bench.keys[KEY_SPENT])  # its one request
    for _ in range(bench.rounds):
        admitted = bench.run(proxy, arguments)
        refused = run(proxy, arguments, bench.keys[KEY_SPENT], refused=True)
        bench.notes.add(OURS, cpu_us_per_refusal=refused.cost_us, refusals_of_admitted=admitted.cost_us / refused.cost_us)


def flood(bench: Bench) -> None:
    """200 good requests a second, by themselves and beside 5,000 a second that are refused, in turn."""
    proxy = bench.proxies[OURS]
    good = ["rate", "-c", "32", "-r", str(GOOD_PER_S), "-b", "1024", *bench.times(2.0, 0.5)]
    bad = ["rate", "-c", "64", "-r", str(REFUSALS_PER_S), "-b", "1024", "-d", "4", "-w", "0"]
    generated(port_of(proxy), ["closed", "-c", "1", "-d", "0.1", "-w", "0"], bench.keys[KEY_SPENT])
    for _ in range(bench.rounds):
        alone = bench.run(proxy, good).seen
        with subprocess.Popen(loading(port_of(proxy), bad, bench.keys[KEY_SPENT]), stdout=subprocess.PIPE) as load:
            time.sleep(0.5)
            beside = bench.run(proxy, good).seen
            told = json.loads(load.communicate(timeout=RUN_S_MAX)[0])
        bench.notes.add(
            OURS, refusals_per_s=told["status4xx"] / told["secs"], flood_p99_ratio=beside["lat_p99"] / alone["lat_p99"]
        )
        bench.notes.add(OURS, good_p99_us=alone["lat_p99"], good_p99_beside_us=beside["lat_p99"])


def ledgers(bench: Bench) -> None:
    """Requests per CPU second with the ledger in a file and in a Valkey, over the same with it in memory."""
    arguments = ["closed", "-c", "64", "-b", "1024", *bench.times(1.4, 0.4)]
    with contextlib.ExitStack() as stack:
        gateways: dict[str, Server] = {}
        for name in ("memory", "journal", "valkey"):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = stack.enter_context(standing(name, folder))
            engine = stack.enter_context(mock())
            gateways[name] = stack.enter_context(headworks(folder, port_of(engine), bench.keys, configured(url)))
            bench.run(gateways[name], arguments)  # the first requests of a process pay for what all later ones have
        for number in range(bench.rounds):
            seen = {name: bench.run(gateways[name], arguments) for name in sorted(gateways, reverse=bool(number % 2))}
            ratios = {f"{name}_of_memory": seen["memory"].cost_us / seen[name].cost_us for name in ("journal", "valkey")}
            bench.notes.add(OURS, **ratios)


def leaving(bench: Bench) -> None:
    """How many streams an engine still makes a second after 1,000 clients closed in mid-stream."""
    for name, proxy in bench.proxies.items():
        for moment, pause_us in PAUSES_US.items():
            with bench.notes.excused(name, f"leaving_{moment}"):
                arguments = ["stream", "-c", str(LEFT_CLIENTS), "-n", "100000", "-P", str(pause_us), "-w", "1", "-d", "1.5"]
                told = generated(port_of(proxy), arguments, bench.keys[KEY])
                time.sleep(LEFT_S)
                bench.notes.add(
                    name, **{f"left_{moment}": running(bench.engines[name]), f"opened_{moment}": told["streams_open"]}
                )


def running(engine: Server) -> float:
    """What an engine is answering now."""
    found = RUNNING.search(httpx.get(f"{engine.url}/metrics", timeout=10.0).text)
    assert found is not None, "the mock says what it is doing"
    return float(found.group(1))


PARTS = {
    "memory": memory,
    "request": request,
    "body_32k": body_32k,
    "latency": latency,
    "chunk": chunk,
    "refusal": refusal,
    "flood": flood,
    "ledgers": ledgers,
    "leaving": leaving,
}
"""In this order: memory while the processes are fresh, and last what some peers do not get over."""
QUICK = ("memory", "request", "latency", "chunk")
