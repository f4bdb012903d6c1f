"""What reads bytes of engines, and what holds of it whatever the bytes are (K16, K33)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

from prometheus_client.parser import text_string_to_metric_families

from headworks.engines.base import Engine, Passage
from headworks.engines.llamacpp import LlamaCppEngine
from headworks.engines.metrics_text import SAMPLE_MAX, series, summed_by
from headworks.engines.openai import OpenAIEngine
from headworks.engines.response import AnswerReader, BrokenAnswer
from headworks.engines.sglang import SglangEngine
from headworks.engines.vllm import VllmEngine
from headworks.gateway.assembly import Assembled
from headworks.gateway.audience import EngineHeaders
from headworks.gateway.dialects import messages_stream, responses_stream
from headworks.gateway.dialects.typed_stream import TypedStream
from headworks.gateway.each_usage import EachUsage
from headworks.gateway.endings import length_ending
from headworks.gateway.event_stream import EventStream, error_status, read_answer
from headworks.gateway.outlet import Outlet
from tests.fuzz.choices import Choices, cut

TOKEN = '{{"id":"c","choices":[{{"index":{index},"delta":{{"content":{text}}},"finish_reason":{reason}}}]}}'
REASONS = ("null", '"stop"', '"length"', '"abort"', '"tool_calls"')
USED = ("null", '{"prompt_tokens":3,"completion_tokens":4}', '{"prompt_tokens":-1}', '{"prompt_tokens":"x"}', "[]", "1e99")
TYPED = (
    *("response.created", "response.output_item.added", "response.output_text.delta", "response.output_item.done"),
    *("response.completed", "response.incomplete", "response.failed", "error", "ping", "message_start", "content_block_start"),
    *("content_block_delta", "content_block_stop", "message_delta", "message_stop"),
)
KINDS: tuple[Callable[[], EventStream], ...] = (
    lambda: EventStream(1, False),
    lambda: EventStream(1, True),
    lambda: EventStream(3, False),
    responses_stream.SPEECH.stream,
    messages_stream.SPEECH.stream,
)


def stream(data: bytes) -> None:
    """An engine's events, as engines write them with anything inside: however they are cut, the client gets the same."""
    choices = Choices(data)
    kind, end = choices.of(KINDS), choices.of((b"\n\n", b"\r\n\r\n"))
    missing, places = choices.number(6), choices.places()
    events = []
    while not choices.is_over and len(events) < 32:
        events.append(event(choices))
    whole = end.join([*events, b""])
    whole = whole[: len(whole) - missing]
    check_stream(kind, whole, cut(whole, places))


def event(choices: Choices) -> bytes:
    what = choices.number(8)
    if what == 0:
        return b": " + json.dumps(choices.text()).encode()
    if what == 1:
        return b"data:" + choices.of((b" [DONE]", b"[DONE]", b" [DONE] ", b" 7", b" {", b' {"choices":{}}', b""))
    if what == 2:
        return f'data: {{"choices":[],"usage":{choices.of(USED)}}}'.encode()
    if what == 3:
        return (
            b'data: {"error":' + json.dumps({"message": choices.text(), "code": choices.of((500, "x", None))}).encode() + b"}"
        )
    if what == 4:
        content = {"type": choices.of(TYPED), "index": choices.number(3), "delta": choices.of(({}, choices.text(), None))}
        more = {"message": {}, "response": {"status": choices.of(("completed", "x", None))}, "item": {}, "usage": {}}
        return b"event: x\ndata: " + json.dumps(content | more).encode()
    text, reason = json.dumps(choices.text()), choices.of(REASONS) if what == 5 else "null"
    return b"data: " + TOKEN.format(index=choices.number(4), text=text, reason=reason).encode()


def check_stream(kind: Callable[[], EventStream], whole: bytes, pieces: list[bytes]) -> None:
    def told(given: list[bytes]) -> tuple[object, ...]:
        reader = kind()
        out = b"".join(map(reader.take, given)) + reader.close()
        return out, reader.token_events, reader.finished, reader.usage, reader.done, reader.error, reader.complete

    assert b"".join(pieces) == whole
    assert told([whole]) == told(pieces), (whole, pieces)


class Client(Outlet):
    """Who gets the answer that was put together."""

    def __init__(self) -> None:
        self.told: list[bytes | str] = []

    def respond(self, status: int, engine_headers: EngineHeaders, body: bytes) -> None:
        self.told.append(body)

    def fail(self, code: str, **numbers: object) -> None:
        self.told.append(code)


ASSEMBLERS = (Assembled, messages_stream.SPEECH.assembled, responses_stream.SPEECH.assembled)


