"""What a request's head must look like, and what its fields mean for framing.

llhttp, strict as it is, takes heads of a megabyte, two Hosts, no Host, `Host: a/b?c`, two spaces after the method,
`HTTP/2.0` and Transfer-Encoding on HTTP/1.0 (measured 2026-11-29). Whatever two parties can read in two ways is a way to
smuggle a request past the party in front, so here everything has one reading or is refused: RFC 9112's grammar without
what it only tolerates. A test holds that whatever passes here passes llhttp as well. All functions are pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from headworks.gateway.http.limits import EdgeLimits, HttpError, malformed

WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
SINGLE = frozenset(
    b"host content-length content-type content-encoding transfer-encoding authorization expect upgrade "
    b"idempotency-key user-agent x-api-key x-request-id traceparent".split()
)
"""Fields that say one thing; two of them would let two readers choose differently. All others are lists and are joined."""
LENGTH_DIGITS_MAX = 18
REMEMBERED_BYTES_MAX = 2_048
"""A head longer than this is judged each time: ten thousand connections may remember one each."""

_REQUEST_LINE = re.compile(rb"([A-Z][A-Z-]{0,23}) ([!-~]+) HTTP/([0-9.]{1,8})")
_FIELDS = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r\n)*\r\n")
_LENGTH = re.compile(rb"\r\n(?i:content-length):[ \t]*([0-9]+)[ \t]*\r\n")
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#]*)([^#]*)")
_PATH = re.compile(rb"(?:[A-Za-z0-9._~:@!$&'()*+,;=/-]|%[0-9A-Fa-f]{2})+")
_HOST = re.compile(rb"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_JSON = re.compile(rb"(?i:application/json)(?:[ \t]*;[ \t]*(?i:charset=\"?utf-8\"?))?")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\\]")


@dataclass(slots=True)
class RequestLine:
    """The first line, read once. `authority` is set when the target named one (absolute form)."""

    method: str
    path: str
    query: str
    http_1_0: bool
    authority: bytes | None


@dataclass(slots=True, eq=False)
class Head:
    """A whole head, found good. `length_bytes` None: the request ends where its chunks say."""

    line: RequestLine
    fields: dict[bytes, bytes]
    length_bytes: int | None
    keep_alive: bool
    continue_asked: bool
    before: bytes = b""
    after: bytes = b""
    """What stands around the digits of its length, if the same head is worth comparing with the next one."""
    digits: bytes = b""
    before_bytes: int = 0
    after_bytes: int = 0
    known: object = None  # what a handler found out by this head alone, for the same connection's same head to find again


def judge_beginning(head: bytes, limits: EdgeLimits) -> RequestLine | None:
    """Judges a head that may still be coming, so that what can never become good is answered at once."""
    if not 0x41 <= head[0] <= 0x5A:
        raise malformed("The request does not begin with a method; this port speaks plain HTTP/1.1.")
    if head.count(b"\n") != head.count(b"\r\n"):
        raise malformed("A line ends in a bare LF; every line of a head ends in CR LF.")
    line_bytes = head.find(b"\r\n")
    if (line_bytes if line_bytes >= 0 else len(head)) > limits.request_line_bytes_max:
        raise malformed(f"The request line is longer than {limits.request_line_bytes_max} bytes.", 431)
    if len(head) > limits.header_bytes_max:
        raise malformed(f"The head is larger than {limits.header_bytes_max} bytes.", 431)
    return request_line(head[:line_bytes]) if line_bytes >= 0 else None


def read_head(head: bytes, limits: EdgeLimits) -> Head:
    """Judges and reads a whole head, its empty line included."""
    line = judge_beginning(head, limits)
    assert line is not None, "a whole head has a first line"
    lines = head.split(b"\r\n")
    if len(lines) - 3 > limits.headers_max:
        raise malformed(f"The head holds {len(lines) - 3} fields; the limit is {limits.headers_max}.", 431)
    if _FIELDS.fullmatch(head, len(lines[0]) + 2) is None:
        raise malformed("A field is not a name, a colon and a value, or holds a character that may not stand in one.")
    fields = _fields(lines[1:-2])
    _check_routing(line, fields)
    length_bytes = _length_bytes(line, fields)
    keep_alive = _keeps_alive(fields.get(b"connection", b""), line.http_1_0)
    return Head(line, fields, length_bytes, keep_alive, b"expect" in fields and not line.http_1_0)


def remember(head: Head, text: bytes) -> Head | None:
    """The head to compare with the next: only one with a body of stated length that asks for nothing but an answer."""
    found = _LENGTH.search(text)
    if found is None or not head.keep_alive or head.continue_asked or len(text) > REMEMBERED_BYTES_MAX:
        return None
    start, end = found.span(1)
    head.before, head.digits, head.after = text[:start], text[start:end], text[end:]
    head.before_bytes, head.after_bytes = start, len(text) - end
    return head


@lru_cache(maxsize=256)
def request_line(line: bytes) -> RequestLine:
    """Cached because clients send few different lines; 256 of at most 8 KiB is the bound on what that keeps."""
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise malformed("The request line is not `METHOD target HTTP/1.1` with single spaces.")
    method, target, version = match.groups()
    if version not in (b"1.1", b"1.0"):
        raise malformed("This port speaks HTTP/1.1 and HTTP/1.0 only.", 505)
    if target == b"*":
        if method != b"OPTIONS":
            raise malformed("The target `*` belongs to OPTIONS only.")
        return RequestLine("OPTIONS", "*", "", version == b"1.0", None)
    authority = None
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is not None:
        authority, target = absolute.groups()
        if _HOST.fullmatch(authority) is None:
            raise malformed("The authority in the target is not a host with an optional port.")
        if not target.startswith(b"/"):
            target = b"/" + target
    raw_path, _, query = target.partition(b"?")
    if b"#" in query:
        raise malformed("The target holds a fragment.")
    return RequestLine(method.decode(), _decoded_path(raw_path), query.decode(), version == b"1.0", authority)


def _decoded_path(raw: bytes) -> str:
    """Decodes once, here and nowhere else, and refuses each spelling that a second reader might resolve differently."""
    if not raw.startswith(b"/") or _PATH.fullmatch(raw) is None:
        raise malformed("The path must begin with `/` and be percent-encoded where it holds anything but plain characters.")
    try:
        path = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise malformed("The path is not UTF-8 once decoded.") from error
    segments = path.split("/")
    if "//" in path or "." in segments or ".." in segments or _UNPRINTABLE.search(path):
        raise malformed("The path holds `//`, `.`, `..`, a backslash or a control character.")
    return path


def _fields(lines: list[bytes]) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    for line in lines:
        name, _, value = line.partition(b":")
        name = name.lower()
        value = value.strip()
        if name in fields:
            if name in SINGLE:
                raise malformed(f"The field {name.decode()} came more than once.")
            value = fields[name] + (b"; " if name == b"cookie" else b", ") + value
        fields[name] = value
    return fields


def _check_routing(line: RequestLine, fields: dict[bytes, bytes]) -> None:
    """One host, said once or twice alike, and no wish to speak something else."""
    host = fields.get(b"host")
    if host is None:
        if not line.http_1_0:
            raise malformed("HTTP/1.1 needs exactly one Host field; none came.")
    elif len(host) > 300 or _HOST.fullmatch(host) is None:
        raise malformed("The Host field is not a host with an optional port.")
    elif line.authority is not None and line.authority.lower() != host.lower():
        raise malformed("The Host field and the target name different hosts.")
    if b"upgrade" in fields:
        raise malformed("This port does not upgrade; leave the Upgrade field out.")


def _length_bytes(line: RequestLine, fields: dict[bytes, bytes]) -> int | None:
    """Where the request ends; without that nothing that follows could be trusted."""
    coding = fields.get(b"transfer-encoding")
    length = fields.get(b"content-length")
    if coding is not None:
        if line.http_1_0:
            raise malformed("HTTP/1.0 has no Transfer-Encoding.")
        if length is not None:
            raise malformed("Content-Length and Transfer-Encoding came together; send one of them.")
        if coding.lower() != b"chunked":
            raise malformed("The only transfer coding taken is `chunked`, once.")
        return None
    if length is None:
        return 0
    if not length.isdigit() or len(length) > LENGTH_DIGITS_MAX:
        raise malformed("Content-Length is not a plain decimal number.")
    return int(length)


@lru_cache(maxsize=64)
def _keeps_alive(connection: bytes, http_1_0: bool) -> bool:
    """Whether the client wants to ask again on this connection, from its Connection field (empty: none came)."""
    tokens = [token.strip() for token in connection.lower().split(b",")]
    return b"close" not in tokens and (not http_1_0 or b"keep-alive" in tokens)


def polite_refusal(head: Head, allowed: tuple[str, ...] | None, limits: EdgeLimits) -> HttpError | None:
    """The answer to a request that is well framed and still not for us, in the order in which a reader would want to know."""
    line, fields, length_bytes = head.line, head.fields, head.length_bytes
    if line.path == "*":
        return None
    if allowed is None:
        return HttpError(404, "not_found", f"There is nothing at {line.path}.")
    if line.method not in with_implied(allowed):
        names = ", ".join(with_implied(allowed))
        message = f"{line.path} does not take {line.method}; it takes {names}."
        return HttpError(405, "invalid_request", message, [(b"Allow", names.encode())])
    if head.continue_asked and fields[b"expect"].lower() != b"100-continue":
        return malformed("The only expectation met here is `100-continue`.", 417)
    if length_bytes == 0:
        if line.method in WITH_BODY and b"content-length" not in fields:
            return malformed(f"{line.method} needs Content-Length or `Transfer-Encoding: chunked`.", 411)
        return None
    if line.method in WITHOUT_BODY:
        return malformed(f"{line.method} is taken without a body.")
    if fields.get(b"content-encoding", b"identity").lower() != b"identity":
        return malformed("The body is compressed; send it as it is, without Content-Encoding.", 415)
    if _JSON.fullmatch(fields.get(b"content-type", b"")) is None:
        return malformed("The body must be JSON: send `Content-Type: application/json`.", 415)
    if length_bytes is not None and length_bytes > limits.body_bytes_max:
        return body_too_large(limits.body_bytes_max, length_bytes)
    return None


def with_implied(allowed: tuple[str, ...]) -> tuple[str, ...]:
    """What a path answers beyond what it names: HEAD where it has GET, OPTIONS always."""
    return (*allowed, "HEAD", "OPTIONS") if "GET" in allowed else (*allowed, "OPTIONS")


def body_too_large(bytes_max: int, given_bytes: int | None = None) -> HttpError:
    """`given_bytes` is what the client announced; of a chunked body nobody knows."""
    given = "more" if given_bytes is None else f"{given_bytes} bytes"
    return HttpError(413, "body_too_large", f"The body has {given}; the limit is {bytes_max} bytes.")
