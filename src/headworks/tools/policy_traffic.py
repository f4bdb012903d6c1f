"""How many requests come: on an ordinary minute and in the worst one, by the decision log of the gateways that have run."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from headworks.tools.decision_log import LogError, lives

MINUTE_S = 60.0
WEEK_S = 7 * 86_400.0
MINUTES_MIN = 2


@dataclass(slots=True)
class Traffic:
    """Arrivals, over all gateways of a log."""

    arrivals: int
    log_s: float
    """From the first arrival to the last."""
    base_per_s: float
    """Of the minute in the middle."""
    burst_per_s: float
    """Of the fullest minute."""
    policy_versions: tuple[str, ...]

    @property
    def is_a_week(self) -> bool:
        """Long enough to judge a cost model by."""
        return self.log_s >= WEEK_S


def traffic_of(directory: Path) -> Traffic:
    """Raises `LogError` with what is missing."""
    arrived: list[float] = []
    versions: dict[str, None] = {}
    for life in lives(directory):
        arrived += [one.at_s + life.utc_offset_s for one in life.arrivals]
        versions |= {policy.version: None for _, policy in life.policies}
    if not arrived:
        raise LogError(f"{directory} has no request in it")
    first_s, last_s = min(arrived), max(arrived)
    minutes = [0] * (int((last_s - first_s) // MINUTE_S) + 1)
    for at_s in arrived:
        minutes[int((at_s - first_s) // MINUTE_S)] += 1
    if len(minutes) < MINUTES_MIN:
        raise LogError(f"{directory} has less than {MINUTES_MIN} minutes of requests in it")
    return Traffic(
        arrivals=len(arrived),
        log_s=last_s - first_s,
        base_per_s=statistics.median(minutes) / MINUTE_S,
        burst_per_s=max(minutes) / MINUTE_S,
        policy_versions=tuple(versions)[:10],
    )
