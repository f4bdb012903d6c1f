"""The fake engine over real sockets: it answers as the real one, lets go when it should, and can be broken on purpose."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headworks.sim.presets import BatchingSettings, FixedRateSettings, h100_8b, tiny
from headworks.testing.fake.settings import FakeSettings
from headworks.testing.fake.tokenizer import tokens_of
from headworks.testing.fake_engine import FakeEngine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(slots=True)
class Client:
    """One connection with one request on it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self) -> tuple[int, str]:
        """The whole answer, un-chunked."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status = int(head.split()[1])
        if "transfer-encoding: chunked" not in head:
            length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
            return status, (await self.reader.readexactly(length)).decode()
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readline()
        return status, body.decode()

    async def until(self, text: bytes) -> bytes:
        return await self.reader.readuntil(text)

    def leave(self, how: str) -> None:
        """`half-close` sends a FIN and goes on reading; `close` may see a reset later; `reset` does so itself."""
        sock = self.writer.get_extra_info("socket")
        if how == "half-close":
            self.writer.write_eof()
            return
        if how == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort() if how == "reset" else self.writer.close()


async def send(url: str, path: str, body: dict[str, Any] | None = None, request_id: str = "") -> Client:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    payload = json.dumps(body).encode() if body is not None else b""
    head = f"{'POST' if body is not None else 'GET'} {path} HTTP/1.1\r\nhost: fake\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(payload)}\r\n" + (f"x-request-id: {request_id}\r\n" if request_id else "")
    writer.write(head.encode() + b"\r\n" + payload)
    return Client(reader, writer)


async def ask(url: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    client = await send(url, path, body)
    answer = await client.answer()
    client.writer.close()
    return answer


def prompt(tokens: int, output: int, **more: Any) -> dict[str, Any]:
    return {"prompt": [7] * tokens, "max_tokens": output, "ignore_eos": True, **more}


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(event) for event in text.replace("data: ", "").split("\n\n") if event not in ("", "[DONE]")]


def run(case: Callable[[FakeEngine, str], Awaitable[None]], settings: FakeSettings) -> None:
    async def whole() -> None:
        engine = FakeEngine(settings)
        async with engine as url:
            await asyncio.wait_for(case(engine, url), 60)

    asyncio.run(whole())


def small(speed: float = 10.0, **engine: Any) -> FakeSettings:
    """The `tiny` engine with a context of 304 tokens: steps of 10 ms ÷ speed, three iterations from FIN to gone."""
    return FakeSettings(engine=replace(tiny(), **({"abort_lag_steps": 2} | engine)), context_tokens=304, speed=speed)


async def until(truth: Callable[[], bool], limit_s: float = 20.0) -> None:
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + limit_s
    while not truth():
        assert loop.time() < give_up_s, "it never came true"
        await asyncio.sleep(0.001)


# Answers.


def test_E6_a_chat_stream_has_the_shape_of_the_real_one() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 3, "stream": True}
        status, text = await ask(url, CHAT, body | {"stream_options": options, "model": "tiny"})
        assert status == 200 and text.endswith("data: [DONE]\n\n")
        role, first, second, last, usage = events(text)
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert [event["usage"]["completion_tokens"] for event in (role, first, second, last)] == [0, 1, 2, 3]
        assert [event["choices"][0]["finish_reason"] for event in (role, first, second, last)] == [None, None, None, "length"]
        assert usage["choices"] == []
        # Four pieces ("hell", "o", " ther", "e"), one for the message, one for the turn.
        assert usage["usage"] == {"prompt_tokens": 6, "total_tokens": 9, "completion_tokens": 3}
        plain = events((await ask(url, CHAT, body))[1])
        assert len(plain) == 4 and not any("usage" in event for event in plain)

    run(case, small())


def test_K27_usage_counts_a_prompt_once_and_the_engine_counts_it_for_every_sample() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        body = {"prompt": [[7] * 5, [7] * 9], "n": 3, "max_tokens": 4, "best_of": 8}
        status, text = await ask(url, COMPLETIONS, body)
        answer = json.loads(text)
        assert status == 200
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3, 4, 5]
        assert answer["usage"] | {"prompt_tokens_details": None} == {
            "prompt_tokens": 14,
            "total_tokens": 38,
            "completion_tokens": 24,
            "prompt_tokens_details": None,
        }
        gauges = engine.gauges()
        assert (gauges.prompt_tokens, gauges.output_tokens) == (42, 24)

    run(case, small())


def test_E6_the_head_of_a_stream_comes_long_before_its_first_token() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        engine.hang()
        client = await send(url, COMPLETIONS, prompt(10, 5, stream=True))
        assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
        engine.resume()
        assert (await client.until(b"[DONE]")).count(b'"text"') == 5

    run(case, small())


def test_E6_an_answer_may_end_by_itself() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        choices = [
            json.loads((await ask(url, COMPLETIONS, body))[1])["choices"][0]
            for body in (
                {"prompt": "a", "max_tokens": 9},
                {"prompt": "a", "max_tokens": 9, "min_tokens": 7},
                {"prompt": "a", "max_tokens": 9, "ignore_eos": True},
                {"prompt": "a", "max_tokens": 5},
            )
        ]
        ends = [(len(choice["text"].split()), choice["finish_reason"]) for choice in choices]
        assert ends == [(5, "stop"), (7, "stop"), (9, "length"), (5, "length")]

    run(case, replace(small(), natural_tokens=5))


@pytest.mark.parametrize(
    ("body", "status", "kind", "param"),
    [
        ({"prompt": "a", "max_tokens": 0}, 400, "BadRequestError", "max_tokens"),
        ({"prompt": "a", "max_tokens": -1}, 400, "BadRequestError", "max_tokens"),
        ({"prompt": "a", "max_tokens": 999_999}, 400, "BadRequestError", "max_tokens"),
        ({"prompt": "a", "max_tokens": "x"}, 400, "Bad Request", "body.max_tokens"),
        ({"prompt": [7] * 305, "max_tokens": 1}, 400, "BadRequestError", "input_tokens"),
        ({"prompt": [7] * 304, "max_tokens": 1}, 400, "BadRequestError", "max_tokens"),
        ({"prompt": "a", "min_tokens": 20}, 400, "BadRequestError", None),
        ({"prompt": [999_999]}, 400, "BadRequestError", None),
        ({"prompt": []}, 400, "BadRequestError", None),
        ({}, 400, "BadRequestError", "prompt"),
        ({"prompt": "a", "n": 0}, 400, "BadRequestError", None),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, 400, "BadRequestError", "stream_options"),
        ({"prompt": "a", "model": "nope"}, 404, "NotFoundError", "model"),
    ],
)
def test_E6_requests_are_refused_as_by_the_real_one(body: dict[str, Any], status: int, kind: str, param: str | None) -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        got, text = await ask(url, COMPLETIONS, body)
        error = json.loads(text)["error"]
        assert (got, error["type"], error["param"], error["code"]) == (status, kind, param, status)
        assert engine.held() == {}

    run(case, small())


def test_E6_limits_default_and_clamp_as_on_the_real_one() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        async def made(path: str, body: dict[str, Any]) -> int:
            made = json.loads((await ask(url, path, body))[1])["usage"]["completion_tokens"]
            assert isinstance(made, int)
            return made

        messages = [{"role": "user", "content": "a"}]
        assert await made(COMPLETIONS, {"prompt": "a"}) == 16
        assert await made(COMPLETIONS, {"prompt": [7] * 298, "max_tokens": 10}) == 6
        assert await made(COMPLETIONS, {"prompt": [7] * 500, "max_tokens": 10, "truncate_prompt_tokens": 290}) == 10
        assert await made(CHAT, {"messages": messages}) == 301
        assert await made(CHAT, {"messages": messages, "max_tokens": 3, "max_completion_tokens": 8}) == 8

    run(case, small(speed=50.0))


def test_C1_tokens_are_never_more_than_bytes() -> None:
    assert len(tokens_of("hello there, world!")) == 8
    assert len(tokens_of("管理用户")) == 12
    for text in ("", "a", "  \n\n", "naïve café", "x" * 1000, "💧💧", "a_b-c.d"):
        assert len(tokens_of(text)) <= len(text.encode())
    assert tokens_of("hello there") == tokens_of("hello there")


# Clients who leave.


@pytest.mark.parametrize("how", ["half-close", "close", "reset"])
@pytest.mark.parametrize("moment", ["queued", "prefill", "mid-stream", "not streaming"])
def test_E2_a_client_who_leaves_is_gone_within_four_iterations(moment: str, how: str) -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        # Others keep the clock going, so that iterations can be counted.
        others = [await send(url, COMPLETIONS, prompt(2, 60, stream=True)) for _ in range(4 if moment == "queued" else 1)]
        await until(lambda: engine.gauges().output_tokens >= 4)
        body = prompt(200 if moment == "prefill" else 20, 60, stream=moment != "not streaming")
        client = await send(url, COMPLETIONS, body, request_id="victim")
        await until(lambda: "victim" in engine.held())
        if moment == "mid-stream":
            await client.until(b'"text"')
        elif moment == "not streaming":
            before = engine.gauges().output_tokens
            await until(lambda: engine.gauges().output_tokens > before + 4)
        connections = len(engine.connections)
        client.leave(how)
        await until(lambda: len(engine.connections) < connections)
        closed_at = engine.gauges().iterations
        # The server's side is closed, and yet the engine has not let go.
        assert "victim" in engine.held()
        await until(lambda: "victim" not in engine.held())
        assert engine.gauges().iterations - closed_at <= 4
        if how == "half-close":
            await client.reader.read()
            assert client.reader.at_eof()
        assert len(engine.held()) == len(others)

    run(case, small(speed=0.5))


def test_E2_an_idle_connection_is_closed_with_its_client() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        client = await send(url, "/health")
        assert (await client.answer())[0] == 200
        client.leave("half-close")
        assert await client.reader.read() == b""
        # And one nobody uses is closed after a while.
        client = await send(url, "/health")
        await client.answer()
        assert await asyncio.wait_for(client.reader.read(), 5) == b""

    run(case, replace(small(), keep_alive_s=0.1))


def test_E2_an_engine_that_ignores_aborts_runs_to_the_end() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        client = await send(url, COMPLETIONS, prompt(20, 50, stream=True), request_id="victim")
        await client.until(b'"text"')
        client.leave("half-close")
        # The answer still comes, whole.
        rest = (await client.reader.read()).decode()
        assert rest.endswith("data: [DONE]\n\n\r\n0\r\n\r\n")
        assert engine.gauges().output_tokens == 50

    run(case, replace(small(), ignore_abort=True))


def test_E2_an_engine_that_closes_but_runs_would_belie_the_clock_proof() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        client = await send(url, COMPLETIONS, prompt(20, 80, stream=True), request_id="victim")
        await client.until(b'"text"')
        client.leave("half-close")
        await client.reader.read()
        closed_at = engine.gauges().iterations
        await until(lambda: engine.gauges().iterations >= closed_at + 8)
        assert "victim" in engine.held()
        await until(lambda: engine.gauges().output_tokens == 80)
        assert engine.held() == {}

    run(case, replace(small(), close_but_run=True))


def test_E2_a_reader_who_stalls_is_not_a_client_who_left() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        client = await send(url, COMPLETIONS, prompt(4, 250, stream=True))
        await until(lambda: engine.gauges().output_tokens == 250)
        client.leave("close")

    run(case, small(speed=50.0))


def test_K19_an_abort_call_says_aborted_whether_it_knew_the_id_or_not() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        client = await send(url, COMPLETIONS, prompt(20, 200, stream=True), request_id="r1")
        await client.until(b'"text"')
        assert json.loads((await ask(url, "/abort_requests", {"request_ids": ["r1", "cmpl-r1"]}))[1])["aborted"] == 2
        assert "r1" in engine.held()
        assert json.loads((await ask(url, "/abort_requests", {"request_ids": ["cmpl-r1-0"]}))[1])["aborted"] == 1
        rest = (await client.until(b"0\r\n\r\n")).decode()
        assert '"finish_reason":"abort"' in rest and "data: [DONE]" in rest
        await until(lambda: engine.held() == {})

    run(case, replace(small(), developer_routes=True))


# Load.


def test_K02_the_queue_limit_is_exact_under_a_burst() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        answers = await asyncio.gather(*(ask(url, COMPLETIONS, prompt(4, 60, stream=True)) for _ in range(10)))
        assert sorted(status for status, _ in answers) == [200] * 3 + [503] * 7
        error = next(json.loads(text) for status, text in answers if status == 503)["error"]
        assert (error["type"], error["param"], error["code"]) == ("Service Unavailable", None, 503)
        assert (await ask(url, COMPLETIONS, prompt(4, 5, n=4)))[0] == 503
        assert engine.counters.busy == 11

    run(case, small(queued_max=3))


def test_K42_preemptions_are_counted_when_the_victim_resumes() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        asks = [asyncio.create_task(ask(url, COMPLETIONS, {"prompt": [k] * 144, "max_tokens": 50})) for k in (7, 8)]
        await until(lambda: engine.gauges().waiting == 1 and engine.gauges().running == 1)
        assert engine.gauges().preemptions == 0
        for answer in asks:
            assert json.loads((await answer)[1])["usage"]["completion_tokens"] == 50
        assert engine.gauges().preemptions == 1

    run(case, small())


def test_G1_five_hundred_streams_get_every_token() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        async def one(number: int) -> int:
            _, text = await ask(url, COMPLETIONS, prompt(50, 20, stream=True, stream_options={"include_usage": True}))
            tokens = events(text)[-1]["usage"]["completion_tokens"]
            assert isinstance(tokens, int)
            return tokens

        made = await asyncio.gather(*(one(number) for number in range(500)))
        assert made == [20] * 500
        assert engine.gauges().output_tokens == 10_000
        assert engine.held() == {}

    run(case, FakeSettings(engine=h100_8b()))


def test_G1_the_same_prompt_again_is_found_in_the_cache() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        for salt in ("one", "one", "two"):
            await ask(url, COMPLETIONS, prompt(100, 1, cache_salt=salt))
        assert engine.gauges().cached_tokens == 96

    run(case, small())


def test_G3_a_fixed_rate_engine_serves_over_http_too() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        answers = await asyncio.gather(*(ask(url, COMPLETIONS, prompt(4, 5)) for _ in range(4)))
        assert [json.loads(text)["usage"]["completion_tokens"] for _, text in answers] == [5] * 4

    run(case, FakeSettings(engine=FixedRateSettings(rate_per_s=10.0), speed=10.0))


# Metrics.


def samples(text: str) -> dict[str, float]:
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


def test_E6_the_metrics_are_those_the_adapter_reads() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        await ask(url, COMPLETIONS, prompt(10, 5))
        text = (await ask(url, "/metrics"))[1]
        values = samples(text)
        assert values["vllm:iteration_tokens_total_count"] == 5
        assert (values["vllm:prompt_tokens_total"], values["vllm:generation_tokens_total"]) == (10, 5)
        assert (values["vllm:num_requests_running"], values["vllm:num_requests_waiting"]) == (0, 0)
        assert values["vllm:kv_cache_usage_perc"] == 0
        assert values["process_start_time_seconds"] > 1_700_000_000
        families = {family.name: family for family in text_string_to_metric_families(text)}
        labels = families["vllm:cache_config_info"].samples[0].labels
        assert (labels["num_gpu_blocks"], labels["block_size"], labels["kv_cache_size_tokens"]) == ("20", "16", "320")
        reasons = {one.labels["finished_reason"]: one.value for one in families["vllm:request_success"].samples}
        assert (reasons["length"], reasons["abort"]) == (1, 0)

    run(case, small())


def test_K33_a_metric_can_be_missing_or_have_another_name() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        await ask(url, "/fake/metrics?drop=vllm:num_requests_waiting", {})
        await ask(url, "/fake/metrics?rename=vllm:kv_cache_usage_perc::vllm:gpu_cache_usage_perc", {})
        values = samples((await ask(url, "/metrics"))[1])
        assert "vllm:num_requests_waiting" not in values and "vllm:num_requests_running" in values
        assert "vllm:kv_cache_usage_perc" not in values and values["vllm:gpu_cache_usage_perc"] == 0
        await ask(url, "/fake/heal", {})
        assert "vllm:num_requests_waiting" in samples((await ask(url, "/metrics"))[1])

    run(case, small())


# Faults.


def test_E6_an_error_event_is_followed_by_done() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        engine.fault("error", after_tokens=2)
        status, text = await ask(url, COMPLETIONS, prompt(10, 50, stream=True))
        assert status == 200 and text.endswith("data: [DONE]\n\n")
        assert events(text)[-1]["error"]["code"] == 500
        assert not any(choice["finish_reason"] for event in events(text)[:-1] for choice in event["choices"])
        await until(lambda: engine.held() == {})
        engine.fault("error")
        assert (await ask(url, COMPLETIONS, prompt(10, 50)))[0] == 500
        assert (await ask(url, COMPLETIONS, prompt(10, 5)))[0] == 200

    run(case, small())


def test_E6_a_stream_can_break_and_an_answer_can_be_garbage() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        engine.fault("break", after_tokens=3)
        client = await send(url, COMPLETIONS, prompt(10, 50, stream=True))
        with pytest.raises(ConnectionError):
            while await client.reader.read(65536):
                pass
        await until(lambda: engine.held() == {})
        engine.fault("garbage")
        client = await send(url, COMPLETIONS, prompt(10, 50))
        assert not (await client.reader.read()).startswith(b"HTTP")
        await until(lambda: engine.held() == {})

    run(case, small())


def test_A7_a_restart_is_another_incarnation_on_the_same_port() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        client = await send(url, COMPLETIONS, prompt(10, 200, stream=True))
        await client.until(b'"text"')
        before = samples((await ask(url, "/metrics"))[1])
        await ask(url, "/fake/restart?down_s=0.05", {})
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.until(b"[DONE]")
        await until(lambda: engine.counters.started_s > before["process_start_time_seconds"])
        await asyncio.sleep(0.01)
        after = samples((await ask(url, "/metrics"))[1])
        assert after["process_start_time_seconds"] > before["process_start_time_seconds"]
        assert before["vllm:generation_tokens_total"] > 0 and after["vllm:generation_tokens_total"] == 0
        assert engine.held() == {}
        assert (await ask(url, COMPLETIONS, prompt(10, 5)))[0] == 200

    run(case, small())


def test_B3_a_hung_engine_answers_health_and_its_gauges_freeze() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        client = await send(url, COMPLETIONS, prompt(10, 100, stream=True), request_id="a")
        await client.until(b'"text"')
        await ask(url, "/fake/hang", {})
        await until(lambda: engine.model.next_s() is None)
        frozen = engine.gauges()
        late = await send(url, COMPLETIONS, prompt(10, 5), request_id="b")
        await until(lambda: "b" in engine.held())
        client.leave("half-close")
        await client.reader.read()
        await asyncio.sleep(0.05)
        assert engine.gauges() == frozen and frozen.running == 1
        assert (await ask(url, "/health"))[0] == 200
        assert set(engine.held()) == {"a", "b"}
        await ask(url, "/fake/resume", {})
        assert (await late.answer())[0] == 200
        assert engine.held() == {}

    run(case, small())


def test_E6_a_dead_core_ends_streams_with_an_error_and_the_port_follows() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        streamed = asyncio.create_task(ask(url, COMPLETIONS, prompt(10, 290, stream=True)))
        whole = asyncio.create_task(ask(url, COMPLETIONS, prompt(10, 290)))
        await until(lambda: engine.gauges().output_tokens > 4)
        await ask(url, "/fake/kill-core", {})
        text = (await streamed)[1]
        assert events(text)[-1]["error"]["type"] == "InternalServerError" and text.endswith("data: [DONE]\n\n")
        assert (await whole)[0] == 500
        assert (await ask(url, "/health"))[0] == 503
        await asyncio.wait_for(engine.dead.wait(), 5)
        with pytest.raises(ConnectionError):
            await ask(url, "/health")

    run(case, small())


def test_E6_a_process_told_to_end_at_once_leaves_its_connections_mute() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        client = await send(url, COMPLETIONS, prompt(10, 290, stream=True))
        await client.until(b'"text"')
        engine.vanish()
        with pytest.raises(ConnectionError):
            await ask(url, "/health")
        await client.reader.read(65536)
        client.leave("half-close")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.read(1), 0.1)

    run(case, small())


def test_E6_a_draining_engine_finishes_and_takes_nothing_new() -> None:
    async def case(engine: FakeEngine, url: str) -> None:
        running = asyncio.create_task(ask(url, COMPLETIONS, prompt(10, 50)))
        await until(lambda: engine.gauges().running == 1)
        engine.drain()
        status, text = await ask(url, COMPLETIONS, prompt(10, 5))
        assert status == 500 and "cannot schedule new futures after shutdown" in text
        assert (await ask(url, "/health"))[0] == 200
        assert (await running)[0] == 200

    run(case, small())


def test_G1_it_runs_as_a_process_of_its_own() -> None:
    async def case() -> None:
        flags = ("--preset", "tiny", "--max-model-len", "304", "--speed", "20", "--max-num-queued-reqs", "1")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headworks.testing.fake_engine", *flags, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().removeprefix("listening on ").strip()
        slow = asyncio.create_task(ask(url, COMPLETIONS, prompt(10, 200)))
        async with asyncio.timeout(10):
            while not json.loads((await ask(url, "/fake/state"))[1])["held"]:  # noqa: ASYNC110 the state is in another process
                await asyncio.sleep(0.01)
        assert (await ask(url, COMPLETIONS, prompt(10, 5)))[0] == 503
        assert (await slow)[0] == 200
        started_s = json.loads((await ask(url, "/fake/state"))[1])["started_s"]
        await ask(url, "/fake/restart", {})
        await asyncio.sleep(0.1)
        assert json.loads((await ask(url, "/fake/state"))[1])["started_s"] > started_s
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 10) == 0

    asyncio.run(case())


def test_G1_flags_become_settings() -> None:
    from headworks.testing.fake.command import parser, settings_of

    given = parser().parse_args(["--max-num-seqs", "16", "--max-num-queued-reqs", "24", "--speed", "10", "--ignore-abort"])
    settings = settings_of(given)
    assert isinstance(settings.engine, BatchingSettings)
    assert (settings.engine.running_max, settings.engine.queued_max, settings.engine.abort_lag_steps) == (16, 24, 2)
    assert (settings.speed, settings.ignore_abort) == (10.0, True)
