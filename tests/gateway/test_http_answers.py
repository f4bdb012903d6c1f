"""E1, H2, H3: what a client gets to read: framing, persistence, continuations, early answers."""

from __future__ import annotations

import asyncio
import socket
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from http_port import JSON, LOOPS, chunked, echo, get, port, post, run, until

from headworks.gateway.http import Exchange, HttpError

BOTH = pytest.mark.parametrize("loop", LOOPS)


async def stream(exchange: Exchange) -> None:
    await exchange.read_body()
    exchange.start(200, [(b"Content-Type", b"text/event-stream")], None)
    exchange.write(b"data: 1\n\n")
    exchange.write(b"")
    if exchange.chunked:
        exchange.write_raw(b"5\r\ndata:\r\n4\r\n 2\n\n\r\n")
    exchange.finish()


@BOTH
def test_E1_one_connection_serves_many_requests(loop: str) -> None:
    async def steps() -> None:
        async with port() as edge:
            client = await edge.connect()
            for payload in (post(body=b"x" * 9), get(), chunked(), post(body=b"x" * 100_000)):
                client.send(payload)
                assert (await client.answer()).status == 200
            assert edge.server.counters.accepted == 1
            assert edge.server.counters.requests == 4
            client.close()
            await until(lambda: edge.server.counters.closed == {"client_closed": 1})

    run(loop, steps())


def test_E1_handler_sees_what_was_asked() -> None:
    async def steps() -> None:
        async with port() as edge:
            answer = await edge.ask(
                post("ACCEPT: a", "Accept: b", "Cookie: c=1", "Cookie: d=2", path="/%65cho?q=%20", body=b"[1]")
            )
            said = answer.json()
            assert (said["method"], said["path"], said["query"]) == ("POST", "/echo", "q=%20")
            assert (said["peer"], said["body_bytes"]) == ("127.0.0.1", 3)
            assert said["headers"]["accept"] == "a, b"
            assert said["headers"]["cookie"] == "c=1; d=2"

    run("uvloop", steps())


PERSISTENCE = [
    (get(), None),
    (get("/models", "Connection: close"), "close"),
    (get("/models", "Connection: Foo, CLOSE"), "close"),
    (get("/models", version="1.0"), "close"),
    (get("/models", "Connection: keep-alive", version="1.0"), "keep-alive"),
    (get("/models", "Connection: keep-alive, close", version="1.0"), "close"),
]


@BOTH
@pytest.mark.parametrize(("payload", "said"), PERSISTENCE)
def test_E1_connection_lasts_as_both_said(payload: bytes, said: str | None, loop: str) -> None:
    async def steps() -> None:
        async with port() as edge:
            client = await edge.connect()
            client.send(payload)
            assert (await client.answer()).fields.get("connection") == said
            if said == "close":
                assert await client.ended() == "closed"
            else:
                client.send(payload)
                assert (await client.answer()).status == 200
            client.close()

    run(loop, steps())


@BOTH
def test_E1_stream_is_chunked_and_the_connection_lasts(loop: str) -> None:
    async def steps() -> None:
        async with port(stream) as edge:
            client = await edge.connect()
            for _ in range(2):
                client.send(post())
                answer = await client.answer()
                assert answer.fields["transfer-encoding"] == "chunked"
                assert "content-length" not in answer.fields
                assert answer.body == b"data: 1\n\ndata: 2\n\n"
            client.close()

    run(loop, steps())


@BOTH
def test_E1_stream_to_http_1_0_ends_by_closing(loop: str) -> None:
    async def steps() -> None:
        async with port(stream) as edge:
            answer = await edge.ask(post("Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"))
            assert "transfer-encoding" not in answer.fields
            assert answer.fields["connection"] == "close"
            assert answer.body == b"data: 1\n\n"

    run(loop, steps())


def test_E1_head_and_bodiless_statuses_have_no_body() -> None:
    async def by_query(exchange: Exchange) -> None:
        if exchange.head.line.query == "start":
            exchange.start(200, JSON, 10)
            exchange.write(b"0123456789")
            exchange.finish()
        elif exchange.head.line.query == "stream":
            exchange.start(200, JSON, None)
            exchange.write(b"0123456789")
            exchange.finish()
        else:
            exchange.respond(int(exchange.head.line.query), JSON, b"0123456789")

    async def steps() -> None:
        async with port(by_query) as edge:
            client = await edge.connect()
            for method, query, length in [
                ("HEAD", "200", "10"),
                ("HEAD", "start", "10"),
                ("HEAD", "stream", None),
                ("GET", "204", None),
                ("GET", "304", None),
                ("GET", "200", "10"),
            ]:
                client.send(get(f"/models?{query}", method=method))
                answer = await client.answer(head_only=method == "HEAD")
                assert answer.fields.get("content-length") == length
                assert "transfer-encoding" not in answer.fields
            client.close()
            assert edge.faults == []

    run("uvloop", steps())


def test_E1_options_tells_the_methods() -> None:
    async def steps() -> None:
        async with port() as edge:
            client = await edge.connect()
            for path, allow in [("/models", "GET, HEAD, OPTIONS"), ("/echo", "POST, OPTIONS"), ("*", None)]:
                client.send(get(path, method="OPTIONS"))
                answer = await client.answer()
                assert (answer.status, answer.fields.get("allow")) == (204, allow)
            client.send(get("/echo"))
            answer = await client.answer()
            assert (answer.status, answer.fields["allow"]) == (405, "POST, OPTIONS")
            client.close()

    run("uvloop", steps())


