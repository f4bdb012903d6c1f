"""`explain` on limits over time: what was compared, what would have helped, and when (K05, A2)."""

from __future__ import annotations

from typing import Any

from headworks.cli.explain import story


def refused(reason: str, retry_after_s: float, unit: str, value: float, limit: float) -> list[dict[str, Any]]:
    verdict = {"check": "tenant", "scope": "tenant:acme", "value": value, "limit": limit, "unit": unit, "passed": False}
    forecast = {"basis": "room", "prefill_s": 0.0, "wait_s": 0.0, "ttft_s": 0.0, "drain_tokens_per_s": None}
    record = {
        "id": "req_1",
        "key": ["acme", "k"],
        "outcome": "refuse",
        "reason": reason,
        "verdicts": [{**verdict, "reason": reason}],
        "forecast": forecast,
        "work": {"tokens": 100, "prefill_tokens": 60, "output_tokens": 40, "sequences": 1},
        "retry_after_s": retry_after_s,
        "position": 0,
        "waited_s": 0.0,
        "gateway": "g",
        "policy_version": "v",
        "service_class": "interactive",
        "model": "m",
    }
    return [{"kind": "decision", "utc": "2026-11-30T03:00:00Z", "record": record}]


def test_K05_a_quota_is_told_with_what_is_over_and_when_the_next_period_begins() -> None:
    told = "\n".join(story(refused("insufficient_quota", 7_200.0, "tokens a day", 1_100, 1_000)))
    assert "FAILED tenant of tenant:acme: 1,100 of 1,000 tokens a day" in told
    assert "it would have passed tenant with 100 fewer tokens a day asked or held, or a limit of 1,100" in told
    assert "its client was told that no retry helps; the next period begins 7,200 s later" in told


def test_K05_a_rate_is_told_with_its_refill() -> None:
    told = "\n".join(story(refused("rate_limit_exceeded", 0.01, "tokens at once", 301, 300)))
    assert "FAILED tenant of tenant:acme: 301 of 300 tokens at once" in told
    assert "1 fewer tokens at once asked or held, or a limit of 301" in told
    assert "its client was given a slot 0.010 s later" in told


def test_K05_a_retry_budget_is_told_as_counts() -> None:
    told = "\n".join(story(refused("retry_budget_exceeded", 1.0, "retries in a minute", 4, 3)))
    assert "FAILED tenant of tenant:acme: 4 of 3 retries in a minute" in told
    assert "1 fewer retries in a minute" in told
