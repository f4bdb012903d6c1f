"""The story where limits are over time, where a key decided, where a reservation grew: each kind of record has its words."""

from __future__ import annotations

from typing import Any

import pytest

from headworks.gateway.story import story

Line = dict[str, Any]


def verdict(check: str, scope: str, value: float, limit: float, unit: str, reason: str) -> Line:
    return {
        "check": check,
        "scope": scope,
        "value": value,
        "limit": limit,
        "unit": unit,
        "passed": value <= limit,
        "reason": reason if value > limit else "",
    }


def decided(outcome: str, reason: str = "", *verdicts: Line, basis: str = "room", **changed: Any) -> Line:
    forecast = {"basis": basis, "prefill_s": 0.0, "wait_s": 0.0, "ttft_s": 0.0, "drain_tokens_per_s": None}
    work = {"tokens": 400, "prefill_tokens": 60, "output_tokens": 340, "sequences": 1, "kv_tokens": 400}
    record = {
        "id": "r1",
        "key": ["acme", "r1"],
        "outcome": outcome,
        "reason": reason,
        "verdicts": list(verdicts),
        "forecast": forecast,
        "work": work,
        "retry_after_s": None,
        "position": 0,
        "waited_s": 0.0,
        "at_arrival": True,
        "gateway": "g",
        "policy_version": "v",
        "service_class": "interactive",
        "model": "m",
    }
    return {"kind": "decision", "utc": "2026-11-30T03:00:00.000000Z", "monotonic_s": 1.0, "record": record | changed}


def ended(outcome: str, reason: str = "", **changed: Any) -> Line:
    record = {
        "id": "r1",
        "key": ["acme", "r1"],
        "execution": "e",
        "outcome": outcome,
        "reason": reason,
        "arrived_s": 1.0,
        "admitted_s": 1.0,
        "first_byte_s": 1.5,
        "ended_s": 3.0,
        "usage": None,
        "evidence": "",
        "unconfirmed_s": None,
        "in_slo": True,
        "work": decided("admit")["record"]["work"],
        "service_class": "interactive",
        "model": "m",
    }
    return {"kind": "outcome", "utc": "2026-11-30T03:00:02.000000Z", "monotonic_s": 3.0, "record": record | changed}


@pytest.mark.parametrize(
    ("reason", "retry_after_s", "unit", "value", "limit", "said"),
    [
        (
            *("insufficient_quota", 7_200.0, "tokens a day", 1_100, 1_000),
            [
                "it was refused at once: tenant acme would have 1,100 tokens a day, and may have 1,000 (insufficient_quota).",
                "It would have been admitted with 100 fewer tokens, or with 100 fewer tokens a day for tenant acme, "
                "or with a limit of 1,100 tokens a day for tenant acme.",
                "Its client was told that no retry helps; the next period begins 7,200 s later.",
            ],
        ),
        (
            *("rate_limit_exceeded", 0.25, "tokens at once", 8_100, 8_000),
            [
                "tenant acme would have 8,100 tokens at once, and may have 8,000 (rate_limit_exceeded).",
                "with 100 fewer tokens, or with",
                "or with 0.250 s more, in which its rate refills.",
                "Its client was told to come back 0.250 s later.",
            ],
        ),
        (
            *("retry_budget_exceeded", 1.0, "retries in a minute", 4, 3),
            ["tenant acme would have 4 retries in a minute, and may have 3", "1 fewer retries in a minute for tenant acme"],
        ),
    ],
)
def test_K05_limits_over_time(
    reason: str, retry_after_s: float, unit: str, value: float, limit: float, said: list[str]
) -> None:
    row = verdict("tenant", "tenant:acme", value, limit, unit, reason)
    told = "\n".join(story([decided("refuse", reason, row, retry_after_s=retry_after_s)]))
    assert [words for words in said if words not in told] == [], told


def test_F2_only_who_was_in_a_queue_is_said_to_have_waited() -> None:
    """On a starved machine the turn a request comes in can take long; that is nobody's queue."""
    row = verdict("tenant", "tenant:acme", 2, 1, "requests", "tenant_capacity_exceeded")
    at_arrival = decided("refuse", "tenant_capacity_exceeded", row, retry_after_s=1.0, waited_s=0.7)
    assert "it was refused at once: tenant acme would have 2" in "\n".join(story([at_arrival]))
    later = decided("refuse", "queue_timeout", row, retry_after_s=1.0, waited_s=0.7, at_arrival=False)
    assert "it was refused after waiting 0.700 s: " in "\n".join(story([decided("queue", "", row), later]))


