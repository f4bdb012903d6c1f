"""The real Envoy with headworks as its endpoint picker (H5): what comes of a request, and what both sides hold after it."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from app_scene import (
    ENVIRONMENT,
    PATIENT,
    SIZES,
    chat,
    completion,
    events,
    fake_engine,
    first_event,
    get,
    rest_of_stream,
    run,
    scene,
)
from envoy_scene import behind_envoy, envoy, needs_envoy

from headworks.testing.fake.asked import Refused
from headworks.testing.fake.http import HttpConnection, HttpRequest
from headworks.testing.fake_engine import FakeEngine

pytestmark = needs_envoy


class Seeing(FakeEngine):
    """Keeps the heads of what it is asked to generate."""

    def __init__(self) -> None:
        super().__init__(fake_engine().settings)
        self.seen: list[dict[str, str]] = []

    def handle(self, request: HttpRequest, connection: HttpConnection) -> None:
        if request.method == "POST":
            self.seen.append(request.headers)
        super().handle(request, connection)


TENANTS: dict[str, Any] = {"acme": {"keys": ["env:ACME_KEY"]}}
LONG = 1_500
"""Tokens of an answer that takes six seconds: whatever ends sooner was stopped."""
BRIEF = {"lease_s": 1}
PROVED_S = 15.0
"""An execution that the engine never showed is proved a lease later."""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_H5_whole_answers_and_streams_pass_and_are_settled_by_the_end_of_the_answer(loop: str) -> None:
    async def steps() -> None:
        async with behind_envoy(classes=PATIENT) as (s, envoy):
            whole = await envoy.ask(chat("Idempotency-Key: whole", tokens=6))
            assert whole.status == 200
            assert whole.json()["usage"]["completion_tokens"] == 6
            assert whole.fields["idempotency-key"] == "whole"
            streamed = await envoy.ask(chat("Idempotency-Key: streamed", tokens=7, stream=True))
            assert streamed.fields["content-type"].startswith("text/event-stream")
            assert len(events(streamed.body)) == 9, "role, seven tokens, the end"
            assert streamed.body.endswith(b"data: [DONE]\n\n")
            await s.settled()
            for name, tokens in (("whole", 6), ("streamed", 7)):
                outcome = s.outcome(name)
                assert (outcome["outcome"], outcome["evidence"]) == ("completed", "E1")
                assert (outcome["usage"]["output_tokens"], outcome["usage"]["exact"]) == (tokens, True)

    run(loop, steps())


def test_H5_the_engine_that_was_picked_gets_our_head_and_nothing_of_the_clients() -> None:
    async def steps() -> None:
        engines = [Seeing(), Seeing()]
        async with behind_envoy(*engines, classes=PATIENT, tenants=TENANTS) as (s, envoy):
            for _ in range(4):
                answer = await envoy.ask(chat("X-Client-Secret: 1", key="ACME_KEY", tokens=5))
                assert answer.status == 200
            ran = s.everything("outcome")
            for number, engine in enumerate(engines):
                mine = [outcome["execution"] for outcome in ran if outcome["replica"] == f"llama/{number}"]
                assert [headers["x-request-id"] for headers in engine.seen] == mine
            heads = [headers for engine in engines for headers in engine.seen]
            assert len(heads) == 4
            for headers in heads:
                assert "authorization" not in headers
                assert "x-client-secret" not in headers
                assert headers["content-type"] == "application/json"

    run("uvloop", steps())


def test_H5_refusals_arrive_with_our_body_and_headers_and_no_engine_is_asked() -> None:
    async def steps() -> None:
        limited = {"acme": {"keys": ["env:ACME_KEY"], "rate": {"requests_per_s": 0.1, "burst_requests": 1}}}
        async with behind_envoy(classes=PATIENT, tenants=limited) as (s, envoy):
            unknown = await envoy.ask(chat())
            assert (unknown.status, unknown.json()["error"]["code"]) == (401, "invalid_api_key")
            assert unknown.fields["www-authenticate"] == "Bearer"
            assert unknown.fields["x-should-retry"] == "false"
            assert (await envoy.ask(chat(key="ACME_KEY"))).status == 200
            refused = await envoy.ask(chat(key="ACME_KEY"))
            assert (refused.status, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            assert 1 <= int(refused.fields["retry-after"]) <= 10
            assert 0 < int(refused.fields["retry-after-ms"]) <= 10_000
            assert refused.fields["x-overload-reason"] == "rate_limit_exceeded"
            assert s.outcome(refused.json()["headworks"]["decision"])["outcome"] == "refused"
            wrong = await envoy.ask(chat(key="ACME_KEY", model="nobodys"))
            assert (wrong.status, wrong.json()["error"]["code"]) == (404, "model_not_found")
            assert s.engines[0].requests == 1

    run("uvloop", steps())


def test_H5_what_asks_for_no_engine_is_answered_as_on_the_public_port() -> None:
    async def steps() -> None:
        async with behind_envoy(tenants=TENANTS) as (s, envoy):
            key = f"Authorization: Bearer {ENVIRONMENT['ACME_KEY']}"
            listed = await envoy.ask(get("/v1/models", key))
            assert (listed.status, [model["id"] for model in listed.json()["data"]]) == (200, ["tiny"])
            nowhere = await envoy.ask(get("/nowhere", key))
            assert (nowhere.status, nowhere.json()["error"]["code"]) == (404, "not_found")
            assert s.engines[0].requests == 0

    run("uvloop", steps())


def test_H5_a_client_that_leaves_stays_charged_until_its_engine_has_let_go() -> None:
    async def steps() -> None:
        async with behind_envoy(classes=PATIENT) as (s, envoy):
            client = await envoy.connect()
            client.send(chat("Idempotency-Key: going", tokens=LONG, stream=True))
            assert (await first_event(client)).status == 200
            assert s.inside() == len(s.charged()) == 1
            assert re.search(r"^headworks_open_streams\{.*\} 1\.0$", (await s.admin("/metrics")).text, re.MULTILINE)
            client.close()
            await s.until(lambda: not s.charged())
            assert s.inside() == 0, "released while it was inside the engine"
            await s.until(lambda: any(record["kind"] == "outcome" for record in s.records("going")))
            outcome = s.outcome("going")
            assert (outcome["outcome"], outcome["evidence"]) == ("cancelled", "E3b")

    run("uvloop", steps())


def test_H5_a_client_that_leaves_while_it_waits_is_out_of_the_queue_at_once() -> None:
    async def steps() -> None:
        async with behind_envoy(classes=PATIENT, pool={"active_requests_max": 1}) as (s, envoy):
            first, second = await envoy.connect(), await envoy.connect()
            first.send(chat(tokens=LONG, stream=True))
            await first_event(first)
            second.send(chat(tokens=5))
            await s.until(lambda: s.app.snapshot()["pools"]["llama"]["queued_requests"] == 1)
            second.close()
            await s.until(lambda: s.app.snapshot()["pools"]["llama"]["queued_requests"] == 0)
            assert s.engines[0].requests == 1
            first.close()

    run("uvloop", steps())


def test_H5_what_is_cut_off_looks_broken_and_its_engine_is_told() -> None:
    async def steps() -> None:
        slow = {"interactive": {"queue": {"wait_s_max": 0.1}, "timeouts": {"first_byte_s": 0.5, "gateway_s": 1, "idle_s": 0.9}}}
        async with behind_envoy(classes=slow, ledger=BRIEF) as (s, envoy):
            client = await envoy.connect()
            client.send(chat(tokens=LONG, stream=True))
            assert (await first_event(client)).status == 200
            rest, is_whole = await rest_of_stream(client)
            assert not is_whole, "it looks whole"
            assert b"deadline_exceeded" in rest
            assert b"[DONE]" not in rest
            await s.until(lambda: s.inside() == 0)
            await s.until(lambda: not s.charged(), PROVED_S)

    run("uvloop", steps())


def test_H5_before_the_engine_has_begun_an_answer_of_ours_has_its_own_status() -> None:
    async def steps() -> None:
        slow = {"interactive": {"queue": {"wait_s_max": 0.1}, "timeouts": {"first_byte_s": 0.5, "gateway_s": 1, "idle_s": 0.9}}}
        async with behind_envoy(classes=slow, ledger=BRIEF) as (s, envoy):
            s.engines[0].hang()
            answer = await envoy.ask(chat(tokens=5))
            assert (answer.status, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
            s.engines[0].resume()
            await s.until(lambda: not s.charged(), PROVED_S)
            assert s.inside() == 0

    run("uvloop", steps())


def test_H5_an_answer_of_envoys_own_is_no_proof_that_anything_stopped() -> None:
    async def steps() -> None:
        async with behind_envoy(classes=PATIENT, ledger=BRIEF) as (s, envoy):
            s.engines[0].vanish()  # its port is closed: Envoy answers 503 in its place
            answer = await envoy.ask(chat("Idempotency-Key: nobody", tokens=5))
            assert (answer.status, answer.json()["error"]["code"]) == (502, "upstream_lost")
            assert len(s.charged()) == 1, "an answer that no engine gave has freed what an engine may hold"
            s.engines[0].restart()
            await s.until(lambda: not s.charged(), PROVED_S)
            assert s.outcome("nobody")["evidence"] in ("E3b", "E4")

    run("uvloop", steps())


@pytest.mark.parametrize("stream", [False, True])
def test_H5_a_repeated_key_shares_the_answer_of_the_first(stream: bool) -> None:
    async def steps() -> None:
        async with behind_envoy(classes=PATIENT) as (s, envoy):
            first, second = await envoy.connect(), await envoy.connect()
            asked = chat("Idempotency-Key: twice", tokens=60, stream=stream)
            first.send(asked)
            await s.until(lambda: s.inside() == 1)
            second.send(asked)
            answers = [await first.answer(), await second.answer(), await envoy.ask(asked)]
            assert [answer.status for answer in answers] == [200, 200, 200]
            assert len({answer.body for answer in answers}) == 1
            assert s.engines[0].requests == 1

    run("uvloop", steps())


def test_H5_a_long_body_arrives_whole_and_one_too_long_is_refused() -> None:
    async def steps() -> None:
        small = {"limits": {"body_bytes_max": 300_000}}
        sizes = replace(SIZES, kv_blocks=4_097, batch_tokens_max=16_384)
        engine = fake_engine(engine=sizes, context_tokens=60_000)
        async with behind_envoy(engine, classes=PATIENT, server=small) as (s, envoy):
            answer = await envoy.ask(completion(tokens=5, prompt="one two three " * 14_000))
            assert answer.status == 200, answer.body
            assert answer.json()["usage"]["prompt_tokens"] == 56_001
            refused = await envoy.ask(completion(tokens=5, prompt="one two three " * 30_000))
            assert refused.status == 413
            assert s.engines[0].requests == 1

    run("uvloop", steps())


def test_H5_many_at_once_leave_nothing_behind() -> None:
    async def steps() -> None:
        async with behind_envoy(fake_engine(), fake_engine(), classes=PATIENT) as (s, envoy):
            for _ in range(4):
                asked = [chat(tokens=20, stream=bool(number % 2)) for number in range(14)]
                answers = await asyncio.gather(*(envoy.ask(one) for one in asked))
                assert [answer.body for answer in answers if answer.status != 200] == []
                assert all(answer.body.endswith(b"[DONE]\n\n") or json.loads(answer.body) for answer in answers)
            await s.settled()
            assert s.app.grpc is not None
            assert not s.app.grpc.edge.exchanges
            await s.until(lambda: s.app.grpc is not None and not s.app.grpc.edge.connections)

    run("uvloop", steps())


class Failing(Seeing):
    """Answers 500 to whatever it is to generate."""

    def generate(self, *_: Any) -> None:
        raise Refused(500, "out of order", "InternalServerError")


def trusting(manager: dict[str, Any]) -> None:
    """Every client is internal: Envoy heeds what it says of retries."""
    ranges = [{"address_prefix": "0.0.0.0", "prefix_len": 0}]
    manager["internal_address_config"] = {"cidr_ranges": ranges}


def test_H5_no_client_has_envoy_send_a_request_again() -> None:
    async def steps() -> None:
        engine = Failing()
        async with scene(engine, server={"grpc": "127.0.0.1:0"}, ledger=BRIEF, classes=PATIENT) as s:
            assert s.app.grpc is not None
            async with envoy(s.app.grpc.number, trusting) as trusted:
                answer = await trusted.ask(chat("x-envoy-retry-on: 5xx", "x-envoy-max-retries: 3"))
                assert (answer.status, len(engine.seen)) == (502, 1), "a second execution is a second charge"
                await s.until(lambda: not s.charged(), PROVED_S)

    run("uvloop", steps())
