"""Frames that pass from the engine's connection to the client unseen: the same bytes, the same counts, the same ends."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest
from relay_scene import DONE, ERROR, USAGE, Scene, event, token

from headworks.engines.base import Passage
from headworks.engines.endpoint import Endpoint
from headworks.engines.outbox import Outbox
from headworks.engines.pool import Connection, Pool
from headworks.engines.response import FRAME_BYTES_MAX
from headworks.gateway.relay import Relay

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def frame(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


class Wire:
    """A transport that swallows what is written; the test says what is read."""

    def __init__(self) -> None:
        self.paused = self.closed = False

    def write(self, written: bytes) -> None: ...

    def write_eof(self) -> None: ...

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    close = abort

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Asked:
    """The relay, and how often it was asked about a read."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.times = 0

    def on_body(self, raw: bytes | None, payload: bytes) -> Passage | None:
        self.times += 1
        return self._relay.on_body(raw, payload)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._relay, name)


class Stream:
    """A scene whose engine is a real connection."""

    def __init__(self, **settings: Any) -> None:
        self.scene = Scene(**settings)
        self.wire = Wire()
        relay = self.scene.relay
        self.asked = Asked(relay)
        outbox = Outbox()
        pool = Pool(Endpoint("http://127.0.0.1:1"), lambda: 0.0, outbox=outbox)
        self.connection = Connection(pool)
        self.connection.connection_made(cast(asyncio.Transport, self.wire))
        pool.put_idle(self.connection)
        self.call = pool.send(b"", b"", 1.0, self.asked)
        relay.attach(self.call)
        outbox.flush()
        self.connection.data_received(HEAD)

    def reads(self, *pieces: bytes) -> Stream:
        for piece in pieces:
            self.connection.data_received(piece)
        return self

    @property
    def seen(self) -> int:
        """Reads that the relay was asked about."""
        return self.asked.times

    @property
    def passing(self) -> int:
        """How many frames have leave to pass."""
        passage = self.connection._passage
        return 0 if passage is None else passage.left


def on_loop(case: Any) -> None:
    async def steps() -> None:
        case()

    asyncio.run(steps())


def test_E1_token_frames_pass_unseen_and_are_counted() -> None:
    def case() -> None:
        stream = Stream()
        tokens = [token(f"word {number}") for number in range(40)]
        stream.reads(*(frame(each) for each in tokens))
        assert stream.scene.client.body == b"".join(tokens)
        assert stream.seen == 1, "only the first is looked at"
        assert stream.scene.relay.output_tokens == 40
        stream.reads(frame(token("", finish="stop")), frame(USAGE), frame(DONE), b"0\r\n\r\n")
        assert stream.scene.client.body == b"".join(tokens) + token("", finish="stop") + DONE
        assert stream.scene.heard.said == ["first byte", "stopped", "over"]
        assert stream.scene.client.end == "finished"

    on_loop(case)


def test_E2_progress_is_reported_at_the_same_tokens() -> None:
    def case() -> None:
        stream = Stream(every=16)
        reported = []
        for number in range(1, 101):
            stream.reads(frame(token(f"word {number}")))
            if stream.scene.heard.tokens not in reported:
                reported.append(stream.scene.heard.tokens)
                assert stream.scene.heard.tokens in (0, number)
        assert reported == [0, 16, 32, 48, 64, 80, 96]

    on_loop(case)


def test_E2_an_engine_heard_by_its_frames_is_not_silent() -> None:
    def case() -> None:
        stream = Stream()
        stream.reads(frame(token("a")))
        stream.scene.now_s = 107.0
        assert stream.scene.relay.last_s == 100.0
        stream.reads(frame(token("b")))
        assert stream.scene.relay.last_s == 107.0
        stream.scene.now_s = 109.0
        assert stream.scene.relay.last_s == 107.0

    on_loop(case)


