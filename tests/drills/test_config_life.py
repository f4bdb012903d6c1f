"""A gateway's process, its file and its ledger under load: reloads that nobody notices, a cut limit, a drain (I39, I41)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import Gateway, configuration, engine, gateway

from headworks.gateway.decisions import paths
from headworks.logs import reading

STREAMS, STREAM_TOKENS = 200, 250
ASKING, RELOADS = 12, 10
WIDE, NARROW = 80_000, 8_000
"""Tokens that the tenant may hold under one policy and the other; all streams together hold more than the tenth."""
KEY = {"ACME_KEY": "the-key-of-this-drill"}
LARGE = ("--max-num-seqs", "256", "--num-gpu-blocks-override", "16385", "--speed", "0.5")
UNHURRIED = {"loop_lag_shed_bulk_s": 50, "loop_lag_shed_s": 60, "rss_shed_bytes": 2**40}
SECTIONS: dict[str, Any] = {
    "server": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "drain_s": 250, "guard": UNHURRIED},
    "classes": {
        "interactive": {
            "slo": {"ttft_s": 60, "tpot_s": None, "e2e_s": None},
            "on_tenant_full": "refuse",
            "queue": {"wait_s_max": 20},
            "timeouts": {"first_byte_s": 60, "gateway_s": 290, "client_s": 300},
        }
    },
    "log": {"decisions": "decisions"},
}


@pytest.mark.skipif("HEADWORKS_DRILLS" not in os.environ, reason="two minutes: HEADWORKS_DRILLS=1 runs it")
@pytest.mark.timeout(600)
def test_I39_I41_reloads_under_load_a_limit_cut_by_nine_tenths_and_a_drain_with_two_hundred_streams(tmp_path: Path) -> None:
    with engine(0, *LARGE) as upstream:
        pools = {"llama": {"replicas": [{"url": upstream.url, "engine": "vllm"}], "active_requests_max": 256, "limit": 256}}
        tenants = {"acme": {"keys": ["env:ACME_KEY"], "active_tokens_max": WIDE}}
        sections = SECTIONS | {"pools": pools, "tenants": tenants, "ledger": {"url": f"sqlite:{tmp_path}/drill.db"}}
        file = configuration(tmp_path, upstream.url, **sections)
        with gateway("--config", str(file), directory=tmp_path, **KEY) as front:
            wide = file.read_text()
            asyncio.run(life(front, File(file), wide))
            assert front.ended(300.0) == 0
        assert upstream.inside() == 0
        with gateway("--config", str(file), directory=tmp_path, **KEY) as front:
            assert (front.charged(), front.audit()) == (0, [])
    records = [line for path in paths(tmp_path / "decisions") for line in reading.lines(path)]
    assert sorted(map(sorted, limits_by_version(records).values())) == [[NARROW], [WIDE]], "a version has one limit"
    ended = Counter(
        line["record"]["outcome"]
        for line in records
        if line["kind"] == "outcome" and line["record"]["usage"] and line["record"]["usage"]["output_tokens"] == STREAM_TOKENS
    )
    assert ended == {"completed": 2 * STREAMS}


class File:
    """The gateway's, written anew."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def becomes(self, text: str) -> bool:
        """Whether it was another one before."""
        before = self._path.read_text()
        self._path.write_text(text)
        return before != text


async def life(front: Gateway, file: File, wide: str) -> None:
    """Reloads while many ask; then the cut; then the drain."""
    narrow = wide.replace(str(WIDE), str(NARROW))
    limits = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {KEY['ACME_KEY']}"}
    async with httpx.AsyncClient(base_url=front.url, timeout=300, trust_env=False, limits=limits, headers=headers) as client:
        versions = await reloaded_while_many_ask(front, file, client, wide, narrow)
        assert len(versions) == 2
        await taken(front, file, wide)
        streams = [Stream(client) for _ in range(STREAMS)]
        await asyncio.gather(*(one.began.wait() for one in streams))
        assert front.charged() > 0.9 * STREAMS, "a slow client begins its last as its first ones end"
        before = version(front)
        file.becomes(wide.replace('"pools"', '"polls"'))
        front.send(signal.SIGHUP)
        await asyncio.sleep(0.5)
        assert version(front) == before, "a bad file changes nothing"
        file.becomes(wide)
        await taken(front, file, narrow)
        assert front.audit() == []
        refused = await client.post("/v1/chat/completions", json=asked(4))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "tenant_capacity_exceeded")
        assert {await one.ended for one in streams} == {"data: [DONE]"}, "what ran runs on"
        await taken(front, file, wide)
        streams = [Stream(client) for _ in range(STREAMS)]
        await asyncio.gather(*(one.began.wait() for one in streams))
        front.send(signal.SIGTERM)
        assert {await one.ended for one in streams} == {"data: [DONE]"}


async def reloaded_while_many_ask(front: Gateway, file: File, client: httpx.AsyncClient, wide: str, narrow: str) -> set[str]:
    """By which versions they were decided about. Nobody is told anything but an answer or a refusal."""
    over, answers = asyncio.Event(), list[httpx.Response]()

    async def ask() -> None:
        while not over.is_set():
            answers.append(await client.post("/v1/chat/completions", json=asked(30, n=32)))

    asking = [asyncio.ensure_future(ask()) for _ in range(ASKING)]
    versions = set()
    for turn in range(RELOADS):
        await taken(front, file, wide if turn % 2 else narrow)
        versions.add(version(front))
        seen = len(answers)
        await until(lambda seen=seen: len(answers) > seen + ASKING)  # type: ignore[misc]
    over.set()
    await asyncio.gather(*asking)
    assert {answer.status_code for answer in answers} == {200, 429}, "the narrow one refused some"
    return versions


def asked(tokens: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "one two three"}]
    return {"model": "tiny", "messages": messages, "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True, **more}


class Stream:
    """A client's stream, read to its end."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.began = asyncio.Event()
        self.ended = asyncio.ensure_future(self._read(client))

    async def _read(self, client: httpx.AsyncClient) -> str:
        last = ""
        async with client.stream("POST", "/v1/chat/completions", json=asked(STREAM_TOKENS, stream=True)) as answer:
            async for line in answer.aiter_lines():
                last = line or last
                self.began.set()
            return last if answer.status_code == 200 else str(answer.status_code)


def version(front: Gateway) -> str:
    return str(front.get("/admin/snapshot").json()["policy_version"])


async def taken(front: Gateway, file: File, text: str) -> None:
    """Read again, and in force."""
    before = version(front)
    if file.becomes(text):
        front.send(signal.SIGHUP)
        await until(lambda: version(front) != before)


async def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 (another process changes it)
            await asyncio.sleep(0.02)


def limits_by_version(records: list[dict[str, Any]]) -> dict[str, set[float]]:
    """Which limits of the tenant the decisions of each version were made by."""
    found: dict[str, set[float]] = {}
    for line in records:
        if line["kind"] == "decision":
            for verdict in line["record"]["verdicts"]:
                if verdict["check"] == "tenant" and verdict["unit"] == "tokens":
                    found.setdefault(line["record"]["policy_version"], set()).add(verdict["limit"])
    return found
