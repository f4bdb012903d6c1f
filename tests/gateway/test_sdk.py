"""The stock OpenAI client, unchanged, sync and async, against the whole gateway (E1, K50, K51)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest
from app_scene import PATIENT, Scene, chat, fake_engine, first_event, rest_of_stream, run, scene

from headworks.gateway.decisions import paths
from headworks.logs import reading

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "one two three"}]}
TENANTS = {"acme": {"keys": ["env:ACME_KEY"], "active_requests_max": 1}}
REFUSING = {"interactive": {"on_tenant_full": "refuse"}}


def settings(s: Scene, **more: Any) -> dict[str, Any]:
    host, port = s.app.address[:2]
    return {"base_url": f"http://{host}:{port}/v1", "api_key": "acme-key-of-the-test", **more}


async def sync(work: Callable[[], Any]) -> Any:
    """What the blocking client does, in a thread of its own."""
    return await asyncio.to_thread(work)


def test_E1_sync_chat_completions_and_models_streamed_or_not() -> None:
    async def steps() -> None:
        async with scene() as s:

            def work() -> None:
                with openai.OpenAI(**settings(s)) as client:
                    answer = client.chat.completions.create(**ASK, max_tokens=5)
                    assert answer.choices[0].finish_reason == "length"
                    assert answer.usage is not None and answer.usage.completion_tokens == 5
                    chunks = list(client.chat.completions.create(**ASK, max_tokens=6, stream=True))
                    assert chunks[-1].choices[0].finish_reason == "length"
                    assert all(chunk.usage is None for chunk in chunks)
                    with_usage = {"stream": True, "stream_options": {"include_usage": True}}
                    chunks = list(client.chat.completions.create(**ASK, max_tokens=6, **with_usage))
                    assert chunks[-1].usage.completion_tokens == 6
                    plain = client.completions.create(model="tiny", prompt="one two", max_tokens=4)
                    assert plain.usage is not None and plain.usage.completion_tokens == 4
                    texts = [
                        chunk.choices[0].text
                        for chunk in client.completions.create(model="tiny", prompt="one two", max_tokens=4, stream=True)
                    ]
                    assert "".join(texts) == plain.choices[0].text
                    assert [model.id for model in client.models.list()] == ["tiny"]

            await sync(work)

    run("uvloop", steps())


def test_E1_async_chat_and_completions_streamed_or_not() -> None:
    async def steps() -> None:
        async with scene() as s, openai.AsyncOpenAI(**settings(s)) as client:
            answer = await client.chat.completions.create(**ASK, max_tokens=5)
            assert answer.usage is not None and answer.usage.completion_tokens == 5
            stream = await client.chat.completions.create(**ASK, max_tokens=6, stream=True)
            assert [chunk.choices[0].finish_reason async for chunk in stream][-1] == "length"
            plain = await client.completions.create(model="tiny", prompt="one two", max_tokens=4)
            assert plain.choices[0].finish_reason == "length"
            streamed = await client.completions.create(model="tiny", prompt="one two", max_tokens=4, stream=True)
            assert "".join([chunk.choices[0].text async for chunk in streamed]) == plain.choices[0].text

    run("uvloop", steps())


def test_K50_a_refusal_is_an_exception_with_its_code_and_request_id() -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS, classes=REFUSING) as s:
            running = await s.connect()
            running.send(chat(key="ACME_KEY", stream=True, tokens=700))
            await first_event(running)

            def work() -> openai.RateLimitError:
                with openai.OpenAI(**settings(s, max_retries=0)) as client, pytest.raises(openai.RateLimitError) as caught:
                    client.chat.completions.create(**ASK, max_tokens=5)
                return caught.value

            error = await sync(work)
            assert (error.status_code, error.code, error.type) == (429, "tenant_capacity_exceeded", "tokens")
            assert error.request_id == error.response.headers["x-request-id"]
            assert error.request_id.startswith("req_")
            assert "Your tenant would hold 2 requests of 1." in error.message
            assert (await rest_of_stream(running))[1]
            running.close()

    run("uvloop", steps())


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_K50_a_retry_comes_back_at_its_slot_and_is_served(is_async: bool) -> None:
    """Between an answer and the next request there is only the wait: what else the machine does comes before or after."""
    asked_s: list[float] = []
    answered_s: list[float] = []

    async def steps() -> None:
        async with scene(tenants=TENANTS, classes=REFUSING) as s:
            running = await s.connect()
            running.send(chat(key="ACME_KEY", stream=True, tokens=1_500))
            await first_event(running)
            asking = asyncio.ensure_future(ask(s))
            await s.until(lambda: len(answered_s) == 1, 20.0)
            running.close()  # and its place is free long before the slot
            answer = await asking
            assert answer.usage is not None and answer.usage.completion_tokens == 5
            refused = [one for one in everything(s) if one["kind"] == "decision" and one["outcome"] == "refuse"]
            (hint_s,) = [1.0 if one["retry_after_s"] is None else one["retry_after_s"] for one in refused]  # none: the default
            waited_s = asked_s[1] - answered_s[0]
            assert len(asked_s) == 2
            assert hint_s <= waited_s <= hint_s + 1.0, "when it was told to, neither sooner nor by its own back-off"
            assert s.app.registry.render().decode().count('attempt="retry"') == 1

    async def ask(s: Scene) -> Any:
        if is_async:
            http = openai.DefaultAsyncHttpxClient(
                event_hooks={"request": [note_async(asked_s)], "response": [note_async(answered_s)]}
            )
            async with openai.AsyncOpenAI(**settings(s), http_client=http) as client:
                return await client.chat.completions.create(**ASK, max_tokens=5)

        def work() -> Any:
            http = openai.DefaultHttpxClient(event_hooks={"request": [note(asked_s)], "response": [note(answered_s)]})
            with openai.OpenAI(**settings(s), http_client=http) as client:
                return client.chat.completions.create(**ASK, max_tokens=5)

        return await sync(work)

    run("uvloop", steps())


def note(times_s: list[float]) -> Callable[[Any], None]:
    """The client's own hook, which changes nothing: when did it ask, when was it answered?"""
    return lambda _: times_s.append(time.monotonic())


