"""Whole answers, and answers with a slow client, several, or none (E1, E2, A6, K02)."""

from __future__ import annotations

import json

import pytest
from relay_scene import DONE, IDS, JSON, WHOLE, FakeClient, Scene, token

from headworks.core.types import Usage
from headworks.gateway.every_answer import Ids, own_headers
from headworks.gateway.relay import ANSWER_BYTES_MAX

# whole answers

ANSWER = {
    "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None},
}


def test_E1_whole_answer_passes_with_its_length() -> None:
    body = json.dumps(ANSWER).encode()
    scene = Scene(stream=False).plays(body[:10], body[10:], headers=[*JSON, (b"retry-after", b"1")])
    assert (scene.client.status, scene.client.body, scene.client.end) == (200, body, "whole")
    assert scene.client.headers == [*JSON, *own_headers(IDS, 0.0)]
    assert scene.heard.said == ["first byte", "stopped", "over"]
    assert scene.heard.usage == Usage(5, 0, 2, 0.0, "stop", True)


def test_E1_client_left_and_the_whole_answer_still_settles() -> None:
    scene = Scene(stream=False)
    scene.client.leave()
    scene.plays(json.dumps(ANSWER).encode(), headers=JSON)
    assert scene.heard.usage == Usage(5, 0, 2, 0.0, "stop", True)
    assert scene.client.status == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [400, 404, 422])
def test_E1_the_engines_refusal_passes_as_it_is(stream: bool, status: int) -> None:
    body = b'{"error":{"message":"maximum context length is 4096","type":"BadRequestError","code":400}}'
    scene = Scene(stream=stream).plays(body, status=status, headers=JSON)
    assert (scene.client.status, scene.client.body) == (status, body)
    assert scene.heard.said == ["stopped failed", "over"]
    assert scene.heard.usage == Usage(0, 0, 0, 0.0, "failed", True)


@pytest.mark.parametrize("status", [401, 403, 302])
def test_E1_trouble_between_us_and_the_engine_is_not_the_clients(status: int) -> None:
    scene = Scene(stream=False).plays(b"{}", status=status, headers=JSON)
    assert (scene.client.status, scene.heard.said) == (502, ["stopped failed", "over"])


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_E1_a_broken_engine_may_still_run_it(status: int) -> None:
    scene = Scene(stream=False).plays(b"secret trace", status=status, headers=JSON)
    assert (scene.client.status, scene.heard.said) == (502, ["lost", "over"])
    assert b"secret" not in scene.client.body


@pytest.mark.parametrize("stream", [True, False])
def test_K02_busy_engine_leaves_the_client_for_another_try(stream: bool) -> None:
    scene = Scene(stream=stream).plays(b'{"error":"busy"}', status=503, headers=JSON)
    assert scene.heard.said == ["busy", "over"]
    assert scene.client.status == 0
    scene.relay = scene.attempt(stream=True, samples=1, asked=False, every=64)
    scene.plays(*WHOLE)
    assert (scene.client.status, scene.client.end, scene.ended) == (200, "finished", 1)


def test_E1_stream_answered_whole_passes_whole() -> None:
    scene = Scene(stream=True).plays(json.dumps(ANSWER).encode(), headers=JSON)
    assert (scene.client.end, scene.heard.said) == ("whole", ["first byte", "stopped", "over"])


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "body", [b"", b"<!doctype html><title>login</title>", json.dumps(ANSWER).encode()[:-9], b'{"a":' * 50_000]
)
def test_E1_a_success_that_is_no_json_is_no_end_of_what_was_asked_for(body: bytes, stream: bool) -> None:
    """A page of a proxy, or half an answer: its client is told so, and whether it still runs is for others to prove."""
    scene = Scene(stream=stream).plays(body, headers=[(b"content-type", b"text/html")])
    assert (scene.client.status, scene.heard.said[-2:]) == (502, ["lost", "over"])
    assert b"html" not in scene.client.body


def test_H3_whole_answer_is_bounded() -> None:
    scene = Scene(stream=False).plays(end=False, headers=JSON)
    block = bytes(8_388_608)
    for _ in range(ANSWER_BYTES_MAX // len(block) + 1):
        scene.relay.on_body(None, block)
    assert scene.heard.said == ["first byte", "lost"]
    assert scene.client.status == 502


# slow and several clients


def test_E2_a_slow_client_pauses_its_engine_connection_only() -> None:
    scene = Scene().plays(token("a"), end=False)
    scene.client.pause()
    scene.client.pause()
    assert (scene.upstream.calls, scene.relay.paused) == (["pause"], True)
    scene.now_s += 20.0
    scene.client.resume()
    assert (scene.upstream.calls, scene.relay.paused) == (["pause", "resume"], False)
    assert scene.relay.last_s == scene.now_s
    assert scene.heard.said == ["first byte", "slow", "caught up"]


def test_E2_a_slow_client_that_leaves_lets_reading_go_on() -> None:
    scene = Scene().plays(token("a"), end=False)
    scene.client.pause()
    scene.client.leave()
    assert scene.upstream.calls == ["pause", "resume"]
    assert scene.audience.empty


def test_E2_an_abort_lets_reading_go_on() -> None:
    scene = Scene().plays(token("a"), end=False)
    scene.client.pause()
    scene.relay.abort("deadline_exceeded")
    assert scene.upstream.calls == ["pause", "abort", "resume"]


@pytest.mark.parametrize("after", range(6))
def test_A6_a_later_client_gets_the_same_bytes(after: int) -> None:
    scene = Scene(keep=10_000)
    late = FakeClient()
    scene.plays(*WHOLE[:after], end=False)
    if after == 5:
        scene.relay.on_end()
    assert scene.join(late, Ids(b"req-2", b"key-1"))
    for payload in WHOLE[after:]:
        scene.relay.on_body(None, payload)
    if after < 5:
        scene.relay.on_end()
    assert late.body == scene.client.body == b"".join([*WHOLE[:3], DONE])
    assert (late.status, late.end, scene.ended) == (200, "finished", 2)
    assert (b"X-Request-Id", b"req-2") in late.headers


def test_A6_a_whole_answer_is_given_again() -> None:
    body = json.dumps(ANSWER).encode()
    scene = Scene(stream=False, keep=10_000).plays(body, headers=JSON)
    late = FakeClient()
    assert scene.join(late)
    assert (late.status, late.length, late.body, late.end) == (200, len(body), body, "finished")
    assert scene.audience.kept_bytes == len(body)


def test_A6_what_was_not_kept_cannot_be_shared() -> None:
    small = Scene(keep=100).plays(*WHOLE)
    assert not small.join(FakeClient())
    assert small.audience.kept_bytes == 0
    none = Scene()
    assert none.join(FakeClient())
    none.plays(*WHOLE, end=False)
    assert not none.join(FakeClient())
    failed = Scene(keep=10_000).plays(token("a"))
    assert not failed.join(FakeClient())


def test_A6_the_slowest_of_several_clients_sets_the_pace() -> None:
    scene = Scene(keep=10_000)
    other = FakeClient()
    scene.join(other)
    scene.client.pause()
    other.pause()
    scene.client.resume()
    assert scene.upstream.calls == ["pause"]
    other.leave()
    assert scene.upstream.calls == ["pause", "resume"]
