"""The whole gateway in front of an engine: what a client gets, and what is held while it gets it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from app_scene import LOOPS, PATIENT, chat, completion, events, fake_engine, first_event, get, rest_of_stream, run, scene

both_loops = pytest.mark.parametrize("loop", LOOPS)
both_routes = pytest.mark.parametrize("ask", [chat, completion], ids=["chat", "completions"])


@both_loops
@pytest.mark.parametrize("usage_asked", [True, False], ids=["usage", "no-usage"])
@both_routes
def test_K21_streamed_usage_is_the_engines_and_shown_only_if_asked(ask: Any, usage_asked: bool, loop: str) -> None:
    async def steps() -> None:
        async with scene() as s:
            more = {"stream_options": {"include_usage": True}} if usage_asked else {}
            answer = await s.ask(ask("Idempotency-Key: k1", stream=True, tokens=12, **more))
            assert answer.status == 200
            assert answer.fields["content-type"].startswith("text/event-stream")
            got = events(answer.body)
            assert got[-1] == "[DONE]"
            assert [choice["finish_reason"] for event in got[:-1] for choice in event["choices"]][-1] == "length"
            with_usage = [event for event in got[:-1] if event.get("usage")]
            assert len(with_usage) == usage_asked
            await s.settled()
            outcome = s.outcome("k1")
            assert outcome["outcome"] == "completed"
            assert outcome["evidence"] == "E1"
            usage = outcome["usage"]
            assert (usage["output_tokens"], usage["end"], usage["exact"]) == (12, "length", True)
            if usage_asked:
                assert with_usage[0]["usage"]["prompt_tokens"] == usage["prompt_tokens"]

    run(loop, steps())


@both_loops
@both_routes
def test_E1_a_whole_answer_is_the_engines_with_our_headers(ask: Any, loop: str) -> None:
    async def steps() -> None:
        async with scene() as s:
            answer = await s.ask(ask("Idempotency-Key: k1", "X-Request-Id: r1", tokens=5))
            assert answer.status == 200
            body = answer.json()
            assert body["choices"][0]["finish_reason"] == "length"
            assert body["usage"]["completion_tokens"] == 5
            assert answer.fields["content-type"] == "application/json"
            assert answer.fields["x-request-id"] == "r1"
            assert answer.fields["idempotency-key"] == "k1"
            assert float(answer.fields["queue-wait"]) < 0.5
            await s.settled()
            usage = s.outcome("k1")["usage"]
            assert (usage["output_tokens"], usage["prompt_tokens"]) == (5, body["usage"]["prompt_tokens"])

    run(loop, steps())


def test_E1_a_natural_end_frees_all_and_records_what_was_used() -> None:
    async def steps() -> None:
        async with scene(fake_engine(natural_tokens=6)) as s:
            answer = await s.ask(chat("Idempotency-Key: k1", tokens=400))
            assert answer.json()["choices"][0]["finish_reason"] == "stop"
            await s.settled()
            outcome = s.outcome("k1")
            assert outcome["usage"]["output_tokens"] == 6
            assert (outcome["work"]["output_tokens"], outcome["work"]["output_tokens_max"]) == (256, 400)

    run("uvloop", steps())


def test_K27_samples_are_charged_each() -> None:
    async def steps() -> None:
        async with scene(classes=PATIENT) as s:
            client = await s.connect()
            client.send(chat(tokens=100, n=3, stream=True))
            await first_event(client)
            (record,) = s.charged()
            (charge,) = [
                charge for charge in record.charges if charge.scope == "tenant:anonymous" and charge.unit == "requests"
            ]
            assert charge.amount == 3
            (tokens,) = [charge for charge in record.charges if charge.scope == "tenant:anonymous" and charge.unit == "tokens"]
            assert tokens.amount >= 300
            body, ended = await rest_of_stream(client)
            assert ended
            finished = [
                choice["index"] for event in events(body)[:-1] for choice in event["choices"] if choice["finish_reason"]
            ]
            assert sorted(finished) == [0, 1, 2]
            client.close()

    run("uvloop", steps())


def test_E1_one_connection_serves_one_after_the_other() -> None:
    async def steps() -> None:
        async with scene() as s:
            client = await s.connect()
            for payload in (chat(), chat(stream=True), get("/v1/models"), completion()):
                client.send(payload)
                assert (await client.answer()).status == 200
            client.close()

    run("uvloop", steps())


def test_E1_models_are_the_engines_or_what_the_tenant_may_use() -> None:
    async def steps() -> None:
        tenants = {"acme": {"keys": ["env:ACME_KEY"]}, "batchco": {"keys": ["env:BATCHCO_KEY"], "models": ["other"]}}
        async with scene(pool={"models": ["tiny", "other"]}, tenants=tenants) as s:
            for key, names in (("acme-key-of-the-test", ["tiny", "other"]), ("batchco-key-of-the-test", ["other"])):
                answer = await s.ask(get("/v1/models", f"Authorization: Bearer {key}"))
                assert answer.status == 200
                assert [row["id"] for row in answer.json()["data"]] == names
            head = await s.connect()
            head.send(get("/v1/models", "Authorization: Bearer acme-key-of-the-test", method="HEAD"))
            assert (await head.answer(head_only=True)).status == 200
            head.close()

    run("uvloop", steps())


@pytest.mark.parametrize("given", ["", "x" * 129, "with space", 'quote"', "ümlaut"])
def test_A6_names_that_are_not_fit_to_be_repeated_are_replaced(given: str) -> None:
    async def steps() -> None:
        async with scene() as s:
            payload = chat("Idempotency-Key: PLACE", "X-Request-Id: PLACE").replace(b"PLACE", given.encode())
            answer = await s.ask(payload)
            assert answer.status == 200
            assert answer.fields["x-request-id"].startswith("req_")
            assert answer.fields["idempotency-key"] == answer.fields["x-request-id"]

    run("uvloop", steps())


def test_H3_the_engine_never_sees_a_name_the_client_chose() -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, classes=PATIENT) as s:
            client = await s.connect()
            client.send(chat("X-Request-Id: victim", "Idempotency-Key: victim", stream=True, tokens=100))
            await first_event(client)
            (name,) = engine.held()
            assert name != "victim"
            assert name == s.charged()[0].execution
            assert len(bytes.fromhex(name)) == 16
            await rest_of_stream(client)
            client.close()

    run("uvloop", steps())


def test_K43_the_class_is_the_tenants_unless_it_may_ask_for_another() -> None:
    async def steps() -> None:
        tenants = {"acme": {"keys": ["env:ACME_KEY"], "classes": ["interactive", "batch"], "class": "interactive"}}
        async with scene(tenants=tenants) as s:
            for header, service_class in ((), "interactive"), (("Headworks-Class: batch",), "batch"):
                answer = await s.ask(chat(*header, "Idempotency-Key: " + service_class, key="ACME_KEY"))
                assert answer.status == 200
                assert s.outcome(service_class)["service_class"] == service_class
            answer = await s.ask(chat("Headworks-Class: bulk", key="ACME_KEY"))
            assert (answer.status, answer.code) == (403, "forbidden")

    run("uvloop", steps())


def test_K24_what_is_left_is_what_the_ledger_says() -> None:
    async def steps() -> None:
        tenants = {"acme": {"keys": ["env:ACME_KEY"], "active_tokens_max": 3000, "active_requests_max": 5}}
        async with scene(tenants=tenants, classes=PATIENT) as s:
            client = await s.connect()
            client.send(chat(key="ACME_KEY", stream=True, tokens=150))
            head = await first_event(client)
            held = s.held("tenant:acme")
            assert held >= 150
            assert head.fields["x-ratelimit-limit-tokens"] == "3000"
            assert head.fields["x-ratelimit-remaining-tokens"] == str(3000 - held)
            assert head.fields["x-ratelimit-limit-requests"] == "5"
            assert head.fields["x-ratelimit-remaining-requests"] == "4"
            await rest_of_stream(client)
            client.close()

    run("uvloop", steps())


def test_F12_admin_port_shows_the_gateway_as_it_is() -> None:
    async def steps() -> None:
        async with scene(server={"admin_key": "env:ADMIN"}, classes=PATIENT) as s:
            key = {"Authorization": "Bearer admin-key-of-the-test"}
            assert (await s.admin("/readyz")).json() == {"ready": True, "obstacles": []}
            assert (await s.admin("/admin/ledger")).status_code == 401
            client = await s.connect()
            client.send(chat("Idempotency-Key: k1", stream=True, tokens=150))
            await first_event(client)
            ledger = (await s.admin("/admin/ledger", **key)).json()
            assert ledger["charged"] == 1
            assert ledger["tokens"]["llama"] >= 150
            assert ledger["records"][0]["state"] in ("RESERVED", "RUNNING"), "the first byte is told with the next batch"
            assert (await s.admin("/admin/ledger/audit", **key)).json() == {"holds": True, "differences": []}
            await rest_of_stream(client)
            client.close()
            await s.settled()
            story = (await s.admin("/admin/explain/k1", **key)).json()["records"]
            assert [line["kind"] for line in story] == ["decision", "outcome"]
            snapshot = (await s.admin("/admin/snapshot", **key)).json()
            assert snapshot["pools"]["llama"]["replicas"]["llama/0"]["state"] == "ready"

    run("uvloop", steps())


MESSAGE = {"role": "user", "content": "x"}


def test_E1_a_body_of_json_that_is_none_of_ours_is_refused_before_any_engine() -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine) as s:
            before = engine.requests
            for body, code in (
                (b"{", "invalid_request"),
                (b"[]", "invalid_request"),
                (
                    json.dumps({"model": "tiny", "messages": [MESSAGE], "api_base": "http://10.0.0.1"}).encode(),
                    "field_not_allowed",
                ),
                (json.dumps({"model": "tiny", "messages": [MESSAGE], "n": 0}).encode(), "invalid_request"),
            ):
                answer = await s.ask(chat().partition(b"Content-Length")[0] + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                assert (answer.status, answer.code) == (400, code)
                assert answer.fields["x-should-retry"] == "false"
            assert engine.requests == before

    run("uvloop", steps())
