"""Streams from an engine to a client, and what is known of their end (E1, E2, K10, K19, K21, E3)."""

from __future__ import annotations

import json
import random

import pytest
from relay_scene import DONE, ERROR, JSON, USAGE, WHOLE, FakeClient, Scene, event, token

from headworks.core.types import Usage
from headworks.engines.vllm import VllmEngine
from headworks.gateway.event_stream import EVENT_BYTES_MAX, EventStream
from headworks.gateway.relay import Relay
from headworks.testing.fake.asked import BUSY

# streams that end well


def test_E1_stream_passes_unchanged_and_settles() -> None:
    scene = Scene(asked=True).plays(*WHOLE)
    assert scene.client.body == b"".join(WHOLE)
    assert (scene.client.status, scene.client.end, scene.ended) == (200, "finished", 1)
    assert scene.heard.said == ["first byte", "stopped", "over"]
    assert scene.heard.usage == Usage(11, 0, 3, 0.0, "stop", True)


def test_E1_chunks_leave_as_they_came() -> None:
    scene = Scene(asked=True).plays(*WHOLE)
    assert scene.client.raw_writes == len(WHOLE)
    assert Scene(asked=True, chunked=False).plays(*WHOLE).client.body == b"".join(WHOLE)


def test_K21_usage_is_hidden_from_who_did_not_ask() -> None:
    scene = Scene().plays(*WHOLE)
    assert scene.client.body == b"".join([*WHOLE[:3], DONE])
    assert scene.heard.usage == Usage(11, 0, 3, 0.0, "stop", True)


def test_K21_usage_is_hidden_wherever_the_reads_fall() -> None:
    whole = b"".join(WHOLE)
    for cut in range(len(whole) + 1):
        scene = Scene().plays(whole[:cut], whole[cut:])
        assert scene.client.body == whole.replace(USAGE, b""), cut
        assert scene.heard.said == ["first byte", "stopped", "over"], cut


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("boundary", [b"\n\n", b"\r\n\r\n"])
def test_E1_any_cut_of_a_stream_gives_the_same_bytes(asked: bool, samples: int, boundary: bytes) -> None:
    seed = 20261129
    print(f"pytest tests/gateway/test_relay.py -k any_cut  # seed {seed}")
    draw = random.Random(seed)
    for _ in range(60):
        events = [b": keep-alive\n\n"] if draw.random() < 0.3 else []
        events += [token("é \\n data: [DONE]", index) for index in range(samples) for _ in range(draw.randrange(1, 6))]
        draw.shuffle(events)
        events += [token("", index, "length") for index in range(samples)]
        parts = [part.replace(b"\n\n", boundary) for part in [*events, USAGE, DONE]]
        whole = b"".join(parts)
        expected = whole if asked else whole.replace(USAGE.replace(b"\n\n", boundary), b"")
        cuts = sorted(draw.randrange(len(whole) + 1) for _ in range(draw.randrange(12)))
        pieces = [whole[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        scene = Scene(asked=asked, samples=samples).plays(*(piece for piece in pieces if piece))
        keep_alive = b": keep-alive" + boundary
        assert scene.client.body.replace(keep_alive, b"") == expected.replace(keep_alive, b"")
        assert scene.heard.said == ["first byte", "stopped", "over"]
        assert scene.client.end == "finished"


def test_E1_text_that_looks_like_an_end_is_text() -> None:
    tricky = token('data: [DONE]\n\n"finish_reason":"stop" "choices":[] "usage":{} "error":{}')
    events = EventStream(1, False)
    assert events.take(tricky) is tricky
    assert (events.finished, events.done, events.error, events.usage) == ({}, False, None, None)


def test_E1_every_choice_must_finish() -> None:
    scene = Scene(samples=2).plays(token("a", 0), token("b", 1), token("", 0, "stop"), USAGE, DONE)
    assert scene.heard.said == ["first byte", "lost", "over"]
    assert scene.client.end == "broken"
    scene = Scene(samples=2).plays(token("a", 0, "stop"), token("b", 1, "length"), USAGE, DONE)
    assert scene.heard.said == ["first byte", "stopped", "over"]


def test_E1_several_choices_in_one_event_are_seen() -> None:
    both = event(choices=[{"index": 0, "finish_reason": None}, {"index": 1, "finish_reason": "stop"}])
    other = event(choices=[{"index": 0, "finish_reason": "stop"}])
    scene = Scene(samples=2).plays(both, other, DONE)
    assert scene.heard.said == ["first byte", "stopped", "over"]


def test_E1_other_spacing_is_understood() -> None:
    spaced = [part.replace(b'":', b'": ').replace(b",", b", ") for part in WHOLE]
    scene = Scene().plays(*spaced)
    assert scene.client.body == b"".join([*spaced[:3], DONE])
    assert scene.heard.usage == Usage(11, 0, 3, 0.0, "stop", True)


def test_E2_last_event_without_its_empty_line_counts() -> None:
    scene = Scene().plays(token("a", finish="stop"), USAGE, DONE[:-2])
    assert scene.heard.said == ["first byte", "stopped", "over"]
    assert scene.client.body.endswith(DONE)


def test_E2_usage_is_settled_at_done_though_the_client_left_then() -> None:
    scene = Scene()
    scene.plays(*WHOLE, end=False)
    assert scene.heard.said == ["first byte", "stopped"]
    scene.client.leave()
    scene.relay.on_lost("reset")
    assert scene.heard.said == ["first byte", "stopped", "over"]


def test_E1_connection_that_breaks_after_done_was_whole() -> None:
    scene = Scene().plays(*WHOLE, end=False)
    scene.relay.on_lost("reset")
    assert scene.client.end == "finished"


def test_E2_an_absurd_usage_is_no_word_on_what_was_used() -> None:
    """It would go into the ledger's file, which has no bytes for such a number."""
    usage = {"prompt_tokens": 9, "completion_tokens": 2**64 + 7}
    scene = Scene().plays(token("a"), token("b"), token("", finish="length"), event(choices=[], usage=usage), DONE)
    assert scene.heard.usage == Usage(0, 0, 3, 0.0, "length", False)


def test_E2_without_a_usage_chunk_the_count_stands_and_is_not_exact() -> None:
    scene = Scene().plays(token("a"), token("b"), token("", finish="length"), DONE)
    assert scene.heard.usage == Usage(0, 0, 3, 0.0, "length", False)


def test_E2_cached_tokens_and_time_are_told() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 8}}
    scene = Scene()
    scene.plays(token(), end=False)
    scene.now_s += 2.5
    scene.relay.on_body(None, token("", finish="stop") + event(choices=[], usage=usage) + DONE)
    assert scene.heard.usage == Usage(9, 8, 1, 2.5, "stop", True)


