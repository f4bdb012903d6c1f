"""What is made of requests under pressure, over HTTP: headers, bodies upstream, metrics (E5)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from app_scene import LOOPS, Scene, call, chat, fake_engine, first_event, run, scene
from http_port import Client

from headworks.testing.fake_engine import FakeEngine

both_loops = pytest.mark.parametrize("loop", LOOPS)
EARLY = {"enter_ratio": 0.02, "leave_ratio": 0.01, "dwell_s": 0}
"""In force as soon as anything runs."""


def impatient(*steps: Any) -> dict[str, Any]:
    return {"interactive": {"slo": {"ttft_s": None}, "queue": {"wait_s_max": 0.5}, "on_pressure": list(steps)}}


async def occupied(s: Scene) -> Client:
    """A long answer is on its way."""
    client = await s.connect()
    client.send(chat(stream=True, tokens=1500))
    await first_event(client)
    return client


async def in_force(s: Scene, steps: int = 1) -> None:
    await s.until(lambda: s.app.snapshot()["pools"]["llama"]["steps_in_force"] == {"interactive": steps}, within_s=9.0)


@contextlib.asynccontextmanager
async def beside(model: str) -> AsyncIterator[FakeEngine]:
    engine = fake_engine(model_name=model)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


@both_loops
def test_E5_what_finds_no_room_is_answered_by_the_smaller_model_and_told_so(loop: str) -> None:
    async def steps() -> None:
        async with beside("mini") as mini:
            pools = {"small": {"models": ["mini"], "replicas": [{"url": mini.url, "engine": "vllm"}]}}
            classes = impatient({"smaller_model": "mini", "dwell_s": 0})
            pool = {"active_requests_max": 1, "models": ["tiny"]}
            async with scene(pool=pool, pools=pools, classes=classes) as s:
                usual = await s.ask(chat())
                assert (usual.status, "headworks-degraded" in usual.fields) == (200, False)
                client = await occupied(s)
                answer = await s.ask(chat("Idempotency-Key: k1"))
                assert (answer.status, answer.fields["headworks-degraded"]) == (200, "smaller_model=mini")
                assert answer.json()["model"] == "mini"
                streamed = await s.ask(chat(stream=True))
                assert streamed.fields["headworks-degraded"] == "smaller_model=mini"
                assert mini.requests == 2
                client.close()
                await s.settled()
                outcome = s.outcome("k1")
                assert (outcome["outcome"], outcome["model"], outcome["pool"]) == ("completed", "mini", "small")
                text = s.app.registry.render().decode()
                assert 'headworks_degraded_total{class="interactive",step="smaller_model"} 2.0' in text
                assert "headworks_refused_total{" not in text

    run(loop, steps())


def test_E5_spilling_goes_elsewhere_for_money_until_the_day_s_budget_is_used_up() -> None:
    async def steps() -> None:
        async with beside("cloudy") as cloud:
            spill = {
                "url": f"{cloud.url}/v1",
                "model": "cloudy",
                "price_per_mtoken": {"prompt": 0.0, "output": 1000.0},
                "money_per_day_max": 0.02,  # twenty tokens
            }
            classes = impatient({"spill": "cloud", "dwell_s": 0})
            async with scene(pool={"active_requests_max": 1}, spill={"cloud": spill}, classes=classes) as s:
                await s.until(lambda: s.app.snapshot()["pools"]["cloud"]["replicas"]["cloud/0"]["state"] == "ready")
                assert (await s.ask(chat(model="cloudy"))).status == 404, "nobody asks for it by name"
                client = await occupied(s)
                answers = [await s.ask(chat(tokens=8)) for _ in range(3)]
                assert [one.status for one in answers] == [200, 200, 429]
                assert [one.fields.get("headworks-degraded") for one in answers] == ["spill=cloud", "spill=cloud", None]
                assert answers[0].json()["model"] == "cloudy"
                assert cloud.requests == 2
                client.close()

    run("uvloop", steps())


def test_E5_clamped_stripped_and_single_is_what_the_engine_gets() -> None:
    async def steps() -> None:
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "an example of a question " * 20},
            {"role": "assistant", "content": "an example of an answer " * 20},
            {"role": "user", "content": "one two three"},
        ]
        body = {"model": "tiny", "messages": messages, "max_tokens": 40, "n": 3}
        classes = impatient({"clamp_output": 4, **EARLY}, {"strip_few_shot": True, **EARLY}, {"drop_n": True, **EARLY})
        async with scene(classes=classes) as s:
            before = (await s.ask(call("/v1/chat/completions", body=body))).json()
            assert len(before["choices"]) == 3
            s.app.gate._desk.cascades._of["llama", "interactive"].change(3, 0.0)
            client = await occupied(s)
            answer = await s.ask(call("/v1/chat/completions", body=body))
            assert answer.fields["headworks-degraded"] == "clamp_output=4, strip_few_shot, drop_n"
            after = answer.json()
            assert (len(after["choices"]), after["usage"]["completion_tokens"]) == (1, 4)
            assert after["usage"]["prompt_tokens"] * 5 < before["usage"]["prompt_tokens"]
            plain = await s.ask(call("/v1/completions", body={"model": "tiny", "prompt": "one two", "max_tokens": 40}))
            assert plain.fields["headworks-degraded"] == "clamp_output=4"
            client.close()
            await s.settled()
            text = s.app.registry.render().decode()
            assert 'headworks_degraded_total{class="interactive",step="clamp_output"} 3.0' in text
            assert 'headworks_degraded_total{class="interactive",step="drop_n"} 1.0' in text

    run("uvloop", steps())


@both_loops
def test_E5_an_equal_request_of_the_same_tenant_is_answered_from_memory(loop: str) -> None:
    async def steps() -> None:
        engine = fake_engine()
        tenants = {"acme": {"keys": ["env:ACME_KEY"]}, "batchco": {"keys": ["env:BATCHCO_KEY"]}}
        classes = impatient({"cached": True, "dwell_s": 0})
        async with scene(engine, pool={"active_requests_max": 1}, tenants=tenants, classes=classes) as s:
            first = await s.ask(chat(key="ACME_KEY"))
            again = await s.ask(chat(key="ACME_KEY"))
            assert first.body != again.body, "there was room, so it was asked anew"
            client = await s.connect()
            client.send(chat(key="BATCHCO_KEY", stream=True, tokens=1500))
            await first_event(client)
            seen = engine.requests
            kept = await s.ask(chat("Idempotency-Key: k1", key="ACME_KEY"))
            assert (kept.status, kept.fields["headworks-degraded"], kept.body) == (200, "cached", again.body)
            assert (await s.ask(chat(key="ACME_KEY", temperature=0.5))).status == 429, "another parameter"
            assert (await s.ask(chat(key="BATCHCO_KEY"))).status == 429, "another tenant"
            assert engine.requests == seen
            client.close()
            await s.settled()
            outcome = s.outcome("k1")
            assert (outcome["outcome"], outcome["usage"], outcome["execution"]) == ("replayed", None, "")
            text = s.app.registry.render().decode()
            assert 'headworks_degraded_total{class="interactive",step="cached"} 1.0' in text

    run(loop, steps())


def test_E5_steps_come_into_force_with_pressure_and_go_with_it() -> None:
    async def steps() -> None:
        async with scene(classes=impatient({"clamp_output": 4, **EARLY})) as s:
            assert "headworks-degraded" not in (await s.ask(chat(tokens=8))).fields
            client = await occupied(s)
            await in_force(s)
            assert (await s.ask(chat(tokens=8))).fields["headworks-degraded"] == "clamp_output=4"
            client.close()
            await in_force(s, 0)
            assert "headworks-degraded" not in (await s.ask(chat(tokens=8))).fields

    run("uvloop", steps())
