"""How an answer is framed: every way it may be cut, and every way it may be wrong."""

from __future__ import annotations

import random

import pytest
from wire import CHUNKED_HEAD, LAST_CHUNK, answer, frame

from headworks.engines.response import (
    BODY_LINE_BYTES_MAX,
    CHUNK_LINE_BYTES_MAX,
    HEAD_BYTES_MAX,
    TRAILER_BYTES_MAX,
    AnswerReader,
    BrokenAnswer,
    _heads,
)

EVENT = b'data: {"choices":[{"text":" water"}]}\n\n'


class Notes:
    """A listener without a loop."""

    def __init__(self) -> None:
        self.heads: list[tuple[int, list[tuple[bytes, bytes]], bool]] = []
        self.bodies: list[tuple[bytes | None, bytes]] = []

    def on_not_sent(self, reason: str) -> None: ...

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]], chunked: bool) -> None:
        self.heads.append((status, headers, chunked))

    def on_body(self, raw: bytes | None, payload: bytes) -> None:
        self.bodies.append((raw, payload))

    def on_end(self) -> None: ...

    def on_lost(self, cause: str) -> None: ...

    def on_closed(self) -> None: ...

    @property
    def payload(self) -> bytes:
        return b"".join(payload for _, payload in self.bodies)


def read(*pieces: bytes) -> tuple[Notes, AnswerReader, bool]:
    notes, reader, complete = Notes(), AnswerReader(), False
    reader.begin(notes)
    for piece in pieces:
        assert not complete, "complete before its last piece"
        complete = reader.feed(piece)
    return notes, reader, complete


def test_E6_counted_answer_is_complete_at_its_length() -> None:
    notes, reader, complete = read(answer(b'{"a":1}'))
    assert (complete, reader.reusable, notes.payload) == (True, True, b'{"a":1}')
    assert notes.heads == [(200, [(b"content-type", b"application/json"), (b"content-length", b"7")], False)]


def test_E6_every_cut_of_a_counted_answer_gives_the_same() -> None:
    whole = answer(b'{"a":1}')
    for cut in range(1, len(whole)):
        notes, reader, complete = read(whole[:cut])
        assert not complete
        assert reader.feed(whole[cut:])
        assert (notes.payload, reader.reusable) == (b'{"a":1}', True)


def test_E6_hop_by_hop_headers_and_those_named_in_connection_are_removed() -> None:
    head = b"HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Private\r\nKeep-Alive: timeout=5\r\nX-Private: 1\r\nX-Kept:  2\r\n"
    notes, reader, _ = read(head + b"Upgrade: h2c\r\nContent-Length: 0\r\n\r\n")
    assert notes.heads[0][1] == [(b"x-kept", b"2"), (b"content-length", b"0")]
    assert reader.reusable


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nx",
    ],
    ids=["connection-close", "http-1.0", "left-over"],
)
def test_E6_connection_is_not_reused_after(head: bytes) -> None:
    _, reader, complete = read(head)
    assert complete
    assert not reader.reusable


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_E6_no_body_on(status: bytes) -> None:
    notes, _, complete = read(b"HTTP/1.1 " + status + b"\r\nContent-Length: 5\r\n\r\n")
    assert complete
    assert notes.bodies == []


def test_E6_interim_answers_are_dropped() -> None:
    notes, _, complete = read(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer(b"ok"))
    assert complete
    assert [head[0] for head in notes.heads] == [200]


def test_E6_head_seen_before_says_the_same_again() -> None:
    close = b"HTTP/1.1 200 OK\r\nConnection: close\r\nX-Seen: 1\r\nContent-Length: 2\r\n\r\n"
    for head, reusable in [(close, False), (close.replace(b"close", b"keep-alive"), True)] * 2:
        notes, reader, complete = read(head + b"ok")
        assert (complete, reader.reusable) == (True, reusable)
        assert notes.heads == [(200, [(b"x-seen", b"1"), (b"content-length", b"2")], False)]
        assert notes.payload == b"ok"


def test_E6_what_is_kept_of_heads_is_bounded() -> None:
    for number in range(1_000):
        assert read(b"HTTP/1.1 200 OK\r\nX-Number: %d\r\nContent-Length: 0\r\n\r\n" % number)[2]
    long = b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 2_000 + b"\r\nContent-Length: 0"
    assert read(long + b"\r\n\r\n")[2]
    assert 0 < len(_heads) <= 256
    assert long not in _heads


