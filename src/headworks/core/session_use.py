"""What one gateway knows of one session: what is left of it, and what of that it holds among this gateway's own counters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headworks.core.commands import TellSession
from headworks.core.policy import INFINITE_S
from headworks.core.types import SessionRecord

if TYPE_CHECKING:
    from headworks.core.lane import Lane
    from headworks.core.pool import Pool
    from headworks.core.replica import Replica
    from headworks.core.tenant import TenantUse

EXHAUSTED = "session_exhausted"
TENANT = "tenant:"


class SessionUse:
    """One session. What it holds is counted as taken in its pool and by its tenant, like the work that runs."""

    __slots__ = (
        "_base_tokens",
        "_own_tokens",
        "ends_s",
        "held_tokens",
        "is_known",
        "lanes",
        "on",
        "pool",
        "scope",
        "tenant",
        "told",
    )

    def __init__(self, scope: str, pool: Pool, tenant: TenantUse | None) -> None:
        self.scope = scope
        self.pool = pool
        self.tenant = tenant
        self.told: SessionRecord | None = None
        """As the ledger has told it last."""
        self.is_known = False
        """The ledger has told of it. Until then only the ledger can say what is left."""
        self.ends_s = INFINITE_S
        self.held_tokens = 0
        """What is unspent and not asked for here."""
        self.lanes: dict[str, Lane] = {}
        """Of its calls, by class."""
        self._base_tokens = 0
        """What was unspent when the ledger told of it, with what this gateway's calls held then."""
        self._own_tokens = 0
        self.on: Replica | None = None
        """The engine among whose counters it is held: the pool's only one."""

    def hear(self, told: SessionRecord, now_s: float) -> None:
        """The ledger tells how it stands."""
        self.told, self.is_known = told, True
        self.ends_s = now_s + told.left_ms / 1000
        self._base_tokens = told.unspent_tokens + self._own_tokens
        self.settle()

    def count(self, tokens: int) -> None:
        """A call of this gateway takes so much, or (negative) gives it back."""
        self._own_tokens += tokens
        self.settle()

    def settle(self) -> None:
        """Hold what follows from what was told and what was taken since."""
        self._hold(max(0, self._base_tokens - self._own_tokens))

    def lift(self) -> None:
        """Hold nothing for a moment: so a call of it is looked at as if its part were free. Followed by `settle`."""
        self._hold(0)

    def end(self) -> None:
        """It is open no more."""
        self.is_known = False
        self._base_tokens = 0
        self.settle()

    def _hold(self, tokens: int) -> None:
        before, self.held_tokens = self.held_tokens, tokens
        more, single = tokens - before, self.pool.single
        if single is not self.on:  # engines join and leave
            if self.on is not None:
                self.on.tokens -= before
            if single is not None:
                single.tokens += before
            self.on = single
        if not more:
            return
        self.pool.tokens += more
        if single is not None:
            single.tokens += more
        if self.tenant is not None:
            self.tenant.tokens += more

    @property
    def left_tokens(self) -> int:
        """What it has not spent, with what runs in it."""
        return self.told.tokens - self.told.spent_tokens if self.told is not None else 0


def limit_tokens(pool: Pool) -> int | None:
    """What all sessions of a pool may hold together; None while nobody knows what the pool holds."""
    return None if pool.tokens_max is None else int(pool.policy.sessions_ratio_max * pool.tokens_max)


def tenant_of(told: SessionRecord) -> str:
    """Whose it is."""
    return next((scope.removeprefix(TENANT) for scope in told.scopes if scope.startswith(TENANT)), "")


def tell_again(untold: dict[str, SessionUse], now_s: float) -> list[TellSession]:
    """For a store that may have forgotten them; whatever is over by now need not be told."""
    for scope in [scope for scope, use in untold.items() if use.ends_s <= now_s]:
        del untold[scope]
    return [
        TellSession(replace(use.told, left_ms=max(1, round(1000 * (use.ends_s - now_s)))))
        for use in untold.values()
        if use.told is not None
    ]
