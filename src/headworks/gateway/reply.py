"""What we say ourselves: refusals and failures (E4, design section 9). The headers every answer carries: `every_answer.py`.

Everything about a reason comes from its row in `core/reasons.py`: status, type, whether and when a retry helps, and the
sentence, filled with the numbers of the verdict that decided. A refusal is a ticket: `retry-after-ms` is the return slot
exactly, `Retry-After` the same in whole seconds from 1 to 60 for clients that read only that, and a slot further away
than `HORIZON_S` says `x-should-retry: false`, as stock SDKs would otherwise come back at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from headworks.core.reasons import REASONS, Reason
from headworks.core.types import Decision, Forecast, Usage
from headworks.gateway.error_shapes import OPENAI, Error, bare, written
from headworks.gateway.every_answer import Allowance, Headers, Ids, own_headers
from headworks.gateway.guard import Overload
from headworks.gateway.verdicts import ShownVerdict, shown

HORIZON_S = 60
"""Longer waits are not waited for: OpenAI's SDK ignores a hint above it and backs off by its own half second."""
RETRY_S_DEFAULT = 1.0
"""Where a retry helps and nobody can say when."""
OVERLOAD_STATUSES = frozenset({429, 503})
DECIDED_BY = {"queue_delay_and_kv_saturation": "queue_delay_exceeded"}
"""Codes that stand for two failed checks, and the one whose numbers the sentence gives."""
JSON = (b"Content-Type", b"application/json")
_NO_RETRY = (b"x-should-retry", b"false")


class Answer(NamedTuple):
    """A whole answer of our own."""

    status: int
    headers: Headers
    body: bytes


class _Explanation(msgspec.Struct):
    decision: str
    verdicts: Sequence[ShownVerdict]
    forecast: Forecast | None
    policy_version: str


class _ExplanationWithUsage(_Explanation):
    usage: Usage


def refusal(
    decision: Decision, ids: Ids, *, wall_s: float, allowance: Allowance | None = None, usage: Usage | None = None
) -> Answer:
    """The answer to a request that does not run. `wall_s` is Unix time, `usage` what a completed key has used (A6)."""
    reason = REASONS[decision.reason]
    verdicts = shown(decision.rows)
    explanation = _Explanation(decision.id, verdicts, decision.forecast, decision.policy_version)
    if usage is not None:
        explanation = _ExplanationWithUsage(decision.id, verdicts, decision.forecast, decision.policy_version, usage)
    wait_s = decision.forecast.wait_s
    headers = own_headers(ids, decision.waited_s if wait_s is None else wait_s, allowance)
    return _answer(reason, _message(reason, decision), None, explanation, ids, headers, decision.retry_after_s, wall_s)


def failure(
    code: str,
    ids: Ids,
    *,
    wall_s: float,
    subject: str = "",
    param: str | None = None,
    value: float | None = None,
    limit: float | None = None,
    unit: str = "",
    waited_s: float = 0.0,
    retry_after_s: float | None = None,
    decision: str = "",
    policy_version: str = "",
) -> Answer:
    """The answer where no decision was made (a wrong body, no key), or to a request that ended after it was admitted."""
    reason = REASONS[code]
    message = _fill(reason, value, limit, unit, subject)
    explanation = _Explanation(decision or ids.request_id.decode("latin-1"), (), None, policy_version)
    return _answer(reason, message, param, explanation, ids, own_headers(ids, waited_s), retry_after_s, wall_s)


def denied(code: str, ids: Ids, failures_max: int, retry_after_s: float | None, wall_s: float) -> Answer:
    """The answer to a bad key, and to an address that has sent too many of them."""
    unit = "failed keys a minute"
    return failure(code, ids, wall_s=wall_s, value=failures_max + 1, limit=failures_max, unit=unit, retry_after_s=retry_after_s)


def shed(overload: Overload, ids: Ids, wall_s: float) -> Answer:
    """The answer to what a gateway refuses because it cannot keep up itself."""
    subject, (value, limit), again_s = overload.subject, overload.numbers, overload.again_s
    return failure("gateway_overloaded", ids, wall_s=wall_s, subject=subject, value=value, limit=limit, retry_after_s=again_s)


def http_error(status: int, code: str, message: str, wall_s: float, shape: str = OPENAI) -> tuple[Headers, bytes]:
    """Headers and body for what the HTTP edge refuses by itself, before anybody knows whose request it is."""
    reason = REASONS.get(code)
    headers: Headers = [JSON]
    if reason is None:  # a fault of ours
        headers.append(_NO_RETRY)
        return headers, bare(shape, status, Error(message, "server_error", None, code))
    _advise(headers, reason, None, wall_s)
    return headers, bare(shape, status, Error(message, reason.error_type, None, code))


