"""A decision log read back: the lives of gateways in it, each with its policies, its engines and its arrivals.

Its lines are in `log_lines.py`, and are read by `logs/reading.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headworks.core.events import Drain, Event, PolicyChanged, ReplicaDescribed, ReplicaSampled, SampleFailed, UsageRead
from headworks.core.policy import Policy
from headworks.core.types import Capacity, ReplicaSample
from headworks.logs.reading import lines
from headworks.tools.log_lines import Arrival, Asked, Began, Copied, Decided, Draining, Ended, Late, Line, Unseen, Used

ARRIVALS_MAX = 1_000_000
"""Of one plan: they are held in memory."""
SIMULATED = "simulated"
"""The kind of ledger of a simulated gateway, where nothing takes time."""
WHOLE_S = 60.0
"""An engine is heard of, or not, every few seconds: a life with nothing in its first minute has lost its first file."""

KINDS: dict[str, Any] = {
    "began": Began,
    "policy": Policy,
    "engine": Capacity,
    "sample": ReplicaSample,
    "unseen": Unseen,
    "used": Used,
    "drain": Draining,
    "late": Late,
    "copy": Copied,
    "decision": Decided,
    "outcome": Ended,
}


class LogError(ValueError):
    """The log cannot be used. The text says why, and what would help."""


@dataclass(slots=True)
class Life:
    """One life of one gateway process, as far as the log has it."""

    gateway: str
    boot: str
    utc_offset_s: float
    began_s: float
    """When the process began or, where that is not in the log, when the log does."""
    whole: bool
    """Its beginning is in the log: what it had learnt before the first line was nothing."""
    began_utc: str
    policies: list[tuple[float, Policy]] = field(default_factory=list)
    """Since when which was in force; never empty."""
    facts: list[tuple[float, Event]] = field(default_factory=list)
    """What was heard of engines and of quotas, and the drain, in order."""
    ledger: str = "memory"
    """Its kind: how soon it answers."""
    late: list[tuple[float, float, int]] = field(default_factory=list)
    """From when to when the process was late, and by which line it is known: something was due, and was done then.
    They do not overlap."""
    copies: list[Copied] = field(default_factory=list)
    """What was chosen to be copied to a second pool."""
    arrivals: list[Arrival] = field(default_factory=list)
    """In the order in which the gate was told of them."""

    @property
    def is_durable(self) -> bool:
        """Its ledger was a file: what let work start was answered when that had been written."""
        return self.ledger not in ("memory", SIMULATED)

    @property
    def has_turns(self) -> bool:
        """What came in one turn of a loop was asked of the ledger together."""
        return self.ledger != SIMULATED

    @property
    def ended_s(self) -> float:
        """The last moment there is something about."""
        last_s = max((one.ended.ended_s for one in self.arrivals), default=self.began_s)
        return max(last_s, self.facts[-1][0] if self.facts else self.began_s)

    def utc(self, at_s: float) -> str:
        """An instant as the log writes it."""
        utc_s = at_s + self.utc_offset_s
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(utc_s))}.{int(utc_s % 1.0 * 1_000_000):06d}Z"

    def policy_at(self, at_s: float) -> Policy:
        """The one in force then."""
        return next((policy for since_s, policy in reversed(self.policies) if since_s <= at_s), self.policies[0][1])


def lives(directory: Path, since: str = "", until: str = "") -> list[Life]:
    """Every life in the log, oldest first. `since` and `until`: UTC as the log writes it, or the beginning of that."""
    paths = sorted(directory.glob("decisions-*.jsonl"))
    if not paths:
        raise LogError(f"{directory} has no decisions-*.jsonl; a decision log is the directory named by log.decisions.")
    reading = _Reading(since, until)
    for path in paths:
        reading.begin_file()
        for line in lines(path):
            reading.take(msgspec.convert(line, Line))
    return reading.lives()


class _Open:
    """A life that is being read."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.decided: dict[str, Decided] = {}
        """The first decision about each arrival that has not ended."""
        self.granted: dict[str, tuple[float, int]] = {}
        """When each was admitted, and by which line."""
        self.heads: set[tuple[str, float]] = set()
        """Facts that stand at the beginning of every file, and were taken: whose, and of when."""
        self.begun = False
        """A line inside the window has been read."""


