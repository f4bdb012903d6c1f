"""What the book is made of: one entry for an execution, one boot for a gateway's life. Only the book changes them."""

from __future__ import annotations

from collections.abc import Sequence

from headworks.core.book_counters import Counter
from headworks.core.types import Charge, Owner, RequestKey, Reservation, Usage

Flow = tuple[str, str]


class Entry:
    """One execution, from the first command that names it until it is forgotten."""

    __slots__ = (
        "charges",
        "closing_ms",
        "closing_sequence",
        "cost_tokens",
        "counters",
        "ended_ms",
        "evidence",
        "execution",
        "fingerprint",
        "flow",
        "forget_ms",
        "incarnation",
        "key",
        "owner",
        "pool",
        "replica",
        "reserved_by",
        "reserved_ms",
        "running_sequence",
        "seen",
        "started_ms",
        "state",
        "steps",
        "usage",
        "was",
        "weights",
    )

    def __init__(self, execution: str, state: str, key: RequestKey | None, fingerprint: str, owner: Owner) -> None:
        self.execution = execution
        self.state = state
        self.key = key
        self.fingerprint = fingerprint
        self.owner = owner
        self.reserved_by = owner
        self.was = ""
        self.seen = False
        self.pool = ""
        self.replica = ""
        self.incarnation = 0
        """The stamp: set by the first `PutIncarnation` that names it as inside, and by nothing else."""
        self.charges: Sequence[Charge] = ()
        self.counters: Sequence[Counter] = ()
        """The counter of each charge, so that giving back needs no search."""
        self.flow: Flow | None = None
        self.weights = (1.0, 1.0)
        self.cost_tokens = 0
        self.steps: dict[int, None] | None = None
        """Growth steps that were counted."""
        self.usage: Usage | None = None
        self.evidence = ""
        self.reserved_ms = 0
        self.started_ms = 0
        self.ended_ms = 0
        self.forget_ms = 0
        self.running_sequence = 0
        """The command that made it RUNNING, or that took it back to it."""
        self.closing_sequence = 0
        """The command at which it began to be closing or orphaned; 0 while it is neither."""
        self.closing_ms = 0
        """When it was last cancelled or orphaned: from here a request never seen may still be on its way for a lease."""

    def reservation(self) -> Reservation:
        """The record as others see it."""
        return Reservation(
            execution=self.execution,
            key=self.key,
            fingerprint=self.fingerprint,
            state=self.state,
            was=self.was,
            seen=self.seen,
            owner=self.owner,
            reserved_by=self.reserved_by,
            replica=self.replica,
            incarnation=self.incarnation,
            charges=tuple(map(Charge._make, self.charges)),
            usage=self.usage,
            evidence=self.evidence,
            reserved_ms=self.reserved_ms,
            started_ms=self.started_ms,
            ended_ms=self.ended_ms,
        )


def sequences(charges: Sequence[Charge]) -> int:
    """How many sequences of the engine such charges stand for: the requests among them, one where nothing says so."""
    return max((amount for _, unit, amount in charges if unit == "requests"), default=1)


class Boot:
    """One life of one gateway: its lease, what it vouches for, and what it owns."""

    __slots__ = ("alive", "departed", "entries", "gone_ms", "lease_until_ms", "owner", "seen_sequence", "unvouched")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.alive = True
        self.departed = False
        self.lease_until_ms = 0
        self.gone_ms = 0
        self.seen_sequence = 0
        self.unvouched: tuple[str, ...] = ()
        self.entries: dict[str, Entry] = {}
        """Claimed and charged executions it owns."""
