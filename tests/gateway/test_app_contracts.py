"""Contracts over HTTP: what is reserved is there (B11), who would be late has something stopped (B12), who is over its quota
weighs less (B13). The whole gateway, a fake engine, and the stock OpenAI client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from app_scene import LOOPS, PATIENT, Scene, chat, events, fake_engine, first_event, merged, rest_of_stream, run, scene
from http_port import Answer
from prometheus_client.parser import text_string_to_metric_families

from headworks.gateway.story import story

TENANTS: dict[str, Any] = {
    "acme": {"keys": ["env:ACME_KEY"], "classes": ["interactive"]},
    "batchco": {"keys": ["env:BATCHCO_KEY"], "class": "bulk"},
}
POOL = {"active_tokens_max": 1_000, "estimate": {"output_tokens_cold": 1_000}}
"""An answer of 900 tokens takes 3.6 s and leaves no room for another of 100."""
LONG = {"key": "BATCHCO_KEY", "tokens": 900, "ignore_eos": True}
URGENT = {"key": "ACME_KEY", "tokens": 100}


@asynccontextmanager
async def contracts(acme: dict[str, Any] | None = None, **sections: Any) -> AsyncIterator[Scene]:
    tenants = merged(TENANTS, {"acme": acme or {}})
    async with scene(fake_engine(), pool=POOL, classes=PATIENT, tenants=tenants, **sections) as s:
        yield s


async def urgent(s: Scene, within_s: float) -> Answer:
    """A stream that has so long to begin, to its end."""
    client = await s.connect()
    client.send(chat(f"Headworks-Deadline: {within_s}", stream=True, **URGENT))
    answer = await first_event(client)
    assert (await rest_of_stream(client))[1]
    client.close()
    return answer


async def paced(s: Scene) -> None:
    """The gateway has seen what a token takes."""
    replica = s.app.gate._desk.pools["llama"].replicas["llama/0"]
    await s.until(lambda: bool(replica.iteration_s))


def preempted(text: str) -> float:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "headworks_preemptions_total" and sample.labels == {"pool": "llama", "by": "gateway"}:
                return sample.value
    return -1.0


@pytest.mark.parametrize("loop", LOOPS)
def test_B12_a_stream_is_stopped_told_so_and_its_room_is_given_when_it_is_proved(loop: str) -> None:
    async def steps() -> None:
        async with contracts() as s:
            victim = await s.connect()
            victim.send(chat(stream=True, **LONG))
            await first_event(victim)
            await paced(s)
            answer = await urgent(s, 1.2)
            assert answer.status == 200
            rest, whole = await rest_of_stream(victim)
            (error,) = [one for one in events(rest) if isinstance(one, dict) and "error" in one]
            assert (error["error"]["code"], whole) == ("preempted", False)
            assert error["error"]["message"] == "The request was stopped to make room for one with less time left."
            victim.close()
            assert preempted((await s.admin("/metrics")).text) == 1.0
            told = "\n".join(story(s.app.log.find(answer.fields["x-request-id"])))  # type: ignore[union-attr]
            assert "was stopped: it had 1." in told
            record = s.records(answer.fields["x-request-id"])
            (row,) = [one for one in record[-2]["verdicts"] if one["scope"].startswith("request:")]
            assert row["value"] < row["limit"] and row["passed"]
            name = row["scope"].removeprefix("request:")
            outcome = s.outcome(name)
            assert (outcome["outcome"], outcome["reason"]) == ("failed", "preempted")
            assert outcome["evidence"] in ("E3a", "E3b")
            assert "stopped to make room" in "\n".join(story(s.app.log.find(name)))  # type: ignore[union-attr]

    run(loop, steps())


def sdk_of(s: Scene, retries_max: int) -> openai.AsyncOpenAI:
    host, port = s.app.address[:2]
    return openai.AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="batchco-key-of-the-test", max_retries=retries_max)


ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 900}


def test_B12_the_stock_client_is_told_503_with_a_ticket_where_nothing_was_sent_to_it() -> None:
    async def steps() -> None:
        async with contracts() as s, sdk_of(s, 0) as sdk:
            await warm(s)
            asked = asyncio.create_task(sdk.chat.completions.create(**ASK, extra_body={"ignore_eos": True}))
            await s.until(lambda: s.inside() == 1)
            assert (await urgent(s, 1.2)).status == 200
            with pytest.raises(openai.InternalServerError) as raised:
                await asked
            response = raised.value.response
            assert (response.status_code, raised.value.code) == (503, "preempted")
            assert response.headers["x-overload-reason"] == "preempted"
            assert int(response.headers["retry-after-ms"]) > 0

    run("uvloop", steps())


def test_B12_the_stock_client_comes_back_by_itself_and_has_its_answer() -> None:
    async def steps() -> None:
        async with contracts() as s, sdk_of(s, 2) as sdk:
            await warm(s)
            asked = asyncio.create_task(sdk.chat.completions.create(**ASK, extra_body={"ignore_eos": True}))
            await s.until(lambda: s.inside() == 1)
            assert (await urgent(s, 1.2)).status == 200
            answer = await asked
            assert answer.usage is not None and answer.usage.completion_tokens == 900
            assert preempted((await s.admin("/metrics")).text) == 1.0

    run("uvloop", steps())


async def warm(s: Scene) -> None:
    """One streamed answer, so that what a token takes is known."""
    client = await s.connect()
    client.send(chat(stream=True, key="ACME_KEY", tokens=100, ignore_eos=True))
    await first_event(client)
    await paced(s)
    await rest_of_stream(client)
    client.close()
    await s.settled()


def test_B12_who_has_time_waits() -> None:
    async def steps() -> None:
        async with contracts() as s:
            victim = await s.connect()
            victim.send(chat(stream=True, **LONG))
            await first_event(victim)
            await paced(s)
            assert (await s.ask(chat(**URGENT))).status == 200
            assert (await rest_of_stream(victim))[1], "20 s to start, and 3 s until it has room"
            victim.close()
            assert preempted((await s.admin("/metrics")).text) == 0.0

    run("uvloop", steps())


def test_B11_what_is_reserved_is_there_whoever_floods() -> None:
    """400 tokens are acme's: the flood of a class that cannot be stopped stays within 600, and acme is let in at once."""

    async def steps() -> None:
        async with contracts({"reserved": {"tokens": 400, "requests": 2}}, ledger={"url": "memory:"}) as s:
            flood = [await s.connect() for _ in range(6)]
            for client in flood:
                client.send(chat("Headworks-Class: interactive", key="BATCHCO_KEY", tokens=250, stream=True, ignore_eos=True))
            await first_event(flood[0])
            await first_event(flood[1])
            assert s.held("pool:llama") <= 600
            began_s = time.monotonic()
            client = await s.connect()
            client.send(chat(stream=True, key="ACME_KEY", tokens=300))
            await first_event(client)
            assert time.monotonic() - began_s < 0.5, "the flood has four more waiting, for another second at least"
            assert s.held("reserved:llama:acme") > 300
            state = (await s.admin("/admin/state")).json()
            assert state["pools"]["llama"]["reserves"]["acme"]["tokens"] == 400
            assert (await rest_of_stream(client))[1]
            for other in flood[2:]:
                await first_event(other)
            for one in (client, *flood):
                one.close()

    run("uvloop", steps())


def test_B13_a_tenant_over_its_quota_is_answered_and_weighs_less_until_it_behaves() -> None:
    async def steps() -> None:
        demoted = {"rate": {"tokens_per_s": 10}, "over_quota": "demote"}
        async with contracts(demoted) as s:
            for _ in range(4):
                assert (await s.ask(chat(key="ACME_KEY", tokens=297, ignore_eos=True))).status == 200
            ratio = s.app.snapshot()["tenants"]["acme"]["weight_ratio"]
            assert 0.15 < ratio < 0.3, "about 1,200 tokens in half a minute are four times 10 a second"
            await s.reload(s.text(tenants={"acme": {"over_quota": "refuse"}}))
            assert s.app.snapshot()["tenants"]["acme"]["weight_ratio"] == 1.0

    run("uvloop", steps())