class _Reading:
    """Takes lines in, puts them to their lives."""

    def __init__(self, since: str, until: str) -> None:
        self._since = since
        self._until = until
        self._lives: dict[str, _Open] = {}
        self._now: _Open | None = None
        self._arrivals = self._lines = 0
        self._of_nobody = 0
        self._without_asked = 0

    def begin_file(self) -> None:
        """Whose lines these are is said by the first."""
        self._now = None

    def take(self, line: Line) -> None:
        self._lines += 1
        kind = KINDS.get(line.kind)
        if kind is None:  # a client's own name for a request
            return
        try:
            record = msgspec.convert(line.record, kind)
        except msgspec.ValidationError as error:
            raise LogError(f"a line of kind {line.kind!r} is not as this version writes it: {error}") from error
        if line.kind == "began":
            self._now = self._life(record, line)
        elif self._now is None:
            self._of_nobody += 1
        elif line.kind in ("policy", "engine"):
            self._head(self._now, record, line)
        elif line.utc >= self._since and (not self._until or line.utc < self._until):
            self._inside(self._now, record, line)

    def _life(self, began: Began, line: Line) -> _Open:
        found = self._lives.get(began.boot)
        if found is None:
            whole = line.utc >= self._since
            life = Life(began.gateway, began.boot, began.utc_offset_s, line.monotonic_s, whole, line.utc)
            life.ledger = began.ledger
            found = self._lives[began.boot] = _Open(life)
        return found

    def _head(self, now: _Open, record: Policy | Capacity, line: Line) -> None:
        """Repeated at the beginning of each file, so it is taken once; what came before the window holds in it."""
        head = (record.replica if isinstance(record, Capacity) else "", line.monotonic_s)
        if head in now.heads or (self._until and line.utc >= self._until):
            return
        now.heads.add(head)
        if isinstance(record, Policy):
            now.life.policies.append((line.monotonic_s, record))
        else:
            now.life.facts.append((line.monotonic_s, ReplicaDescribed(record)))

    def _inside(self, now: _Open, record: Any, line: Line) -> None:
        life = now.life
        if not now.begun:
            now.begun = True
            self._begin(life, record, line)
        if isinstance(record, Ended):
            self._ended(now, record)
        elif isinstance(record, Decided):
            if record.at_arrival:
                record.place = self._lines
                now.decided.setdefault(record.id, record)
            if record.outcome == "admit":
                now.granted[record.id] = record.decided_s, self._lines
        elif isinstance(record, Late):
            life.late.append((record.due_s, line.monotonic_s, self._lines))
        elif isinstance(record, Copied):
            life.copies.append(record)
        else:
            life.facts.append((line.monotonic_s, _event(record)))

    @staticmethod
    def _begin(life: Life, record: Any, line: Line) -> None:
        """A life whose first file has expired, or that began before the window, begins with what is left of it."""
        first_s = min(line.monotonic_s, getattr(record, "decided_s", line.monotonic_s))
        if not life.whole or first_s - life.began_s > WHOLE_S:
            life.whole, life.began_utc = False, line.utc
            life.began_s = first_s

    def _ended(self, now: _Open, ended: Ended) -> None:
        decided = now.decided.pop(ended.id, None)
        _, granted_place = now.granted.pop(ended.id, (0.0, 0))
        if ended.asked is None:
            self._without_asked += 1
            return
        self._arrivals += 1
        if self._arrivals > ARRIVALS_MAX:
            raise LogError(f"more than {ARRIVALS_MAX:,} arrivals: choose a part of the log with --since and --until.")
        told_s = ended.told_s if ended.told_s is not None else decided.decided_s if decided is not None else ended.arrived_s
        as_it_came = decided is not None and decided.outcome != "admit" and not ended.asked.key_given
        place = decided.place if decided is not None and as_it_came else 0
        would = decided.reason if decided is not None and decided.outcome == "refuse" else ""
        now.life.arrivals.append(Arrival(told_s, ended, place, self._lines, would, granted_place))

    def lives(self) -> list[Life]:
        """What was found, or why it cannot be used."""
        found = [one for one in self._lives.values() if one.life.arrivals and one.life.policies]
        if not found and (self._of_nobody or self._without_asked):
            raise LogError("this log was written by a version that did not note what deciding again needs.")
        if not found:
            raise LogError("no request has ended in this log, or in the part of it that was asked for.")
        for one in found:
            life = one.life
            life.arrivals += _unfinished(one)
            life.arrivals.sort(key=lambda arrival: (arrival.at_s, arrival.ended.arrived_s))
            life.facts.sort(key=lambda fact: fact[0])
            life.policies.sort(key=lambda policy: policy[0])
            life.late = _joined(life.late)
        return [one.life for one in found]


def _joined(spans: list[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    """Those that overlap are one, which ended with the first line of its end."""
    joined: list[tuple[float, float, int]] = []
    for from_s, to_s, place in sorted(spans):
        if joined and from_s < joined[-1][1]:
            before_s, end_s, first = joined[-1]
            joined[-1] = before_s, max(end_s, to_s), min(first, place) if to_s == end_s else first if end_s > to_s else place
        else:
            joined.append((from_s, to_s, place))
    return joined


def _unfinished(now: _Open) -> Iterator[Arrival]:
    """Admitted, and not ended where the log ends: they are decided about again, and compared with nothing."""
    end_s = now.life.ended_s
    for name, decided in now.decided.items():
        work, arrived_s = decided.work, decided.decided_s - decided.waited_s
        prompt_tokens = work.prefill_tokens // max(1, work.sequences)
        asked = Asked(0, prompt_tokens, work.output_tokens_max, 0, max(1, work.sequences), True, False, False, 0, None, None)
        ended = Ended(
            id=name,
            key=decided.key,
            outcome="",
            reason="",
            service_class=decided.service_class,
            model=decided.model,
            pool=decided.pool,
            client=decided.key.tenant,
            arrived_s=arrived_s,
            sent_s=now.granted[name][0] if name in now.granted else None,
            first_byte_s=None,
            ended_s=end_s,
            work=work,
            usage=None,
            evidence="",
            unconfirmed_s=None,
            in_slo=False,
            asked=asked,
        )
        yield Arrival(decided.decided_s, ended)


def _event(record: Any) -> Event:
    """A fact as the gate was told it."""
    if isinstance(record, ReplicaSample):
        return ReplicaSampled(record)
    if isinstance(record, Unseen):
        return SampleFailed(record.replica, "as logged", record.unreachable)
    if isinstance(record, Used):
        return UsageRead(record.used)
    assert isinstance(record, Draining)
    return Drain(record.until_s)


def policy_changes(life: Life) -> list[tuple[float, Event]]:
    """The reloads of a life."""
    return [(at_s, PolicyChanged(policy)) for at_s, policy in life.policies[1:]]
