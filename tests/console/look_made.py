"""A look at a gateway in a burst, written out: what `/admin/snapshot` may say, as far as `headworks top` shows it."""

from __future__ import annotations

from typing import Any


def replica(**more: Any) -> dict[str, Any]:
    known = {"state": "ready", "breaker": "closed", "evidence": ["E1", "E3a", "E3b", "E4"], "unproved": 0, "running": 15}
    seen = {"limit_running": 20, "waiting": 0, "kv_used_ratio": 0.41, "step_s": 0.0218, "sample_age_s": 0.36}
    return known | seen | more


def tenant(tokens: int, tokens_max: int, requests: int, queued: int, admitted_per_s: float, refused_per_s: float) -> Any:
    held = {"tokens": tokens, "tokens_max": tokens_max, "requests": requests, "requests_max": None, "queued_requests": queued}
    rates = {"admitted_per_s": admitted_per_s, "refused_per_s": refused_per_s}
    return {**held, **rates, "reserved_over_used_ratio": 1.62, "covered_ratio": 0.97}


def of_class(promise_s: float | None, p95_s: float, arrivals: float, good: float, refused: float, waiting: int) -> Any:
    rates = {"arrivals_per_s": arrivals, "good_per_s": good, "refused_per_s": refused, "good_lately_ratio": good / arrivals}
    return {"promises": {"ttft_s": promise_s}, "ttft_p95_s": p95_s, "queued_requests": waiting, **rates}


def decision(
    second: int, name: str, whose: str, service_class: str, outcome: str, reason: str, tokens: int, waited_s: float
) -> Any:
    asked = {"id": f"req_{name}", "tenant": whose, "class": service_class, "tokens": tokens}
    return {"utc": f"2026-11-30T09:00:{second:02}.250000Z", **asked, "outcome": outcome, "reason": reason, "waited_s": waited_s}


LOOK: dict[str, Any] = {
    "version": 118,
    "span_s": 10.0,
    "utc": "2026-11-30T09:00:42.500000Z",
    "gateway": "gateway",
    "mode": "enforce",
    "policy_version": "eca6ab07a6f9",
    "ledger_available": True,
    "obstacles": [],
    "troubles": ["The decision log cannot be written: [Errno 28] No space left on device. Lines lost since the start: 12."],
    "decided": {
        "admit": {"total": 812, "per_s": 7.6},
        "queue": {"total": 140, "per_s": 1.5},
        "refuse": {"total": 60, "per_s": 2.1},
    },
    "tokens": {"output_per_s": 798.4, "wasted_per_s": 36.4, "wasted_ratio": 0.0456},
    "refusals": {"queue_full": {"total": 31, "per_s": 2.1}, "queue_delay_exceeded": {"total": 27, "per_s": 0.0}},
    "pools": {
        "llama": {
            "queued_requests": 61,
            "queued_tokens": 213_554,
            "tokens": 33_200,
            "tokens_limit": 43_080,
            "requests": 30,
            "requests_limit": 39,
            "drain_tokens_per_s": 6_082.4,
            "engines": {"all": 2, "ready": 1, "running": 30, "waiting": 2, "kv_used_ratio": 0.44},
            "orphans": {"requests": 2, "tokens": 1_806, "oldest_s": 31.4},
            "queue": {
                "bulk/archive": {"requests": 60, "tokens": 212_132, "head_waited_s": 26.3, "wait_s": 76.2},
                "batch/reports": {"requests": 1, "tokens": 1_422, "head_waited_s": 0.4, "wait_s": None},
            },
            "replicas": {
                "llama/0": replica(),
                "llama/1": replica(state="breaker_open", breaker="open", unproved=3, waiting=2, kv_used_ratio=0.44),
            },
        }
    },
    "tenants": {
        "shop": tenant(1_533, 8_000, 8, 0, 3.7, 0.0),
        "reports": tenant(11_981, 12_000, 10, 1, 1.6, 0.0),
        "archive": tenant(15_765, 16_000, 4, 60, 0.6, 2.1),
    },
    "classes": {
        "interactive": of_class(0.6, 0.45, 5.4, 5.3, 0.0, 0),
        "batch": of_class(None, 9.25, 1.3, 1.3, 0.0, 1),
        "bulk": of_class(None, 29.0, 2.7, 0.6, 2.1, 60),
    },
    "decisions": [
        decision(41, "8e2edcaf2f7251", "archive", "bulk", "refuse", "queue_full", 1_547, 0.0),
        decision(42, "8e2edcaf2f7252", "reports", "batch", "queue", "", 1_422, 0.0),
        decision(42, "8e2edcaf2f7253", "shop", "interactive", "admit", "", 240, 0.031),
    ],
}
STORY = [
    "Request req_8e2edcaf2f7251 of tenant archive (class bulk) asked tiny for 1,547 tokens.",
    "It was refused at once: 61 requests of class bulk would be waiting, and 60 may (queue_full).",
]
