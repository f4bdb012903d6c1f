"""Every route over HTTP: what is settled is what the engine did, and every answer is in its route's own words (E1, K21, A8)."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from app_scene import LOOPS, PATIENT, Scene, call, fake_engine, get, run, scene
from fronts import UNHURRIED, Front, on_engines
from http_port import Answer

from headworks.gateway.dialects.table import DIALECTS
from headworks.gateway.story import story
from headworks.testing.fake_engine import ROUTES as FAKE_ROUTES
from headworks.testing.fake_engine import FakeEngine

both_loops = pytest.mark.parametrize("loop", LOOPS)
TALK = [{"role": "user", "content": "one two three"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TALK, "max_tokens": 6},
    "/v1/completions": {"prompt": "one two three", "max_tokens": 6},
    "/v1/responses": {"input": "one two three", "max_output_tokens": 6},
    "/v1/messages": {"messages": TALK, "max_tokens": 6},
    "/v1/embeddings": {"input": ["one two three", "four"]},
}
COUNTED: dict[str, dict[str, Any]] = {
    "/v1/messages/count_tokens": {"messages": TALK},
    "/tokenize": {"prompt": "one two three"},
    "/detokenize": {"tokens": [300, 301]},
}
STREAMED = [path for path in BODIES if path != "/v1/embeddings"]
FORMS: list[tuple[str, dict[str, Any]]] = [
    *((path, {}) for path in BODIES),
    *((path, {"stream": True}) for path in STREAMED),
    *((path, {"stream": True, "stream_options": {"include_usage": True}}) for path in STREAMED[:2]),
]
TENANTS = {"acme": {"keys": ["env:ACME_KEY"], "active_requests_max": 1}}


def ask(path: str, *fields: str, key: str | None = None, **more: Any) -> bytes:
    return call(path, *fields, key=key, body={"model": "tiny", **(BODIES | COUNTED)[path], **more})


def made(engine: FakeEngine) -> tuple[int, int]:
    """Prompt and output tokens of all that the engine has done."""
    gauges = engine.gauges()
    return gauges.prompt_tokens, gauges.output_tokens


@both_loops
@pytest.mark.parametrize(
    ("path", "form"), FORMS, ids=lambda value: value if isinstance(value, str) else "+".join(value) or "one piece"
)
def test_K21_what_is_settled_is_what_the_engine_did(loop: str, path: str, form: dict[str, Any]) -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine) as s:
            answer = await s.ask(ask(path, **form))
            assert answer.status == 200, answer.body
            await s.settled()
            (outcome,) = s.everything("outcome")
            usage = outcome["usage"]
            assert (usage["prompt_tokens"], usage["output_tokens"]) == made(engine)
            assert usage["exact"] and outcome["outcome"] == "completed" and outcome["evidence"] == "E1"
            shown = answer.body.count(b'"usage":{"') if path in STREAMED[:2] and form else None
            assert shown in (None, int("stream_options" in form)), "a client sees the usage chunk only if it asked"

    run(loop, steps())


async def counted(s: Scene) -> tuple[int, int]:
    """Prompt and output tokens of all that the engine has ever done, by its own counters."""
    async with httpx.AsyncClient(trust_env=False) as client:
        page = (await client.get(s.engines[0].url + "/metrics")).text
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    prompt, output = (sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name)) for name in names)
    return int(prompt), int(output)


@on_engines
def test_K21_the_sum_over_all_routes_and_forms_is_what_the_engine_counted(front: Front) -> None:
    """By one gateway's books: what was settled, and what the usage journal bills by, agree with the engine."""

    async def steps() -> None:
        async with front(tenants={"acme": {"keys": ["env:ACME_KEY"]}}, classes=UNHURRIED) as s:
            before = await counted(s)
            forms = [*FORMS, *((path, {"stream": True, "stream_options": {"include_usage": False}}) for path in STREAMED[:2])]
            answers = [await s.ask(ask(path, key="ACME_KEY", **form)) for path, form in forms]
            missing = [path for (path, _), answer in zip(forms, answers, strict=True) if answer.status == 404]
            assert missing in ([], ["/v1/embeddings"]), "a real one that generates does not embed"
            assert [answer.body for answer in answers if answer.status not in (200, 404)] == []
            await s.settled()
            after = await counted(s)
            usages = [one["usage"] for one in s.everything("outcome") if one["outcome"] == "completed"]
            assert len(usages) == len(forms) - len(missing) and all(usage["exact"] for usage in usages)
            total = tuple(sum(usage[name] for usage in usages) for name in ("prompt_tokens", "output_tokens"))
            assert total == (after[0] - before[0], after[1] - before[1])
            assert s.app.usage is not None
            s.app.usage.flush()
            lines = [
                json.loads(line) for file in s.app.usage.directory.glob("*.jsonl") for line in file.read_text().splitlines()
            ]
            assert tuple(sum(line[name] for line in lines) for name in ("prompt_tokens", "output_tokens")) == total

    run("uvloop", steps(), within_s=90)


