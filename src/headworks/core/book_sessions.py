"""Sessions in the ledger: a budget held for a series of calls, until it is closed, idle, over or used up (B14).

What is held is one number, `unspent`, charged to each of the session's scopes (tenant, pool, all sessions of the pool). It
follows from three others at every moment,

    unspent = max(0, tokens − spent − live)        and 0 once the session has ended,

where `live` is what its calls hold: the counter of the session's own scope. A call that begins takes its tokens over from the
session and is charged to those scopes itself, in one step, so nothing is charged twice and nothing for a moment not at all; one
that ends gives back what it did not use. So each token leaves the charge once: as spent, or as unspent when the session ends.

Clocks end sessions. That is no guess about capacity: what is unspent runs nowhere, and what runs stays charged by its record.
A session belongs to no gateway, so it outlives the one that opened it.
"""

from __future__ import annotations

from collections.abc import Sequence

from headworks.core.book_counters import Charges, Counter
from headworks.core.book_parts import Entry
from headworks.core.book_records import NEVER_MS, TOMBSTONE_LEASES, Records
from headworks.core.commands import Answer, CloseSession, Reserve, Shortfall, TellSession
from headworks.core.types import SessionRecord, Usage

SESSIONS_MAX = 1024
"""Open ones in a ledger, and such that have ended and are remembered: every heartbeat lists what is open. One tenant may have
half of what the others leave, so there is room for the next one."""
TOKENS = "tokens"
CALLS = "session:"
"""How the scope of one session begins."""


class OpenSession:
    """One session, and for a while after its end what came of it."""

    __slots__ = (
        "ended",
        "flow",
        "forget_ms",
        "idle_ms",
        "idle_until_ms",
        "pool",
        "returned_tokens",
        "scope",
        "scopes",
        "spent_tokens",
        "tokens",
        "unspent_tokens",
        "until_ms",
        "weights",
    )

    def __init__(
        self, scope: str, pool: str, flow: tuple[str, str], weights: tuple[float, float], scopes: tuple[str, ...]
    ) -> None:
        self.scope = scope
        self.pool = pool
        self.flow = flow
        self.weights = weights
        self.scopes = scopes
        self.tokens = 0
        self.spent_tokens = 0
        self.unspent_tokens = 0
        self.returned_tokens = 0
        self.idle_ms = 0
        self.idle_until_ms = 0
        self.until_ms = 0
        self.forget_ms = 0
        self.ended = ""

    def told(self, live_tokens: int, now_ms: int) -> SessionRecord:
        """As others see it."""
        return SessionRecord(
            self.scope,
            self.pool,
            self.flow,
            self.weights,
            self.scopes,
            self.tokens,
            self.spent_tokens,
            live_tokens,
            self.unspent_tokens,
            self.returned_tokens,
            self.ended,
            self.idle_ms,
            max(0, self.idle_until_ms - now_ms),
            max(0, self.until_ms - now_ms),
        )


