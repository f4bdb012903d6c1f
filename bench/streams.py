"""Streams by the thousand, all at once, and read by nobody: what a gateway holds for them, and what it adds.

    open   5,000 streams with a chunk each half a second: how many stand open, memory for each beyond the idle gateway
    tick   256 streams that an engine advances together, each 50 ms: how much later their chunks come than without anything
           between, and what one costs
    slow   10 clients that ask for streams as fast as they go and read nothing: memory for each; what they do not take must
           stay in the engine

headworks runs as in production (`peers/headworks.yaml`) on one core, engine and generator on the other, but promises no first
token and sheds nothing for its own sake: this is about what streams hold, also on a machine that is busy with other things.
Targets: all 5,000 open; at most 12 KiB for each; a slow reader holds at most `SLOW_KIB_MAX`, its port's write buffer and a read
on the way. The tick has no target: it is queueing inside one burst, and grows with what a chunk costs.

    python bench/streams.py --json

Exit 1 where a target is missed, 2 where the run could not be made. Takes a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from generator import RUN_S_MAX, Unusable, build, generated, loading, mock, port_of, rss_bytes, run
from headworks import RUNS_AS
from proxies import HEADWORKS, KEY, headworks, new_keys
from servers import Server

OPEN, TICKING, SLOW = 5_000, 256, 10
OPENING_S, FILLED_S_MAX = 25.0, 30.0
READ_BYTES = 32_768
"""What the kernel may keep for a client that reads nothing, so that it is full soon."""
OPEN_KIB_MAX, SLOW_KIB_MAX = 12.0, 768.0
BODY = b'{"model":"mock","messages":[{"role":"user","content":"x"}],"max_tokens":1000000,"seed":0,"stream":true}'


def main() -> int:
    parser = argparse.ArgumentParser(description="Streams by the thousand, all at once, and read by nobody")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        report = measured()
    except (subprocess.CalledProcessError, Unusable) as error:
        print(f"streams: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report, indent=1) if options.json else table(report))
    return 0 if all(report["holds"].values()) else 1


def measured() -> dict[str, Any]:
    """Each part with a gateway of its own: memory that was taken once is not given back."""
    build()
    figures: dict[str, float] = {}
    for part, words in ((stand_open, ()), (tick, ("sync",)), (read_slowly, ())):
        with contextlib.ExitStack() as stack:
            folder, keys = Path(stack.enter_context(tempfile.TemporaryDirectory())), new_keys()
            engine = stack.enter_context(mock(*words))
            gateway = stack.enter_context(headworks(folder, port_of(engine), keys, patient()))
            run(gateway, ["closed", "-c", "4", "-d", "1", "-w", "0.5", "-b", "1024"], keys[KEY])
            figures |= part(gateway, engine, keys[KEY])
    holds = {
        f"{OPEN:,} streams open": figures["open"] == OPEN,
        f"an open stream <= {OPEN_KIB_MAX:g} KiB": figures["open_kib"] <= OPEN_KIB_MAX,
        f"a slow reader <= {SLOW_KIB_MAX:g} KiB": figures["slow_kib"] <= SLOW_KIB_MAX,
        "what a slow reader does not take stays in the engine": figures["slow_chunks_per_s"] == 0.0,
    }
    return {"measured": time.strftime("%Y-%m-%d", time.gmtime()), "runs_as": RUNS_AS, **figures, "holds": holds}


def patient() -> str:
    """The configuration of all benches, with promises and guards out of reach."""
    text = HEADWORKS.replace("slo: {ttft_s: 10.0", "slo: {ttft_s: 50.0").replace("wait_s_max: 5,", "wait_s_max: 40,")
    return text.replace("server: {", "server: {guard: {loop_lag_shed_bulk_s: 50, loop_lag_shed_s: 60}, ")


def stand_open(gateway: Server, engine: Server, key: str) -> dict[str, float]:
    """Opened over ten seconds, and looked at when even a busy machine has them."""
    idle_bytes = rss_bytes(gateway.pid)
    words = ["stream", "-c", str(OPEN), "-n", "100000", "-P", "500000", "-R", "10000", "-w", f"{OPENING_S}", "-d", "1.5"]
    with subprocess.Popen(loading(port_of(gateway), words, key), stdout=subprocess.PIPE) as load:
        time.sleep(OPENING_S + 1.0)
        open_bytes = rss_bytes(gateway.pid)
        told = json.loads(load.communicate(timeout=RUN_S_MAX)[0])
    if not told["streams_open"]:
        raise Unusable(f"not one stream was open: {told}")
    opened = told["streams_open"]
    return {
        "idle_mib": round(idle_bytes / 2**20, 1),
        "open": opened,
        "open_kib": round((open_bytes - idle_bytes) / 1024 / opened, 1),
    }


def tick(gateway: Server, engine: Server, key: str) -> dict[str, float]:
    """All of them due at the same instant, as after a step of a batching engine."""
    words = ["stream", "-c", str(TICKING), "-n", "100000", "-P", "50000", "-w", "1.5", "-d", "3"]
    direct, through = generated(port_of(engine), words, key), run(gateway, words, key)
    added = {
        f"tick_added_{percent}_us": through.seen[f"delay_{percent}"] - direct[f"delay_{percent}"] for percent in ("p50", "p99")
    }
    return {**added, "tick_cpu_us_per_chunk": round(through.cost_us, 2)}


def read_slowly(gateway: Server, engine: Server, key: str) -> dict[str, float]:
    """Asked for and never read. The sockets' own buffers are the kernel's, and full before ours are."""
    idle_bytes = rss_bytes(gateway.pid)
    with contextlib.ExitStack() as stack:
        for _ in range(SLOW):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ_BYTES)
            client.connect(("127.0.0.1", port_of(gateway)))
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\n"
            client.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
        until_s, before, made = time.monotonic() + FILLED_S_MAX, -2.0, -1.0
        while made != before and time.monotonic() < until_s:
            time.sleep(0.5)
            before, made = made, chunks(engine)
        held_bytes = rss_bytes(gateway.pid)
        time.sleep(1.0)
        made_per_s = chunks(engine) - made
    return {"slow_kib": round((held_bytes - idle_bytes) / 1024 / SLOW, 1), "slow_chunks_per_s": made_per_s}


def chunks(engine: Server) -> float:
    """How many the engine has made in all."""
    with socket.create_connection(("127.0.0.1", port_of(engine))) as line:
        line.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        page = line.recv(65_536).decode()
    [counted] = [row for row in page.splitlines() if row.startswith("vllm:generation_tokens_total")]
    return float(counted.rsplit(" ", 1)[1])


def table(report: dict[str, Any]) -> str:
    rows = [f"| {name} | {value:,} |" for name, value in report.items() if isinstance(value, int | float)]
    held = [f"- {'holds' if holds else 'MISSED'}: {claim}" for claim, holds in report["holds"].items()]
    return "\n".join([report["runs_as"], "", "| | |", "|---|--:|", *rows, "", *held])


if __name__ == "__main__":
    sys.exit(main())
