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
from headworks.core.turning_away import NOT_FORESEEN
from headworks.core.types import Decision, Usage
from headworks.gateway import verdict_text
from headworks.gateway.error_shapes import OPENAI, Error, bare, written
from headworks.gateway.every_answer import Allowance, Headers, Ids, own_lines, pairs_of
from headworks.gateway.guard import Overload
from headworks.gateway.keys import FAILURES_MAX, Denied

HORIZON_S = 60
"""Longer waits are not waited for: OpenAI's SDK ignores a hint above it and backs off by its own half second."""
RETRY_S_DEFAULT = 1.0
"""Where a retry helps and nobody can say when."""
OVERLOAD_STATUSES = frozenset({429, 503})
DECIDED_BY = {"queue_delay_and_kv_saturation": "queue_delay_exceeded"}
"""Codes that stand for two failed checks, and the one whose numbers the sentence gives."""
JSON = (b"Content-Type", b"application/json")
JSON_LINE = b"Content-Type: application/json\r\n"
_encode = msgspec.json.Encoder().encode
NOT_FORESEEN_TEXT = _encode(NOT_FORESEEN)
HOLE = "\0"
"""Where a value comes."""
SENTENCES_MAX = 4_096
_sentences: dict[tuple[str, float | None, str, str], list[str]] = {}
"""Those with all but their values, by reason, limit, unit and subject."""
SHOULD_RETRY, RETRY_MS, RETRY_AFTER = b"x-should-retry", b"retry-after-ms", b"Retry-After"
RESET, OVERLOAD = b"X-RateLimit-Reset", b"X-Overload-Reason"
NO_RETRY = SHOULD_RETRY + b": false\r\n"
WHO = b"WWW-Authenticate"


class OwnAnswer(NamedTuple):
    """A whole answer of our own."""

    status: int
    headers: bytes
    """Whole lines."""
    body: bytes


def refusal(
    decision: Decision, ids: Ids, *, wall_s: float, allowance: Allowance | None = None, usage: Usage | None = None
) -> OwnAnswer:
    """The answer to a request that does not run. `wall_s` is Unix time, `usage` what a completed key has used (A6)."""
    reason = REASONS[decision.reason]
    told = b"" if usage is None else b',"usage":%b' % _encode(usage)
    explanation = b'{"decision":%b,"verdicts":%b,"forecast":%b,"policy_version":%b%b}' % (
        _encode(decision.id),
        verdict_text.written(decision.rows),
        NOT_FORESEEN_TEXT if decision.forecast is NOT_FORESEEN else _encode(decision.forecast),
        _encode(decision.policy_version),
        told,
    )
    wait_s = decision.forecast.wait_s
    lines = own_lines(ids, decision.waited_s if wait_s is None else wait_s, allowance)
    return _answer(reason, _message(reason, decision), None, explanation, ids, lines, decision.retry_after_s, wall_s)


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
) -> OwnAnswer:
    """The answer where no decision was made (a wrong body, no key), or to a request that ended after it was admitted."""
    reason = REASONS[code]
    message = _fill(reason, value, limit, unit, subject)
    explanation = b'{"decision":%b,"verdicts":[],"forecast":null,"policy_version":%b}' % (
        _encode(decision or ids.request_id.decode("latin-1")),
        _encode(policy_version),
    )
    return _answer(reason, message, param, explanation, ids, own_lines(ids, waited_s), retry_after_s, wall_s)


def denied(why: Denied, ids: Ids, wall_s: float) -> OwnAnswer:
    """The answer to a bad key or token, and to an address that has sent too many of them."""
    unit, value, again_s = "failed keys a minute", FAILURES_MAX + 1, why.retry_after_s
    return failure(
        why.reason, ids, wall_s=wall_s, subject=why.subject, value=value, limit=FAILURES_MAX, unit=unit, retry_after_s=again_s
    )


def shed(overload: Overload, ids: Ids, wall_s: float) -> OwnAnswer:
    """The answer to what a gateway refuses because it cannot keep up itself."""
    subject, (value, limit), again_s = overload.subject, overload.numbers, overload.again_s
    return failure("gateway_overloaded", ids, wall_s=wall_s, subject=subject, value=value, limit=limit, retry_after_s=again_s)


