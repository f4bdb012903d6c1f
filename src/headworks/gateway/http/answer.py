"""Heads of answers: one join, one check that no value can begin a second answer, and framing that is always ours.

An engine's own framing and connection fields describe its connection, not this one, so they never pass; nor do fields
that its `Connection` names. A value that holds CR, LF or NUL is refused, whoever wrote it.
"""

from __future__ import annotations

import math
import re
from email.utils import formatdate
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
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NAMES_MAX = 256
_prefixes: dict[bytes, bytes] = {}
"""CR LF, name and colon, for each name that was found good and may pass."""


class FirstLines:
    """Status lines with the date below, each rendered when the first answer of a second asks for it."""

    __slots__ = ("_lines", "_stale_s")

    def __init__(self) -> None:
        self._lines: dict[int, bytes] = {}
        self._stale_s = -math.inf

    def of(self, status: int, now_s: float) -> bytes:
        if now_s >= self._stale_s:
            self._lines.clear()
            self._stale_s = now_s + 1.0
        return self._lines.get(status) or self._rendered(status)

    def _rendered(self, status: int) -> bytes:
        phrase = _PHRASES.get(status, "")
        lines = self._lines[status] = f"HTTP/1.1 {status} {phrase}\r\nDate: {formatdate(usegmt=True)}\r\n".encode()
        return lines


def header_lines(headers: Headers | bytes) -> bytes:
    """Checked fields as whole lines, which may be given in their place as often as wanted."""
    if isinstance(headers, bytes):
        return headers
    parts: list[bytes] = []
    try:
        for name, value in headers:
            parts.append(_prefixes[name])
            parts.append(value)
    except KeyError:
        parts = _judged_parts(headers)
    lines, count = b"".join(parts), len(parts) // 2
    if lines.count(b"\r") != count or lines.count(b"\n") != count or 0 in lines:
        raise ValueError(f"a header value holds CR, LF or NUL, among {[name for name, _ in headers]!r}")
    return lines[2:] + b"\r\n" if parts else b""


def _judged_parts(headers: Headers) -> list[bytes]:
    """The same for names that are new here, or that must not pass."""
    listed = b",".join(value for name, value in headers if name.lower() == b"connection").lower().split(b",")
    not_passed = NOT_PASSED.union(name.strip() for name in listed)
    parts: list[bytes] = []
    for name, value in headers:
        if name.lower() in not_passed:
            continue
        if _TOKEN.fullmatch(name) is None:
            raise ValueError(f"{name!r} is not a header name")
        prefix = b"\r\n%b: " % name
        parts += (prefix, value)
        if len(_prefixes) < _NAMES_MAX:
            _prefixes[name] = prefix
    return parts