def put_together(made: Callable[[Outlet], Outlet], pieces: list[bytes]) -> None:
    """An answer in one piece, or that none could be had: once, whatever the events say."""
    client = Client()
    whole = made(client)
    whole.start(200, [])
    for piece in pieces:
        whole.send(None, piece)
    whole.finish()
    (told,) = client.told
    assert told == "upstream_lost" or told, told


def noise(data: bytes) -> None:
    """Any bytes at all as a stream and as a whole answer: what comes out went in, in the same order, and nothing is raised."""
    choices = Choices(data)
    kind = choices.of(KINDS)
    places = choices.places()
    pieces = cut(choices.rest(), places)
    for made in ASSEMBLERS:
        put_together(made, pieces)
    each = EachUsage(2, 1, include_usage_asked=True).stream()
    assert isinstance(b"".join(map(each.take, pieces)) + each.close(), bytes)
    assert isinstance(length_ending(data, 2, {0: "stop"}, (3, 4)), bytes)
    reader = kind()
    out = b"".join(map(reader.take, pieces)) + reader.close()
    assert len(out) <= len(data) + 4, "more came out than went in"
    rest = iter(data + b"\r\n\r\n\n\n")
    assert all(byte in rest for byte in out.rstrip(b"\r\n")), "what came out did not go in"
    if isinstance(reader, TypedStream):
        assert isinstance(reader.ending(3, 4), bytes)
    for samples in (0, 1):
        reason, used = read_answer(data, samples)
        assert isinstance(reason, str) and (used is None or 0 <= used.prompt_tokens <= 2**40), used
    assert 400 <= error_status(data) < 600


class Told:
    """What a reader of answers tells."""

    def __init__(self) -> None:
        self.head: tuple[object, ...] = ()
        self.body = b""

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]], chunked: bool) -> None:
        assert not self.head, "two heads of one answer"
        assert 200 <= status <= 999 and all(b"\n" not in value and b"\r" not in value for _, value in headers)
        self.head = (status, tuple(headers), chunked)

    def on_body(self, raw: bytes | None, payload: bytes) -> Passage | None:
        self.body += payload
        if raw is not None:
            assert unchunked(raw) == payload, (raw, payload)
        return None


def unchunked(raw: bytes) -> bytes:
    """By the letter of RFC 9112, for whole frames without extensions."""
    found = b""
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        found, raw = found + raw[: int(size, 16)], raw[int(size, 16) :]
        assert raw.startswith(b"\r\n"), raw
        raw = raw[2:]
    return found


def answer(data: bytes) -> None:
    """An engine's answer, in one read or in many: it is complete, broken or awaited in both, and says the same."""
    choices = Choices(data)
    places = choices.places()
    whole = choices.rest()
    pieces = cut(whole, places)
    once, several = told_by([whole]), told_by(pieces)
    if "broken" not in (once[0], several[0]):
        assert once == several, (whole, pieces, once, several)
    else:
        assert once[0] == several[0], (whole, pieces, once, several)


def told_by(pieces: list[bytes]) -> tuple[str, object, bytes]:
    told, reader = Told(), AnswerReader()
    reader.begin(told)  # type: ignore[arg-type]
    try:
        for piece in pieces:
            if reader.feed(piece):
                return "complete", told.head, told.body
    except BrokenAnswer:
        return "broken", told.head, told.body
    return ("closes" if reader.end_of_stream() else "awaited"), told.head, told.body


NAMES = (b"vllm:num_requests_running", b"process_start_time_seconds", b"a")


def metrics(data: bytes) -> None:
    """Every sample can be a count, and is one that Prometheus' own parser reads as well where it can read the page."""
    found = {name: list(series(data, name)) for name in NAMES}
    for name, samples in found.items():
        assert all(0 <= value <= SAMPLE_MAX for _, value in samples), samples
        assert sum(summed_by(data, name, "engine").values()) == sum(value for _, value in samples) or len(samples) > 1
    try:
        families = list(text_string_to_metric_families(data.decode()))
    except (ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError, RecursionError):
        return
    known: dict[str, list[float]] = {}
    for one in [sample for family in families for sample in family.samples]:
        known.setdefault(one.name, []).append(one.value)
    for name, samples in found.items():
        assert {value for _, value in samples} <= set(known.get(name.decode(), ())), (data, samples, known)


@cache
def engines() -> list[Engine]:
    return [kind("p/0", "http://127.0.0.1:1", lambda: 0.0) for kind in (VllmEngine, SglangEngine, LlamaCppEngine, OpenAIEngine)]


def pages(data: bytes) -> None:
    """Any bytes as what an engine refuses with: it is busy, or it is not."""
    for engine in engines():
        for status in (200, 429, 500, 503):
            assert engine.is_busy(status, data) in (True, False)