def test_D1_what_is_kept_for_others_is_said_to_be() -> None:
    row = verdict("fairness", "pool:llama", 13, 12, "requests beside what is kept", "queue_timeout")
    told = "\n".join(story([decided("queue", "", row, position=3)]))
    assert (
        "it had to wait, with 2 others waiting: pool llama would run 13 sequences, of 12 that are not kept for others." in told
    )


def test_G4_who_gives_way_to_those_who_are_refused_is_told_its_share() -> None:
    row = verdict("fairness", "pool:llama", 5, 3.4, "requests while others are refused", "queue_timeout")
    told = "\n".join(story([decided("queue", "", row, position=3)]))
    assert "its class would run 5 sequences in pool llama, and its share is 3.40 while others are refused there." in told


def test_A6_who_shares_an_answer_is_told_whose() -> None:
    work = decided("admit")["record"]["work"] | {"tokens": 0, "basis": "shared"}
    lines = [decided("admit", basis="replayed", work=work), ended("replayed", work=work)]
    told = "\n".join(story(lines))
    assert "asked for nothing of its own: somebody had its key already." in told
    assert "Its key has completed: it gets the kept answer again, and nothing runs for it." in told
    assert "It was given the answer of the execution e." in told


def test_A6_a_key_that_was_used_otherwise_needs_another() -> None:
    told = "\n".join(story([decided("refuse", "idempotency_key_reused", basis="key")]))
    assert "it was refused at once: this Idempotency-Key was used with other parameters (idempotency_key_reused)." in told
    assert "It would have been admitted with a key of its own." in told


def test_A8_a_reservation_that_grew_is_told_with_its_steps() -> None:
    work = decided("admit")["record"]["work"] | {"output_tokens": 200, "output_tokens_max": 1_000}
    usage = {"prompt_tokens": 60, "output_tokens": 328, "exact": True}
    grown = ended("completed", "queue_timeout", usage=usage, growths=2, growths_refused=1, grown_tokens=128)
    told = "\n".join(story([decided("admit", work=work), grown]))
    assert "60 to read and 200 of at most 1,000 to write." in told
    assert "Of these, 272 were set aside before it ran and 128 in 2 steps while it did." in told
    assert "It asked for more 1 time in vain, so its answer was ended there." in told


def test_B4_what_pressure_held_back_is_told_with_who_says_so() -> None:
    held = verdict("compute", "pool:llama", 0.92, 0.85, "compute_ratio under pressure by steps", "compute_saturation")
    told = "\n".join(story([decided("queue", "compute_saturation", held, position=1)]))
    assert (
        "the compute of pool llama (under pressure by steps) was 92% full, and new work of its class waits above 85%." in told
    )
    blind = verdict("memory", "pool:llama", 0.82, 0.8, "kv_ratio under pressure with compute unknown", "kv_saturation")
    told = "\n".join(story([decided("refuse", "kv_saturation", blind)]))
    assert "the memory of pool llama (under pressure with compute unknown) was 82% full" in told
    assert "with the memory of pool llama at most 80% full, or with a class that gives way later." in told


@pytest.mark.parametrize(
    ("value", "limit", "unit", "said", "helps"),
    [
        (51, 50, "requests waiting", "refused above 50 requests waiting, and it was 51", "at most 50 requests waiting"),
        (0.93, 0.9, "compute_ratio by exporter", "above 90% compute ratio by exporter, and it was 93%", "at most 0.9 compute"),
        (1.5, 1, "s to 95 of 100 first tokens", "above 1 s to 95 of 100 first tokens, and it was 1.50", "at most 1 s to 95"),
    ],
)
def test_B4_a_gate_of_a_class_is_told_with_its_number(value: float, limit: float, unit: str, said: str, helps: str) -> None:
    check = "compute" if "compute" in unit else "fairness"
    told = "\n".join(story([decided("refuse", "class_gate", verdict(check, "class:batch", value, limit, unit, "class_gate"))]))
    assert said in told, told
    assert helps in told, told
