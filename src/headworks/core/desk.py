"""The gate's desk: every life in hand, what is asked and not answered, what is due, and the effects of this turn.

`Gate`, `Course` and `Boot` work at the same desk. It knows no rules of admission; it keeps things from being lost.

Wake-ups are cheap because they are only ever too early: whoever sets a time lowers the next wake-up, nobody raises it, and the
tick that comes finds out what is really due. What waits for a time is written down by its name: a life that has ended is gone,
whatever times it had stated, and its memory serves the next.
"""

from __future__ import annotations

from collections import deque
from hashlib import shake_256
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile

from headworks.core.commands import Command, Grow, Start, Stop
from headworks.core.decide import Decider
from headworks.core.disciplines import Discipline
from headworks.core.effects import Alarm, Ask, Effect, Observe, Outcome, Record, WakeAt
from headworks.core.fallback import Cascades
from headworks.core.lane import Lane
from headworks.core.life import ASKED, ENDED, MOVES_FROM, RUNNING, Life
from headworks.core.policy import INFINITE_S, Policy, TenantPolicy
from headworks.core.pool import Pool
from headworks.core.preempt import Preemption
from headworks.core.reading import Charges
from headworks.core.replica import Replica
from headworks.core.reserves import reserves_of
from headworks.core.session_use import SessionUse
from headworks.core.tenant import Left, TenantUse
from headworks.core.types import Decision, Owner, Request

ALARMS_MAX_A_TURN = 16
ID_BYTES = 16
IDS_A_BLOCK = 64
TIMERS_SPARE = 1024
"""So many times of lives that have ended stand among the timers at most, and as many as there are of others."""


