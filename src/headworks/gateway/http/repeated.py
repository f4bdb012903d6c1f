"""The head of a connection's last request, so that the same head again need not be judged again.

A client says the same with every request of one connection, only about another length. So what was found good once is
compared (two comparisons of bytes) where it would otherwise be split, parsed and judged line by line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headworks.gateway.http.head import RequestLine

REMEMBERED_BYTES_MAX = 2_048
"""A head longer than this is judged each time: ten thousand connections may remember one each."""
MISSES_MAX = 8
"""A client that sends so many different heads in a row is no longer expected to repeat one."""
DIGITS_MAX = 18

_LENGTH = re.compile(rb"\r\n(?i:content-length):[ \t]*([0-9]+)[ \t]*\r\n")


@dataclass(slots=True, eq=False)
class RepeatedHead:
    """A head that was served, around the digits of its length."""

    line: RequestLine
    fields: dict[bytes, bytes]
    before: bytes
    after: bytes
    before_bytes: int
    after_bytes: int


def remember(head: bytes, line: RequestLine, fields: dict[bytes, bytes], header_bytes_max: int) -> RepeatedHead | None:
    """Only of a head that went to a handler with a body of stated length, and that asked for nothing but an answer."""
    if len(head) + DIGITS_MAX > min(REMEMBERED_BYTES_MAX, header_bytes_max) or b"expect" in fields:
        return None
    found = _LENGTH.search(head)
    if found is None:
        return None
    start, end = found.span(1)
    return RepeatedHead(line, fields, head[:start], head[end:], start, len(head) - end)
