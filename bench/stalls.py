"""What 500 stalled connections cost the good ones: p99 beside them ÷ p99 without, in one run.

    .venv/bin/python bench/stalls.py

Three processes: the port with a small handler, a crowd that stalls in every way the port knows (silent, half a line, half a
head, half a body, a head that drips a byte a second), and this one, which asks at a steady rate on a few connections. The
two arms alternate, so that what else the machine does falls on both. Prints JSON; exit 1 when the ratio passes the bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time

import uvloop

from headworks.gateway.http import EdgeLimits, Exchange, Server

STALLED = 500
RATIO_MAX = 1.5
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: edge\r\nContent-Type: application/json\r\nContent-Length: 1024\r\n\r\n"
OPENINGS = [b"", b"POST /v1/ch", HEAD[:60], HEAD + b"x", HEAD[:20]]
DRIPS = 4
"""The last of the openings goes on, a byte a second."""


async def answer(exchange: Exchange) -> None:
    body = await exchange.read_body()
    exchange.respond(200, [(b"Content-Type", b"application/json")], b'{"bytes": %d}' % len(body))


async def serve() -> None:
    server = Server(
        answer,
        EdgeLimits(header_s=600, body_s=600, body_idle_s=600),
        allowed={"/v1/chat/completions": ("POST",)}.get,
        clock_s=time.monotonic,
        error_body=lambda status, code, message, path: ([], message.encode()),
    )
    [address] = await server.start("127.0.0.1", 0)
    print(address[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.close(0)


async def crowd(port: int) -> None:
    """`open` and `close` on standard input, each answered by a line once it is done."""
    writers: list[asyncio.StreamWriter] = []
    dripping = asyncio.ensure_future(drip(writers))
    loop = asyncio.get_running_loop()
    while command := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        if command == "open":
            for number in range(STALLED):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(OPENINGS[number % len(OPENINGS)])
                writers.append(writer)
        else:
            for writer in writers:
                writer.close()
            writers.clear()
        print(command, flush=True)
    dripping.cancel()


async def drip(writers: list[asyncio.StreamWriter]) -> None:
    sent = len(OPENINGS[DRIPS])
    while True:
        await asyncio.sleep(1)
        for writer in writers[DRIPS :: len(OPENINGS)]:
            writer.write(HEAD[sent : sent + 1])
        sent = sent + 1 if writers and sent < len(HEAD) - 1 else len(OPENINGS[DRIPS])


async def delays_s(port: int, seconds: float, rate_per_s: float, connections: int) -> list[float]:
    """How long each answer took from the moment its request was due; a late sender counts as delay."""
    took_s: list[float] = []

    async def ask(first_s: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        due_s = first_s
        while due_s < end_s:
            await asyncio.sleep(due_s - time.monotonic())
            writer.write(HEAD + b"x" * 1024)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            await reader.readuntil(b"}")
            took_s.append(time.monotonic() - due_s)
            due_s += connections / rate_per_s
        writer.close()

    begun_s = time.monotonic() + 0.1
    end_s = begun_s + seconds
    await asyncio.gather(*(ask(begun_s + number / rate_per_s) for number in range(connections)))
    return took_s


def percentile_ms(values_s: list[float], ratio: float) -> float:
    ordered = sorted(values_s)
    return round(1e3 * ordered[min(len(ordered) - 1, int(len(ordered) * ratio))], 3)


async def child(*arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, __file__, *arguments, stdin=pipe, stdout=pipe)


async def told(process: asyncio.subprocess.Process, line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    if line:
        process.stdin.write(line.encode() + b"\n")
    return (await process.stdout.readline()).decode().strip()


async def measure(rounds: int, seconds: float, rate_per_s: float) -> int:
    server = await child("--role", "serve")
    port = int(await told(server, ""))
    stalling = await child("--role", "crowd", "--port", str(port))
    alone: list[list[float]] = []
    beside: list[list[float]] = []
    await delays_s(port, 0.5, rate_per_s, 8)
    for _ in range(rounds):
        alone.append(await delays_s(port, seconds, rate_per_s, 8))
        assert await told(stalling, "open") == "open"
        beside.append(await delays_s(port, seconds, rate_per_s, 8))
        assert await told(stalling, "close") == "close"
    for process in (stalling, server):
        await process.communicate(b"")
    p99_alone_ms = statistics.median(percentile_ms(values, 0.99) for values in alone)
    p99_beside_ms = statistics.median(percentile_ms(values, 0.99) for values in beside)
    ratio = round(p99_beside_ms / p99_alone_ms, 3)
    report = {
        "stalled": STALLED,
        "requests": sum(map(len, alone)) + sum(map(len, beside)),
        "p50_alone_ms": statistics.median(percentile_ms(values, 0.5) for values in alone),
        "p50_beside_ms": statistics.median(percentile_ms(values, 0.5) for values in beside),
        "p99_alone_ms": p99_alone_ms,
        "p99_beside_ms": p99_beside_ms,
        "p99_ratio": ratio,
        "p99_ratio_max": RATIO_MAX,
        "holds": ratio <= RATIO_MAX,
    }
    print(json.dumps(report, indent=2))
    return 0 if ratio <= RATIO_MAX else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--role", choices=["measure", "serve", "crowd"], default="measure", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each arm in each round")
    parser.add_argument("--rate", type=float, default=400.0, help="good requests a second")
    given = parser.parse_args()
    if given.role == "serve":
        uvloop.run(serve())
    elif given.role == "crowd":
        uvloop.run(crowd(given.port))
    else:
        return uvloop.run(measure(given.rounds, given.seconds, given.rate))
    return 0


if __name__ == "__main__":
    sys.exit(main())
