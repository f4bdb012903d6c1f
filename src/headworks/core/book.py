"""The ledger as one pure object: commands and the time go in, answers come out (design section 5).

    book = Book(lease_ms=5000, remember_ms=3_600_000)
    answers = book.apply([Heartbeat(owner), Reserve(...)], now_ms)

`apply` runs a mixed list in order and atomically; every command may be asked twice. Each command is answered under a
sequence number of its own. Clocks decide here when to give up waiting for a gateway, and never whether capacity is free:
an owner whose lease lapses leaves orphans, and orphans stay charged until there is evidence.

Files: `book_table.py` (states and moves), `book_records.py` (keys, remembering), `book_lives.py` (charging to ending),
`book_sessions.py` (budgets for a series of calls),
`book_testimony.py` and `book_proof.py` (evidence about engines), `book_leases.py` (owners), `book_counters.py` (what is
held), `fair.py` (turns), `book_audit.py`, `book_snapshot.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from headworks.core import book_snapshot
from headworks.core.book_audit import audit, differences
from headworks.core.book_leases import Leases
from headworks.core.book_parts import Entry
from headworks.core.book_records import KEYED, MINTED, NEVER_MS, NOBODY, TOMBSTONES
from headworks.core.book_table import CHARGED
from headworks.core.commands import (
    Adopt,
    Answer,
    Cancel,
    Claim,
    CloseSession,
    Command,
    Depart,
    Grow,
    Heartbeat,
    Held,
    PutIncarnation,
    PutSample,
    Reassert,
    Reserve,
    SetLimits,
    Start,
    Stop,
    TakeReader,
    TellSession,
    Unmark,
    Waits,
    Withdraw,
)
from headworks.core.fair import Turns, Wake
from headworks.core.types import RequestKey, Reservation, SessionRecord

NO_POLICY = (-1, "")


class Book(Leases):
    """Executions, the gateways that own them, and the evidence that ends them."""

    def __init__(self, lease_ms: int, remember_ms: int, *, records_max: int = 1_000_000) -> None:
        super().__init__(lease_ms, remember_ms, records_max)
        self._behind_ms = 0
        """What a clock that stepped back is behind by: the book's own time goes on from where it was."""
        self._policy = NO_POLICY
        self._verbs: dict[type[Command], Callable[[Any], Answer]] = {
            Claim: self._claim,
            Reserve: self._reserve,
            Start: self._start,
            Grow: self._grow_command,
            Cancel: self._cancel,
            Stop: self._stop,
            Adopt: self._adopt,
            Reassert: self._reassert,
            Heartbeat: self._heartbeat,
            Depart: self._depart,
            Held: self._held,
            TakeReader: self._take_reader,
            PutSample: self._put_sample,
            PutIncarnation: self._put_incarnation,
            Withdraw: self._withdraw,
            SetLimits: self._set_limits,
            Waits: self._waits_for_room,
            Unmark: self._unmark,
            CloseSession: self._close_session,
            TellSession: self._tell_session,
        }

    def apply(self, commands: Sequence[Command], now_ms: int) -> list[Answer]:
        """Run the commands in order at this time of the store's clock."""
        if now_ms < self.now_ms or self._behind_ms:
            self._behind_ms = max(self._behind_ms, self.now_ms - now_ms)
            now_ms += self._behind_ms
        self.now_ms = now_ms
        if now_ms >= self._sweep_due_ms or now_ms >= self._forget_at_ms:
            self._advance()
        verbs = self._verbs
        answers = []
        for command in commands:
            self.sequence += 1
            answers.append(verbs[type(command)](command))
        return answers

    def _advance(self) -> None:
        """What follows from the time alone: leases lapse, and what ended long ago is forgotten."""
        if self.now_ms >= self._sweep_due_ms:
            self._sweep_boots()
            self._sweep_sessions()
        if self.now_ms >= self._forget_at_ms:
            self._forget_due()

    # limits and marks

    def _set_limits(self, command: SetLimits) -> Answer:
        """The newest policy's limits are everybody's; an older gateway's word changes nothing."""
        keeps = command.policy_version == self._policy[1]
        if command.policy_number < self._policy[0] and not keeps:
            return self._answer("set_limits", "", "refused")
        self._policy = (max(command.policy_number, self._policy[0]), command.policy_version)
        self.counters.set(command.limits, command.floors, command.committed, keeps)
        return self._answer("set_limits", "", "ok")

    def _waits_for_room(self, command: Waits) -> Answer:
        boot = self._boots.get(command.owner)
        if boot is None or not boot.alive:
            return self._answer("waits", "", "refused")
        turns = self._turns.get(command.pool) or self._open_pool(command.pool)
        charges, waiting_tokens = command.charges, command.waiting_tokens
        turns.leave_mark(command.flow, command.owner, charges, waiting_tokens, self.now_ms, granted=False)
        return self._answer("waits", "", "ok")

    def _unmark(self, command: Unmark) -> Answer:
        turns = self._turns.get(command.pool)
        if turns is not None:
            turns.unmark(command.flow, command.owner)
        return self._answer("unmark", "", "ok")

    # looking at it

    def held(self, scope: str, unit: str) -> int:
        """What is charged there now."""
        return self.counters.held(scope, unit)

    def limit(self, scope: str, unit: str) -> int | None:
        """The limit in force there, or None."""
        return self.counters.limit(scope, unit)

    def open_sessions(self) -> tuple[SessionRecord, ...]:
        """Every session that is open, the oldest first."""
        return self._open_sessions()

    def records(self) -> list[Reservation]:
        """Every execution that is remembered, oldest first."""
        return [entry.reservation() for entry in self._entries.values()]

    def charged(self) -> list[Reservation]:
        """Every execution that holds capacity now: the work of the boots, and orphans that nobody has adopted."""
        found = [entry for boot in self._boots.values() for entry in boot.entries.values() if entry.state in CHARGED]
        return [entry.reservation() for entry in found]

    def find(self, execution: str) -> Reservation | None:
        """One of them."""
        entry = self._entries.get(execution)
        return entry.reservation() if entry else None

    def sessions(self) -> list[SessionRecord]:
        """Every session that is open, and those whose end is still remembered."""
        return [self._told_session(session) for session in self._sessions.values()]

    def take_wakes(self) -> list[Wake]:
        """Who is to be told that it is whose turn, since the last time this was asked."""
        wakes = list(self._wakes)
        self._wakes.clear()
        return wakes

    def check(self) -> list[str]:
        """Recompute every counter and list from its parts. Empty when all agree."""
        return audit(self.counters, self._entries, self._boots, self._replicas, self._orphans, self._keys, self._sessions)

    def differences(self) -> dict[str, int]:
        """By kind of scope (`tenant`, `pool`, …): counters less the sum of their parts, as amounts (K15)."""
        return differences(self.counters, self._entries, self._sessions)

    def foreign_loads(self) -> dict[str, int]:
        """By replica that is sampled: load above all that was charged (F10). At least 1 while the proof is off for it."""
        return {
            name: max(replica.foreign_load, int(replica.foreign))
            for name, replica in self._replicas.items()
            if replica.reader is not None
        }

    # surviving

    def snapshot(self, *, with_ended: bool = True) -> dict[str, Any]:
        """Everything, as a JSON-able value.

        Without `with_ended`: what is charged, claimed or buried, found without passing over what has ended, which is most of
        it. Of that `ended` has what a client may repeat; of the rest only the names are kept, since they may not run again.
        """
        entries = list(self._entries.values() if with_ended else self._unended())
        keys = self._keys.items() if with_ended else self._keys_of(entries)
        return {
            "times": [self.now_ms, self.sequence, self._behind_ms],
            "policy": self._policy,
            "limits": book_snapshot.limits_value(self.counters),
            "entries": [book_snapshot.entry_value(entry) for entry in entries],
            "keys": [[*key, execution] for key, execution in keys],
            "orphans": list(self._orphans),
            "boots": [book_snapshot.boot_value(boot) for boot in self._boots.values()],
            "replicas": [book_snapshot.replica_value(replica) for replica in self._replicas.values()],
            "sessions": [book_snapshot.session_value(session) for session in self._sessions.values()],
            "pools": {name: turns.snapshot() for name, turns in self._turns.items()},
            "ended_from_ms": self._forgetting[KEYED][0][0] if self._forgetting[KEYED] else NEVER_MS,
            "forgetting": [list(line) if with_ended or number != KEYED else [] for number, line in enumerate(self._forgetting)],
        }

    def _unended(self) -> Iterator[Entry]:
        for boot in self._boots.values():
            yield from boot.entries.values()
        for due_ms, execution in self._forgetting[TOMBSTONES]:
            entry = self._entries.get(execution)
            if entry is not None and entry.forget_ms == due_ms:
                yield entry

    def _keys_of(self, entries: Iterable[Entry]) -> Iterator[tuple[RequestKey, str]]:
        for entry in entries:
            if entry.key is not None and self._keys.get(entry.key) == entry.execution:
                yield entry.key, entry.execution

    def ended(self, after_count: int) -> list[dict[str, Any]]:
        """What has ended under a client's key since `ended_count` was that, oldest first; not what is forgotten again."""
        line = self._forgetting[KEYED]
        latest = reversed(list(islice(reversed(line), self.ended_count - after_count)))
        found = [(due_ms, self._entries.get(execution)) for due_ms, execution in latest]
        return [self._ended_value(one) for due_ms, one in found if one is not None and one.forget_ms == due_ms]

    def _ended_value(self, entry: Entry) -> dict[str, Any]:
        is_newest = entry.key is not None and self._keys.get(entry.key) == entry.execution
        return {**book_snapshot.entry_value(entry), "newest": is_newest}

    def restore(self, value: Any, *, ended: Iterable[Any] = (), replay: bool = False) -> None:
        """Become the book a snapshot was taken of, with what had `ended` beside it. Everything charged is an orphan then (A9).

        With `replay`, nothing is orphaned yet: apply the commands that were recorded after the snapshot, at their times,
        and then call `orphan_all`.
        """
        self.now_ms, self.sequence, self._behind_ms = value["times"]
        self._policy = (value["policy"][0], value["policy"][1])
        book_snapshot.restore_limits(self.counters, value["limits"])
        self._turns = {name: Turns.restored(turns) for name, turns in value["pools"].items()}
        told = {one["execution"]: one for one in ended if one["forget_ms"] >= value["ended_from_ms"]}
        entries = [book_snapshot.entry_from(one, self.counters) for one in (*told.values(), *value["entries"])]
        self._entries = {entry.execution: entry for entry in entries}
        for due_ms, execution in value["forgetting"][MINTED]:
            if execution not in self._entries:
                self._entries[execution] = book_snapshot.only_name(execution, due_ms)
        sessions = [book_snapshot.session_from(one, self.counters) for one in value.get("sessions", ())]
        self._sessions = {session.scope: session for session in sessions}
        self._replicas = {one["name"]: book_snapshot.replica_from(one, self._entries) for one in value["replicas"]}
        boots = [book_snapshot.boot_from(one, self._entries) for one in value["boots"]]
        self._boots = {boot.owner: boot for boot in boots}
        self._asking = NOBODY
        self._orphans = {execution: self._entries[execution] for execution in value["orphans"]}
        self._keys = {RequestKey(*one["key"]): one["execution"] for one in told.values() if one["newest"]}
        self._keys |= {RequestKey(tenant, name): execution for tenant, name, execution in value["keys"]}
        for line, dues in zip(self._forgetting, value["forgetting"], strict=True):
            line.extend((due_ms, execution) for due_ms, execution in dues)
        self._forgetting[KEYED].extend(sorted((one["forget_ms"], one["execution"]) for one in told.values()))
        self._keyed_until_ms = max((due_ms for due_ms, _ in self._forgetting[KEYED]), default=0)
        self.ended_count = 0
        self._sweep_due_ms = self._forget_at_ms = 0
        if not replay:
            self.orphan_all()

    def orphan_all(self) -> None:
        """The process that knew the gateways is gone: every lease, every seat and every policy's claim is over now."""
        for boot in self._boots.values():
            if boot.alive:
                self.sequence += 1
                self._lapse(boot)
        for replica in self._replicas.values():
            replica.reader = None
            replica.samples.clear()
        self._policy = NO_POLICY
        self._sweep_due_ms = 0