class Sessions(Records):
    """The sessions of a ledger."""

    def __init__(self, lease_ms: int, remember_ms: int, records_max: int) -> None:
        super().__init__(lease_ms, remember_ms, records_max)
        self._sessions: dict[str, OpenSession] = {}
        """By scope, in the order in which they were opened."""
        self._sweep_due_ms = NEVER_MS
        """When the next lease lapses, the next dead boot is forgotten, or a session may be over."""

    # opening

    def _cannot_open(self, command: Reserve) -> tuple[str, tuple[Shortfall, ...], tuple[SessionRecord, ...]] | None:
        """Why this session is not to be opened now: outcome, what is lacking, and itself if it is there already."""
        session = self._sessions.get(command.session)
        if session is not None:
            return ("dead" if session.ended else "opened"), (), (self._told_session(session),)
        tenant = command.flow[1]
        own = sum(session.flow[1] == tenant for session in self._sessions.values())
        room = (SESSIONS_MAX - (len(self._sessions) - own) + 1) // 2
        if own >= room:
            return "refused", (Shortfall(f"sessions:{command.pool}", "sessions", own + 1, room),), ()
        return None

    def _open_session(self, command: Reserve) -> SessionRecord:
        """Its budget has just been charged."""
        assert command.opens is not None
        scopes = tuple(scope for scope, _, _ in command.charges)
        session = OpenSession(command.session, command.pool, command.flow, command.weights, scopes)
        session.tokens = session.unspent_tokens = command.charges[0][2]
        session.idle_ms = command.opens.idle_ms
        session.until_ms = self.now_ms + command.opens.lasts_ms
        self._sessions[session.scope] = session
        self._used_session(session)
        self._hold_unspent(session)  # a name that is used again may have calls that run
        return self._told_session(session)

    def _tell_session(self, command: TellSession) -> Answer:
        """The ledger forgot it, or has an older copy: what is spent stays spent, and the rest is held again."""
        told = command.told
        session = self._sessions.get(told.scope)
        outcome = "recorded"
        if session is None:
            outcome = "ok"
            session = OpenSession(told.scope, told.pool, told.flow, told.weights, told.scopes)
            session.tokens = told.tokens
            session.idle_ms = told.idle_ms
            session.until_ms = self.now_ms + told.left_ms
            self._sessions[told.scope] = session
            self._used_session(session)
        if not session.ended:
            session.spent_tokens = min(session.tokens, max(session.spent_tokens, told.spent_tokens))
            self._hold_unspent(session)
        return self._answer("tell_session", "", outcome, sessions=(self._told_session(session),))

    # its calls

    def _session_of(self, charges: Charges) -> OpenSession | None:
        """The session that these charges are a call of, while it is open."""
        session = self._sessions.get(charges[0][0]) if self._sessions and charges else None
        return session if session is not None and not session.ended else None

    def _is_foreign(self, entry: Entry, charges: Charges) -> bool:
        """More is asked of a session that the execution is no call of."""
        scope = charges[0][0] if charges else ""
        return scope.startswith(CALLS) and (not entry.charges or entry.charges[0][0] != scope)

    def _lacks_session(self, command: Reserve) -> Shortfall | None:
        """What the session of this call cannot give it: its rest, or now only what its other calls leave of that."""
        scope, unit, amount = command.charges[0]
        session = self._session_of(command.charges)
        if session is None or session.pool != command.pool:
            return Shortfall(scope, unit, amount, 0)
        if amount <= session.unspent_tokens:
            return None
        return Shortfall(scope, unit, self.counters.held(scope, unit) + amount, session.tokens - session.spent_tokens)

    def _take_inside(self, session: OpenSession, charges: Charges) -> tuple[Sequence[Counter], Sequence[Shortfall]]:
        """One step: what the session held for it is the call's now; or nothing has changed (A3)."""
        scope, unit, amount = charges[0]
        if amount > session.unspent_tokens:
            live_tokens = self.counters.held(scope, unit)
            return (), (Shortfall(scope, unit, live_tokens + amount, session.tokens - session.spent_tokens),)
        self.counters.move(session.scopes, TOKENS, -amount)
        taken, shortfalls = self.counters.take(charges)
        if shortfalls:
            beyond = self._beyond(session, shortfalls)
            if beyond:
                self.counters.move(session.scopes, TOKENS, amount)
                return taken, beyond
            taken = self.counters.force(charges)
        session.unspent_tokens -= amount
        self._used_session(session)
        return taken, ()

    def _beyond(self, session: OpenSession, shortfalls: Sequence[Shortfall]) -> list[Shortfall]:
        """Those that concern a call: where its session holds tokens it adds none, however far a limit has fallen since."""
        return [short for short in shortfalls if short.unit != TOKENS or short.scope not in session.scopes]

    def _spend(self, entry: Entry, usage: Usage | None) -> None:
        """A call has ended and given back what it held: the session takes what was not used, and knows what was.

        Nothing if it never ran, nor if it showed no byte and nobody can say: its caller got nothing for it, and it may be sent
        again. All it had reserved if it did and nobody can say.
        """
        session = self._session_of(entry.charges)
        if session is None:
            return
        used_tokens = entry.charges[0][2] if entry.seen else 0
        if usage is not None:
            used_tokens = usage.prompt_tokens + usage.output_tokens
        live_tokens = self.counters.held(session.scope, TOKENS)
        session.spent_tokens = min(session.spent_tokens + used_tokens, max(session.spent_tokens, session.tokens - live_tokens))
        self._used_session(session)
        self._hold_unspent(session)
        if session.spent_tokens >= session.tokens:
            self._end_session(session, "exhausted")

    def _hold_unspent(self, session: OpenSession) -> None:
        """Hold what follows from what is spent and live."""
        live_tokens = self.counters.held(session.scope, TOKENS)
        unspent_tokens = max(0, session.tokens - session.spent_tokens - live_tokens)
        self.counters.move(session.scopes, TOKENS, unspent_tokens - session.unspent_tokens)
        session.unspent_tokens = unspent_tokens

    def _used_session(self, session: OpenSession) -> None:
        """From now on it may be idle for its time."""
        session.idle_until_ms = self.now_ms + session.idle_ms
        self._sweep_due_ms = min(self._sweep_due_ms, session.idle_until_ms, session.until_ms)

    # ending

    def _close_session(self, command: CloseSession) -> Answer:
        session = self._sessions.get(command.session)
        if session is None:
            return self._answer("close_session", "", "refused", asked=command.session)
        outcome = "recorded" if session.ended else "ok"
        if not session.ended:
            self._end_session(session, "closed")
        told = (self._told_session(session),)
        return self._answer("close_session", "", outcome, asked=command.session, sessions=told)

    def _end_session(self, session: OpenSession, why: str) -> None:
        """What it did not spend comes back, once, to whoever waits for it."""
        session.ended = why
        session.returned_tokens, session.unspent_tokens = session.unspent_tokens, 0
        session.forget_ms = self.now_ms + TOMBSTONE_LEASES * self.lease_ms
        self._sweep_due_ms = min(self._sweep_due_ms, session.forget_ms)
        self.counters.move(session.scopes, TOKENS, -session.returned_tokens)
        turns = self._turns.get(session.pool)
        if turns is None:
            return
        turns.correct(session.flow, session.weights, -session.returned_tokens)
        if turns.marks:
            self._wake(turns, session.pool)

    def _sweep_sessions(self) -> None:
        """End whoever is over or idle, forget whoever ended long ago."""
        for session in list(self._sessions.values()):
            if not session.ended:
                if self.now_ms >= session.until_ms:
                    self._end_session(session, "deadline")
                elif self.now_ms >= session.idle_until_ms:
                    if self.counters.held(session.scope, TOKENS):
                        session.idle_until_ms = self.now_ms + session.idle_ms
                    else:
                        self._end_session(session, "idle")
            elif self.now_ms >= session.forget_ms:
                del self._sessions[session.scope]
                continue
            due_ms = session.forget_ms if session.ended else min(session.until_ms, session.idle_until_ms)
            self._sweep_due_ms = min(self._sweep_due_ms, due_ms)

    # looking at them

    def _told_session(self, session: OpenSession) -> SessionRecord:
        return session.told(self.counters.held(session.scope, TOKENS), self.now_ms)

    def _open_sessions(self) -> tuple[SessionRecord, ...]:
        return tuple(self._told_session(session) for session in self._sessions.values() if not session.ended)
