"""Every reason not to run, in one table: who is at fault, what the wire says, whether a retry helps.

A refusal is a value from here, with the number and the limit that decided. It is never an exception and never counted
as an engine failure. Docs and metrics labels are made from this table.
"""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    """One row. `retry`: `ticket` (a return slot), `refill` (when the bucket refills), `soon` (1 to 60 s), `never`, `key`
    (`retry-after-ms` only: the same key is still running)."""

    code: str
    scope: str
    """`tenant`, `pool`, `request`, `client`, `gateway` or `engine`."""
    status: int
    error_type: str
    retry: str
    sentence: str
    """Filled with `value`, `limit`, `unit` and `subject` of the verdict that decided."""


def _table(*rows: Reason) -> dict[str, Reason]:
    return {row.code: row for row in rows}


REASONS: dict[str, Reason] = _table(
    Reason(
        "tenant_capacity_exceeded",
        "tenant",
        429,
        "tokens",
        "ticket",
        "Your tenant would hold {value} {unit} of {limit}.",
    ),
    Reason(
        "rate_limit_exceeded",
        "tenant",
        429,
        "tokens",
        "refill",
        "Your rate allows {limit} {unit}; this request would make it {value}.",
    ),
    Reason(
        "insufficient_quota",
        "tenant",
        429,
        "insufficient_quota",
        "never",
        "Your quota is {limit} {unit}; this request would make it {value}.",
    ),
    Reason(
        "queue_delay_exceeded",
        "pool",
        429,
        "overloaded",
        "ticket",
        "The forecast is {value} {unit}; the limit is {bound}.",
    ),
    Reason(
        "kv_saturation",
        "pool",
        429,
        "overloaded",
        "ticket",
        "The engine's memory for running requests is {value} full; new work waits below {limit}.",
    ),
    Reason(
        "queue_delay_and_kv_saturation",
        "pool",
        429,
        "overloaded",
        "ticket",
        "The forecast is {value} {unit} (limit {bound}), and the engine's memory is full.",
    ),
    Reason(
        "compute_saturation",
        "pool",
        429,
        "overloaded",
        "ticket",
        "The engine's compute is {value} used; new work waits below {limit}.",
    ),
    Reason(
        "class_gate",
        "pool",
        429,
        "overloaded",
        "ticket",
        "This class is refused above {limit} {unit}; it is {value} now.",
    ),
    Reason("queue_full", "pool", 429, "overloaded", "ticket", "The queue would hold {value} {unit} of {limit}."),
    Reason(
        "queue_timeout",
        "pool",
        429,
        "overloaded",
        "ticket",
        "It waited {value} s and could not have started in time any more; the limit was {limit} s.",
    ),
    Reason(
        "prefill_saturated",
        "pool",
        429,
        "overloaded",
        "ticket",
        "Prompts being read would take {value} {unit} of {limit}.",
    ),
    Reason(
        "model_reservation",
        "pool",
        429,
        "overloaded",
        "ticket",
        "Memory guaranteed to another model leaves {limit} {unit}; this request needs {value}.",
    ),
    Reason(
        "session_exhausted",
        "tenant",
        429,
        "tokens",
        "ticket",
        "The session has {limit} {unit} left; this request needs {value}.",
    ),
    Reason(
        "retry_budget_exceeded",
        "client",
        429,
        "requests",
        "ticket",
        "This client would have made {value} {unit}; {limit} are allowed.",
    ),
    Reason(
        "request_exceeds_capacity",
        "request",
        400,
        "invalid_request_error",
        "never",
        "The request needs {value} {unit}; {subject} can never hold more than {limit}.",
    ),
    Reason("invalid_request", "request", 400, "invalid_request_error", "never", "{subject}"),
    Reason(
        "field_not_allowed",
        "request",
        400,
        "invalid_request_error",
        "never",
        "The field {subject} may not be set through this gateway.",
    ),
    Reason(
        "body_too_large",
        "request",
        413,
        "invalid_request_error",
        "never",
        "The body has {value} bytes; {limit} are allowed.",
    ),
    Reason("invalid_api_key", "client", 401, "authentication_error", "never", "The API key is missing or not known here."),
    Reason("invalid_token", "client", 401, "authentication_error", "never", "This token is not taken: {subject}."),
    Reason("forbidden", "tenant", 403, "permission_error", "never", "{subject}"),
    Reason("tenant_frozen", "tenant", 403, "permission_error", "never", "This tenant is frozen by its operator."),
    Reason(
        "model_not_found",
        "request",
        404,
        "invalid_request_error",
        "never",
        "The model {subject} does not exist here or is not allowed for this key.",
    ),
    Reason("not_found", "request", 404, "invalid_request_error", "never", "There is nothing at {subject}."),
    Reason(
        "idempotency_key_reused",
        "client",
        422,
        "invalid_request_error",
        "never",
        "This Idempotency-Key was used with other parameters.",
    ),
    Reason(
        "idempotency_in_progress",
        "client",
        409,
        "conflict",
        "key",
        "A request with this Idempotency-Key is still running and cannot be joined from here.",
    ),
    Reason(
        "idempotency_result_gone",
        "client",
        409,
        "conflict",
        "never",
        "The request with this Idempotency-Key has completed; its answer was not kept.",
    ),
    Reason(
        "ledger_unavailable",
        "gateway",
        503,
        "server_error",
        "soon",
        "The ledger that counts what is in use does not answer, so nothing new is admitted.",
    ),
    Reason("identity_unavailable", "gateway", 503, "server_error", "soon", "The keys to verify tokens by are not at hand."),
    Reason(
        "breaker_open",
        "engine",
        503,
        "server_error",
        "soon",
        "The engines of this pool have been failing and are left alone for a moment.",
    ),
    Reason("no_replica", "engine", 503, "server_error", "soon", "No engine of this pool can take work now."),
    Reason("draining", "gateway", 503, "server_error", "soon", "This gateway is shutting down."),
    Reason(
        "preempted",
        "pool",
        503,
        "server_error",
        "ticket",
        "The request was stopped to make room for one with less time left.",
    ),
    Reason(
        "gateway_overloaded",
        "gateway",
        503,
        "server_error",
        "soon",
        "This gateway itself is overloaded: {subject} is {value}, the limit is {limit}.",
    ),
    Reason("upstream_lost", "engine", 502, "server_error", "none", "The engine's answer broke off."),
    Reason("deadline_exceeded", "gateway", 504, "server_error", "never", "The time budget of {limit} s is over."),
    Reason(
        "upstream_timeout",
        "engine",
        504,
        "server_error",
        "soon",
        "The engine was silent for {value} s; the limit is {limit} s.",
    ),
)
