"""What can be asked of a ledger, and what it answers.

The commands are values that any store can carry. `core/book.py` says what each one means; a store runs a mixed list of
them in order, atomically. Every command is idempotent by (execution, verb, step), so whatever may have been lost is
simply asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headworks.core.types import Charge, Owner, RequestKey, Reservation, SessionRecord, Usage


@dataclass(slots=True)
class Claim:
    """Tie a client-given key to an execution before anything is charged (A6)."""

    execution: str
    key: RequestKey
    fingerprint: str
    owner: Owner


class Opening(NamedTuple):
    """A session is to be opened, for so long at most, and without a call in it for so long."""

    lasts_ms: int
    idle_ms: int


@dataclass(slots=True)
class Reserve:
    """Charge every scope for an execution, or none, and take the flow's turn (A3, D1).

    For a call of a session the first charge is the session's: so much of what the session holds becomes the call's, and no
    turn is taken. One that `opens` a session charges its budget and leaves no execution.
    """

    execution: str
    key: RequestKey | None
    """Only client-given keys; a minted key needs no entry."""
    fingerprint: str
    owner: Owner
    pool: str
    replica: str
    flow: tuple[str, str]
    """(class, tenant)."""
    weights: tuple[float, float]
    """Weight of the class among classes, and of the tenant inside its class."""
    cost_tokens: int
    """What fairness charges for it."""
    charges: Sequence[tuple[str, str, int]]
    """Each in the shape of `Charge`: (scope, unit, amount)."""
    waiting_tokens: int
    """Work that waits behind this one in the same flow at this gateway: left as the mark's size."""
    more: bool
    """Something waits behind it: keep the flow's mark after a grant."""
    policy_version: str
    slots_tokens: int = 0
    """Work of return slots this gateway has handed out and not seen back."""
    session: str = ""
    """The scope of the session that it is a call of, or that it opens."""
    opens: Opening | None = None


@dataclass(slots=True)
class Start:
    """The engine has shown a first byte of this execution."""

    execution: str
    owner: Owner


@dataclass(slots=True)
class Grow:
    """Charge more for a running execution, all scopes or none. Counts once per (execution, step)."""

    execution: str
    owner: Owner
    step: int
    charges: tuple[Charge, ...]


@dataclass(slots=True)
class Cancel:
    """The execution is unwanted. Frees nothing. Of an unknown execution: remembered as a tombstone."""

    execution: str
    owner: Owner


@dataclass(slots=True)
class Stop:
    """Testimony that the execution can no longer use capacity, at a stated level. The one edge that frees."""

    execution: str
    owner: Owner
    evidence: str
    end: str
    """`completed`, `failed` or `cancelled`."""
    usage: Usage | None
    commits: Sequence[tuple[str, str, int]] = ()
    """What stays charged after it has ended, each in the shape of `Charge`: its part of a period's quota."""


@dataclass(slots=True)
class Adopt:
    """Take over up to `most` orphans: their watching and their record, not their connection."""

    owner: Owner
    most: int = 64


@dataclass(slots=True)
class Reassert:
    """Tell the ledger a live execution again, after it forgot or orphaned it. Always accepted from its living owner."""

    record: Reservation


@dataclass(slots=True)
class Heartbeat:
    """Renew the boot's lease. The answer lists the boots that live, and repeats `beat` as its `step`.

    The lease runs from the moment the last *answered* beat was asked, so an answer must say which beat it answers.
    """

    owner: Owner
    beat: int = 0
    seen_sequence: int = 0
    """The largest ledger sequence this boot had seen at least 100 ms before it sent this. With it the boot vouches that
    its executions that are RUNNING in the ledger were inside the engine at that sequence, save the unvouched (E3b)."""
    unvouched: tuple[str, ...] = ()
    """Executions it cannot vouch for: their answer was not read at some moment of the last 100 ms (slow client), or their
    cancel or stop has been asked and not been answered yet."""
    profiles: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """By replica: what runs there for this gateway and how much of it is still to come (`core/peak.py`)."""
    posting: bool = False
    """The store has changed, and not all that this boot has stands in it yet. It is not listed among the owners till then."""


@dataclass(slots=True)
class Depart:
    """The boot leaves for good: its lease ends now and what it holds is orphaned, so that others may adopt at once."""

    owner: Owner


@dataclass(slots=True)
class Held:
    """List what the ledger holds under this boot (anti-entropy), or a part of it."""

    owner: Owner
    part: str = ""
    """Those whose names begin so."""


@dataclass(slots=True)
class TakeReader:
    """Ask to be the one boot that measures a replica for E3b. The answer's `sequence` is the Q of design section 6."""

    replica: str
    owner: Owner


@dataclass(slots=True)
class PutSample:
    """The measured load N of a replica, from a scrape begun after an answer with sequence `after_sequence` arrived."""

    replica: str
    owner: Owner
    incarnation: str
    load: int
    after_sequence: int


@dataclass(slots=True)
class PutIncarnation:
    """A sample shows this incarnation. A new one is numbered by compare-and-set; E4 is then decided by the ledger.

    `inside` names executions whose first byte was seen before the sample began: they are stamped with its number.
    """

    replica: str
    owner: Owner
    incarnation: str
    inside: tuple[str, ...]
    known: int = 0
    """The replica's incarnation number this boot knew when the sample began (`Answer.incarnation`; 0 before any). A value
    other than the current one counts only if this is the current number, else the sample may be the older one: refused."""


@dataclass(slots=True)
class Withdraw:
    """An operator declares that a replica is gone: everything on it ends with E4."""

    replica: str


