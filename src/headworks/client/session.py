"""A session for a series of calls: a budget that headworks holds from the first call to the last.

    with session(http, 64_000, url="http://127.0.0.1:8080", key=KEY) as budget:
        client.chat.completions.create(..., extra_headers=budget.headers)

What is left of it comes back at the end, however the block is left. If that last word does not arrive, the session ends by
itself when it has been idle for its time (60 s by default).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx

PATH = "/admit/session"


@dataclass(slots=True)
class Session:
    """One that is open."""

    name: str
    tokens: int
    expires_s: float
    """From its opening to its end, whatever happens."""

    @property
    def headers(self) -> dict[str, str]:
        """What a call of it carries, such as by the OpenAI SDK's `extra_headers`."""
        return {"Headworks-Session": self.name}


@contextmanager
def session(
    http: httpx.Client, tokens: int, *, url: str = "", key: str = "", deadline_s: float | None = None, model: str | None = None
) -> Iterator[Session]:
    """Open one, and close it when the block is left. A refusal is an `httpx.HTTPStatusError`, after all retries."""
    headers = _headers(key)
    opened = _opened(http.post(f"{url}{PATH}", json=_terms(tokens, deadline_s, model), headers=headers))
    try:
        yield opened
    finally:
        with suppress(httpx.HTTPError):
            http.delete(f"{url}{PATH}/{opened.name}", headers=headers)


@asynccontextmanager
async def async_session(
    http: httpx.AsyncClient,
    tokens: int,
    *,
    url: str = "",
    key: str = "",
    deadline_s: float | None = None,
    model: str | None = None,
) -> AsyncIterator[Session]:
    """The same for an async client."""
    headers = _headers(key)
    opened = _opened(await http.post(f"{url}{PATH}", json=_terms(tokens, deadline_s, model), headers=headers))
    try:
        yield opened
    finally:
        with suppress(httpx.HTTPError):
            await http.delete(f"{url}{PATH}/{opened.name}", headers=headers)


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _terms(tokens: int, deadline_s: float | None, model: str | None) -> dict[str, Any]:
    terms = {"tokens": tokens, "deadline_s": deadline_s, "model": model}
    return {name: value for name, value in terms.items() if value is not None}


def _opened(answer: httpx.Response) -> Session:
    answer.raise_for_status()
    told = answer.json()
    return Session(told["session"], told["tokens"], told["expires_s"])
