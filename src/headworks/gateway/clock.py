"""The one place of the gateway that reads a clock.

Leases must not outlive a suspended machine, so the monotonic clock that counts suspension is used where there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

now_s: Callable[[], float] = time.monotonic
"""Seconds on a clock that never goes back. Where the system has one, it counts the time the machine sleeps.

It is read a dozen times a request, so it is the system's own function and not one around it.
"""
if hasattr(time, "CLOCK_BOOTTIME"):
    now_s = partial(time.clock_gettime, time.CLOCK_BOOTTIME)

utc_s: Callable[[], float] = time.time
"""Seconds since 1970, for records that people read and for headers that carry a date. Decides nothing."""


def now_ms() -> int:
    """The clock of a ledger that lives in this process, in milliseconds."""
    return int(now_s() * 1000)


class UtcStamp:
    """Wall time as text with microseconds; the part up to the second is made once a second."""

    __slots__ = ("_prefix", "_second")

    def __init__(self) -> None:
        self._second = -1
        self._prefix = ""

    def text(self, wall_s: float) -> str:
        second = int(wall_s)
        if second != self._second:
            self._second = second
            self._prefix = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second))
        return f"{self._prefix}{int((wall_s - second) * 1_000_000):06d}Z"
