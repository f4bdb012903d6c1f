"""More raw payloads, family by family: what smuggling tools, fuzzers of servers and the advisories of peers send (H3).

Each family is a list of spellings of one thing that a server may read in another way than the proxy in front of it.
"""

from __future__ import annotations

from http_port import chunked, get, post

BODY = b"2\r\n{}\r\n0\r\n\r\n"
PLAIN = b"POST /echo HTTP/1.1\r\nHost: edge\r\nContent-Type: application/json\r\n"
SMUGGLED = b"GET /models HTTP/1.1\r\nHost: edge\r\n\r\n"


def coded(field: bytes) -> bytes:
    """A body in chunks, with the field that says so in some spelling."""
    return PLAIN + field + b"\r\n\r\n" + BODY


def sized(field: bytes) -> bytes:
    return PLAIN + field + b"\r\n\r\n{}"


def both(field: bytes) -> bytes:
    """A length of 6 beside it, and behind it a request that only one of two parties sees."""
    return PLAIN + b"Content-Length: 6\r\n" + field + b"\r\n\r\n0\r\n\r\nX" + SMUGGLED


def hosted(value: bytes) -> bytes:
    return b"GET /models HTTP/1.1\r\nHost: " + value + b"\r\n\r\n"


def line(text: bytes) -> bytes:
    return text + b"\r\nHost: edge\r\n\r\n"


def table(status: int, name: str, made: object, *spellings: object) -> dict[str, tuple[int, bytes]]:
    return {f"{name} {text!r}"[:90]: (status, made(text)) for text in spellings}  # type: ignore[operator]


CODINGS = (
    *(b"chunked,", b",chunked", b"chunked, identity", b"identity, chunked", b"chunke", b"chunkedd", b'"chunked"', b"'chunked'"),
    *(b"chunked;q=1", b"chunked; a=b", b"chunked chunked", b"cow", b"gzip", b"deflate, chunked", b"chunked, cow", b"", b"0"),
    *(b"\xa0chunked", b"chunked\xa0", b"\xef\xbb\xbfchunked", b"chun ked", b"x, chunked", b"chunked, ,", b"chunked\x85", b"br"),
    *(
        b"[chunked]",
        b"chunked/1",
        b"{chunked}",
        b"chunked=1",
        b"compress",
        b"trailers",
        b"CHUNKED,",
        b"cHuNkEd,x",
        b"%63hunked",
    ),
)
CONTROLS = (b"\x00", b"\x01", b"\x08", b"\x0b", b"\x0c", b"\x1b", b"\x7f")
LENGTHS = (
    *(b"2 ", b" 2\t", b"02"),
    b"0000000000000000002",
    *(
        b"2,2",
        b"2;",
        b"2.0",
        b"2e0",
        b"0b10",
        b"0o2",
        b"\xb2",
        b"\xd9\xa2",
        b"2 2",
        b"two",
        b"'2'",
        b'"2"',
        b"--2",
        b"2-",
        b"NaN",
    ),
    *(b"2\x00", b"\x0b2", b"\x002", b"-0", b"+0", b" ", b",", b"2,", b",2", b"18446744073709551618", b"4294967298" * 3),
)
HOSTS = (
    *(
        b"edge/",
        b"edge?x",
        b"edge#x",
        b"http://edge",
        b"edge:80:80",
        b"edge:-1",
        b"edge:+80",
        b"edge:99999999",
        b"[::1",
        b"::1",
    ),
    *(
        b"[::1]x",
        b"[zz]",
        b"a@b",
        b"a:b@c",
        b"edge\\x",
        b"edge\x00",
        b"ed\tge",
        b"edge,",
        b"<edge>",
        b'"edge"',
        b"edge%00",
        b"{}",
    ),
    *(b"ed^ge", b"edge|x", b"\xe9dge", b"edge;x", b"[]", b"edge:"),
)
SIZES = (
    *(b"2\x00", b"\x0b2", b"2\t", b" 2", b"2 ;a", b"2g", b"2,", b"2.", b"0x02", b"-2", b"0x", b"x2", b"'2'", b"2\x85", b"\xb2"),
    *(b"ffffffffffffffffff", b"2\r", b"2\r\r", b"2;a\n", b"2;a\rb", b"2;\x00", b"; a"),
)
TARGETS = (
    *(
        b"/models/.",
        b"/models/..",
        b"/a/../models",
        b"/%2e/models",
        b"/.%2e/models",
        b"/models/%2e%2e",
        b"/..%2fx",
    ),
    *(
        b"/models%5c",
        b"/%5cmodels",
        b"/models%0a",
        b"/models%0d",
        b"/models%7f",
        b"/models%1f",
        b"/models%",
        b"/models%1",
        b"///",
    ),
    *(
        b"/models//",
        b"/%c0%af",
        b"/%ed%a0%80",
        b"/%f5",
        b"/models%g0",
        b"/models<",
        b'/models"',
        b"/models`",
        b"/models^",
        b"/{}",
    ),
    *(b"/models|", b"\\models", b"?models", b"//edge/models", b"http:/models", b"http:///models", b"javascript:x"),
    *(b"edge", b"/models\x00", b"/models\x7f", b"/models\x0b", b"/\xc3\xa9", b"/models#"),
)
VERSIONS = (
    *(b"HTTP/1,1", b"HTTP /1.1", b"HTTP/ 1.1", b"Http/1.1", b"HTTPS/1.1"),
    *(b"HTTP/1.1\x00", b"HTTP/a.b", b"HTTP-1.1", b"HTTP/1.1 x", b"HTTP/+1.1", b"HTTP\\1.1"),
)
OTHER_VERSIONS = (
    b"HTTP/1.3",
    b"HTTP/1.9",
    b"HTTP/3.0",
    b"HTTP/0.0",
    b"HTTP/9.9",
    b"HTTP/01.1",
    b"HTTP/1.10",
    b"HTTP/1.1.1",
    b"HTTP/1",
    b"HTTP/1.",
    b"HTTP/.1",
)
METHODS = (b"GE T", b"G\x00ET", b"GET\x0b", b"(GET)", b"GET,", b"G\xcbT", b"GET:", b'"GET"', b"g", b"Get", b"")
NAMES = (
    b"X(",
    b"X)",
    b"X,Y",
    b"X/Y",
    b"X;Y",
    b"X<",
    b"X=",
    b"X?",
    b"X@Y",
    b"X[",
    b"X\\",
    b"X]",
    b"X{",
    b'X"',
    b"X\x7f",
    b"X\t",
)
TRAILERS = (b"Transfer-Encoding: chunked", b"X", b": x", b"X : y", b" X: y", b"X: a\x00", b"X: a\rb")

