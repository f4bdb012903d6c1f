"""Sessions at the gate: opening one is work like any other, its calls go before everybody (B14).

To open a session is to ask for its budget: in its flow's turn, as long as its class may wait, with a return slot if that was
in vain. Its calls were decided about with it: no limit on tokens, no turn and no queue concerns them any more, as the ledger
holds what they take. What stays is what nobody can hold for them: a place in the running batch, for which they are first in
line, what the engine's gauges say, and their tenant's rates and quota, which count what is really used.

What this gateway knows of a session is what the last heartbeat's answer told, less what it has asked for since. The ledger has
the last word: a session that is not known here may have been opened at another gateway a moment ago, so its call is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headworks.core import metering
from headworks.core.checks import DELAY, POOL_FULL, QUEUE_FULL, TENANT_FULL
from headworks.core.commands import Answer, CloseSession, Opening
from headworks.core.decide import NEVER
from headworks.core.effects import Closed, Opened
from headworks.core.events import CloseAsked
from headworks.core.lane import Lane
from headworks.core.life import Life
from headworks.core.policy import INFINITE_S
from headworks.core.session_use import EXHAUSTED, SessionUse, limit_tokens, tenant_of
from headworks.core.types import LIMIT, REASON, VALUE, Request, Row, SessionRecord, Work

if TYPE_CHECKING:
    from headworks.core.boot import Boot
    from headworks.core.changes import Changes
    from headworks.core.desk import Desk
    from headworks.core.disciplines import Discipline
    from headworks.core.identity import Identity
    from headworks.core.policy import Policy
    from headworks.core.pool import Pool
    from headworks.core.refusing import Refusing

WAITING_MAX = 256
"""Calls of sessions that may wait for one pool: each is looked at before anybody else is."""
CLOSE_S = 5.0
"""Without the ledger's answer by then, whoever closes a session is told to come back."""
NOT_ASKED = frozenset({QUEUE_FULL, DELAY})
"""Failed checks that do not concern a call of a session: it does not stand in the queue, nor behind it."""


class OpeningLane(Lane):
    """The lane of one session that is to be opened: its tenant's, in its class, with a budget in place of a request's work."""

    __slots__ = ("_sessions", "_tokens")

    def __init__(
        self, base: Lane, scope: str, tokens: int, opens: Opening, sessions: Iterable[SessionUse], policies: Policy
    ) -> None:
        super().__init__(base.tenant, base.service_class, base.pool, policies)
        self.session_scope = scope
        self.opens = opens
        self.gates = base.gates
        self.share, self.weights = base.share, base.weights
        self.metered = self.borrows = False
        self.reserve = None  # kept beside it: work that comes and goes stands on that, and on what is lent
        self._tokens = tokens
        self._sessions = sessions

    def tenant_fits(self, work: Work) -> bool:
        return all(row[VALUE] <= row[LIMIT] for row in self.own_rows(work))

    def why_not(self, work: Work) -> str:
        return next((row[REASON] for row in self.own_rows(work) if row[VALUE] > row[LIMIT]), POOL_FULL)

    def own_rows(self, work: Work) -> list[Row]:
        """What its tenant holds, and all sessions of the pool together, this one among them, against the limits of both."""
        rows: list[Row] = []
        tokens = self._tokens
        for check, scope, taken_tokens, most_tokens, reason in (
            ("tenant", self.tenant_scope, self.tenant.tokens, self.tenant_policy.active_tokens_max, TENANT_FULL),
            ("memory", f"sessions:{self.pool.name}", self.taken_tokens(), limit_tokens(self.pool), POOL_FULL),
        ):
            if most_tokens is not None and tokens > most_tokens:
                rows.append((check, scope, tokens, most_tokens, "tokens", NEVER))
            elif most_tokens is not None:
                rows.append((check, scope, taken_tokens + tokens, most_tokens, "tokens", reason))
        return rows

    def taken_tokens(self) -> int:
        """What the sessions of the pool have left, all together."""
        return sum(one.left_tokens for one in self._sessions if one.pool is self.pool)

    def charges(self, work: Work, replica_scope: str) -> tuple[tuple[str, str, int], ...]:
        scopes = (self.tenant_scope, self.pool_scope, f"sessions:{self.pool.name}")
        return tuple((scope, "tokens", self._tokens) for scope in scopes)


