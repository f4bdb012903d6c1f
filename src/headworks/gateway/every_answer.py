"""The headers that every answer carries: the names of the request, its wait, and what its tenant may use and has left.

Here and in no other place an answer's own lines are written; an ordinary answer takes nothing else of this gateway with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headworks.core.tenant import Left
from headworks.gateway.error_shapes import ANTHROPIC, OPENAI

Headers = list[tuple[bytes, bytes]]

KEPT_FROM_ENGINE = frozenset({b"content-type", b"cache-control", b"openai-processing-ms", b"openai-version"})
"""All that passes of an engine's head. Everything else there is about its own connection, or would contradict us."""


REQUEST_ID = b"X-Request-Id"
IDEMPOTENCY_KEY = b"Idempotency-Key"
QUEUE_WAIT = b"Queue-Wait"
ANTHROPIC_ID = b"request-id"
"""Where Anthropic's clients look for the first."""
REQUESTS_LIMIT = b"x-ratelimit-limit-requests"
REQUESTS_REMAINING = b"x-ratelimit-remaining-requests"
REQUESTS_RESET = b"x-ratelimit-reset-requests"
TOKENS_LIMIT = b"x-ratelimit-limit-tokens"
TOKENS_REMAINING = b"x-ratelimit-remaining-tokens"
TOKENS_RESET = b"x-ratelimit-reset-tokens"
LONG_MAX = 4_096
_long: dict[int, str] = {}
"""Times of a minute and more, by their seconds: what refuses for long says the same for a second."""


@dataclass(slots=True)
class Ids:
    """The names under which a client finds its request again. Both are checked before they come here."""

    request_id: bytes
    idempotency_key: bytes
    shape: str = OPENAI
    """In which shape errors are written to its client (`error_shapes.py`)."""


@dataclass(slots=True)
class Allowance:
    """What a tenant may use and has left, for OpenAI's `x-ratelimit-*`. None: no such limit, so no such header."""

    requests: Left | None = None
    tokens: Left | None = None


def own_headers(ids: Ids, waited_s: float, allowance: Allowance | None = None, degraded: str = "") -> Headers:
    """What every answer carries, streams included."""
    headers = pairs_of(own_lines(ids, waited_s, allowance))
    if degraded:
        headers.append((b"Headworks-Degraded", degraded.encode("latin-1", "replace")))
    return headers


def pairs_of(lines: bytes) -> Headers:
    """Whole lines, taken apart."""
    headers: Headers = []
    for line in lines.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b": ")
        headers.append((name, value))
    return headers


def own_lines(ids: Ids, waited_s: float, allowance: Allowance | None = None) -> bytes:
    """The same as whole lines, as they are sent. The ids were checked, and everything else in them is ours."""
    # The formats stand where they are used: the compiler makes them code, and of one with a name it makes a call.
    name, wait = ids.request_id, b"0.000" if 0.0 <= waited_s < 0.0005 else b"%.3f" % waited_s
    lines = b"%b: %b\r\n%b: %b\r\n%b: %b\r\n" % (REQUEST_ID, name, IDEMPOTENCY_KEY, ids.idempotency_key, QUEUE_WAIT, wait)
    if ids.shape == ANTHROPIC:
        lines += b"%b: %b\r\n" % (ANTHROPIC_ID, name)
    if allowance is None:
        return lines
    requests = _left(REQUESTS_LIMIT, REQUESTS_REMAINING, REQUESTS_RESET, allowance.requests)
    return lines + requests + _left(TOKENS_LIMIT, TOKENS_REMAINING, TOKENS_RESET, allowance.tokens)


def _left(limit: bytes, remaining: bytes, reset: bytes, left: Left | None) -> bytes:
    if left is None:
        return b""
    reset_in = b"0ms" if left.reset_s == 0.0 else duration(left.reset_s).encode()
    return b"%b: %d\r\n%b: %d\r\n%b: %b\r\n" % (limit, left.limit, remaining, left.remaining, reset, reset_in)


def kept_headers(engine_headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """What of an engine's head a client gets to see."""
    return [pair for pair in engine_headers if pair[0] in KEPT_FROM_ENGINE]


def duration(seconds: float) -> str:
    """`12ms`, `1.5s`, `6m0s`: the form OpenAI uses and Go clients parse."""
    if seconds < 1.0:
        return f"{max(0, math.ceil(seconds * 1000))}ms"
    if seconds < 60.0 and (whole := round(seconds, 1)) < 60:
        return f"{whole:g}s"
    rest = math.ceil(seconds)
    text = _long.get(rest)
    if text is None:
        if len(_long) >= LONG_MAX:
            _long.clear()
        hours, minutes = rest // 3600, rest // 60 % 60
        text = _long[rest] = f"{hours}h{minutes}m{rest % 60}s" if hours else f"{minutes}m{rest % 60}s"
    return text
