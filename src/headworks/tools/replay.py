"""One life of a gateway once more: its arrivals, told to a new gate at the instants at which they came (G2).

The gate, its ledger's book and its runner are those of the simulator, so they are those that run in production; the engines
are as the log remembers them (`replay_engine.py`). Under its own policies, its reloads among them, this is the control: the
outcomes should be those of the log. Under another policy it is the plan.

What cannot be known is taken as it was: nobody arrives who did not, whoever came back comes back, and a client that left
before its first byte had so much patience. It stays if the plan gives it a first byte before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

from headworks.core.book import Book
from headworks.core.effects import Alarm, Outcome, Run
from headworks.core.events import Drain, ReplicaDescribed, ReplicaSampled, SampleFailed, Tick, UsageRead
from headworks.core.gate import Gate
from headworks.core.policy import INFINITE_S, ClassPolicy, Policy
from headworks.core.types import Capacity, Decision, Request, RequestKey
from headworks.sim.connection import Sending
from headworks.sim.runner import SimRunner
from headworks.sim.world import Action, World
from headworks.tools.decision_log import Life, policy_changes
from headworks.tools.log_lines import Arrival, patience_s
from headworks.tools.replay_engine import JUST_BEFORE_S, SAME_S, Agenda, RecordedEngine
from headworks.tools.replay_ledger import RecordedLedger
from headworks.tools.replay_model import Model

WARM_S = 120.0
"""Of a life whose beginning is not in the log: what it had learnt before is learnt again first, and not compared."""
AFTER_S = 900.0
"""So long after the log's last moment the last answers have ended, or count as not ended."""
SEED = bytes(32)
UNKNOWN = "unknown"
"""The outcome of an arrival whose tenant or model the policy does not have: its client would be told 401 or 404."""
DECISIONS_MAX = 4
"""Of one arrival, that are kept for its story."""
SAME_TIME_S = 1e-6


@dataclass(slots=True)
class Again:
    """What became of an arrival this time."""

    arrival: Arrival
    outcome: Outcome | None
    """None: it was not let to the gate (`UNKNOWN`), or had not ended when the replay did."""
    decisions: tuple[Decision, ...] = ()
    """Only where it came out otherwise than in the log."""
    known: bool = True

    @property
    def end(self) -> str:
        """The outcome in a word."""
        return UNKNOWN if not self.known else "" if self.outcome is None else self.outcome.outcome

    @property
    def reason(self) -> str:
        return "" if self.outcome is None else self.outcome.reason

    @property
    def is_same(self) -> bool:
        """As in the log: the same outcome for the same reason."""
        return (self.end, self.reason) == (self.arrival.ended.outcome, self.arrival.ended.reason)

    @property
    def is_compared(self) -> bool:
        """It ended in the log."""
        return self.arrival.ended.outcome != ""


