"""What a request's head must look like before the parser may see it, and what its fields mean for framing.

llhttp, strict as it is, takes heads of a megabyte, two Hosts, no Host, `Host: a/b?c`, two spaces after the method,
`HTTP/2.0` and Transfer-Encoding on HTTP/1.0 (measured 2026-11-29). Whatever two parties can read in two ways is a way to
smuggle a request past the party in front, so here everything has one reading or is refused. All functions are pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from headworks.gateway.http.limits import EdgeLimits, HttpError, malformed

ROUTABLE = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})

SINGLE = frozenset(
    b"host content-length content-type content-encoding transfer-encoding authorization expect upgrade "
    b"idempotency-key user-agent x-api-key x-request-id traceparent".split()
)
"""Fields that say one thing; two of them would let two readers choose differently. All others are lists and are joined."""

_REQUEST_LINE = re.compile(rb"([A-Z][A-Z-]{0,23}) ([!-~]+) HTTP/([0-9.]{1,8})")
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


class IncomingHead:
    """A head as it comes in: at once, which is what nearly all do, or in pieces."""

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        self._begun: bytearray | None = None

    @property
    def begun(self) -> bool:
        """Some of it is here, and some is missing."""
        return self._begun is not None

    def take(self, data: bytes, limits: EdgeLimits) -> tuple[bytes, bytes] | None:
        """The whole head and what follows it, once its end is here."""
        begun = self._begun
        if begun is None:
            if data.startswith(b"\r\n"):  # RFC 9112 2.2: one empty line before a request is to be ignored.
                data = data[2:]
            end = data.find(b"\r\n\r\n") + 4
            if end >= 4:
                return data[:end], data[end:]
            if data:
                begin_head(data, limits)
                self._begun = bytearray(data)
            return None
        searched = max(0, len(begun) - 3)
        begun += data
        end = begun.find(b"\r\n\r\n", searched) + 4
        if end >= 4:
            self._begun = None
            return bytes(begun[:end]), bytes(begun[end:])
        begin_head(begun, limits)
        return None

    def drop(self) -> None:
        """It will not be completed."""
        self._begun = None


def begin_head(head: bytes | bytearray, limits: EdgeLimits) -> None:
    """Judges a head that is still coming, so that what can never become good is answered at once."""
    if not 0x41 <= head[0] <= 0x5A:
        raise malformed("The request does not begin with a method; this port speaks plain HTTP/1.1.")
    if head.count(b"\n") != head.count(b"\r\n"):
        raise malformed("A line ends in a bare LF; every line of a head ends in CR LF.")
    line_end = head.find(b"\r\n")
    if line_end >= 0:
        request_line(bytes(head[:line_end]))
    elif len(head) > limits.request_line_bytes_max:
        raise _line_too_long(limits)
    if len(head) > limits.header_bytes_max:
        raise _head_too_large(limits)


def split_head(head: bytes, limits: EdgeLimits) -> list[bytes]:
    """Counts and measures a whole head. Returns its lines, the two empty strings after the last of them included."""
    if len(head) > limits.header_bytes_max:
        raise _head_too_large(limits)
    lines = head.split(b"\r\n")
    if len(lines) - 3 > limits.headers_max:
        raise malformed(f"The head holds {len(lines) - 3} fields; the limit is {limits.headers_max}.", 431)
    if len(lines[0]) > limits.request_line_bytes_max:
        raise _line_too_long(limits)
    return lines


def fields_of(lines: list[bytes]) -> dict[bytes, bytes]:
    """The fields of a head that the parser has accepted, so that each line is a name, a colon and a value."""
    fields: dict[bytes, bytes] = {}
    for line in lines[1:-2]:
        name, _, value = line.partition(b":")
        fields[name.lower()] = value.strip()
    return fields if len(fields) == len(lines) - 3 else _joined_fields(lines)


def _joined_fields(lines: list[bytes]) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    for line in lines[1:-2]:
        name, _, value = line.partition(b":")
        name = name.lower()
        value = value.strip()
        if name not in fields:
            fields[name] = value
        elif name in SINGLE:
            raise malformed(f"The field {name.decode()} came more than once.")
        else:
            fields[name] += (b"; " if name == b"cookie" else b", ") + value
    return fields


def _line_too_long(limits: EdgeLimits) -> HttpError:
    return malformed(f"The request line is longer than {limits.request_line_bytes_max} bytes.", 431)


def _head_too_large(limits: EdgeLimits) -> HttpError:
    return malformed(f"The head is larger than {limits.header_bytes_max} bytes.", 431)


@lru_cache(maxsize=256)
def request_line(line: bytes) -> RequestLine:
    """Cached because clients send few different lines; 256 of at most 8 KiB is the bound on what that keeps."""
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise malformed("The request line is not `METHOD target HTTP/1.1` with single spaces.")
    method, target, version = match.groups()
    if version not in (b"1.1", b"1.0"):
        raise malformed("This port speaks HTTP/1.1 and HTTP/1.0 only.", 505)
    authority = None
    if target == b"*":
        if method != b"OPTIONS":
            raise malformed("The target `*` belongs to OPTIONS only.")
        return RequestLine("OPTIONS", "*", "", version == b"1.0", None)
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is not None:
        authority, target = absolute.groups()
        if not is_host(authority):
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
        path = (unquote_to_bytes(raw) if b"%" in raw else raw).decode()
    except UnicodeDecodeError as error:
        raise malformed("The path is not UTF-8 once decoded.") from error
    segments = path.split("/")
    if "//" in path or "." in segments or ".." in segments or _UNPRINTABLE.search(path):
        raise malformed("The path holds `//`, `.`, `..`, a backslash or a control character.")
    return path


@lru_cache(maxsize=256)
def is_host(value: bytes) -> bool:
    """A name, an address or a bracketed IPv6 address, with an optional port, and nothing else."""
    return _HOST.fullmatch(value) is not None


def check_routing(line: RequestLine, fields: dict[bytes, bytes]) -> None:
    """One host, said once or twice alike, and no wish to speak something else."""
    host = fields.get(b"host")
    if host is None:
        if not line.http_1_0:
            raise malformed("HTTP/1.1 needs exactly one Host field; none came.")
    elif len(host) > 300 or not is_host(host):
        raise malformed("The Host field is not a host with an optional port.")
    elif line.authority is not None and line.authority.lower() != host.lower():
        raise malformed("The Host field and the target name different hosts.")
    if b"upgrade" in fields:
        raise malformed("This port does not upgrade; leave the Upgrade field out.")


@lru_cache(maxsize=64)
def keeps_alive(connection: bytes, http_1_0: bool) -> bool:
    """Whether the client wants to ask again on this connection, from its Connection field (empty: none came)."""
    tokens = [token.strip() for token in connection.lower().split(b",")]
    return b"close" not in tokens and (not http_1_0 or b"keep-alive" in tokens)


def length_bytes(line: RequestLine, fields: dict[bytes, bytes]) -> int | None:
    """Where the request ends: after so many bytes, or (None) where its chunks say. Else nothing that follows can be trusted."""
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
    if not length.isdigit() or len(length) > 18:
        raise malformed("Content-Length is not a plain decimal number.")
    return int(length)


def polite_refusal(
    line: RequestLine, fields: dict[bytes, bytes], length: int | None, allowed: tuple[str, ...] | None, limits: EdgeLimits
) -> HttpError | None:
    """The answer to a request that is well framed and still not for us, in the order in which a reader would want to know."""
    if allowed is None:
        return HttpError(404, "not_found", f"There is nothing at {line.path}.")
    if line.method not in allowed and line.method not in with_implied(allowed):
        return wrong_method(line, allowed)
    if b"expect" in fields and not line.http_1_0 and fields[b"expect"].lower() != b"100-continue":
        return malformed("The only expectation met here is `100-continue`.", 417)
    if length == 0:
        if line.method in WITH_BODY and b"content-length" not in fields:
            return malformed(f"{line.method} needs Content-Length or `Transfer-Encoding: chunked`.", 411)
        return None
    if line.method in WITHOUT_BODY:
        return malformed(f"{line.method} is taken without a body.")
    if b"content-encoding" in fields and fields[b"content-encoding"].lower() != b"identity":
        return malformed("The body is compressed; send it as it is, without Content-Encoding.", 415)
    content_type = fields.get(b"content-type", b"")
    if content_type != b"application/json" and _JSON.fullmatch(content_type) is None:
        return malformed("The body must be JSON: send `Content-Type: application/json`.", 415)
    if length is not None and length > limits.body_bytes_max:
        return body_too_large(limits.body_bytes_max, length)
    return None


def with_implied(allowed: tuple[str, ...]) -> tuple[str, ...]:
    """What a path answers beyond what it names: HEAD where it has GET, OPTIONS always."""
    return (*allowed, "HEAD", "OPTIONS") if "GET" in allowed else (*allowed, "OPTIONS")


def wrong_method(line: RequestLine, allowed: tuple[str, ...] | None) -> HttpError:
    """405 with what the path does take, or 404 where there is no such path."""
    if allowed is None:
        return HttpError(404, "not_found", f"There is nothing at {line.path}.")
    names = ", ".join(with_implied(allowed))
    message = f"{line.path} does not take {line.method}; it takes {names}."
    return HttpError(405, "invalid_request", message, [(b"Allow", names.encode())])


def body_too_large(bytes_max: int, given_bytes: int | None = None) -> HttpError:
    """`given_bytes` is what the client announced; of a chunked body nobody knows."""
    given = "more" if given_bytes is None else f"{given_bytes} bytes"
    return HttpError(413, "body_too_large", f"The body has {given}; the limit is {bytes_max} bytes.")