def note_async(times_s: list[float]) -> Callable[[Any], Any]:
    async def noted(_: Any) -> None:
        times_s.append(time.monotonic())

    return noted


def everything(s: Scene) -> list[dict[str, Any]]:
    """The whole decision log, read as the files are."""
    assert s.app.log is not None
    s.app.log.flush()
    lines = [line for path in paths(s.app.log.directory) for line in reading.lines(path)]
    return [{"kind": line["kind"], **line["record"]} for line in lines]


def test_K51_what_no_retry_can_cure_is_asked_once() -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS) as s:

            def work() -> None:
                with openai.OpenAI(**settings(s)) as client:
                    with pytest.raises(openai.BadRequestError) as caught:
                        client.chat.completions.create(**ASK, max_tokens=5, n=2)
                    assert caught.value.code == "request_exceeds_capacity"
                    with pytest.raises(openai.NotFoundError) as missing:
                        client.chat.completions.create(**{**ASK, "model": "nowhere"})
                    assert missing.value.code == "model_not_found"
                with openai.OpenAI(**settings(s, api_key="wrong")) as stranger:
                    with pytest.raises(openai.AuthenticationError) as denied:
                        stranger.models.list()
                    assert denied.value.code == "invalid_api_key"

            before = s.app.server.counters.requests
            await sync(work)
            assert s.app.server.counters.requests - before == 3

    run("uvloop", steps())


def test_I34_a_stream_that_was_cut_raises() -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, classes=PATIENT) as s:
            engine.fault("break", after_tokens=5)

            def work() -> None:
                with openai.OpenAI(**settings(s)) as client:
                    seen = 0
                    with pytest.raises(openai.APIError) as caught:
                        for _ in client.chat.completions.create(**ASK, max_tokens=50, stream=True):
                            seen += 1
                    assert caught.value.code == "upstream_lost"
                    assert seen >= 5

            await sync(work)

    run("uvloop", steps())


def test_E2_an_sdk_stream_that_is_closed_stops_the_engine() -> None:
    async def steps() -> None:
        async with scene() as s, openai.AsyncOpenAI(**settings(s)) as client:
            stream = await client.chat.completions.create(**ASK, max_tokens=1500, stream=True)
            async for _ in stream:
                break
            await stream.close()
            await s.until(lambda: s.inside() == 0, 2.0)

    run("uvloop", steps())


def test_E3_the_sdks_own_timeout_bounds_the_answer() -> None:
    async def steps() -> None:
        async with scene() as s:

            def work() -> None:
                with openai.OpenAI(**settings(s, max_retries=0, timeout=0.4)) as client, pytest.raises(openai.APIError):
                    client.chat.completions.create(**ASK, max_tokens=1500)

            await sync(work)
            await s.until(lambda: s.inside() == 0, 2.0)

    run("uvloop", steps())
