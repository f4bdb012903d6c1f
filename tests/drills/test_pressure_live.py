"""Under pressure, live on fake engines as processes: the cascade on a ramp, and long prompts beside a chat (issue 6, E5, B7).

Minutes each, so HEADWORKS_DRILLS=1 runs them. In virtual time: `scenarios/ramp.yaml`, `scenarios/prefill_avalanche.yaml`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from processes import configuration, engine, gateway, until

pytestmark = pytest.mark.skipif("HEADWORKS_DRILLS" not in os.environ, reason="four minutes: HEADWORKS_DRILLS=1 runs them")

GOOD_S = 3.0
RAMP = ((0, 1.0), (8, 3.0), (16, 6.0), (24, 14.0), (44, 4.0), (52, 1.0))
"""Requests a second from that second on. An engine serves two and a half answers of 128 tokens a second, or ten of 32."""
RAMP_S = 80
STEPS = [
    {"clamp_output": 32, "enter_ratio": 0.8, "leave_ratio": 0.5, "dwell_s": 5},
    {"smaller_model": "small", "enter_ratio": 0.9, "leave_ratio": 0.6, "dwell_s": 5},
]
WORTH = {"": 1.0, "clamp_output=32": 0.8, "smaller_model=small": 0.6, "clamp_output=32, smaller_model=small": 0.48}
"""As in `sim/report.py`."""


@dataclass
class Seen:
    """What clients got, by what `Headworks-Degraded` said; and how many steps were in force when."""

    good: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)
    levels: list[tuple[float, int]] = field(default_factory=list)

    @property
    def quality_per_s(self) -> float:
        return sum(count * WORTH[told] for told, count in self.good.items()) / RAMP_S


async def one(client: httpx.AsyncClient, url: str, body: dict[str, Any], seen: Seen) -> None:
    began_s = time.monotonic()
    try:
        answer = await client.post(url + "/v1/chat/completions", json=body)
    except httpx.HTTPError as error:
        seen.others[type(error).__name__] += 1
        return
    if answer.status_code != 200:
        seen.others[str(answer.status_code)] += 1
    elif time.monotonic() - began_s > GOOD_S:
        seen.others["late"] += 1
    else:
        seen.good[answer.headers.get("headworks-degraded", "")] += 1


async def offer(url: str, admin: str, steps: Sequence[tuple[float, float]], seen: Seen) -> None:
    """Arrivals at random by the steps' rates, and a look at the cascade five times a second."""
    random, asking, began_s = Random(1), set(), time.monotonic()
    body = {"model": "tiny", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 128}
    async with httpx.AsyncClient(timeout=20, trust_env=False, limits=httpx.Limits(max_connections=None)) as client:
        looking = asyncio.create_task(look(admin, seen))
        next_s = 0.0
        while next_s < RAMP_S:
            next_s += random.expovariate(next(rate for from_s, rate in reversed(steps) if from_s <= next_s))
            await asyncio.sleep(max(0.0, began_s + next_s - time.monotonic()))
            task = asyncio.create_task(one(client, url, body, seen))
            asking.add(task)
            task.add_done_callback(asking.discard)
        await asyncio.gather(*asking)
        looking.cancel()


async def look(admin: str, seen: Seen) -> None:
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
        while True:
            pool = (await client.get(admin + "/admin/snapshot")).json()["pools"]["llama"]
            level = pool["steps_in_force"].get("interactive", 0)
            if not seen.levels or level != seen.levels[-1][1]:
                seen.levels.append((time.monotonic(), level))
            await asyncio.sleep(0.2)


