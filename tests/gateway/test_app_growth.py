"""Growth over HTTP (A8): the whole gateway, a fake engine, and the stock OpenAI client, which must notice nothing odd."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from app_scene import PATIENT, Scene, chat, events, fake_engine, first_event, merged, rest_of_stream, run, scene
from prometheus_client.parser import text_string_to_metric_families

from headworks.core.types import Usage
from headworks.gateway.story import story
from headworks.testing.fake_engine import FakeEngine

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 1_500}
LIMIT = 1_000
GOLDEN = {
    "active_tokens_max": LIMIT,
    "estimate": {"output_tokens_cold": 200},
    "growth": {"step_tokens": 64, "ahead_tokens": 16},
}
FILLER = 678
"""Output of a request that leaves less than a step of the pool beside one that holds its estimate."""


def client(s: Scene) -> openai.AsyncOpenAI:
    host, port = s.app.address[:2]
    return openai.AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0)


@asynccontextmanager
async def full_pool(**classes: Any) -> AsyncIterator[tuple[Scene, FakeEngine, list[int]]]:
    """A pool with one long answer in it that holds all but what an estimate needs; and what the pool held at any moment."""
    engine = fake_engine()
    held: list[int] = []
    async with scene(engine, pool=GOLDEN, classes=merged(PATIENT, {"interactive": classes})) as s:
        filler = await s.connect()
        filler.send(chat(stream=True, tokens=FILLER, ignore_eos=True))
        await first_event(filler)

        async def look() -> None:
            while True:
                held.append(s.held("pool:llama"))
                await asyncio.sleep(0.001)

        looking = asyncio.create_task(look())
        try:
            yield s, engine, held
        finally:
            looking.cancel()
        assert (await rest_of_stream(filler))[1]
        filler.close()
        await s.settled()


def test_A8_golden_over_http_the_stock_client_sees_length_by_264_and_the_pool_never_passes_its_limit() -> None:
    async def steps() -> None:
        async with full_pool() as (s, engine, held), client(s) as sdk:
            stream = await sdk.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True})
            chunks = [chunk async for chunk in stream]
            texts = [chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
            assert 199 <= len(texts) <= 264
            assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "length"
            usage = chunks[-1].usage
            assert usage is not None and 199 <= usage.completion_tokens <= 264
            assert {chunk.id for chunk in chunks} == {chunks[0].id}
            await s.until(lambda: len(engine.held()) == 1)
            made = engine.gauges().output_tokens
            await s.until(lambda: len(s.charged()) == 1, 10)
        assert made <= 2 * 264 + FILLER
        assert max(held) <= LIMIT and max(held) > LIMIT - 64

    run("uvloop", steps())


def test_A8_K23_what_the_engine_makes_never_passes_what_is_reserved_by_more_than_a_step() -> None:
    async def steps() -> None:
        async with full_pool() as (s, engine, _), client(s) as sdk:
            most = 0

            async def look() -> None:
                nonlocal most
                while True:
                    mine = [one for name, one in engine.held().items() if name not in filler]
                    most = max([most, *(one.kv_tokens for one in mine)])
                    await asyncio.sleep(0.002)

            filler = set(engine.held())
            looking = asyncio.create_task(look())
            await sdk.chat.completions.create(**ASK)
            await s.until(lambda: len(engine.held()) == 1)
            looking.cancel()
            prompt, block = 53, 16
            assert 200 <= most <= prompt + 264 + block

    run("uvloop", steps())


def test_A8_an_answer_in_one_piece_is_ended_as_one_piece() -> None:
    async def steps() -> None:
        async with full_pool() as (s, _, _), client(s) as sdk:
            answer = await sdk.chat.completions.create(**ASK)
            assert answer.choices[0].finish_reason == "length"
            assert answer.usage is not None and 199 <= answer.usage.completion_tokens <= 264
            assert len((answer.choices[0].message.content or "").split()) >= 150
            completion = await sdk.completions.create(model="tiny", prompt="one two three", max_tokens=1_500)
            assert completion.choices[0].finish_reason == "length"
            assert completion.object == "text_completion"

    run("uvloop", steps())


@pytest.mark.parametrize("stream", [True, False])
def test_A8_stop_is_an_error_to_the_client(stream: bool) -> None:
    async def steps() -> None:
        async with full_pool(on_growth_refused="stop") as (s, _, _), client(s) as sdk:
            with pytest.raises(openai.APIError) as caught:
                answer = await sdk.chat.completions.create(**ASK, stream=stream)
                if stream:
                    async for _ in answer:
                        pass
            assert caught.value.code == "kv_saturation"
            assert "The engine's memory for running requests is 1.06 full" in str(caught.value)

    run("uvloop", steps())


def test_A2_an_answer_that_outgrows_a_quota_of_money_is_told_the_sums() -> None:
    async def steps() -> None:
        engine = fake_engine(natural_tokens=1_000)
        tenants = {"acme": {"keys": ["env:ACME_KEY"], "quota": {"period": "day", "money": 0.0003}}}
        models = {"tiny": {"price_per_mtoken": {"prompt": 0, "cached": 0, "output": 1}}}
        classes = merged(PATIENT, {"interactive": {"on_growth_refused": "stop"}})
        async with scene(engine, pool=GOLDEN, tenants=tenants, models=models, classes=classes) as s:
            answer = await s.ask(chat(key="ACME_KEY", tokens=1_500))
            assert (answer.status, answer.code) == (429, "insufficient_quota")
            assert answer.json()["error"]["message"] == "Your quota is 0.0003 money; this request would make it 0.000328."
            assert answer.fields["x-should-retry"] == "false"
            await s.settled()
            quota = s.app.snapshot()["tenants"]["acme"]["quota"]
            assert 260_000 <= quota["nanomoney_committed"] <= 300_000
            assert quota["nanomoney_outstanding"] == 0

    run("uvloop", steps())


def test_A8_with_room_it_grows_and_its_story_tells_both_reservations() -> None:
    async def steps() -> None:
        engine = fake_engine(natural_tokens=400)
        pool = merged(GOLDEN, {"active_tokens_max": "auto"})
        async with scene(engine, pool=pool, classes=PATIENT) as s:
            answer = await s.ask(chat("Idempotency-Key: k1", stream=True, tokens=1_500))
            assert events(answer.body)[-2]["choices"][0]["finish_reason"] == "stop"
            await s.settled()
            outcome = s.outcome("k1")
            assert (outcome["outcome"], outcome["growths"], outcome["growths_refused"]) == ("completed", 4, 0)
            assert outcome["work"]["tokens"] - outcome["grown_tokens"] == 53 + 200
            assert outcome["grown_tokens"] == 4 * 64
            assert s.app.log is not None
            told = "\n".join(story(s.app.log.find("k1")))
            assert "53 to read and 200 of at most 1,500 to write" in told
            assert "253 were set aside before it ran and 256 in 4 steps while it did" in told
            found = await metrics(s)
            assert found["headworks_growth_total{class=interactive,outcome=granted}"] == 4

    run("uvloop", steps())


def test_A8_small_steps_are_asked_for_when_they_are_due_and_not_at_the_next_report() -> None:
    async def steps() -> None:
        engine = fake_engine(natural_tokens=200)
        pool = {"estimate": {"output_tokens_cold": 40}, "growth": {"step_tokens": 16, "ahead_tokens": 8}}
        async with scene(engine, pool=pool, classes=PATIENT) as s:
            await s.ask(chat("Idempotency-Key: k1", stream=True, tokens=1_500))
            await s.settled()
            assert s.outcome("k1")["growths"] >= 8, (
                "eleven, if every token is seen in a read of its own; three by reports alone"
            )

    run("uvloop", steps())


def test_A8_refused_growth_is_counted_and_told() -> None:
    async def steps() -> None:
        async with full_pool() as (s, _, _):
            await s.ask(chat("Idempotency-Key: k1", stream=True, tokens=1_500))
            await s.until(lambda: len(s.charged()) == 1)
            outcome = s.outcome("k1")
            assert (outcome["outcome"], outcome["reason"], outcome["in_slo"]) == ("completed", "kv_saturation", False)
            assert outcome["usage"]["end"] == "length" and outcome["growths_refused"] >= 1
            assert s.app.log is not None
            assert "in vain, so its answer was ended there" in "\n".join(story(s.app.log.find("k1")))
            found = await metrics(s)
            assert found["headworks_growth_total{class=interactive,outcome=refused}"] >= 1

    run("uvloop", steps())


async def metrics(s: Scene) -> dict[str, float]:
    answer = await s.admin("/metrics")
    return {
        f"{one.name}{{{','.join(f'{name}={value}' for name, value in sorted(one.labels.items()))}}}": one.value
        for family in text_string_to_metric_families(answer.text)
        for one in family.samples
    }


def test_A8_put_together_from_a_stream_it_is_the_answer_the_engine_would_have_given() -> None:
    async def steps() -> None:
        engine = fake_engine(natural_tokens=300)
        async with scene(engine, classes=PATIENT) as s:
            whole = json.loads((await s.ask(chat("Idempotency-Key: one", tokens=290, n=2))).body)  # of 290, all of it cold
            grown = json.loads((await s.ask(chat("Idempotency-Key: two", tokens=1_500, n=2))).body)
            kept = json.loads((await s.ask(chat("Idempotency-Key: three", tokens=1_500, n=2, logprobs=False))).body)
            await s.settled()
            assert [choice["finish_reason"] for choice in grown["choices"]] == ["stop", "stop"]
            for name in ("object", "model", "usage"):
                wanted = kept[name] if name != "usage" else {key: kept[name][key] for key in grown[name]}
                assert grown[name] == wanted, name
            assert [choice["message"] for choice in grown["choices"]] == [choice["message"] for choice in kept["choices"]]
            assert len(whole["choices"]) == 2
            one, two, three = (s.outcome(name) for name in ("one", "two", "three"))
            assert one["growths"] + two["growths"] >= 1
            assert three["growths"] == 0 and three["work"]["output_tokens"] == three["work"]["output_tokens_max"] == 1_500
            assert two["first_byte_s"] < two["ended_s"] - 0.5, "its first token was seen when it came"

    run("uvloop", steps())


def test_A8_a_tenant_that_is_known_is_reserved_what_it_writes() -> None:
    async def steps() -> None:
        engine = fake_engine(natural_tokens=20)
        async with scene(engine, classes=PATIENT) as s:
            for number in range(21):
                await s.ask(chat(f"Idempotency-Key: k{number}", stream=True, tokens=1_500))
            await s.settled()
            assert s.outcome("k19")["work"]["output_tokens"] == 256
            assert s.outcome("k20")["work"]["output_tokens"] == 20 + 18
            assert s.outcome("k20")["growths"] == 0
            assert Usage(**s.outcome("k20")["usage"]).output_tokens == 20

    run("uvloop", steps())