def test_E6_answer_without_length_ends_with_the_connection() -> None:
    notes, reader, complete = read(b"HTTP/1.1 200 OK\r\n\r\nab", b"cd")
    assert not complete
    assert reader.end_of_stream()
    assert notes.payload == b"abcd"


def test_E6_counted_and_chunked_answers_do_not_end_with_the_connection() -> None:
    assert not read(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")[1].end_of_stream()
    assert not read(CHUNKED_HEAD + frame(EVENT))[1].end_of_stream()
    assert not read(b"HTTP/1.1 200 OK\r\n")[1].end_of_stream()


# Chunks.


def test_E1_one_whole_frame_is_passed_as_it_came() -> None:
    notes, _, _ = read(CHUNKED_HEAD, frame(EVENT))
    assert notes.heads[0][2]
    assert notes.bodies == [(frame(EVENT), EVENT)]


def test_E1_several_whole_frames_are_passed_as_they_came() -> None:
    notes, _, _ = read(CHUNKED_HEAD, frame(EVENT) + frame(b"b\n"))
    assert notes.bodies == [(frame(EVENT) + frame(b"b\n"), EVENT + b"b\n")]


def test_E1_last_chunk_is_the_end_and_not_part_of_raw() -> None:
    notes, reader, complete = read(CHUNKED_HEAD, frame(EVENT) + LAST_CHUNK)
    assert complete
    assert reader.reusable
    assert notes.bodies == [(frame(EVENT), EVENT)]


def test_E1_partial_frames_have_no_raw() -> None:
    whole = frame(EVENT)
    notes, _, _ = read(CHUNKED_HEAD, whole[:10], whole[10:])
    assert notes.bodies == [(None, whole[4:10]), (None, EVENT[6:])]


def test_E1_size_line_cut_in_two_still_gives_whole_frames() -> None:
    whole = frame(EVENT)
    notes, _, _ = read(CHUNKED_HEAD, whole[:1], whole[1:])
    assert notes.bodies == [(whole, EVENT)]


def test_E1_extensions_and_trailers_are_dropped() -> None:
    notes, reader, complete = read(CHUNKED_HEAD, b"2;name=value\r\nab\r\n", b"0\r\nX-Trailer: 1\r\n", b"\r\n")
    assert complete
    assert reader.reusable
    assert notes.bodies == [(None, b"ab")]


def test_E1_every_cut_of_a_stream_gives_the_same_answer() -> None:
    stream = CHUNKED_HEAD + frame(EVENT) + frame(b"b") + b"3;e=1\r\nc\r\n\r\n" + frame(EVENT * 3) + b"0\r\nT: 1\r\n\r\n"
    payload = EVENT + b"bc\r\n" + EVENT * 3
    for cut in range(1, len(stream)):
        notes, reader, complete = read(stream[:cut], stream[cut:])
        assert complete
        assert reader.reusable, f"cut at {cut}"
        assert notes.payload == payload, f"cut at {cut}"


@pytest.mark.parametrize("seed", range(200))
def test_E1_raw_frames_and_payload_always_say_the_same(seed: int) -> None:
    """Replay one seed: `pytest "tests/engines/test_response.py::test_E1_raw_frames_and_payload_always_say_the_same[7]"`."""
    chance = random.Random(seed)
    payloads = [chance.randbytes(chance.randint(1, 40)) for _ in range(chance.randint(1, 12))]
    stream = CHUNKED_HEAD + b"".join(frame(payload) for payload in payloads) + LAST_CHUNK
    cuts = sorted(chance.sample(range(1, len(stream)), min(len(stream) - 1, chance.randint(0, 10))))
    notes, _, complete = read(*(stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)))
    assert complete
    # What a relay sends on: raw frames where it has them, its own frames where not. A client must read the same bytes.
    relayed = CHUNKED_HEAD + b"".join(frame(payload) if raw is None else raw for raw, payload in notes.bodies) + LAST_CHUNK
    again, _, complete = read(relayed)
    assert complete
    assert again.payload == notes.payload == b"".join(payloads)


