"""The lines of a decision log, field by field: what stands at which place (docs/decisions/0041-what-a-record-costs.md).

Decisions and outcomes are arrays. The first line of each file names their fields, in this order:

    {"kind":"fields","utc":…,"monotonic_s":…,"record":{"decision":{"names":["kind","form",…],"otherwise":{"reason":"",…}},…}}

A line may end before the fields of `otherwise`, which then are what is said there. What was refused before it was read is one
array of a kind of its own, and is read as a decision and an outcome (`logs/turned_away.py`).

What thousands of them have in common is a *form*: written once, referred to by its number, and repeated at the beginning of
each further file. Where there are too many, a line has its form in itself, in place of the number:

    {"kind":"form","utc":…,"monotonic_s":…,"record":{"number":3,"tenant":"acme",…,"verdicts":[["tenant","tenant:acme",…],…]}}

Everything else is an object, `{"kind":…,"utc":…,"monotonic_s":…,"record":{…}}`; so were decisions and outcomes before. A name
`a.b` is the field b of a. A time that ends with `_ns` or `_us` counts those, if it is whole; with a decimal point it is
seconds. A key that is null is the id itself. What a verdict compared are two numbers, its value and its limit, in the order
of the form's verdicts; null is without bound.
"""

from __future__ import annotations

from typing import Final

FIELDS: Final = "fields"
FORM: Final = "form"
"""Kinds of lines about lines."""
DECISION: Final = "decision"
OUTCOME: Final = "outcome"
TURNED_AWAY: Final = "turned_away"
"""A decision and an outcome in one: it was refused before it was read, so most of what both would say is nothing."""

WORK = (
    *("work.tokens", "work.prefill_tokens", "work.sequences", "work.kv_tokens", "work.output_tokens", "work.basis"),
    "work.output_tokens_max",
)
NAMES: dict[str, tuple[str, ...]] = {
    DECISION: (
        *("kind", "form", "id", "key", "utc_us", "decided_ns", "came_ns", "outcome", "compared"),
        *("forecast.prefill_us", "forecast.ttft_us", "forecast.total_us", "forecast.tpot_ns", "forecast.buffer_ratio"),
        *("forecast.basis", *WORK, "policy_version"),
    ),
    OUTCOME: (
        *("kind", "form", "id", "key", "execution", "utc_us", "outcome"),
        *("arrived_ns", "admitted_ns", "sent_ns", "first_byte_ns", "ended_ns", "told_ns", *WORK, "usage"),
        *("evidence", "in_slo", "predicted_ttft_us", "predicted_total_us", "replica", "asked"),
    ),
    TURNED_AWAY: (
        *("kind", "form", "id", "key", "utc_us", "decided_ns", "came_ns", "reason", "compared", "retry_after_s", "retry_kind"),
        *(*WORK, "work.bound_tokens", "policy_version"),
        *("asked.prompt_bytes", "asked.output_tokens_max", "asked.samples", "asked.stream", "asked.retry_count"),
        *("asked.start_ns", "asked.finish_ns"),
    ),
}
"""The names come first: they are found, and indexed, without reading the rest. `came_ns`: when what was decided about came."""
OTHERWISE: dict[str, dict[str, object]] = {
    DECISION: {
        "reason": "",
        "forecast.wait_us": 0,
        "forecast.wait_most_us": 0,
        "forecast.wait_spread_us": 0,
        "forecast.drain_tokens_per_s": None,
        "forecast.drain_error_ratio": None,
        "work.engine_s": 0.0,
        "work.bound_tokens": 0,
        "retry_after_s": None,
        "position": 0,
        "degraded": "",
        "at_arrival": True,
    },
    OUTCOME: {
        "reason": "",
        "retry": False,
        "work.engine_s": 0.0,
        "work.bound_tokens": 0,
        "unconfirmed_s": None,
        "grown_tokens": 0,
        "growths": 0,
        "growths_refused": 0,
        "retry_kind": "",
        "marks": None,
    },
    TURNED_AWAY: {},
}
"""Fields behind those, and what they are where a line ends before them: that of an ordinary request does."""
USAGE = ("prompt_tokens", "cached_tokens", "output_tokens", "engine_ns", "end", "exact")
"""Of `usage`, which is null where nobody knows any."""
ASKED_TIMES = (9, 10)
"""Of `asked`, those that are nanoseconds. Its last two fields, what its prompt is made of and the route, are the form's."""