def http_error(status: int, code: str, message: str, wall_s: float, shape: str = OPENAI) -> tuple[Headers, bytes]:
    """Headers and body for what the HTTP edge refuses by itself, before anybody knows whose request it is."""
    reason = REASONS.get(code)
    if reason is None:  # a fault of ours
        return pairs_of(JSON_LINE + NO_RETRY), bare(shape, status, Error(message, "server_error", None, code))
    lines = JSON_LINE + _advice(reason, None, wall_s)
    return pairs_of(lines), bare(shape, status, Error(message, reason.error_type, None, code))


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
    explanation: bytes,
    ids: Ids,
    lines: bytes,
    retry_after_s: float | None,
    wall_s: float,
) -> OwnAnswer:
    error = Error(message, reason.error_type, param, reason.code)
    body = written(ids.shape, reason.status, error, explanation, ids.request_id)
    return OwnAnswer(reason.status, lines + JSON_LINE + _advice(reason, retry_after_s, wall_s), body)


def _advice(reason: Reason, retry_after_s: float | None, wall_s: float) -> bytes:
    """What a client's program can act on, as lines: when to come back, and what there is too much of."""
    if reason.retry == "never":
        lines = NO_RETRY
        if retry_after_s is not None:  # a period's quota: no retry, but the time it begins anew is known
            lines += b"%b: %d\r\n" % (RESET, math.ceil(wall_s + retry_after_s))
    elif reason.retry == "none":
        lines = b""
    else:
        lines = _slot(reason, RETRY_S_DEFAULT if retry_after_s is None else retry_after_s, wall_s)
    if reason.status in OVERLOAD_STATUSES:
        return lines + b"%b: %b\r\n" % (OVERLOAD, reason.code.encode())
    return lines + b"%b: Bearer\r\n" % WHO if reason.status == 401 else lines


def _slot(reason: Reason, slot_s: float, wall_s: float) -> bytes:
    """When to come back, in every form that is read."""
    slot_ms = round(slot_s * 1000)
    if slot_ms < 1:
        slot_ms = 1
    if reason.retry == "key":
        return b"%b: %d\r\n" % (RETRY_MS, slot_ms)
    whole_s = math.ceil(slot_s)
    if whole_s < 1:
        whole_s = 1
    told_s = HORIZON_S if whole_s > HORIZON_S else whole_s
    if reason.status in OVERLOAD_STATUSES:
        again_s = math.ceil(wall_s + slot_s)
        lines = b"%b: %d\r\n%b: %d\r\n%b: %d\r\n" % (RETRY_MS, slot_ms, RETRY_AFTER, told_s, RESET, again_s)
    else:
        lines = b"%b: %d\r\n%b: %d\r\n" % (RETRY_MS, slot_ms, RETRY_AFTER, told_s)
    return lines + NO_RETRY if slot_s > HORIZON_S else lines


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
    """Its sentence. Of one with a value all else is the same for thousands of requests, so that is kept."""
    if "{value}" not in reason.sentence:
        return _filled(reason, limit, unit, subject)
    about = (reason.code, limit, unit, subject)
    parts = _sentences.get(about)
    if parts is None:
        if len(_sentences) >= SENTENCES_MAX:
            _sentences.clear()
        parts = _sentences[about] = _filled(reason, limit, unit, subject).split(HOLE)
    return number(value).join(parts)


def _filled(reason: Reason, limit: float | None, unit: str, subject: str) -> str:
    bound = f"{number(limit)} s" if unit.split(" ")[0] == "s" else number(limit)
    named = unit.replace("_", " ")
    return reason.sentence.format(value=HOLE, limit=number(limit), bound=bound, unit=named, subject=subject)


def number(value: float | None) -> str:
    """As a person reads it: `17,000`, `6.06`, `0.88`."""
    if value is None:
        return "an unknown number of"
    if not math.isfinite(value):
        return "unlimited"
    whole, size = int(value), abs(value)
    if value == whole:
        return str(whole) if size < 1_000 else f"{whole:,}"
    if size < 1:
        return f"{value:.3g}"
    return "%.2f" % value if size < 900 else f"{value:,.2f}"  # noqa: UP031 (compiled, an f-string takes three times as long)