# What is refused.

BROKEN = {
    "not http": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "http/2 status line": b"HTTP/2 200 OK\r\n\r\n",
    "http/0.9": b"<html>hello</html>\r\n\r\n",
    "two-digit status": b"HTTP/1.1 20 OK\r\n\r\n",
    "switching protocols": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "endless interim answers": b"HTTP/1.1 100 Continue\r\n\r\n" * 9,
    "space before colon": b"HTTP/1.1 200 OK\r\nX : 1\r\n\r\n",
    "folded header": b"HTTP/1.1 200 OK\r\nX: 1\r\n  2\r\n\r\n",
    "bare line feed": b"HTTP/1.1 200 OK\nX: 1\n\r\n\r\n",
    "line feed in a header": b"HTTP/1.1 200 OK\r\nX: 1\nY: 2\r\n\r\n",
    "nul in a header": b"HTTP/1.1 200 OK\r\nX: \0\r\n\r\n",
    "no colon": b"HTTP/1.1 200 OK\r\nhello\r\n\r\n",
    "both lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab",
    "negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n",
    "length list": b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nab",
    "chunked twice": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    "gzip, chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "chunked on 1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "head too large": b"HTTP/1.1 200 OK\r\nX: " + b"a" * HEAD_BYTES_MAX,
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 101 + b"\r\n",
    "size with sign": CHUNKED_HEAD + b"+2\r\nab\r\n",
    "size with prefix": CHUNKED_HEAD + b"0x2\r\nab\r\n",
    "size negative": CHUNKED_HEAD + b"-1\r\n",
    "size with underscore": CHUNKED_HEAD + b"1_0\r\n",
    "size too long": CHUNKED_HEAD + b"000000002\r\nab\r\n",
    "size empty": CHUNKED_HEAD + b"\r\n",
    "size ended by line feed": CHUNKED_HEAD + b"2\nab\r\n",
    "chunk longer than its size": CHUNKED_HEAD + b"2\r\nabc\r\n",
    "extension too long": CHUNKED_HEAD + b"2;" + b"a" * CHUNK_LINE_BYTES_MAX,
    "trailers too long": CHUNKED_HEAD + b"0\r\n" + b"X: 1\r\n" * (TRAILER_BYTES_MAX // 6 + 1),
}


@pytest.mark.parametrize("answer_bytes", BROKEN.values(), ids=BROKEN.keys())
def test_E6_garbage_is_refused(answer_bytes: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        read(answer_bytes)


@pytest.mark.parametrize("answer_bytes", BROKEN.values(), ids=BROKEN.keys())
def test_E6_garbage_is_refused_byte_by_byte(answer_bytes: bytes) -> None:
    if len(answer_bytes) > 1_000:
        answer_bytes_pieces = [answer_bytes[at : at + 500] for at in range(0, len(answer_bytes), 500)]
    else:
        answer_bytes_pieces = [answer_bytes[at : at + 1] for at in range(len(answer_bytes))]
    with pytest.raises(BrokenAnswer):
        read(*answer_bytes_pieces)


def test_E6_ten_megabytes_on_one_line_are_refused() -> None:
    notes, reader = Notes(), AnswerReader()
    reader.begin(notes)
    reader.feed(b"HTTP/1.1 200 OK\r\n\r\n")
    piece = b"a" * 1_000_000
    for _ in range(10):
        reader.feed(piece)
    assert len(notes.payload) == BODY_LINE_BYTES_MAX == 10_000_000
    with pytest.raises(BrokenAnswer, match="a line over 10000000 bytes"):
        reader.feed(b"a")


def test_E6_many_lines_of_a_large_body_are_no_long_line() -> None:
    notes, reader = Notes(), AnswerReader()
    reader.begin(notes)
    reader.feed(CHUNKED_HEAD)
    for _ in range(30):
        reader.feed(frame(b"a" * 500_000 + b"\n" + b"b" * 100))
    assert len(notes.payload) == 30 * 500_101


def test_E6_bytes_nobody_asked_for_are_refused() -> None:
    _, reader, complete = read(answer(b"ok"))
    assert complete
    with pytest.raises(BrokenAnswer):
        reader.feed(b"HTTP/1.1 200 OK\r\n\r\n")
