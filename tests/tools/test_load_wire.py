"""An attempt ends in exactly one way, whatever the server does and however its bytes are cut (G5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
import scripted_server as wire
from scripted_server import Scripted, serving

from headworks.tools.load_wire import COMPLETE, CUT, LEFT, OVERDUE, REFUSED, UNCONNECTED, Attempt, Pool

BODY = b'{"stream":true,"prompt":"a"}'
REQUEST = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


def attempted(
    script: Callable[[int], list[bytes]], times: int = 1, patience_s: float = 5.0, limit_s: float = 5.0
) -> tuple[list[Attempt], Scripted]:
    async def run() -> tuple[list[Attempt], Scripted]:
        async with serving(script) as scripted:
            pool = Pool(asyncio.get_running_loop(), urlsplit(scripted.url))
            attempts = [await pool.run(REQUEST, patience_s, limit_s) for _ in range(times)]
            pool.close()
            if attempts[-1].end in (LEFT, OVERDUE):
                await asyncio.wait_for(scripted.gone.wait(), 5.0)
            return attempts, scripted

    return asyncio.run(run())


def test_G5_a_whole_answer_is_complete_and_counted_by_its_usage() -> None:
    [attempt], _ = attempted(lambda number: [wire.WHOLE])
    assert (attempt.end, attempt.status, attempt.prompt_tokens, attempt.output_tokens) == (COMPLETE, 200, 40, 3)
    assert 0 < attempt.ttft_s <= attempt.ended_s - attempt.started_s


@pytest.mark.parametrize("size", [1, 7, 50, 333])
def test_G5_how_the_bytes_are_cut_makes_no_difference(size: int) -> None:
    pieces = [wire.WHOLE[start : start + size] for start in range(0, len(wire.WHOLE), size)]
    [attempt], _ = attempted(lambda number: pieces)
    assert (attempt.end, attempt.output_tokens) == (COMPLETE, 3)


def test_G5_a_role_alone_is_no_first_token() -> None:
    [attempt], _ = attempted(lambda number: [wire.STREAM_HEAD + wire.ROLE], patience_s=0.1)
    assert (attempt.end, attempt.first_token_s, attempt.output_tokens) == (LEFT, 0.0, 0)


def test_G5_a_client_leaves_when_its_patience_is_over_and_the_server_sees_it() -> None:
    [attempt], scripted = attempted(lambda number: [], patience_s=0.1)
    assert attempt.end == LEFT
    assert 0.09 <= attempt.ended_s - attempt.started_s < 1.0
    assert scripted.gone.is_set()


def test_G5_an_answer_that_never_ends_is_overdue() -> None:
    [attempt], _ = attempted(lambda number: [wire.STREAM_HEAD + wire.token()], limit_s=0.1)
    assert (attempt.end, attempt.output_tokens) == (OVERDUE, 1)


NOT_WHOLE = "not a whole answer"
ERROR = wire.event({"error": {"code": "engine_died"}})


@pytest.mark.parametrize(
    ("pieces", "cause"),
    [
        ([wire.STREAM_HEAD + wire.token() + wire.DONE + wire.END], NOT_WHOLE),  # nothing said why it finished
        ([wire.STREAM_HEAD + wire.token(finish="stop") + wire.END], NOT_WHOLE),  # no [DONE]
        ([wire.STREAM_HEAD + wire.token(finish="abort") + wire.DONE + wire.END], NOT_WHOLE),
        (
            [wire.STREAM_HEAD + wire.token(finish="stop") + ERROR + wire.DONE + wire.END],
            "error event engine_died",
        ),
        ([wire.STREAM_HEAD + wire.event("{not json") + wire.token(finish="stop") + wire.DONE + wire.END], NOT_WHOLE),
        ([wire.STREAM_HEAD + wire.token(finish="stop") + wire.DONE, wire.HANG_UP], "closed in the answer"),
        ([wire.HANG_UP], "closed before the answer"),
        ([b"not http\r\n\r\n"], "not HTTP"),
    ],
)
def test_G5_what_is_not_a_whole_answer_is_cut(pieces: list[bytes], cause: str) -> None:
    [attempt], _ = attempted(lambda number: pieces)
    assert (attempt.end, attempt.code) == (CUT, cause)


def test_G5_a_refusal_keeps_its_status_code_and_hints_and_the_connection_serves_on() -> None:
    refused = wire.refusal("429 Too Many Requests", "queue_full", "Retry-After-Ms: 250", "x-should-retry: true")
    attempts, scripted = attempted(lambda number: [refused if number == 0 else wire.WHOLE], times=2)
    assert (attempts[0].end, attempts[0].status, attempts[0].code) == (REFUSED, 429, "queue_full")
    assert attempts[0].hints == {"retry-after-ms": "250", "x-should-retry": "true"}
    assert attempts[1].end == COMPLETE
    assert scripted.connections == 1


def test_G5_an_engine_that_repeats_the_status_as_its_code_is_named_by_type() -> None:
    [attempt], _ = attempted(lambda number: [wire.refusal("503 Service Unavailable", 503)])
    assert (attempt.status, attempt.code) == (503, "overloaded")


def test_G5_an_error_in_place_of_the_first_token_is_a_refusal() -> None:
    [attempt], _ = attempted(lambda number: [wire.STREAM_HEAD + ERROR + wire.DONE + wire.END])
    assert (attempt.end, attempt.status, attempt.code) == (REFUSED, 200, "error event engine_died")


def test_G5_nobody_listening_is_unconnected() -> None:
    async def run() -> Attempt:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return await Pool(asyncio.get_running_loop(), urlsplit(f"http://127.0.0.1:{port}")).run(REQUEST, 1.0, 1.0)

    assert asyncio.run(run()).end == UNCONNECTED
