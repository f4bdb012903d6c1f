"""Goodput of the last minute by class: what kept every promise ÷ what arrived and was not refused for its tenant's limits.

Counted by the second in which an arrival ended, so that a minute ago falls out of it without anybody touching what is still in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from headworks.core.effects import Outcome
from headworks.core.reasons import REASONS

WINDOW_S = 60
OWN_FAULT = frozenset({"tenant", "client", "request"})
"""Scopes of reasons that say nothing of what the pool can do: the tenant's own limits, and what nobody could have served."""


class LastMinute:
    """At most sixty-one entries a class, whatever the load."""

    def __init__(self) -> None:
        self._classes: dict[str, deque[list[int]]] = {}
        """By class: the second, arrivals that ended in it, and how many of them were goodput."""

    def count(self, outcomes: Sequence[Outcome]) -> None:
        """Outcomes of one class and one reason."""
        reason = REASONS.get(outcomes[0].reason)
        if outcomes[0].outcome == "refused" and reason is not None and reason.scope in OWN_FAULT:
            return
        seconds = self._classes.setdefault(outcomes[0].service_class, deque(maxlen=WINDOW_S + 1))
        second = ended = good = 0
        for end in outcomes:
            if end.ended_s >= second + 1:
                _add(seconds, second, ended, good)
                second, ended, good = int(end.ended_s), 0, 0
            ended += 1  # what was counted late belongs to a second that is nearly this one
            good += end.in_slo
        _add(seconds, second, ended, good)

    def ratios(self, now_s: float) -> Iterator[tuple[str, float]]:
        """By class; a class in which nothing ended has none: a quiet night is not a bad one."""
        for service_class, seconds in self._classes.items():
            ended = [entry for entry in seconds if entry[0] > now_s - WINDOW_S]
            arrivals = sum(entry[1] for entry in ended)
            if arrivals:
                yield service_class, sum(entry[2] for entry in ended) / arrivals


def _add(seconds: deque[list[int]], second: int, ended: int, good: int) -> None:
    if not ended:
        return
    if not seconds or second > seconds[-1][0]:
        seconds.append([second, 0, 0])
    entry = seconds[-1]
    entry[1] += ended
    entry[2] += good