class Desk:
    """State shared by the parts of the gate. Whoever changes a life does it through `move`."""

    def __init__(self, policy: Policy, owner: Owner, seed: bytes, utc_offset_s: float = 0.0) -> None:
        self.policy = policy
        self.owner = owner
        self.decider = Decider(policy, owner.gateway)
        self.runs: dict[str, Life] = {}
        """Execution id → life, from the first ask until it is settled."""
        self.pools = {name: Pool(pool, policy.first_token_s, self.runs, utc_offset_s) for name, pool in policy.pools.items()}
        self._keep_contracts()
        self.cascades = Cascades(policy)
        self.disciplines = {name: Discipline(pool.discipline) for name, pool in policy.pools.items()}
        self._utc_offset_s = utc_offset_s
        self.tenants = {name: TenantUse(one, policy.prices, utc_offset_s) for name, one in policy.tenants.items()}
        self.lives: dict[str, Life] = {}
        """Arrival id → life, while somebody waits for it."""
        self.claims: dict[str, Life] = {}
        """Execution id → life, from the claim of a key for it until it has ended or the key was given back."""
        self.sessions: dict[str, SessionUse] = {}
        """Sessions that are open, as far as this gateway has heard, by scope; bounded by the ledger."""
        self.untold_sessions: dict[str, SessionUse] = {}
        self.untold: dict[str, float] = {}
        """Executions that the ledger has to be told again, and when it was told last (`core/recovery.py`)."""
        self.recovers = False
        """Not everybody's work stands in the ledger: nothing may be charged on top, not even for what runs."""
        self.ended: deque[Stop] | None = None
        """What ended here lately, where the ledger is shared: an older copy of it may not know."""
        self.arrivals = 0
        self._lanes: dict[tuple[str, str, str], Lane] = {}
        self._cached_ratios: dict[tuple[str, str, str], float] = {}
        """What lanes before the last reload had found; bounded by the lanes of known tenants."""
        self._seed = seed
        self._ids: list[str] = []
        self._effects: list[Effect] = []
        self._commands: list[Command] = []
        self._riders: dict[str, Command] = {}
        self.limits_open = False
        """The ledger has to be told the limits, or what was used of quotas, and has not answered that."""
        self._timers: list[tuple[float, int]] = []
        self._timed: dict[int, Life] = {}
        """By their numbers among the timers."""
        self._timer_count = 0
        self._timers_max = TIMERS_SPARE
        self.asks: dict[str, Life] = {}
        """Execution → life, whose ask has not been answered, or not for long: those asked first stand first."""
        self.unread: dict[str, Life] = {}
        """Executions whose answers are not read now, or were not a moment ago (`core/vouching.py`)."""
        self._growths: dict[str, Life] = {}
        """The same of asks for more."""
        self._woken_at_s = self._wake_s = INFINITE_S
        self._alarms = self._blocks = 0

    def change_policy(self, policy: Policy, now_s: float) -> None:
        """The new policy for everything from here on. What runs keeps its charges; measurements are kept."""
        self.policy = policy
        self.decider.policy = policy
        found = self._cached_ratios | {key: lane.cached_ratio for key, lane in self._lanes.items() if lane.cached_ratio}
        self._cached_ratios = {key: ratio for key, ratio in found.items() if key[0] in policy.tenants}
        self._lanes.clear()
        self.cascades.change_policy(policy)
        for name, pool_policy in policy.pools.items():
            pool = self.pools.get(name)
            if pool is None:
                self.pools[name] = Pool(pool_policy, policy.first_token_s, self.runs, self._utc_offset_s)
            else:
                pool.change_policy(pool_policy, policy.first_token_s)
            self.disciplines[name] = Discipline(pool_policy.discipline)
        self._keep_contracts()
        for name, tenant_policy in policy.tenants.items():
            use = self.tenants.get(name)
            if use is None:
                self.tenants[name] = TenantUse(tenant_policy, policy.prices, self._utc_offset_s)
            else:
                use.change(tenant_policy, policy.prices, now_s)

    def _keep_contracts(self) -> None:
        """What is some tenants' own, and what may be stopped for others: nothing while all of it is only observed."""
        preemptible = any(one.preemptible for one in self.policy.classes.values()) and not self.policy.observe
        for name, pool in self.pools.items():
            pool.preemption = (pool.preemption or Preemption()) if preemptible and pool.spill is None else None
            pool.reserves = reserves_of(pool.reserves, pool.policy, self.policy.tenants.values())
            if pool.reserves is not None and name in self.policy.pools:
                pool.learn_capacity()

    def lane(self, tenant: str, service_class: str, pool: str) -> Lane:
        """The lane of a request under today's policy."""
        lane = self._lanes.get((tenant, service_class, pool))
        if lane is None:
            use = self.tenants.get(tenant)
            if use is None:  # deleted by a reload between a request's parsing and its arrival
                use = self.tenants[tenant] = TenantUse(TenantPolicy(tenant), self.policy.prices, self._utc_offset_s)
            lane = Lane(use, self.policy.class_of(service_class), self.pools[pool], self.policy)
            lane.cached_ratio = self._cached_ratios.get((tenant, service_class, pool), 0.0)
            lane.cascade = None if lane.observes else self.cascades.of(pool, service_class)
            self._lanes[tenant, service_class, pool] = lane
        return lane

    def left(self, tenant: str, client: str, now_s: float) -> tuple[Left | None, Left | None]:
        """Requests and tokens this client may still use; None where nothing limits them."""
        use = self.tenants.get(tenant)
        return use.left(client, now_s) if use is not None else (None, None)

    def unsure(self, request: Request) -> bool:
        """Whether its bytes leave open if it fits: a limit lies between the least and the most that they may come to."""
        lane = self.lane(request.key.tenant, request.service_class, request.pool)
        return self.decider.estimator.unsure(request, lane.pool, lane.tenant_policy)

    def utc_ms(self, at_s: float | None) -> int:
        """That moment by the wall clock, as records carry it; 0 for never."""
        return 0 if at_s is None else round((at_s + self._utc_offset_s) * 1000)

    # effects and commands of this turn

    def effect(self, effect: Effect) -> None:
        self._effects.append(effect)

    def command(self, command: Command) -> None:
        """Ask once, without waiting for the answer: losing it must cost nothing but time."""
        self._commands.append(command)

    def tell(self, commands: list[Command]) -> None:
        """The same for several, which are taken over."""
        self._commands += commands
        commands.clear()

    def ask(self, life: Life, command: Command, now_s: float) -> None:
        """Ask, and ask the same again until it is answered."""
        name = life.execution.id or life.claim
        if name in self.asks:  # what is asked last stands last
            del self.asks[name]
        life.ask = command
        self._commands.append(command)
        life.ask_late_s = late_s = now_s + self.policy.ask_late_s
        self.asks[name] = life
        if late_s < self._wake_s:
            self._wake_s = late_s

    def ask_growth(self, life: Life, command: Grow, now_s: float) -> None:
        """The same beside whatever else is asked about it: a start that rides along must not be forgotten for this."""
        life.growing = command
        if not self.recovers:
            self._commands.append(command)
        life.growing_late_s = late_s = now_s + self.policy.ask_late_s
        self._growths.pop(command.execution, None)
        self._growths[command.execution] = life
        self.wake(late_s)

    def ask_with_next(self, life: Life, command: Start, now_s: float) -> None:
        """Ask together with whatever is asked next: nobody waits for this answer. By itself it goes when it is late."""
        life.ask = command
        self._riders[command.execution] = command
        life.ask_late_s = late_s = now_s + self.policy.ask_late_s
        self.asks.pop(command.execution, None)
        self.asks[command.execution] = life
        if late_s < self._wake_s:
            self._wake_s = late_s

    def heard(self, life: Life) -> None:
        """What was asked has been answered."""
        life.ask = None
        self.asks.pop(life.execution.id or life.claim, None)

    def drop_rider(self, life: Life) -> None:
        """What rode along and has not left yet need not be asked any more."""
        if self._riders:
            self._riders.pop(life.execution.id, None)

    def alarm(self, name: str, subject: str, detail: str) -> None:
        """Report something that should not be. Bounded a turn: one broken thing must not flood the log."""
        self._alarms += 1
        if self._alarms <= ALARMS_MAX_A_TURN:
            self._effects.append(Alarm(name, subject, detail))

    def observe(self, replica: str, at_s: float) -> None:
        self._effects.append(Observe(replica, at_s))

    def record(self, record: Decision | Outcome) -> None:
        self._effects.append(Record(record))

    def leave(self) -> list[Effect]:
        """End the turn: one ask for all commands, one wake-up for whatever is due first."""
        effects = self._effects
        if self._commands:
            commands = self._commands
            if self._riders:
                commands = [*self._riders.values(), *commands]
                self._riders = {}
            effects.append(Ask(commands))
            self._commands = []
        if self._wake_s < self._woken_at_s:
            self._woken_at_s = self._wake_s
            effects.append(WakeAt(self._wake_s))
        self._effects = []
        self._alarms = 0
        return effects

    # lives

    def move(self, life: Life, what: str) -> bool:
        """Apply one row of the life table; a move it does not have is reported and changes nothing."""
        state = MOVES_FROM[life.state].get(what)
        if state is not None:
            life.state = state
            if state is ENDED and life.timer_number:
                self._timed.pop(life.timer_number, None)
            return True
        self.alarm("life_move_refused", life.execution.id or life.request.id, f"{what} while {life.state}")
        return False

    def mint(self) -> str:
        """128 bits nobody can guess who does not know the seed; the same seed gives the same ids again."""
        if not self._ids:
            self._blocks += 1
            block = shake_256(self._seed + self._blocks.to_bytes(8, "big")).hexdigest(ID_BYTES * IDS_A_BLOCK)
            self._ids = [block[start : start + 2 * ID_BYTES] for start in range(0, len(block), 2 * ID_BYTES)]
        return self._ids.pop()

    def take(self, life: Life) -> None:
        """Count its work as taken here, from the moment it is asked for."""
        self._count(life, 1)
        work, lane = life.work, life.lane
        if lane.is_paced and life.first_byte_s is None:
            life.reading_tokens = work.prefill_tokens
            lane.pool.reading_tokens += work.prefill_tokens

    def _count(self, life: Life, one: int) -> None:
        work, pool, replica, use, tenant = life.work, life.lane.pool, life.replica, life.lane.use, life.lane.tenant
        kv_tokens, sequences = one * work.kv_tokens, one * work.sequences
        if replica is None or not replica.leaves:
            pool.tokens += kv_tokens
            pool.requests += sequences
        if replica is not None:
            replica.tokens += kv_tokens
            replica.requests += sequences
            if replica.floors is not None:
                replica.floors.take(life.request.model, kv_tokens)
            if replica.memory.running.is_kept:
                replica.memory.running.changed(life)
        if use is not None:
            use.tokens += kv_tokens
            use.requests += sequences
        reserves = life.lane.reserves
        if reserves is not None and (life.lane.borrows or life.lane.reserve is not None):
            reserves.count(life.lane.reserve, kv_tokens if life.lane.session is None else 0, sequences)
        tenant.tokens += one * (work.tokens - life.spare_tokens)
        tenant.requests += sequences
        session = life.lane.session
        if session is not None:
            session.count(kv_tokens)

    def begin_reading(self, life: Life, replica: Replica) -> Charges:
        """Its prompt is one of those that are counted while they are read (B7). Returns what is charged for that."""
        life.reads = replica.reading.charges(replica.reading.size(life.work, life.lane), replica.scope)
        replica.reading.begin(life.reads)
        return life.reads

    def end_reading(self, life: Life) -> None:
        """Its first token has come, or the ledger charges nothing for it any more."""
        if life.replica is not None:
            life.replica.reading.end(life.reads)
        life.reads = ()

    def has_read(self, life: Life) -> None:
        """Its prompt has been read, or never will be."""
        life.lane.pool.reading_tokens -= life.reading_tokens
        life.reading_tokens = 0

    def let_go(self, life: Life) -> None:
        """The ledger charges nothing for this attempt any more."""
        self.give_back(life)
        replica = life.replica
        if replica is not None and not replica.breaker.is_closed:
            replica.breaker.silent(life.execution.id)
        if life.quota is not None:
            life.quota.close()
            life.quota = None

    def give_back(self, life: Life) -> None:
        """Count its work as no longer taken: it ended, or is taken again as more (`core/growth.py`)."""
        self._count(life, -1)
        if life.reading_tokens:
            self.has_read(life)
        if life.reads:
            self.end_reading(life)

    # time

    def wake(self, at_s: float) -> None:
        """Have a tick at this time at the latest."""
        if at_s < self._wake_s:
            self._wake_s = at_s

    def set_timer(self, life: Life, at_s: float) -> None:
        """One timer a life; setting it again replaces it. A later time costs nothing until the earlier one comes."""
        life.timer_s = at_s
        if at_s < life.timed_s:
            life.timed_s = at_s
            number = life.timer_number
            if not number:
                number = life.timer_number = self._timer_count = self._timer_count + 1
                self._timed[number] = life
            heappush(self._timers, (at_s, number))
            if at_s < self._wake_s:
                self._wake_s = at_s
            if len(self._timers) > self._timers_max:
                self._thin_timers()

    def _thin_timers(self) -> None:
        """Most lives end long before the times they had stated."""
        self._timers = [entry for entry in self._timers if entry[1] in self._timed]
        heapify(self._timers)
        self._timers_max = 2 * len(self._timers) + TIMERS_SPARE

    def woken(self) -> None:
        """The tick has come: everything that waits for a time states it anew."""
        self._woken_at_s = self._wake_s = INFINITE_S

    def due(self, now_s: float) -> list[Life]:
        """Lives whose timer has passed, each once, in order of time."""
        found = []
        while self._timers and self._timers[0][0] <= now_s:
            life = self._timed.get(heappop(self._timers)[1])
            if life is None:
                continue
            life.timed_s = INFINITE_S
            if life.timer_s <= now_s:
                life.timer_s = INFINITE_S
                found.append(life)
            else:
                self.set_timer(life, life.timer_s)
        if self._timers:
            self.wake(self._timers[0][0])
        return found

    def ask_late(self, now_s: float) -> list[Life]:
        """Ask again whatever has had no answer for `ask_late_s`: the same command, with the same identity.

        Returns those that have been asking for capacity for longer than they could wait.
        """
        expired = []
        for execution, life in list(takewhile(lambda entry: entry[1].growing_late_s <= now_s, self._growths.items())):
            del self._growths[execution]
            if life.growing is not None and life.state == RUNNING:
                self.ask_growth(life, life.growing, now_s)
        for execution, life in list(takewhile(lambda entry: entry[1].ask_late_s <= now_s, self.asks.items())):
            del self.asks[execution]
            command = life.ask
            if command is None:
                continue
            if life.state == ASKED and now_s > life.start_by_s:
                expired.append(life)
            else:
                self.drop_rider(life)
                self.ask(life, command, now_s)
        for life in islice(self._growths.values(), 1):
            self.wake(life.growing_late_s)
        for life in islice(self.asks.values(), 1):
            self.wake(life.ask_late_s)
        return expired
