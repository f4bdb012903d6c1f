"""One look at an engine: a small GET on a connection of its own, with its own time limit.

A general HTTP client costs more for this than the rest of a sample together; the connection code of the data plane is
here anyway. Looks never share connections with executions: a busy pool must not make an engine invisible.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, TypeVar

import msgspec

from headworks.engines.base import EngineError, Unreachable
from headworks.engines.pool import Pool

LOOK_S_MAX = 1.0
LOOK_BYTES_MAX = 4_000_000

Shape = TypeVar("Shape")


class Seen(NamedTuple):
    """A complete answer."""

    status: int
    payload: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Names in lower case."""


class _Collector:
    """The listener of a look: it keeps the whole answer, up to a bound."""

    __slots__ = ("_headers", "_parts", "_size_bytes", "_status", "seen")

    def __init__(self) -> None:
        self.seen: asyncio.Future[Seen] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._headers: tuple[tuple[bytes, bytes], ...] = ()
        self._parts: list[bytes] = []
        self._size_bytes = 0

    def on_not_sent(self, reason: str) -> None:
        self._fail(Unreachable(f"no connection ({reason})"))

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]], chunked: bool) -> None:
        self._status, self._headers = status, tuple(headers)

    def on_body(self, raw: bytes | None, payload: bytes) -> None:
        self._size_bytes += len(payload)
        if self._size_bytes > LOOK_BYTES_MAX:
            self._fail(EngineError(f"an answer over {LOOK_BYTES_MAX} bytes"))
        else:
            self._parts.append(payload)

    def on_end(self) -> None:
        if not self.seen.done():
            self.seen.set_result(Seen(self._status, b"".join(self._parts), self._headers))

    def on_lost(self, cause: str) -> None:
        self._fail(EngineError(cause))

    def on_closed(self) -> None:
        self._fail(EngineError("the connection was closed"))

    def _fail(self, error: EngineError) -> None:
        if not self.seen.done():
            self.seen.set_exception(error)


async def look(pool: Pool, path: str, within_s: float = LOOK_S_MAX) -> Seen:
    """GET `path`. Raises `EngineError` when there is no complete answer within that time."""
    url = pool.endpoint.url.rstrip("/") + path
    collector = _Collector()
    call = pool.send(pool.endpoint.get(path), b"", pool.clock_s() + within_s, collector)
    try:
        async with asyncio.timeout(within_s):
            return await collector.seen
    except TimeoutError:
        raise EngineError(f"GET {url}: no complete answer within {within_s:g} s") from None
    except EngineError as error:
        failure = pool.endpoint.tls_failure
        raise type(error)(f"GET {url}: {error}" + (f": TLS: {failure}" if failure else "")) from None
    finally:
        # A connection with a late answer on it is of no use to the next look.
        call.discard()


async def look_at_models(pool: Pool) -> list[ModelSeen]:
    """What `/v1/models` lists. Raises `EngineError` when that is not a list with at least one model."""
    seen = await look(pool, "/v1/models")
    if seen.status != 200:
        raise EngineError(f"GET {pool.endpoint.url.rstrip('/')}/v1/models: status {seen.status}, expected 200")
    try:
        models = msgspec.json.decode(seen.payload, type=_Models).data
    except msgspec.DecodeError as error:
        raise EngineError(f"GET {pool.endpoint.url.rstrip('/')}/v1/models: not a list of models ({error})") from None
    if not models:
        raise EngineError(f"{pool.endpoint.url} serves no model")
    return models


async def look_at_json(pool: Pool, path: str, kind: type[Shape]) -> Shape:
    """A page of JSON as far as it concerns us. Raises `EngineError` when it is not that."""
    seen = await look(pool, path)
    url = pool.endpoint.url.rstrip("/") + path
    if seen.status != 200:
        raise EngineError(f"GET {url}: status {seen.status}, expected 200")
    try:
        return msgspec.json.decode(seen.payload, type=kind)
    except msgspec.DecodeError as error:
        raise EngineError(f"GET {url}: not what is expected there ({error})") from None


ROUTES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/tokenize",
    "/detokenize",
)
"""Those that a gateway may send something to."""
NO_METHOD = 405


async def look_at_routes(pool: Pool) -> tuple[str, ...]:
    """Which of them the server has. Each takes POST only, so a GET costs nothing and is told so where there is one.

    None at all where it does not answer each of these: an engine is not called unfit for that.
    """
    try:
        return tuple([path for path in ROUTES if (await look(pool, path)).status == NO_METHOD])
    except EngineError:
        return ()


class ModelSeen(msgspec.Struct):
    """One entry of `/v1/models`, as far as it concerns us."""

    id: str
    max_model_len: int | None = None
    """vLLM and its kin state the context here."""


class _Models(msgspec.Struct):
    data: list[ModelSeen]
