"""After the store has changed: this gateway tells its whole set again, and admits nothing until everybody has.

A store that comes back empty, that was restored from an old copy, or whose replica was promoted all look the same from here:
another process answers than before (`StoreChanged`, design section 5 "Epoch"). What the old one acknowledged may be gone in it.

    changed      what was asked for and not granted goes back to its place; nothing is admitted
    telling      heartbeats say `posting`, and every execution that runs here or is watched here is told (`Reassert`), above
                 the limits if it must be; a posting boot does not stand among the owners that heartbeat answers list
    waiting      everything has been told; open when all boots that were remembered stand in that list, or a lease after the
                 change: whoever has not come by then is fenced by its own clock and has sent nothing new

Who is remembered is everybody that held anything: a boot is listed from its first heartbeat on, and admits nothing before the
others have had time to be told of it (`NEWCOMER_S`). Whoever had not been told anything for so long when the store was lost may
know too few, and waits for the lease. Nobody adopts meanwhile: those who live come back for what is theirs.

An old copy may hold as running what has ended since; what this gateway ended lately is remembered, and told again where the
ledger still lists it (`Untracked.answered`).

A boot whose lease was over for a while tells its set as well, and need not wait for anybody: the ledger has not forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from headworks.core.book_table import CANCELLING, RESERVED
from headworks.core.book_table import RUNNING as SEEN
from headworks.core.commands import Reassert, Stop
from headworks.core.desk import Desk
from headworks.core.life import LEAVING, RUNNING, SENT, Life
from headworks.core.policy import INFINITE_S
from headworks.core.types import Charge, Owner, Reservation

BEAT_S = 1.0
NEWCOMER_S = 1.5
"""A heartbeat interval and a half: so long a boot stands in the ledger before it admits anything."""
AGAIN_S = 0.1
"""While it is not open, the ledger is asked this often who has come back."""
ENDED_MAX = 16_384
"""Ends remembered: a minute of them at 270 a second."""
STATES = {SENT: RESERVED, RUNNING: SEEN, LEAVING: CANCELLING}
"""What is charged for a life, by its state: as the ledger calls it."""


class Recovery:
    """What has to be told again, and whom it waits for."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._changed_s = -INFINITE_S
        self._first_beat_s = INFINITE_S
        self._knows_all = False
        """Nobody can have held anything whom this boot does not remember."""
        self._missing: set[Owner] = set()
        """Boots that were remembered and have not told everything yet."""
        self._is_first = True
        """No store has told it of anybody yet."""
        self._is_known = False
        """This boot has stood in the ledger for long enough: the others know it."""

    @property
    def is_over(self) -> bool:
        """More may be charged, as far as this is concerned."""
        return not self._desk.recovers

    def begin(self, owners: Iterable[Owner], wards: Iterable[str], unheard_s: float, now_s: float) -> None:
        """Another store answers. `owners`: the boots that lived in the last one; `wards`: orphans watched here.

        `unheard_s`: how long ago that list had been asked for when the last store was lost. Whoever was still missing in that
        one is missing in this one too.
        """
        self._knows_all = (self.is_over or self._knows_all) and unheard_s < NEWCOMER_S
        self._is_first = self._is_first and not set(owners)
        self._missing = (self._missing if self._desk.recovers else set()) | set(owners) - {self._desk.owner}
        self._desk.recovers = True
        self._desk.untold_sessions.update(self._desk.sessions)
        self._changed_s, self._first_beat_s = now_s, INFINITE_S
        if self._desk.ended is None:
            self._desk.ended = deque(maxlen=ENDED_MAX)
        self.tell_all(wards)

    def tell_all(self, wards: Iterable[str]) -> None:
        """The ledger may have forgotten, orphaned or given away whatever is charged for this boot."""
        running = (name for name, life in self._desk.runs.items() if life.state in STATES)
        self._desk.untold = dict.fromkeys((*running, *wards), -INFINITE_S)

    def next_beat_s(self) -> float:
        """How soon the ledger is asked again."""
        return BEAT_S if self.is_over and not self._desk.untold and not self._desk.untold_sessions else AGAIN_S

    def tell(self, wards: dict[str, Reservation], now_s: float) -> Iterator[Reassert]:
        """What is still to be told, as it is now. What has ended meanwhile need not be: its stop says more."""
        desk = self._desk
        for name, told_s in list(desk.untold.items()):
            life = desk.runs.get(name)
            charged = life is not None and life.state in STATES
            if not charged and name not in wards:
                del desk.untold[name]
            elif now_s - told_s >= desk.policy.ask_late_s:
                desk.untold[name] = now_s
                yield Reassert(self._record(life) if life is not None and charged else _as_ward(wards[name], desk.owner))

    def _record(self, life: Life) -> Reservation:
        """It as the ledger would have it."""
        desk, lane, replica = self._desk, life.lane, life.execution.replica
        given = lane.charges(life.work, f"replica:{replica}")
        if life.spare_tokens:
            given = tuple(
                (scope, unit, amount - life.spare_tokens if (scope, unit) == (lane.tenant_scope, "tokens") else amount)
                for scope, unit, amount in given
            )
        quota = life.quota.charges() if life.quota is not None else ()
        return Reservation(
            execution=life.execution.id,
            key=life.request.key if life.claim else None,
            fingerprint=life.request.fingerprint,
            state=STATES[life.state],
            was="",
            seen=life.first_byte_s is not None,
            owner=desk.owner,
            reserved_by=desk.owner,
            replica=replica,
            incarnation=0,
            charges=tuple(Charge(*charge) for charge in (*given, *quota, *life.reads)),
            usage=None,
            evidence="",
            reserved_ms=desk.utc_ms(life.sent_s),
            started_ms=desk.utc_ms(life.first_byte_s),
            ended_ms=0,
        )

    def heard(self, owners: Iterable[Owner], now_s: float) -> None:
        """A heartbeat was answered: who lives and has told everything."""
        if self.is_over or self._desk.untold or self._desk.untold_sessions:
            return
        self._missing -= set(owners)
        self._first_beat_s = min(self._first_beat_s, now_s)
        has_all = (self._knows_all and not self._missing) or now_s >= self._changed_s + self._desk.policy.lease_s
        is_over = (self._is_known or now_s >= self._first_beat_s + NEWCOMER_S) and (self._is_first or has_all)
        self._desk.recovers = not is_over
        self._is_known = self._is_known or is_over

    def ended_here(self) -> dict[str, Stop]:
        """What this gateway ended lately, by execution."""
        return {stop.execution: stop for stop in self._desk.ended or ()}


def _as_ward(record: Reservation, owner: Owner) -> Reservation:
    """An orphan that is watched here: charged as closing, whoever reserved it."""
    return replace(record, state=CANCELLING, was="", owner=owner, incarnation=0)
