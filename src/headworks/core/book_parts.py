"""What the book is made of: one entry for an execution, one boot for a gateway's life. Only the book changes them."""

from __future__ import annotations

from collections.abc import Sequence

from headworks.core.book_counters import Charges, Counter
from headworks.core.peak import Profile
from headworks.core.types import Charge, Owner, RequestKey, Reservation, Usage

Flow = tuple[str, str]
EVEN = (1.0, 1.0)


class Entry:
    """One execution, from the first command that names it until it is forgotten. It is made by `of`."""

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

    execution: str
    state: str
    key: RequestKey | None
    fingerprint: str
    owner: Owner
    reserved_by: Owner
    was: str
    seen: bool
    pool: str
    replica: str
    incarnation: int
    """The stamp: set by the first `PutIncarnation` that names it as inside, and by nothing else."""
    charges: Charges
    counters: Sequence[Counter]
    """The counter of each charge, so that giving back needs no search."""
    flow: Flow | None
    weights: tuple[float, float]
    cost_tokens: int
    steps: dict[int, None] | None
    """Growth steps that were counted."""
    usage: Usage | None
    evidence: str
    reserved_ms: int
    started_ms: int
    ended_ms: int
    forget_ms: int
    running_sequence: int
    """The command that made it RUNNING, or that took it back to it."""
    closing_sequence: int
    """The command at which it began to be closing or orphaned; 0 while it is neither."""
    closing_ms: int
    """When it was last cancelled or orphaned: from here a request never seen may still be on its way for a lease."""

    @classmethod
    def of(
        cls,
        execution: str,
        state: str,
        key: RequestKey | None,
        fingerprint: str,
        owner: Owner,
        pool: str = "",
        replica: str = "",
        flow: Flow | None = None,
        weights: tuple[float, float] = EVEN,
        cost_tokens: int = 0,
        charges: Charges = (),
        counters: Sequence[Counter] = (),
        reserved_ms: int = 0,
    ) -> Entry:
        """The first record of it. Not a constructor: what Python does around one costs as much as all this."""
        entry = cls()
        entry.execution = execution
        entry.state = state
        entry.key = key
        entry.fingerprint = fingerprint
        entry.owner = entry.reserved_by = owner
        entry.pool = pool
        entry.replica = replica
        entry.flow = flow
        entry.weights = weights
        entry.cost_tokens = cost_tokens
        entry.charges = charges
        entry.counters = counters
        entry.reserved_ms = reserved_ms
        entry.was = entry.evidence = ""
        entry.seen = False
        entry.steps = entry.usage = None
        entry.incarnation = entry.started_ms = entry.ended_ms = entry.forget_ms = 0
        entry.running_sequence = entry.closing_sequence = entry.closing_ms = 0
        return entry

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


def sequences(charges: Charges) -> int:
    """How many sequences of the engine such charges stand for: the requests among them, one where nothing says so."""
    return max((amount for _, unit, amount in charges if unit == "requests"), default=1)


class Boot:
    """One life of one gateway: its lease, what it vouches for, and what it owns."""

    __slots__ = (
        "alive",
        "departed",
        "entries",
        "gone_ms",
        "lease_until_ms",
        "owner",
        "posting",
        "profiles",
        "seen_sequence",
        "unvouched",
    )

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.alive = True
        self.departed = False
        self.posting = False
        """After a change of the store it has not told everything yet."""
        self.lease_until_ms = 0
        self.gone_ms = 0
        self.seen_sequence = 0
        self.unvouched: tuple[str, ...] = ()
        self.profiles: tuple[tuple[str, Profile], ...] = ()
        """By replica, as it was told last: what runs there for it."""
        self.entries: dict[str, Entry] = {}
        """Claimed and charged executions it owns."""