class Replay:
    """Build it with a life and, for a plan, another policy; then `run`. It is the clients' side of the gateway as well."""

    def __init__(self, life: Life, model: Model, policy: Policy | None = None) -> None:
        self.life = life
        self.policy = policy
        """None: those of the log, each at its time."""
        first = policy or life.policies[0][1]
        self.world = World()
        self._agenda = Agenda(self.world)
        self.again: dict[str, Again] = {}
        book = Book(lease_ms=round(first.lease_s * 1000), remember_ms=round(first.remember_s * 1000))
        ledger = RecordedLedger(self.world, self._agenda, book, life, exact=policy is None)
        self.gate = gate = Gate(first, life.gateway, SEED, life.boot, life.utc_offset_s)
        self._arrivals = {one.ended.id: one for one in life.arrivals}
        self._run_for: dict[str, Arrival] = {}
        self._begun_s: dict[str, float] = {}
        self._decisions: dict[str, list[Decision]] = {}
        self._missing = len(life.arrivals)
        self.engines = {
            name: RecordedEngine(
                name,
                [one.ended for one in life.arrivals if one.ended.replica == name],
                model,
                self.world,
                self._agenda,
                self._run_for.__getitem__,
                self._tell,
                self._wake_at,
            )
            for name in _replica_names([policy] if policy is not None else [one for _, one in life.policies])
        }
        self.runner = SimRunner(gate, self.world, ledger, self.engines, self, self._sending, self._idle_s, self._wake_at)

    def run(self) -> list[Again]:
        """All arrivals of the life, in their order."""
        life, at = self.life, self.world.at
        at(life.began_s, lambda: self._tell(Tick()))
        for at_s, capacity in self._capacities():
            at(max(at_s, life.began_s), _later(self.engines[capacity.replica].described, capacity))
        for at_s, event in life.facts:
            at(max(at_s, life.began_s), _later(self._fact, event))
        if self.policy is None:
            for at_s, event in policy_changes(life):
                at(max(at_s, life.began_s), _later(self._tell, event))
        for engine in self.engines.values():
            at(life.began_s, engine.keep_looking)
        at_s, place = -INFINITE_S, 0
        for arrival in life.arrivals:
            # Where nothing is said of its own place, it came behind whoever came before it at that instant.
            place = arrival.place or (place if arrival.at_s == at_s else 0)
            at_s = arrival.at_s
            self._agenda.at(at_s, place, _later(self._arrive, arrival))
        self.world.run(life.ended_s + AFTER_S, lambda: self._missing == 0)
        return [self.again.get(one.ended.id) or Again(one, None) for one in life.arrivals]

    # what the log says

    def _capacities(self) -> list[tuple[float, Capacity]]:
        """What each engine said it can hold and when; one that the log has not is like another of its pool, or of any."""
        said = [(at_s, event.capacity) for at_s, event in self.life.facts if isinstance(event, ReplicaDescribed)]
        found = []
        for name in self.engines:
            own = [(at_s, one) for at_s, one in said if one.replica == name]
            pool = name.rpartition("/")[0]
            like = [(at_s, one) for at_s, one in said if one.replica.rpartition("/")[0] == pool] or said
            if own:
                found += own
            elif like:
                at_s, one = like[0]
                found.append((at_s, replace(one, replica=name, incarnation=f"{name} as planned")))
        return found

    def _fact(self, event: object) -> None:
        if isinstance(event, ReplicaSampled):
            engine = self.engines.get(event.sample.replica)
            if engine is not None:
                engine.sampled(event.sample)
        elif isinstance(event, SampleFailed):
            if event.replica in self.engines:
                self.engines[event.replica].unseen(unreachable=event.unreachable)
                self._tell(event)
        elif isinstance(event, Drain | UsageRead):
            self._tell(event)

    def _tell(self, event: object) -> None:
        self.runner.tell(event)  # type: ignore[arg-type]

    # arriving and leaving

    def _arrive(self, arrival: Arrival) -> None:
        own = self.life.policy_at(arrival.at_s)
        request = request_of(arrival, own, self.policy or own)
        if request is None:
            self._end(Again(arrival, None, known=False))
            return
        self.runner.arrive(request)
        ended = arrival.ended
        if ended.outcome == "cancelled" and ended.first_byte_s is None and not ended.reason:
            self._agenda.at(ended.stopped_s, arrival.end_place, lambda: self._leave(ended.id))

    def _leave(self, name: str) -> None:
        """Its patience is over. Whoever has its first byte waits for the rest."""
        if name not in self._begun_s:
            self.runner.client_gone(name)

    def on_first_byte(self, id: str) -> None:
        """One that left while it was reading leaves after as long a time again."""
        ended, now_s = self._arrivals[id].ended, self.world.now_s
        self._begun_s[id] = now_s
        if ended.outcome == "cancelled" and ended.first_byte_s is not None and not ended.reason:
            leaves_s = ended.stopped_s - JUST_BEFORE_S  # should it have ended at that instant, its client had left before
            if abs(now_s - ended.first_byte_s) > SAME_S:
                leaves_s = now_s + ended.stopped_s - ended.first_byte_s
            self.world.at(leaves_s, lambda: self.runner.client_gone(id))

    # what becomes of them

    def on_record(self, record: Decision | Outcome) -> None:
        if isinstance(record, Decision):
            decisions = self._decisions.setdefault(record.id, [])
            if len(decisions) < DECISIONS_MAX:
                decisions.append(record)
            return
        again = Again(self._arrivals[record.id], record, tuple(self._decisions.pop(record.id, ())))
        self._end(Again(again.arrival, record) if again.is_same else again)

    def _end(self, again: Again) -> None:
        name = again.arrival.ended.id
        if name not in self.again:
            self._missing -= 1
        self.again[name] = again

    def _sending(self, run: Run) -> Sending:
        """What is sent is known to the engine by its execution."""
        self._run_for[run.execution.id] = self._arrivals[run.id]
        work = run.decision.work
        return Sending(
            execution=run.execution.id,
            prompt_tokens=work.prefill_tokens,
            output_tokens=run.output_tokens_max,
            output_tokens_max=run.output_tokens_max,
            samples=work.sequences,
            prefix=(),
            send_before_s=run.send_before_s,
            watch_tokens=run.watch_tokens,
        )

    def _wake_at(self, at_s: float, action: Action) -> None:
        """The process was busy at times, and woke later than it wanted."""
        late = self.life.late
        number = bisect_right(late, (at_s + JUST_BEFORE_S, INFINITE_S, 0)) - 1
        if number >= 0 and at_s < late[number][1]:
            _, woken_s, place = late[number]
            self._agenda.at(woken_s, place, action)
        else:
            self.world.at(at_s, action)

    def _idle_s(self, id: str) -> float:
        """Silence is recorded: it is told when it was told."""
        return INFINITE_S

    # what clients would see is in the outcomes

    def on_completed(self, id: str) -> None: ...

    def on_refused(self, id: str, decision: Decision) -> None: ...

    def on_broken(self, id: str, reason: str) -> None: ...

    def on_cut_short(self, id: str) -> None: ...

    def on_attached(self, id: str, execution: str) -> None: ...

    def on_alarm(self, alarm: Alarm) -> None: ...


