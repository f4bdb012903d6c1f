"""Addresses: taken apart once, resolved once, kept."""

from __future__ import annotations

import asyncio
import socket

import pytest
from wire import EXECUTION, Peer, Server, answer, run_on, until

from headworks.engines import endpoint as endpoint_module
from headworks.engines.base import EngineError
from headworks.engines.endpoint import Endpoint


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "ftp://host",
        "http://",
        "http://user:secret@host",
        "http://host/?a=1",
        "http://host/#a",
        "http://h/a b",
    ],
)
def test_E6_what_is_no_engine_address_is_refused(url: str) -> None:
    with pytest.raises(EngineError):
        Endpoint(url)


@pytest.mark.parametrize("key", ["a\r\nX-Admin: 1", "a\nb", "ä", "a b"])
def test_H1_key_that_would_break_the_head_is_refused(key: str) -> None:
    with pytest.raises(EngineError, match="characters that cannot stand in a request"):
        Endpoint("http://127.0.0.1:1", key)


def test_E6_path_of_the_url_stands_before_every_path() -> None:
    endpoint = Endpoint("http://[::1]:8000/engines/a/")
    assert endpoint.get("/metrics") == b"GET /engines/a/metrics HTTP/1.1\r\nHost: [::1]:8000\r\nAccept: */*\r\n\r\n"
    assert endpoint.post(EXECUTION, "/v1/completions", b"{}").startswith(b"POST /engines/a/v1/completions HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("address", "usable"),
    [
        ("127.0.0.1", True),
        ("10.0.0.7", True),
        ("2001:db8::1", True),
        ("169.254.169.254", False),
        ("::ffff:169.254.169.254", False),
        ("fe80::1%eth0", False),
        ("224.0.0.1", False),
        ("0.0.0.0", False),
    ],
)
def test_H3_addresses_where_no_engine_lives_are_not_used(address: str, usable: bool) -> None:
    assert endpoint_module._is_usable(address) is usable


async def answer_all(peer: Peer) -> None:
    while True:
        await peer.request()
        await peer.say(answer(b"{}"))


class FickleNames(asyncio.SelectorEventLoop):
    """A loop whose name server first names an address where nobody listens, and later only that one."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_for: list[object] = []

    async def getaddrinfo(self, host, port, **_):  # type: ignore[no-untyped-def, override]
        self.asked_for.append(host)
        addresses = ("127.0.0.9", "127.0.0.1") if len(self.asked_for) == 1 else ("127.0.0.9",)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]


def test_E6_first_address_that_answers_is_pinned_and_asked_for_once() -> None:
    async def test() -> None:
        async with Server(answer_all) as server:
            endpoint = Endpoint(server.url.replace("127.0.0.1", "engine.test"))
            await asyncio.gather(*(endpoint.connect(asyncio.Protocol) for _ in range(5)))
            await until(lambda: server.accepted_count == 5)

    names = FickleNames()
    with asyncio.Runner(loop_factory=lambda: names) as runner:
        runner.run(asyncio.wait_for(test(), 10))
    assert names.asked_for == ["engine.test"]


def test_E6_failed_connect_lets_the_name_be_resolved_anew() -> None:
    async def test() -> None:
        async with Server(answer_all) as server:
            endpoint = Endpoint(server.url.replace("127.0.0.1", "localhost"))
            await endpoint.connect(asyncio.Protocol)
            assert endpoint.pinned is not None
            server._server.close()
            with pytest.raises(OSError):
                await endpoint.connect(asyncio.Protocol)
            assert endpoint.pinned is None

    run_on("asyncio", test())
