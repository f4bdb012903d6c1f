"""The transports: what is sent, and when, on a clock that a test moves (F8). The server is a script of answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from headworks.client import AsyncRetryTransport, OverloadError, RetryPolicy, RetryTransport

URL = "http://engine.test/v1/chat/completions"
LATER = {"retry-after-ms": "1500"}


class Time:
    """Moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.now_s += seconds


class Server(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Answers from a list, the last one for ever, and remembers what came and when. It reads bodies as a socket does: once."""

    def __init__(self, time: Time, *answers: tuple[int, dict[str, str]] | Exception) -> None:
        self._time = time
        self._answers = list(answers)
        self.came: list[tuple[float, httpx.Request, bytes]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._answer(request, b"".join(request.stream))  # type: ignore[arg-type]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self._answer(request, b"".join([piece async for piece in request.stream]))  # type: ignore[union-attr]

    def _answer(self, request: httpx.Request, body: bytes) -> httpx.Response:
        self.came.append((self._time.now_s - 100.0, request, body))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer[0], headers=answer[1], content=b'{"error": {"code": "queue_full"}}')

    def at_s(self) -> list[float]:
        return [round(at_s, 6) for at_s, _, _ in self.came]


Ask = Callable[..., httpx.Response]


def asking(is_async: bool, server: Server, time: Time, policy: RetryPolicy | None = None, draw: float = 0.5) -> Ask:
    """One client, sync or async, whose requests share what its transport remembers."""
    if not is_async:
        client = httpx.Client(transport=RetryTransport(server, policy, clock_s=time, draw=lambda: draw, sleep=time.sleep))
        return client.request
    transport = AsyncRetryTransport(server, policy, clock_s=time, draw=lambda: draw, sleep=time.sleep_async)

    def ask(*positional: Any, **named: Any) -> httpx.Response:
        return asyncio.run(httpx.AsyncClient(transport=transport).request(*positional, **named))

    return ask


both = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


@both
def test_F8_comes_back_at_the_hint_and_is_served(is_async: bool) -> None:
    time = Time()
    server = Server(time, (429, LATER), (503, {"retry-after": "2"}), (200, {}))
    answer = asking(is_async, server, time)("POST", URL, content=b"the body")
    assert answer.status_code == 200
    assert server.at_s() == [0.0, 1.5, 3.5]
    assert [body for _, _, body in server.came] == [b"the body"] * 3
    assert server.came[-1][1].headers["x-stainless-retry-count"] == "2"


@both
def test_F8_asks_four_times_at_most_and_then_the_refusal_stands(is_async: bool) -> None:
    time = Time()
    server = Server(time, (429, LATER))
    answer = asking(is_async, server, time)("POST", URL, content=b"")
    assert server.at_s() == [0.0, 1.5, 3.0, 4.5]
    assert (answer.status_code, answer.headers["x-should-retry"]) == (429, "false")
    assert answer.json() == {"error": {"code": "queue_full"}}


@both
def test_F8_what_says_no_retry_is_asked_once(is_async: bool) -> None:
    time = Time()
    server = Server(time, (429, {"x-should-retry": "false"}))
    assert asking(is_async, server, time)("POST", URL).status_code == 429
    assert server.at_s() == [0.0]


@both
def test_F8_a_hint_above_the_cap_raises_and_carries_hint_and_answer(is_async: bool) -> None:
    time = Time()
    server = Server(time, (429, {"retry-after-ms": "75250", "retry-after": "60", "x-should-retry": "false"}))
    with pytest.raises(OverloadError) as caught:
        asking(is_async, server, time)("POST", URL)
    assert (caught.value.hint_s, caught.value.status) == (75.25, 429)
    assert caught.value.content == b'{"error": {"code": "queue_full"}}'
    assert server.at_s() == [0.0]


@both
def test_F8_a_retry_from_above_does_not_come_before_the_hint_that_was_raised(is_async: bool) -> None:
    """A library that retries by itself what it was told in an exception asks nobody until then."""
    time = Time()
    server = Server(time, (429, {"retry-after-ms": "75000"}), (200, {}))
    ask = asking(is_async, server, time, draw=0.99)
    with pytest.raises(OverloadError):
        ask("POST", URL)
    time.now_s += 74.0
    with pytest.raises(OverloadError) as caught:
        ask("POST", URL, headers={"x-stainless-retry-count": "1"})
    assert (caught.value.hint_s, caught.value.is_local) == (1.0, True)
    assert len(server.came) == 1
    time.now_s += 1.0
    assert ask("POST", URL, headers={"x-stainless-retry-count": "2"}).status_code == 200


@both
def test_F8_retries_of_both_layers_are_three_together(is_async: bool) -> None:
    time = Time()
    server = Server(time, (503, {}))
    asking(is_async, server, time)("POST", URL, headers={"x-stainless-retry-count": "2"})
    assert server.at_s() == [0.0, 1.125]


@both
@pytest.mark.parametrize(
    ("error", "headers", "attempts"),
    [
        (httpx.ConnectError("nobody listens"), {}, 4),
        (httpx.ReadError("reset"), {}, 1),
        (httpx.ReadError("reset"), {"Idempotency-Key": "mine"}, 4),
        (httpx.RemoteProtocolError("cut"), {"Idempotency-Key": "mine"}, 4),
        (httpx.ReadTimeout("the caller's own"), {"Idempotency-Key": "mine"}, 1),
    ],
)
def test_F8_a_broken_connection_is_repeated_where_that_is_harmless(
    is_async: bool, error: Exception, headers: dict[str, str], attempts: int
) -> None:
    time = Time()
    server = Server(time, error)
    with pytest.raises(type(error)):
        asking(is_async, server, time)("POST", URL, headers=headers)
    assert len(server.came) == attempts


@both
def test_F8_who_is_refused_most_of_the_time_stops_asking(is_async: bool) -> None:
    time = Time()
    server = Server(time, *[(429, {"x-should-retry": "false"})] * 3, (200, {}))
    ask = asking(is_async, server, time, draw=0.7)
    statuses = [ask("POST", URL).status_code for _ in range(3)]
    assert statuses == [429, 429, 429]  # rejected here with 0, 1/2 and 2/3: all below 0.7
    with pytest.raises(OverloadError) as caught:  # 3/4
        ask("POST", URL)
    assert (caught.value.is_local, caught.value.hint_s) == (True, None)
    assert str(caught.value) == "not sent: 75% of new requests are held back, as most are refused"
    assert len(server.came) == 3
    time.now_s += 130.0  # and the window is over
    assert ask("POST", URL).status_code == 200


@both
def test_F8_each_server_has_a_throttle_of_its_own(is_async: bool) -> None:
    time = Time()
    server = Server(time, *[(429, {"x-should-retry": "false"})] * 9, (200, {}))
    ask = asking(is_async, server, time, draw=0.95)
    for _ in range(9):
        ask("POST", URL)
    assert ask("POST", "http://other.test/").status_code == 200


def test_F8_what_is_remembered_of_servers_is_bounded() -> None:
    time = Time()
    transport = RetryTransport(Server(time, (200, {})), clock_s=time)
    with httpx.Client(transport=transport) as client:
        for number in range(100):
            client.get(f"http://engine-{number}.test/")
    assert len(transport._rules._origins) == 64


@both
def test_F8_a_body_that_comes_in_pieces_can_be_sent_again(is_async: bool) -> None:
    time = Time()
    server = Server(time, (503, {}), (200, {}))

    def pieces() -> Iterator[bytes]:
        yield b"one "
        yield b"two"

    async def pieces_async() -> Any:
        for piece in pieces():
            yield piece

    assert asking(is_async, server, time)("POST", URL, content=pieces_async() if is_async else pieces()).status_code == 200
    assert [body for _, _, body in server.came] == [b"one two", b"one two"]


def test_F8_a_cancel_ends_the_wait() -> None:
    async def test() -> None:
        time = Time()
        server = Server(time, (429, {"retry-after": "50"}))
        client = httpx.AsyncClient(transport=AsyncRetryTransport(server))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.post(URL)
        assert len(server.came) == 1

    asyncio.run(test())
