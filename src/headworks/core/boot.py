"""This gateway's standing with the ledger: its lease, the orphans it watches, and what it does about the unproved.

Authority is fenced: nothing is asked for and nothing is sent past the end of the lease, which runs from the moment the
last *answered* heartbeat was asked. Testimony is not: what is known about an execution is told, lease or no lease.

Counting (E3b, design section 6): what its own connection cannot prove the ledger proves, from a sample of the engine that one
boot measures. Here is only the order: take the reader's seat, then look, put what was seen, heartbeat soon: it decides then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from headworks.core.book_table import TERMINAL
from headworks.core.commands import (
    Adopt,
    Answer,
    Cancel,
    Depart,
    Heartbeat,
    PutIncarnation,
    PutSample,
    SetLimits,
    TakeReader,
)
from headworks.core.demotion import learn_of_tenants, told_of_tenants
from headworks.core.desk import Desk
from headworks.core.elsewhere import told_of
from headworks.core.events import LedgerLost, StoreChanged
from headworks.core.ledger_limits import committed_of, floors_of, limits_of
from headworks.core.life import Life
from headworks.core.peak import Profile
from headworks.core.policy import INFINITE_S
from headworks.core.quota import PREFIX
from headworks.core.recovery import Recovery
from headworks.core.replica import Replica
from headworks.core.session_use import tell_again
from headworks.core.types import Owner, ReplicaSample, Reservation
from headworks.core.untracked import Untracked
from headworks.core.vouching import unvouched

MARGIN_RATIO = 0.2
"""The part of a lease in which nothing is sent any more: a late process must find its lease still running elsewhere."""
ADOPT_S = 2.0
COUNT_EVERY_S = 0.5
SOON_S = 0.15
"""A heartbeat this long after a sample was put lets the ledger decide on it (it wants 100 ms)."""
BEATS_MAX = 64
RECHECKED_MAX = 64
"""Unproved executions asked about at a time."""
VOUCH_S = 0.1
"""A heartbeat vouches for what this gateway knew that long ago: news from the engine may be on its way (design section 6)."""
SEEN_MAX = 10_000


class Boot:
    """Lease, heartbeats, limits, orphans."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.recovery = Recovery(desk)
        self.lost = True
        """The store does not answer, or has not answered yet."""
        self.departed = False
        self.lease_until_s = float("-inf")
        self.open_until_s = float("-inf")
        """New work may be asked for and sent until then."""
        self.owners: tuple[Owner, ...] = ()
        self.wards: dict[str, Reservation] = {}
        """Orphans adopted here: watched until the ledger says they have stopped."""
        self.untracked = Untracked(desk, self.recovery, self.wards)
        self._heard_s = self._lost_s = -INFINITE_S
        """When the last heartbeat that was answered was asked, and when the store was lost after it."""
        self._beat = 0
        self._beats: dict[int, float] = {}
        self._next_beat_s = float("-inf")
        self._next_adopt_s = float("-inf")
        self._seen: deque[tuple[float, int]] = deque(maxlen=SEEN_MAX)

    def open(self, now_s: float) -> bool:
        """New work may be asked for and sent."""
        return now_s < self.open_until_s

    def _stand(self, lease_until_s: float) -> None:
        """Until when new work may be asked for and sent: the lease's end, less a margin; not at all while nobody answers."""
        self.lease_until_s = lease_until_s
        standing = not self.lost and not self.departed and self.recovery.is_over
        self.open_until_s = lease_until_s - MARGIN_RATIO * self._desk.policy.lease_s if standing else float("-inf")

    def next_s(self) -> float:
        return float("inf") if self.departed else min(self._next_beat_s, self.untracked.next_s, self._next_adopt_s)

    def tick(self, now_s: float) -> None:
        """Whatever is due with the ledger."""
        if self.departed:
            return
        if now_s >= self._next_beat_s:
            self._heartbeat(now_s)
        if now_s >= self.untracked.next_s:
            self.untracked.ask(now_s)
        if now_s >= self._next_adopt_s:
            self._next_adopt_s = now_s + ADOPT_S
            if self.recovery.is_over:
                self._desk.command(Adopt(self._desk.owner))

    def _heartbeat(self, now_s: float) -> None:
        self._next_beat_s = now_s + self.recovery.next_beat_s()
        self._beat += 1
        self._beats[self._beat] = now_s
        if len(self._beats) > BEATS_MAX:
            del self._beats[next(iter(self._beats))]
        for pool in self._desk.pools.values():
            moved = [replica for replica in pool.all_replicas().values() if replica.memory.beat(now_s)]
            if moved:
                pool.learn_capacity()
                self._desk.limits_open = True
        if self.lost or self._desk.limits_open:
            self.put_limits()
        seen_sequence = self._seen_sequence(now_s - VOUCH_S)
        profiles = tuple(self._profiles(now_s)) if len(self.owners) > 1 else ()
        unvouched_now = unvouched(self._desk, now_s - VOUCH_S)
        posting = self._desk.recovers and bool(self._desk.untold or self._desk.untold_sessions)
        self._desk.command(Heartbeat(self._desk.owner, self._beat, seen_sequence, unvouched_now, profiles, posting))
        self._desk.tell([*tell_again(self._desk.untold_sessions, now_s)])
        if self._desk.untold:
            self._desk.tell(list(self.recovery.tell(self.wards, now_s)))

    def _profiles(self, now_s: float) -> Iterator[tuple[str, Profile]]:
        """What the others need to know of this gateway: what waits here (B2), what it granted to whom that weighs less for it
        (B13), and what runs for it on each over-committed engine, to see the future peak (D4)."""
        yield from told_of_tenants(self._desk.tenants.values(), now_s)
        for pool in self._desk.pools.values():
            yield from told_of(pool)
            for replica in pool.all_replicas().values():
                if replica.requests and replica.policy.over_commit != 1.0:
                    yield replica.name, replica.memory.profile(now_s)

    def saw(self, sequence: int, now_s: float) -> None:
        """An answer carried this ledger sequence."""
        if sequence > (self._seen[-1][1] if self._seen else 0):
            self._seen.append((now_s, sequence))

    def _seen_sequence(self, before_s: float) -> int:
        """The largest sequence seen by then: what may be vouched for now."""
        while len(self._seen) > 1 and self._seen[1][0] <= before_s:
            self._seen.popleft()
        return self._seen[0][1] if self._seen and self._seen[0][0] <= before_s else 0

    def put_limits(self) -> None:
        """Tell the ledger what every scope may hold: the policy's word, and the engines' where the policy says `auto`."""
        policy = self._desk.policy
        limits, floors, committed = tuple(limits_of(self._desk)), tuple(floors_of(self._desk)), tuple(committed_of(self._desk))
        self._desk.limits_open = True
        version = f"{policy.version}/observing" if policy.observe else policy.version
        self._desk.command(SetLimits(version, policy.number, limits, floors, committed))

    def answered(self, answer: Answer, now_s: float) -> bool:
        """An answer about this gateway's standing or about engines. True when the ledger is there again after it was lost."""
        verb = answer.verb
        if verb == "heartbeat":
            return self.answered_beat(answer, now_s)
        if verb == "set_limits":
            self._desk.limits_open = False
        elif verb == "tell_session":
            self._desk.untold_sessions.pop(answer.sessions[0].scope, None)
        elif verb == "held":
            self.untracked.answered(answer, now_s, self._watch)
        elif verb == "adopt":
            self.answered_adopt(answer, now_s)
        elif verb == "take_reader":
            self.answered_reader(self.find_replica(answer.replica), answer, now_s)
        elif verb == "put_incarnation":
            self.answered_incarnation(answer)
        elif verb == "put_sample":
            self.answered_sample(answer)
        elif verb == "cancel":
            self.answered_cancel(answer)
        elif verb == "reassert":
            self.answered_ward(answer)
        return False

    def quota_charges(self, life: Life, now_s: float) -> tuple[tuple[str, str, int], ...]:
        """What a reserve charges to its tenant's quota, and to what may be spent on a spill.

        A period that has just begun has a limit to be told first. What its tenant weighs follows from its quota too.
        """
        life.lane.weigh(now_s)
        purse = life.lane.pool.spill
        for quota in (life.lane.tenant.quota, purse.quota if purse is not None else None):
            if quota is None:
                continue
            quota.turn(now_s)
            if not quota.is_told:
                self.put_limits()
            life.quota = quota.take(life.work, life.request.model, life.quota)
        return life.quota.charges() if life.quota is not None else ()

    def answered_beat(self, answer: Answer, now_s: float) -> bool:
        """A heartbeat came back. True when the ledger is there again after it was lost."""
        asked_s = self._beats.pop(answer.step, None)
        if asked_s is None or answer.outcome != "ok":
            return False
        was_open, self.lost = self.open(now_s), False
        self._heard_s = max(self._heard_s, asked_s)
        if -INFINITE_S < self.lease_until_s <= now_s and self.recovery.is_over:  # others may have taken what is ours
            self.recovery.tell_all(self.wards)
            self._next_beat_s = now_s
            self._desk.wake(now_s)
        self.recovery.heard(answer.owners, now_s)
        self._stand(max(self.lease_until_s, asked_s + self._desk.policy.lease_s))
        if set(self.owners) - set(answer.owners):
            self._next_adopt_s = now_s
            self._desk.wake(now_s)
        self.owners = answer.owners
        self._learn_others(dict(answer.profiles), now_s)
        return not was_open and self.open(now_s)

    def _learn_others(self, profiles: dict[str, Profile], now_s: float) -> None:
        learn_of_tenants(self._desk.tenants.values(), profiles, now_s)
        for pool in self._desk.pools.values():
            pool.elsewhere.learn(pool, profiles, now_s)
            moved = False
            for replica in pool.all_replicas().values():
                before_tokens = replica.memory.unguarded_tokens
                replica.memory.learn_others(profiles.get(replica.name, ()))
                moved = moved or replica.memory.unguarded_tokens != before_tokens
            if moved:
                pool.learn_capacity()

    def ledger_lost(self, event: LedgerLost | StoreChanged, now_s: float) -> None:
        """It does not answer: what we may do ends with the lease."""
        if not self.lost:
            self._lost_s = now_s
        self.lost = True
        self._stand(self.lease_until_s)

    def store_changed(self, event: StoreChanged, now_s: float) -> None:
        """Another store answers: nothing of ours counts there yet, and its numbers are its own."""
        self.ledger_lost(event, now_s)
        self._desk.limits_open = True
        self._beats.clear()
        self._seen.clear()
        for pool in self._desk.pools.values():
            for replica in pool.all_replicas().values():
                replica.forget_ledger()
        for life in self._desk.runs.values():
            if life.replica is not None and life.first_byte_s is not None:
                life.replica.unstamped[life.execution.id] = life.first_byte_s
        # Away for longer than a lease, the last store may have gone on for others, and taken boots in that nobody here knows.
        known_until_s = self._lost_s if now_s < self.lease_until_s else now_s
        self.recovery.begin(self.owners, self.wards, known_until_s - self._heard_s, now_s)
        self.fenced(now_s)

    def fenced(self, now_s: float) -> None:
        """The ledger says our lease has lapsed: stand still until a heartbeat is answered."""
        self._stand(now_s)
        self._next_beat_s = now_s
        self._desk.wake(now_s)

    def answered_adopt(self, answer: Answer, now_s: float) -> None:
        for record in answer.records:
            if record.execution not in self._desk.runs:
                self._watch(record, now_s)

    def _watch(self, record: Reservation, now_s: float) -> None:
        self.wards[record.execution] = record
        replica = self.find_replica(record.replica)
        if replica is not None:
            replica.unproved[record.execution] = now_s
            replica.take_stock()
            self._desk.observe(replica.name, now_s)

    def watch_there(self, replica: Replica, now_s: float) -> None:
        """An engine is named (again): what was adopted while nobody knew where it is can be proved from here on."""
        for record in self.wards.values():
            if record.replica == replica.name:
                replica.unproved.setdefault(record.execution, now_s)

    def find_replica(self, name: str) -> Replica | None:
        pool = self._desk.pools.get(name.rsplit("/", 1)[0])
        return pool.all_replicas().get(name) if pool else None

    def released(self, record: Reservation) -> None:
        """The ledger has ended this execution: nobody needs to watch it any more."""
        if any(scope.startswith(PREFIX) for scope, _, _ in record.charges):
            self._desk.limits_open = True  # no stop has said what it used of its quota: the limits will, with the next beat
        self.wards.pop(record.execution, None)
        replica = self.find_replica(record.replica)
        if replica is not None:
            replica.unproved.pop(record.execution, None)
            if not replica.unproved:
                replica.counted()

    def answered_cancel(self, answer: Answer) -> None:
        """Asked again about an orphan: it may have been ended without our hearing of it."""
        record = self.wards.get(answer.execution)
        if record is not None and answer.state in TERMINAL:
            self.released(record)

    def answered_ward(self, answer: Answer) -> None:
        """Told again that an orphan is watched here: it has ended, or somebody else watches it."""
        record = self.wards.get(answer.execution)
        if answer.outcome != "fenced":
            self._desk.untold.pop(answer.execution, None)
        if record is not None and answer.outcome == "refused":
            self.released(record)

    def sampled(self, replica: Replica, sample: ReplicaSample, now_s: float) -> None:
        """Stamp what was seen inside, report a new incarnation, and go on counting where something is unproved."""
        inside = tuple(name for name, seen_s in replica.unstamped.items() if seen_s <= sample.begun_s)
        if inside or sample.incarnation != replica.incarnation_told:
            known = replica.incarnation_number
            self._desk.command(PutIncarnation(replica.name, self._desk.owner, sample.incarnation, inside, known))
            replica.incarnation_asked, replica.stamps_asked = sample.incarnation, inside
        if replica.unproved and sample.running is not None and sample.waiting is not None:
            self._count(replica, sample, sample.running + sample.waiting, now_s)

    def _count(self, replica: Replica, sample: ReplicaSample, load: int, now_s: float) -> None:
        if replica.reader_sequence and sample.begun_s >= replica.reader_s:
            put = PutSample(replica.name, self._desk.owner, sample.incarnation, load, replica.reader_sequence)
            self._desk.command(put)
            replica.reader_sequence = 0
            self._next_beat_s = min(self._next_beat_s, now_s + SOON_S)
            self._desk.wake(self._next_beat_s)
        elif now_s - replica.reader_s >= COUNT_EVERY_S:
            replica.reader_s = now_s
            # Another gateway's sample, or an answer that was lost, may have ended some of them: asking again tells.
            for name in list(replica.unproved)[:RECHECKED_MAX]:
                self._desk.command(Cancel(name, self._desk.owner))
            self._desk.command(TakeReader(replica.name, self._desk.owner))

    def answered_reader(self, replica: Replica | None, answer: Answer, now_s: float) -> None:
        """The seat is ours: the next look at the engine that begins from now on may be put."""
        if replica is None:
            return
        if answer.outcome != "ok":
            replica.counted()  # by another
            return
        replica.reader_sequence, replica.reader_s = answer.sequence, now_s
        self._desk.observe(replica.name, now_s)

    def answered_incarnation(self, answer: Answer) -> None:
        replica = self.find_replica(answer.replica)
        if replica is None:
            return
        replica.incarnation_number = max(replica.incarnation_number, answer.incarnation)
        if answer.outcome == "refused":  # somebody else was first: tell again with what is known now
            replica.incarnation_told = ""
            return
        replica.incarnation_told = replica.incarnation_asked
        for name in replica.stamps_asked:
            replica.unstamped.pop(name, None)
        replica.stamps_asked = ()

    def answered_sample(self, answer: Answer) -> None:
        """A sample that was refused may be of an incarnation the ledger has not heard of."""
        replica = self.find_replica(answer.replica)
        if replica is not None and answer.outcome == "refused":
            replica.incarnation_told = ""
        elif replica is not None:
            replica.counted()

    def depart(self) -> None:
        """The last act: what is still charged becomes somebody else's to watch, at once."""
        if not self.departed:
            self.departed = True
            self._stand(self.lease_until_s)
            self._desk.command(Depart(self._desk.owner))