@pytest.mark.parametrize("path", COUNTED)
def test_E1_what_is_only_counted_is_admitted_and_uses_nothing(path: str) -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine) as s:
            answer = await s.ask(ask(path))
            assert answer.status == 200, answer.body
            assert answer.json().keys() & {"input_tokens", "count", "prompt"}
            await s.settled()
            (outcome,) = s.everything("outcome")
            assert (outcome["usage"]["prompt_tokens"], outcome["usage"]["output_tokens"]) == (0, 0)
            assert outcome["work"]["tokens"] > 0 and outcome["evidence"] == "E1"
            assert made(engine) == (0, 0)

    run("uvloop", steps())


def test_E1_every_route_of_the_gateway_is_one_that_adapters_ask_engines_for() -> None:
    from headworks.engines.look import ROUTES

    assert set(ROUTES) == set(DIALECTS)
    assert {path for path, (method, _) in FAKE_ROUTES.items() if method == "POST"} >= set(DIALECTS)


class OnlyEmbeds(FakeEngine):
    """A vLLM that was started for embeddings: it has no route that generates."""

    def routes(self) -> Any:
        return {path: row for path, row in FAKE_ROUTES.items() if row[0] == "GET" or path in ("/v1/embeddings", "/tokenize")}


def test_E1_a_route_that_an_engine_has_not_is_answered_with_what_it_has() -> None:
    async def steps() -> None:
        async with scene(OnlyEmbeds(fake_engine().settings)) as s:
            missing = await s.ask(ask("/v1/messages"))
            assert (missing.status, missing.json()["error"]["code"]) == (404, "not_found")
            said = "There is nothing at /v1/messages for tiny, whose engines have /v1/embeddings, /tokenize."
            assert missing.json()["error"]["message"] == said
            assert missing.fields["x-should-retry"] == "false"
            assert (await s.ask(ask("/v1/embeddings"))).status == 200

    run("uvloop", steps())


class NotImplementedThere(FakeEngine):
    """It has the route, and for this model no such thing."""

    def routes(self) -> Any:
        def refuse(engine: FakeEngine, request: Any, connection: Any) -> None:
            connection.respond(501, b'{"error":{"message":"This server does not support embeddings.","code":501}}')

        return {**FAKE_ROUTES, "/v1/embeddings": ("POST", refuse)}


def test_E1_not_implemented_is_an_answer_and_no_failure_of_the_engine() -> None:
    async def steps() -> None:
        async with scene(NotImplementedThere(fake_engine().settings)) as s:
            answer = await s.ask(ask("/v1/embeddings"))
            assert (answer.status, "does not support" in answer.json()["error"]["message"]) == (501, True)
            await s.settled()
            (outcome,) = s.everything("outcome")
            assert (outcome["outcome"], outcome["evidence"]) == ("failed", "E1")
            assert s.app.snapshot()["pools"]["llama"]["replicas"]["llama/0"]["state"] == "ready"

    run("uvloop", steps())


# who asks


def test_H2_anthropics_own_header_is_a_credential() -> None:
    async def steps() -> None:
        async with scene(tenants=TENANTS) as s:
            assert (await s.ask(ask("/v1/messages", "x-api-key: acme-key-of-the-test"))).status == 200
            assert (await s.ask(ask("/v1/responses", "x-api-key: acme-key-of-the-test"))).status == 200
            for fields in (("x-api-key: wrong",), ("x-api-key: acme-key-of-the-test", "Authorization: Bearer wrong"), ()):
                denied = await s.ask(ask("/v1/messages", *fields))
                assert (denied.status, denied.json()["error"]["type"]) == (401, "authentication_error"), fields
            twice = await s.ask(ask("/v1/messages", "x-api-key: acme-key-of-the-test", "X-Api-Key: wrong"))
            assert twice.status == 400, "two of them would let two readers choose differently"

    run("uvloop", steps())


