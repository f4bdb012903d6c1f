"""H3: one grammar for heads. It takes nothing that llhttp refuses, and packet borders are none of its business."""

from __future__ import annotations

import random

import httptools
import pytest
from http_port import LOOPS, Port, port, post, run, until

from headworks.gateway.http.head import read_head
from headworks.gateway.http.limits import EdgeLimits, HttpError

GOOD = [
    post("Accept: a, b", "X-Empty:", "Cookie: c=1; d=\xe9", body=b""),
    post("Connection: keep-alive", "X-Tab: a\tb", body=b""),
    b"GET /models?a=%20 HTTP/1.0\r\nConnection: close\r\n\r\n",
    post("Transfer-Encoding: chunked", "TE: trailers", body=b"", length=False),
]
BYTES = b"\r\n\t :;,/?#%\\\"'(){}[]<>=@aZ09-_.~*\x00\x01\x1f\x7f\x80\xff"


class Ignores:
    """Wants to hear nothing of a parser."""


def is_taken_by_llhttp(head: bytes) -> bool:
    try:
        httptools.HttpRequestParser(Ignores()).feed_data(head)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return False
    return True


@pytest.mark.parametrize("seed", range(100))
def test_H3_no_head_passes_that_llhttp_refuses(seed: int) -> None:
    """Replay one seed: `pytest "tests/gateway/test_http_head.py::test_H3_no_head_passes_that_llhttp_refuses[7]"`."""
    chance = random.Random(seed)
    taken = 0
    for _ in range(200):
        head = bytearray(chance.choice(GOOD))
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(head) - 4)
            end = place + chance.randint(0, 2)
            head[place:end] = bytes(chance.choice(BYTES) for _ in range(chance.randint(0, 2)))
        text = bytes(head)
        if text.find(b"\r\n\r\n") != len(text) - 4:
            continue
        try:
            read_head(text, EdgeLimits())
        except HttpError:
            continue
        # llhttp knows no method that we would answer with 405.
        assert is_taken_by_llhttp(text) or text.split(b" ")[0] not in (b"GET", b"POST"), text
        taken += 1
    assert taken > 10, "the changes leave hardly a good head: the test shows nothing"


@pytest.mark.parametrize("loop", LOOPS)
def test_H3_a_good_request_may_be_cut_anywhere(loop: str) -> None:
    """Between CR and LF as well."""

    async def steps() -> None:
        async with port() as edge:
            client = await edge.connect()
            payload = post("X-A: b")
            for border in range(1, len(payload)):
                client.send(payload[:border])
                await until_received(edge, border)
                client.send(payload[border:])
                answer = await client.answer()
                assert (answer.status, answer.json()["body_bytes"]) == (200, 2), border
            client.close()

    run(loop, steps())


async def until_received(edge: Port, count_bytes: int) -> None:
    """The first piece has come, so that the second comes by itself."""
    await until(lambda: [1 for one in edge.server.connections if len(one._begun) == count_bytes or one._exchange is not None])
