"""What was refused before it was read, as the decision and the outcome that any other refusal has in the log."""

from __future__ import annotations

from typing import Any

Line = dict[str, Any]
COMMON = ("id", "key", "service_class", "model", "pool", "reason")
NOT_FORESEEN: Line = {
    "wait_s": None,
    "prefill_s": 0.0,
    "ttft_s": None,
    "total_s": None,
    "drain_tokens_per_s": None,
    "buffer_ratio": 1.0,
    "basis": "unread",
    "wait_most_s": None,
    "tpot_s": None,
    "drain_error_ratio": None,
    "wait_spread_s": 0.0,
}
NEVER: Line = {
    "execution": "",
    "outcome": "refused",
    "admitted_s": None,
    "sent_s": None,
    "first_byte_s": None,
    "usage": None,
    "evidence": "",
    "unconfirmed_s": None,
    "in_slo": False,
    "predicted_ttft_s": None,
    "predicted_total_s": None,
    "replica": "",
    "grown_tokens": 0,
    "growths": 0,
    "growths_refused": 0,
    "marks": None,
}
"""Of an outcome, what is so of everything that did not run."""


def both(record: Line, form: Line) -> tuple[Line, Line]:
    """A decision, whose verdicts are still as they are compared, and an outcome."""
    asked, common = record["asked"], {name: record[name] for name in COMMON}
    at_s, work = record["decided_s"], {**record["work"], "engine_s": 0.0}
    decision = {
        **common,
        "outcome": "refuse",
        "decided_s": at_s,
        "came_s": record["came_s"],
        "compared": record["compared"],
        "forecast": dict(NOT_FORESEEN),
        "work": work,
        "policy_version": record["policy_version"],
        "gateway": record["gateway"],
        "retry_after_s": record["retry_after_s"],
        "position": 0,
        "degraded": "",
        "at_arrival": True,
    }
    numbers = (asked["prompt_bytes"], None, asked["output_tokens_max"], 0, asked["samples"], asked["stream"], False, False)
    outcome = {
        **common,
        **NEVER,
        "client": record["client"],
        "arrived_s": record["came_s"],
        "told_s": at_s,
        "ended_s": at_s,
        "work": work,
        "retry": asked["retry_count"] > 0,
        "retry_kind": record["retry_kind"],
        "asked": [*numbers, asked["retry_count"], asked["start_s"], asked["finish_s"], *form["asked"]],
    }
    return decision, outcome
