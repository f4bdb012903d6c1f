"""What must be true after every event of a simulation, whatever happened before it.

The watch is called after each action of the world and looks at whatever may have changed since: the book when commands
were run, each gate when it handled an event, the engines' memory when either moved. It believes none of them: what the
engines physically hold is compared with what the ledger calls charged (`sim/auditor.py`), final records with what they
were, and what the clients were told with what the gateways wrote down. It raises at the first contradiction.
"""

from __future__ import annotations

from collections.abc import Sequence

from headworks.core.book_table import CHARGED, ORPHANED, STOPPED, TERMINAL, TOMBSTONE
from headworks.core.commands import Answer, Cancel, Claim, Command, Grow, Reassert, Stop, TellSession
from headworks.core.types import READ_UNITS, RequestKey, Reservation
from headworks.sim.auditor import Auditor
from headworks.sim.runner import SimRunner
from headworks.sim.session_invariants import SessionWatch, held_by
from headworks.sim.simulation import Arrival, Simulation

NEVER_SENT = "E0"
UNKNOWN_CANCEL = "cancelled before it was known"
UNLIMITED = 1 << 62


class Broken(AssertionError):
    """An invariant does not hold. The text names it, the time and the figures."""


class Watch:
    """The auditor of one simulation. `reached` counts rare things that did happen, so that a campaign can show it met them."""

    def __init__(self, simulation: Simulation) -> None:
        self.reached: dict[str, int] = {}
        self._simulation = simulation
        pools = simulation.setup.policy.pools.values()
        self._grows = any(pool.growth for pool in pools)
        self._auditor = Auditor(overrun_tokens=max(pool.growth_step_tokens for pool in pools) if self._grows else 0)
        self._ledger_seen = -1
        self._engines_seen = -1
        self._gates_seen: dict[int, tuple[SimRunner, int]] = {}
        self._charged: dict[str, tuple[int, int]] = {}
        self._held: dict[tuple[str, str], int] = {}
        self._limits: dict[tuple[str, str], int] = {}
        self._final: dict[str, tuple[str, str]] = {}
        self._keys: dict[str, RequestKey] = {}
        self._dead: dict[str, str] = {}
        """Executions of which the ledger has acknowledged that they must never run, and why."""
        self._epoch = simulation.ledger.epoch
        self._forgotten: dict[str, tuple[int, int]] = {}
        """What was charged in a store that is gone, until the next one admits something; of dead gateways for good."""
        self._owners: dict[str, str] = {}
        """The boot each charged execution belongs to."""
        self._orphans: set[str] = set()
        """Executions that were orphaned once."""
        self._told_again = False
        self._sessions = SessionWatch(self.note)
        simulation.ledger.seen = self._overhear

    def look(self) -> None:
        """After an event: check what may have changed."""
        simulation = self._simulation
        if simulation.ledger.epoch != self._epoch:
            self._another_ledger()
        ledger_moved = simulation.ledger.applied != self._ledger_seen
        if ledger_moved:
            self._ledger_seen = simulation.ledger.applied
            self._book()
        self._gates()
        engines = 0
        for replica in simulation.replicas.values():
            engines += replica.changed
        if ledger_moved or engines != self._engines_seen:
            self._engines_seen = engines
            self._memory()

    def _another_ledger(self) -> None:
        """It owes nothing to what the one before had promised, except that nothing new may run beside what is not told yet."""
        self._epoch = self._simulation.ledger.epoch
        self._forgotten |= self._charged
        self._final.clear()
        self._dead.clear()
        self._limits.clear()
        self._held.clear()
        self._sessions.another_store()
        for execution in self._forgotten:
            if not self._simulation.is_alive(self._owners.get(execution, "")):
                self._keys.pop(execution, None)
        self.note("another store")

    def _overhear(self, commands: Sequence[Command], answers: Sequence[Answer]) -> None:
        """What the ledger promised: a stop is final even for what it did not know, and evidence counts from anybody."""
        sessions = self._simulation.ledger.book.sessions()
        for command, answer in zip(commands, answers, strict=True):
            self._say_if(self._sessions.overhear(command, answer, sessions), "B14")
            if answer.outcome in ("fenced", "dead", "yield") or isinstance(command, Claim | Grow | Reassert | Stop):
                self.note(f"{answer.verb} {answer.outcome}")
            self._told_again = self._told_again or isinstance(command, Reassert | TellSession)
            if isinstance(command, Reassert):
                if self._dead.get(answer.execution) == UNKNOWN_CANCEL:  # what is told by its owner had been granted before
                    del self._dead[answer.execution]
                    self._final.pop(answer.execution, None)
            elif answer.outcome == "granted" and self._forgotten:
                owners, alive = self._owners, self._simulation.is_alive
                self._forgotten = {name: held for name, held in self._forgotten.items() if not alive(owners.get(name, ""))}
            if isinstance(command, Stop):
                if answer.outcome != "refused":
                    self._dead.setdefault(command.execution, f"stopped by {command.evidence}")
                elif command.evidence != NEVER_SENT:
                    raise self._broken("rule 7", f"{command.evidence} of {command.execution} was refused to {command.owner}")
            elif isinstance(command, Cancel) and answer.outcome != "refused" and answer.state not in CHARGED:
                self._dead.setdefault(command.execution, UNKNOWN_CANCEL)

    def _book(self) -> None:
        """I1, I2, I3, I8: counters are the sums of charged records. I6: what is final stays. I16: what is charged is known."""
        book = self._simulation.ledger.book
        self._raise_if(book.check(), "book")
        sums: dict[tuple[str, str], int] = {}
        largest: dict[tuple[str, str], int] = {}
        charged: dict[str, tuple[int, int]] = {}
        records = book.records()
        for record in records:
            if record.state in CHARGED:
                if record.execution in self._dead:
                    raise self._broken("rule 3", f"{record.execution} is charged and was {self._dead[record.execution]}")
                for scope, unit, amount in record.charges:
                    sums[scope, unit] = sums.get((scope, unit), 0) + amount
                    largest[scope, unit] = max(largest.get((scope, unit), 0), amount)
                charged[record.execution] = _tokens_and_sequences(record)
                self._owners[record.execution] = record.owner.boot
                if record.key is not None:
                    self._keys[record.execution] = record.key
                if record.state == ORPHANED:
                    self.note("orphaned")
                    self._orphans.add(record.execution)
            elif record.state in TERMINAL:
                self._finality(record)
        self._charged = charged
        sessions = book.sessions()
        self._say_if(self._sessions.look(sessions, records), "B14")
        for scope, held in held_by(sessions).items():
            sums[scope, "tokens"] = sums.get((scope, "tokens"), 0) + held
        for scope_unit, held in sums.items():
            limit = book.limit(*scope_unit)
            # A limit that was lowered, perhaps at the end of this very list, leaves an excess that drains; what may
            # never happen is that more is added to it.
            allowed = max(limit or 0, self._limits.get(scope_unit, UNLIMITED), self._held.get(scope_unit, 0))
            # What is longer than may be read at once is read alone (B7).
            alone = scope_unit[1] in READ_UNITS and held == largest[scope_unit]
            if limit is not None and held > allowed and not alone and not self._told_again:
                raise self._broken("I2", f"{scope_unit[0]} holds {held} {scope_unit[1]} of {limit}")
        self._limits = {(one.scope, one.unit): one.limit for one in book.counters.all()}
        self._held = sums
        self._told_again = False

    def _finality(self, record: Reservation) -> None:
        now = (record.state, record.evidence)
        before = self._final.setdefault(record.execution, now)
        if before is now:
            self.note(f"ended by {record.evidence}")
            if record.execution in self._orphans:
                self.note(f"orphan ended by {record.evidence}")
            # What is only buried frees nothing: a store that forgot it is told of its end by what nobody heard of again.
            if record.evidence == NEVER_SENT and record.state != STOPPED and self._was_inside(record.execution):
                raise self._broken("I11", f"{record.execution} was freed as never sent, and an engine had taken it")
        elif before == (TOMBSTONE, "") and now[0] == STOPPED:  # testimony makes a tombstone final
            self._final[record.execution] = now
        elif before != now:
            raise self._broken("I6", f"{record.execution} was {before} and became {now}")

    def _was_inside(self, execution: str) -> bool:
        return any(execution in replica.taken for replica in self._simulation.replicas.values())

    def _gates(self) -> None:
        """Every counter of a gate equals what its parts say (K07)."""
        for number, runner in enumerate(self._simulation.runners):
            if runner is not None and self._gates_seen.get(number) != (runner, runner.handled):
                self._gates_seen[number] = (runner, runner.handled)
                self._raise_if(runner.gate.check(), f"gate {number}")

    def _memory(self) -> None:
        """A4, A5: what an engine holds is charged. A8: and no more than one step beyond. I12: what was reserved under one key
        runs once."""
        simulation = self._simulation
        now_s = simulation.world.now_s
        models = {name: replica.model for name, replica in simulation.replicas.items()}
        violations = self._auditor.check(now_s, self._paid_for(), models)
        if violations:
            raise self._broken("auditor", "; ".join(f"{one.execution} on {one.engine}: {one.breach}" for one in violations))
        keys: dict[RequestKey, str] = {}
        for model in models.values():
            for execution in model.held(now_s):
                key = self._keys.get(execution)
                if key is not None and keys.setdefault(key, execution) != execution:
                    raise self._broken("I12", f"{key} runs twice: {keys[key]} and {execution}")

    def _paid_for(self) -> dict[str, tuple[int, int]]:
        """What may be held: what is charged, and what was in a store that is gone while it has not been told again."""
        charged = self._charged
        if self._forgotten:
            charged = charged | {name: max(held, charged.get(name, held)) for name, held in self._forgotten.items()}
        return self._answered_for(charged) if self._grows else charged

    def _answered_for(self, charged: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """What may be held. What was told to stop, or lost its gateway, may run on past its reservation until it stops."""
        replicas = self._simulation.replicas.values()
        return {
            name: charge if any(replica.is_listened_to(name) for replica in replicas) else (UNLIMITED, charge[1])
            for name, charge in charged.items()
        }

    def at_the_end(self) -> None:
        """After the liveness phase: nothing is held anywhere, and everybody was told once how it ended."""
        simulation = self._simulation
        self._book()
        if self._charged:
            raise self._broken("I5", f"still charged: {self._charged}")
        unspent = {one.scope: one.unspent_tokens for one in simulation.ledger.book.sessions() if not one.ended}
        if unspent:
            raise self._broken("I5", f"still open: {unspent}")
        for name, replica in simulation.replicas.items():
            held = replica.model.held(simulation.world.now_s)
            if held:
                raise self._broken("I5", f"{name} still holds {held}")
        for arrival in simulation.arrivals.values():
            self._ending(arrival)

    def _ending(self, arrival: Arrival) -> None:
        """I26, I36: one outcome each, and no client left without an answer. I25: nothing was sent after its deadline."""
        attempt = arrival.attempt
        if not arrival.gateway.alive and arrival.outcome is None:
            return
        if arrival.outcomes != 1:
            raise self._broken("I36", f"{attempt.id} has {arrival.outcomes} outcomes")
        if not attempt.end and attempt.left_s is None:
            raise self._broken("I26", f"the client of {attempt.id} was never answered ({arrival.outcome})")
        source = self._simulation.setup.sources[arrival.caller.planned.source]
        policy = self._simulation.setup.policy
        discipline = policy.pools[source.pool].discipline
        limit_s = attempt.arrived_s + policy.classes[source.service_class].wait_s_max
        if discipline.drop_late and not discipline.unbounded and (arrival.sent_s or 0.0) > limit_s + 1e-6:
            raise self._broken("I25", f"{attempt.id} was sent at {arrival.sent_s}, its last instant was {limit_s}")
        assert arrival.outcome is not None
        self.note(f"outcome {arrival.outcome.outcome} {arrival.outcome.reason}".strip())

    def note(self, what: str) -> None:
        self.reached[what] = self.reached.get(what, 0) + 1

    def _say_if(self, problem: str, where: str) -> None:
        if problem:
            raise self._broken(where, problem)

    def _raise_if(self, problems: list[str], where: str) -> None:
        if problems:
            raise self._broken(where, "; ".join(problems))

    def _broken(self, where: str, what: str) -> Broken:
        return Broken(f"{where} at {self._simulation.world.now_s:.6f} s: {what}")


def _tokens_and_sequences(record: Reservation) -> tuple[int, int]:
    """What the record holds on its replica."""
    tokens = sequences = 0
    for scope, unit, amount in record.charges:
        if scope.startswith("replica:"):
            if unit == "tokens":
                tokens += amount
            elif unit == "requests":
                sequences += amount
    return tokens, sequences
