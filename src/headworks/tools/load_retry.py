"""When the stock OpenAI client asks again, and after how long (observed on its Python releases of 2026).

Only what a server can see matters here: which answers are retried, how a hint is obeyed, and how long the client waits
when there is none. A hint is obeyed to the millisecond and without jitter, so clients refused in one instant with one
hint come back in one instant (B15).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from random import Random

RETRIES_MAX = 2
HINT_S_MAX = 120.0
BACKOFF_S_FIRST = 0.5
BACKOFF_S_MAX = 8.0
JITTER_RATIO = 0.25


def wait_s(status: int, hints: Mapping[str, str], retries: int, random: Random, retries_max: int = RETRIES_MAX) -> float | None:
    """Seconds until the next attempt, or None where the client gives up. Status 0: the connection failed."""
    hint_s = _hint_s(hints)
    if retries >= retries_max or (hint_s is not None and hint_s > HINT_S_MAX):
        return None
    told = hints.get("x-should-retry")
    if told == "false":
        return None
    if told != "true" and status not in (0, 408, 409, 429) and status < 500:
        return None
    if hint_s is not None and hint_s > 0:
        return hint_s
    return min(BACKOFF_S_FIRST * 2.0 ** min(retries, 8), BACKOFF_S_MAX) * (1.0 - JITTER_RATIO * random.random())


def _hint_s(hints: Mapping[str, str]) -> float | None:
    """The milliseconds header first, then seconds, then a date."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            hint_s = float(hints[name]) * unit_s
        except (KeyError, ValueError):
            continue
        return hint_s if math.isfinite(hint_s) else None
    try:
        return parsedate_to_datetime(hints["retry-after"]).timestamp() - time.time()
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
