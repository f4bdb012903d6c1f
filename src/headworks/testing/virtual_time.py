"""An event loop on which time passes only while nobody has anything to do: minutes of waiting take the seconds of their work.

Whatever runs on one such loop, real servers and real clients with real sockets on loopback, sees a machine that is never late.
So what a schedule does can be shown on a machine that is busy with other things, and again with the same outcome.

When nothing is ready, bytes may still be under way between two sockets of this process, or a thread may be about to answer.
The loop waits `GRACE_S` of real time for them, and then goes to its next timer at once. While something runs in its executor it
waits for that however long it takes.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

GRACE_S = 0.001
"""What is sent on loopback is there when the call that sent it returns, but for a kernel that puts it off for a moment."""
THREAD_LOOK_S = 0.05


class _Skipping(selectors.DefaultSelector):
    """Waits no longer than for what is under way, and tells its loop what time it is then."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.working = 0
        """What runs in threads, and would be late if time passed meanwhile."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            return super().select(None)
        ready = super().select(GRACE_S)
        while self.working and not ready:
            ready = super().select(THREAD_LOOK_S)
        if not ready:
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module. `time` is its clock: give it to whatever would read the machine's."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now_s

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], Result], *args: *Arguments
    ) -> asyncio.Future[Result]:
        future = super().run_in_executor(executor, func, *args)
        self._skipping.working += 1
        future.add_done_callback(self._has_worked)
        return future

    def _has_worked(self, future: asyncio.Future[Any]) -> None:
        self._skipping.working -= 1