def hint_s(engine_headers: Sequence[tuple[bytes, bytes]]) -> float:
    """When an engine says that it is worth coming back; 0 if it does not, or only by a date."""
    told_s = {name: HINTS[name] * float(value) for name, value in engine_headers if name in HINTS and NUMBER.fullmatch(value)}
    return max(told_s.values(), default=0.0)


HINTS = {b"retry-after": 1.0, b"retry-after-ms": 0.001}
NUMBER = re.compile(rb"\d{1,9}(\.\d{1,9})?")


def _answer(
    reason: Reason,
    message: str,
    param: str | None,
    explanation: _Explanation,
    ids: Ids,
    headers: Headers,
    retry_after_s: float | None,
    wall_s: float,
) -> Answer:
    headers.append(JSON)
    _advise(headers, reason, retry_after_s, wall_s)
    error = Error(message, reason.error_type, param, reason.code)
    body = written(ids.shape, reason.status, error, explanation, ids.request_id)
    return Answer(reason.status, headers, body)


def _advise(headers: Headers, reason: Reason, retry_after_s: float | None, wall_s: float) -> None:
    """What a client's program can act on: when to come back, and what there is too much of."""
    _retry(headers, reason, retry_after_s, wall_s)
    if reason.status in OVERLOAD_STATUSES:
        headers.append((b"X-Overload-Reason", reason.code.encode()))
    elif reason.status == 401:
        headers.append((b"WWW-Authenticate", b"Bearer"))


def _retry(headers: Headers, reason: Reason, retry_after_s: float | None, wall_s: float) -> None:
    """When to come back, in every form that is read, or that it does not help."""
    if reason.retry == "never":
        headers.append(_NO_RETRY)
        if retry_after_s is not None:  # a period's quota: no retry, but the time it begins anew is known
            headers.append((b"X-RateLimit-Reset", b"%d" % math.ceil(wall_s + retry_after_s)))
        return
    if reason.retry == "none":
        return
    slot_s = RETRY_S_DEFAULT if retry_after_s is None else retry_after_s
    headers.append((b"retry-after-ms", b"%d" % max(1, round(slot_s * 1000))))
    if reason.retry == "key":
        return
    headers.append((b"Retry-After", b"%d" % min(HORIZON_S, max(1, math.ceil(slot_s)))))
    if reason.status in OVERLOAD_STATUSES:
        headers.append((b"X-RateLimit-Reset", b"%d" % math.ceil(wall_s + slot_s)))
    if slot_s > HORIZON_S:
        headers.append(_NO_RETRY)


def _message(reason: Reason, decision: Decision) -> str:
    """The reason's sentence with the numbers of the last failed verdict that has it: the one that was found binding."""
    if "{" not in reason.sentence:
        return reason.sentence
    wanted = DECIDED_BY.get(reason.code, reason.code)
    for check, scope, value, limit, unit, failed in reversed(decision.rows):
        if failed == wanted and value > limit and _speaks_of(wanted, check):
            return _fill(reason, value, limit, unit, scope)
    for check, scope, value, limit, unit, failed in reversed(decision.rows):
        # Its time was over, and by then what it had waited for was there: the numbers of that would say nothing.
        if failed == "queue_timeout" and value > limit and _speaks_of("queue_timeout", check):
            return _fill(REASONS["queue_timeout"], value, limit, unit, scope)
    if wanted == "queue_timeout":
        return _fill(reason, decision.waited_s, decision.waited_s, "s", decision.pool)
    return _fill(reason, None, None, "units", decision.model)


def _speaks_of(code: str, check: str) -> bool:
    """Whatever is short can end in `queue_timeout`, but its sentence speaks of time."""
    return code != "queue_timeout" or check == "time"


def _fill(reason: Reason, value: float | None, limit: float | None, unit: str, subject: str) -> str:
    bound = f"{number(limit)} s" if unit.split(" ")[0] == "s" else number(limit)
    named = unit.replace("_", " ")
    return reason.sentence.format(value=number(value), limit=number(limit), bound=bound, unit=named, subject=subject)


def number(value: float | None) -> str:
    """As a person reads it: `17,000`, `6.06`, `0.88`."""
    if value is None:
        return "an unknown number of"
    if not math.isfinite(value):
        return "unlimited"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3g}"