def test_E1_models_are_listed_in_the_words_of_who_asks() -> None:
    async def steps() -> None:
        tenants = {"acme": {"keys": ["env:ACME_KEY"]}, "batchco": {"keys": ["env:BATCHCO_KEY"], "models": ["other"]}}
        async with scene(tenants=tenants) as s:
            key = "x-api-key: acme-key-of-the-test"
            plain = (await s.ask(get("/v1/models", key))).json()
            assert (plain["object"], plain["data"][0]["object"]) == ("list", "model")
            other = (await s.ask(get("/v1/models", key, "anthropic-version: 2023-06-01"))).json()
            assert (other["data"][0]["type"], other["first_id"], other["has_more"]) == ("model", "tiny", False)
            none = await s.ask(get("/v1/models", "x-api-key: batchco-key-of-the-test", "anthropic-version: 2023-06-01"))
            assert none.json() == {"data": [], "has_more": False, "first_id": None, "last_id": None}

    run("uvloop", steps())


# refusals


@pytest.mark.parametrize("path", [*BODIES, *COUNTED])
def test_E4_a_refusal_is_in_the_words_of_its_route(path: str) -> None:
    async def steps() -> None:
        engine = fake_engine()
        async with scene(engine, tenants=TENANTS, classes={"interactive": {"on_tenant_full": "refuse"}}) as s:
            running = await s.connect()
            running.send(ask("/v1/chat/completions", key="ACME_KEY", stream=True, max_tokens=1500))
            await s.until(lambda: s.inside() == 1)
            refused = await s.ask(ask(path, key="ACME_KEY", **({"input": "x"} if path == "/v1/embeddings" else {})))
            assert (refused.status, refused.json()["error"]["code"]) == (429, "tenant_capacity_exceeded")
            assert refused.fields["x-overload-reason"] == "tenant_capacity_exceeded"
            assert int(refused.fields["retry-after-ms"]) > 0
            assert refused.json()["headworks"]["verdicts"], "the explanation comes in every shape"
            is_anthropic = path.startswith("/v1/messages")
            assert ("request-id" in refused.fields, refused.json().get("type")) == (
                is_anthropic,
                "error" if is_anthropic else None,
            )
            assert refused.json()["error"]["type"] == ("rate_limit_error" if is_anthropic else "tokens")
            running.close()

    run("uvloop", steps())


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_E4_what_the_edge_refuses_by_itself_is_in_the_words_of_the_route_too(path: str) -> None:
    async def steps() -> None:
        async with scene() as s:
            head = f"POST {path} HTTP/1.1\r\nHost: edge\r\nContent-Type: application/json\r\nContent-Length: 999999999\r\n\r\n"
            large = await s.ask(head.encode())
            assert (large.status, large.json()["error"]["code"]) == (413, "body_too_large")
            is_anthropic = path == "/v1/messages"
            assert large.json()["error"]["type"] == ("request_too_large" if is_anthropic else "invalid_request_error")
            assert ("type" in large.json()) == is_anthropic

    run("uvloop", steps())


def test_F2_explain_tells_the_route() -> None:
    async def steps() -> None:
        async with scene() as s:
            answer = await s.ask(ask("/v1/messages"))
            await s.settled()
            name = answer.fields["request-id"]
            assert s.app.log is not None
            told = "\n".join(story(s.app.log.find(name)))
            assert "asked tiny at /v1/messages for" in told

    run("uvloop", steps())


# growing and giving way

GROWING = {"estimate": {"output_tokens_cold": 20}, "growth": {"step_tokens": 16, "ahead_tokens": 4}}
ALONE = {"/v1/responses": {"max_output_tokens": 200}, "/v1/messages": {"max_tokens": 200}}