@pytest.mark.parametrize(
    "told",
    [
        token("", finish="length") + token("x"),
        USAGE + token("x"),
        ERROR + token("x"),
        DONE + token("x"),
        b": comment\n" + token("x"),
        b"event: other\n" + token("x"),
        token("x", finish="abort") + token("y"),
    ],
)
def test_E1_an_event_before_a_token_in_one_frame_is_seen(told: bytes) -> None:
    def case() -> None:
        stream = Stream().reads(frame(token("a")), frame(token("b")))
        assert (stream.seen, stream.passing > 0) == (1, True)
        stream.reads(frame(told))
        assert stream.seen == 2

    on_loop(case)


@pytest.mark.parametrize("begin", [b'data: {"choices":[{"finish_reason":null,"delta":{}}]}\n\n', b""])
def test_E1_the_rest_of_a_frame_that_looks_like_one_is_no_frame(begin: bytes) -> None:
    """A frame cut in two, in its payload or after its size: what comes second looks like a frame of its own."""

    def case() -> None:
        stream = Stream().reads(frame(token("a")))
        inner = frame(token("inside"))
        payload = begin + inner[:-2]
        whole = frame(payload)
        cut = len(whole) - len(inner)
        assert whole[cut:] == inner, "the second read is a frame to look at"
        stream.reads(whole[:cut], whole[cut:])
        assert stream.scene.client.body == token("a") + payload

    on_loop(case)


def test_E1_a_frame_of_any_length_passes_whole() -> None:
    def case() -> None:
        stream = Stream(every=10_000)
        stream.reads(frame(token("")))
        bare = len(token(""))
        sizes = [*range(bare + 1, 300), 4_080, 4_081, 4_085, 4_086, 4_087, 4_088, 4_089, 4_090, FRAME_BYTES_MAX, 70_000]
        tokens = [token("x" * (size - bare)) for size in sizes]
        stream.reads(*(frame(each) for each in tokens))
        assert stream.scene.client.body == token("") + b"".join(tokens)
        assert stream.scene.relay.output_tokens == len(tokens) + 1
        assert stream.scene.client.raw_writes == len(tokens) + 1

    on_loop(case)


@pytest.mark.parametrize("size", [b"E5", b"0e5", b"e5;x=y"])
def test_E1_a_size_in_another_form_is_understood(size: bytes) -> None:
    def case() -> None:
        bare = len(token(""))
        long = token("x" * (0xE5 - bare))
        stream = Stream().reads(frame(token("a")), b"%b\r\n%b\r\n" % (size, long), frame(token("b")))
        assert stream.scene.client.body == token("a") + long + token("b")
        assert stream.seen >= 2

    on_loop(case)


def test_E2_a_slow_client_stops_the_passing_at_once() -> None:
    def case() -> None:
        stream = Stream().reads(frame(token("a")), frame(token("b")))
        stream.scene.client.pause()
        assert stream.wire.paused
        assert stream.passing == 0
        stream.reads(frame(token("c")))
        assert stream.passing == 0, "a read that was on its way is passed on, and gives no leave for more"
        stream.scene.client.resume()
        stream.reads(frame(token("d")), frame(token("e")))
        assert stream.passing > 0
        assert stream.scene.client.body == b"".join(map(token, "abcde"))
        assert stream.scene.relay.output_tokens == 5

    on_loop(case)


def test_E3_nothing_passes_after_an_abort() -> None:
    def case() -> None:
        stream = Stream().reads(frame(token("a")), frame(token("b")))
        stream.scene.relay.abort("deadline_exceeded", value=1.0, limit=1.0)
        said = stream.scene.client.body
        stream.reads(frame(token("c")), frame(token("d")))
        assert (stream.scene.client.body, stream.scene.client.end) == (said, "broken")
        assert stream.scene.relay.output_tokens == 4, "it still counts: what follows is evidence"
        stream.reads(frame(token("", finish="stop")), frame(USAGE), frame(DONE), b"0\r\n\r\n")
        assert stream.scene.heard.usage is not None
        assert (stream.scene.heard.usage.output_tokens, stream.scene.heard.usage.exact) == (3, True)

    on_loop(case)


