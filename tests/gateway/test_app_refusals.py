"""Refusals by the whole gateway: the code, the numbers, and every form of the hint, as design section 9 has them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from app_scene import ENVIRONMENT, PATIENT, Scene, call, chat, fake_engine, first_event, get, rest_of_stream, run, scene
from http_port import Answer, Client

ONE_AT_A_TIME = {"active_requests_max": 1}


async def occupy(s: Scene, tokens: int = 100, key: str | None = None) -> Client:
    """One stream that runs."""
    client = await s.connect()
    client.send(chat(key=key, stream=True, tokens=tokens))
    assert (await first_event(client)).status == 200
    return client


async def let_end(*clients: Client) -> None:
    for client in clients:
        assert (await rest_of_stream(client))[1]
        client.close()


def holds_together(answer: Answer, code: str) -> None:
    """What every ticketed refusal says, in all its forms."""
    assert (answer.status, answer.code) == (429, code)
    assert answer.fields["x-overload-reason"] == code
    slot_ms = int(answer.fields["retry-after-ms"])
    assert int(answer.fields["retry-after"]) == min(60, max(1, -(-slot_ms // 1000)))
    reset_s = int(answer.fields["x-ratelimit-reset"]) - time.time()
    assert slot_ms / 1000 - 1.5 <= reset_s <= slot_ms / 1000 + 1.5
    assert "x-should-retry" not in answer.fields
    body = answer.json()
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["headworks"].keys() == {"decision", "verdicts", "forecast", "policy_version"}
    assert float(answer.fields["queue-wait"]) >= 0
    assert answer.fields["x-request-id"]


def test_A2_a_full_tenant_is_told_what_it_would_hold_and_what_it_may() -> None:
    async def steps() -> None:
        tenants = {"acme": {"keys": ["env:ACME_KEY"], "active_tokens_max": 200}, "batchco": {"keys": ["env:BATCHCO_KEY"]}}
        classes = {"interactive": {"on_tenant_full": "refuse"}}
        engine = fake_engine()
        async with scene(engine, tenants=tenants, classes=classes) as s:
            running = await occupy(s, 120, "ACME_KEY")
            held = s.held("tenant:acme")
            requests = engine.requests
            answer = await s.ask(chat("X-Request-Id: r2", key="ACME_KEY", tokens=120))
            holds_together(answer, "tenant_capacity_exceeded")
            assert answer.json()["error"]["message"] == f"Your tenant would hold {2 * held} tokens of 200."
            assert answer.json()["error"]["type"] == "tokens"
            verdicts = {verdict["check"]: verdict for verdict in answer.json()["headworks"]["verdicts"]}
            tenant = verdicts["tenant"]
            assert (tenant["scope"], tenant["value"], tenant["limit"]) == ("tenant:acme", 2 * held, 200)
            assert tenant["passed"] is False
            assert verdicts["memory"]["passed"] is True, "the pool had room, and the record says so"
            assert answer.fields["x-ratelimit-remaining-tokens"] == str(200 - held)
            assert answer.fields["x-request-id"] == "r2"
            assert engine.requests == requests, "nothing was sent"
            assert (await s.ask(chat(key="BATCHCO_KEY"))).status == 200, "the pool is not full"
            await let_end(running)
            await s.settled()

    run("uvloop", steps())


def test_B6_who_waited_too_long_is_told_so_and_never_sent() -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, pool=ONE_AT_A_TIME, classes={"interactive": {"queue": {"wait_s_max": 0.15}}}) as s:
            running = await occupy(s, 150)
            requests = engine.requests
            asked_s = time.monotonic()
            answer = await s.ask(chat("Idempotency-Key: late"))
            assert 0.14 <= time.monotonic() - asked_s <= 0.6
            holds_together(answer, "queue_timeout")
            assert "the limit was 0.15 s" in answer.json()["error"]["message"]
            assert engine.requests == requests
            assert s.outcome("late")["outcome"] == "expired"
            await let_end(running)

    run("uvloop", steps())


def test_B6_a_full_queue_refuses_at_once() -> None:
    async def steps() -> None:
        classes = {"interactive": {"slo": {"ttft_s": 20}, "queue": {"wait_s_max": 20, "requests_max": 2}}}
        async with scene(pool=ONE_AT_A_TIME, classes=classes) as s:
            running = await occupy(s, 100)
            waiting = [asyncio.ensure_future(s.ask(chat(tokens=4))) for _ in range(2)]
            await s.until(lambda: s.app.snapshot()["pools"]["llama"]["queued_requests"] == 2)
            answer = await s.ask(chat(tokens=4))
            holds_together(answer, "queue_full")
            assert answer.json()["error"]["message"] == "The queue would hold 3 queued requests of 2."
            await let_end(running)
            assert [(await answer).status for answer in waiting] == [200, 200]

    run("uvloop", steps())


def test_B2_who_would_start_too_late_is_refused_with_the_forecast() -> None:
    async def steps() -> None:
        classes = {"interactive": {"slo": {"ttft_s": 1.0}, "queue": {"wait_s_max": 5}}}
        async with scene(pool=ONE_AT_A_TIME, classes=classes) as s:
            warm = [asyncio.ensure_future(s.ask(chat(tokens=30))) for _ in range(6)]  # four waits measure the drain
            assert [(await one).status for one in warm] == [200] * 6
            offered = [asyncio.ensure_future(s.ask(chat(tokens=30))) for _ in range(20)]
            answers = [await one for one in offered]
            refused = [answer for answer in answers if answer.status == 429 and answer.code == "queue_delay_exceeded"]
            assert len(refused) >= 6, [(answer.status, answer.body[:80]) for answer in answers]
            for answer in refused:
                holds_together(answer, "queue_delay_exceeded")
                forecast = answer.json()["headworks"]["forecast"]
                assert forecast["basis"] == "drain"
                assert forecast["wait_most_s"] + forecast["prefill_s"] > 1.0
            slots_ms = [int(answer.fields["retry-after-ms"]) for answer in refused]
            assert slots_ms == sorted(slots_ms) and len(set(slots_ms)) == len(slots_ms), "each one gets a slot of its own"

    run("uvloop", steps())


@pytest.mark.parametrize(
    ("payload", "status", "code"),
    [
        (chat(), 401, "invalid_api_key"),
        (chat("Authorization: Bearer wrong"), 401, "invalid_api_key"),
        (chat("Authorization: Basic YTpi"), 401, "invalid_api_key"),
        (chat("Headworks-Class: vip", key="ACME_KEY"), 403, "forbidden"),
        (chat(key="ACME_KEY", model="secret"), 404, "model_not_found"),
        (chat(key="ACME_KEY", model="nowhere"), 404, "model_not_found"),
        (call("/v1/audio/speech", key="ACME_KEY", body={}), 404, "not_found"),
        (get("/v1/chat/completions", f"Authorization: Bearer {ENVIRONMENT['ACME_KEY']}"), 405, "invalid_request"),
        (chat("Headworks-Deadline: soon", key="ACME_KEY"), 400, "invalid_request"),
        (chat("Headworks-Deadline: 0", key="ACME_KEY"), 400, "invalid_request"),
        (chat("x-stainless-read-timeout: x", key="ACME_KEY"), 400, "invalid_request"),
        (call("/v1/chat/completions", key="ACME_KEY", body=b"x" * 5000), 413, "body_too_large"),
        (chat(key="ACME_KEY", tokens=2000, ignore_eos=True), 400, "request_exceeds_capacity"),
        (chat(key="ACME_KEY", priority=1), 400, "field_not_allowed"),
    ],
)
def test_E4_what_no_retry_can_cure_says_so(payload: bytes, status: int, code: str) -> None:
    async def steps() -> None:
        engine = fake_engine()
        tenants = {"acme": {"keys": ["env:ACME_KEY"], "models": ["tiny"], "active_tokens_max": 1500}}
        models = {"models": ["tiny", "secret"]}
        async with scene(engine, tenants=tenants, pool=models, server={"limits": {"body_bytes_max": 4096}}) as s:
            answer = await s.ask(payload)
            assert (answer.status, answer.code) == (status, code)
            assert answer.fields["x-should-retry"] == "false"
            assert "retry-after" not in answer.fields and "retry-after-ms" not in answer.fields
            assert answer.json()["error"]["message"]
            if status == 401:
                assert answer.fields["www-authenticate"] == "Bearer"
            if status == 405:
                assert answer.fields["allow"] == "POST, OPTIONS"
            assert engine.requests == 0

    run("uvloop", steps())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_E3_the_clients_deadline_ends_what_runs(stream: bool) -> None:
    async def steps() -> None:
        async with scene() as s:
            client = await s.connect()
            client.send(chat("Headworks-Deadline: 0.3", "Idempotency-Key: k1", tokens=1500, stream=stream))
            if stream:
                assert (await first_event(client)).status == 200
                body, ended = await rest_of_stream(client)
                assert not ended, "a cut stream must not end as if it were whole"
                assert b'"code":"deadline_exceeded"' in body.split(b"\n\n")[-2]
            else:
                answer = await client.answer()
                assert (answer.status, answer.code) == (504, "deadline_exceeded")
                assert answer.fields["x-should-retry"] == "false"
            client.close()
            await s.settled()
            outcome = s.outcome("k1")
            assert (outcome["outcome"], outcome["reason"], outcome["evidence"]) == ("failed", "deadline_exceeded", "E3a")

    run("uvloop", steps())


def test_E3_the_clients_deadline_bounds_the_wait() -> None:
    async def steps() -> None:
        async with scene(pool=ONE_AT_A_TIME, classes=PATIENT) as s:
            running = await occupy(s, 150)
            asked_s = time.monotonic()
            answer = await s.ask(chat("Headworks-Deadline: 0.1"))
            assert time.monotonic() - asked_s < 0.5
            holds_together(answer, "queue_timeout")
            await let_end(running)

    run("uvloop", steps())


def test_E4_no_engine_yet_is_503_and_soon() -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, settle=False) as s:
            engine.die()
            answer = await s.ask(chat(model="tiny"))
            assert answer.status in (404, 503), "an engine that never said what it serves has no models"
        async with scene(engine, pool={"models": ["tiny"]}, settle=False) as s:
            engine.die()
            await s.until(lambda: s.app.obstacles() != [])
            answer = await s.ask(chat())
            if answer.status != 503:  # it had been seen alive just before
                answer = await refused_later(s)
            assert (answer.status, answer.code) == (503, "no_replica")
            assert answer.fields["x-overload-reason"] == "no_replica"
            assert answer.fields["retry-after"] == "1"

    run("uvloop", steps())


async def refused_later(s: Scene) -> Any:
    for _ in range(50):
        answer = await s.ask(chat())
        if answer.status == 503:
            return answer
        await asyncio.sleep(0.05)
    raise AssertionError("it was never refused")


def test_K50_one_connection_too_many_is_told_so_in_the_same_words() -> None:
    async def steps() -> None:
        async with scene(server={"limits": {"connections_max": 1}}) as s:
            first = await s.connect()
            first.send(get("/v1/models"))
            assert (await first.answer()).status == 200
            surplus = await s.connect()  # it is told before it has asked for anything
            answer = await surplus.answer()
            assert (answer.status, answer.code) == (503, "gateway_overloaded")
            assert answer.fields["x-overload-reason"] == "gateway_overloaded"
            assert (answer.fields["retry-after"], answer.fields["retry-after-ms"]) == ("1", "1000")
            assert answer.fields["connection"] == "close"
            surplus.close()
            first.close()

    run("uvloop", steps())
