"""Every header that means something here, in one table: what we read, and what we write. Docs are made from it.

The code that reads or writes a header names it where it does so; `tests/test_tidy.py` holds both to each other.
"""

from __future__ import annotations

from typing import NamedTuple


class Header(NamedTuple):
    """One row. `when`: on which requests it is read, or on which answers it stands."""

    name: str
    when: str
    meaning: str


READ: tuple[Header, ...] = (
    Header(
        "Authorization",
        "every request where tenants are configured",
        "`Bearer KEY`: who asks. The tenant comes from nowhere else.",
    ),
    Header("x-api-key", "every request without `Authorization`", "The same key, as Anthropic's clients send it."),
    Header("anthropic-version", "`GET /v1/models`", "That there is one has the list written as Anthropic writes it."),
    Header(
        "Headworks-Class", "a call", "The service class, if tenant and key may use it, else 403. Without it, the tenant's own."
    ),
    Header("Headworks-Deadline", "a call", "Decimal seconds from receipt after which the answer is of no use."),
    Header(
        "Headworks-Session",
        "a call",
        "The session that pays for it, as opening one answered. One of another key is as none: `session_exhausted`.",
    ),
    Header(
        "Idempotency-Key",
        "a call",
        "The client's name for this request: while it runs and after, the same key and parameters get the same answer.",
    ),
    Header("X-Request-Id", "every request", "Repeated in the answer, and a name to ask `explain` by. Never forwarded."),
    Header(
        "traceparent",
        "a call",
        "Its trace (W3C Trace Context): passed on to the engine, and a name to ask `explain` by. Dropped if it cannot be read.",
    ),
    Header("tracestate", "a call with a `traceparent`", "Passed on to the engine with it, or dropped if it cannot be read."),
    Header("x-stainless-read-timeout", "a call", "Sent by stock SDKs: the silence they bear bounds the first token."),
    Header("x-stainless-retry-count", "a call", "Sent by stock SDKs: tells a first attempt from a retry in the metrics."),
)

WRITTEN: tuple[Header, ...] = (
    Header("X-Request-Id", "every answer", "The client's own name if it is fit to be repeated, else one of ours."),
    Header("request-id", "every answer of `/v1/messages` and below it", "The same, where Anthropic's clients look for it."),
    Header(
        "Idempotency-Key", "every answer to a call", "The client's key if it gave one, else the same as ours for the request."
    ),
    Header("Queue-Wait", "every answer to a call", "Seconds waited before it ran; on a refusal, the predicted wait."),
    Header(
        "x-ratelimit-limit-requests",
        "calls of tenants with that limit",
        "Requests at once by the tightest bucket of tenant and client; without one, sequences the tenant may have in use.",
    ),
    Header("x-ratelimit-remaining-requests", "calls of tenants with that limit", "What is left of them now."),
    Header(
        "x-ratelimit-reset-requests",
        "calls of tenants with that limit",
        "When all of them are there again, as `1.5s` or `6m0s`.",
    ),
    Header(
        "x-ratelimit-limit-tokens",
        "calls of tenants with that limit",
        "Tokens at once by the tightest bucket; without one, tokens the tenant may have in use.",
    ),
    Header("x-ratelimit-remaining-tokens", "calls of tenants with that limit", "What is left of them now."),
    Header(
        "x-ratelimit-reset-tokens", "calls of tenants with that limit", "When all of them are there again, as `1.5s` or `6m0s`."
    ),
    Header(
        "retry-after-ms", "refusals that a retry can cure", "The return slot, exactly. Stock SDKs obey it to the millisecond."
    ),
    Header("Retry-After", "the same", "The slot in whole seconds from 1 to 60, for clients that read only that."),
    Header(
        "x-should-retry", "refusals that no retry can cure, and slots over 60 s", "`false`: stock SDKs then ask no second time."
    ),
    Header("X-RateLimit-Reset", "429 and 503", "The slot as Unix seconds."),
    Header("X-Overload-Reason", "429 and 503", "The code, for those who do not read the body."),
    Header("WWW-Authenticate", "401", "`Bearer`."),
    Header(
        "Headworks-Degraded",
        "answers that were changed to fit",
        "What was changed, in the order of the class's `on_pressure`: `clamp_output=64, smaller_model=llama-1b`.",
    ),
)
