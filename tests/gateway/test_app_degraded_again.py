"""What is told of degraded answers whose first attempt failed or that others share, and a spill's errors, over HTTP (E5)."""

from __future__ import annotations

from typing import Any

import pytest
from app_scene import Scene, chat, first_event, rest_of_stream, run, scene
from test_app_degraded import beside, both_loops, impatient, occupied

SMALLER = impatient({"smaller_model": "mini", "dwell_s": 0})


def small(url: str) -> dict[str, Any]:
    return {"small": {"models": ["mini"], "replicas": [{"url": url, "engine": "vllm"}]}}


def kept_in_force(s: Scene) -> None:
    """The first step, however little there is to do."""
    cascades = s.app.gate._desk.cascades
    cascade = cascades.of("llama", "interactive")
    assert cascade is not None
    cascade.change(1, 0.0)
    cascades._changed_s["interactive"] = float("inf")


@both_loops
@pytest.mark.parametrize("fields", [(), ("Idempotency-Key: k1",)])
@pytest.mark.parametrize("stream", [False, True])
def test_E5_what_a_busy_engine_sent_back_and_the_smaller_model_answered_is_told_so(
    stream: bool, fields: tuple[str, ...], loop: str
) -> None:
    async def steps() -> None:
        async with beside("mini") as mini, scene(pool={"models": ["tiny"]}, pools=small(mini.url), classes=SMALLER) as s:
            kept_in_force(s)
            s.engines[0].faults.busy_times = 1000
            s.app.gate._desk.pools["llama"].retries._credit = 50.0  # so that it waits until its time is over
            answer = await s.ask(chat(*fields, stream=stream))
            assert (answer.status, answer.fields.get("headworks-degraded")) == (200, "smaller_model=mini")
            assert s.engines[0].faults.busy_times < 1000, "its own model's engine was asked before"
            assert mini.requests == 1

    run(loop, steps())


@both_loops
def test_E5_whoever_shares_a_degraded_answer_or_gets_it_again_is_told_so_too(loop: str) -> None:
    async def steps() -> None:
        pool = {"active_requests_max": 1, "models": ["tiny"]}
        async with beside("mini") as mini, scene(pool=pool, pools=small(mini.url), classes=SMALLER) as s:
            client, first, second = await occupied(s), await s.connect(), await s.connect()
            heads = []
            for one in (first, second):
                one.send(chat("Idempotency-Key: k1", stream=True, tokens=200))
                heads.append(await first_event(one))
            assert [head.fields.get("headworks-degraded") for head in heads] == ["smaller_model=mini"] * 2
            for one in (first, second):
                assert (await rest_of_stream(one))[1]
                one.close()
            again = await s.ask(chat("Idempotency-Key: k1", stream=True, tokens=200))
            assert (again.status, again.fields.get("headworks-degraded")) == (200, "smaller_model=mini")
            assert mini.requests == 1
            client.close()

    run(loop, steps())


@both_loops
def test_E5_a_500_of_a_spill_releases_what_it_held_at_once(loop: str) -> None:
    async def steps() -> None:
        async with beside("cloudy") as cloud:
            price = {"prompt": 0.0, "output": 1000.0}
            spill = {"url": f"{cloud.url}/v1", "model": "cloudy", "price_per_mtoken": price, "money_per_day_max": 1.0}
            classes = impatient({"spill": "cloud", "dwell_s": 0})
            async with scene(pool={"active_requests_max": 1}, spill={"cloud": spill}, classes=classes) as s:
                await s.until(lambda: s.app.snapshot()["pools"]["cloud"]["replicas"]["cloud/0"]["state"] == "ready")
                client = await occupied(s)
                cloud.drain()
                answer = await s.ask(chat("Idempotency-Key: k1"))
                assert (answer.status, answer.json()["error"]["code"]) == (502, "upstream_lost")
                await s.until(lambda: len(s.charged()) == 1, within_s=2.0)
                assert s.held("pool:cloud") == 0
                client.close()

    run(loop, steps())


@both_loops
def test_E5_whoever_shared_an_attempt_that_a_busy_engine_sent_back_is_told_of_the_next_one_too(loop: str) -> None:
    async def steps() -> None:
        async with beside("mini") as mini, scene(pool={"models": ["tiny"]}, pools=small(mini.url), classes=SMALLER) as s:
            kept_in_force(s)
            s.engines[0].faults.busy_times = 1000
            s.app.gate._desk.pools["llama"].retries._credit = 50.0
            first, second = await s.connect(), await s.connect()
            for one in (first, second):
                one.send(chat("Idempotency-Key: k1"))
            answers = [await one.answer() for one in (first, second)]
            assert [one.fields.get("headworks-degraded") for one in answers] == ["smaller_model=mini"] * 2
            assert mini.requests == 1
            for one in (first, second):
                one.close()

    run(loop, steps())