def ramp(place: Path, steps: list[dict[str, Any]]) -> tuple[Seen, str]:
    """The ramp with these steps. What was seen, and the metrics at the end."""
    place.mkdir()
    classes = {
        "interactive": {
            "slo": {"ttft_s": 1.5, "e2e_s": None, "tpot_s": None},
            "queue": {"wait_s_max": 0.8},
            "on_pressure": steps,
        }
    }
    flags = ("--preset", "h100_8b", "--max-num-seqs", "4", "--speed", "0.7")
    with engine(0, *flags) as main, engine(0, *flags, "--served-model-name", "small") as small:
        pools = {
            "llama": {"models": ["tiny"], "replicas": [{"url": main.url, "engine": "vllm"}], "active_requests_max": 4},
            "small": {"models": ["small"], "replicas": [{"url": small.url, "engine": "vllm"}], "active_requests_max": 4},
        }
        file = configuration(place, "", pools=pools, classes=classes)
        with gateway("--config", str(file)) as made:
            seen = Seen()
            asyncio.run(offer(made.url, made.admin, RAMP, seen))
            metrics = made.get("/metrics").text
            until(lambda: made.charged() == 0)
            assert made.audit() == []
    return seen, metrics


def test_E5_the_cascade_goes_up_and_down_a_ramp_and_is_worth_more_than_refusing_alone(tmp_path: Path) -> None:
    seen, metrics = ramp(tmp_path / "cascade", STEPS)
    alone, _ = ramp(tmp_path / "alone", [])
    print(f"cascade: {seen.quality_per_s:.2f}/s worth, {dict(seen.good)}, others {dict(seen.others)}; levels {seen.levels}")
    print(f"refusing alone: {alone.quality_per_s:.2f}/s, {dict(alone.good)}, others {dict(alone.others)}")
    assert seen.quality_per_s > alone.quality_per_s
    told = " ".join(seen.good)
    assert "clamp_output=32" in told
    assert "smaller_model=small" in told
    for step in ("clamp_output", "smaller_model"):
        assert f'headworks_degraded_total{{class="interactive",step="{step}"}}' in metrics
    times_s, levels = zip(*seen.levels, strict=True)
    assert min(after_s - before_s for before_s, after_s in pairwise(times_s[1:])) >= 5.0 - 0.5, "looked at every 0.2 s"
    assert {abs(after - before) for before, after in pairwise(levels)} == {1}
    assert (levels[0], max(levels), levels[-1]) == (0, 2, 0)


# long prompts beside a chat

DOCUMENTS = 2_000
DOCUMENT = "%08d " + "word " * 10_000
"""With its number in front, so that no engine has read its beginning."""
SPEED = 0.25
"""Of the engine: all its times are four times as long as in the scenario, and so are the promises and the distances here."""
PROMISE_S = 1.0 / SPEED
CHAT_PER_S, CHAT_S = 10.0 * SPEED, 25.0 / SPEED
FROM_S, WITHIN_S = 5.0 / SPEED, 1.0 / SPEED
"""The documents come from then on, within so long."""
ENVIRONMENT = {"CHAT_KEY": "chat-key-of-the-drill-0", "LIBRARY_KEY": "library-key-of-the-drill"}