def counted(life: Life, again: list[Again]) -> list[Again]:
    """Those that ended in the log, and came when the gate had learnt again what it knew."""
    from_s = life.began_s if life.whole else life.began_s + WARM_S
    return [one for one in again if one.is_compared and one.arrival.at_s >= from_s]


def request_of(arrival: Arrival, own: Policy, policy: Policy) -> Request | None:
    """The request as it would come under a policy; None where that has no such tenant or model.

    Who asked for a class is not in the log: one in its tenant's usual class of then is in its usual class of now.
    """
    ended = arrival.ended
    asked, tenant = ended.asked, policy.tenants.get(ended.key.tenant)
    pool = _pool_of(policy, ended.pool, ended.model)
    if asked is None or tenant is None or pool is None or (tenant.models is not None and ended.model not in tenant.models):
        return None
    before = own.tenants.get(ended.key.tenant)
    name = ended.service_class
    if name not in tenant.classes or name not in policy.classes or (before is not None and name == before.service_class):
        name = tenant.service_class
    start_s, finish_s = patience_s(asked)
    was = own.classes.get(ended.service_class)
    return Request(
        id=ended.id,
        key=ended.key if asked.key_given else RequestKey(ended.key.tenant, ended.id),
        key_given=asked.key_given,
        fingerprint=ended.id if ended.reason == "idempotency_key_reused" else "",
        client=ended.client,
        service_class=name,
        model=ended.model,
        pool=pool,
        prompt_bytes=asked.prompt_bytes,
        prompt_tokens=asked.prompt_tokens,
        output_tokens_max=asked.output_tokens_max,
        samples=asked.samples,
        stream=asked.stream,
        prefix=(),
        session=None,
        retry_count=asked.retry_count,
        arrived_s=ended.arrived_s,
        start_by_s=ended.arrived_s + start_s,
        finish_by_s=ended.arrived_s + _finish_s(finish_s, was, policy.classes[name]),
        output_tokens_min=asked.output_tokens_min,
        assembles=asked.assembles,
        prompt_kind=asked.prompt_kind,
    )


def _finish_s(finish_s: float, was: ClassPolicy | None, now: ClassPolicy) -> float:
    """The client's own limit, or its class's where that was what held."""
    if was is not None and abs(finish_s - was.gateway_s) < SAME_TIME_S:
        return now.gateway_s
    return min(finish_s, now.gateway_s)


def _pool_of(policy: Policy, pool: str, model: str) -> str | None:
    """Where a model is served: where it was, if that pool still serves it."""
    same = policy.pools.get(pool)
    if same is not None and (not same.models or model in same.models):
        return pool
    return next((name for name, one in policy.pools.items() if not one.models or model in one.models), None)


def _replica_names(policies: list[Policy]) -> list[str]:
    """Of every policy that will be in force."""
    names = [replica.name for policy in policies for pool in policy.pools.values() for replica in pool.replicas]
    return list(dict.fromkeys(names))


def _later(call: Callable[[object], None] | Callable[..., None], given: object) -> Callable[[], None]:
    return lambda: call(given)