REFUSED_MORE = {
    **table(400, "coding", lambda text: coded(b"Transfer-Encoding: " + text), *CODINGS),
    **table(400, "coding after", lambda text: coded(b"Transfer-Encoding: " + text + b"chunked"), *CONTROLS),
    **table(400, "coding before", lambda text: coded(b"Transfer-Encoding: chunked" + text), *CONTROLS),
    **table(
        400, "coding name", lambda text: coded(b"Transfer-Encoding" + text + b": chunked"), *CONTROLS, b" ", b"\t", b"\xa0"
    ),
    **table(400, "both", both, b"Transfer-Encoding: chunked", b"Transfer-Encoding: cow", b"transfer-encoding:\tCHUNKED"),
    **table(400, "both, folded", both, b"Transfer-Encoding:\r\n chunked", b"X: a\r\n\tTransfer-Encoding: chunked"),
    **table(400, "both, hidden", both, b"X: a\nTransfer-Encoding: chunked", b"X: a\rTransfer-Encoding: chunked"),
    **table(400, "length", lambda text: sized(b"Content-Length: " + text), *LENGTHS[3:]),
    **table(400, "length name", lambda text: sized(b"Content-Length" + text + b": 2"), *CONTROLS, b" ", b"\t", b"\xa0"),
    **table(400, "length twice", sized, b"Content-Length: 2\r\nContent-Length: 02", b"content-length: 2\r\nCONTENT-LENGTH: 37"),
    **table(400, "no length", sized, b"Content_Length: 2", b"Content-Lengt: 2", b"X-Content-Length: 2", b"ContentLength: 2"),
    **table(
        400, "no coding", coded, b"Transfer_Encoding: chunked", b"TransferEncoding: chunked", b"X-Transfer-Encoding: chunked"
    ),
    **table(400, "chunk", lambda text: chunked(body=text + b"\r\n{}\r\n0\r\n\r\n"), *SIZES),
    **table(400, "trailer", lambda text: chunked(body=b"2\r\n{}\r\n0\r\n" + text + b"\r\n\r\n"), *TRAILERS),
    **table(400, "behind a body", lambda text: text + SMUGGLED, post(), post("Connection: close")),
    **table(400, "host", hosted, *HOSTS),
    **table(400, "hosts", hosted, b"edge\r\nHost: edge:80", b"edge\r\nhost: other", b"edge\r\n Host: other", b"\r\nHost: edge"),
    **table(400, "target", lambda text: line(b"GET " + text + b" HTTP/1.1"), *TARGETS),
    **table(400, "version", lambda text: line(b"GET /models " + text), *VERSIONS),
    **table(505, "version", lambda text: line(b"GET /models " + text), *OTHER_VERSIONS),
    **table(400, "method", lambda text: line(text + b" /models HTTP/1.1"), *METHODS),
    **table(400, "name", lambda text: sized(b"Content-Length: 2\r\n" + text + b": y"), *NAMES),
    **table(417, "expectation", lambda text: post("Expect: " + text), "x", "100-continue, x", "100-continue;q=1"),
}
TAKEN_MORE = {
    **{f"length {text!r}": sized(b"Content-Length: " + text) for text in LENGTHS[:3]},
    **{f"coding {text!r}": coded(b"Transfer-Encoding:" + text) for text in (b"chunked", b" \tchunked\t ", b"\tChunked")},
    **{f"host {text!r}": hosted(text) for text in (b"127.0.0.1", b"[2001:db8::1]", b"a-b.c_d", b"EDGE:65535")},
    "other names that look like ours": post("Content_Length: 9", "Transfer_Encoding: chunked", "X-Transfer-Encoding: chunked"),
    "a chunk in capitals": chunked(body=b"A\r\n" + b'{"a": "b"}' + b"\r\n0\r\n\r\n"),
    "a trailer that looks like a field": chunked(body=b"2\r\n{}\r\n0\r\nHost: x\r\n\r\n"),
    "a path's own signs": get("/models?a=[b]&c=%00&d=/../"),
}
