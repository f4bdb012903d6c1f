"""Heads, between Envoy's lists of fields and the HTTP/1.1 that our own edge reads and writes."""

from __future__ import annotations

Fields = list[tuple[bytes, bytes]]
HOPS = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade expect content-length http2-settings".split()
)
"""About a connection, and there is none; a length is stated anew."""
ENVOYS = (b"x-envoy-", b"x-forwarded-", b":")
"""What begins so is Envoy's own: without some of it no route is found."""
REPEATS = (b"x-envoy-retry-", b"x-envoy-hedge-")
"""By these a client whom Envoy trusts has it send a request again, unseen: a second execution that nobody charged."""
UPSTREAM_MARK = b"x-envoy-upstream-service-time"
"""Envoy writes it into an answer that came from upstream, and into none that it gives in an engine's place."""
FORWARDED_FOR = b"x-forwarded-for"


def asked(fields: Fields, has_body: bool) -> bytes:
    """The head of a request as a client would write it; its body is chunked, since only its end says that no trailers come.

    Raises `ValueError` for a value that would end its line.
    """
    pseudo = dict(fields)
    lines = [b"%b %b HTTP/1.1" % (pseudo.get(b":method", b""), pseudo.get(b":path", b"")), b"host: " + _authority(pseudo)]
    for name, value in fields:
        if name not in HOPS and name != b"host" and not name.startswith(b":"):
            lines.append(b"%b: %b" % (name, value))
    if has_body:
        lines.append(b"transfer-encoding: chunked")
    if any(b"\r" in line or b"\n" in line for line in lines):
        raise ValueError("a header that holds the end of a line")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _authority(pseudo: dict[bytes, bytes]) -> bytes:
    return pseudo.get(b":authority") or pseudo.get(b"host", b"")


def peer(fields: Fields) -> str:
    """Who connected to Envoy, as it says last; wrong keys are counted by it."""
    told = [value for name, value in fields if name == FORWARDED_FOR]
    return told[-1].rpartition(b",")[2].strip().decode("latin-1")[:64] if told else "envoy"


def sent(head: bytes) -> Fields:
    """The fields of a request as we would send it, without those about our connection."""
    lines = head.split(b"\r\n")
    fields = [(b":path", lines[0].split(b" ")[1])]
    for line in lines[1:-2]:
        name, _, value = line.partition(b": ")
        name = name.lower()
        if name != b"host":
            fields.append((name, value))
    return fields


def own(fields: Fields) -> Fields:
    """Those of an answer that are about what is answered; its length and its date are Envoy's to state."""
    return [(name, value) for name, value in fields if name not in HOPS and name != b"date"]


def engines(fields: Fields) -> tuple[int, Fields, bool]:
    """Of an answer as Envoy shows it: the status, the engine's fields, and whether an engine gave it at all."""
    told = dict(fields)
    status = int(told.get(b":status", b"502"))
    kept = [(name, value) for name, value in fields if name not in HOPS and not name.startswith(ENVOYS)]
    return status, kept, UPSTREAM_MARK in told or 200 <= status < 300


def replaced(before: Fields, after: Fields) -> list[bytes]:
    """The names to be taken out, so that of a head only what is Envoy's and what is ours remains."""
    stays = {name for name, _ in after} | {b"host"}
    goes = {name for name, _ in before if name not in stays}
    return sorted(name for name in goes if name.startswith(REPEATS) or not name.startswith(ENVOYS))
