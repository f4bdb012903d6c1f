"""Envoy's rate-limit service in front of the gate (H5): what descriptors say, what is drawn, and the real Envoy's refusals."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from app_scene import ENVIRONMENT, LOOPS, PATIENT, Scene, chat, run, scene
from envoy_scene import envoy, needs_envoy

from headworks.gateway.envoy import limits
from headworks.gateway.envoy import messages as rls

OK, OVER = 1, 2
RATE = {"tokens_per_s": 1, "burst_tokens": 100, "debt_tokens_max": 0}
TENANTS: dict[str, Any] = {"acme": {"keys": ["env:ACME_KEY"], "rate": RATE}}
KEY = f"Bearer {ENVIRONMENT['ACME_KEY']}"
Ask = Callable[..., Awaitable[Any]]


@contextlib.asynccontextmanager
async def asking(**sections: Any) -> AsyncIterator[tuple[Scene, Ask]]:
    """A gateway, and a way to ask it: entries of one descriptor, and how much it adds."""
    given: dict[str, Any] = {"tenants": TENANTS, "classes": PATIENT, **sections}
    async with scene(server={"grpc": "127.0.0.1:0"}, **given) as s:
        assert s.app.grpc is not None
        async with grpc.aio.insecure_channel(f"127.0.0.1:{s.app.grpc.number}") as channel:
            call = channel.unary_unary(
                f"/{limits.NAME}/ShouldRateLimit",
                request_serializer=rls.RateLimitRequest.SerializeToString,
                response_deserializer=rls.RateLimitResponse.FromString,
            )

            async def ask(tokens: int, **entries: str) -> Any:
                question = rls.RateLimitRequest(domain="any", hits_addend=tokens)
                described = question.descriptors.add()
                for name, value in {"authorization": KEY, **entries}.items():
                    described.entries.add(key=name, value=value)
                return await call(question, timeout=10)

            yield s, ask


def fields(answer: Any) -> dict[str, str]:
    return {one.key: one.value for one in answer.response_headers_to_add}


@pytest.mark.parametrize("loop", LOOPS)
def test_H5_what_is_asked_for_is_drawn_and_beyond_the_rate_is_over_limit(loop: str) -> None:
    async def steps() -> None:
        async with asking() as (s, ask):
            first = await ask(60, model="tiny")
            assert (first.overall_code, [one.code for one in first.statuses]) == (OK, [OK])
            assert fields(first)["x-ratelimit-limit-tokens"] == "100"
            assert 40 <= int(fields(first)["x-ratelimit-remaining-tokens"]) <= 45
            second = await ask(60, model="tiny")
            assert (second.overall_code, [one.code for one in second.statuses]) == (OVER, [OVER])
            assert 10 <= int(fields(second)["retry-after"]) <= 20
            assert fields(second)["x-overload-reason"] == "rate_limit_exceeded"
            assert b'"code":"rate_limit_exceeded"' in second.raw_body
            assert (await ask(30, model="tiny")).overall_code == OK, "what was refused has drawn nothing"
            decided = [(one["outcome"], one["reason"]) for one in s.everything("decision")]
            assert decided == [("admit", ""), ("refuse", "rate_limit_exceeded"), ("admit", "")]
            assert not s.charged(), "nothing is held of what runs elsewhere"

    run(loop, steps())


def test_H5_what_is_reported_as_spent_is_drawn_into_debt_and_never_refused() -> None:
    async def steps() -> None:
        async with asking(tenants={"acme": {"keys": ["env:ACME_KEY"], "rate": {**RATE, "debt_tokens_max": 50}}}) as (_, ask):
            assert (await ask(500, report="spent")).overall_code == OK
            refused = await ask(1)
            assert refused.overall_code == OVER
            assert int(fields(refused)["retry-after-ms"]) > 300_000, "400 tokens of debt, of which 50 may be"

    run("uvloop", steps())


def test_H5_the_rate_is_one_with_that_of_the_public_port() -> None:
    async def steps() -> None:
        async with asking() as (s, ask):
            assert (await ask(90)).overall_code == OK
            refused = await s.ask(chat(key="ACME_KEY", tokens=30))
            assert (refused.status, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")

    run("uvloop", steps())


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ({"authorization": "Bearer nobodys"}, "invalid_api_key"),
        ({"class": "batch"}, "forbidden"),
        ({"model": "nobodys"}, "model_not_found"),
    ],
)
def test_H5_who_may_not_is_over_limit_and_told_why(entries: dict[str, str], code: str) -> None:
    async def steps() -> None:
        tenants = {"acme": {"keys": ["env:ACME_KEY"], "classes": ["interactive"]}}
        async with asking(tenants=tenants) as (_, ask):
            refused = await ask(1, **entries)
            assert refused.overall_code == OVER
            assert f'"code":"{code}"'.encode() in refused.raw_body
            assert fields(refused)["x-should-retry"] == "false"

    run("uvloop", steps())


def test_H5_the_most_that_a_descriptor_adds_counts_and_1_where_none_says() -> None:
    assert limits._tokens(rls.RateLimitRequest(descriptors=[{}, {}])) == 1
    assert limits._tokens(rls.RateLimitRequest(descriptors=[{"hits_addend": {"value": 7}}, {}], hits_addend=5)) == 7
    assert limits._tokens(rls.RateLimitRequest(descriptors=[{"hits_addend": {"value": 0}}])) == 0


def rate_limited(manager: dict[str, Any], engine: str) -> None:
    """The shipped listener, with the rate-limit filter in the picker's place, and one place to go to."""
    service = {"transport_api_version": "V3", "grpc_service": {"envoy_grpc": {"cluster_name": "headworks"}}}
    limited = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
        "domain": "headworks",
        "timeout": "2s",
        "failure_mode_deny": True,
        "rate_limit_service": service,
    }
    manager["http_filters"][0] = {"name": "envoy.filters.http.ratelimit", "typed_config": limited}
    described = [{"request_headers": {"header_name": name, "descriptor_key": name}} for name in ("authorization", "model")]
    (host,) = manager["route_config"]["virtual_hosts"]
    host["rate_limits"] = [{"actions": described}]
    host["request_headers_to_add"] = [{"header": {"key": "x-gateway-destination-endpoint", "value": engine}}]


@needs_envoy
def test_H5_the_real_envoy_refuses_with_our_headers_and_passes_on_what_is_left() -> None:
    async def steps() -> None:
        tenants = {"acme": {"keys": ["env:ACME_KEY"], "rate": {"requests_per_s": 0.1, "burst_requests": 2}}}
        async with asking(tenants=tenants) as (s, _):
            assert s.app.grpc is not None
            endpoint = s.engines[0].url.removeprefix("http://")
            async with envoy(s.app.grpc.number, lambda manager: rate_limited(manager, endpoint)) as front:
                asked = chat("Model: tiny", key="ACME_KEY")
                for _ in range(2):
                    passed = await front.ask(asked)
                    assert passed.status == 200
                    assert passed.fields["x-ratelimit-limit-requests"] == "2"
                refused = await front.ask(asked)
                assert refused.status == 429
                assert refused.json()["error"]["code"] == "rate_limit_exceeded"
                assert 1 <= int(refused.fields["retry-after"]) <= 10
                assert refused.fields["x-overload-reason"] == "rate_limit_exceeded"
                assert s.engines[0].requests == 2

    run("uvloop", steps())
