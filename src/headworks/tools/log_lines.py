"""Lines of a decision log as they are read back: of each kind the fields that deciding again needs.

They are written by `gateway/decisions.py` and `gateway/log_facts.py`, whose names these are, and made objects again by
`logs/reading.py`; a test writes with the one and reads with the other.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headworks.core.policy import INFINITE_S
from headworks.core.types import Charge, RequestKey, Usage, Work


class Asked(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """What a client asked for (`gateway/log_forms.py`)."""

    prompt_bytes: int
    prompt_tokens: int | None
    output_tokens_max: int | None
    output_tokens_min: int
    samples: int
    stream: bool
    assembles: bool
    key_given: bool
    retry_count: int
    start_s: float | None
    """From its arrival to the latest start its client bears; None: any. The same for its end."""
    finish_s: float | None
    prompt_kind: str = "text"
    route: str = ""


class Ended(msgspec.Struct, gc=False, frozen=True):
    """What became of an arrival, as the log has it."""

    id: str
    key: RequestKey
    outcome: str
    """As in `Outcome`; empty where the log ends before."""
    reason: str
    service_class: str
    model: str
    pool: str
    client: str
    arrived_s: float
    sent_s: float | None
    first_byte_s: float | None
    ended_s: float
    work: Work
    usage: Usage | None
    evidence: str
    unconfirmed_s: float | None
    in_slo: bool
    replica: str = ""
    asked: Asked | None = None
    marks: tuple[tuple[float, int], ...] | None = None
    told_s: float | None = None

    @property
    def heard(self) -> tuple[tuple[float, int], ...]:
        """When how many of its tokens had been counted."""
        return tuple(mark for mark in self.marks or () if mark[1])

    @property
    def let_go_on_s(self) -> list[float]:
        """When it was granted more."""
        return [at_s for at_s, tokens in self.marks or () if not tokens]

    @property
    def stopped_s(self) -> float:
        """When it ended for its client: what followed was waiting for the proof."""
        return self.ended_s - (self.unconfirmed_s or 0.0)


class Arrival(msgspec.Struct, gc=False, frozen=True):
    """One request: when the gate was told of it, and what became of it."""

    at_s: float
    ended: Ended
    place: int = 0
    """Of its first decision among the lines of the log, 0 if that need not have been made as it came."""
    end_place: int = 0
    """Of its outcome."""
    would_refuse: str = ""
    """The reason with which it was refused at its arrival, or would have been had anything been enforced."""
    granted_place: int = 0
    """Of its admission. What happened at one instant happened in the order of these."""


class Decided(msgspec.Struct, gc=False):
    """The part of a decision that is needed beside the outcome."""

    id: str
    key: RequestKey
    outcome: str
    decided_s: float
    waited_s: float
    work: Work
    service_class: str
    model: str
    pool: str
    at_arrival: bool
    reason: str = ""
    place: int = 0
    """Of its line."""


class Began(msgspec.Struct):
    """One life of one process."""

    gateway: str
    boot: str
    utc_offset_s: float
    ledger: str = "memory"


class Unseen(msgspec.Struct):
    """A look that failed."""

    replica: str
    unreachable: bool


class Used(msgspec.Struct):
    """So much of running periods."""

    used: tuple[Charge, ...]


class Late(msgspec.Struct):
    """What was due then was done at the instant of this line."""

    due_s: float


class Copied(msgspec.Struct):
    """A request was chosen to be copied to a second pool."""

    id: str
    copy: str
    """Its own id; empty where it was left out."""
    pool: str
    left_out: str


class Draining(msgspec.Struct):
    """Nobody new is admitted."""

    until_s: float


class Line(msgspec.Struct):
    """Any line; what it is about is decoded by its kind."""

    kind: str
    utc: str
    monotonic_s: float
    record: Any


def patience_s(asked: Asked) -> tuple[float, float]:
    """How long its client bears waiting for the start and for the end."""
    start_s, finish_s = asked.start_s, asked.finish_s
    return INFINITE_S if start_s is None else start_s, INFINITE_S if finish_s is None else finish_s
