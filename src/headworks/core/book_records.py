"""Who is who in the ledger: executions, the keys that point at them, and how long they are remembered.

A client-given key is claimed when its request arrives and points at its newest execution; a minted key needs no entry.
Refusals leave nothing behind. What has ended is remembered for a while, so that whatever arrives twice is answered the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from headworks.core.book_counters import Counters
from headworks.core.book_parts import Boot, Entry
from headworks.core.book_proof import Replica
from headworks.core.book_table import CANCELLED, CLAIMED, COMPLETED, FAILED, MOVES, REFUSE, TERMINAL, UNKNOWN, VERBS, Move
from headworks.core.commands import Answer, Claim, Command, Reassert
from headworks.core.fair import Turns, Wake
from headworks.core.types import Owner, RequestKey

MINTED_MS = 60_000
MINTED_STEP_MS = 100
"""Minted ones are due in steps, so that many are forgotten at once."""
TOMBSTONE_LEASES = 4
"""A tombstone is remembered for so many leases."""
WAKES_MAX = 1024
NEVER_MS = 1 << 62
MINTED = 0
KEYED = 1
TOMBSTONES = 2

NOBODY = Boot(Owner("", ""))
NOBODY.alive = False

NOT_ASKED = ("lapse", "adopt")
"""Columns of the table that come of time or of another's offer, not of a command about the execution."""

Act = Callable[[str, Entry | None, Any, Move], Answer]
Column = dict[str, tuple[Act, Move]]
"""State → what a command does in it."""


