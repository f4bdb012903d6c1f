"""A handler's coroutine, run from one future to the next.

What an `asyncio.Task` does beyond that costs more than the rest of an ordinary request's stay: the first step waits for
another turn of the loop, and every task is entered in a table of all tasks. Handlers await futures and `asyncio.sleep`;
what needs a current task (`asyncio.timeout`) needs a task of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headworks.gateway.http.exchange import Exchange

Ended = Callable[["Exchange", BaseException | None], None]


class Running:
    """`ended` is called once, with what the coroutine raised, if anything."""

    __slots__ = ("_awaited", "_cancelled", "_coroutine", "_ended", "_exchange")

    def __init__(self, coroutine: Coroutine[Any, Any, None], exchange: Exchange, ended: Ended) -> None:
        self._coroutine = coroutine
        self._exchange = exchange
        self._ended = ended
        self._awaited: asyncio.Future[Any] | None = None
        self._cancelled = False
        """By itself, while it ran: what it awaits next is cancelled."""

    def step(self, _woken: object = None) -> None:
        """Runs it until it awaits something that is not there yet; called again when that is there."""
        self._awaited = None
        try:
            awaited = self._coroutine.send(None)
            if awaited is None:  # `asyncio.sleep(0)`: a turn of the loop.
                awaited = asyncio.get_running_loop().create_future()
                asyncio.get_running_loop().call_soon(_wake, awaited)
            else:
                awaited._asyncio_future_blocking = False  # How a future learns that it was taken up.
            self._awaited = awaited
            awaited.add_done_callback(self.step)
            if self._cancelled:
                self._cancelled = False
                awaited.cancel()
        except StopIteration:
            self._ended(self._exchange, None)
        except (Exception, asyncio.CancelledError) as error:
            self._ended(self._exchange, error)

    def cancel(self) -> None:
        """What it awaits is cancelled, and so it hears of it."""
        if self._awaited is None:
            self._cancelled = True
        else:
            self._awaited.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
