"""The life of an execution in the ledger: charged, seen, unwanted, ended.

`book_table.py` says which command does what in which state; the methods here are its acts, in the order in which they
happen in a life. `Book` (book.py) adds the gateways' leases and the evidence about engines.
"""

from __future__ import annotations

from collections.abc import Sequence

from headworks.core.book_counters import Charges, Counter
from headworks.core.book_parts import Entry
from headworks.core.book_proof import Replica
from headworks.core.book_records import NOBODY, TOMBSTONE_LEASES, TOMBSTONES
from headworks.core.book_sessions import Sessions
from headworks.core.book_table import (
    CANCELLING,
    CLAIMED,
    MOVES,
    ORPHANED,
    RESERVED,
    RUNNING,
    STOP_PROVED,
    STOP_VERBS,
    UNKNOWN,
    Move,
)
from headworks.core.commands import Answer, Cancel, Grow, Reserve, Shortfall, Start, Stop
from headworks.core.fair import MARK_MS, Flow, Mark, Turns, Wake
from headworks.core.types import Charge, Reservation, Usage

Shortfalls = tuple[Shortfall, ...]

STEPS_MAX = 4096
"""Growth steps of one execution."""


class Lives(Sessions):
    """Executions and their charges."""

    # charging

    def _reserve(self, command: Reserve) -> Answer:
        """Authority is fenced: only a boot whose lease runs may charge."""
        boot = self._asking
        if boot.owner is not command.owner:
            boot = self._asking = self._boots.get(command.owner) or NOBODY
        if not boot.alive:
            return self._answer("reserve", command.execution, "fenced")
        entry = self._entries.get(command.execution)
        act, move = self._columns["reserve"][UNKNOWN if entry is None else entry.state]
        return act("reserve", entry, command, move)

    def _charge(self, verb: str, entry: Entry | None, command: Reserve, move: Move) -> Answer:
        """Identity, then every limit, then whose turn it is; then charge every scope, or none."""
        new = entry is None and command.key is None and len(self._entries) < self._records_max
        if not new and not self._may_run(entry, command):
            return self._answer("reserve", command.execution, "dead", 0, entry.state if entry else UNKNOWN)
        turns = self._turns.get(command.pool) or self._open_pool(command.pool)
        replica = self._replicas.get(command.replica) or self._open_replica(command.replica)
        if command.slots_tokens or turns.slots:
            turns.note_slots(command.owner, command.slots_tokens)
        session = command.session
        if session:
            answer = self._charge_inside(verb, entry, command, move, turns, replica)
            if answer is not None:
                return answer
        inside = self.counters.inside(command.charges)
        taken, shortfalls = self._take(command.charges)
        if shortfalls:
            return self._short(command, turns, shortfalls, inside)
        passing: Sequence[Mark] = ()
        marks = turns.marks
        if self.now_ms < turns.owed_until_ms and not inside:
            self.counters.give(command.charges, taken)
            return self._waits("yield", command, turns, ())
        # What is kept for it is nobody else's, so nobody's turn is taken by it.
        somebody_first = marks and not inside and turns.anybody_before(command.flow, command.owner, self.now_ms)
        if somebody_first or self.now_ms < replica.yield_until_ms:
            self.counters.give(command.charges, taken)
            must_yield, passing = self._whose_turn(command, turns, replica)
            if must_yield:
                return self._go_after(command, turns, passing)
            taken, _ = self._take(command.charges)
        if session:
            return self._opened(command, turns, passing)
        self._admit(entry, command, replica, taken)
        turns.grant(command.flow, command.weights, command.cost_tokens, passing, self.now_ms)
        if command.more:
            head, waiting = command.charges, command.waiting_tokens
            turns.leave_mark(command.flow, command.owner, head, waiting, self.now_ms, granted=True)
        else:
            turns.unmark(command.flow, command.owner)
        if marks or turns.slots:
            return self._told(move.outcome, command, turns, move.state, ())
        owner, sequence = command.owner, self.sequence
        return Answer(verb, command.execution, move.outcome, 0, move.state, (), None, "", owner, sequence)

    def _charge_inside(
        self, verb: str, entry: Entry | None, command: Reserve, move: Move, turns: Turns, replica: Replica
    ) -> Answer | None:
        """A call of a session: what the session holds becomes its own, whoever's turn it is. None: it opens one, and may."""
        if command.opens is not None:
            answer = self._cannot_open(command)
            if answer is None:
                return None
            outcome, shortfalls, sessions = answer
            return self._answer(verb, command.execution, outcome, shortfalls=shortfalls, sessions=sessions)
        short = self._lacks_session(command)
        if short is not None:
            return self._told("never" if command.charges[0][2] > short.limit else "refused", command, turns, UNKNOWN, (short,))
        if self.now_ms < replica.yield_until_ms:
            return self._told("yield", command, turns, UNKNOWN, ())
        session = self._session_of(command.charges)
        assert session is not None
        taken, lacking = self._take_inside(session, command.charges)
        if lacking:
            never = self._beyond(session, self.counters.never_fits(command.charges))
            return self._told("never" if never else "refused", command, turns, UNKNOWN, tuple(never or lacking))
        self._admit(entry, command, replica, taken).flow = None  # its flow was charged for the whole session
        return self._told(move.outcome, command, turns, move.state, ())

    def _opened(self, command: Reserve, turns: Turns, passing: Sequence[Mark]) -> Answer:
        """Its flow has had its turn for all of it."""
        told = self._open_session(command)
        turns.grant(command.flow, command.weights, told.tokens, passing, self.now_ms)
        if command.more:
            head, waiting = command.charges, command.waiting_tokens
            turns.leave_mark(command.flow, command.owner, head, waiting, self.now_ms, granted=True)
        else:
            turns.unmark(command.flow, command.owner)
        return self._answer("reserve", command.execution, "opened", sessions=(told,))

    def _may_run(self, entry: Entry | None, command: Reserve) -> bool:
        """One key, one execution that may run (A6)."""
        if entry is not None and entry.owner != command.owner:
            return False
        if command.key is not None:
            newest = self._newest(command.key)
            if newest is not None and newest is not entry and not self._may_follow(newest, command.fingerprint):
                return False
        return entry is not None or len(self._entries) < self._records_max or self._room()

    def _take(self, charges: Charges) -> tuple[Sequence[Counter], Sequence[Shortfall]]:
        """One step: compare with every limit and charge, or change nothing (A3)."""
        return self.counters.take(charges)

    def _short(self, command: Reserve, turns: Turns, shortfalls: Sequence[Shortfall], inside: bool) -> Answer:
        never = self.counters.never_fits(command.charges)
        if never:
            return self._told("never", command, turns, UNKNOWN, tuple(never))
        if inside and self.counters.owes(shortfalls):  # what was kept for it is lent: what comes free is its own (B11)
            turns.owed_until_ms = self.now_ms + MARK_MS
        return self._waits("refused", command, turns, tuple(shortfalls))

    def _whose_turn(self, command: Reserve, turns: Turns, replica: Replica) -> tuple[bool, Sequence[Mark]]:
        """Another flow's; or, for a moment, nobody's there, so that a sample can decide about old work (E3b)."""
        if self.now_ms < replica.yield_until_ms:
            return True, ()
        return turns.must_yield(command.flow, command.owner, command.charges, self.counters.lacking, self.now_ms)

    def _go_after(self, command: Reserve, turns: Turns, before: Sequence[Mark]) -> Answer:
        """It is the turn of another flow, whose gateway need not know: if it is the asker's own, the answer says so."""
        goes_first = None
        for mark in before:
            if mark.owner == command.owner:
                goes_first = mark.flow
            elif not mark.woken_ms:
                mark.woken_ms = self.now_ms
                self._wakes.append(Wake(mark.owner, command.pool, mark.flow))
        return self._waits("yield", command, turns, (), goes_first)

    def _waits(self, outcome: str, command: Reserve, turns: Turns, short: Shortfalls, first: Flow | None = None) -> Answer:
        """Not now: the flow is remembered as waiting, with this one and what is behind it."""
        waiting = command.cost_tokens + command.waiting_tokens
        turns.leave_mark(command.flow, command.owner, command.charges, waiting, self.now_ms, granted=False)
        return self._told(outcome, command, turns, UNKNOWN, short, first)

    def _told(
        self, outcome: str, command: Reserve, turns: Turns, state: str, short: Shortfalls, first: Flow | None = None
    ) -> Answer:
        """An answer with what the whole fleet has waiting (B2)."""
        execution, owner, sequence = command.execution, command.owner, self.sequence
        waiting, slots = turns.waiting_tokens(self.now_ms), turns.slots_tokens()
        return Answer(
            "reserve", execution, outcome, 0, state, short, None, "", owner, sequence, waiting, slots, goes_first=first
        )

    def _admit(self, entry: Entry | None, command: Reserve, replica: Replica, taken: Sequence[Counter]) -> Entry:
        """Write the record of what has just been charged."""
        execution = command.execution
        # What was claimed stays what it was claimed as.
        named = command if entry is None else entry
        entry = self._entries[execution] = self._asking.entries[execution] = Entry.of(
            execution,
            RESERVED,
            named.key,
            named.fingerprint,
            command.owner,
            command.pool,
            command.replica,
            command.flow,
            command.weights,
            command.cost_tokens,
            command.charges,
            taken,
            self.now_ms,
        )
        if named.key is not None:
            self._name(named.key, execution)
        replica.entries[execution] = entry
        return entry

    def _confirm_charge(self, verb: str, entry: Entry | None, command: Reserve, move: Move) -> Answer:
        """The first grant's answer was lost; it is given again, to nobody else."""
        assert entry is not None
        outcome = move.outcome if entry.owner == command.owner else "dead"
        turns = self._turns.get(command.pool) or self._open_pool(command.pool)
        return self._told(outcome, command, turns, entry.state, ())

    # running

    def _start(self, command: Start) -> Answer:
        entry = self._entries.get(command.execution)
        act, move = self._columns["start"][UNKNOWN if entry is None else entry.state]
        return act("start", entry, command, move)

    def _see(self, verb: str, entry: Entry | None, command: Start, move: Move) -> Answer:
        assert entry is not None
        if entry.seen:
            return self._answer_of(verb, entry, "recorded")
        entry.seen = True
        entry.started_ms = self.now_ms
        if self.counters.reading:
            self._has_read(entry)
        if move.state:
            entry.state = move.state
            entry.running_sequence = self.sequence
        elif entry.was == RESERVED:
            entry.was = RUNNING
        return self._answer_of(verb, entry, move.outcome)

    def _has_read(self, entry: Entry) -> None:
        """Its prompt has been read: what it held for that alone comes back, to whoever waits for it (B7)."""
        pairs = list(zip(entry.charges, entry.counters, strict=True))
        read = [(charge, counter) for charge, counter in pairs if counter.is_read]
        if not read:
            return
        self.counters.give([charge for charge, _ in read], [counter for _, counter in read])
        entry.charges = tuple(charge for charge, counter in pairs if not counter.is_read)
        entry.counters = tuple(counter for _, counter in pairs if not counter.is_read)
        turns = self._turns.get(entry.pool)
        if turns is not None and turns.marks:
            self._wake(turns, entry.pool)

    def _grow_command(self, command: Grow) -> Answer:
        return self._go("grow", "grow", self._entries.get(command.execution), command)

    def _grow(self, verb: str, entry: Entry | None, command: Grow, move: Move) -> Answer:
        """More, once for each step."""
        assert entry is not None
        if command.owner != entry.owner:
            return self._answer_of(verb, entry, "fenced", command.step)
        if entry.steps is None:
            entry.steps = {}
        if command.step in entry.steps:
            return self._answer_of(verb, entry, "recorded", command.step)
        if len(entry.steps) >= STEPS_MAX or self._is_foreign(entry, command.charges):
            return self._refuse(verb, entry, command, move)
        session = self._session_of(command.charges)
        taken, shortfalls = self._take(command.charges) if session is None else self._take_inside(session, command.charges)
        if shortfalls:
            return self._answer(verb, entry.execution, "refused", command.step, entry.state, shortfalls=tuple(shortfalls))
        entry.steps[command.step] = None
        entry.charges, entry.counters = merged(entry, command.charges, taken)
        # Fairness counts plain tokens; memory scopes round them up, so the smallest is nearest.
        grown_tokens = min((amount for _, unit, amount in command.charges if unit == "tokens"), default=0)
        if entry.flow is not None and grown_tokens:
            self._turns[entry.pool].correct(entry.flow, entry.weights, grown_tokens)
        entry.cost_tokens += grown_tokens
        return self._answer_of(verb, entry, move.outcome, command.step)

    # ending

    def _cancel(self, command: Cancel) -> Answer:
        return self._go("cancel", "cancel", self._entries.get(command.execution), command)

    def _close(self, verb: str, entry: Entry | None, command: Cancel, move: Move) -> Answer:
        """Unwanted, and charged until there is evidence (A5)."""
        assert entry is not None
        entry.state = move.state
        entry.closing_sequence = self.sequence
        entry.closing_ms = self.now_ms
        return self._answer_of(verb, entry, move.outcome)

    def _close_orphan(self, verb: str, entry: Entry | None, command: Cancel, move: Move) -> Answer:
        assert entry is not None
        entry.was = CANCELLING
        return self._record(verb, entry, command, move)

    def _bury(self, verb: str, entry: Entry | None, command: Cancel | Stop, move: Move) -> Answer:
        """Nothing was charged. It is remembered, so that a reserve that arrives later finds it dead."""
        if entry is None:
            self._room()
            entry = self._entries[command.execution] = Entry.of(command.execution, move.state, None, "", command.owner)
        elif entry.state == CLAIMED:
            self._unclaim(entry)
        entry.state = move.state
        entry.ended_ms = self.now_ms
        if isinstance(command, Stop):
            entry.evidence = command.evidence
            entry.usage = command.usage
        self._forget_in(TOMBSTONES, entry, TOMBSTONE_LEASES * self.lease_ms)
        return self._answer_of(verb, entry, move.outcome)

    def _stop(self, command: Stop) -> Answer:
        entry = self._entries.get(command.execution)
        column = STOP_VERBS.get(command.evidence, STOP_PROVED)
        act, move = self._columns[column][UNKNOWN if entry is None else entry.state]
        return act("stop", entry, command, move)

    def _end(self, verb: str, entry: Entry | None, command: Stop, move: Move) -> Answer:
        """The one edge that frees."""
        assert entry is not None
        ends, evidence, usage = move.ends, command.evidence, command.usage
        state = ends.get(command.end) if ends else None
        if state is None or (evidence != "E1" and not self._admissible(entry, command)):
            return self._refuse(verb, entry, command, move)
        self._finish(entry, state, evidence, usage)
        if command.commits:
            self.counters.commit(command.commits)
        return self._answer_of(verb, entry, move.outcome)

    def _admissible(self, entry: Entry, command: Stop) -> bool:
        """E0 is a statement about the speaker: only from the boot that reserved, and only while no byte was seen.

        Everything else is a statement about the execution and counts from anyone, fenced or not; but where several
        engines stand behind one address, only what ended in band (E1) says anything.
        """
        if command.evidence == "E0":
            return command.owner == entry.reserved_by and not entry.seen
        return command.evidence == "operator" or not self._replicas[entry.replica].several

    def _finish(self, entry: Entry, state: str, evidence: str, usage: Usage | None) -> None:
        """Give everything back, once: the entry leaves every list of what is charged."""
        entry.evidence = evidence
        entry.usage = usage
        self._release(entry)
        if self._sessions:
            self._spend(entry, usage)
        execution = entry.execution
        boot = self._asking if self._asking.owner is entry.owner else self._boots[entry.owner]
        del boot.entries[execution]
        replica = self._replicas[entry.replica]
        del replica.entries[execution]
        replica.ended.append((self.sequence, entry.charges))
        if entry.state == ORPHANED:
            del self._orphans[execution]
        entry.state = state
        entry.ended_ms = self.now_ms
        entry.counters = ()
        self._remember(entry)
        turns = self._turns.get(entry.pool)
        if turns is None:
            return
        if entry.flow is not None and (usage is not None or evidence == "E0"):
            used_tokens = 0 if usage is None else usage.prompt_tokens + usage.output_tokens
            if used_tokens != entry.cost_tokens:
                turns.correct(entry.flow, entry.weights, used_tokens - entry.cost_tokens)
        if turns.marks:
            self._wake(turns, entry.pool)

    def _release(self, entry: Entry) -> None:
        """Amounts are read from the record (A5)."""
        self.counters.give(entry.charges, entry.counters)

    def _finish_all(self, entries: Sequence[Entry], evidence: str) -> tuple[Reservation, ...]:
        """The ledger itself has the evidence."""
        for entry in entries:
            ends = MOVES[entry.state][STOP_PROVED].ends
            assert ends is not None
            self._finish(entry, ends["failed"], evidence, None)
        return tuple(entry.reservation() for entry in entries)


def merged(entry: Entry, charges: Charges, taken: Sequence[Counter]) -> tuple[tuple[Charge, ...], tuple[Counter, ...]]:
    """Growth added to the record's charges, one charge for each scope and unit."""
    amounts: dict[tuple[str, str], int] = {}
    counters: dict[tuple[str, str], Counter] = {}
    pairs = [*zip(entry.charges, entry.counters, strict=True), *zip(charges, taken, strict=True)]
    for (scope, unit, amount), counter in pairs:
        amounts[scope, unit] = amounts.get((scope, unit), 0) + amount
        counters[scope, unit] = counter
    return tuple(Charge(*key, amount) for key, amount in amounts.items()), tuple(counters.values())
