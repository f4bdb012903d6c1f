"""The gate's desk: every life in hand, what is asked and not answered, what is due, and the effects of this turn.

`Gate`, `Course` and `Boot` work at the same desk. It knows no rules of admission; it keeps things from being lost.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from heapq import heappop, heappush

from headworks.core.commands import Command
from headworks.core.decide import Decider, TenantUse
from headworks.core.disciplines import Discipline
from headworks.core.effects import Alarm, Ask, Effect, Observe, Outcome, Record, WakeAt
from headworks.core.life import ENDED, LEAVING, SETTLING, Life
from headworks.core.policy import INFINITE_S, Policy, TenantPolicy
from headworks.core.pool import Pool, Replica
from headworks.core.types import Decision, Owner

ALARMS_MAX_A_TURN = 16


class Desk:
    """State shared by the parts of the gate. Whoever changes a life does it through `move`."""

    def __init__(self, policy: Policy, owner: Owner, seed: bytes) -> None:
        self.policy = policy
        self.owner = owner
        self.decider = Decider(policy, owner.gateway)
        self.pools = {name: Pool(pool) for name, pool in policy.pools.items()}
        self.disciplines = {name: Discipline(pool.discipline) for name, pool in policy.pools.items()}
        self.tenants = {name: TenantUse(tenant) for name, tenant in policy.tenants.items()}
        self.lives: dict[str, Life] = {}
        """Arrival id → life, while somebody waits for it."""
        self.runs: dict[str, Life] = {}
        """Execution id → life, from the first ask until it is settled."""
        self.arrivals = 0
        self._seed = seed
        self._minted = 0
        self._effects: list[Effect] = []
        self._commands: list[Command] = []
        self._timers: list[tuple[float, int, Life]] = []
        self._timer_count = 0
        self._asks: deque[tuple[float, Life, Command]] = deque()
        self._woken_at_s = INFINITE_S
        self._alarms = 0

    def change_policy(self, policy: Policy) -> None:
        """The new policy for everything from here on. What runs keeps its charges; measurements are kept."""
        self.policy = policy
        self.decider.policy = policy
        for name, pool_policy in policy.pools.items():
            pool = self.pools.get(name)
            if pool is None:
                self.pools[name] = Pool(pool_policy)
            else:
                pool.change_policy(pool_policy)
            self.disciplines[name] = Discipline(pool_policy.discipline)
        for name, tenant_policy in policy.tenants.items():
            use = self.tenants.get(name)
            if use is None:
                self.tenants[name] = TenantUse(tenant_policy)
            else:
                use.policy = tenant_policy

    # effects and commands of this turn

    def effect(self, effect: Effect) -> None:
        self._effects.append(effect)

    def command(self, command: Command) -> None:
        """Ask once, without waiting for the answer: losing it must cost nothing but time."""
        self._commands.append(command)

    def ask(self, life: Life, command: Command, now_s: float) -> None:
        """Ask, and ask the same again until it is answered."""
        life.ask = command
        self._commands.append(command)
        self._asks.append((now_s + self.policy.ask_late_s, life, command))

    def alarm(self, name: str, subject: str, detail: str) -> None:
        """Report something that should not be. Bounded a turn: one broken thing must not flood the log."""
        self._alarms += 1
        if self._alarms <= ALARMS_MAX_A_TURN:
            self._effects.append(Alarm(name, subject, detail))

    def observe(self, replica: str, at_s: float) -> None:
        self._effects.append(Observe(replica, at_s))

    def record(self, record: Decision | Outcome) -> None:
        self._effects.append(Record(record))

    def leave(self, next_s: float) -> list[Effect]:
        """End the turn: one ask for all commands, one wake-up for whatever is due first."""
        if self._commands:
            self._effects.append(Ask(self._commands))
            self._commands = []
        due_s = min(next_s, self._next_s())
        if due_s < self._woken_at_s:
            self._woken_at_s = due_s
            self._effects.append(WakeAt(due_s))
        effects, self._effects = self._effects, []
        self._alarms = 0
        return effects

    # lives

    def move(self, life: Life, what: str) -> bool:
        """Apply one row of the life table; a move it does not have is reported and changes nothing."""
        if life.move(what):
            return True
        self.alarm("life_move_refused", life.execution.id or life.request.id, f"{what} while {life.state}")
        return False

    def mint(self) -> str:
        """128 bits nobody can guess who does not know the seed; the same seed gives the same ids again."""
        self._minted += 1
        return blake2b(self._minted.to_bytes(8, "big"), key=self._seed, digest_size=16).hexdigest()

    def pool_of(self, life: Life) -> Pool:
        return self.pools[life.request.pool]

    def replica_of(self, life: Life) -> Replica | None:
        return self.pools[life.request.pool].replicas.get(life.execution.replica)

    def tenant_of(self, life: Life) -> TenantUse:
        name = life.request.key.tenant
        use = self.tenants.get(name)
        if use is None:  # deleted by a reload while its work still runs
            use = self.tenants[name] = TenantUse(TenantPolicy(name))
        return use

    def take(self, life: Life, replica: Replica) -> None:
        self.pool_of(life).take(replica, life.work)
        tenant = self.tenant_of(life)
        tenant.tokens += life.work.tokens
        tenant.requests += life.work.sequences

    def give_back(self, life: Life) -> None:
        replica = self.replica_of(life)
        if replica is not None:
            self.pool_of(life).give_back(replica, life.work)
        tenant = self.tenant_of(life)
        tenant.tokens -= life.work.tokens
        tenant.requests -= life.work.sequences

    # time

    def set_timer(self, life: Life, at_s: float) -> None:
        """One timer a life; setting it again replaces it. Passed times fire at the next tick."""
        life.timer_s = at_s
        if at_s != INFINITE_S:
            self._timer_count += 1
            heappush(self._timers, (at_s, self._timer_count, life))

    def due(self, now_s: float) -> list[Life]:
        """Lives whose timer has passed, each once, in order of time."""
        found = []
        while self._timers and self._timers[0][0] <= now_s:
            at_s, _, life = heappop(self._timers)
            if life.timer_s == at_s and life.state != ENDED:
                life.timer_s = INFINITE_S
                found.append(life)
        return found

    def ask_late(self, now_s: float) -> None:
        """Ask again whatever has had no answer for `ask_late_s`: the same command, with the same identity."""
        while self._asks and self._asks[0][0] <= now_s:
            _, life, command = self._asks.popleft()
            if life.ask is command:
                self.ask(life, command, now_s)

    def woken(self) -> None:
        self._woken_at_s = INFINITE_S

    def _next_s(self) -> float:
        while self._timers and (self._timers[0][0] != self._timers[0][2].timer_s or self._timers[0][2].state == ENDED):
            heappop(self._timers)
        while self._asks and self._asks[0][1].ask is not self._asks[0][2]:
            self._asks.popleft()
        timer_s = self._timers[0][0] if self._timers else INFINITE_S
        ask_s = self._asks[0][0] if self._asks else INFINITE_S
        return min(timer_s, ask_s)

    def unsettled(self) -> int:
        """Executions that have been wanted to stop and are not proved stopped."""
        return sum(1 for life in self.runs.values() if life.state in (LEAVING, SETTLING))
