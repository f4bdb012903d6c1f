"""Heads of answers: one join, one check that no value can begin a second answer, and framing that is always ours.

An engine's own framing and connection fields describe its connection, not this one, so they never pass; nor do fields
that its `Connection` names. A value that holds CR, LF or NUL is refused, whoever wrote it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from headworks.gateway.http.limits import Headers

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE_LINE = b"Connection: close\r\n"
CHUNKED_LINE = b"Transfer-Encoding: chunked\r\n"
LAST_CHUNK = b"0\r\n\r\n"
WITHOUT_LENGTH = frozenset({204, 304})
"""Answers that have no body by definition, and whose head states no length."""

NOT_PASSED = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade content-length date".split()
)
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def answer_head(status: int, headers: Headers, ours: bytes) -> bytes:
    """`ours`: whole lines for date, framing and connection. Raises ValueError for a field that must not be sent."""
    lines = [prefix + value for name, value in headers if (prefix := _prefix(name))]
    if len(lines) != len(headers):
        listed = b",".join(value for name, value in headers if name.lower() == b"connection").lower().split(b",")
        named = {name.strip() for name in listed}
        lines = [_prefix(name) + value for name, value in headers if _prefix(name) and name.lower() not in named]
    fields = b"".join(lines)
    if fields.count(b"\r") != len(lines) or fields.count(b"\n") != len(lines) or b"\0" in fields:
        raise ValueError(f"a header value holds CR, LF or NUL, among {[name for name, _ in headers]!r}")
    return b"%b%b\r\n%b\r\n" % (_status_line(status), fields, ours)


@lru_cache(maxsize=256)
def _prefix(name: bytes) -> bytes:
    """CR LF, the name and a colon; empty for a name that must not pass."""
    if name.lower() in NOT_PASSED:
        return b""
    if _TOKEN.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not a header name")
    return b"\r\n%b: " % name


@lru_cache(maxsize=128)
def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}".encode()


class DateLine:
    """The Date field, rendered once a second."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._line = b""
        self._stale_s = -math.inf

    def line(self) -> bytes:
        now_s = self._clock_s()
        if now_s >= self._stale_s:
            self._line = b"Date: %b\r\n" % formatdate(usegmt=True).encode()
            self._stale_s = now_s + 1.0
        return self._line
