"""The ledger as one pure object: commands and the time go in, answers come out (design section 5).

    book = Book(lease_ms=5000, remember_ms=3_600_000)
    answers = book.apply([Heartbeat(owner), Reserve(...)], now_ms)

`apply` runs a mixed list in order and atomically; every command may be asked twice. Each command is answered under a
sequence number of its own. Clocks decide here when to give up waiting for a gateway, and never whether capacity is free:
an owner whose lease lapses leaves orphans, and orphans stay charged until there is evidence.

Files: `book_table.py` (states and moves), `book_records.py` (keys, remembering), `book_lives.py` (charging to ending),
`book_testimony.py` and `book_proof.py` (evidence about engines), `book_leases.py` (owners), `book_counters.py` (what is
held), `fair.py` (turns), `book_audit.py`, `book_snapshot.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headworks.core import book_snapshot
from headworks.core.book_audit import audit
from headworks.core.book_leases import Leases
from headworks.core.book_records import NOBODY
from headworks.core.book_table import CHARGED
from headworks.core.commands import (
    Adopt,
    Answer,
    Cancel,
    Claim,
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
    Unmark,
    Withdraw,
)
from headworks.core.fair import Turns
from headworks.core.types import Owner, RequestKey, Reservation


class Book(Leases):
    """Executions, the gateways that own them, and the evidence that ends them."""

    def __init__(self, lease_ms: int, remember_ms: int, *, records_max: int = 1_000_000) -> None:
        super().__init__(lease_ms, remember_ms, records_max)
        self._behind_ms = 0
        """What a clock that stepped back is behind by: the book's own time goes on from where it was."""
        self._policy: tuple[int, str] = (-1, "")
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
            Unmark: self._unmark,
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
        if self.now_ms >= self._forget_at_ms:
            self._forget_due()

    # limits and marks

    def _set_limits(self, command: SetLimits) -> Answer:
        """The newest policy's limits are everybody's; an older gateway's word changes nothing."""
        if command.policy_number < self._policy[0]:
            return self._answer("set_limits", "", "refused")
        self._policy = (command.policy_number, command.policy_version)
        self.counters.set(command.limits, command.floors, command.committed)
        return self._answer("set_limits", "", "ok")

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

    def take_wakes(self) -> list[tuple[Owner, str]]:
        """(gateway, pool) to be told that capacity came free, since the last time this was asked."""
        wakes = list(self._wakes)
        self._wakes.clear()
        return wakes

    def check(self) -> list[str]:
        """Recompute every counter and list from its parts. Empty when all agree."""
        return audit(self.counters, self._entries, self._boots, self._replicas, self._orphans, self._keys)

    # surviving

    def snapshot(self) -> dict[str, Any]:
        """Everything, as a JSON-able value."""
        return {
            "times": [self.now_ms, self.sequence, self._behind_ms],
            "policy": self._policy,
            "limits": book_snapshot.limits_value(self.counters),
            "entries": [book_snapshot.entry_value(entry) for entry in self._entries.values()],
            "keys": [[*key, execution] for key, execution in self._keys.items()],
            "orphans": list(self._orphans),
            "boots": [book_snapshot.boot_value(boot) for boot in self._boots.values()],
            "replicas": [book_snapshot.replica_value(replica) for replica in self._replicas.values()],
            "pools": {name: turns.snapshot() for name, turns in self._turns.items()},
            "forgetting": [list(line) for line in self._forgetting],
        }

    def restore(self, value: Any, *, replay: bool = False) -> None:
        """Become the book a snapshot was taken of. Everything charged is an orphan then (A9).

        With `replay`, nothing is orphaned yet: apply the commands that were recorded after the snapshot, at their times,
        and then call `orphan_all`.
        """
        self.now_ms, self.sequence, self._behind_ms = value["times"]
        self._policy = (value["policy"][0], value["policy"][1])
        book_snapshot.restore_limits(self.counters, value["limits"])
        self._turns = {name: Turns.restored(turns) for name, turns in value["pools"].items()}
        entries = [book_snapshot.entry_from(one, self.counters) for one in value["entries"]]
        self._entries = {entry.execution: entry for entry in entries}
        self._replicas = {one["name"]: book_snapshot.replica_from(one, self._entries) for one in value["replicas"]}
        boots = [book_snapshot.boot_from(one, self._entries) for one in value["boots"]]
        self._boots = {boot.owner: boot for boot in boots}
        self._asking = NOBODY
        self._orphans = {execution: self._entries[execution] for execution in value["orphans"]}
        self._keys = {RequestKey(tenant, name): execution for tenant, name, execution in value["keys"]}
        for line, dues in zip(self._forgetting, value["forgetting"], strict=True):
            line.extend((due_ms, execution) for due_ms, execution in dues)
        self._sweep_due_ms = self._forget_at_ms = 0
        if not replay:
            self.orphan_all()

    def orphan_all(self) -> None:
        """The process that knew the gateways is gone: every lease is over now."""
        for boot in self._boots.values():
            if boot.alive:
                self.sequence += 1
                self._lapse(boot)
        self._sweep_due_ms = 0
