"""What the SGLang adapter sends and what it makes of pages. The conformance suite has a fake of the whole engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from wire import Clock, Peer, Server, answer, run_on, until

from headworks.engines.base import EngineError
from headworks.engines.sglang import SglangEngine
from headworks.testing.listener import Recorder

MODELS = b'{"object":"list","data":[{"id":"tiny","max_model_len":4096,"owned_by":"sglang"}]}'
INFO = {"version": "0.5.23", "startup_time": 1796040000.25, "page_size": 16, "tp_size": 1}
LOAD = {
    "dp_rank": 0,
    "num_running_reqs": 3,
    "num_waiting_reqs": 2,
    "max_total_num_tokens": 8192,
    "max_running_requests": 8,
    "token_usage": 0.25,
}


class Pages:
    """The routes of an SGLang, as a table that a test may change, and what came to them."""

    def __init__(self, *loads: dict[str, object]) -> None:
        self.answers = {
            "/v1/models": answer(MODELS),
            "/server_info": answer(json.dumps(INFO).encode()),
            "/v1/loads?include=core": answer(json.dumps({"loads": list(loads or (LOAD,))}).encode()),
            "/abort_request": answer(b""),
        }
        self.came: list[tuple[str, bytes]] = []

    async def __call__(self, peer: Peer) -> None:
        while True:
            head, body = await peer.request()
            path = head.split(b" ", 2)[1].decode()
            self.came.append((path, body))
            if path == "/v1/completions":
                await peer.reader.read()  # until its client leaves
                return
            await peer.say(self.answers.get(path, answer(b"{}", b"404 Not Found")))


def with_engine(pages: Pages, check: Callable[[SglangEngine], Awaitable[None]]) -> None:
    async def test() -> None:
        async with Server(pages) as server:
            engine = SglangEngine("sg/0", server.url, Clock())
            try:
                await check(engine)
            finally:
                await engine.close()

    run_on("asyncio", test())


def test_E6_describe_reads_memory_places_and_evidence() -> None:
    async def check(engine: SglangEngine) -> None:
        capacity = await engine.describe()
        assert (capacity.engine, capacity.version, capacity.models) == ("sglang", "0.5.23", ("tiny",))
        assert (capacity.context_tokens, capacity.kv_tokens, capacity.block_tokens, capacity.running_max) == (4096, 8192, 16, 8)
        assert capacity.incarnation == "1796040000.25"
        assert capacity.evidence == engine.evidence == ("E1", "E3b", "E4")
        assert capacity.notes == ()

    with_engine(Pages(), check)


def test_B3_sample_adds_up_its_ranks_and_has_no_clock() -> None:
    async def check(engine: SglangEngine) -> None:
        sample = await engine.sample()
        assert (sample.replica, sample.incarnation) == ("sg/0", "1796040000.25")
        assert (sample.running, sample.waiting, sample.kv_used_ratio) == (4, 4, 0.5)
        assert (sample.iterations, sample.rank_loads, sample.preemptions_total) == (None, None, None)

    other = {**LOAD, "dp_rank": 1, "num_running_reqs": 1, "num_waiting_reqs": 2, "token_usage": 0.5}
    with_engine(Pages(LOAD, other), check)


def test_E4_its_life_is_asked_before_its_load() -> None:
    """A count of the next life under the name of the last proves nothing false; the other way round it would."""
    pages = Pages()

    async def check(engine: SglangEngine) -> None:
        await engine.sample()
        assert [path for path, _ in pages.came] == ["/server_info", "/v1/loads?include=core"]

    with_engine(pages, check)


def test_K33_without_a_start_time_there_is_no_E4() -> None:
    pages = Pages()
    pages.answers["/server_info"] = answer(b'{"version": "0.4.1"}')

    async def check(engine: SglangEngine) -> None:
        capacity = await engine.describe()
        assert capacity.evidence == ("E1", "E3b")
        assert "a restart proves nothing" in capacity.notes[0]

    with_engine(pages, check)


def test_K33_a_page_of_loads_without_ranks_is_no_zero() -> None:
    pages = Pages()
    pages.answers["/v1/loads?include=core"] = answer(b'{"loads": []}')

    async def check(engine: SglangEngine) -> None:
        with pytest.raises(EngineError, match="no scheduler has said anything yet"):
            await engine.sample()

    with_engine(pages, check)


def test_K11_each_execution_goes_by_our_name_and_is_stopped_by_it() -> None:
    pages = Pages()
    execution = "0123456789abcdef" * 2

    async def check(engine: SglangEngine) -> None:
        listener = Recorder()
        call = engine.run(execution, "/v1/completions", b'{"model":"tiny"}', float("inf"), listener)
        await until(lambda: bool(pages.came))
        assert pages.came == [("/v1/completions", b'{"rid":"%b","model":"tiny"}' % execution.encode())]
        call.abort()
        call.abort()
        await until(lambda: len(pages.came) > 1)
        await listener.until_over()
        await asyncio.sleep(0.05)
        assert pages.came[1:] == [("/abort_request", b'{"rid":"%b"}' % execution.encode())], "once"

    with_engine(pages, check)


def test_K11_what_was_never_written_is_not_stopped_by_name() -> None:
    """An id that is not known there would still be looked for among all that begin like it."""
    pages = Pages()

    async def check(engine: SglangEngine) -> None:
        listener = Recorder()
        engine.run("0" * 32, "/v1/completions", b"{}", float("inf"), listener).abort()
        assert await listener.until_over() == "not_sent gone"
        await asyncio.sleep(0.05)
        assert pages.came == []

    with_engine(pages, check)


@pytest.mark.parametrize(
    ("status", "payload", "is_busy"),
    [
        (503, b'{"object":"error","message":"The request queue is full.","code":503}', True),
        (503, b'{"error":{"message":"Streaming response failed: The request queue is full.","code":503}}', True),
        (503, b'{"object":"error","message":"The request is aborted by a higher priority request.","code":503}', False),
        (500, b'{"object":"error","message":"The request queue is full.","code":500}', False),
        (503, b"[]", False),
        (503, b"", False),
    ],
)
def test_K02_a_full_queue_is_overload_and_nothing_else_is(status: int, payload: bytes, is_busy: bool) -> None:
    assert SglangEngine("sg/0", "http://127.0.0.1:1", Clock()).is_busy(status, payload) is is_busy
