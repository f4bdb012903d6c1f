"""Leases: who watches over what, and what becomes of it when nobody does (A7).

A lease belongs to a boot, one life of one gateway. When it lapses, what the boot owned is orphaned and stays charged:
another boot may adopt it, its own may take it back, evidence may end it. Authority is fenced by the lease, testimony never.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headworks.core.book_counters import Charges
from headworks.core.book_lives import merged
from headworks.core.book_parts import Boot, Entry
from headworks.core.book_records import NEVER_MS, TOMBSTONE_LEASES
from headworks.core.book_table import CANCELLING, CHARGED, MOVES, ORPHANED, RUNNING, TERMINAL, Move
from headworks.core.book_testimony import Testimony
from headworks.core.commands import Adopt, Answer, Depart, Heartbeat, Held, Reassert
from headworks.core.peak import Profile, added
from headworks.core.types import READ_UNITS, Owner

ADOPT_MAX = 64
BOOTS_MAX = 4096


class Leases(Testimony):
    """Boots and what they own."""

    def __init__(self, lease_ms: int, remember_ms: int, records_max: int) -> None:
        super().__init__(lease_ms, remember_ms, records_max)
        self._lapses: dict[str, Callable[[Entry], None]] = {"orphan": self._orphan, "forget": self._forget}

    def _heartbeat(self, command: Heartbeat) -> Answer:
        """The boot lives; what it vouches for may decide a waiting sample."""
        boot = self._boots.get(command.owner)
        if boot is None:
            if len(self._boots) >= BOOTS_MAX:
                return self._answer("heartbeat", "", "refused", command.beat)
            boot = self._boots[command.owner] = self._asking = Boot(command.owner)
        if boot.departed:
            return self._answer("heartbeat", "", "refused", command.beat)
        boot.alive = True
        boot.lease_until_ms = self.now_ms + self.lease_ms
        self._sweep_due_ms = min(self._sweep_due_ms, boot.lease_until_ms)
        if command.seen_sequence >= boot.seen_sequence:
            boot.seen_sequence = command.seen_sequence
            boot.unvouched = command.unvouched
        boot.profiles = command.profiles
        boot.posting = command.posting
        ended, alarms = self._judge_all()
        owners = tuple(owner for owner, one in self._boots.items() if one.alive and not one.posting)
        profiles = self._profiles_beside(boot)
        more: dict[str, Any] = {
            "owners": owners,
            "records": ended,
            "alarms": alarms,
            "profiles": profiles,
            "sessions": self._open_sessions(),
        }
        return self._answer("heartbeat", "", "ok", command.beat, **more)

    def _profiles_beside(self, asking: Boot) -> tuple[tuple[str, Profile], ...]:
        """What the others have on each replica. Of one that is gone its last word counts as long as anything of it is held."""
        sums: dict[str, Profile] = {}
        for boot in self._boots.values():
            if boot is asking or not (boot.alive or boot.entries):
                continue
            for replica, profile in boot.profiles:
                before = sums.get(replica)
                sums[replica] = profile if before is None else added(before, profile)
        return tuple(sums.items())

    def _sweep_boots(self) -> None:
        """Lapse whoever has not renewed, forget whoever is long gone and owns nothing."""
        self._sweep_due_ms = NEVER_MS
        for boot in list(self._boots.values()):
            if boot.alive and self.now_ms >= boot.lease_until_ms:
                self.sequence += 1
                self._lapse(boot)
            if boot.alive:
                due_ms = boot.lease_until_ms
            elif boot.entries:
                continue
            else:
                due_ms = boot.gone_ms + TOMBSTONE_LEASES * self.lease_ms
                if self.now_ms >= due_ms:
                    del self._boots[boot.owner]
                    continue
            self._sweep_due_ms = min(self._sweep_due_ms, due_ms)

    def _lapse(self, boot: Boot) -> None:
        """Nobody is known to watch over its executions any more. They stay charged (A7)."""
        boot.alive = False
        boot.gone_ms = self.now_ms
        for entry in list(boot.entries.values()):
            move = MOVES[entry.state].get("lapse")
            if move is not None:
                self._lapses[move.act](entry)
        for turns in self._turns.values():
            turns.forget(boot.owner)

    def _orphan(self, entry: Entry) -> None:
        entry.was = entry.state
        entry.state = ORPHANED
        entry.closing_sequence = entry.closing_sequence or self.sequence
        entry.closing_ms = self.now_ms
        self._orphans[entry.execution] = entry

    def _forget(self, entry: Entry) -> None:
        """A claim whose owner is gone was never charged."""
        self._unclaim(entry)
        del self._entries[entry.execution]

    def _depart(self, command: Depart) -> Answer:
        boot = self._boots.get(command.owner)
        if boot is not None and not boot.departed:
            boot.departed = True
            self._lapse(boot)
            self._sweep_due_ms = min(self._sweep_due_ms, self.now_ms + TOMBSTONE_LEASES * self.lease_ms)
        return self._answer("depart", "", "ok")

    def _adopt(self, command: Adopt) -> Answer:
        """Oldest orphans first; not those whose owner is back and may yet take them back itself."""
        if not self._lives(command.owner):
            return self._answer("adopt", "", "refused")
        most = min(command.most, ADOPT_MAX)
        adopted = [entry for entry in self._orphans.values() if not self._lives(entry.owner)][:most]
        for entry in adopted:
            self._take_over(entry, command.owner)
        return self._answer("adopt", "", "ok", records=tuple(entry.reservation() for entry in adopted))

    def _take_over(self, entry: Entry, owner: Owner) -> None:
        del self._orphans[entry.execution]
        del self._boots[entry.owner].entries[entry.execution]
        entry.state = MOVES[ORPHANED]["adopt"].state
        entry.was = ""
        entry.owner = owner
        self._boots[owner].entries[entry.execution] = entry

    def _reassert(self, command: Reassert) -> Answer:
        """A living owner tells its execution again."""
        if not self._lives(command.record.owner):
            return self._answer("reassert", command.record.execution, "fenced")
        return self._go("reassert", "reassert", self._entries.get(command.record.execution), command)

    def _confirm(self, verb: str, entry: Entry, command: Reassert, move: Move) -> Answer:
        if entry.owner != command.record.owner:
            return self._answer_of(verb, entry, "refused")
        if entry.state in CHARGED:
            self._charge_told(entry, command.record.charges)
        return self._answer_of(verb, entry, move.outcome)

    def _confirm_end(self, verb: str, entry: Entry, command: Reassert, move: Move) -> Answer:
        """What the ledger knows to have ended cannot be live again."""
        return self._answer_of(verb, entry, move.outcome if command.record.state in TERMINAL else "refused")

    def _take_back(self, verb: str, entry: Entry, command: Reassert, move: Move) -> Answer:
        if entry.owner != command.record.owner:
            return self._answer_of(verb, entry, "refused")
        del self._orphans[entry.execution]
        entry.state = CANCELLING if command.record.state == CANCELLING else entry.was
        entry.was = ""
        if entry.state != CANCELLING:
            entry.closing_sequence = entry.closing_ms = 0
        if entry.state == RUNNING:
            entry.running_sequence = self.sequence
        self._charge_told(entry, command.record.charges)
        return self._answer_of(verb, entry, move.outcome)

    def _charge_told(self, entry: Entry, told: Charges) -> None:
        """What its owner knows to hold for it and an older copy of the ledger does not: charged as told, whatever the limits.

        What was held for the reading of its prompt is not: it may have come back.
        """
        left: dict[tuple[str, str], int] = {}
        for scope, unit, amount in told:
            if unit not in READ_UNITS:
                left[scope, unit] = left.get((scope, unit), 0) + amount
        for scope, unit, amount in entry.charges:
            if (scope, unit) in left:
                left[scope, unit] -= amount
        more = [(scope, unit, amount) for (scope, unit), amount in left.items() if amount > 0]
        if more:
            entry.charges, entry.counters = merged(entry, more, self.counters.force(more))
            session = self._session_of(entry.charges)
            if session is not None:
                self._hold_unspent(session)

    def _believe(self, verb: str, entry: Entry | None, command: Reassert, move: Move) -> Answer:
        """The ledger forgot, or never heard: what runs is charged as told, above the limits if it must be."""
        told = command.record
        state = (told.was or RUNNING) if told.state == ORPHANED else told.state
        if entry is not None:  # its cancel came first
            if state not in CHARGED:
                return self._answer_of(verb, entry, "recorded")
            state = CANCELLING
        entry = Entry.of(told.execution, state, told.key, told.fingerprint, told.owner)
        self._entries[told.execution] = entry
        entry.reserved_by = told.reserved_by
        entry.seen = told.seen
        entry.replica = told.replica
        entry.pool = told.replica.rsplit("/", 1)[0]
        entry.charges = told.charges
        entry.reserved_ms, entry.started_ms, entry.ended_ms = told.reserved_ms, told.started_ms, told.ended_ms
        newest = self._newest(told.key)
        if told.key is not None and (newest is None or newest.state in TERMINAL):
            self._name(told.key, told.execution)
        if state in TERMINAL:
            entry.usage, entry.evidence = told.usage, told.evidence
            self._remember(entry)
            return self._answer_of(verb, entry, move.outcome)
        self._boots[told.owner].entries[told.execution] = entry
        if state in CHARGED:
            entry.counters = self.counters.force(told.charges)
            session = self._session_of(told.charges)
            if session is not None:
                self._hold_unspent(session)
            (self._replicas.get(told.replica) or self._open_replica(told.replica)).entries[told.execution] = entry
        if state == RUNNING:
            entry.running_sequence = self.sequence
        elif state == CANCELLING:
            entry.closing_sequence, entry.closing_ms = self.sequence, self.now_ms
        return self._answer_of(verb, entry, move.outcome)

    def _held(self, command: Held) -> Answer:
        boot = self._boots.get(command.owner)
        entries = boot.entries if boot else {}
        records = tuple(entry.reservation() for name, entry in entries.items() if name.startswith(command.part))
        return self._answer("held", "", "ok", records=records)
