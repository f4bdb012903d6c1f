"""When the garbage collector runs: seldom, and never for long.

What is made for a request is freed by counting, so there is next to nothing to find; but each run looks at all that has been
made and not freed since the one before, and the loop stands still meanwhile. What counts is thus how much that can be: while
10,000 streams are opened, all that they hold. So the youngest are looked at in small portions, and what stays is left alone.
"""

from __future__ import annotations

import gc

THRESHOLDS = (20_000, 500, 100)
"""Objects made beyond those freed before the youngest are looked at; how often, before those are that stayed; and again."""


def collect_rarely() -> None:
    """What stands after the start stays for good: it is set aside, and the rest is looked at as stated above."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
