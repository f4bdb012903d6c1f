"""What another policy would have said to one request, with everything else as it was (F2, `headworks explain --policy`).

The log is decided about once more, by its own policy, up to the instant at which the request came (`replay.py`). Then the
very gate that stands there is asked twice what it would say now (`Gate.consider`, the code that decides): as it is, which
must be what the log has or the rest is not to be relied on, and after it was given the other policy. So the state is the
same: what runs, what waits, what was learnt.

`headworks plan` answers another question: what would have become of everybody, had that policy been in force all the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from headworks.core.events import PolicyChanged
from headworks.core.policy import Policy
from headworks.core.types import Decision
from headworks.tools.decision_log import Life, LogError, lives
from headworks.tools.log_lines import Arrival
from headworks.tools.plan import decision_line
from headworks.tools.replay import Replay, request_of
from headworks.tools.replay_model import Model

AROUND_S = 900.0
"""So much of the log is read on both sides: what ran then began and ended within it."""
REQUESTS_MAX = 4
"""Of one name."""


@dataclass(slots=True)
class Otherwise:
    """One request under another policy."""

    id: str
    policy_version: str
    holds: bool
    """Under its own policy the decision is that of the log."""
    logged: str
    again: str
    """What its own policy says, in the log and once more: outcome and reason."""
    line: dict[str, Any] | None
    """What the other says, as the log would have it. None: it has no such tenant or model."""


def otherwise(directory: Path, records: list[dict[str, Any]], policy: Policy) -> list[Otherwise]:
    """For each request among these records of the log. Raises `LogError`."""
    first: dict[str, dict[str, Any]] = {}
    for record in records:
        if record["kind"] == "decision" and record["record"]["at_arrival"]:
            first.setdefault(record["record"]["id"], record)
    return [_one(directory, name, record, policy) for name, record in list(first.items())[:REQUESTS_MAX]]


def _one(directory: Path, name: str, record: dict[str, Any], policy: Policy) -> Otherwise:
    at = datetime.fromisoformat(record["utc"].replace("Z", "+00:00")).astimezone(UTC)
    since, until = (f"{at + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}" for seconds in (-AROUND_S, AROUND_S))
    for life in lives(directory, since, until):
        arrival = next((one for one in life.arrivals if one.ended.id == name), None)
        if arrival is not None:
            return _asked(life, arrival, record["record"], policy)
    raise LogError(f"{name} is not in the log as a whole: what was asked for stands in its outcome, which is not there.")


def _asked(life: Life, arrival: Arrival, logged: dict[str, Any], policy: Policy) -> Otherwise:
    replay = _UpTo(life, arrival, policy)
    replay.run()
    again, other = replay.own, replay.other
    was, now = _named(logged["outcome"], logged["reason"]), "" if again is None else _named(again.outcome, again.reason)
    line = None if other is None else decision_line(other, life)
    return Otherwise(arrival.ended.id, policy.version, was == now, was, now, line)


def _named(outcome: str, reason: str) -> str:
    """What it waits for is known when it does: nobody waits who is only asked about."""
    return f"{outcome}: {reason}" if outcome == "refuse" else outcome


class _UpTo(Replay):
    """A control that ends where one request comes."""

    def __init__(self, life: Life, wanted: Arrival, other: Policy) -> None:
        super().__init__(life, Model(life))
        self._wanted = wanted
        self._other = other
        self.own: Decision | None = None
        self.other: Decision | None = None
        """What both policies say."""

    def _arrive(self, arrival: Arrival) -> None:
        if arrival is not self._wanted:
            super()._arrive(arrival)
            return
        own, now_s = self.life.policy_at(arrival.at_s), self.world.now_s
        self.own = self._considered(arrival, own, own, now_s)
        self.gate.handle(PolicyChanged(self._other), now_s)
        self.other = self._considered(arrival, own, self._other, now_s)
        self._missing = 0  # nothing that follows is of interest

    def _considered(self, arrival: Arrival, own: Policy, policy: Policy, now_s: float) -> Decision | None:
        request = request_of(arrival, own, policy)
        return None if request is None else self.gate.consider(request, now_s)