@pytest.mark.parametrize("path", ALONE)
@pytest.mark.parametrize("stream", [False, True], ids=["one piece", "streamed"])
def test_A8_answers_of_both_dialects_grow_and_one_piece_is_put_together_exactly(path: str, stream: bool) -> None:
    async def steps() -> None:
        async with scene() as plain:
            whole = (await plain.ask(ask(path, **ALONE[path]))).json()
        async with scene(pool=GROWING, classes=PATIENT) as s:
            answer = await s.ask(ask(path, **ALONE[path], stream=stream))
            assert answer.status == 200
            await s.settled()
            (outcome,) = s.everything("outcome")
            assert outcome["growths"] > 0 and outcome["usage"]["output_tokens"] == 200
            if not stream:
                assert answer.fields["content-type"] == "application/json"
                assert comparable(answer.json()) == comparable(whole)

    run("uvloop", steps())


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what differs between any two answers: ids, and the time."""
    text = json.dumps({name: value for name, value in answer.items() if name not in ("id", "created_at")})
    for item in answer.get("output", []):
        text = text.replace(item["id"], "ID")
    found: dict[str, Any] = json.loads(text)
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize("path", ALONE)
@pytest.mark.parametrize("stream", [False, True], ids=["one piece", "streamed"])
def test_A8_an_answer_that_may_not_grow_ends_as_at_its_limit(path: str, stream: bool) -> None:
    async def steps() -> None:
        pool = {**GROWING, "active_tokens_max": 200}
        async with scene(pool=pool, classes={**PATIENT}) as s:
            filler = await s.connect()
            filler.send(ask("/v1/chat/completions", stream=True, max_tokens=140, ignore_eos=True, min_tokens=140))
            await s.until(lambda: s.inside() == 1)
            answer = await s.ask(ask(path, **ALONE[path], stream=stream))
            assert answer.status == 200, answer.body
            if stream:
                last = b"event: message_stop" if path == "/v1/messages" else b"event: response.incomplete"
                assert last in answer.body
                assert (b'"stop_reason":"max_tokens"' in answer.body) == (path == "/v1/messages")
            else:
                told = answer.json()
                assert told.get("stop_reason") == "max_tokens" or told["status"] == "incomplete"
            filler.close()

    run("uvloop", steps())


@pytest.mark.parametrize("path", ALONE)
def test_E5_a_clamp_is_written_as_each_dialect_names_its_limit(path: str) -> None:
    async def steps() -> None:
        early = {"enter_ratio": 0.02, "leave_ratio": 0.01, "dwell_s": 0}
        classes = {"interactive": {"on_pressure": [{"clamp_output": 5, **early}], "slo": {"ttft_s": 20}}}
        async with scene(classes=classes) as s:
            filler = await s.connect()
            filler.send(ask("/v1/chat/completions", stream=True, max_tokens=1500))
            await s.until(lambda: s.app.snapshot()["pools"]["llama"]["steps_in_force"] == {"interactive": 1}, within_s=9.0)
            answer = await s.ask(ask(path, **ALONE[path]))
            assert answer.fields["headworks-degraded"] == "clamp_output=5"
            assert used(answer) == 5
            filler.close()

    run("uvloop", steps())


@pytest.mark.parametrize("kind", ["vllm", "openai"])
def test_E5_a_smaller_model_answers_only_where_its_engine_has_the_route(kind: str) -> None:
    async def steps() -> None:
        mini = fake_engine(model_name="mini")
        await mini.start()
        pools = {"small": {"models": ["mini"], "replicas": [{"url": mini.url, "engine": kind}], "evidence_min": "E1"}}
        diverted = [{"smaller_model": "mini", "enter_ratio": 0.02, "leave_ratio": 0.01, "dwell_s": 0}]
        classes = {"interactive": {"slo": {"ttft_s": None}, "queue": {"wait_s_max": 0.5}, "on_pressure": diverted}}
        try:
            async with scene(pool={"active_requests_max": 1, "models": ["tiny"]}, pools=pools, classes=classes) as s:
                running = await s.connect()
                running.send(ask("/v1/chat/completions", stream=True, max_tokens=1500))
                await s.until(lambda: s.inside() == 1)
                await s.until(lambda: s.app.snapshot()["pools"]["llama"]["steps_in_force"] == {"interactive": 1}, within_s=9.0)
                answer = await s.ask(ask("/v1/messages"))
                if kind == "vllm":
                    assert (answer.status, answer.json()["model"]) == (200, "mini")
                    assert answer.fields["headworks-degraded"] == "smaller_model=mini"
                else:  # it does not say which routes it has
                    assert (answer.status, answer.json()["error"]["type"]) == (429, "rate_limit_error")
                    assert mini.requests == 0
                running.close()
        finally:
            await mini.stop()

    run("uvloop", steps())


def used(answer: Answer) -> int:
    return int(answer.json()["usage"]["output_tokens"])


def test_E2_a_client_that_leaves_any_route_stops_the_engine() -> None:
    async def steps() -> None:
        async with scene() as s:
            for path in ("/v1/responses", "/v1/messages"):
                for stream in (True, False):
                    client = await s.connect()
                    client.send(ask(path, **{next(iter(ALONE[path])): 1500}, stream=stream))
                    await s.until(lambda: s.inside() == 1)
                    client.close()
                    await s.until(lambda: s.inside() == 0, 2.0)
            await s.settled()

    run("uvloop", steps())