class Floor(NamedTuple):
    """`amount` of the limit of `within` is kept for charges that name `scope` as well; others get what is left.

    What is charged to `scope` must always be charged to `within` too, and a scope has one floor of a unit.
    """

    scope: str
    unit: str
    amount: int
    within: str
    lent: str = ""
    """Charges that name this scope too may take what is not in use, and are not counted beside others. One for a `within`."""


@dataclass(slots=True)
class SetLimits:
    """The limits every check compares with, and their version. An older version than the stored one changes nothing."""

    policy_version: str
    policy_number: int
    """Orders the versions: the larger wins."""
    limits: tuple[Charge, ...]
    """A limit as (scope, unit, amount). A scope and unit without a limit is unlimited."""
    floors: tuple[Floor, ...] = ()
    """Parts of a limit that are guaranteed to one scope (B10, B11)."""
    committed: tuple[Charge, ...] = ()
    """What is known to be used up in scopes with a limit, as told by stops: raises what is stored, never lowers it."""


@dataclass(slots=True)
class Waits:
    """Something waits in that flow that is not asked for now, because its head finds no room: others may pass it so often."""

    flow: tuple[str, str]
    pool: str
    owner: Owner
    charges: Sequence[tuple[str, str, int]]
    """What its head would be charged."""
    waiting_tokens: int
    """Work of the flow at this gateway, the head included."""


@dataclass(slots=True)
class Unmark:
    """This gateway has nothing more waiting in that flow."""

    flow: tuple[str, str]
    pool: str
    owner: Owner


@dataclass(slots=True)
class CloseSession:
    """Return what a session has not spent. Its calls that run go on; none begins."""

    session: str


@dataclass(slots=True)
class TellSession:
    """Tell the ledger an open session again, after it forgot. Always accepted, also above the limits."""

    told: SessionRecord


Command = (
    Claim
    | Reserve
    | Start
    | Grow
    | Cancel
    | Stop
    | Adopt
    | Reassert
    | Heartbeat
    | Depart
    | Held
    | TakeReader
    | PutSample
    | PutIncarnation
    | Withdraw
    | SetLimits
    | Waits
    | Unmark
    | CloseSession
    | TellSession
)


@dataclass(slots=True)
class Shortfall:
    """A limit that a reserve or grow would pass: `value` is what would be held, `limit` what may be."""

    scope: str
    unit: str
    value: int
    limit: int


@dataclass(slots=True)
class Answer:
    """What one command came to.

    `outcome`:
    - Claim: `claimed`; `attach` (a charged or claimed execution of this key lives, see `execution` and `owner`);
      `replay` (it completed, see `usage`); `conflict` (other fingerprint); `dead` (this execution was cancelled or ended
      before the claim came); `fenced`.
    - Reserve: `granted`; `refused` (for now, see `shortfalls`); `never` (asks more than a whole limit); `yield` (another
      flow's turn); `dead` (tombstone or ended: this execution may not run any more); `fenced` (the boot's lease lapsed,
      or an unknown boot); `recorded` (already charged: the first grant's answer was lost; treat as granted).
      Of one that opens a session: `opened` (see `sessions`; also when asked again), `dead` (that session has ended).
    - CloseSession: `ok`, `recorded` (it had ended, see `sessions`), `refused` (no such session). TellSession: `ok`, `recorded`.
    - Grow: `granted`, `recorded`, `refused`, `dead`, `fenced`.
    - Start, Cancel, Stop: `ok` when it moved the record, `recorded` when it was so already, `refused` when the table has
      no such move (E0 after a byte was seen, E0 by a boot that did not reserve it).
    - Reassert: `ok`, `recorded`, `refused` (another owns it, or it has ended), `fenced` (heartbeat first).
    - others: `ok`, or `refused` with nothing changed.
    """

    verb: str
    """The command's class name in lower case: `reserve`, `stop`, `put_sample`, …"""
    execution: str
    outcome: str
    step: int = 0
    state: str = ""
    """The record's state after the command, or empty."""
    shortfalls: tuple[Shortfall, ...] = ()
    usage: Usage | None = None
    evidence: str = ""
    owner: Owner | None = None
    sequence: int = 0
    """Grows with every command applied: "at ≤ Q" in design section 6 compares these."""
    waiting_tokens: int = 0
    """Reserve: work the whole fleet has waiting in this pool, from fresh marks."""
    slots_tokens: int = 0
    records: tuple[Reservation, ...] = ()
    """Adopt, Held: the records; PutSample, Heartbeat, PutIncarnation, Withdraw: the ones that ended by it."""
    owners: tuple[Owner, ...] = ()
    """Heartbeat: the boots whose lease runs and who are not posting."""
    profiles: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Heartbeat: what the others have on each replica, added up."""
    incarnation: int = 0
    """PutIncarnation, PutSample: the replica's current number."""
    replica: str = ""
    """TakeReader, PutSample, PutIncarnation, Withdraw: which one."""
    alarms: tuple[tuple[str, str], ...] = ()
    """(name, replica) of what should not be: `evidence_impossible`, `foreign_load`, `several_engines`."""
    goes_first: tuple[str, str] | None = None
    """Reserve that has to `yield` to another flow of this gateway: which one. A gateway of another's is woken."""
    asked: str = ""
    """Claim: the execution that asked, whoever's execution the answer is about. CloseSession: which one."""
    sessions: tuple[SessionRecord, ...] = ()
    """Heartbeat: all that are open; opening or closing one: that one."""


ENDS_OTHERS = frozenset({"heartbeat", "put_sample", "put_incarnation", "withdraw"})
"""Verbs whose answers tell of executions that the ledger has ended by them (`Answer.records`)."""
