"""A client's key, repeated: one execution, equal answers, and an answer for whatever cannot be had (A6, B15, K11, K25)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from app_scene import LOOPS, PATIENT, Scene, chat, completion, events, fake_engine, first_event, rest_of_stream, run, scene
from http_port import Answer, Client

from headworks.gateway.story import story

both_loops = pytest.mark.parametrize("loop", LOOPS)
streamed_or_not = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
both_routes = pytest.mark.parametrize("ask", [chat, completion], ids=["chat", "completions"])
KEY = "Idempotency-Key: order-7"
RETRIES = 100
TENANTS = {"acme": {"keys": ["env:ACME_KEY"]}, "batchco": {"keys": ["env:BATCHCO_KEY"]}}
SDK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "one two three"}]}


def counted(s: Scene, name: str = "order-7") -> dict[str, int]:
    """How often arrivals of a key ended in each way."""
    found: dict[str, int] = {}
    for record in s.records(name):
        if record["kind"] == "outcome":
            found[record["outcome"]] = found.get(record["outcome"], 0) + 1
    return found


@asynccontextmanager
async def streaming(s: Scene, *fields: str, tokens: int = 200, **more: Any) -> AsyncIterator[tuple[Client, Answer]]:
    """A client that has had the first event of its stream."""
    client = await s.connect()
    client.send(chat(*fields, stream=True, tokens=tokens, **more))
    yield client, await first_event(client)
    client.close()


@both_loops
@both_routes
@streamed_or_not
def test_A6_a_hundred_concurrent_retries_are_one_execution_and_a_hundred_equal_answers(
    stream: bool, ask: Any, loop: str
) -> None:
    async def steps() -> None:
        async with scene() as s:
            payload = ask(KEY, tokens=30, stream=stream)
            answers = await asyncio.gather(*(s.ask(payload) for _ in range(RETRIES)))
            assert {answer.status for answer in answers} == {200}
            assert len({answer.body for answer in answers}) == 1
            if stream:
                assert events(answers[0].body)[-1] == "[DONE]"
            else:
                assert answers[0].json()["usage"]["completion_tokens"] == 30
            assert {answer.fields["idempotency-key"] for answer in answers} == {"order-7"}
            assert len({answer.fields["x-request-id"] for answer in answers}) == RETRIES
            assert s.engines[0].requests == 1
            await s.settled()
            assert counted(s) == {"completed": 1, "replayed": RETRIES - 1}
            assert len([one for one in s.records("order-7") if one["kind"] == "outcome" and one["usage"]]) == 1, "billed once"

    run(loop, steps())


@both_loops
def test_A6_whoever_joins_a_stream_late_gets_all_of_it(loop: str) -> None:
    async def steps() -> None:
        async with scene() as s, streaming(s, KEY) as (first, begun):
            await s.until(lambda: s.app.answers.total_bytes > 5_000)
            late = [asyncio.ensure_future(s.ask(chat(KEY, stream=True, tokens=200))) for _ in range(3)]
            rest, clean = await rest_of_stream(first)
            assert clean
            again = await s.ask(chat(KEY, stream=True, tokens=200))
            bodies = {begun.body + rest, again.body, *[(await one).body for one in late]}
            assert len(bodies) == 1
            assert events(again.body)[-1] == "[DONE]"
            assert s.engines[0].requests == 1

    run(loop, steps())


@both_loops
def test_A6_a_completed_answer_is_given_again_byte_for_byte(loop: str) -> None:
    async def steps() -> None:
        async with scene() as s:
            for name, stream in (("a", False), ("b", True)):
                answers = [await s.ask(chat(f"Idempotency-Key: {name}", stream=stream)) for _ in range(3)]
                assert len({answer.body for answer in answers}) == 1
                assert len({answer.fields["content-type"] for answer in answers}) == 1
            assert s.engines[0].requests == 2

    run(loop, steps())


@both_loops
def test_A6_only_the_last_client_that_leaves_stops_the_engine(loop: str) -> None:
    async def steps() -> None:
        async with scene() as s, streaming(s, KEY, tokens=1500) as (first, _):
            async with streaming(s, KEY, tokens=1500) as (second, begun):
                first.close()
                await s.until(lambda: len(s.app.proxy._runner._calls) == 1)
                more = await asyncio.wait_for(second.reader.readexactly(2_000), 5)
                assert begun.status == 200 and len(more) == 2_000
                assert s.inside() == 1
            await s.until(lambda: s.inside() == 0, 2.0)
            await s.settled()
            assert counted(s) == {"cancelled": 2}

    run(loop, steps())


def test_A6_other_parameters_are_422_while_it_runs_and_after() -> None:
    async def steps() -> None:
        async with scene() as s, streaming(s, KEY, tokens=60) as (first, _):
            for still_running in (True, False):
                for other in (chat(KEY, tokens=61, stream=True), chat(KEY, tokens=60), completion(KEY, tokens=60, stream=True)):
                    refused = await s.ask(other)
                    assert (refused.status, refused.code) == (422, "idempotency_key_reused")
                    assert refused.fields["x-should-retry"] == "false"
                    assert "retry-after-ms" not in refused.fields
                if still_running:
                    assert (await rest_of_stream(first))[1]
            assert s.engines[0].requests == 1
            same = await s.ask(chat(KEY, tokens=60, stream=True, user="somebody else", metadata={"a": "b"}))
            assert same.status == 200, "labels are no part of it"

    run("uvloop", steps())


def test_A6_what_was_not_kept_is_409_while_it_runs_and_after_with_what_was_used() -> None:
    async def steps() -> None:
        async with scene(ledger={"url": "memory:", "replay_bytes_max": 500}) as s, streaming(s, KEY, tokens=60) as (first, _):
            await s.until(lambda: s.app.answers.find(s.charged()[0].execution).kept_bytes == 0)  # type: ignore[union-attr]
            running = await s.ask(chat(KEY, tokens=60, stream=True))
            assert (running.status, running.code) == (409, "idempotency_in_progress")
            assert int(running.fields["retry-after-ms"]) == 5000, "no stop has been measured yet"
            assert "x-should-retry" not in running.fields
            assert (await rest_of_stream(first))[1]
            await s.settled()
            gone = await s.ask(chat(KEY, tokens=60, stream=True))
            assert (gone.status, gone.code) == (409, "idempotency_result_gone")
            assert gone.fields["x-should-retry"] == "false"
            assert "retry-after-ms" not in gone.fields
            assert gone.json()["headworks"]["usage"]["output_tokens"] == 60
            assert s.engines[0].requests == 1
            assert counted(s) == {"completed": 1, "refused": 2}
            assert s.app.answers.total_bytes == 0

    run("uvloop", steps())


def test_K11_a_retry_while_the_first_is_being_stopped_is_409_and_then_runs_anew() -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine) as s:
            async with streaming(s, KEY, tokens=1500) as (first, _):
                engine.hang()
                first.close()
                await s.until(lambda: [record.state for record in s.charged()] == ["CANCELLING"])
                refused = await s.ask(chat(KEY, stream=True, tokens=1500))
                assert (refused.status, refused.code) == (409, "idempotency_in_progress")
                assert engine.requests == 1
            engine.resume()
            await s.until(lambda: not s.charged())
            async with streaming(s, KEY, tokens=1500) as (_, begun):
                assert begun.status == 200
                assert engine.requests == 2

    run("uvloop", steps())


def test_A6_a_failed_key_runs_again_and_a_refused_one_is_free() -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, tenants={"acme": {"keys": ["env:ACME_KEY"], "active_tokens_max": 300}}) as s:
            engine.fault("break", after_tokens=5)
            async with streaming(s, KEY, key="ACME_KEY", tokens=50) as (first, _):
                assert not (await rest_of_stream(first))[1]
            await s.until(lambda: not s.charged())
            again = await s.ask(chat(KEY, key="ACME_KEY", tokens=50, stream=True))
            assert (again.status, events(again.body)[-1]) == (200, "[DONE]")
            assert engine.requests == 2
            refused = await s.ask(chat("Idempotency-Key: large", key="ACME_KEY", tokens=1000))
            assert refused.code == "request_exceeds_capacity"
            assert (await s.ask(chat("Idempotency-Key: large", key="ACME_KEY", tokens=10))).status == 200

    run("uvloop", steps())


def test_A6_keys_of_two_tenants_never_meet() -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS) as s:
            mine = await s.ask(chat(KEY, key="ACME_KEY", tokens=8))
            theirs = await s.ask(chat(KEY, key="BATCHCO_KEY", tokens=9))
            assert (mine.json()["usage"]["completion_tokens"], theirs.json()["usage"]["completion_tokens"]) == (8, 9)
            assert s.engines[0].requests == 2
            assert (await s.ask(chat(KEY, key="BATCHCO_KEY", tokens=8))).code == "idempotency_key_reused"

    run("uvloop", steps())


def test_A6_a_busy_engine_keeps_the_key_for_all_who_wait() -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, classes=PATIENT) as s:
            engine.faults.busy_times = 2
            answers = await asyncio.gather(*(s.ask(chat(KEY, tokens=10)) for _ in range(10)))
            assert {answer.status for answer in answers} == {200}
            assert len({answer.body for answer in answers}) == 1
            assert counted(s) == {"completed": 1, "replayed": 9}

    run("uvloop", steps())


def test_I34_all_who_share_a_broken_answer_are_told() -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine) as s:
            engine.fault("break", after_tokens=20)
            async with streaming(s, KEY) as (first, _), streaming(s, KEY) as (second, _):
                for client in (first, second):
                    rest, clean = await rest_of_stream(client)
                    assert b"upstream_lost" in rest and not clean
            await s.until(lambda: counted(s) == {"failed": 2})
            assert s.app.answers.total_bytes == 0

    run("uvloop", steps())


def test_A6_answers_are_kept_in_bounded_memory_the_oldest_going_first() -> None:
    async def steps() -> None:
        async with scene(ledger={"url": "memory:", "replay_total_bytes_max": 6_000}) as s:
            for number in range(6):
                assert (await s.ask(chat(f"Idempotency-Key: k{number}"))).status == 200
                assert s.app.answers.total_bytes <= 6_000
            codes = [(await s.ask(chat(f"Idempotency-Key: k{number}"))).status for number in range(6)]
            assert codes[0] == 409 and codes[-1] == 200
            assert codes == sorted(codes, reverse=True)
            assert s.engines[0].requests == 6

    run("uvloop", steps())


def test_F2_explain_tells_who_shared_whose_answer() -> None:
    async def steps() -> None:
        async with scene() as s:
            async with streaming(s, KEY, tokens=40) as (first, _), streaming(s, KEY, tokens=40) as (second, _):
                assert (await rest_of_stream(first))[1] and (await rest_of_stream(second))[1]
            await s.ask(chat(KEY, tokens=40, stream=True))
            await s.ask(chat(KEY, tokens=41, stream=True))
            assert s.app.log is not None
            told = "\n".join(story(s.app.log.find("order-7")))
            execution = s.records("order-7")[-1]["execution"] or next(
                one["execution"] for one in s.records("order-7") if one.get("execution")
            )
            assert "Its key has an execution here: it shares that answer, and nothing is charged for it." in told
            assert "Its key has completed: it gets the kept answer again, and nothing runs for it." in told
            assert told.count(f"It was given the answer of the execution {execution}.") == 2
            assert "this Idempotency-Key was used with other parameters (idempotency_key_reused)" in told
            assert told.count("asked for nothing of its own: somebody had its key already") == 3

    run("uvloop", steps())


# the stock client


def client(s: Scene, **more: Any) -> openai.AsyncOpenAI:
    host, port = s.app.address[:2]
    return openai.AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="acme-key-of-the-test", **more)


def named(key: str) -> dict[str, Any]:
    return {"extra_headers": {"Idempotency-Key": key}}


def test_K51_the_stock_sdk_asks_once_where_no_retry_helps() -> None:
    async def steps() -> None:
        async with scene(ledger={"url": "memory:", "replay_bytes_max": 0}) as s, client(s) as sdk:
            await sdk.chat.completions.create(**SDK, max_tokens=5, **named("a"))
            before = s.app.server.counters.requests
            with pytest.raises(openai.UnprocessableEntityError) as reused:
                await sdk.chat.completions.create(**SDK, max_tokens=6, **named("a"))
            assert reused.value.code == "idempotency_key_reused"
            with pytest.raises(openai.ConflictError) as gone:
                await sdk.chat.completions.create(**SDK, max_tokens=5, **named("a"))
            assert gone.value.code == "idempotency_result_gone"
            assert s.app.server.counters.requests - before == 2
            assert s.engines[0].requests == 1

    run("uvloop", steps())


def test_K51_the_stock_sdk_does_not_loop_on_a_key_that_goes_on_running() -> None:
    async def steps() -> None:
        tight = {"url": "memory:", "replay_bytes_max": 0}
        async with scene(ledger=tight) as s, streaming(s, "Idempotency-Key: a", tokens=1500), client(s) as sdk:
            s.app.gate._desk.pools["llama"].proof_s.add(0.02)
            before, asked_s = s.app.server.counters.requests, time.monotonic()
            with pytest.raises(openai.ConflictError) as running:
                await sdk.chat.completions.create(**SDK, max_tokens=1500, stream=True, **named("a"))
            assert running.value.code == "idempotency_in_progress"
            assert running.value.response.headers["retry-after-ms"] == "20"
            assert s.app.server.counters.requests - before == 3, "the first and its two retries"
            assert time.monotonic() - asked_s < 1.0, "each when it was told to come back, not by its own back-off"
            assert s.engines[0].requests == 1

    run("uvloop", steps())


def test_A6_a_retry_after_the_clients_own_time_out_gets_an_answer() -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with (
            scene(engine, classes=PATIENT) as s,
            streaming(s, tokens=1500),  # so that the engine's clock goes on
            client(s, timeout=0.3) as sdk,
        ):
            engine.hang()
            # Told of the time-out, the gateway would answer before it: this is a client that keeps it to itself.
            silent = {"Idempotency-Key": "a", "x-stainless-read-timeout": openai.Omit()}
            asking = asyncio.ensure_future(sdk.chat.completions.create(**SDK, max_tokens=5, extra_headers=silent))
            await s.until(lambda: any(record.state == "CANCELLING" for record in s.charged()))
            engine.resume()
            answer = await asking
            assert answer.usage is not None and answer.usage.completion_tokens == 5
            assert (counted(s, "a")["cancelled"], counted(s, "a")["completed"]) == (1, 1)

    run("uvloop", steps())
