"""Soak: a gateway at 80 % of what its engines carry, a fifth of everything going wrong, for as long as it is told.

    .venv/bin/python bench/soak.py --minutes 30 [--json FILE]

The gateway runs in this process, so that its tasks can be counted; two fake engines and the clients are processes of their
own. Of a hundred requests twenty go wrong: clients leave before or amid their answer, bodies are no use, keys are unknown,
engines fail, break off or answer garbage, and every few seconds one of them hangs, restarts, says it is busy, or loses a
metric. Exit 1 where memory, descriptors, tasks or series of the last third are more than those of the second third by more
than is allowed, or where anything is held once everything has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvloop

from headworks.config import build
from headworks.config.load import load_bytes
from headworks.gateway.app import App
from headworks.gateway.parts import rss_bytes

ENGINES = 2
PLACES = 8
TOKENS = (4, 40)
LOAD_RATIO = 0.8
CLIENT_FAULT_RATIO, ENGINE_FAULT_RATIO = 0.17, 0.03
"""Of all requests. More of the second opens a breaker for good: then one engine bears it all, and that is another bench."""
SAMPLE_S = 2.0
FAULT_STANDS_S = 0.2
BREAK_EVERY_S = (3.0, 9.0)
RSS_GROWTH_MAX = 1.03
COUNT_GROWTH_MAX = 8
"""Descriptors and tasks are counted amid the load, so they differ by what happens to be open."""
KEY = "soak-key-0123456789abcdef"
ADMIN = "soak-admin-0123456789abcdef"
ENVIRONMENT = {"SOAK_KEY": KEY, "SOAK_ADMIN": ADMIN}
ANSWER_S_MAX = 200.0
"""Also on a machine that stands still for a while."""
FAULTS = ("leaves early", "leaves amid", "bad body", "bad key")


@dataclass
class Sample:
    at_s: float
    rss_bytes: int
    descriptors: int
    tasks: int
    series: int


@dataclass
class Soak:
    samples: list[Sample] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)


def config(directory: Path, engines: list[str]) -> Any:
    given = {
        "server": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "admin_key": "env:SOAK_ADMIN", "drain_s": 5},
        "ledger": {"url": f"sqlite:{directory}/ledger.db"},
        "log": {"decisions": f"{directory}/log"},
        "usage": {"path": f"{directory}/usage"},
        "pools": {
            "llama": {"replicas": [{"url": url, "engine": "vllm"} for url in engines], "active_requests_max": PLACES * 2}
        },
        "classes": {
            "interactive": {"slo": {"ttft_s": 5}, "queue": {"wait_s_max": 5}, "timeouts": {"first_byte_s": 5, "idle_s": 5}}
        },
        "tenants": {"acme": {"keys": ["env:SOAK_KEY"], "class": "interactive"}},
    }
    return load_bytes(json.dumps(given).encode(), "soak.yaml", ENVIRONMENT).config_or_raise()


def engine(speed: float) -> tuple[subprocess.Popen[str], str]:
    words = (
        "-m",
        "headworks.testing.fake_engine",
        "--preset",
        "vllm_cpu_tiny",
        "--max-num-seqs",
        str(PLACES),
        "--port",
        "0",
        "--speed",
        str(speed),
    )
    child = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    return child, child.stdout.readline().removeprefix("listening on ").strip()


# Clients, in a process of their own.


async def ask(host: str, port: int, body: bytes, key: str, leaves_s: float | None) -> str:
    """One request: its status, `cut` where its answer broke off, `left` where its client did."""
    reader, writer = await asyncio.open_connection(host, port)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\nAuthorization: Bearer {key}\r\n"
    )
    writer.write(head.encode() + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    try:
        received = await asyncio.wait_for(reader.read(), leaves_s or ANSWER_S_MAX)
    except TimeoutError:
        return "left" if leaves_s else "hung"
    except ConnectionError:
        return "cut"
    finally:
        writer.transport.abort()
    whole = received.endswith(b"0\r\n\r\n") or b"Content-Length" in received.partition(b"\r\n\r\n")[0]
    return received[9:12].decode() if received and whole else "cut"


async def offer(url: str, rate_per_s: float, seconds: float, seed: int) -> None:
    """Poisson arrivals; prints how many ended in which way. A rate of 0: as many at once as there are places."""
    chance, answers = random.Random(seed), Counter[str]()
    host, _, port = url.removeprefix("http://").rpartition(":")
    under_way: set[asyncio.Task[None]] = set()
    end_s = time.monotonic() + seconds

    async def one() -> None:
        fault = chance.choice(FAULTS) if rate_per_s and chance.random() < CLIENT_FAULT_RATIO else ""
        body = {"model": "tiny", "messages": [{"role": "user", "content": "one two three"}], "stream": chance.random() < 0.7}
        sent = json.dumps({**body, "max_tokens": chance.randint(*TOKENS)}).encode()
        sent = sent[: chance.randrange(len(sent))] if fault == "bad body" else sent
        leaves_s = {"leaves early": 0.005, "leaves amid": chance.uniform(0.05, 0.6)}.get(fault)
        said = await ask(host, int(port), sent, "wrong" if fault == "bad key" else KEY, leaves_s)
        answers[f"{fault or 'good'}: {said}"] += 1

    async def again() -> None:
        while time.monotonic() < end_s:
            await one()

    if not rate_per_s:
        await asyncio.gather(*(again() for _ in range(PLACES * ENGINES)))
    while rate_per_s and time.monotonic() < end_s:
        await asyncio.sleep(chance.expovariate(rate_per_s))
        task = asyncio.create_task(one())
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)
    print(json.dumps(answers))


async def clients(url: str, rate_per_s: float, seconds: float, seed: int) -> Counter[str]:
    words = ("--clients", url, "--rate", str(rate_per_s), "--seconds", str(seconds), "--seed", str(seed))
    child = await asyncio.create_subprocess_exec(sys.executable, __file__, *words, stdout=asyncio.subprocess.PIPE)
    told, _ = await child.communicate()
    return Counter(json.loads(told))


# What goes wrong in engines, and what is looked at.


async def break_engines(urls: list[str], seconds: float, seed: int, soak: Soak, fails_per_s: float) -> None:
    """Single answers that fail, as many as are wanted, and now and then a whole engine. Heals them all at the end."""
    chance, end_s = random.Random(seed), time.monotonic() + seconds
    single = ("fault?kind=error", "fault?kind=break&after_tokens=2", "fault?kind=garbage&after_tokens=1")
    whole = ("hang", "restart?down_s=0.5", "busy?times=3", "slow?factor=4", "metrics?drop=vllm:num_requests_running", "drain")
    next_whole_s = time.monotonic() + chance.uniform(*BREAK_EVERY_S)
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client:

        async def order(url: str, what: str) -> None:
            with contextlib.suppress(httpx.HTTPError):
                await client.post(f"{url}/fake/{what}")
                soak.broken[what] += 1

        while time.monotonic() < end_s:
            await asyncio.sleep(chance.expovariate(fails_per_s))
            failing = chance.choice(urls)
            await order(failing, chance.choice(single))
            await asyncio.sleep(FAULT_STANDS_S)
            await order(failing, "heal")  # nobody may have come: faults that heap up would meet every probe of a breaker
            if time.monotonic() > next_whole_s:
                url, what = chance.choice(urls), chance.choice(whole)
                await order(url, what)
                await asyncio.sleep(chance.uniform(0.1, 1.0))
                if "restart" not in what:
                    await order(url, "resume")
                    await order(url, "slow?factor=1")
                    await order(url, "heal")
                next_whole_s = time.monotonic() + chance.uniform(*BREAK_EVERY_S)
        for url in urls:
            await order(url, "resume")
            await order(url, "slow?factor=1")
            await order(url, "heal")


def sample(app: App, began_s: float) -> Sample:
    series = sum(1 for line in app.registry.render().splitlines() if line and not line.startswith(b"#"))
    descriptors = len(os.listdir("/proc/self/fd"))
    return Sample(time.monotonic() - began_s, rss_bytes(), descriptors, len(asyncio.all_tasks()), series)


async def look(app: App, soak: Soak, seconds: float) -> None:
    began_s = time.monotonic()
    while time.monotonic() - began_s < seconds:
        await asyncio.sleep(SAMPLE_S)
        soak.samples.append(sample(app, began_s))


def grown(samples: list[Sample]) -> dict[str, tuple[float, float]]:
    """The middle of the second third, and of the last, of each measure."""
    third = len(samples) // 3
    parts = samples[third : 2 * third], samples[2 * third :]
    names = ("rss_bytes", "descriptors", "tasks", "series")
    return {name: tuple(statistics.median(getattr(one, name) for one in part) for part in parts) for name in names}  # type: ignore[misc]


def judged(figures: dict[str, tuple[float, float]]) -> list[str]:
    """What has grown by more than is allowed."""
    found = []
    for name, (before, after) in figures.items():
        allowed = before * RSS_GROWTH_MAX if name == "rss_bytes" else before + COUNT_GROWTH_MAX
        if after > allowed:
            found.append(f"{name}: {before:g}, and then {after:g}")
    return found


async def settled(app: App, engines: list[str], within_s: float = 60.0) -> list[str]:
    """What is still held when everything has had its time."""
    end_s = time.monotonic() + within_s
    while True:
        async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
            inside = [len((await client.get(url + "/fake/state")).json()["held"]) for url in engines]
        charged, differences = app.ledger.charged(), await app.ledger.audit()
        left = {
            "charged": len(charged),
            "inside": sum(inside),
            "runs": len(app.gate._desk.runs),
            "calls": len(app.runner._calls),
        }
        if not any(left.values()) and not differences:
            return []
        if time.monotonic() > end_s:
            return [f"{name}: {count}" for name, count in left.items() if count] + list(differences)
        await asyncio.sleep(0.2)


async def run(minutes: float, seed: int, speed: float) -> dict[str, Any]:
    soak, urls = Soak(), []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as children:
        for _ in range(ENGINES):
            child, url = engine(speed)
            children.callback(child.terminate)
            urls.append(url)
        read = config(Path(folder), urls)
        app = App(build.policy(read, number=1), build.settings(read, ENVIRONMENT))
        await app.start()
        try:
            while app.obstacles():  # noqa: ASYNC110 (an engine has to be seen first)
                await asyncio.sleep(0.05)
            host, port = app.address[:2]
            url = f"http://{host}:{port}"
            capacity = await clients(url, 0.0, 15.0, seed)
            rate_per_s = LOAD_RATIO * capacity["good: 200"] / 15.0
            gc.collect()
            before = sample(app, time.monotonic())
            seconds = minutes * 60
            soak.answers, _, _ = await asyncio.gather(
                clients(url, rate_per_s, seconds, seed),
                break_engines(urls, seconds, seed, soak, rate_per_s * ENGINE_FAULT_RATIO),
                look(app, soak, seconds),
            )
            held = await settled(app, urls)
            await asyncio.sleep(2.0)
            gc.collect()
            after = sample(app, time.monotonic())
            faults = app.server.counters.faults
        finally:
            await app.stop()
    figures = grown(soak.samples)
    wrong = judged(figures) + held + ([f"faults of ours: {faults}"] if faults else [])
    wrong += [f"{name}: {count}" for name, count in soak.answers.items() if "hung" in name or ": 500" in name]
    if after.tasks > before.tasks:
        wrong.append(f"tasks at rest: {before.tasks}, and then {after.tasks}")
    return {
        "minutes": minutes,
        "rate_per_s": round(rate_per_s, 1),
        "requests": soak.answers.total(),
        "answers": dict(sorted(soak.answers.items())),
        "broken": dict(soak.broken),
        "second_and_last_third": figures,
        "at_rest": [asdict(before), asdict(after)],
        "held": held,
        "wrong": wrong,
    }


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--minutes", type=float, default=30.0)
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--speed", type=float, default=1.0, help="of the engines: a machine that does other work carries less")
    flags.add_argument("--json", type=Path)
    for name, kind in (("--clients", str), ("--rate", float), ("--seconds", float)):
        flags.add_argument(name, type=kind, help=argparse.SUPPRESS)
    given = flags.parse_args()
    if given.clients:
        uvloop.run(offer(given.clients, given.rate, given.seconds, given.seed))
        return 0
    told = uvloop.run(run(given.minutes, given.seed, given.speed))
    text = json.dumps(told, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")
    return 1 if told["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
