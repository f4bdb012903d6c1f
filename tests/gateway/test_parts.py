"""Images and audio: priced by a rule of their model's, refused without one, and never counted as text (C1, E1)."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import anthropic
import openai
import pytest
from app_scene import Scene, chat, fake_engine, run, scene

from headworks.config.settings import PartPrices
from headworks.gateway.dialects.base import NO_PARTS, Limits, Parsed, Parts
from headworks.gateway.dialects.fields import Fault
from headworks.gateway.dialects.table import DIALECTS

PIXELS = base64.b64encode(b"\x89PNG" + bytes(2_996)).decode()
"""4,000 characters of base64, as an image of 3 kB is."""
URI = "data:image/png;base64," + PIXELS
PRICES = PartPrices(image_tokens=500, image_low_tokens=85, images_max=3, audio_tokens_per_s=25.0, audio_s_max=60.0)
LIMITS = Limits(context_tokens=4_096, parts={"m": PRICES})


def image(url: str = URI, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def wav(seconds: float, rate: int = 8_000, channels: int = 1, bits: int = 16, form: int = 1, frame_bytes: int = 0) -> str:
    """A file of silence in base64."""
    frame_bytes = frame_bytes or channels * bits // 8
    data = bytes(int(seconds * rate) * frame_bytes)
    head = struct.pack(
        "<4sI4s4sIHHIIHH", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, form, channels, rate, 0, frame_bytes, bits
    )
    return base64.b64encode(head + struct.pack("<4sI", b"data", len(data)) + data).decode()


def audio(data: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def parsed(*parts: Any, path: str = "/v1/chat/completions", limits: Limits = LIMITS, **fields: Any) -> Parsed | Fault:
    body = {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **fields}
    return DIALECTS[path].parse(json.dumps(body).encode(), limits)


def priced(*parts: Any, **fields: Any) -> Parts:
    found = parsed(*parts, **fields)
    assert isinstance(found, Parsed), found
    return found.parts


def refused(*parts: Any, **fields: Any) -> Fault:
    fault = parsed(*parts, **fields)
    assert isinstance(fault, Fault)
    assert fault.reason == "invalid_request"
    return fault


def test_C1_an_image_takes_what_its_models_rule_says_by_detail() -> None:
    assert priced(image()).tokens == 500
    assert priced(image(detail="auto"), image(detail="high"), image(detail="low")).tokens == 500 + 500 + 85
    everywhere = Limits(parts={"m": PartPrices(image_tokens=500, images_max=1)})
    assert priced(image(detail="low"), limits=everywhere).tokens == 500, "an engine that has one size"


def test_C1_its_data_is_no_text_and_is_counted_as_what_waits() -> None:
    found = parsed({"type": "text", "text": "what is this?"}, image())
    assert isinstance(found, Parsed)
    assert (found.prompt_bytes, found.prompt_tokens, found.prompt_kind) == (13 + 8, None, "text")
    assert found.parts == (500, len(URI))
    plain = parsed({"type": "text", "text": "what is this?"})
    assert isinstance(plain, Parsed) and plain.parts is NO_PARTS
    assert json.loads(found.build(9, None))["messages"][0]["content"][1] == image(), "and goes on as it came"


@pytest.mark.parametrize(
    ("data", "tokens"),
    [
        (wav(2.0), 51),  # 2.0 s and a head: a part of a 25th of a second
        (wav(2.0, rate=16_000, channels=2, bits=32, form=3), 51),
        (wav(0.0), 1),
    ],
)
def test_C1_audio_takes_what_its_seconds_come_to(data: str, tokens: int) -> None:
    assert priced(audio(data)) == (tokens, len(data))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (wav(61.0), "60 s are allowed"),
        ("AAAA", "is no WAV file"),
        ("%%%%", "is no WAV file"),
        ("ÄÄÄÄ", "is no WAV file"),
        (wav(1.0, form=2), "its length cannot be told"),
        (wav(1.0, frame_bytes=4_000), "its length cannot be told"),
        (wav(1.0, bits=12, frame_bytes=2), "its length cannot be told"),
        (base64.b64encode(b"OggS" + bytes(60)).decode(), "its length cannot be told"),
    ],
)
def test_C1_audio_whose_length_nobody_can_tell_is_refused(data: str, says: str) -> None:
    assert says in refused(audio(data)).subject


@pytest.mark.parametrize(
    "url",
    [
        "http://h/x.png",
        "file:///etc/passwd",
        "data:text/html;base64,AAAA",
        "data:image/png,AAAA",
        "data:image/svg+xml;base64,AA",
        "",
    ],
)
def test_H3_nothing_is_fetched_and_nothing_else_is_taken_for_an_image(url: str) -> None:
    assert "nothing is fetched" in refused(image(url)).subject


def test_C1_without_a_rule_the_refusal_says_which_key_to_set() -> None:
    for part, key in ((image(), "models.m.image"), (audio(wav(1.0)), "models.m.audio")):
        fault = refused({"type": "text", "text": "x"}, part, limits=Limits())
        assert f"({key})" in fault.subject
        assert fault.param == "messages[0].content[1]"
    assert "(models.m.audio)" in refused(audio(wav(1.0)), limits=Limits(parts={"m": PartPrices(image_tokens=5)})).subject
    assert isinstance(parsed(image(), model="other"), Fault), "a rule is its model's"


def test_C1_more_images_than_are_allowed_and_a_cut_prompt_are_refused() -> None:
    assert "3 images are allowed" in refused(*[image()] * 4).subject
    assert "cuts text" in refused(image(), {"type": "text", "text": "long"}, truncate_prompt_tokens=5).subject


def test_H3_an_image_has_no_other_fields() -> None:
    fault = parsed({"type": "image_url", "image_url": {"url": URI, "uuid": "x"}})
    assert isinstance(fault, Fault) and fault.reason == "field_not_allowed"
    for role in ("system", "assistant", "tool"):
        message = {"role": role, "content": [image()], "tool_call_id": "t"}
        assert isinstance(parsed(messages=[{k: v for k, v in message.items() if role == "tool" or k != "tool_call_id"}]), Fault)


def test_C1_the_other_dialects_too() -> None:
    item = {"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": URI}]}
    body = {"model": "m", "input": [item, {"type": "function_call_output", "call_id": "c", "output": item["content"]}]}
    found = DIALECTS["/v1/responses"].parse(json.dumps(body).encode(), LIMITS)
    assert isinstance(found, Parsed) and found.parts == (1_000, 2 * len(URI))
    source = {"type": "base64", "media_type": "image/png", "data": PIXELS}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        extra = {"max_tokens": 9} if path == "/v1/messages" else {}
        assert priced({"type": "image", "source": source}, path=path, **extra) == (500, len(PIXELS))
        fault = parsed({"type": "image", "source": {"type": "url", "url": "http://h"}}, path=path, **extra)
        assert isinstance(fault, Fault) and "in the body" in fault.subject


# through a whole gateway


RULES = {"tiny": {"image": {"tokens": 500, "tokens_low": 85}, "audio": {"tokens_per_s": 25}}}


def asked(s: Scene, name: str) -> dict[str, Any]:
    (decision,) = [one for one in s.everything("decision") if one["id"] == name]
    return decision


def test_C1_what_was_reserved_by_the_rule_is_settled_by_what_the_engine_says() -> None:
    """The rule says 500 tokens an image; this engine makes 64 of it, and its word is what counts."""

    async def steps() -> None:
        async with scene(fake_engine(part_tokens=64), models=RULES) as s:
            content = [{"type": "text", "text": "what is this?"}, image(), image(detail="low")]
            answer = await s.ask(chat(messages=[{"role": "user", "content": content}], tokens=5))
            assert answer.status == 200, answer.body
            usage = json.loads(answer.body)["usage"]
            await s.until(lambda: len(s.everything("outcome")) == 1)
            (outcome,) = s.everything("outcome")
            assert outcome["usage"]["prompt_tokens"] == usage["prompt_tokens"] == 2 * 64 + 6
            assert outcome["work"]["prefill_tokens"] == 13 + 8 + 32 + 500 + 85, "text by its bytes, its template, two images"
            assert outcome["work"]["basis"] == "exact"

    run("uvloop", steps())


def test_C1_a_reload_brings_a_rule_into_force() -> None:
    async def steps() -> None:
        async with scene(fake_engine(part_tokens=64)) as s:
            ask = chat(messages=[{"role": "user", "content": [image()]}], tokens=5)
            before = await s.ask(ask)
            assert (before.status, json.loads(before.body)["error"]["param"]) == (400, "messages[0].content[0]")
            assert "models.tiny.image" in json.loads(before.body)["error"]["message"]
            await s.reload(s.text(models=RULES))
            assert (await s.ask(ask)).status == 200

    run("uvloop", steps())


def test_E1_stock_sdks_send_images() -> None:
    async def steps() -> None:
        async with scene(fake_engine(part_tokens=64), models=RULES) as s:
            host, port = s.app.address[:2]

            def work() -> None:
                with openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0) as client:
                    said: Any = {"type": "image_url", "image_url": {"url": URI}}
                    whole = client.chat.completions.create(
                        model="tiny", messages=[{"role": "user", "content": [said]}], max_tokens=4
                    )
                    assert whole.usage is not None and whole.usage.prompt_tokens > 64
                    shown: Any = {"type": "input_image", "image_url": URI, "detail": "low"}
                    item: Any = {"role": "user", "content": [{"type": "input_text", "text": "look"}, shown]}
                    response = client.responses.create(model="tiny", input=[item], max_output_tokens=4)
                    assert response.usage is not None and response.usage.input_tokens > 64
                with anthropic.Anthropic(base_url=f"http://{host}:{port}", api_key="none", max_retries=0) as talk:
                    source: Any = {"type": "base64", "media_type": "image/png", "data": PIXELS}
                    message = talk.messages.create(
                        model="tiny",
                        max_tokens=4,
                        messages=[{"role": "user", "content": [{"type": "image", "source": source}]}],
                    )
                    assert message.usage.input_tokens > 64

            await asyncio.to_thread(work)

    run("uvloop", steps())
