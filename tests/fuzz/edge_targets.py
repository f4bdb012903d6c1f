"""What reads bytes of clients, and what holds of it whatever the bytes are (H3)."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import httptools

from headworks.core.reasons import REASONS
from headworks.gateway.admit import dialect_of
from headworks.gateway.dialects import image_sizes
from headworks.gateway.dialects.base import Fault, Limits, Parsed
from headworks.gateway.dialects.fields import REFUSED
from headworks.gateway.dialects.table import DIALECTS
from headworks.gateway.http.head import Head, judge_beginning, read_head
from headworks.gateway.http.limits import EdgeLimits, HttpError
from headworks.gateway.keys import Identity, Key, Keys

LIMITS = Limits(context_tokens=4_096)
ROUTES = sorted(DIALECTS)
TOLD_CHARACTERS = 12
"""A text that is shorter may stand in a message by chance."""
ODD = frozenset("{}<>@#~%^|=")
"""Characters of no message of ours: a text with one of them that stands in a message was taken from the body."""


def body(data: bytes) -> None:
    """The first byte names the route. A refusal is a 4xx that repeats no value; what is sent is what was priced."""
    path, given = ROUTES[data[0] % len(ROUTES)] if data else ROUTES[0], data[1:]
    dialect_of(given)
    read = DIALECTS[path].parse(given, LIMITS)
    if isinstance(read, Fault):
        assert 400 <= REASONS[read.reason].status < 500, read
        said = f"{read.subject} {read.param}"
        told = [value for value in values(given) if value in said]
        assert not told, f"{path}: {said!r} repeats {told}"
        return
    holds_together(path, read)
    again = DIALECTS[path].parse(json.dumps(json.loads(given), ensure_ascii=False).encode(), LIMITS)
    assert isinstance(again, Parsed) and again.fingerprint() == read.fingerprint(), "written otherwise it is another request"


def holds_together(path: str, read: Parsed) -> None:
    assert read.prompt_bytes >= 0 and 1 <= read.samples <= LIMITS.samples_max and read.prompts >= 1, read
    assert read.output_tokens_max is None or 0 <= read.output_tokens_max <= 4_096, read
    names: list[tuple[str, Any]] = json.loads(read.build(9, b"salt"), object_pairs_hook=list)
    sent = dict(names)
    assert len(sent) == len(names), f"a field is sent twice: {names}"
    assert not sent.keys() & (REFUSED.keys() - {"cache_salt", "background"}), sent.keys()
    assert sent.get("stream", False) is read.stream, sent
    if read.limit_key:
        assert sent[json.loads(b"{%b0}" % read.limit_key).popitem()[0]] == 9, sent
    texts = DIALECTS[path].texts
    if texts is not None:
        listed, _ = texts(read)
        size = sum(len(text.encode()) for text in listed if isinstance(text, str))
        assert size <= read.prompt_bytes * read.prompts, f"{size} bytes of text are priced as {read.prompt_bytes}"


def values(given: bytes) -> set[str]:
    """Texts of a body that are values, and are such that a message of ours has them only from there."""
    try:
        node = json.loads(given)
    except (ValueError, RecursionError):
        return set()
    found: set[str] = set()
    names: set[str] = set()
    nodes = [node]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            names |= node.keys()
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node
        elif isinstance(node, str) and len(node) >= TOLD_CHARACTERS and not ODD.isdisjoint(node):
            found.add(node)
    return {value for value in found if not any(value in name for name in names)}


class Quiet:
    """A parser's listener that counts messages."""

    def __init__(self) -> None:
        self.begun = 0

    def on_message_begin(self) -> None:
        self.begun += 1


def llhttp_count(head: bytes) -> int:
    listener = Quiet()
    try:
        httptools.HttpRequestParser(listener).feed_data(head)
    except httptools.HttpParserUpgrade:
        return -1
    except httptools.HttpParserError:
        return 0
    return listener.begun


def head(data: bytes) -> None:
    """A head that is accepted is one request for llhttp too, and written again it is the same request."""
    text = data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    limits = EdgeLimits()
    try:
        read = read_head(text, limits)
    except HttpError as error:
        assert 400 <= error.status < 500 or error.status == 505, error.status
        return
    for end in range(1, len(text), max(1, len(text) // 64)):
        judge_beginning(text[:end], limits)  # a part of a good one is never refused
    again = written(read)
    line, other = read.line, read_head(again, limits)
    same = (line.method, line.path, line.query, line.http_1_0) == (
        *(other.line.method, other.line.path, other.line.query, other.line.http_1_0),
    )
    assert same and stripped(other) == stripped(read), (text, again)
    assert (other.length_bytes, other.keep_alive) == (read.length_bytes, read.keep_alive), (text, again)
    if line.method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
        assert (llhttp_count(text), llhttp_count(again)) == (1, 1), (text, again)


def stripped(read: Head) -> dict[bytes, bytes]:
    """A list that was joined may end in an empty member, whose space is none when it is written."""
    return {name: value.strip() for name, value in read.fields.items()}


def written(read: Head) -> bytes:
    """As one would write it."""
    line = read.line
    path = "*" if line.path == "*" else quote(line.path, safe="/:@!$&'()*+,;=~")
    target = path + ("?" + line.query if line.query else "")
    fields = b"".join(b"%b: %b\r\n" % field for field in read.fields.items())
    return f"{line.method} {target} HTTP/1.{0 if line.http_1_0 else 1}\r\n".encode() + fields + b"\r\n"


def image(data: bytes) -> None:
    """A picture's size is positive, is what its bytes say, and is the same whatever stands behind where it was read."""
    text = data.decode("latin-1")
    for given in (text, base64.b64encode(data).decode()):
        size = image_sizes.size_of(given)
        assert size is None or (0 < size[0] < 2**32 and 0 < size[1] < 2**32), size
        if size is not None:
            assert image_sizes.size_of("=" + given, 1) == size
            assert image_sizes.size_of(given[: len(given) // 4 * 4] + "AAAA") in (size, None), given


SECRET = "a-secret-of-the-fuzzer-0123456789"
OWNER = Identity("acme", "env:KEY")


def key(data: bytes) -> None:
    """The one secret opens, as a bearer's token with white space around it, and nothing else does."""
    keys = Keys(b"pepper", [Key(SECRET, OWNER)])
    for given in (data, b"Bearer " + data, b"Bearer " + SECRET.encode() + data, data + b" " + SECRET.encode()):
        found = keys.identify(given, "127.0.0.1", 0.0)
        opens = len(given) <= 512 and given[:7].lower() == b"bearer " and given[7:].strip() == SECRET.encode()
        assert (found is OWNER) is opens, given
        assert keys.admin(given) == "", "a tenant's key opens the admin port"
