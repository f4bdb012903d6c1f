"""The one place of the gateway that reads a clock.

Leases must not outlive a suspended machine, so the monotonic clock that counts suspension is used where there is one.
"""

from __future__ import annotations

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def now_s() -> float:
        """Seconds on a clock that never goes back and counts the time the machine sleeps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:

    def now_s() -> float:
        """Seconds on a clock that never goes back. This system offers none that counts suspension."""
        return time.monotonic()


def utc_s() -> float:
    """Seconds since 1970, for records that people read and for headers that carry a date. Decides nothing."""
    return time.time()


def now_ms() -> int:
    """The clock of a ledger that lives in this process, in milliseconds."""
    return int(now_s() * 1000)
