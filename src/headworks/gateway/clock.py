"""The one place of the gateway that reads a clock.

Leases must not outlive a suspended machine, so the monotonic clock that counts suspension is used where there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from headworks.core.instants import INSTANTS_A_MS, first_of_turn

now_s: Callable[[], float] = time.monotonic
"""Seconds on a clock that never goes back. Where the system has one, it counts the time the machine sleeps.

It is read a dozen times a request, so it is the system's own function and not one around it.
"""
if hasattr(time, "CLOCK_BOOTTIME"):
    now_s = partial(time.clock_gettime, time.CLOCK_BOOTTIME)

utc_s: Callable[[], float] = time.time
"""Seconds since 1970, for records that people read and for headers that carry a date. Decides nothing."""


class TurnClock:
    """What is handled in one turn of the loop has one time, and each event an instant of its own in it (`core/instants.py`).

    The ledger of this process counts by it too, so that what it decides follows from what the decision log has.
    """

    __slots__ = ("_clock_s", "instant")

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self.instant = first_of_turn(clock_s(), 0)
        """Of the event that is being handled, in `INSTANTS_PER_S`."""

    def begin_turn(self) -> None:
        """What comes from here on is another turn's."""
        self.instant = first_of_turn(self._clock_s(), self.instant)

    def now_ms(self) -> int:
        """The clock of a ledger that lives in this process, in milliseconds."""
        return self.instant // INSTANTS_A_MS


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
        micros = str(
            1_000_000 + int((wall_s - second) * 1_000_000)
        )  # six digits: compiled, an f-string takes three times as long
        return f"{self._prefix}{micros[1:]}Z"
