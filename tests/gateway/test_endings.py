"""Answers that are ended here (A8, `length`), and whole ones that are put together from a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from relay_scene import DONE, ERROR, JSON, SSE, USAGE, FakeClient, FakeUpstream, Heard, Scene, event

from headworks.core.types import Usage
from headworks.gateway.assembly import Assembled
from headworks.gateway.audience import Audience
from headworks.gateway.dialects import chat, completions
from headworks.gateway.dialects.base import Limits, Parsed
from headworks.gateway.endings import length_ending
from headworks.gateway.event_rate import EventRate
from headworks.gateway.every_answer import Ids, own_headers
from headworks.gateway.relay import Relay


def chunk(text: str = "x", index: int = 0, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
    return event(id="chatcmpl-1", object="chat.completion.chunk", created=7, model="tiny", choices=[choice], **more)


def text_chunk(text: str = "x", index: int = 0, finish: str | None = None) -> bytes:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    return event(id="cmpl-1", object="text_completion", created=7, model="tiny", choices=[choice])


ROLE = event(
    id="chatcmpl-1",
    object="chat.completion.chunk",
    created=7,
    model="tiny",
    choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}],
)
TOLD = event(
    id="chatcmpl-1", choices=[], usage={"prompt_tokens": 11, "total_tokens": 14, "completion_tokens": 3}, system_fingerprint="f"
)


def read(body: bytes) -> list[Any]:
    parts = [part.removeprefix(b"data: ") for part in body.split(b"\n\n") if part]
    return [part.decode() if part == b"[DONE]" else json.loads(part) for part in parts]


# ended here


def test_A8_a_stream_is_ended_in_the_words_of_its_first_event() -> None:
    last, done = read(length_ending(ROLE + chunk("a"), 1, (), None))
    assert last == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "tiny",
        "choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length", "stop_reason": None}],
    }
    assert done == "[DONE]"


def test_A8_a_completion_is_ended_as_a_completion() -> None:
    last, _ = read(length_ending(text_chunk(), 1, (), None))
    assert (last["object"], last["choices"][0]["text"], last["choices"][0]["finish_reason"]) == (
        "text_completion",
        "",
        "length",
    )


def test_A8_only_choices_that_have_not_ended_are_ended_and_usage_comes_to_who_asked() -> None:
    ending = read(length_ending(b": keep-alive\n\n" + chunk("a", 2), 3, {1: "stop"}, (11, 40)))
    assert [part["choices"][0]["index"] for part in ending[:2]] == [0, 2]
    assert (ending[2]["choices"], ending[2]["usage"]) == (
        [],
        {"prompt_tokens": 11, "total_tokens": 51, "completion_tokens": 40},
    )
    assert ending[3] == "[DONE]"


@pytest.mark.parametrize(
    "opening", [b"", b"data: nothing\n\n", b"data: [DONE]\n\n", event(choices=[]), event(choices=[{"index": 0}])]
)
def test_A8_what_is_of_no_known_form_cannot_be_ended_well(opening: bytes) -> None:
    assert length_ending(opening, 1, (), None) == b""


def test_A8_a_relay_that_is_cut_short_ends_well_and_reads_on_for_evidence() -> None:
    scene = Scene().plays(ROLE, chunk("a"), end=False)
    scene.relay.cut_short()
    assert (scene.client.end, scene.ended, scene.upstream.calls) == ("finished", 1, ["abort"])
    *_, last, done = read(scene.client.body)
    assert (last["choices"][0]["finish_reason"], done) == ("length", "[DONE]")
    scene.relay.on_body(None, chunk("b"))
    scene.relay.on_closed()
    assert scene.heard.said == ["first byte", "closed", "over"]
    assert scene.heard.tokens == 3, "what was made after is counted, and nobody gets it"
    assert b'"b"' not in scene.client.body


def test_A8_an_engine_that_ends_after_all_is_the_strongest_word() -> None:
    scene = Scene().plays(chunk("a"), end=False)
    scene.relay.cut_short()
    before = scene.client.body
    scene.relay.on_body(None, chunk("b", finish="stop") + USAGE + DONE)
    scene.relay.on_end()
    assert scene.heard.said == ["first byte", "stopped", "over"]
    assert scene.heard.usage == Usage(11, 0, 3, 0.0, "stop", True)
    assert scene.client.body == before


def test_A8_the_usage_of_a_cut_stream_is_what_was_counted() -> None:
    scene = Scene(asked=True)
    scene.relay = Relay(
        scene.audience, scene.heard, True, 1, True, scene.rate, scene.is_busy, lambda: 0.0, watch_tokens=100, prompt_tokens=12
    )
    scene.plays(*[chunk()] * 5, end=False)
    scene.relay.cut_short()
    assert read(scene.client.body)[-2]["usage"] == {"prompt_tokens": 12, "total_tokens": 17, "completion_tokens": 5}


def test_A8_what_cannot_be_ended_well_is_broken_off() -> None:
    scene = Scene().plays(event(choices=[{"index": 0, "finish_reason": None}]), end=False)
    scene.relay.cut_short()
    assert scene.client.end == "broken"


def test_A8_progress_is_told_at_the_very_token_that_is_watched() -> None:
    scene = Scene(every=64).plays(chunk(), end=False)
    scene.relay.watch(10)
    told = []
    for _ in range(90):
        scene.relay.on_body(None, chunk())
        told.append(scene.heard.tokens)
    assert sorted(set(told)) == [0, 10, 74]


def test_A8_a_rate_of_several_tokens_an_event_is_told_in_time() -> None:
    scene = Scene()
    scene.rate.learn(999, 2_999)  # three tokens an event
    scene.plays(chunk(), end=False)
    scene.relay.watch(30)
    for _ in range(9):
        scene.relay.on_body(None, chunk())
    assert scene.heard.tokens == 30
    assert [EventRate().events(tokens) for tokens in (1, 184)] == [1, 184]


# put together


class Whole:
    """A request for one piece of an answer that is streamed by the engine."""

    def __init__(self, samples: int = 1) -> None:
        self.client = FakeClient()
        self.heard = Heard()
        self.upstream = FakeUpstream()
        self.audience = Audience(lambda: 0.0)
        ids = Ids(b"req-1", b"key-1")
        self.audience.join(self.client, ids, own_headers(ids, 0.0), lambda: None)
        outlet = Assembled(self.audience)
        self.relay = Relay(
            outlet, self.heard, True, samples, True, EventRate(), lambda status, body: False, lambda: 0.0, prompt_tokens=9
        )
        self.relay.attach(self.upstream)

    def plays(self, *payloads: bytes, end: bool = True) -> Whole:
        self.relay.on_head(200, SSE, True)
        for payload in payloads:
            self.relay.on_body(b"%x\r\n%b\r\n" % (len(payload), payload), payload)
        if end:
            self.relay.on_end()
        return self


def test_A8_a_chat_is_put_together_as_the_engine_would_have_written_it() -> None:
    whole = Whole().plays(ROLE, chunk("one "), chunk("two"), chunk("", finish="stop"), TOLD, DONE)
    assert (whole.client.status, whole.client.end) == (200, "whole")
    assert dict(whole.client.headers)[b"content-type"] == b"application/json"
    assert whole.client.json() == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 7,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "one two"},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "system_fingerprint": None,
        "usage": {"prompt_tokens": 11, "total_tokens": 14, "completion_tokens": 3},
    }
    assert whole.heard.said == ["first byte", "stopped", "over"]


def test_A8_choices_stand_in_their_order_and_reasoning_beside_the_text() -> None:
    thinking = event(
        object="chat.completion.chunk", choices=[{"index": 1, "delta": {"reasoning_content": "hm"}, "finish_reason": None}]
    )
    whole = Whole(samples=2).plays(
        thinking, thinking, chunk("b", 1), chunk("a", 0), chunk("", 1, "stop"), chunk("", 0, "length"), TOLD, DONE
    )
    first, second = whole.client.json()["choices"]
    assert (first["index"], first["message"]["content"], first["finish_reason"]) == (0, "a", "length")
    assert second["message"] == {"role": "assistant", "content": "b", "reasoning_content": "hmhm"}


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_A8_wherever_the_reads_fall_the_whole_is_the_same(size: int) -> None:
    stream = b"".join([text_chunk("é\\n "), text_chunk("two"), text_chunk("", finish="length"), TOLD, DONE])
    whole = Whole().plays(*(stream[start : start + size] for start in range(0, len(stream), size)))
    body = whole.client.json()
    assert (body["object"], body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == (
        "text_completion",
        "é\\n two",
        "length",
    )


def test_A8_cut_short_the_whole_says_length_and_what_was_counted() -> None:
    whole = Whole().plays(ROLE, chunk("one "), chunk("two"), end=False)
    assert whole.client.status == 0
    whole.relay.cut_short()
    body = whole.client.json()
    assert (body["choices"][0]["message"]["content"], body["choices"][0]["finish_reason"]) == ("one two", "length")
    assert body["usage"] == {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3}
    assert whole.upstream.calls == ["abort"]


def test_E1_an_error_in_its_stream_is_an_answer_with_a_status() -> None:
    whole = Whole().plays(chunk("a"), ERROR, DONE)
    assert (whole.client.status, whole.client.json()["error"]["code"]) == (502, "upstream_lost")


def test_E3_aborted_it_is_an_answer_with_a_status() -> None:
    whole = Whole().plays(chunk("a"), end=False)
    whole.relay.abort("deadline_exceeded", limit=5.0)
    assert whole.client.status == 504


def test_E1_an_engine_that_answers_in_one_piece_all_the_same_is_passed_on() -> None:
    whole = Whole()
    whole.relay.on_head(400, JSON, False)
    whole.relay.on_body(None, b'{"error":{"message":"no"}}')
    whole.relay.on_end()
    assert (whole.client.status, whole.client.json()["error"]["message"]) == (400, "no")


def test_A8_what_cannot_be_read_is_not_guessed() -> None:
    whole = Whole().plays(chunk("a"), b'data: {"choices":"no"}\n\n', chunk("", finish="stop"), DONE)
    assert whole.client.status == 502


# which ones


def asked(parse: Any, **fields: Any) -> Parsed:
    body = {"model": "tiny", "max_tokens": 5, **fields}
    parsed = parse(json.dumps(body).encode(), Limits())
    assert isinstance(parsed, Parsed), parsed
    return parsed


TALK = {"messages": [{"role": "user", "content": "hello"}]}
TOOL = {"type": "function", "function": {"name": "look"}}


def test_A8_a_request_with_listed_fields_only_may_be_put_together() -> None:
    assert asked(chat.parse, **TALK, temperature=0.5, stop=["x"], n=2, seed=1, user="me", stream=False).assembles
    assert asked(completions.parse, prompt=["a", "b"], top_p=0.5, min_tokens=2).assembles
    assert not asked(chat.parse, **TALK, stream=True).assembles, "it is a stream already"


@pytest.mark.parametrize(
    "field",
    [{"tools": [TOOL]}, {"logprobs": True}, {"top_logprobs": 2}, {"prompt_logprobs": 1}, {"reasoning_effort": "low"}],
    ids=lambda field: next(iter(field)),
)
def test_A8_a_field_that_streams_write_differently_keeps_it_in_one_piece(field: dict[str, Any]) -> None:
    assert not asked(chat.parse, **TALK, **field).assembles


def test_A8_an_echoed_prompt_keeps_a_completion_in_one_piece() -> None:
    assert not asked(completions.parse, prompt="a", echo=True).assembles
    assert not asked(completions.parse, prompt="a", logprobs=1).assembles


def test_A8_the_engine_is_asked_for_the_stream_and_its_usage() -> None:
    parsed = asked(chat.parse, **TALK)
    assert "stream" not in json.loads(parsed.build(5, None))
    sent = json.loads(parsed.build(5, None, True))
    assert (sent["stream"], sent["stream_options"], sent["max_tokens"]) == (True, {"include_usage": True}, 5)


def test_A8_who_ignores_the_end_will_write_all_that_it_may() -> None:
    parsed = chat.parse(json.dumps({"model": "tiny", **TALK, "ignore_eos": True}).encode(), Limits())
    assert isinstance(parsed, Parsed) and parsed.output_tokens_min == 2**31 - 1


def test_I34_a_whole_longer_than_64_mib_is_given_up_and_costs_no_more_memory() -> None:
    whole = Whole().plays(ROLE, chunk("one "), end=False)
    block = b"data: " + b"x" * (8 * 1024 * 1024) + b"\n\n"
    for _ in range(8):
        whole.relay.on_body(None, block)
    assert whole.relay._audience._choices == {}
    whole.relay.on_body(None, chunk("two", finish="stop") + TOLD + DONE)
    whole.relay.on_end()
    assert (whole.client.status, whole.client.json()["error"]["code"]) == (502, "upstream_lost")


def test_A8_a_slow_client_of_what_is_cut_short_holds_up_no_evidence() -> None:
    scene = Scene().plays(ROLE, chunk("a"), end=False)
    scene.client.pause()
    scene.relay.cut_short()
    assert scene.upstream.calls == ["pause", "abort", "resume"]
    assert scene.heard.said == ["first byte", "slow", "caught up"]
