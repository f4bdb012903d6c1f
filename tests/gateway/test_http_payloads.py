"""H3: every raw payload has one stated answer, whatever the loop and however its bytes are cut into packets."""

from __future__ import annotations

import asyncio

import pytest
from http_payloads_more import REFUSED_MORE, TAKEN_MORE
from http_port import LOOPS, chunked, get, port, post, run

PLAIN = b"POST /echo HTTP/1.1\r\nHost: edge\r\nContent-Type: application/json\r\n"
NO_HOST = b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def request(*lines: bytes, body: bytes = b"{}") -> bytes:
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def first_line(line: bytes) -> bytes:
    return line + b"\r\nHost: edge\r\n\r\n"


TAKEN = {
    "content-length": post(),
    "empty body with its length": post(body=b""),
    "chunked": chunked(),
    "chunked, many chunks": chunked(body=b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"),
    "chunked in capitals": post("Transfer-Encoding: CHUNKED", body=b"2\r\n{}\r\n0\r\n\r\n", length=False),
    "chunk size with leading zeros": chunked(body=b"00002\r\n{}\r\n000\r\n\r\n"),
    "chunk extension dropped": chunked(body=b"2;a=b;c\r\n{}\r\n0\r\n\r\n"),
    "trailer dropped": chunked(body=b"2\r\n{}\r\n0\r\nX-Late: 1\r\n\r\n"),
    "field names in any case": request(
        b"POST /echo HTTP/1.1", b"hOST: edge", b"content-TYPE: application/json", b"CONTENT-length: 2"
    ),
    "space around a value": post("X-A:   v \t "),
    "obs-text in a value": post("X-A: \xe9\xff"),
    "empty value": post("X-A:"),
    "100 fields": post(*[f"X-{n}: 1" for n in range(97)]),
    "charset utf-8": request(
        b"POST /echo HTTP/1.1", b"Host: edge", b'Content-Type: Application/JSON ; charset="UTF-8"', b"Content-Length: 2"
    ),
    "identity coding": post("Content-Encoding: identity"),
    "list in two fields": post("Accept: a", "Accept: b"),
    "query kept apart": post(path="/echo?a=%2e%2e//"),
    "percent-encoded path": post(path="/%65cho"),
    "encoded slash is a slash": get("/models/a%2Fb"),
    "absolute form": get("http://edge/models"),
    "absolute form, host in capitals": get("HTTP://EDGE/models"),
    "host with a port": request(b"GET /models HTTP/1.1", b"Host: edge:8080", body=b""),
    "host as IPv6": request(b"GET /models HTTP/1.1", b"Host: [::1]:80", body=b""),
    "HTTP/1.0 without a host": request(b"GET /models HTTP/1.0", body=b""),
    "HTTP/1.0 with a body": request(b"POST /echo HTTP/1.0", NO_HOST[:-6], body=b"{}"),
    "HTTP/1.0 does not know Expect": request(b"GET /models HTTP/1.0", b"Expect: the-unexpected", body=b""),
    "one empty line first": b"\r\n" + get(),
    "GET with length 0": get("/models", "Content-Length: 0"),
    "DELETE without a body": get("/session/1", method="DELETE"),
    "TE field": get("/models", "TE: trailers", "Connection: TE"),
    "h2c settings without upgrade": get("/models", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"),
}

REFUSED = {
    # Framing that two parties could read in two ways.
    "length and chunked": (400, post("Transfer-Encoding: chunked", body=b"0\r\n\r\n")),
    "chunked and length": (400, PLAIN + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "length twice, alike": (400, post("Content-Length: 2")),
    "length twice, unlike": (400, post("Content-Length: 1")),
    "length as a list": (400, PLAIN + b"Content-Length: 2, 2\r\n\r\n{}"),
    "length +2": (400, PLAIN + b"Content-Length: +2\r\n\r\n{}"),
    "length -2": (400, PLAIN + b"Content-Length: -2\r\n\r\n{}"),
    "length 0x2": (400, PLAIN + b"Content-Length: 0x2\r\n\r\n{}"),
    "length 2_0": (400, PLAIN + b"Content-Length: 2_0\r\n\r\n{}"),
    "length empty": (400, PLAIN + b"Content-Length:\r\n\r\n{}"),
    "length of 30 digits": (400, PLAIN + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n{}"),
    "length of 18 digits": (413, PLAIN + b"Content-Length: " + b"9" * 18 + b"\r\n\r\n{}"),
    "chunked twice": (400, chunked("Transfer-Encoding: chunked")),
    "chunked, chunked": (400, post("Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n", length=False)),
    "gzip, chunked": (400, post("Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n", length=False)),
    "coding identity": (400, post("Transfer-Encoding: identity", length=False)),
    "coding xchunked": (400, post("Transfer-Encoding: xchunked", body=b"0\r\n\r\n", length=False)),
    "coding with a tab": (400, post("Transfer-Encoding: chunked\t;", body=b"0\r\n\r\n", length=False)),
    "space before colon": (400, post("Transfer-Encoding : chunked")),
    "coding on HTTP/1.0": (400, chunked().replace(b"HTTP/1.1", b"HTTP/1.0")),
    "no length on POST": (411, post(body=b"", length=False)),
    # Chunks.
    "chunk +2": (400, chunked(body=b"+2\r\n{}\r\n0\r\n\r\n")),
    "chunk 0x2": (400, chunked(body=b"0x2\r\n{}\r\n0\r\n\r\n")),
    "chunk -1": (400, chunked(body=b"-1\r\n{}\r\n0\r\n\r\n")),
    "chunk 2_": (400, chunked(body=b"2_\r\n{}\r\n0\r\n\r\n")),
    "chunk with a space": (400, chunked(body=b"2 \r\n{}\r\n0\r\n\r\n")),
    "chunk empty size": (400, chunked(body=b"\r\n{}\r\n0\r\n\r\n")),
    "chunk size overflow": (400, chunked(body=b"1" + b"0" * 16 + b"\r\n{}\r\n0\r\n\r\n")),
    "chunk with bare LF": (400, chunked(body=b"2\n{}\r\n0\r\n\r\n")),
    "chunk longer than it says": (400, chunked(body=b"2\r\n{}}\r\n0\r\n\r\n")),
    "chunk end with bare LF": (400, chunked(body=b"2\r\n{}\n0\r\n\r\n")),
    "trailer with a length": (400, chunked(body=b"2\r\n{}\r\n0\r\nContent-Length: 9\r\n\r\n")),
    "trailer with a bare LF": (400, chunked(body=b"2\r\n{}\r\n0\r\nX: a\n\r\n")),
    "endless chunk extension": (400, chunked(body=b"2;" + b"e" * 40_000 + b"\r\n{}\r\n0\r\n\r\n")),
    "endless trailers": (400, chunked(body=b"2\r\n{}\r\n0\r\n" + b"X-A: b\r\n" * 5_000 + b"\r\n")),
    "chunks of one byte for ever": (400, chunked(body=b"1\r\nx\r\n" * 10_000)),
    "chunked over the cap": (413, chunked(body=b"4e21\r\n" + b"x" * 20_001 + b"\r\n0\r\n\r\n")),
    "length over the cap": (413, post(body=b"x" * 20_001)),
    # Lines and fields.
    "bare LF line ends": (400, b"GET /models HTTP/1.1\nHost: edge\n\n"),
    "one bare LF": (400, b"GET /models HTTP/1.1\r\nHost: edge\nX: a\r\n\r\n"),
    "bare CR in a value": (400, post("X-A: a\rb")),
    "NUL in a value": (400, post("X-A: a\0b")),
    "control character in a value": (400, post("X-A: a\x01b")),
    "DEL in a value": (400, post("X-A: a\x7fb")),
    "folded field": (400, b"GET /models HTTP/1.1\r\nHost: edge\r\nX: a\r\n b\r\n\r\n"),
    "folded with a tab": (400, b"GET /models HTTP/1.1\r\nHost: edge\r\nX: a\r\n\tb\r\n\r\n"),
    "folded first field": (400, b"GET /models HTTP/1.1\r\n Host: edge\r\n\r\n"),
    "field without a colon": (400, post("X-A")),
    "field without a name": (400, post(": a")),
    "name with a space": (400, post("X A: b")),
    "name with a control character": (400, post("X\x01A: b")),
    "name with obs-text": (400, post("X\xe9: b")),
    "101 fields": (431, post(*[f"X-{n}: 1" for n in range(98)])),
    "20,000 fields": (431, post(*["X: 1"] * 20_000)),
    "field of 64 KiB": (431, post("X: " + "a" * 65_536)),
    "field of 1 MiB": (431, post("X: " + "a" * 1_048_576)),
    "authorization twice": (400, post("Authorization: Bearer a", "Authorization: Bearer b")),
    "content-type twice": (400, post("Content-Type: application/json")),
    # Host.
    "no host": (400, b"GET /models HTTP/1.1\r\n\r\n"),
    "two hosts": (400, get("/models", "Host: edge")),
    "two hosts, unlike": (400, get("/models", "Host: other")),
    "host with a path": (400, b"GET /models HTTP/1.1\r\nHost: a/abc?d=\r\n\r\n"),
    "host with user": (400, b"GET /models HTTP/1.1\r\nHost: me@edge\r\n\r\n"),
    "host as a list": (400, b"GET /models HTTP/1.1\r\nHost: a, b\r\n\r\n"),
    "host with a space": (400, b"GET /models HTTP/1.1\r\nHost: a b\r\n\r\n"),
    "host empty": (400, b"GET /models HTTP/1.1\r\nHost:\r\n\r\n"),
    "host with a bad port": (400, b"GET /models HTTP/1.1\r\nHost: a:8o\r\n\r\n"),
    "absolute form of another host": (400, get("http://other/models")),
    "absolute form with user": (400, get("http://me@edge/models")),
    # Request line.
    "two spaces after the method": (400, first_line(b"GET  /models HTTP/1.1")),
    "two spaces before the version": (400, first_line(b"GET /models  HTTP/1.1")),
    "tab after the method": (400, first_line(b"GET\t/models HTTP/1.1")),
    "space first": (400, first_line(b" GET /models HTTP/1.1")),
    "space last": (400, first_line(b"GET /models HTTP/1.1 ")),
    "space in the target": (400, first_line(b"GET /mod els HTTP/1.1")),
    "no version": (400, first_line(b"GET /models")),
    "HTTP/0.9": (505, first_line(b"GET /models HTTP/0.9")),
    "HTTP/1.2": (505, first_line(b"GET /models HTTP/1.2")),
    "HTTP/2.0": (505, first_line(b"GET /models HTTP/2.0")),
    "HTTP/11": (505, first_line(b"GET /models HTTP/11")),
    "http/1.1": (400, first_line(b"GET /models http/1.1")),
    "ICY": (400, first_line(b"GET /models ICY/1.1")),
    "h2 preface": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "TLS on the plain port": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50)),
    "SSH on the plain port": (400, b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    "binary": (400, b"\x00\xff\x00\xff"),
    "request line of 9 KiB": (431, first_line(b"GET /models?" + b"a" * 9_000 + b" HTTP/1.1")),
    "method of 30 letters": (400, first_line(b"A" * 30 + b" /models HTTP/1.1")),
    "lower-case method": (400, first_line(b"get /models HTTP/1.1")),
    # Targets.
    "path with dots": (400, get("/models/../echo")),
    "path with encoded dots": (400, get("/models/%2e%2E/echo")),
    "path with one dot": (400, get("/./models")),
    "path with two slashes": (400, get("//models")),
    "path with an encoded second slash": (400, get("/%2fmodels")),
    "path with %00": (400, get("/models%00")),
    "path with an encoded line end": (400, get("/models%0d%0a")),
    "path with an encoded backslash": (400, get("/models%5c..")),
    "path with a backslash": (400, get("/models\\a")),
    "path with half an escape": (400, get("/models%2")),
    "path with a wrong escape": (400, get("/models%zz")),
    "path not UTF-8": (400, get("/models%ff")),
    "path decoded once only": (404, get("/%256dodels")),
    "obs-text in the target": (400, get("/mod\xe9ls")),
    "fragment": (400, get("/models#a")),
    "fragment in the query": (400, get("/models?a#b")),
    "relative path": (400, get("models")),
    "star for GET": (400, get("*")),
    "other scheme": (400, get("ftp://edge/models")),
    "authority form": (400, get("edge:80", method="CONNECT")),
    # Methods and meaning.
    "CONNECT a path": (405, get("/models", method="CONNECT")),
    "TRACE": (405, get("/models", method="TRACE")),
    "unknown method": (405, get("/models", method="BREW")),
    "wrong method": (405, get("/echo")),
    "HEAD where there is no GET": (405, get("/echo", method="HEAD")),
    "unknown path": (404, get("/nothing")),
    "unknown path, unknown method": (404, get("/nothing", method="BREW")),
    "unknown path before its body": (404, post(path="/nothing")),
    "upgrade to h2c": (400, get("/models", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMA")),
    "upgrade to websocket": (400, get("/models", "Connection: Upgrade", "Upgrade: websocket")),
    "upgrade without connection": (400, get("/models", "Upgrade: h2c")),
    "other expectation": (417, post("Expect: 200-ok")),
    "gzip body": (415, post("Content-Encoding: gzip")),
    "form body": (
        415,
        PLAIN.replace(b"application/json", b"application/x-www-form-urlencoded") + b"Content-Length: 2\r\n\r\n{}",
    ),
    "no content type": (415, b"POST /echo HTTP/1.1\r\nHost: edge\r\nContent-Length: 2\r\n\r\n{}"),
    "other charset": (415, PLAIN.replace(b"json", b"json; charset=utf-16") + b"Content-Length: 2\r\n\r\n{}"),
    "JSON's cousin": (415, PLAIN.replace(b"json", b"jsonp") + b"Content-Length: 2\r\n\r\n{}"),
    "GET with a body": (400, get("/models", "Content-Length: 2") + b"{}"),
    # Bytes after the request.
    "two requests at once": (400, get() + get()),
    "two requests at once, chunked": (400, chunked() + get()),
    "one byte after a body": (400, post() + b"G"),
    "empty line after a body": (400, post() + b"\r\n"),
}
TAKEN |= TAKEN_MORE
REFUSED |= REFUSED_MORE
CODES = {404: "not_found", 413: "body_too_large"}


def test_H3_no_payload_stands_twice() -> None:
    payloads = [*TAKEN.values(), *(payload for _, payload in REFUSED.values())]
    assert len(set(payloads)) == len(payloads) == 440


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", TAKEN)
def test_H3_good_payload_is_taken(name: str, loop: str) -> None:
    async def steps() -> None:
        async with port(body_bytes_max=20_000) as edge:
            for pieces in (1, 3):
                client = await edge.connect()
                await send_in(pieces, client, TAKEN[name])
                assert (await client.answer()).status == 200
                client.close()

    run(loop, steps())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", REFUSED)
def test_H3_bad_payload_gets_its_answer(name: str, loop: str) -> None:
    status, payload = REFUSED[name]

    async def steps() -> None:
        async with port(body_bytes_max=20_000) as edge:
            answer = await edge.ask(payload, head_only=b"HEAD " in payload)
            assert answer.status == status
            if b"HEAD " not in payload:
                assert answer.code == CODES.get(status, "invalid_request")
            assert edge.server.counters.errors == {status: 1}
            assert edge.faults == []

    run(loop, steps())


@pytest.mark.parametrize("name", [name for name in REFUSED if "at once" not in name and len(REFUSED[name][1]) < 2_000])
def test_H3_packet_borders_change_no_answer(name: str) -> None:
    status, payload = REFUSED[name]

    async def steps() -> None:
        async with port(body_bytes_max=20_000) as edge:
            for pieces in (2, 3, 7):
                client = await edge.connect()
                await send_in(pieces, client, payload)
                answer = await client.answer(head_only=b"HEAD " in payload)
                # A last byte that comes after the answer was given is the next request's; all else is one request.
                assert answer.status == status or "after a body" in name
                client.close()
            assert edge.faults == []

    run("uvloop", steps())


async def send_in(pieces: int, client: object, payload: bytes) -> None:
    size = -(-len(payload) // pieces)
    for start in range(0, len(payload), size):
        client.send(payload[start : start + size])  # type: ignore[attr-defined]
        await asyncio.sleep(0.002 if pieces > 1 else 0)
