"""Counting prompts by their model's tokenizer, where that is worth it (C1): off the loop, capped and budgeted.

Bytes size a prompt well enough while it is short, and as soon as answers have told a tenant's tokens a byte. A long one is
counted (`estimate.tokenizer_from_chars`), and one of which a limit lies between the least and the most that it may come to.

It is done in one thread, so it takes one core at most and nothing from the loop; the library lets go of the interpreter
while it counts. A request waits `COUNT_S_MAX` for it at most. What is longer than `TEXT_CHARS_MAX`, or comes while
`WAITING_CHARS_MAX` wait already, is not counted. Whatever is not counted, or not in time, is sized by its bytes: a tokenizer
makes a reservation tighter, and nothing depends on it.

The texts are counted, the template is not run: for its marks the most that they may be is added (`texts` of each dialect).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from headworks.core.policy import Policy
from headworks.core.prompt_sizes import COUNTED
from headworks.core.types import Request
from headworks.gateway.dialects import parts
from headworks.gateway.dialects.base import Parsed
from headworks.gateway.dialects.table import DIALECTS

COUNT_S_MAX = 0.1
TEXT_CHARS_MAX = 1_000_000
TEXT_BYTES_MAX = 4 * TEXT_CHARS_MAX + 1_000_000
"""No text that is counted has more bytes, marks included: what has more is not even put together."""
WAITING_CHARS_MAX = 2_000_000
MISSING = "it needs the package tokenizers; install headworks[tokenizer], or leave the key out: prompts are then sized by bytes"


class TokenizerError(Exception):
    """A configured tokenizer cannot be used."""


def load(path: str) -> Any:
    """A tokenizer from its file. Raises `TokenizerError`."""
    # What is counted at once is a few texts of one request: the library's own threads would take every core for it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise TokenizerError(f"{path}: {MISSING}") from None
    try:
        return Tokenizer.from_file(path)
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(f"{path} is not a tokenizer file: {error}") from None


class Counting:
    """The tokenizers of a gateway, by model, and the one thread they run in."""

    def __init__(self, files: Mapping[str, str]) -> None:
        loaded = {path: load(path) for path in sorted(set(files.values()))}
        self._tokenizers = {model: loaded[path] for model, path in files.items()}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headworks-count")
        self._waiting_chars = 0

    async def sized(self, request: Request, parsed: Parsed, policy: Policy, unsure: Callable[[Request], bool]) -> Request:
        """The request with its prompt counted, if it is long or its bytes leave open whether it fits; else as it came."""
        pool = policy.pools.get(request.pool)
        if request.model not in self._tokenizers or pool is None:
            return request
        if parsed.prompt_bytes * parsed.prompts > TEXT_BYTES_MAX:
            return request
        from_chars = 0 if unsure(request) else pool.tokenizer_from_chars
        if parsed.prompt_bytes * parsed.prompts < from_chars:
            return request  # of characters it has no more
        tokens = await self.tokens(parsed, from_chars)
        if tokens is None:
            return request
        return parts.sized(replace(request, prompt_tokens=tokens, prompt_kind=COUNTED), parsed, tokens)

    async def tokens(self, parsed: Parsed, from_chars: int) -> int | None:
        """Tokens of one sequence with the marks of a template; None where it was not counted, or has fewer characters."""
        texts_of = DIALECTS[parsed.path].texts
        if texts_of is None:
            return None
        texts, marks_tokens = texts_of(parsed)
        chars = sum(map(len, texts))
        if chars < from_chars or chars > TEXT_CHARS_MAX or self._waiting_chars + chars > WAITING_CHARS_MAX:
            return None
        self._waiting_chars += chars
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[int | None] = loop.create_future()

        def told(counted: Future[int]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile: nobody waits
                loop.call_soon_threadsafe(self._done, counted, waiter, chars)

        self._thread.submit(_count, self._tokenizers[parsed.model], texts).add_done_callback(told)
        timer = loop.call_later(COUNT_S_MAX, _settle, waiter, None)
        try:
            tokens = await waiter
        finally:
            timer.cancel()
        return None if tokens is None else -(-tokens // parsed.prompts) + marks_tokens

    def _done(self, counted: Future[int], waiter: asyncio.Future[int | None], chars: int) -> None:
        self._waiting_chars -= chars
        failed = counted.cancelled() or counted.exception() is not None
        _settle(waiter, None if failed else counted.result())

    def close(self) -> None:
        """Nothing more is counted; what is being counted is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _settle(waiter: asyncio.Future[int | None], tokens: int | None) -> None:
    if not waiter.done():
        waiter.set_result(tokens)


def _count(tokenizer: Any, texts: list[str]) -> int:
    """In the thread; of its ways of counting this is the one that lets go of the interpreter."""
    return sum(len(one) for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False))
