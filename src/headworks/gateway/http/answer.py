"""Heads of answers: one join, one check that no value can begin a second answer, and framing that is always ours.

An engine's own framing and connection fields describe its connection, not this one, so they never pass; nor do fields
that its `Connection` names. A value that holds CR, LF or NUL is refused, whoever wrote it.
"""

from __future__ import annotations

import math
import re
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from headworks.gateway.http.limits import Headers

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE_LINE = b"Connection: close\r\n"
KEEP_ALIVE_LINE = b"Connection: keep-alive\r\n"
CHUNKED_LINES = b"Transfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
WITHOUT_LENGTH = frozenset({204, 304})
"""Answers that have no body by definition, and whose head states no length."""

NOT_PASSED = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade content-length date".split()
)
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NAMES_MAX = 256
_prefixes: dict[bytes, bytes] = {}
"""`Name: ` for each name that was found good and may pass."""


def header_lines(headers: Headers | bytes) -> bytes:
    """Checked fields as whole lines, which may be given in their place as often as wanted."""
    if isinstance(headers, bytes):
        return headers
    try:
        lines = [_prefixes[name] + value for name, value in headers]
    except KeyError:
        lines = _judged_lines(headers)
    if not lines:
        return b""
    fields = b"\r\n".join(lines)
    ends = len(lines) - 1
    if fields.count(b"\r") != ends or fields.count(b"\n") != ends or 0 in fields:
        raise ValueError(f"a header value holds CR, LF or NUL, among {[name for name, _ in headers]!r}")
    return fields + b"\r\n"


def _judged_lines(headers: Headers) -> list[bytes]:
    """The same for names that are new here, or that must not pass."""
    listed = b",".join(value for name, value in headers if name.lower() == b"connection").lower().split(b",")
    not_passed = NOT_PASSED.union(name.strip() for name in listed)
    lines = []
    for name, value in headers:
        if name.lower() in not_passed:
            continue
        if _TOKEN.fullmatch(name) is None:
            raise ValueError(f"{name!r} is not a header name")
        lines.append(b"%b: %b" % (name, value))
        if name.lower() not in NOT_PASSED and len(_prefixes) < _NAMES_MAX:
            _prefixes[name] = b"%b: " % name
    return lines


@lru_cache(maxsize=128)
def status_line(status: int) -> bytes:
    """The first line of an answer, whole."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


class DateLine:
    """The Date field, rendered once a second by whoever finds it stale."""

    __slots__ = ("line", "stale_s")

    def __init__(self) -> None:
        self.line = b""
        self.stale_s = -math.inf

    def render(self, now_s: float) -> None:
        self.line = b"Date: %b\r\n" % formatdate(usegmt=True).encode()
        self.stale_s = now_s + 1.0
