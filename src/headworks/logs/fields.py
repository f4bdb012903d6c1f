"""The lines of a decision log, field by field: what stands at which place (docs/decisions/0041-what-a-record-costs.md).

Decisions and outcomes are arrays. The first line of each file names their fields, in this order:

    {"kind":"fields","utc":…,"monotonic_s":…,"record":{"decision":["kind","form","id",…],"outcome":[…]}}

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

WORK = (
    *("work.tokens", "work.prefill_tokens", "work.sequences", "work.engine_s", "work.kv_tokens", "work.output_tokens"),
    *("work.basis", "work.output_tokens_max", "work.bound_tokens"),
)
NAMES: dict[str, tuple[str, ...]] = {
    DECISION: (
        *("kind", "form", "id", "key", "utc_us", "decided_ns", "came_ns", "outcome", "reason", "compared"),
        *("forecast.wait_us", "forecast.prefill_us", "forecast.ttft_us", "forecast.total_us", "forecast.drain_tokens_per_s"),
        *("forecast.buffer_ratio", "forecast.basis", "forecast.wait_most_us", "forecast.tpot_ns"),
        *("forecast.drain_error_ratio", "forecast.wait_spread_us", *WORK),
        *("retry_after_s", "position", "degraded", "policy_version", "at_arrival"),
    ),
    OUTCOME: (
        *("kind", "form", "id", "key", "execution", "utc_us", "outcome", "reason", "retry"),
        *("arrived_ns", "admitted_ns", "sent_ns", "first_byte_ns", "ended_ns", *WORK, "usage"),
        *("evidence", "unconfirmed_s", "in_slo", "predicted_ttft_us", "grown_tokens", "growths", "growths_refused"),
        *("retry_kind", "predicted_total_us", "replica", "asked", "marks", "told_ns"),
    ),
}
"""The names come first: they are found, and indexed, without reading the rest. `came_ns`: when what was decided about came."""
USAGE = ("prompt_tokens", "cached_tokens", "output_tokens", "engine_ns", "end", "exact")
"""Of `usage`, which is null where nobody knows any."""
ASKED_TIMES = (9, 10)
"""Of `asked`, those that are nanoseconds. Its last two fields, what its prompt is made of and the route, are the form's."""
