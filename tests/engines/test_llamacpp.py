"""What the llama.cpp adapter makes of pages. The engine here is a script; the conformance suite has the real ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from wire import Clock, Peer, Server, answer, run_on, until

from headworks.engines.base import EngineError
from headworks.engines.llamacpp import LlamaCppEngine
from headworks.engines.look import Seen
from headworks.testing.listener import Recorder

STARTED = b"Process-Start-Time-Unix: 43216789012"
PAGE = (
    b"# TYPE llamacpp:n_decode_total counter\nllamacpp:n_decode_total 656\n"
    b"llamacpp:requests_processing 3\nllamacpp:requests_deferred 2\nllamacpp:n_busy_slots_per_decode 2.5\n"
)
MODELS = b'{"object":"list","data":[{"id":"tiny","object":"model","meta":{"n_ctx":4096}}]}'
PROPS = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 4, "build_info": "b6100-0c1e570"}


class Pages:
    """The routes of a llama-server, as a table that a test may change."""

    def __init__(self, page: bytes = PAGE, *headers: bytes) -> None:
        self.answers = {
            "/v1/models": answer(MODELS),
            "/props": answer(json.dumps(PROPS).encode()),
            "/metrics": answer(page, b"200 OK", *headers),
        }
        self.looked_s: list[float] = []

    async def __call__(self, peer: Peer) -> None:
        while True:
            head, _ = await peer.request()
            path = head.split(b" ", 2)[1].decode()
            if path == "/metrics":
                self.looked_s.append(asyncio.get_running_loop().time())
            if path == "/v1/completions":  # never answered, and its client's leaving never noticed
                await asyncio.sleep(30)
            await peer.say(self.answers.get(path, answer(b"{}", b"404 Not Found")))


def with_engine(
    pages: Pages, check: Callable[[LlamaCppEngine], Awaitable[None]], clock: Callable[[], float] | None = None
) -> None:
    async def test() -> None:
        async with Server(pages) as server:
            engine = LlamaCppEngine("llama/0", server.url, clock or Clock())
            try:
                await check(engine)
            finally:
                await engine.close()

    run_on("asyncio", test())


def test_E6_describe_reads_slots_and_evidence() -> None:
    async def check(engine: LlamaCppEngine) -> None:
        capacity = await engine.describe()
        assert (capacity.engine, capacity.version, capacity.models) == ("llamacpp", "b6100-0c1e570", ("tiny",))
        assert (capacity.context_tokens, capacity.kv_tokens, capacity.block_tokens, capacity.running_max) == (4096, 4096, 1, 4)
        assert capacity.incarnation == "43216789012"
        assert capacity.evidence == engine.evidence == ("E1", "E3a", "E3b", "E4")
        assert capacity.notes == (
            "its 4 slots are taken to share 4096 tokens; if each has as many of its own (--parallel, and no --kv-unified),"
            " write over_commit: 4",
        )

    with_engine(Pages(PAGE, STARTED), check)


def test_B3_sample_reads_clock_and_load() -> None:
    async def check(engine: LlamaCppEngine) -> None:
        sample = await engine.sample()
        assert (sample.replica, sample.incarnation) == ("llama/0", "43216789012")
        assert (sample.iterations, sample.running, sample.waiting) == ((656,), 3, 2)
        assert (sample.kv_used_ratio, sample.preemptions_total, sample.rank_loads) == (None, None, None)

    with_engine(Pages(PAGE, STARTED), check)


@pytest.mark.parametrize(
    ("page", "headers", "evidence", "note"),
    [
        (PAGE.replace(b"n_decode_total", b"renamed"), (STARTED,), ("E1", "E3b", "E4"), "no clock proof"),
        (PAGE.replace(b"requests_deferred", b"renamed"), (STARTED,), ("E1", "E3a", "E4"), "no counting proof"),
        (PAGE.replace(b"requests_processing", b"renamed"), (STARTED,), ("E1", "E3a", "E4"), "no counting proof"),
        (PAGE, (), ("E1", "E3a", "E3b"), "a restart proves nothing"),
    ],
)
def test_K33_what_is_missing_is_none_and_takes_its_evidence_away(
    page: bytes, headers: tuple[bytes, ...], evidence: tuple[str, ...], note: str
) -> None:
    async def check(engine: LlamaCppEngine) -> None:
        capacity, sample = await engine.describe(), await engine.sample()
        assert capacity.evidence == evidence
        assert note in capacity.notes[0]
        assert (sample.iterations is None) == ("E3a" not in evidence)
        assert (sample.running is None or sample.waiting is None) == ("E3b" not in evidence)

    with_engine(Pages(page, *headers), check)


def test_E6_without_metrics_it_says_which_flag_is_missing() -> None:
    pages = Pages()
    pages.answers["/metrics"] = answer(b"{}", b"501 Not Implemented")

    async def check(engine: LlamaCppEngine) -> None:
        with pytest.raises(EngineError, match="status 501, expected 200; llama-server shows them with --metrics"):
            await engine.describe()

    with_engine(pages, check)


def test_E3_an_engine_with_one_slot_needs_no_word_about_its_memory() -> None:
    pages = Pages(PAGE, STARTED)
    pages.answers["/props"] = answer(json.dumps({**PROPS, "total_slots": 1}).encode())

    async def check(engine: LlamaCppEngine) -> None:
        assert (await engine.describe()).notes == ()

    with_engine(pages, check)


def test_E2_looks_leave_its_timer_time_while_a_closed_connection_is_not_noticed() -> None:
    """Each result of anybody, `/metrics` included, begins its second anew: looks at ten a second would never let it pass."""
    pages = Pages(PAGE, STARTED)

    async def check(engine: LlamaCppEngine) -> None:
        await engine.sample()
        await engine.sample()
        assert pages.looked_s[1] - pages.looked_s[0] < 1.0, "as often as asked while nothing is closing"
        listener = Recorder()
        call = engine.run("0" * 32, "/v1/completions", b"{}", float("inf"), listener)
        await until(lambda: call.connection is not None)
        call.abort()
        await engine.sample()
        await engine.sample()
        assert pages.looked_s[3] - pages.looked_s[2] >= 1.1, "and not within its second from then on"
        call.discard()
        assert (await listener.until_over()).startswith("lost")
        before = len(pages.looked_s)
        await engine.sample()
        await engine.sample()
        assert pages.looked_s[before + 1] - pages.looked_s[before] < 1.0

    with_engine(pages, check, lambda: asyncio.get_running_loop().time())


def test_K02_it_never_says_that_nothing_was_started() -> None:
    engine = LlamaCppEngine("llama/0", "http://127.0.0.1:1", Clock())
    assert not engine.is_busy(503, b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}')


def test_E3a_is_not_given_over_tls() -> None:
    engine = LlamaCppEngine("llama/0", "https://127.0.0.1:1", Clock())
    levels, notes = engine._provable(Seen(200, PAGE, ((b"process-start-time-unix", b"1"),)))
    assert levels == ("E1", "E3b", "E4")
    assert "TLS" in notes[0]