# streams that do not


def error_of(client: FakeClient) -> str:
    last = client.body.split(b"\n\n")[-2]
    assert last.startswith(b"data: ")
    return str(json.loads(last[6:])["error"]["code"])


def test_E1_done_after_an_error_event_is_no_success() -> None:
    scene = Scene().plays(token("a"), ERROR, DONE)
    assert scene.heard.said == ["first byte", "lost", "over"]
    assert scene.client.end == "broken"
    assert scene.client.body.startswith(token("a"))
    assert error_of(scene.client) == "upstream_lost"
    assert DONE not in scene.client.body
    assert b"EngineCore" not in scene.client.body


def test_E1_error_in_the_same_read_as_tokens_keeps_the_tokens() -> None:
    scene = Scene().plays(token("a") + ERROR + DONE)
    assert scene.heard.said == ["first byte", "lost", "over"]
    assert scene.client.body.startswith(token("a"))
    assert (scene.client.end, error_of(scene.client)) == ("broken", "upstream_lost")


def test_E1_error_before_any_token_gets_a_status() -> None:
    scene = Scene().plays(b": keep-alive\n\n", ERROR, DONE)
    assert scene.heard.said == ["lost", "over"]
    assert (scene.client.status, scene.client.end) == (502, "whole")
    assert scene.client.json()["error"]["code"] == "upstream_lost"


def test_K02_busy_told_as_the_first_event_is_busy() -> None:
    scene = Scene().plays(event(error={"message": "busy", "code": 503}), DONE)
    assert scene.heard.said == ["busy", "over"]
    assert scene.client.status == 0


@pytest.mark.parametrize("before", [[], [b": keep-alive\n\n"]])
def test_K02_vllms_valve_inside_a_stream_is_busy_and_not_lost(before: list[bytes]) -> None:
    """It may look after the head is out: the refusal is then an event of an answer with status 200."""
    refusal = event(error={"message": BUSY, "type": "Service Unavailable", "param": None, "code": 503})
    engine = VllmEngine("llama/0", "http://127.0.0.1:1", lambda: 0.0)
    scene = Scene(is_busy=engine.is_busy).plays(*before, refusal, DONE)
    assert scene.heard.said == ["busy", "over"]
    assert (scene.client.status, scene.ended) == (0, 0), "the client is still there to be answered"


def test_K02_the_same_words_after_a_token_are_no_refusal() -> None:
    refusal = event(error={"message": BUSY, "type": "Service Unavailable", "param": None, "code": 503})
    engine = VllmEngine("llama/0", "http://127.0.0.1:1", lambda: 0.0)
    scene = Scene(is_busy=engine.is_busy).plays(token("a"), refusal, DONE)
    assert scene.heard.said == ["first byte", "lost", "over"]
    assert scene.client.end == "broken"


def test_E1_cut_stream_ends_on_an_event_boundary_and_broken() -> None:
    scene = Scene().plays(token("a"), token("b")[:20], end=False)
    scene.relay.on_lost("connection reset")
    assert scene.client.body.startswith(token("a") + b'data: {"error":')
    assert scene.client.end == "broken"
    assert scene.heard.said == ["first byte", "lost", "over"]


