"""A book to ask, for tests of the book itself."""

from __future__ import annotations

from headworks.core.book import Book
from headworks.core.commands import Answer, Command, Heartbeat, SetLimits
from headworks.core.types import Charge, Owner
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, REMEMBER_MS

LIMITS = (Charge("pool:pool", "tokens", 1_000), Charge("tenant:acme", "tokens", 1_000))


class Asked:
    """A book, its time, and boots that stay alive when asked to."""

    def __init__(self, *owners: Owner, limits: tuple[Charge, ...] = LIMITS, records_max: int = 1_000_000) -> None:
        self.book = Book(LEASE_MS, REMEMBER_MS, records_max=records_max)
        self.now_ms = 0
        self.ask(SetLimits("policy-1", 1, limits), *(Heartbeat(owner) for owner in owners or (FIRST,)))

    def ask(self, *commands: Command) -> list[Answer]:
        answers = self.book.apply(commands, self.now_ms)
        assert self.book.check() == []
        return answers

    def one(self, command: Command) -> Answer:
        return self.ask(command)[0]

    def outcome(self, command: Command) -> str:
        return self.one(command).outcome

    def advance(self, by_ms: int, *living: Owner) -> None:
        until_ms = self.now_ms + by_ms
        while self.now_ms < until_ms:
            self.now_ms = min(until_ms, self.now_ms + LEASE_MS // 5)
            self.ask(*(Heartbeat(owner) for owner in living))

    def held(self, scope: str = "pool:pool", unit: str = "tokens") -> int:
        return self.book.held(scope, unit)

    def state(self, execution: str) -> str:
        record = self.book.find(execution)
        return record.state if record else ""