class InsideLane(Lane):
    """The lane of a session's calls in one class: no limit on tokens but the session's, no turns."""

    __slots__ = ("_use",)

    def __init__(self, base: Lane, use: SessionUse, policies: Policy) -> None:
        super().__init__(base.tenant, base.service_class, base.pool, policies)
        self.session = self._use = use
        self.session_scope = use.scope
        self.observes, self.observed_scope = False, ""
        self.flow = (base.flow[0], use.scope)
        self.turn, self.weights = base.turn, base.weights
        self.share = self.use = self.gates = None
        self.is_paced = self.borrows = False
        self.tenant_tokens_max = self.tenant_requests_max = None
        own = base.pool.reserves.of(base.tenant.policy.name) if base.pool.reserves is not None else None
        self.reserve = own if own is not None and own.stated[1] else None
        """Of its places alone: its tokens are its session's, and nobody can take them back."""

    def tenant_fits(self, work: Work) -> bool:
        return not self._use.is_known or work.kv_tokens <= self._use.held_tokens

    def why_not(self, work: Work) -> str:
        return EXHAUSTED

    def own_rows(self, work: Work) -> list[Row]:
        """What of its session runs, this one among it, against what is left of that; and how many such calls would wait."""
        use, waiting = self._use, len(self.pool.queue.inside) + 1
        rows: list[Row] = [("fairness", self.pool_scope, waiting, WAITING_MAX, "queued calls of sessions", QUEUE_FULL)]
        if use.is_known:
            taken_tokens = use.left_tokens - use.held_tokens + work.kv_tokens
            rows.append(("tenant", use.scope, taken_tokens, use.left_tokens, "tokens", EXHAUSTED))
        return rows

    def charges(self, work: Work, replica_scope: str) -> tuple[tuple[str, str, int], ...]:
        """Of its tenant's tokens as many as its session gives: with less, rounding would be lent to others and come back."""
        parts = (self.session_scope, f"sessions:{self.pool.name}", self.tenant_scope)
        _, *plain = super().charges(work, replica_scope)
        if self.reserve is not None:
            plain = [charge for charge in plain if charge[:2] != (self.reserve.scope, "tokens")]
        return (*((scope, "tokens", work.kv_tokens) for scope in parts), *plain)