async def chat(url: str) -> list[float | None]:
    """First tokens of the chat; None where there was none."""
    firsts: list[float | None] = []
    random, asking, began_s = Random(1), set(), time.monotonic()
    body = {"model": "tiny", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 64, "stream": True}

    async def ask(client: httpx.AsyncClient) -> None:
        sent_s, first_s = time.monotonic(), None
        async with client.stream("POST", url + "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if first_s is None and '"content"' in line:
                    first_s = time.monotonic() - sent_s
            firsts.append(first_s if answer.status_code == 200 else None)

    headers = {"Authorization": f"Bearer {ENVIRONMENT['CHAT_KEY']}"}
    async with httpx.AsyncClient(timeout=120, trust_env=False, headers=headers) as client:
        next_s = 0.0
        while next_s < CHAT_S:
            next_s += random.expovariate(CHAT_PER_S)
            await asyncio.sleep(max(0.0, began_s + next_s - time.monotonic()))
            task = asyncio.create_task(ask(client))
            asking.add(task)
            task.add_done_callback(asking.discard)
        await asyncio.gather(*asking)
    return firsts


def send_documents(url: str) -> None:
    """In a process of its own and by plain sockets: sending a hundred megabytes must not hold up who measures the chat.

    Prints how many had which status.
    """

    async def run() -> Counter[str]:
        seen: Counter[str] = Counter()
        address = urlsplit(url)
        body = json.dumps({"model": "tiny", "prompt": DOCUMENT, "max_tokens": 16}).encode()
        size_bytes = len(body % 0)
        lines = (
            "POST /v1/completions HTTP/1.1",
            f"Host: {address.netloc}",
            f"Authorization: Bearer {ENVIRONMENT['LIBRARY_KEY']}",
            "Content-Type: application/json",
            f"Content-Length: {size_bytes}",
            "Connection: close",
        )
        head = "\r\n".join([*lines, "", ""]).encode()

        async def read(number: int) -> None:
            await asyncio.sleep(FROM_S + WITHIN_S * number / DOCUMENTS)
            try:
                reader, writer = await asyncio.open_connection(address.hostname, address.port)
                writer.write(head + body % number)
                answer = await reader.read()
                writer.close()
            except OSError as error:
                seen[type(error).__name__] += 1
            else:
                seen[answer[9:12].decode() or "nothing"] += 1

        await asyncio.gather(*map(read, range(DOCUMENTS)))
        return seen

    print(json.dumps(asyncio.run(run())))


def avalanche(place: Path, **prefill: int) -> tuple[float, float, dict[str, int]]:
    """95th percentile of the chat's first tokens, the share of it within the promise, and the documents' statuses."""
    place.mkdir()
    classes = {
        "interactive": {
            "share": 10,
            "slo": {"ttft_s": PROMISE_S, "e2e_s": None, "tpot_s": None},
            "queue": {"wait_s_max": 0.5 / SPEED},
        },
        "documents": {
            "share": 3,
            "slo": {"ttft_s": 60.0 / SPEED, "e2e_s": None, "tpot_s": None},
            "queue": {"wait_s_max": 20.0, "requests_max": 5_000, "bytes_max": 200_000_000},
            "timeouts": {"client_s": 600, "gateway_s": 590, "first_byte_s": 240},
        },
    }
    tenants = {
        "acme": {"keys": ["env:CHAT_KEY"], "classes": ["interactive"]},
        "library": {"keys": ["env:LIBRARY_KEY"], "classes": ["documents"], "class": "documents"},
    }
    flags = ("--preset", "h100_8b", "--max-num-seqs", "256", "--max-model-len", "16384", "--speed", str(SPEED))
    with engine(0, *flags) as one_engine:
        pool = {"replicas": [{"url": one_engine.url, "engine": "vllm"}], "active_requests_max": 256, "prefill": prefill}
        file = configuration(place, "", pools={"llama": pool}, classes=classes, tenants=tenants)
        with gateway("--config", str(file), **ENVIRONMENT) as made:
            command = [sys.executable, __file__, made.url]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent) as sending:
                firsts = asyncio.run(chat(made.url))
                said, _ = sending.communicate(timeout=300)
            until(lambda: made.charged() == 0)
            assert made.audit() == []
    taken = sorted(1_000.0 if first_s is None else first_s for first_s in firsts)
    return taken[int(0.95 * len(taken))], sum(s <= PROMISE_S for s in taken) / len(taken), json.loads(said)


def test_B7_2000_prompts_of_10000_tokens_leave_the_chats_first_tokens_within_their_promise(tmp_path: Path) -> None:
    p95_s, kept, documents = avalanche(tmp_path / "caps")
    print(f"with caps: p95 {p95_s:.2f} s of {PROMISE_S} s, {kept:.0%} within, documents {documents}")
    uncapped = {"heavy_max": 1_000_000, "tokens_in_flight_max": 1_000_000_000}
    without_p95_s, without_kept, others = avalanche(tmp_path / "without", **uncapped)
    print(f"without: p95 {without_p95_s:.2f} s, {without_kept:.0%} within, documents {others}")
    assert p95_s <= PROMISE_S
    assert documents["200"] >= 10
    assert without_kept < kept


if __name__ == "__main__":
    send_documents(sys.argv[1])