class Records:
    """Executions and their keys."""

    def __init__(self, lease_ms: int, remember_ms: int, records_max: int) -> None:
        self.lease_ms = lease_ms
        self.now_ms = 0
        self.sequence = 0
        self.counters = Counters()
        self.remember_ms = remember_ms
        self._records_max = records_max
        self._entries: dict[str, Entry] = {}
        self._keys: dict[RequestKey, str] = {}
        """Key → its newest execution."""
        self._orphans: dict[str, Entry] = {}
        self._boots: dict[Owner, Boot] = {}
        self._asking = NOBODY
        """The boot that reserved last: most often it is the next one too, and need not be looked up."""
        self._replicas: dict[str, Replica] = {}
        self._turns: dict[str, Turns] = {}
        self._forgetting: tuple[deque[tuple[int, str]], ...] = (deque(), deque(), deque())
        """(due, execution) of ended executions without a key, with one, and of tombstones."""
        self._forget_at_ms = 0
        self._keyed_until_ms = 0
        """Nothing that ends under a key is forgotten before what ended before it, though `remember_ms` may have been lowered:
        what a restart takes back begins with the first of the line, and must not leave out one behind it."""
        self.ended_count = 0
        """News of what has ended under a client's key, since this book was made or restored."""
        self._wakes: deque[Wake] = deque(maxlen=WAKES_MAX)
        self.irregular: dict[tuple[str, str], int] = {}
        """(state, verb) → how often a move was asked for that the table does not have."""
        self._columns: dict[str, Column] = {verb: self._column(verb) for verb in VERBS if verb not in NOT_ASKED}

    def _column(self, verb: str) -> Column:
        """The table's column with the method of each act: one look-up says what is to be done in a state."""
        moves = {state: row.get(verb, REFUSE) for state, row in MOVES.items()}
        return {state: (getattr(self, f"_{move.act}"), move) for state, move in moves.items()}

    def _go(self, column: str, verb: str, entry: Entry | None, command: Command) -> Answer:
        """Do what the table says."""
        act, move = self._columns[column][entry.state if entry is not None else UNKNOWN]
        return act(verb, entry, command, move)

    def _refuse(self, verb: str, entry: Entry | None, command: Command, move: Move) -> Answer:
        state = entry.state if entry is not None else UNKNOWN
        self.irregular[state, verb] = self.irregular.get((state, verb), 0) + 1
        named = command.record.execution if isinstance(command, Reassert) else getattr(command, "execution", "")
        return self._answer(verb, named, "refused", getattr(command, "step", 0), state)

    def _record(self, verb: str, entry: Entry | None, command: Command, move: Move) -> Answer:
        """Say what is so already."""
        assert entry is not None
        return self._answer_of(verb, entry, move.outcome, getattr(command, "step", 0))

    def _answer(self, verb: str, execution: str, outcome: str, step: int = 0, state: str = "", **more: Any) -> Answer:
        return Answer(verb, execution, outcome, step, state, sequence=self.sequence, **more)

    def _answer_of(self, verb: str, entry: Entry, outcome: str, step: int = 0) -> Answer:
        """With what the record says."""
        execution, state, owner, usage, evidence = entry.execution, entry.state, entry.owner, entry.usage, entry.evidence
        return Answer(verb, execution, outcome, step, state, (), usage, evidence, owner, self.sequence)

    # identity

    def _claim(self, command: Claim) -> Answer:
        """A client-given key belongs to one execution at a time (A6)."""
        if not self._lives(command.owner):
            return self._claim_answer(command, None, "fenced")
        entry = self._entries.get(command.execution)
        if entry is not None and entry.key != command.key:
            return self._claim_answer(command, entry, "dead")
        newest = self._newest(command.key)
        if newest is not None and (newest is entry or not self._may_follow(newest, command.fingerprint)):
            return self._taken(command, newest)
        if entry is not None or not self._room():
            return self._claim_answer(command, entry, "dead")
        entry = Entry.of(command.execution, CLAIMED, command.key, command.fingerprint, command.owner)
        self._entries[command.execution] = self._boots[command.owner].entries[command.execution] = entry
        self._name(command.key, command.execution)
        return self._claim_answer(command, entry, "claimed")

    def _taken(self, command: Claim, newest: Entry) -> Answer:
        """The key has an execution: whose answer is this claim's answer?"""
        if newest.fingerprint != command.fingerprint:
            return self._claim_answer(command, newest, "conflict")
        if newest.execution == command.execution:
            return self._claim_answer(command, newest, "dead" if newest.state in TERMINAL else "claimed")
        return self._claim_answer(command, newest, "replay" if newest.state == COMPLETED else "attach")

    def _claim_answer(self, command: Claim, entry: Entry | None, outcome: str) -> Answer:
        """About the execution that has the key, and to the one that asked for it."""
        asked = command.execution
        if entry is None:
            return self._answer("claim", asked, outcome, asked=asked)
        usage, evidence, owner = entry.usage, entry.evidence, entry.owner
        more = {"usage": usage, "evidence": evidence, "owner": owner, "asked": asked}
        return self._answer("claim", entry.execution, outcome, 0, entry.state, **more)

    def _may_follow(self, newest: Entry, fingerprint: str) -> bool:
        """A new attempt of a key may run once the last one has ended without an answer worth repeating."""
        return newest.state in (FAILED, CANCELLED) and newest.fingerprint == fingerprint

    def _newest(self, key: RequestKey | None) -> Entry | None:
        """The newest execution of a key, if it is remembered."""
        execution = self._keys.get(key) if key is not None else None
        return self._entries[execution] if execution is not None else None

    def _name(self, key: RequestKey, execution: str) -> None:
        """This is the key's newest execution from now on. The one before has to be told again, as that no longer."""
        former = self._keys.get(key)
        if former is not None and former != execution and self._entries[former].forget_ms:
            self.ended_count += 1
            self._forgetting[KEYED].append((self._entries[former].forget_ms, former))
        self._keys[key] = execution

    def _unclaim(self, entry: Entry) -> None:
        """The key is free again: refusals are not kept."""
        del self._boots[entry.owner].entries[entry.execution]
        self._free_key(entry)
        entry.key = None

    # remembering and forgetting

    def _remember(self, entry: Entry) -> None:
        """A given key is answered from memory for long, a minted one for a minute."""
        if entry.key is not None:
            self.ended_count += 1
            self._keyed_until_ms = max(self._keyed_until_ms, self.now_ms + self.remember_ms)
            self._forget_in(KEYED, entry, self._keyed_until_ms - self.now_ms)
            return
        due_ms = self.now_ms + MINTED_MS
        due_ms -= due_ms % -MINTED_STEP_MS  # up to the next step
        entry.forget_ms = due_ms
        self._forgetting[MINTED].append((due_ms, entry.execution))
        if due_ms < self._forget_at_ms:
            self._forget_at_ms = due_ms

    def _forget_in(self, line: int, entry: Entry, kept_ms: int) -> None:
        due_ms = entry.forget_ms = self.now_ms + kept_ms
        self._forgetting[line].append((due_ms, entry.execution))
        if due_ms < self._forget_at_ms:
            self._forget_at_ms = due_ms

    def _forget_due(self) -> None:
        for line in self._forgetting:
            while line and line[0][0] <= self.now_ms:
                self._forget_first(line)
        self._forget_at_ms = min((line[0][0] for line in self._forgetting if line), default=NEVER_MS)

    def _forget_first(self, line: deque[tuple[int, str]]) -> None:
        due_ms, execution = line.popleft()
        entry = self._entries.get(execution)
        if entry is not None and entry.forget_ms == due_ms:
            del self._entries[execution]
            if entry.key is not None:
                self._free_key(entry)

    def _free_key(self, entry: Entry) -> None:
        if entry.key is not None and self._keys.get(entry.key) == entry.execution:
            del self._keys[entry.key]

    def _room(self) -> bool:
        """Room for one more record. When full, what ended longest ago is forgotten early; tombstones never are."""
        for line in self._forgetting[:TOMBSTONES]:
            while len(self._entries) >= self._records_max and line:
                self._forget_first(line)
        return len(self._entries) < self._records_max

    # small things

    def _wake(self, turns: Turns, pool: str) -> None:
        """Tell the gateway with the lowest fitting mark, and no other."""
        mark = turns.wake(self.counters.lacking, self.now_ms)
        if mark is not None:
            self._wakes.append(Wake(mark.owner, pool, mark.flow))

    def _lives(self, owner: Owner) -> bool:
        boot = self._boots.get(owner)
        return boot is not None and boot.alive

    def _open_pool(self, name: str) -> Turns:
        turns = self._turns[name] = Turns()
        return turns

    def _open_replica(self, name: str) -> Replica:
        replica = self._replicas[name] = Replica(name)
        return replica