class Sessions:
    """Opening, calls and closing, at the gate's desk."""

    def __init__(
        self,
        desk: Desk,
        changes: Changes,
        refusing: Refusing,
        identity: Identity,
        boot: Boot,
        reserve: Callable[[Life, float], None],
        wait: Callable[[Life, Discipline, float], None],
        pump: Callable[[Pool, float], None],
    ) -> None:
        self._desk = desk
        self._changes = changes
        self._refusing = refusing
        self._identity = identity
        self._boot = boot
        self._reserve = reserve
        self._wait = wait
        self._pump = pump
        self._closing: dict[str, tuple[list[str], float, float]] = {}
        """Session → who closes it here, since when, and when the ledger is asked again. Bounded by the open connections."""

    # arriving

    def arrived(self, request: Request, now_s: float) -> bool:
        """One that opens a session, or is a call of one. False: observing, nothing is held for anybody's calls."""
        desk = self._desk
        observes = desk.lane(request.key.tenant, request.service_class, request.pool).observes
        if observes and request.opens is None:
            return False
        discipline = desk.disciplines[request.pool]
        desk.arrivals += 1
        life, free = self.look(request, desk.arrivals, now_s)
        desk.lives[request.id] = life
        if request.key_given:
            self._identity.take_up(life)
        closed = self._changes.closed_to(life.lane, now_s)
        refusal = closed or self.refusal(life, now_s)
        if refusal and not (observes and not closed):
            self._refusing.turn_away(life, refusal, now_s)
            return True
        if life.lane.metered:
            metering.let_in(life, now_s)
        if observes:
            life.replica = life.lane.pool.least_used(now_s)
        if (free or observes) and now_s < self._boot.open_until_s:
            self._reserve(life, now_s)
        else:
            self._wait(life, discipline, now_s)
        return True

    def look(self, request: Request, number: int, now_s: float, counts: bool = True) -> tuple[Life, bool]:
        """A new life with its verdicts; and whether it may be asked for at once. Nothing is taken by it yet."""
        desk = self._desk
        lane, discipline = self.lane(request, now_s), desk.disciplines[request.pool]
        if request.opens is not None:
            work = budget(request.opens.tokens)
            life, free = desk.decider.look(request, number, lane, discipline, now_s, counts, work)
            life.rows += lane.own_rows(work)
            return life, free and lane.tenant_fits(work)
        use = lane.session
        assert use is not None
        use.lift()
        life, free = desk.decider.look(request, number, lane, discipline, now_s, counts)
        use.settle()
        life.rows = [row for row in life.rows if row[REASON] not in NOT_ASKED]
        life.rows += lane.own_rows(life.work)
        return life, free and lane.tenant_fits(life.work)

    def refusal(self, life: Life, now_s: float, counts: bool = True) -> str:
        """The code with which it is refused at once, or "" when it may run or wait. `counts`: it has come."""
        use, discipline = life.lane.session, self._desk.disciplines[life.request.pool]
        if use is not None and use.is_known and life.work.kv_tokens > use.left_tokens:
            return EXHAUSTED
        if any(row[REASON] == NEVER and row[VALUE] > row[LIMIT] for row in life.rows):
            return NEVER
        return self._desk.decider.refusal(life, discipline, now_s, counts)

    def lane(self, request: Request, now_s: float) -> Lane:
        """Where it stands: one lane for an opening, one for all calls of a session in a class."""
        desk = self._desk
        base = desk.lane(request.key.tenant, request.service_class, request.pool)
        scope = request.session or ""
        if request.opens is not None:
            base.weigh(now_s)
            opens = Opening(round(1000 * request.opens.lasts_s), round(1000 * base.pool.policy.session_idle_s))
            return OpeningLane(base, scope, request.opens.tokens, opens, desk.sessions.values(), desk.policy)
        use = desk.sessions.get(scope)
        if use is None or use.pool is not base.pool:
            return InsideLane(base, SessionUse(scope, base.pool, base.tenant), desk.policy)
        lane = use.lanes.get(request.service_class)
        if lane is None or lane.policy_version != desk.policy.version or lane.tenant_policy is not base.tenant_policy:
            lane = use.lanes[request.service_class] = InsideLane(base, use, desk.policy)
        return lane

    # opened, told

    def opened(self, life: Life, answer: Answer, now_s: float) -> None:
        """The ledger holds its budget: whoever asked is told its name. Or it is over, and nobody was told in time."""
        desk = self._desk
        self._refusing.drop_run(life)
        if answer.outcome == "dead":
            self._refusing.turn_away(life, "ledger_unavailable", now_s)
            return
        desk.move(life, "opened")
        desk.set_timer(life, INFINITE_S)
        life.admitted_s = now_s
        life.decision = desk.decider.decision(life, "admit", "", now_s)
        desk.record(life.decision)
        self._refusing.served(life, now_s, "completed")
        (told,) = answer.sessions
        self._know(told, now_s)
        for arrival in life.subscribers:
            desk.lives.pop(arrival, None)
            desk.effect(Opened(arrival, life.decision, told))
        life.subscribers = []
        life.lane.pool.ask_at_once()
        self._pump(life.lane.pool, now_s)

    def answered(self, answer: Answer, now_s: float) -> None:
        """An answer about this gateway's standing, or about a session that is closed."""
        if answer.verb == "heartbeat":
            self.told(answer.sessions, now_s)
        elif answer.verb == "close_session":
            self.closed(answer, now_s)

    def told(self, sessions: tuple[SessionRecord, ...], now_s: float) -> None:
        """All that are open, by a heartbeat's answer."""
        known = self._desk.sessions
        if not sessions and not known:
            return
        listed = {told.scope for told in sessions}
        for scope in [scope for scope in known if scope not in listed]:
            known.pop(scope).end()
        for told in sessions:
            self._know(told, now_s)

    def _know(self, told: SessionRecord, now_s: float) -> None:
        desk = self._desk
        use, pool = desk.sessions.get(told.scope), desk.pools.get(told.pool)
        if pool is None:
            return
        if use is None:
            use = desk.sessions[told.scope] = SessionUse(told.scope, pool, desk.tenants.get(tenant_of(told)))
        use.hear(told, now_s)

    # closing

    def close(self, event: CloseAsked, now_s: float) -> None:
        """Somebody closes one, here or opened elsewhere. It is asked until the ledger answers."""
        asking, since_s, _ = self._closing.get(event.session, ([], now_s, 0.0))
        asking.append(event.id)
        self._ask(event.session, asking, since_s, now_s)

    def _ask(self, session: str, asking: list[str], since_s: float, now_s: float) -> None:
        late_s = now_s + self._desk.policy.ask_late_s
        self._closing[session] = (asking, since_s, late_s)
        self._desk.command(CloseSession(session))
        self._desk.wake(late_s)

    def closed(self, answer: Answer, now_s: float) -> None:
        """The ledger's answer."""
        asking, _, _ = self._closing.pop(answer.asked, ([], 0.0, 0.0))
        told = answer.sessions[0] if answer.sessions else None
        for name in asking:
            self._desk.effect(Closed(name, told))
        use = self._desk.sessions.pop(answer.asked, None)
        if use is not None:
            use.end()
            use.pool.ask_at_once()
            self._pump(use.pool, now_s)

    def tick(self, now_s: float) -> None:
        """Ask again what has not been answered; whoever has waited for too long is told so."""
        for session, (asking, since_s, late_s) in list(self._closing.items()):
            if now_s >= since_s + CLOSE_S:
                del self._closing[session]
                for name in asking:
                    self._desk.effect(Closed(name, None, "ledger_unavailable"))
            elif now_s >= late_s:
                self._ask(session, asking, since_s, now_s)
            else:
                self._desk.wake(late_s)


def budget(tokens: int) -> Work:
    """What opening a session asks for: room for its tokens and a turn. It is no work for whoever waits behind it."""
    return Work(0, 0, 1, 0.0, tokens, 0, "exact", 0)
