"""Streams of typed events: what is held back, counted, ended, refused and put together (E1, E2, A8, I34)."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from headworks.gateway.dialects import messages_stream, responses_stream
from headworks.gateway.dialects.typed_stream import TypedStream, read_whole
from headworks.gateway.error_shapes import ANTHROPIC, RESPONSES, error_event
from headworks.gateway.every_answer import Ids
from headworks.gateway.reply import failure


def event(kind: str, **content: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **content}).encode())


def said(payload: bytes) -> list[Any]:
    return [json.loads(one.partition(b"\ndata: ")[2]) for one in payload.split(b"\n\n") if one]


ANSWER = {"id": "resp_1", "object": "response", "status": "in_progress", "output": [], "usage": None}
ITEM = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
USED = {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 2, "total_tokens": 9}
RESPONSE_HEAD = [
    event("response.created", sequence_number=0, response=ANSWER),
    event("response.in_progress", sequence_number=1, response=ANSWER),
    event("response.output_item.added", sequence_number=2, output_index=0, item=ITEM),
    event("response.content_part.added", sequence_number=3, part={"type": "output_text", "text": ""}),
]
RESPONSE_TOKENS = [
    event("response.output_text.delta", sequence_number=4 + n, delta=word) for n, word in enumerate((" a", " b"))
]


def response_end(status: str, kind: str = "response.completed") -> bytes:
    return event(kind, sequence_number=9, response={**ANSWER, "status": status, "output": [ITEM], "usage": USED})


MESSAGE = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "tiny", "stop_reason": None}
MESSAGE_HEAD = [
    event("message_start", message={**MESSAGE, "usage": {"input_tokens": 7, "output_tokens": 0}}),
    event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    event("ping"),
]
MESSAGE_TOKENS = [event("content_block_delta", index=0, delta={"type": "text_delta", "text": text}) for text in (" a", " b")]


def message_end(reason: str | None, **usage: int) -> list[bytes]:
    used = {"output_tokens": 2, **usage}
    return [
        event("content_block_stop", index=0),
        event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=used),
        event("message_stop"),
    ]


CASES = [
    pytest.param(responses_stream.SPEECH, RESPONSE_HEAD, RESPONSE_TOKENS, [response_end("completed")], id="responses"),
    pytest.param(messages_stream.SPEECH, MESSAGE_HEAD, MESSAGE_TOKENS, message_end("end_turn"), id="messages"),
]
in_both = pytest.mark.parametrize(("speech", "head", "tokens", "end"), CASES)


@in_both
def test_E4_what_comes_before_the_first_token_is_held_back_and_goes_out_with_it(
    speech: Any, head: list[bytes], tokens: list[bytes], end: list[bytes]
) -> None:
    stream = speech.stream()
    for one in head:
        assert stream.take(one) == b""
    assert stream.token_events == 0
    assert stream.take(tokens[0]) == b"".join([*head, tokens[0]])
    assert stream.take(tokens[1]) is tokens[1], "from then on bytes pass as they came"
    assert stream.token_events == 2
    for one in end:
        assert stream.take(one) is one
    assert (stream.done, stream.complete, stream.first_reason) == (True, True, "stop")
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (7, 2)


@in_both
def test_E2_bytes_may_be_cut_anywhere(speech: Any, head: list[bytes], tokens: list[bytes], end: list[bytes]) -> None:
    whole = b"".join([*head, *tokens, *end])
    for seed in range(50):
        drawn = random.Random(seed)
        stream, passed, at = speech.stream(), [], 0
        while at < len(whole):
            step = drawn.randint(1, 60)
            passed.append(stream.take(whole[at : at + step]))
            at += step
        assert b"".join(passed) == whole, f"seed {seed}"
        assert (stream.token_events, stream.complete) == (2, True), f"seed {seed}"


@in_both
def test_E2_an_answer_without_a_token_is_one_all_the_same(
    speech: Any, head: list[bytes], tokens: list[bytes], end: list[bytes]
) -> None:
    stream = speech.stream()
    passed = b"".join(stream.take(one) for one in (*head, *end))
    assert passed == b"".join([*head, *end])
    assert (stream.token_events, stream.complete) == (1, True)


@in_both
def test_E2_a_last_event_without_its_empty_line_counts(
    speech: Any, head: list[bytes], tokens: list[bytes], end: list[bytes]
) -> None:
    stream = speech.stream()
    for one in (*head, *tokens, *end[:-1]):
        stream.take(one)
    assert stream.take(end[-1].rstrip(b"\n")) == b""
    assert not stream.done
    assert stream.close() == end[-1]
    assert stream.done and stream.complete


@in_both
def test_I34_a_stream_that_stops_early_is_no_end(speech: Any, head: list[bytes], tokens: list[bytes], end: list[bytes]) -> None:
    stream = speech.stream()
    for one in (*head, *tokens):
        stream.take(one)
    stream.close()
    assert not stream.complete


@pytest.mark.parametrize(
    ("stream", "content"),
    [
        (responses_stream.ResponseStream(), response_end("failed", "response.failed")),
        (responses_stream.ResponseStream(), event("error", code="x", message="m")),
        (messages_stream.MessageStream(), event("error", error={"type": "internal_error", "message": "m"})),
    ],
)
def test_E1_an_error_event_ends_it_and_goes_no_further(stream: TypedStream, content: bytes) -> None:
    assert stream.take(content + RESPONSE_TOKENS[0]) == b""
    assert stream.error is not None
    assert not stream.complete


@pytest.mark.parametrize(("status", "reason"), [("completed", "stop"), ("incomplete", "length")])
def test_E2_how_a_response_ended(status: str, reason: str) -> None:
    stream = responses_stream.ResponseStream()
    stream.take(response_end(status))
    assert stream.first_reason == reason
    assert stream.usage is not None and stream.usage.prompt_tokens_details is not None
    assert stream.usage.prompt_tokens_details.cached_tokens == 4


@pytest.mark.parametrize(
    ("reason", "ended"),
    [("end_turn", "stop"), ("max_tokens", "length"), ("stop_sequence", "stop"), ("tool_use", "tool_calls"), ("new", "stop")],
)
def test_E2_how_a_message_ended(reason: str, ended: str) -> None:
    stream = messages_stream.MessageStream()
    for one in (*MESSAGE_HEAD, *message_end(reason)):
        stream.take(one)
    assert stream.first_reason == ended


def test_A5_an_aborted_answer_has_not_ended_as_far_as_anybody_knows() -> None:
    stream = messages_stream.MessageStream()
    for one in (*MESSAGE_HEAD, *MESSAGE_TOKENS, *message_end(None)):
        stream.take(one)
    assert not stream.complete
    cancelled = responses_stream.ResponseStream()
    cancelled.take(response_end("cancelled"))
    assert not cancelled.complete
    whole = json.dumps({"id": "r", "status": "cancelled", "usage": USED}).encode()
    assert read_whole(responses_stream.SPEECH, whole)[0] == "abort"
    assert read_whole(messages_stream.SPEECH, b'{"type":"message","stop_reason":null}')[0] == "abort"


def test_K21_of_a_messages_prompt_what_was_cached_counts_as_read_too() -> None:
    stream = messages_stream.MessageStream()
    for one in (
        *MESSAGE_HEAD,
        *message_end("end_turn", input_tokens=3, cache_read_input_tokens=4, cache_creation_input_tokens=1),
    ):
        stream.take(one)
    assert stream.usage is not None
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (8, 2)
    whole = b'{"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":2,"cache_read_input_tokens":4}}'
    reason, usage = read_whole(messages_stream.SPEECH, whole)
    assert usage is not None
    assert (reason, usage.prompt_tokens, usage.completion_tokens) == ("stop", 7, 2)


@pytest.mark.parametrize("usage", [{"input_tokens": -1}, {"output_tokens": 2**41}, {"input_tokens": "7"}])
def test_H3_absurd_counts_are_no_word_on_what_was_used(usage: dict[str, Any]) -> None:
    for speech in (responses_stream.SPEECH, messages_stream.SPEECH):
        body = json.dumps({"status": "completed", "stop_reason": "end_turn", "usage": usage}).encode()
        assert read_whole(speech, body) == ("stop", None)


# ended here


def test_A8_a_message_that_is_ended_here_ends_as_one_that_reached_its_limit() -> None:
    stream = messages_stream.MessageStream()
    for one in (*MESSAGE_HEAD, *MESSAGE_TOKENS):
        stream.take(one)
    assert said(stream.ending(7, 2)) == [
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "max_tokens", "stop_sequence": None},
            "usage": {"input_tokens": 7, "output_tokens": 2},
        },
        {"type": "message_stop"},
    ]


def test_A8_a_response_that_is_ended_here_has_its_text_so_far() -> None:
    stream = responses_stream.ResponseStream()
    for one in (*RESPONSE_HEAD, *RESPONSE_TOKENS):
        stream.take(one)
    events = said(stream.ending(7, 2))
    kinds = ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"]
    assert [one["type"] for one in events] == kinds
    assert [one["sequence_number"] for one in events] == [6, 7, 8, 9]
    assert events[0]["text"] == " a b"
    answer = events[-1]["response"]
    assert (answer["id"], answer["status"]) == ("resp_1", "incomplete")
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["content"][0]["text"] == " a b"
    assert (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]) == (7, 2)


def test_A8_a_tool_call_that_is_ended_here_is_closed_as_it_stands() -> None:
    stream = responses_stream.ResponseStream()
    call = {"id": "fc_1", "type": "function_call", "name": "f", "arguments": "", "status": "in_progress"}
    for one in (
        *RESPONSE_HEAD[:2],
        event("response.output_item.added", sequence_number=2, output_index=0, item=ITEM),
        event("response.output_text.delta", sequence_number=3, delta="x"),
        event("response.output_item.done", sequence_number=4, output_index=0, item={**ITEM, "status": "completed"}),
        event("response.output_item.added", sequence_number=5, output_index=1, item=call),
        event("response.function_call_arguments.delta", sequence_number=6, delta="{"),
    ):
        stream.take(one)
    closed, last = said(stream.ending(1, 2))
    assert (closed["type"], closed["output_index"], closed["item"]["status"]) == ("response.output_item.done", 1, "incomplete")
    assert [item["status"] for item in last["response"]["output"]] == ["completed", "incomplete"]


def test_A8_nothing_is_made_up_where_the_beginning_is_not_known() -> None:
    assert messages_stream.MessageStream().ending(1, 2) == b""
    assert responses_stream.ResponseStream().ending(1, 2) == b""


# errors of ours inside a stream


def test_E4_errors_inside_a_stream_are_events_of_their_dialect() -> None:
    ids = Ids(b"req-1", b"key-1", ANTHROPIC)
    body = failure("upstream_lost", ids, wall_s=0.0).body
    (cut,) = said(error_event(ANTHROPIC, body))
    assert (cut["type"], cut["error"]["type"], cut["error"]["code"]) == ("error", "api_error", "upstream_lost")
    assert cut["request_id"] == "req-1"
    body = failure("upstream_lost", Ids(b"req-1", b"key-1", RESPONSES), wall_s=0.0).body
    (cut,) = said(error_event(RESPONSES, body))
    assert (cut["type"], cut["code"], cut["error"]["code"]) == ("error", "upstream_lost", "upstream_lost")


RESPONSES_DELTA = b'data: {"type":"response.output_text.delta","delta":"a"}\n\n'


@pytest.mark.parametrize(
    "first",
    [b'{"id":"r","x":"\xff"}', b"[7]", b"7", b'"r"', b'{"output":"\xff"}', b"[" * 2_000 + b"]" * 2_000],
    ids=lambda value: repr(value[:12]),
)
def test_A8_a_response_whose_words_cannot_be_put_together_cannot_be_ended_well(first: bytes) -> None:
    """Found by fuzzing: what was kept as it came had not been looked at, and ending the answer was a fault of ours."""
    stream = responses_stream.SPEECH.stream()
    stream.take(b'data: {"type":"response.created","response":' + first + b"}\n\n" + RESPONSES_DELTA)
    stream.take(b'data: {"type":"response.output_item.added","item":7}\n\n')
    assert stream.ending(3, 4) == b""


class Client:
    """Who is told of the answer that was put together."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def respond(self, status: int, engine_headers: object, body: bytes) -> None:
        self.told.append(body.decode())

    def fail(self, code: str, **numbers: object) -> None:
        self.told.append(code)


BLOCK = b'data: {"type":"content_block_start","index":%b,"content_block":%b}\n\n'


@pytest.mark.parametrize(
    "blocks",
    [
        BLOCK % (b"0", b"{}") + BLOCK % (b'"a"', b"{}"),
        BLOCK % (b"0", b'{"text":7}') + b'data: {"type":"content_block_delta","index":0,"delta":{"text":"x"}}\n\n',
        BLOCK % (b"0", b"{}") + b'data: {"type":"content_block_delta","index":0,"delta":{"text":[]}}\n\n',
    ],
    ids=["indexes of two kinds", "a text that is none", "a piece that is none"],
)
def test_A8_a_message_whose_blocks_cannot_be_put_together_is_an_answer_that_was_lost(blocks: bytes) -> None:
    """Found by fuzzing: a `TypeError` amid the relay."""
    client = Client()
    whole = messages_stream.SPEECH.assembled(client)  # type: ignore[arg-type]
    whole.start(200, [])
    whole.send(None, b'data: {"type":"message_start","message":{"id":"m"}}\n\n' + blocks + b'data: {"type":"message_stop"}\n\n')
    whole.finish()
    assert client.told == ["upstream_lost"]
