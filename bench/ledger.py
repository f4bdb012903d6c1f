"""What a shared ledger costs: reserve and stop pairs a second through the real client, on a store server of this machine.

A pair is what every request asks of the ledger: `Reserve` (six charges: tenant, pool and replica, in tokens and requests) and,
answered, `Stop`. With 1, 16 and 64 pairs waiting at once, from one process:

    pairs_per_s   pairs answered a second
    p99_ms        how long a reserve took to be answered, 99 of 100
    ratio         commands a second (two a pair) ÷ what the same server does of a script of one operation: `RESERVE`, the least
                  that a shared limit with records needs (is it known; two scopes checked and charged in two units; its record;
                  its lease), called 64 at a time over 16 connections, as the server's own benchmark does it
                  (`redis-benchmark -P 64 -c 16` where that is installed, a loop that only writes and counts replies where not;
                  the report says which)
    ratio_incr    the same ÷ the smallest script there is, of one INCR and nothing else
    ratio_cpu     as `ratio`, by what each costs the server of CPU: that much it would be if nobody else used the machine

The calls of 64 waiting pairs share scripts, which is why commands of a whole book may cost what one bare reservation costs.
Beside it, on the same server: `limits`, `throttled-py` and `pyrate-limiter` (`bench/limiters.py`), each at its simpler job
(one limit of one key, no identity, no release), 64 callers at once: hits a second. They have an environment of their own in
`bench/.build`, made with the first run; where that cannot be, they are left out, and the report has none of them.
`client_us_per_pair` and `server_us_per_pair` say what a pair costs the gateway's process and the server of CPU.

Targets: ratio at least 0.7 at 64 waiting, and more pairs a second than each of the others has hits. Exit 1 where one is missed,
2 where the run could not be made. The client and the server each want a core.

    python bench/ledger.py --json [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import selectors
import shutil
import socket
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import limiters
from headworks.core.commands import Answer, Heartbeat, Reserve, SetLimits, Stop
from headworks.core.types import Charge, Owner, Usage
from headworks.ledgers.valkey import ValkeyStore
from headworks.ledgers.valkey_place import place_of
from headworks.testing.servers import Server, ServerError, single, why_not

WAITING = (1, 16, 64)
TARGET_WAITING, TARGET_RATIO = 64, 0.7
PEERS_HOME = Path(__file__).parent / ".build" / "limiters"
RUN_S, QUICK_RUN_S = 5.0, 1.5
ROUNDS, QUICK_ROUNDS = 5, 2
WARM_S = 0.5
CONNECTIONS, DEEP = 16, 64
INCR = "return redis.call('INCR', KEYS[1])"
RESERVE = """
if redis.call('HGET', KEYS[1], 'hash') then return 0 end
local now, cost = redis.call('TIME'), tonumber(ARGV[2])
for at = 2, 3 do
  local held = redis.call('HMGET', KEYS[at], 'requests', 'tokens', 'requests_max', 'tokens_max')
  if (tonumber(held[1]) or 0) + 1 > (tonumber(held[3]) or 1e15) then return 0 end
  if (tonumber(held[2]) or 0) + cost > (tonumber(held[4]) or 1e15) then return 0 end
end
for at = 2, 3 do
  redis.call('HINCRBY', KEYS[at], 'requests', 1)
  redis.call('HINCRBY', KEYS[at], 'tokens', cost)
