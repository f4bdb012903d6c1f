"""The rules as httpx transports: whatever is built on an httpx client retries by them and knows nothing of it.

A client library above may have retries of its own. They are kept apart: an answer that stands is marked
`x-should-retry: false`, which the OpenAI SDKs obey; retries it makes all the same (it counts them in `x-stainless-retry-count`)
are part of `retries_max`, and are not sent before the time that the server has named.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import httpx

from headworks.client.policy import OVERLOAD_STATUSES, SHOULD_RETRY, Course, OverloadError, RetryPolicy
from headworks.client.throttle import Throttle

RETRY_COUNT = "x-stainless-retry-count"
IDEMPOTENCY_KEY = "idempotency-key"
NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
LOST = (*NEVER_SENT, httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)
"""What is asked again. A timeout that the caller set is the end of the caller's patience, and is not."""
UNREADABLE = (*LOST, httpx.DecodingError)
"""What a refusal's body may end in: its status and its hint have been heard, and stand."""
ORIGINS_MAX = 64
"""Servers one transport remembers; the one that was met first is forgotten first."""
LIMITS = httpx.Limits(max_connections=1_000, max_keepalive_connections=100)
"""As the OpenAI SDK has them: requests that wait here for a connection cannot be refused."""

Clock = Callable[[], float]
Draw = Callable[[], float]
"""A number from 0 up to 1, at random."""


class _Origin:
    """What is remembered of one server."""

    __slots__ = ("not_before_s", "throttle")

    def __init__(self, policy: RetryPolicy) -> None:
        self.throttle = Throttle(policy.accepts_ratio, policy.throttle_window_s)
        self.not_before_s = 0.0
        """It named this time in a refusal that the caller got as an `OverloadError`."""


class _Attempts:
    """One request and its attempts, as both transports see them."""

    def __init__(self, request: httpx.Request, origin: _Origin, policy: RetryPolicy, clock_s: Clock, draw: Draw) -> None:
        counted = request.headers.get(RETRY_COUNT, "0")
        self._request = request
        self._origin = origin
        self._clock_s = clock_s
        repeatable = request.method in ("GET", "HEAD", "OPTIONS") or IDEMPOTENCY_KEY in request.headers
        self._course = Course(policy, draw, int(counted) if counted.isdecimal() else 0, repeatable)
        self._check(draw)

    def _check(self, draw: Draw) -> None:
        """Not to ask is the cheapest answer a busy server can give."""
        origin, now_s = self._origin, self._clock_s()
        if self._course.retries:
            if now_s < origin.not_before_s:
                left_s = origin.not_before_s - now_s
                raise OverloadError(f"not sent: the server asked not to be asked for another {left_s:.3g} s", left_s)
            return
        ratio = origin.throttle.reject_ratio(now_s)
        if ratio > 0.0 and draw() < ratio:
            origin.throttle.note(False, now_s)
            left_s = max(0.0, origin.not_before_s - now_s)
            raise OverloadError(f"not sent: {ratio:.0%} of new requests are held back, as most are refused", left_s or None)

    def after_loss(self, error: httpx.TransportError) -> float | None:
        """Seconds until the next attempt; None: the error stands."""
        return self._again(self._course.wait_s_after_loss(not isinstance(error, NEVER_SENT)))

    def after_answer(self, response: httpx.Response) -> float | None:
        """Seconds until the next attempt; None: the answer stands."""
        status, headers = response.status_code, response.headers
        self._origin.throttle.note(status not in OVERLOAD_STATUSES, self._clock_s())
        try:
            wait_s = self._again(self._course.wait_s_after_answer(status, headers, time.time()))
        except OverloadError as error:
            assert error.hint_s is not None
            self._origin.not_before_s = max(self._origin.not_before_s, self._clock_s() + error.hint_s)
            raise
        if wait_s is None and status >= 400:
            headers[SHOULD_RETRY] = "false"
        return wait_s

    def _again(self, wait_s: float | None) -> float | None:
        if wait_s is not None:
            self._request.headers[RETRY_COUNT] = str(self._course.retries)
        return wait_s


class _Rules:
    """What a transport was told, and what it has seen of each server."""

    def __init__(self, policy: RetryPolicy | None, clock_s: Clock, draw: Draw) -> None:
        self._policy = policy or RetryPolicy()
        self._clock_s = clock_s
        self._draw = draw
        self._origins: dict[tuple[str, str, int | None], _Origin] = {}

    def begin(self, request: httpx.Request) -> _Attempts:
        """Raises `OverloadError` where it is not to be sent at all."""
        url = request.url
        key = (url.scheme, url.host, url.port)
        origin = self._origins.get(key)
        if origin is None:
            if len(self._origins) >= ORIGINS_MAX:
                self._origins.pop(next(iter(self._origins), key), None)
            origin = self._origins.setdefault(key, _Origin(self._policy))
        return _Attempts(request, origin, self._policy, self._clock_s, self._draw)


class RetryTransport(httpx.BaseTransport):
    """For `httpx.Client`. What it gets from `inner` it hands on, or asks for again."""

    def __init__(
        self,
        inner: httpx.BaseTransport | None = None,
        policy: RetryPolicy | None = None,
        *,
        clock_s: Clock = time.monotonic,
        draw: Draw = random.random,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._inner = inner or httpx.HTTPTransport(limits=LIMITS)
        self._rules = _Rules(policy, clock_s, draw)
        self._sleep = sleep

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.BaseTransport`. Raises `OverloadError`."""
        request.read()  # a body that can be sent again
        attempts = self._rules.begin(request)
        while True:
            try:
                response = self._inner.handle_request(request)
            except LOST as error:
                wait_s = attempts.after_loss(error)
                if wait_s is None:
                    raise
            else:
                try:
                    wait_s = attempts.after_answer(response)
                except OverloadError as error:
                    error.content = _read(response)
                    raise
                if wait_s is None:
                    return response
                _read(response)
            self._sleep(wait_s)

    def close(self) -> None:
        """Close what is inside."""
        self._inner.close()


class AsyncRetryTransport(httpx.AsyncBaseTransport):
    """For `httpx.AsyncClient`, on asyncio."""

    def __init__(
        self,
        inner: httpx.AsyncBaseTransport | None = None,
        policy: RetryPolicy | None = None,
        *,
        clock_s: Clock = time.monotonic,
        draw: Draw = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._inner = inner or httpx.AsyncHTTPTransport(limits=LIMITS)
        self._rules = _Rules(policy, clock_s, draw)
        self._sleep = sleep

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`. Raises `OverloadError`."""
        await request.aread()
        attempts = self._rules.begin(request)
        while True:
            try:
                response = await self._inner.handle_async_request(request)
            except LOST as error:
                wait_s = attempts.after_loss(error)
                if wait_s is None:
                    raise
            else:
                try:
                    wait_s = attempts.after_answer(response)
                except OverloadError as error:
                    error.content = await _aread(response)
                    raise
                if wait_s is None:
                    return response
                await _aread(response)
            await self._sleep(wait_s)

    async def aclose(self) -> None:
        """Close what is inside."""
        await self._inner.aclose()


def _read(response: httpx.Response) -> bytes:
    """The whole refusal, so that its connection can be used again."""
    try:
        return response.read()
    except UNREADABLE:
        return b""
    finally:
        response.close()


async def _aread(response: httpx.Response) -> bytes:
    try:
        return await response.aread()
    except UNREADABLE:
        return b""
    finally:
        await response.aclose()