def test_E2_a_stream_that_breaks_was_counted_to_its_last_frame() -> None:
    def case() -> None:
        stream = Stream().reads(*[frame(token("a"))] * 30)
        stream.connection.connection_lost(ConnectionResetError("reset"))
        assert stream.scene.heard.said == ["first byte", "lost", "over"]
        assert stream.scene.heard.tokens == 30
        assert stream.scene.client.end == "broken"

    on_loop(case)


@pytest.mark.parametrize("settings", [{"chunked": False}, {"keep": 10_000}, {"samples": 2}])
def test_E1_no_passing_where_something_is_to_be_done_for_each_event(settings: dict[str, Any]) -> None:
    def case() -> None:
        stream = Stream(**settings).reads(*[frame(token("a"))] * 5)
        assert (stream.seen, stream.passing) == (5, 0)
        assert stream.scene.client.body == token("a") * 5

    on_loop(case)


def test_E1_a_token_and_something_more_never_passes_unseen() -> None:
    def case() -> None:
        stream = Stream(asked=True).reads(*[frame(token("a") + USAGE)] * 5)
        assert (stream.seen, stream.passing) == (5, 0)

    on_loop(case)


KINDS = [
    token("plain"),
    token('"finish_reason":null'),
    token("\n\n"),
    token("long " * 40),
    b": keep-alive\n\n",
    event(id="c", choices=[{"index": 0, "delta": {}, "finish_reason": None}], usage=None),
    event(id="c", choices=[], usage={"prompt_tokens": 1, "completion_tokens": 1}),
    event(id="c", choices=[]),
    token("a")[:-2] + b"\ndata:\n\n",
]


@pytest.mark.parametrize("seed", range(60))
def test_E1_any_stream_in_any_reads_tells_the_same(seed: int) -> None:
    """Repeat one with: pytest "tests/gateway/test_relay_passage.py::test_E1_any_stream_in_any_reads_tells_the_same[SEED]"."""
    choose = random.Random(seed)
    weights = [40, 3, 3, 10, 1, 3, 1, 1, 1]
    events = [token("first"), *choose.choices(KINDS, weights, k=choose.randint(1, 150))]
    ends = choose.choice([[token("", finish="stop"), USAGE, DONE], [ERROR, DONE], [token("", finish="abort"), DONE], []])
    payloads: list[bytes] = []
    for each in [*events, *ends]:
        if payloads and choose.random() < 0.08:
            payloads[-1] += each
        elif choose.random() < 0.05:
            payloads += [each[:9], each[9:]]
        else:
            payloads.append(each)
    wire = b"".join(map(frame, payloads)) + b"0\r\n\r\n"
    reads, begin = [], 0
    for payload in payloads:
        end = begin + len(frame(payload))
        if choose.random() < 0.1:
            cut = choose.randint(begin + 1, end)
            reads += [wire[begin:cut]] if cut == end else [wire[begin:cut], wire[cut:end]]
        elif reads and choose.random() < 0.1:
            reads[-1] += wire[begin:end]
        else:
            reads.append(wire[begin:end])
        begin = end
    reads.append(wire[begin:])
    assert b"".join(reads) == wire

    def told(pieces: list[bytes]) -> tuple[object, ...]:
        stream = Stream(every=16).reads(*pieces)
        scene = stream.scene
        return scene.client.body, scene.client.end, scene.heard.said, scene.heard.usage, scene.heard.tokens

    def case() -> None:
        whole = told([wire])
        assert told(reads)[:4] == whole[:4]
        assert told([wire[at : at + 1] for at in range(len(wire))])[:4] == whole[:4]

    on_loop(case)