end
redis.call('HSET', KEYS[1], 'hash', ARGV[1], 'tenant', KEYS[2], 'pool', KEYS[3], 'cost', cost, 'state', 'reserved')
redis.call('ZADD', KEYS[4], now[1] * 1000 + 30000, KEYS[1])
return 1"""
SCRIPT_CALLS = {INCR: 160_000, RESERVE: 24_000}
"""For each second that a script is measured."""
OWNER = Owner("bench", "boot")
WIDE = 1 << 40
USAGE = Usage(200, 0, 64, 0.5, "stop", True)


def main() -> int:
    parser = argparse.ArgumentParser(description="what a shared ledger costs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds of {QUICK_RUN_S:g} s, within 50 s")
    options = parser.parse_args()
    if why_not():
        print(f"ledger: {why_not()}", file=sys.stderr)
        return 2
    run_s, rounds = (QUICK_RUN_S, QUICK_ROUNDS) if options.quick else (RUN_S, ROUNDS)
    try:
        with single() as server:
            report = asyncio.run(measured(server, run_s, rounds))
    except ServerError as error:
        print(f"ledger: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report, indent=1) if options.json else table(report))
    return 0 if report["holds"] else 1


async def measured(server: Server, run_s: float, rounds: int) -> dict[str, Any]:
    """Everything in turns, so that a busy moment of the machine hits all; the medians."""
    seen: dict[str, list[dict[str, float]]] = {str(waiting): [] for waiting in WAITING}
    scripts: dict[str, list[tuple[float, float]]] = {INCR: [], RESERVE: []}
    python = peers_python()
    peers: dict[str, list[dict[str, Any]]] = {name: [] for name in limiters.PEERS} if python else {}
    how = "redis-benchmark" if shutil.which("redis-benchmark") else "own"
    for _ in range(rounds):
        for script, rates in scripts.items():
            rates.append(await asyncio.to_thread(_script, server, script, run_s / 2))
            server.ask("FLUSHALL")
        for waiting in WAITING:
            seen[str(waiting)].append(await pairs(server, waiting, run_s))
        for name, runs in peers.items():
            runs.append(await asyncio.to_thread(hits, python, server, name, run_s / 2))
    incr_per_s, reserve_per_s = (median(per_s for per_s, _ in scripts[script]) for script in (INCR, RESERVE))
    reserve_us = median(us for _, us in scripts[RESERVE])
    valkey = {
        waiting: {
            **{name: round(_median(runs, name), 2) for name in ("p99_ms", "client_us_per_pair", "server_us_per_pair")},
            "pairs_per_s": round(_median(runs, "pairs_per_s")),
            "ratio": round(2 * _median(runs, "pairs_per_s") / reserve_per_s, 3),
            "ratio_incr": round(2 * _median(runs, "pairs_per_s") / incr_per_s, 3),
            "ratio_cpu": round(2 * reserve_us / _median(runs, "server_us_per_pair"), 3),
        }
        for waiting, runs in seen.items()
    }
    best = valkey[str(TARGET_WAITING)]
    others = {name: round(_median(runs, "hits_per_s")) for name, runs in peers.items()}
    return {
        "valkey": valkey,
        "script_per_s": round(reserve_per_s),
        "script_us": round(reserve_us, 2),
        "incr_per_s": round(incr_per_s),
        "script_by": how,
        "peers_hits_per_s": others,
        "peers_versions": {name: runs[0]["version"] for name, runs in peers.items()},
        "server": server.field(
            "server", "valkey_version" if "valkey_version:" in str(server.ask("INFO", "server")) else "redis_version"
        ),
        "holds": best["ratio"] >= TARGET_RATIO and all(best["pairs_per_s"] > one for one in others.values()),
    }


def _median(runs: list[dict[str, float]], name: str) -> float:
    return median(one[name] for one in runs)


async def pairs(server: Server, waiting: int, run_s: float) -> dict[str, float]:
    """So many pairs at once, each followed by the next."""
    store = ValkeyStore(
        place_of(server.url),
        f"bench-{secrets.token_hex(4)}",
        lease_ms=60_000,
        remember_ms=60_000,
        clock_s=time.monotonic,
        owner=OWNER,
    )
    store.start()
    limits = [Charge(f"tenant:t{number}", "tokens", WIDE) for number in range(20)] + [Charge("pool:p", "tokens", WIDE)]
    await _answered(store, [Heartbeat(OWNER), SetLimits("v", 1, tuple(limits))])
    load = _Pairs(store, waiting)
    await asyncio.sleep(WARM_S)
    before, load.took_s, began_s = load.done, [], time.perf_counter()
    client_s, server_s = time.process_time(), _cpu_s(server.pid)
    await asyncio.sleep(run_s)
    took_s, done = time.perf_counter() - began_s, load.done - before
    client_s, server_s = time.process_time() - client_s, _cpu_s(server.pid) - server_s
    load.is_over = True
    store.close()
    waits_s = sorted(load.took_s)
    return {
        "pairs_per_s": done / took_s,
        "p99_ms": 1000 * waits_s[int(0.99 * len(waits_s))],
        "client_us_per_pair": 1e6 * client_s / done,
        "server_us_per_pair": 1e6 * server_s / done,
    }


def _cpu_s(pid: int) -> float:
    """Of a process, as the system counts it."""
    told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")


class _Pairs:
    """Reserve, answered, stop, answered, and again."""

    def __init__(self, store: ValkeyStore, waiting: int) -> None:
        self.done = 0
        self.took_s: list[float] = []
        self.is_over = False
        self._store = store
        self._number = 0
        for _ in range(waiting):
            self._reserve()

    def _reserve(self) -> None:
        if self.is_over:
            return
        self._number += 1
        name, tenant, asked_s = f"{self._number:032x}", f"t{self._number % 20}", time.perf_counter()
        charges = tuple(
            (scope, unit, amount)
            for scope in (f"tenant:{tenant}", "pool:p", "replica:p/0")
            for unit, amount in (("tokens", 264), ("requests", 1))
        )
        flow, weights = ("interactive", tenant), (1.0, 1.0)
        command = Reserve(name, None, "", OWNER, "p", "p/0", flow, weights, 264, charges, 0, False, "v")
        self._store.apply([command], lambda answers: self._granted(name, asked_s, answers))

    def _granted(self, name: str, asked_s: float, answers: list[Answer]) -> None:
        self.took_s.append(time.perf_counter() - asked_s)
        assert answers[0].outcome == "granted", answers[0]
        self._store.apply([Stop(name, OWNER, "E1", "completed", USAGE)], self._stopped)

    def _stopped(self, answers: list[Answer]) -> None:
        assert answers[0].outcome == "ok", answers[0]
        self.done += 1
        self._reserve()


async def _answered(store: ValkeyStore, commands: list[Any]) -> None:
    done = asyncio.Event()
    while not done.is_set():  # dropped while there is no connection yet
        store.apply(commands, lambda answers: done.set())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), 0.2)


# what the server does of the smallest script


def _script(server: Server, script: str, run_s: float) -> tuple[float, float]:
    """How many a second, and what each costs the server of CPU, in microseconds."""
    sha = str(server.ask("SCRIPT", "LOAD", script))
    words = ["EVALSHA", sha, *("4", "r:__rand_int__", "tenant", "pool", "leases", "hash", "300")]
    if script == INCR:
        words = ["EVALSHA", sha, "1", "n"]
    began_s, before_s = time.perf_counter(), _cpu_s(server.pid)
    tool = shutil.which("redis-benchmark")
    if tool is None:
        per_s = _own_script_per_s(server, words, run_s)
        return per_s, 1e6 * (_cpu_s(server.pid) - before_s) / (per_s * (time.perf_counter() - began_s))
    calls = int(SCRIPT_CALLS[script] * run_s)
    size = ["-P", str(DEEP), "-c", str(CONNECTIONS), "-n", str(calls), "-r", "1000000000"]
    command = [tool, "-p", str(server.port), *size, "--csv", *words]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
    cpu_us = 1e6 * (_cpu_s(server.pid) - before_s) / calls
    return float(told[-1].split('","')[1].strip('"')), cpu_us


def _own_script_per_s(server: Server, words: list[str], run_s: float) -> float:
    """Sixteen connections, each with sixty-four calls under way; replies are counted by their ends."""
    call = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)
    numbers = count()  # twelve digits: as long as the word that they stand for

    def batch() -> bytes:
        return b"".join(call.replace(b"__rand_int__", b"%012d" % next(numbers)) for _ in range(DEEP))

    left, done = {}, 0
    with contextlib.ExitStack() as stack:
        ready = stack.enter_context(selectors.DefaultSelector())
        for _ in range(CONNECTIONS):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ready.register(line, selectors.EVENT_READ)
            left[line] = DEEP
            line.sendall(batch())
        began_s = time.perf_counter()
        while time.perf_counter() < began_s + run_s:
            for key, _ in ready.select(1.0):
                line = key.fileobj
                assert isinstance(line, socket.socket)
                replies = line.recv(65_536).count(b"\n")
                done += replies
                left[line] -= replies
                if not left[line]:
                    left[line] = DEEP
                    line.sendall(batch())
        return done / (time.perf_counter() - began_s)


# the others


def peers_python() -> Path | None:
    """An environment of their own that has the others' limiters; made now if there is none. None: it cannot be made."""
    python = PEERS_HOME / "bin" / "python"
    if not python.exists():
        print(f"ledger: making {PEERS_HOME} with {', '.join(limiters.NEEDED)}", file=sys.stderr)
        try:
            subprocess.run([sys.executable, "-m", "venv", str(PEERS_HOME)], check=True, timeout=120)
            pip = [str(python), "-m", "pip", "install", "--quiet", *limiters.NEEDED]
            subprocess.run(pip, check=True, timeout=300, stdout=subprocess.DEVNULL)
        except (subprocess.SubprocessError, OSError) as error:
            shutil.rmtree(PEERS_HOME, ignore_errors=True)
            print(f"ledger: the others are not measured: {error}", file=sys.stderr)
            return None
    return python


def hits(python: Path, server: Server, name: str, run_s: float) -> dict[str, Any]:
    """One of them, in a process of its own, as ours is."""
    command = [str(python), limiters.__file__, name, str(server.port), str(run_s)]
    told: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    server.ask("FLUSHALL")
    return told


def table(report: dict[str, Any]) -> str:
    """For eyes."""
    scripts = f"a script of one operation {report['script_per_s']:,}/s, of one INCR {report['incr_per_s']:,}/s"
    lines = [f"server {report['server']}; {scripts} ({report['script_by']})"]
    for waiting, one in report["valkey"].items():
        ratios = f"ratio {one['ratio']} (by CPU {one['ratio_cpu']}, of INCR {one['ratio_incr']})"
        costs = f"client {one['client_us_per_pair']} us, server {one['server_us_per_pair']} us"
        lines.append(
            f"{waiting:>3} waiting: {one['pairs_per_s']:,} pairs/s, {ratios}, p99 {one['p99_ms']} ms; CPU a pair: {costs}"
        )
    lines += [f"{name}: {one:,} hits/s" for name, one in report["peers_hits_per_s"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
