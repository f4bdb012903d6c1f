"""The engine of which nothing is known but what it says in band."""

from __future__ import annotations

import json
import time

import pytest
from wire import EXECUTION, LOOPS, Clock, Peer, Server, answer, run_on

from headworks.engines.base import EngineError
from headworks.engines.openai import OpenAIEngine
from headworks.testing.fake_engine import FakeEngine
from headworks.testing.listener import Recorder


def with_models(models: bytes, check, context_tokens: int | None = None) -> None:  # type: ignore[no-untyped-def]
    async def list_models(peer: Peer) -> None:
        while True:
            head, _ = await peer.request()
            await peer.say(answer(models) if head.startswith(b"GET /v1/models ") else answer(b"", b"404 Not Found"))

    async def test() -> None:
        async with Server(list_models) as server:
            engine = OpenAIEngine("cloud/0", server.url, Clock(), context_tokens=context_tokens)
            try:
                await check(engine)
            finally:
                await engine.close()

    run_on("asyncio", test())


@pytest.mark.parametrize(
    ("models", "configured", "context_tokens", "notes_count"),
    [
        (b'{"data":[{"id":"a"}]}', None, 4_096, 2),
        (b'{"data":[{"id":"a"}]}', 32_768, 32_768, 1),
        (b'{"data":[{"id":"a","max_model_len":8192}]}', None, 8_192, 1),
        (b'{"data":[{"id":"a","max_model_len":8192}]}', 2_048, 2_048, 1),
    ],
)
def test_E6_context_is_configured_stated_or_assumed_and_said(
    models: bytes, configured: int | None, context_tokens: int, notes_count: int
) -> None:
    async def check(engine: OpenAIEngine) -> None:
        capacity = await engine.describe()
        assert capacity.context_tokens == context_tokens
        assert len(capacity.notes) == notes_count

    with_models(models, check, configured)


def test_E6_memory_is_never_guessed_and_only_in_band_evidence_claimed() -> None:
    async def check(engine: OpenAIEngine) -> None:
        capacity = await engine.describe()
        assert (capacity.kv_tokens, capacity.running_max, capacity.evidence) == (None, None, ("E1",))

    with_models(b'{"data":[{"id":"a"}]}', check)


def test_B3_sample_says_that_it_lives_and_nothing_else() -> None:
    async def check(engine: OpenAIEngine) -> None:
        sample = await engine.sample()
        gauges = (sample.iterations, sample.running, sample.waiting, sample.kv_used_ratio, sample.preemptions_total)
        assert gauges == (None,) * 5
        assert sample.incarnation == (await engine.describe()).incarnation

    with_models(b'{"data":[{"id":"a"}]}', check)


def test_B3_sample_of_an_engine_that_fails_is_an_error() -> None:
    async def check(engine: OpenAIEngine) -> None:
        with pytest.raises(EngineError, match="not a list of models"):
            await engine.sample()

    with_models(b"<html>", check)


def test_K02_nothing_it_says_means_that_nothing_was_started() -> None:
    engine = OpenAIEngine("cloud/0", "http://127.0.0.1:1", Clock())
    assert not engine.is_busy(503, b'{"error":{"message":"The engine is currently busy"}}')
    assert not engine.is_busy(429, b"")


@pytest.mark.parametrize("loop", LOOPS)
def test_E2_answer_of_a_client_that_left_is_read_to_its_end(loop: str) -> None:
    async def test() -> None:
        fake = FakeEngine()
        async with fake as url:
            engine = OpenAIEngine("cloud/0", url, time.monotonic)
            recorder = Recorder()
            asked = {"model": "tiny", "prompt": "one two", "max_tokens": 40, "ignore_eos": True, "stream": True}
            body = json.dumps(asked | {"stream_options": {"include_usage": True}}).encode()
            upstream = engine.run(EXECUTION, "/v1/completions", body, float("inf"), recorder)
            await recorder.until(lambda told: b"data: {" in told.payload)
            upstream.abort()
            assert EXECUTION in fake.held(), "the engine was not told: it would prove nothing"
            assert await recorder.until_over() == "end"
            assert recorder.payload.endswith(b"data: [DONE]\n\n")
            assert b'"completion_tokens":40' in recorder.payload
            assert fake.held() == {}
            await engine.close()

    run_on(loop, test())