def test_H3_our_framing_and_no_hop_by_hop_fields() -> None:
    theirs = [
        (b"Content-Type", b"application/json"),
        (b"Connection", b"close, X-Private"),
        (b"Keep-Alive", b"timeout=5"),
        (b"Transfer-Encoding", b"chunked"),
        (b"content-length", b"999"),
        (b"Date", b"yesterday"),
        (b"Upgrade", b"h2c"),
        (b"X-Private", b"1"),
        (b"X-Kept", b"2"),
    ]

    async def engine(exchange: Exchange) -> None:
        exchange.respond(200, theirs, b"{}")

    async def steps() -> None:
        async with port(engine) as edge:
            answer = await edge.ask(post())
            assert set(answer.fields) == {"content-type", "x-kept", "date", "content-length"}
            assert answer.fields["content-length"] == "2"
            assert parsedate_to_datetime(answer.fields["date"]).tzinfo is not None

    run("uvloop", steps())


async def guarded(exchange: Exchange) -> None:
    """Authenticates, then reads."""
    if b"authorization" not in exchange.headers:
        raise HttpError(401, "invalid_api_key", "No key came.")
    await echo(exchange)


@BOTH
def test_H2_continue_is_said_only_after_authentication(loop: str) -> None:
    async def steps() -> None:
        async with port(guarded) as edge:
            client = await edge.connect()
            client.send(post("Expect: 100-continue", "Authorization: Bearer a", body=b"x" * 50)[:-50])
            assert (await client.answer()).status == 100
            client.send(b"x" * 50)
            assert (await client.answer()).json()["body_bytes"] == 50
            client.send(post("Expect: 100-continue", "Authorization: Bearer a", body=b"x" * 50)[:-20])
            await until(lambda: edge.server.counters.requests == 2)
            client.send(b"x" * 20)  # this one did not wait
            assert (await client.answer()).status == 200
            client.send(post("Expect: 100-continue", body=b"x" * 50)[:-50])
            refused = await client.answer()
            assert (refused.status, refused.fields["connection"]) == (401, "close")
            client.close()

    run(loop, steps())


@BOTH
def test_H2_continue_is_not_said_where_it_is_of_no_use(loop: str) -> None:
    async def steps() -> None:
        async with port(guarded, body_bytes_max=100) as edge:
            key = "Authorization: Bearer a"
            assert (await edge.ask(post("Expect: 100-continue", key))).status == 200  # the body came with the head
            assert (await edge.ask(post("Expect: 100-continue", key, body=b"x" * 101)[:-101])).status == 413
            assert (await edge.ask(post("Expect: 100-continue", key, path="/nothing")[:-2])).status == 404
            assert (await edge.ask(post("Expect: 100-continue", key).replace(b"1.1", b"1.0", 1))).status == 200

    run(loop, steps())


@BOTH
def test_H3_early_answer_is_read_though_the_body_still_comes(loop: str) -> None:
    """Closing at once would reset the connection and lose the answer on its way."""

    async def steps() -> None:
        async with port(body_bytes_max=1000) as edge:
            client = await edge.connect()
            client.send(post(body=b"x" * 60_000)[:-59_000])
            await until(lambda: edge.server.counters.errors == {413: 1})
            client.send(b"x" * 59_000)
            await asyncio.sleep(0.05)
            answer = await client.answer()
            assert (answer.status, answer.code, answer.fields["connection"]) == (413, "body_too_large", "close")
            assert await client.ended() == "closed"
            client.close()

    run(loop, steps())


@BOTH
def test_H3_lingering_tells_the_client_at_once_that_the_answer_is_over(loop: str) -> None:
    async def steps() -> None:
        async with port(body_bytes_max=1000, linger_s=10) as edge:
            client = await edge.connect()
            client.send(post(body=b"x" * 60_000)[:-59_000])
            assert (await client.answer()).status == 413
            assert await client.ended(1.0) == "closed"
            client.close()
            await until(lambda: not edge.server.connections, within_s=1)

    run(loop, steps())


@BOTH
def test_H3_lingering_is_bounded_in_bytes_and_time(loop: str) -> None:
    async def steps() -> None:
        async with port(body_bytes_max=1000, linger_s=0.3, linger_bytes_max=65_536) as edge:
            client = await edge.connect()
            client.send(post(body=b"x" * 50_000_000))
            assert (await client.answer()).status == 413
            [lingering] = edge.server.connections
            await until(lambda: edge.server.counters.closed == {"unread_body": 1}, within_s=2)
            assert lingering._dropped_bytes <= 65_536 + 262_144  # the bound, and the read that met it
            client.close()

    run(loop, steps())


def test_E1_plain_blocking_client_works() -> None:
    """A client of another make: the standard library's, in a thread."""
    import http.client

    def ask(address: Any) -> list[int]:
        connection = http.client.HTTPConnection(*address, timeout=5)
        statuses = []
        for size in (2, 500_000):
            connection.request("POST", "/echo", b"x" * size, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            statuses.append(answer.status)
            answer.read()
        assert connection.sock is not None
        assert connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        connection.close()
        return statuses

    async def steps() -> None:
        async with port() as edge:
            assert await asyncio.get_running_loop().run_in_executor(None, ask, edge.address) == [200, 200]
            assert edge.server.counters.accepted == 1

    run("uvloop", steps())
