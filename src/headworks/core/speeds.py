"""How much slower than its like is each engine of a pool? (D4: a request goes where it is complete first)

What lies before the end of a request is counted in prompt tokens and requests in hand (`core/affinity.py`), which compares
engines that are equally quick. Not all are: another card, a neighbour, a fault. So what lies before its end at a replica counts
as many times as that takes longer there than usual, by the pool's own fits (`core/predict.py`):

    reading   the fitted first token of a prompt of `PROMPT_TOKENS` with nothing ahead
    writing   the fitted time for a token beside as many others as a replica of the pool has on average, times how far the
              last answers were off that

*Usual* is the median of those that are known, and up to `ALIKE_RATIO` from it all are alike: fits of the same engine
differ by some per cent, and no difference that is not there may draw work to one of them. Who is not known yet is as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headworks.core.replica import Replica

PROMPT_TOKENS = 1024
ALIKE_RATIO = 1.25
TIMES_MAX = 8.0
"""Slower than that is not told apart: work is to be seen there now and then, or nobody notices that it is well again."""
COMPARE_EVERY_S = 0.5


def compare_speeds(replicas: Collection[Replica]) -> None:
    """Say of each how many times as long as usual it reads and writes."""
    beside = 1.0 + sum(one.requests for one in replicas) / max(1, len(replicas))
    reads = _times(replicas, lambda one: one.prefill.reads_s(PROMPT_TOKENS))
    writes = _times(replicas, lambda one: one.decode.lately_s(beside))
    for replica, reading, writing in zip(replicas, reads, writes, strict=True):
        replica.reads_times, replica.writes_times = reading, writing


def _times(replicas: Collection[Replica], took_s: Callable[[Replica], float | None]) -> list[float]:
    """Each one's time over the usual one; 1 where they are alike, or nothing is known."""
    found = [took_s(one) for one in replicas]
    known = sorted(seconds for seconds in found if seconds)
    if not known:
        return [1.0] * len(found)
    usual_s = known[(len(known) - 1) // 2]
    return [_ratio(seconds / usual_s) if seconds else 1.0 for seconds in found]


def _ratio(times: float) -> float:
    if 1.0 / ALIKE_RATIO <= times <= ALIKE_RATIO:
        return 1.0
    return min(TIMES_MAX, max(1.0 / TIMES_MAX, times))
