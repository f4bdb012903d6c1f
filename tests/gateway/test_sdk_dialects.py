"""The stock OpenAI and Anthropic clients, unchanged, on the routes beside chat (E1, K21, K50).

On fake engines always; on a real vLLM where `HEADWORKS_VLLM_URL` names one that serves the model `tiny` to nobody else, and
embeddings on one that serves it with `--runner pooling --convert embed`, where `HEADWORKS_VLLM_POOLING_URL` names that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from app_scene import Scene, fake_engine, run, scene
from fronts import TENANTS, Front, fake_scene, on_engines, real_scene

TALK: list[Any] = [{"role": "user", "content": "one two three"}]
KEY = "acme-key-of-the-test"
REAL_POOLING = os.environ.get("HEADWORKS_VLLM_POOLING_URL", "")


def url_of(s: Scene) -> str:
    host, port = s.app.address[:2]
    return f"http://{host}:{port}"


def openai_client(s: Scene, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=url_of(s) + "/v1", api_key=key, max_retries=0)


def anthropic_client(s: Scene, key: str = KEY) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url_of(s), api_key=key, max_retries=0)


def in_thread(front: Front, work: Callable[[Scene], None], outcomes: int) -> list[dict[str, Any]]:
    """Run what a blocking client does; returns the usage that was settled for each request that had an outcome."""
    settled: list[dict[str, Any]] = []

    async def steps() -> None:
        async with front() as s:
            await asyncio.to_thread(work, s)
            await s.until(lambda: len(usages(s)) == outcomes)
            settled.extend(usages(s))

    run("uvloop", steps(), within_s=60)
    return settled


def usages(s: Scene) -> list[dict[str, Any]]:
    """What was settled for each outcome so far, in the order in which they ended."""
    assert s.app.log is not None
    s.app.log.flush()
    return [one["usage"] for one in s.everything("outcome") if one["usage"] is not None]


def settled_as(prompt_tokens: int, output_tokens: int) -> tuple[int, int, bool]:
    return prompt_tokens, output_tokens, True


def told(usage: dict[str, Any]) -> tuple[int, int, bool]:
    return usage["prompt_tokens"], usage["output_tokens"], usage["exact"]


@on_engines
def test_E1_openai_responses_in_one_piece_and_streamed(front: Front) -> None:
    said: list[tuple[int, int, bool]] = []

    def work(s: Scene) -> None:
        with openai_client(s) as client:
            whole = client.responses.create(model="tiny", input="one two three", instructions="Be brief.", max_output_tokens=6)
            assert (whole.status, whole.usage is not None and whole.usage.output_tokens) == ("incomplete", 6)
            assert whole.incomplete_details is not None and whole.incomplete_details.reason == "max_output_tokens"
            assert whole.output_text
            said.append(settled_as(whole.usage.input_tokens, whole.usage.output_tokens))
            events = list(client.responses.create(model="tiny", input=TALK, max_output_tokens=6, stream=True))
            assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
            last: Any = events[-1]
            assert last.type == "response.completed"
            deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
            assert "".join(deltas) == last.response.output_text
            said.append(settled_as(last.response.usage.input_tokens, last.response.usage.output_tokens))
            with client.responses.stream(model="tiny", input="go on", max_output_tokens=5) as stream:
                for _ in stream:
                    pass
                final = stream.get_final_response()
            assert final.usage is not None and final.usage.output_tokens == 5
            said.append(settled_as(final.usage.input_tokens, final.usage.output_tokens))

    assert list(map(told, in_thread(front, work, 3))) == said


@on_engines
def test_E1_anthropic_messages_in_one_piece_streamed_and_counted(front: Front) -> None:
    said: list[tuple[int, int, bool]] = []

    def work(s: Scene) -> None:
        with anthropic_client(s) as client:
            whole = client.messages.create(model="tiny", max_tokens=6, system="Be brief.", messages=TALK)
            assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 6)
            assert whole._request_id is not None and whole._request_id.startswith("req_")
            said.append(settled_as(whole.usage.input_tokens, whole.usage.output_tokens))
            with client.messages.stream(model="tiny", max_tokens=7, messages=TALK) as stream:
                text = "".join(stream.text_stream)
                final = stream.get_final_message()
            assert final.content[0].type == "text" and final.content[0].text == text
            assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 7)
            said.append(settled_as(final.usage.input_tokens, final.usage.output_tokens))
            counted = client.messages.count_tokens(model="tiny", messages=TALK)
            assert counted.input_tokens == final.usage.input_tokens
            assert [model.id for model in client.models.list()] == ["tiny"]

    settled = in_thread(front, work, 3)
    assert list(map(told, settled[:2])) == said
    assert told(settled[2]) == (0, 0, False), "counting uses nothing"


def test_E1_openai_embeddings_of_text_and_of_token_ids() -> None:
    def work(s: Scene) -> None:
        with openai_client(s) as client:
            two = client.embeddings.create(model="tiny", input=["one two three", "four"])
            assert [len(row.embedding) for row in two.data] == [8, 8]
            assert two.usage.prompt_tokens == 5
            ids = client.embeddings.create(model="tiny", input=[1, 2, 3], dimensions=4, encoding_format="float")
            assert (len(ids.data[0].embedding), ids.usage.prompt_tokens) == (4, 3)

    assert list(map(told, in_thread(fake_scene, work, 2))) == [(5, 0, True), (3, 0, True)]


@pytest.mark.skipif(not REAL_POOLING, reason="HEADWORKS_VLLM_POOLING_URL is not set")
def test_E1_openai_embeddings_on_a_real_engine() -> None:
    """Texts, ids, and both forms of a number; it has no chat, and the client is told what it has."""
    said: list[tuple[int, int, bool]] = []

    def work(s: Scene) -> None:
        with openai_client(s) as client:
            asked: list[Any] = ["one two three", ["one", "two", "three four"], [1, 2, 3], [[1, 2], [3]]]
            for given, rows in zip(asked, (1, 3, 1, 2), strict=True):
                found = client.embeddings.create(model="tiny", input=given)
                plain = client.embeddings.create(model="tiny", input=given, encoding_format="float")
                assert [len(row.embedding) for row in found.data] == [256] * rows
                for one, other in zip(found.data, plain.data, strict=True):
                    assert one.embedding == pytest.approx(other.embedding, abs=1e-5)
                said.append(settled_as(found.usage.prompt_tokens, 0))
                said.append(settled_as(plain.usage.prompt_tokens, 0))
            with pytest.raises(openai.NotFoundError) as missing:
                client.chat.completions.create(model="tiny", messages=TALK)
            assert "/v1/embeddings" in str(missing.value)

    assert list(map(told, in_thread(lambda: real_scene(REAL_POOLING), work, 8))) == said


def test_E1_the_async_clients_too() -> None:
    async def steps() -> None:
        async with (
            fake_scene() as s,
            openai.AsyncOpenAI(base_url=url_of(s) + "/v1", api_key=KEY) as chat,
            anthropic.AsyncAnthropic(base_url=url_of(s), auth_token=KEY) as talk,
        ):
            stream = await chat.responses.create(model="tiny", input="one", max_output_tokens=3, stream=True)
            assert [event.type async for event in stream][-1] == "response.completed"
            async with talk.messages.stream(model="tiny", max_tokens=3, messages=TALK) as events:
                assert (await events.get_final_message()).usage.output_tokens == 3

    run("uvloop", steps())


def test_K50_a_refusal_is_the_sdks_own_exception_with_code_and_request_id() -> None:
    def work(s: Scene) -> None:
        with anthropic_client(s, "batchco-key-of-the-test") as client, pytest.raises(anthropic.NotFoundError) as hidden:
            client.messages.create(model="tiny", max_tokens=5, messages=TALK)
        body: Any = hidden.value.body
        assert (body["type"], body["error"]["type"], body["error"]["code"]) == ("error", "not_found_error", "model_not_found")
        assert hidden.value.request_id == body["request_id"] == hidden.value.response.headers["request-id"]
        with anthropic_client(s, "wrong") as stranger, pytest.raises(anthropic.AuthenticationError):
            stranger.messages.create(model="tiny", max_tokens=5, messages=TALK)
        with anthropic_client(s) as client, pytest.raises(anthropic.BadRequestError) as image:
            source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
            client.messages.create(
                model="tiny",
                max_tokens=5,
                messages=[{"role": "user", "content": [{"type": "image", "source": source}]}],  # type: ignore[list-item,typeddict-item]
            )
        assert "only text is accepted here" in str(image.value)
        with openai_client(s) as other, pytest.raises(openai.BadRequestError) as kept:
            other.responses.create(model="tiny", input="x", previous_response_id="resp_1")
        assert (kept.value.code, kept.value.param) == ("field_not_allowed", "previous_response_id")
        with openai_client(s, "batchco-key-of-the-test") as other, pytest.raises(openai.NotFoundError) as missing:
            other.embeddings.create(model="tiny", input="x")
        assert missing.value.code == "model_not_found"
        assert missing.value.request_id is not None

    in_thread(fake_scene, work, 0)


@pytest.mark.parametrize("kind", ["error", "break"])
def test_I34_a_stream_that_was_cut_raises_in_both_clients(kind: str) -> None:
    engine = fake_engine()

    def work(s: Scene) -> None:
        engine.fault(kind, after_tokens=3, times=2)
        with openai_client(s) as client, pytest.raises(openai.APIError) as cut:
            list(client.responses.create(model="tiny", input="one", max_output_tokens=40, stream=True))
        assert cut.value.code == "upstream_lost"
        with (
            anthropic_client(s) as talk,
            pytest.raises(anthropic.APIStatusError) as lost,
            talk.messages.stream(model="tiny", max_tokens=40, messages=TALK) as stream,
        ):
            list(stream.text_stream)
        body: Any = lost.value.body
        assert (body["error"]["type"], body["error"]["code"]) == ("api_error", "upstream_lost")
        assert body["request_id"].startswith("req_")

    in_thread(lambda: scene(engine, tenants=TENANTS), work, 2)
