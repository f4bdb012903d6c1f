"""What the vLLM adapter makes of pages and answers. The engine here is a script; the conformance suite has the real ones."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from wire import LOOPS, Clock, Peer, Server, answer, run_on, until

from headworks.engines.base import EngineError
from headworks.engines.vllm import VllmEngine

CACHE = b'vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="4096"} 1.0\n'
PAGE = (
    CACHE + b"process_start_time_seconds 1.79599627003e+09\n"
    b'vllm:num_requests_running{engine="0",model_name="tiny"} 3.0\n'
    b'vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0\n'
    b'vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25\n'
    b'vllm:num_preemptions_total{engine="0",model_name="tiny"} 7.0\n'
    b'vllm:iteration_tokens_total_count{engine="0",model_name="tiny"} 656.0\n'
)
MODELS = (
    b'{"object":"list","data":[{"id":"tiny","max_model_len":4096},{"id":"tiny-lora","max_model_len":null,"parent":"tiny"}]}'
)


class Pages:
    """The routes of an engine, as a table that a test may change."""

    def __init__(self, page: bytes = PAGE) -> None:
        self.answers = {"/v1/models": answer(MODELS), "/version": answer(b'{"version":"0.32.0"}'), "/metrics": answer(page)}

    async def __call__(self, peer: Peer) -> None:
        while True:
            head, _ = await peer.request()
            await peer.say(self.answers.get(head.split(b" ", 2)[1].decode(), answer(b"{}", b"404 Not Found")))


def with_engine(pages: Pages, check, loop: str = "asyncio") -> None:  # type: ignore[no-untyped-def]
    async def test() -> None:
        async with Server(pages) as server:
            engine = VllmEngine("llama/0", server.url, Clock())
            try:
                await check(engine)
            finally:
                await engine.close()

    run_on(loop, test())


@pytest.mark.parametrize("loop", LOOPS)
def test_E6_describe_reads_context_memory_and_incarnation(loop: str) -> None:
    async def check(engine: VllmEngine) -> None:
        capacity = await engine.describe()
        assert capacity.replica == "llama/0"
        assert (capacity.engine, capacity.version) == ("vllm", "0.32.0")
        assert (capacity.context_tokens, capacity.models) == (4096, ("tiny", "tiny-lora"))
        assert (capacity.kv_tokens, capacity.block_tokens) == (524_160, 128)  # (4,096 − 1) × 128
        assert capacity.incarnation == "1795996270.03/524160"
        assert capacity.evidence == engine.evidence == ("E1", "E3a", "E3b", "E4")
        assert (capacity.running_max, capacity.notes) == (None, ())

    with_engine(Pages(), check, loop)


def test_B3_sample_reads_every_gauge() -> None:
    async def check(engine: VllmEngine) -> None:
        sample = await engine.sample()
        assert (sample.replica, sample.incarnation) == ("llama/0", "1795996270.03/524160")
        assert (sample.running, sample.waiting, sample.kv_used_ratio, sample.preemptions_total) == (3, 2, 0.25, 7)
        assert (sample.iterations, sample.rank_loads, sample.compute_used_ratio) == ((656,), (5,), None)

    with_engine(Pages(), check)


def test_E6_ranks_stand_in_the_order_of_their_number() -> None:
    page = b""
    for rank in (10, 0, 2):
        page += CACHE.replace(b'engine="0"', b'engine="%d"' % rank)
        page += b'vllm:iteration_tokens_total_count{engine="%d"} %d.0\n' % (rank, 100 + rank)
        page += b'vllm:num_requests_running{engine="%d"} %d.0\n' % (rank, rank)
        page += b'vllm:num_requests_waiting{engine="%d"} 1.0\n' % rank
        page += b'vllm:kv_cache_usage_perc{engine="%d"} 0.0%d\n' % (rank, rank + 1)

    async def check(engine: VllmEngine) -> None:
        sample = await engine.sample()
        assert (sample.iterations, sample.rank_loads) == ((100, 102, 110), (1, 3, 11))
        assert (sample.running, sample.waiting, sample.kv_used_ratio) == (12, 3, 0.03)
        assert (await engine.describe()).kv_tokens == 3 * 524_160

    with_engine(Pages(page), check)


def test_B3_the_gauges_former_name_is_understood() -> None:
    async def check(engine: VllmEngine) -> None:
        assert (await engine.sample()).kv_used_ratio == 0.25
        assert (await engine.describe()).notes == ()

    with_engine(Pages(PAGE.replace(b"kv_cache_usage_perc", b"gpu_cache_usage_perc")), check)


@pytest.mark.parametrize(
    ("missing", "evidence", "note", "field"),
    [
        (b"vllm:iteration_tokens_total_count", ("E1", "E3b", "E4"), "no clock proof", "iterations"),
        (b"vllm:num_requests_running", ("E1", "E3a", "E4"), "no counting proof", "running"),
        (b"vllm:num_requests_waiting", ("E1", "E3a", "E4"), "no counting proof", "waiting"),
        (b"process_start_time_seconds", ("E1", "E3a", "E3b"), "a restart proves nothing", None),
        (b"vllm:kv_cache_usage_perc", ("E1", "E3a", "E3b", "E4"), "no KV usage gauge", "kv_used_ratio"),
        (b"vllm:num_preemptions_total", ("E1", "E3a", "E3b", "E4"), None, "preemptions_total"),
    ],
)
def test_B3_missing_series_is_none_and_takes_its_evidence_away(
    missing: bytes, evidence: tuple[str, ...], note: str | None, field: str | None
) -> None:
    async def check(engine: VllmEngine) -> None:
        capacity, sample = await engine.describe(), await engine.sample()
        assert capacity.evidence == engine.evidence == evidence
        assert [note in written for written in capacity.notes] == ([] if note is None else [True])
        if field is not None:
            assert getattr(sample, field) is None
        if field in ("running", "waiting", "iterations"):
            assert sample.rank_loads is None
        assert sample.incarnation == capacity.incarnation

    with_engine(Pages(PAGE.replace(missing, b"renamed")), check)


def test_E6_unreadable_memory_is_unknown_and_said() -> None:
    async def check(engine: VllmEngine) -> None:
        capacity = await engine.describe()
        assert (capacity.kv_tokens, capacity.block_tokens) == (None, 16)
        assert "how much its memory holds is not known" in capacity.notes[0]

    with_engine(Pages(PAGE.replace(b'num_gpu_blocks="4096"', b'num_gpu_blocks="None"')), check)


def test_E6_restart_is_another_incarnation() -> None:
    pages = Pages()

    async def check(engine: VllmEngine) -> None:
        before = (await engine.sample()).incarnation
        pages.answers["/metrics"] = answer(PAGE.replace(b"1.79599627003e+09", b"1.79599627103e+09"))
        assert (await engine.sample()).incarnation != before
        pages.answers["/metrics"] = answer(PAGE.replace(b"4096", b"2048"))
        assert (await engine.sample()).incarnation != before

    with_engine(pages, check)


@pytest.mark.parametrize(
    ("route", "given", "said"),
    [
        ("/v1/models", answer(b"{}", b"401 Unauthorized"), "status 401, expected 200"),
        ("/v1/models", answer(b"<html>"), "not a list of models"),
        ("/v1/models", answer(b'{"data":[]}'), "serves no model"),
        ("/v1/models", answer(b'{"data":[{"id":"gpt"}]}'), "states no max_model_len"),
        ("/metrics", answer(b"", b"404 Not Found"), "/metrics: status 404, expected 200"),
        ("/metrics", b"garbage\r\n\r\n", "the engine sent"),
    ],
)
def test_E6_describe_says_what_was_asked_and_what_came(route: str, given: bytes, said: str) -> None:
    pages = Pages()
    pages.answers[route] = given

    async def check(engine: VllmEngine) -> None:
        with pytest.raises(EngineError, match=said):
            await engine.describe()

    with_engine(pages, check)


def test_E6_version_is_no_condition() -> None:
    pages = Pages()
    del pages.answers["/version"]

    async def check(engine: VllmEngine) -> None:
        assert (await engine.describe()).version == "unknown"

    with_engine(pages, check)


def test_B3_silent_engine_fails_the_sample_within_its_limit() -> None:
    async def test() -> None:
        async def silent(peer: Peer) -> None:
            await peer.request()
            await peer.reader.read()

        async with Server(silent) as server:
            engine = VllmEngine("llama/0", server.url, Clock())
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            with pytest.raises(EngineError, match="no complete answer within 1 s"):
                await engine.sample()
            assert 0.9 < loop.time() - begun_s < 3
            # Given up for good: a look that failed leaves no connection behind.
            await until(lambda: server.open_count == 0)
            await engine.close()

    run_on("asyncio", test())


def test_B3_absent_engine_fails_the_sample_at_once() -> None:
    async def test() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            engine = VllmEngine("llama/0", f"http://127.0.0.1:{closed.getsockname()[1]}", Clock())
            with pytest.raises(EngineError, match=r"/metrics: no connection \(connect\)"):
                await engine.sample()

    run_on("asyncio", test())


def busy(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "Service Unavailable", "param": None, "code": 503}}).encode()


BUSY_SEQUENCES = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)
BUSY_PREFILL = "The engine has reached its prefill token backlog limit. Please try again later or on a different instance."
SHUTTING_DOWN = "cannot schedule new futures after shutdown"


@pytest.mark.parametrize(
    ("status", "payload", "is_busy"),
    [
        (503, busy(BUSY_SEQUENCES), True),
        (503, busy(BUSY_PREFILL), True),
        (500, busy(BUSY_SEQUENCES), False),
        (429, busy(BUSY_SEQUENCES), False),
        (200, busy(BUSY_SEQUENCES), False),
        (500, busy(SHUTTING_DOWN), False),
        (503, busy(SHUTTING_DOWN), False),
        (503, b"", False),
        (503, b"<html>currently busy</html>", False),
        (503, b'{"error":"currently busy"}', False),
        (503, b'{"error":{"message":null}}', False),
    ],
)
def test_K02_only_the_engines_own_busy_answer_is_busy(status: int, payload: bytes, is_busy: bool) -> None:
    assert VllmEngine("llama/0", "http://127.0.0.1:1", Clock()).is_busy(status, payload) is is_busy