def test_E1_stream_that_just_ends_is_lost() -> None:
    scene = Scene().plays(token("a"))
    assert scene.heard.said == ["first byte", "lost", "over"]
    assert scene.client.end == "broken"


def test_K19_finish_reason_abort_is_no_proof() -> None:
    scene = Scene().plays(token("a", finish="abort"), USAGE, DONE)
    assert scene.heard.said == ["first byte", "lost", "over"]
    scene = Scene(stream=False).plays(json.dumps({"choices": [{"index": 0, "finish_reason": "abort"}]}).encode(), headers=JSON)
    assert scene.heard.said == ["first byte", "lost", "over"]
    assert scene.client.status == 502


def test_K19_queued_abort_without_a_finish_reason_is_lost() -> None:
    scene = Scene().plays(USAGE, DONE)
    assert scene.heard.said == ["lost", "over"]
    assert scene.client.status == 502


def test_B15_lost_before_the_head_leaves_the_client_to_the_gate() -> None:
    scene = Scene()
    scene.relay.on_lost("reset")
    assert (scene.client.status, scene.heard.said) == (0, ["lost unheard", "over"])
    scene.relay = scene.attempt(stream=True, samples=1, asked=False, every=64)
    scene.plays(*WHOLE)
    assert (scene.client.status, scene.client.end) == (200, "finished"), "another attempt answers it"


def test_B15_nothing_that_an_attempt_says_after_it_was_given_up_reaches_the_next_ones_client() -> None:
    scene = Scene().plays(end=False)
    scene.relay.on_lost("reset")
    scene.plays(*WHOLE)
    assert (scene.client.status, scene.heard.said) == (0, ["lost unheard", "over"])


def test_H3_an_event_without_end_is_given_up() -> None:
    scene = Scene().plays(token("a"), end=False)
    for _ in range(EVENT_BYTES_MAX // 1_048_576 + 2):
        scene.relay.on_body(None, b"data: " + b"y" * 1_048_576)
    assert scene.heard.said == ["first byte", "lost"]
    assert scene.client.end == "broken"


# aborted from here


@pytest.mark.parametrize(("code", "status"), [("deadline_exceeded", 504), ("upstream_timeout", 504), ("preempted", 503)])
def test_E3_abort_before_the_head_is_an_ordinary_answer(code: str, status: int) -> None:
    scene = Scene()
    scene.relay.abort(code, value=10.0, limit=10.0)
    assert (scene.client.status, scene.client.json()["error"]["code"]) == (status, code)
    assert scene.upstream.calls == ["abort"]


def test_E3_abort_in_a_stream_is_an_event_and_a_break() -> None:
    scene = Scene().plays(token("a"), end=False)
    scene.relay.abort("deadline_exceeded", limit=55.0)
    assert scene.client.end == "broken"
    assert error_of(scene.client) == "deadline_exceeded"
    assert b"The time budget of 55 s is over." in scene.client.body
    assert scene.ended == 1


def test_K10_after_an_abort_the_relay_reads_on_for_evidence() -> None:
    scene = Scene().plays(token("a"), end=False)
    scene.client.leave()
    scene.relay.abort("")
    assert scene.heard.said == ["first byte"]
    scene.relay.on_body(None, token("b", finish="stop") + USAGE + DONE)
    assert scene.heard.said == ["first byte", "stopped"]
    assert scene.client.body == token("a")
    assert scene.ended == 0


def test_K10_the_servers_close_is_told_with_the_last_count() -> None:
    scene = Scene().plays(token("a"), token("b"), end=False)
    scene.relay.abort("")
    scene.relay.on_closed()
    assert scene.heard.said == ["first byte", "closed", "over"]
    assert scene.heard.tokens == 2


def test_E2_abort_before_the_connection_exists_is_done_when_it_does() -> None:
    scene = Scene()
    relay = scene.attempt(stream=True, samples=1, asked=False, every=64)
    relay = Relay(
        scene.audience,
        scene.heard,
        stream=True,
        samples=1,
        include_usage_asked=False,
        rate=scene.rate,
        is_busy=lambda status, body: False,
        clock_s=lambda: 0.0,
    )
    relay.abort("")
    assert scene.upstream.calls == []
    relay.attach(scene.upstream)
    assert scene.upstream.calls == ["abort"]


def test_E2_not_sent_leaves_the_client_to_be_answered() -> None:
    scene = Scene()
    scene.relay.on_not_sent("late")
    assert scene.heard.said == ["not sent late", "over"]
    assert scene.client.status == 0


# counting


def test_E2_tokens_are_counted_by_events_at_a_learnt_rate() -> None:
    scene = Scene(every=10)
    scene.plays(*[token()] * 25, end=False)
    assert scene.heard.tokens == 20
    usage = event(choices=[], usage={"prompt_tokens": 1, "completion_tokens": 78})
    scene.relay.on_body(None, token("", finish="stop") + usage + DONE)
    assert scene.rate.tokens(27) == 79  # 1 + 78 tokens in 1 + 26 events
    assert scene.rate.tokens(270) == 790
