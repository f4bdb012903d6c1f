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
    headers: Headers = []
    for line in own_lines(ids, waited_s, allowance).split(b"\r\n")[:-1]:
        name, _, value = line.partition(b": ")
        headers.append((name, value))
    if degraded:
        headers.append((b"Headworks-Degraded", degraded.encode("latin-1", "replace")))
    return headers


def own_lines(ids: Ids, waited_s: float, allowance: Allowance | None = None) -> bytes:
    """The same as whole lines, as they are sent. The ids were checked, and everything else in them is ours."""
    # The formats stand where they are used: the compiler makes them code, and of one with a name it makes a call.
    name, wait = ids.request_id, b"0.000" if 0.0 <= waited_s < 0.0005 else b"%.3f" % waited_s
    lines = b"X-Request-Id: %b\r\nIdempotency-Key: %b\r\nQueue-Wait: %b\r\n" % (name, ids.idempotency_key, wait)
    if ids.shape == ANTHROPIC:  # where its clients look for it
        lines += b"request-id: %b\r\n" % name
    if allowance is None:
        return lines
    left = allowance.requests
    if left is not None:
        lines += (
            b"x-ratelimit-limit-requests: %d\r\nx-ratelimit-remaining-requests: %d\r\nx-ratelimit-reset-requests: %b\r\n"
            % (left.limit, left.remaining, _reset(left))
        )
    left = allowance.tokens
    if left is not None:
        lines += b"x-ratelimit-limit-tokens: %d\r\nx-ratelimit-remaining-tokens: %d\r\nx-ratelimit-reset-tokens: %b\r\n" % (
            left.limit,
            left.remaining,
            _reset(left),
        )
    return lines


def _reset(left: Left) -> bytes:
    return b"0ms" if left.reset_s == 0.0 else duration(left.reset_s).encode()


def kept_headers(engine_headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """What of an engine's head a client gets to see."""
    return [pair for pair in engine_headers if pair[0] in KEPT_FROM_ENGINE]


def duration(seconds: float) -> str:
    """`12ms`, `1.5s`, `6m0s`: the form OpenAI uses and Go clients parse."""
    if seconds < 1.0:
        return f"{max(0, math.ceil(seconds * 1000))}ms"
    whole = round(seconds, 1)
    if whole < 60:
        return f"{whole:g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
