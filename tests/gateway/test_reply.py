"""Refusals and headers on the wire, exactly (E4, B2, K03, K04, K50, K51, design section 9)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headworks.core.reasons import REASONS
from headworks.core.tenant import Left
from headworks.core.types import Decision, Forecast, RequestKey, Usage, Verdict, Work
from headworks.gateway.error_shapes import OPENAI, error_event
from headworks.gateway.every_answer import Allowance, Ids, duration, kept_headers, own_headers, pairs_of
from headworks.gateway.keys import Denied
from headworks.gateway.reply import OwnAnswer, denied, failure, http_error, number, refusal

IDS = Ids(b"req-1", b"key-1")
WALL_S = 1_764_460_800.2
TIME = Verdict("time", "pool:llama", 4.515, 1.0, "s", False, "queue_delay_exceeded")
MEMORY = Verdict("memory", "pool:llama", 0.88, 0.85, "kv_ratio", False, "kv_saturation")


def decided(reason: str, *verdicts: Verdict, retry_after_s: float | None = None, wait_s: float | None = 4.5) -> Decision:
    forecast = Forecast(wait_s, 0.015, None, None, 10.0, 1.3, "drain")
    return Decision(
        id="dec-1",
        key=RequestKey("acme", "key-1"),
        outcome="refuse",
        reason=reason,
        rows=tuple((one.check, one.scope, one.value, one.limit, one.unit, one.reason) for one in verdicts),
        forecast=forecast,
        work=Work(100, 60, 1, 0.0, 112, 40),
        retry_after_s=retry_after_s,
        position=0,
        degraded="",
        decided_s=1.0,
        waited_s=0.25,
        gateway="g",
        policy_version="v7",
        service_class="interactive",
        model="m",
        pool="llama",
    )


def headers_of(answer: OwnAnswer) -> dict[str, str]:
    pairs = [(name.decode(), value.decode()) for name, value in pairs_of(answer.headers)]
    assert len(pairs) == len({name.lower() for name, _ in pairs}), "a header is given twice"
    return {name.lower(): value for name, value in pairs}


def body_of(answer: OwnAnswer) -> dict[str, Any]:
    return json.loads(answer.body)  # type: ignore[no-any-return]


def test_B2_golden_refusal_names_both_checks_and_the_slot() -> None:
    answer = refusal(decided("queue_delay_and_kv_saturation", MEMORY, TIME, retry_after_s=4.5), IDS, wall_s=WALL_S)
    assert answer.status == 429
    assert headers_of(answer) == {
        "x-request-id": "req-1",
        "idempotency-key": "key-1",
        "queue-wait": "4.500",
        "content-type": "application/json",
        "retry-after-ms": "4500",
        "retry-after": "5",
        "x-ratelimit-reset": "1764460805",
        "x-overload-reason": "queue_delay_and_kv_saturation",
    }
    assert body_of(answer) == {
        "error": {
            "message": "The forecast is 4.51 s (limit 1 s), and the engine's memory is full.",
            "type": "overloaded",
            "param": None,
            "code": "queue_delay_and_kv_saturation",
        },
        "headworks": {
            "decision": "dec-1",
            "verdicts": [
                {
                    "check": "memory",
                    "scope": "pool:llama",
                    "value": 0.88,
                    "limit": 0.85,
                    "unit": "kv_ratio",
                    "passed": False,
                    "reason": "kv_saturation",
                },
                {
                    "check": "time",
                    "scope": "pool:llama",
                    "value": 4.515,
                    "limit": 1.0,
                    "unit": "s",
                    "passed": False,
                    "reason": "queue_delay_exceeded",
                },
            ],
            "forecast": {
                "wait_s": 4.5,
                "prefill_s": 0.015,
                "ttft_s": None,
                "total_s": None,
                "drain_tokens_per_s": 10.0,
                "buffer_ratio": 1.3,
                "basis": "drain",
                "wait_most_s": None,
                "tpot_s": None,
                "drain_error_ratio": None,
                "wait_spread_s": 0.0,
            },
            "policy_version": "v7",
        },
    }


@pytest.mark.parametrize(
    ("slot_s", "milliseconds", "seconds", "reset", "retryable"),
    [
        (0.0004, "1", "1", "1764460801", True),
        (0.25, "250", "1", "1764460801", True),
        (30.0, "30000", "30", "1764460831", True),
        (60.0, "60000", "60", "1764460861", True),
        (60.01, "60010", "60", "1764460861", False),
        (100.0, "100000", "60", "1764460901", False),
        (None, "1000", "1", "1764460802", True),
    ],
)
def test_K51_slot_is_exact_and_beyond_sixty_seconds_no_retry(
    slot_s: float | None, milliseconds: str, seconds: str, reset: str, retryable: bool
) -> None:
    headers = headers_of(refusal(decided("queue_delay_exceeded", TIME, retry_after_s=slot_s), IDS, wall_s=WALL_S))
    assert (headers["retry-after-ms"], headers["retry-after"]) == (milliseconds, seconds)
    assert headers["x-ratelimit-reset"] == reset
    assert headers.get("x-should-retry") == (None if retryable else "false")


@pytest.mark.parametrize("code", sorted(REASONS))
def test_K50_retry_hints_stand_on_retryable_answers_only(code: str) -> None:
    reason = REASONS[code]
    answer = refusal(decided(code, Verdict("x", "pool:p", 3, 2, "tokens", False, code), retry_after_s=2.0), IDS, wall_s=0.0)
    headers = headers_of(answer)
    assert answer.status == reason.status
    hints = {
        "ticket": {"retry-after-ms", "retry-after"},
        "refill": {"retry-after-ms", "retry-after"},
        "soon": {"retry-after-ms", "retry-after"},
        "key": {"retry-after-ms"},
        "never": {"x-should-retry"},
        "none": set(),
    }[reason.retry]
    assert {name for name in headers if name in ("retry-after-ms", "retry-after", "x-should-retry")} == hints
    assert ("x-overload-reason" in headers) == (reason.status in (429, 503))
    if "x-overload-reason" in headers:
        assert headers["x-overload-reason"] == code
    assert {"x-request-id", "idempotency-key", "queue-wait"} <= headers.keys()


@pytest.mark.parametrize("code", sorted(REASONS))
def test_K04_every_reason_has_a_body_with_code_and_sentence(code: str) -> None:
    with_numbers = refusal(decided(code, Verdict("x", "pool:p", 3, 2, "tokens", False, code)), IDS, wall_s=0.0)
    without = failure(code, IDS, wall_s=0.0, subject="that")
    for answer in (with_numbers, without):
        error = body_of(answer)["error"]
        assert (error["code"], error["type"]) == (code, REASONS[code].error_type)
        assert error["message"]
        assert "{" not in error["message"]


def test_K03_saturated_missing_and_tenant_are_three_answers() -> None:
    tenant = Verdict("tenant", "tenant:acme", 17_000, 15_000, "tokens", False, "tenant_capacity_exceeded")
    answers = [
        refusal(decided("tenant_capacity_exceeded", tenant), IDS, wall_s=0.0),
        refusal(decided("kv_saturation", MEMORY), IDS, wall_s=0.0),
        refusal(decided("no_replica"), IDS, wall_s=0.0),
    ]
    assert [answer.status for answer in answers] == [429, 429, 503]
    assert [body_of(answer)["error"]["message"] for answer in answers] == [
        "Your tenant would hold 17,000 tokens of 15,000.",
        "The engine's memory for running requests is 0.88 full; new work waits below 0.85.",
        "No engine of this pool can take work now.",
    ]


def test_B6_a_timeout_speaks_of_time_whatever_was_short() -> None:
    memory = Verdict("memory", "pool:llama", 52_000, 50_000, "tokens", False, "queue_timeout")
    waited = Verdict("time", "pool:llama", 0.5012, 0.5, "s waited", False, "queue_timeout")
    for verdicts in ((memory, waited), (waited, memory)):
        message = body_of(refusal(decided("queue_timeout", *verdicts), IDS, wall_s=0.0))["error"]["message"]
        assert message.startswith("It waited 0.501 s ")
        assert message.endswith("the limit was 0.5 s.")
    alone = body_of(refusal(decided("queue_timeout", memory), IDS, wall_s=0.0))["error"]["message"]
    assert alone.startswith("It waited 0.25 s ")


def test_A2_what_was_waited_for_in_vain_and_is_there_by_now_is_told_as_time() -> None:
    """The code still names what was binding; its check passes in the last look, so that has no numbers to give."""
    there = Verdict("prefill", "pool:llama", 8_452, 13_064, "prompt tokens", True, "")
    waited = Verdict("time", "pool:llama", 0.5012, 0.5, "s waited", False, "queue_timeout")
    error = body_of(refusal(decided("prefill_saturated", there, waited), IDS, wall_s=0.0))["error"]
    assert error["code"] == "prefill_saturated"
    assert error["message"] == "It waited 0.501 s and could not have started in time any more; the limit was 0.5 s."


def test_H2_too_many_bad_keys_are_told_in_numbers() -> None:
    answer = denied(Denied("rate_limit_exceeded", 3.0), IDS, WALL_S)
    message = "Your rate allows 20 failed keys a minute; this request would make it 21."
    assert (answer.status, body_of(answer)["error"]["message"]) == (429, message)
    assert denied(Denied("invalid_api_key"), IDS, WALL_S).status == 401


def test_B2_a_limit_has_the_unit_of_what_it_limits() -> None:
    slow = Verdict("time", "pool:llama", 1.25, 1.0, "s to first token", False, "queue_delay_exceeded")
    blind = Verdict("time", "pool:llama", 5, 4, "requests waiting at an unknown rate", False, "queue_delay_exceeded")

    def message(verdict: Verdict) -> str:
        return str(body_of(refusal(decided("queue_delay_exceeded", verdict), IDS, wall_s=WALL_S))["error"]["message"])

    assert message(slow) == "The forecast is 1.25 s to first token; the limit is 1 s."
    assert message(blind) == "The forecast is 5 requests waiting at an unknown rate; the limit is 4."


def test_E4_wait_is_the_forecast_or_what_was_waited() -> None:
    assert headers_of(refusal(decided("queue_full"), IDS, wall_s=0.0))["queue-wait"] == "4.500"
    assert headers_of(refusal(decided("queue_full", wait_s=None), IDS, wall_s=0.0))["queue-wait"] == "0.250"


def test_E4_ratelimit_headers_in_openai_form() -> None:
    allowance = Allowance(Left(32, 3, 0.5), Left(15_000, 6_000, 360.0))
    assert own_headers(IDS, 0.0125, allowance, "clamp_output=64") == [
        (b"X-Request-Id", b"req-1"),
        (b"Idempotency-Key", b"key-1"),
        (b"Queue-Wait", b"0.013"),
        (b"x-ratelimit-limit-requests", b"32"),
        (b"x-ratelimit-remaining-requests", b"3"),
        (b"x-ratelimit-reset-requests", b"500ms"),
        (b"x-ratelimit-limit-tokens", b"15000"),
        (b"x-ratelimit-remaining-tokens", b"6000"),
        (b"x-ratelimit-reset-tokens", b"6m0s"),
        (b"Headworks-Degraded", b"clamp_output=64"),
    ]
    assert not [name for name, _ in own_headers(IDS, 0.0, Allowance()) if name.startswith(b"x-ratelimit")]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1.0, "0ms"),
        (0.0, "0ms"),
        (0.0121, "13ms"),
        (1.5, "1.5s"),
        (59.94, "59.9s"),
        (59.96, "1m0s"),
        (60.0, "1m0s"),
        (360.0, "6m0s"),
        (3_661.2, "1h1m2s"),
    ],
)
def test_E4_durations_parse_in_go(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(17_000, "17,000"), (6.06, "6.06"), (0.88, "0.88"), (0.0456, "0.0456"), (1234.5, "1,234.50"), (float("inf"), "unlimited")],
)
def test_E4_numbers_are_written_for_people(value: float, text: str) -> None:
    assert number(value) == text


def test_H3_a_fault_names_its_field() -> None:
    answer = failure("field_not_allowed", IDS, wall_s=0.0, subject="priority", param="priority", policy_version="v7")
    assert answer.status == 400
    assert body_of(answer) == {
        "error": {
            "message": "The field priority may not be set through this gateway.",
            "type": "invalid_request_error",
            "param": "priority",
            "code": "field_not_allowed",
        },
        "headworks": {"decision": "req-1", "verdicts": [], "forecast": None, "policy_version": "v7"},
    }
    assert headers_of(answer)["x-should-retry"] == "false"


def test_H2_a_missing_key_says_how_to_send_one() -> None:
    assert headers_of(failure("invalid_api_key", IDS, wall_s=0.0))["www-authenticate"] == "Bearer"


def test_A6_an_answer_that_was_not_kept_tells_the_usage() -> None:
    usage = Usage(12, 0, 34, 1.5, "stop", True)
    answer = refusal(decided("idempotency_result_gone"), IDS, wall_s=0.0, usage=usage)
    assert answer.status == 409
    assert body_of(answer)["headworks"]["usage"]["output_tokens"] == 34


def test_E4_quota_tells_when_the_period_begins_anew_but_no_retry() -> None:
    headers = headers_of(refusal(decided("insufficient_quota", retry_after_s=86_400.0), IDS, wall_s=WALL_S))
    assert (headers["x-should-retry"], headers["x-ratelimit-reset"]) == ("false", "1764547201")
    assert "retry-after" not in headers


def test_E4_error_inside_a_stream_is_one_event() -> None:
    event = error_event(OPENAI, failure("deadline_exceeded", IDS, wall_s=0.0, limit=55.0, unit="s").body)
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    error = json.loads(event[6:])["error"]
    assert (error["code"], error["message"]) == ("deadline_exceeded", "The time budget of 55 s is over.")


def test_E4_text_of_a_client_cannot_break_an_event() -> None:
    event = error_event(OPENAI, failure("invalid_request", IDS, wall_s=0.0, subject="bad\n\ndata: [DONE]\n\n").body)
    assert event.count(b"\n") == 2


def test_E4_the_edge_speaks_the_same_shape() -> None:
    headers, body = http_error(431, "invalid_request", "Too many headers.", 0.0)
    assert (b"x-should-retry", b"false") in headers
    assert json.loads(body) == {
        "error": {
            "message": "Too many headers.",
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_request",
        }
    }


def test_K50_the_edge_says_what_it_has_too_much_of_and_when_to_come_back() -> None:
    headers, body = http_error(503, "gateway_overloaded", "There are too many connections.", 1_000.0)
    assert headers == [
        (b"Content-Type", b"application/json"),
        (b"retry-after-ms", b"1000"),
        (b"Retry-After", b"1"),
        (b"X-RateLimit-Reset", b"1001"),
        (b"X-Overload-Reason", b"gateway_overloaded"),
    ]
    assert json.loads(body)["error"]["type"] == "server_error"


def test_E4_engines_say_nothing_in_our_name() -> None:
    engine = [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"x-request-id", b"theirs"),
        (b"retry-after", b"1"),
        (b"x-ratelimit-limit-tokens", b"1"),
        (b"queue-wait", b"1"),
        (b"set-cookie", b"a=b"),
        (b"server", b"uvicorn"),
    ]
    assert kept_headers(engine) == [(b"content-type", b"text/event-stream; charset=utf-8")]
