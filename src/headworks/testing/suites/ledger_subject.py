"""A ledger store under test: how it is handed to the suite, and how the suite asks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headworks.core.commands import Answer, Command, Heartbeat, Held, Reserve, SetLimits, Start, Stop
from headworks.core.seams import LedgerStore
from headworks.core.types import Charge, Owner, RequestKey, Reservation, Usage

LEASE_MS = 5000
REMEMBER_MS = 600_000
FIRST = Owner("gateway-1", "boot-1")
SECOND = Owner("gateway-2", "boot-2")
RESTARTED = Owner("gateway-1", "boot-3")
"""The first gateway's next life."""
CHARGED_STATES = ("RESERVED", "RUNNING", "CANCELLING", "ORPHANED")
WHOLE = 1_000_000
"""The limit of scopes that are not to bind."""


@dataclass(slots=True)
class Opened:
    """A store under test, and how to move its world. Its lease must be `LEASE_MS`, its memory `REMEMBER_MS`."""

    store: LedgerStore
    advance: Callable[[int], None]
    """Let so many milliseconds pass for the store; otherwise its clock stands still."""
    settle: Callable[[], None]
    """Let a store that answers later answer."""
    reopen: Callable[[], LedgerStore]
    """The store after the process that keeps it was killed and started again."""
    fresh: Callable[[], LedgerStore]
    """An empty store in its place."""
    check: Callable[[], list[str]]
    """The audit of the store that was opened last."""


class Ledger:
    """A store, asked synchronously."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.store = opened.store
        self.limits: dict[str, int] = {}
        self._probes = 0

    def ask(self, *commands: Command) -> list[Answer]:
        """One list, its answers."""
        given: list[list[Answer]] = []
        self.store.apply(commands, given.append)
        self.opened.settle()
        assert len(given) == 1, f"apply was answered {len(given)} times"
        assert len(given[0]) == len(commands), f"{len(commands)} commands, {len(given[0])} answers"
        return given[0]

    def one(self, command: Command) -> Answer:
        """One command, its answer."""
        return self.ask(command)[0]

    def outcome(self, command: Command) -> str:
        """One command, what came of it."""
        return self.one(command).outcome

    def open(self, limits: dict[str, int], *owners: Owner) -> None:
        """Limits in tokens by scope, and the boots that live."""
        self.limits = limits
        charges = tuple(Charge(scope, "tokens", amount) for scope, amount in limits.items())
        self.ask(SetLimits("policy-1", 1, charges), *(Heartbeat(owner) for owner in owners or (FIRST,)))

    def advance(self, by_ms: int, *living: Owner) -> None:
        """Let time pass in steps shorter than a lease; these boots keep theirs."""
        while by_ms > 0:
            step_ms = min(by_ms, LEASE_MS // 5)
            self.opened.advance(step_ms)
            by_ms -= step_ms
            if living:
                self.ask(*(Heartbeat(owner) for owner in living))

    def held(self, scope: str, owner: Owner = FIRST) -> int:
        """Tokens charged there, by asking for the whole limit: a refusal says what stands there."""
        self._probes += 1
        limit, name = self.limits[scope], f"probe-{self._probes}"
        probe = reserve(name, limit, owner=owner, pool="probe", charges=(Charge(scope, "tokens", limit),))
        answer = self.one(probe)
        if answer.outcome == "granted":
            self.ask(Stop(name, owner, "E0", "cancelled", None))
            return 0
        assert answer.outcome == "refused", answer
        return answer.shortfalls[0].value - limit

    def records(self, *owners: Owner) -> dict[str, Reservation]:
        """What the ledger holds under these boots."""
        answers = self.ask(*(Held(owner) for owner in owners))
        return {record.execution: record for answer in answers for record in answer.records}

    def state(self, execution: str, *owners: Owner) -> str:
        """The state of an execution, looked up without moving it: only what has ended answers a second start."""
        record = self.records(*owners).get(execution)
        return record.state if record else self.one(Start(execution, FIRST)).state


def reserve(
    execution: str,
    tokens: int,
    *,
    owner: Owner = FIRST,
    tenant: str = "acme",
    pool: str = "pool",
    service_class: str = "interactive",
    key: RequestKey | None = None,
    fingerprint: str = "same",
    charges: tuple[Charge, ...] | None = None,
    more: bool = False,
    waiting_tokens: int = 0,
) -> Reserve:
    """A request of one sequence for the tenant, the pool and the pool's only replica."""
    if charges is None:
        scopes = (f"tenant:{tenant}", f"pool:{pool}", f"replica:{pool}/0")
        charges = tuple(Charge(scope, "tokens", tokens) for scope in scopes)
        charges += (Charge(f"replica:{pool}/0", "requests", 1),)
    return Reserve(
        execution=execution,
        key=key,
        fingerprint=fingerprint,
        owner=owner,
        pool=pool,
        replica=f"{pool}/0",
        flow=(service_class, tenant),
        weights=(1.0, 1.0),
        cost_tokens=tokens,
        charges=charges,
        waiting_tokens=waiting_tokens,
        more=more,
        policy_version="policy-1",
    )


def used(tokens: int) -> Usage:
    """A usage of so many tokens, a quarter of them output."""
    return Usage(tokens - tokens // 4, 0, tokens // 4, 0.5, "stop", True)
