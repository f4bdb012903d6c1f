"""Any order of events that can really happen, judged by an oracle and by what the engine physically holds.

Gateways tell the truth here, late, twice or never: evidence is given only of what has happened, while every other command may
come at any time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headworks.core.book import Book
from headworks.core.commands import (
    Adopt,
    Answer,
    Cancel,
    CloseSession,
    Command,
    Grow,
    Heartbeat,
    PutIncarnation,
    PutSample,
    Reassert,
    Reserve,
    SetLimits,
    Start,
    Stop,
    TakeReader,
)
from headworks.core.types import Charge, Owner, Reservation
from headworks.testing.suites.ledger_sessions import inside, opening
from headworks.testing.suites.ledger_subject import LEASE_MS, REMEMBER_MS, reserve, used
from tests.properties.oracle import Engine, Oracle, judge

OWNERS = (Owner("gateway-1", "boot-1"), Owner("gateway-2", "boot-2"))
REPLICA = "pool/0"
READ = ("replica:pool/0", "prefill_tokens")
SCOPES = (("pool:pool", "tokens"), ("tenant:acme", "tokens"), ("sessions:pool", "tokens"), ("replica:pool/0", "requests"), READ)
TOKENS_MAX, REQUESTS_MAX, READ_MAX = 250, 6, 50
LIMITS = (
    Charge("pool:pool", "tokens", TOKENS_MAX),
    Charge("replica:pool/0", "requests", REQUESTS_MAX),
    Charge(*READ, READ_MAX),
    Charge("sessions:pool", "tokens", 120),
)
owners, picks = st.sampled_from(OWNERS), st.integers(0, 30)


def _read(ask: Reserve) -> Reserve:
    """With its prompt counted while it is read: the longest is longer than may be read, and goes alone."""
    return replace(ask, charges=(*ask.charges, Charge(*READ, ask.cost_tokens)))


class Fleet(RuleBasedStateMachine):
    """Two gateways, one engine, one book: of this kind, or what `open_book` makes, which is asked as a book is."""

    kind: type[Book] = Book

    def open_book(self) -> Any:
        return self.kind(LEASE_MS, REMEMBER_MS)

    def __init__(self) -> None:
        super().__init__()
        self.book, self.oracle, self.engine = self.open_book(), Oracle(), Engine()
        self.now_ms = 0
        self.minted = 0
        self.owner_of: dict[str, Owner] = {}
        """Granted executions and the gateway that sends them."""
        self.sendable: dict[str, int] = {}
        """Granted, not sent, and until when its gateway's lease lets it be sent."""
        self.sent: list[str] = []
        self.seen: list[str] = []
        self.left: list[str] = []
        """Sent, and not in the engine any more."""
        self.sequence = 0
        self.number = 0
        self.past: list[Command] = []
        self.opened: list[str] = []
        """Sessions, open or not any more."""
        self.ask(SetLimits("policy", 1, LIMITS), *(Heartbeat(owner) for owner in OWNERS))
        self.reports_incarnation()
        self.lease_ms = dict.fromkeys(OWNERS, LEASE_MS)

    def ask(self, *commands: Command) -> list[Answer]:
        answers = self.book.apply(commands, self.now_ms)
        for command, answer in zip(commands, answers, strict=True):
            self.oracle.note(command, answer)
            self.sequence = answer.sequence
            self.number = answer.incarnation or self.number
        self.past = [*self.past[-20:], *commands]
        return answers

    # what gateways do

    @rule(owner=owners, tokens=st.sampled_from((10, 30, 60)), twins=st.booleans(), far=st.integers(0, 2))
    def reserves(self, owner: Owner, tokens: int, twins: bool, far: int) -> None:
        """And perhaps it is sent at once, and perhaps its first byte is seen at once: the ordinary course."""
        self.minted += 1
        asks = [_read(reserve(f"x{self.minted}", tokens, owner=owner))]
        if twins:
            asks.append(_read(reserve(f"y{self.minted}", tokens, owner=OWNERS[owner == OWNERS[0]])))
        for ask, answer in zip(asks, self.ask(*asks), strict=True):
            self._granted(ask, answer)
        name = asks[0].execution
        if far >= 1 and name in self.sendable:
            self._send(name)
            if far == 2 and name in self.sent:
                self._see(name)

    @rule(tokens=st.sampled_from((40, 60)))
    def opens_a_session(self, tokens: int) -> None:
        name = f"session:{len(self.opened) + 1}"
        self.opened.append(name)
        self.ask(opening(tokens, name))

    @precondition(lambda self: self.opened)
    @rule(pick=picks, owner=owners, tokens=st.sampled_from((10, 30, 50)), far=st.integers(0, 2))
    def calls(self, pick: int, owner: Owner, tokens: int, far: int) -> None:
        """Of a session that may have ended."""
        self.minted += 1
        ask = _read(inside(f"c{self.minted}", tokens, self._pick(self.opened, pick), owner=owner))
        ask = replace(ask, charges=(*ask.charges[:-1], Charge(*READ, tokens)))
        self._granted(ask, self.ask(ask)[0])
        if far >= 1 and ask.execution in self.sendable:
            self._send(ask.execution)
            if far == 2 and ask.execution in self.sent:
                self._see(ask.execution)

    @precondition(lambda self: self.opened)
    @rule(pick=picks, times=st.sampled_from((0, 0, 1, 2)))
    def closes_a_session(self, pick: int, times: int) -> None:
        for _ in range(times):
            self.ask(CloseSession(self._pick(self.opened, pick)))

    def _granted(self, ask: Reserve, answer: Answer) -> None:
        if answer.outcome == "granted":
            self.owner_of[ask.execution] = ask.owner
            self.sendable[ask.execution] = self.lease_ms[ask.owner]

    @precondition(lambda self: self.sendable)
    @rule(pick=picks)
    def sends(self, pick: int) -> None:
        self._send(self._pick(list(self.sendable), pick))

    def _send(self, name: str) -> None:
        if self.now_ms < self.sendable.pop(name):
            self.sent.append(name)
            self.engine.inside[name] = self.engine.life

    @precondition(lambda self: self.sendable)
    @rule(pick=picks)
    def gives_up_unsent(self, pick: int) -> None:
        name = self._pick(list(self.sendable), pick)
        del self.sendable[name]
        self.ask(Stop(name, self.owner_of[name], "E0", "cancelled", None))

    @precondition(lambda self: self.sent)
    @rule(pick=picks)
    def sees_first_byte(self, pick: int) -> None:
        self._see(self._pick(self.sent, pick))

    def _see(self, name: str) -> None:
        if name not in self.seen:
            self.seen.append(name)
            self.ask(Start(name, self.owner_of[name]))

    @precondition(lambda self: self.owner_of)
    @rule(pick=picks, step=st.integers(1, 2))
    def grows(self, pick: int, step: int) -> None:
        name = self._pick(list(self.owner_of), pick)
        self.ask(Grow(name, self.owner_of[name], step, (Charge("pool:pool", "tokens", 5),)))

    @precondition(lambda self: self.owner_of)
    @rule(pick=picks)
    def cancels(self, pick: int) -> None:
        name = self._pick(list(self.owner_of), pick)
        self.sendable.pop(name, None)
        self.ask(Cancel(name, self.owner_of[name]))

    @precondition(lambda self: len(self.past) % 3 == 0)
    @rule()
    def cancel_overtakes_reserve(self) -> None:
        self.minted += 1
        name = f"z{self.minted}"
        self.ask(Cancel(name, OWNERS[0]))
        assert self.ask(reserve(name, 10))[0].outcome in ("dead", "fenced"), f"{name} was cancelled before"

    @precondition(lambda self: self.left)
    @rule(pick=picks, owner=owners, evidence=st.sampled_from(("E1", "E3a")), tokens=st.sampled_from((None, 8, 44)))
    def testifies(self, pick: int, owner: Owner, evidence: str, tokens: int | None) -> None:
        """From anyone, living or not, as often as they like: it must be believed."""
        name = self._pick(self.left, pick)
        usage = None if tokens is None else used(tokens)
        outcome = self.ask(Stop(name, owner, evidence, "completed", usage))[0].outcome
        assert outcome in ("ok", "recorded"), f"what {owner} knows of {name} was {outcome}"

    @precondition(lambda self: self.past)
    @rule(pick=picks)
    def repeats(self, pick: int) -> None:
        """Anything may arrive twice; what is recorded as granted is sent no second time."""
        command = self._pick(self.past, pick)
        answer = self.ask(command)[0]
        if isinstance(command, Reserve):
            self._granted(command, answer)

    @rule(owner=owners)
    def adopts(self, owner: Owner) -> None:
        self.ask(Adopt(owner, 2))

    @precondition(lambda self: self.book.records())
    @rule(pick=picks, owner=owners)
    def reasserts(self, pick: int, owner: Owner) -> None:
        mine = [record for record in self.book.records() if record.owner == owner and record.execution in self.engine.inside]
        if mine:
            record: Reservation = self._pick(mine, pick)
            self.ask(Reassert(record))

    # time, leases and the engine

    @rule(by_ms=st.sampled_from((1, 100, 1_000, LEASE_MS)), living=st.sampled_from(((), OWNERS[:1], OWNERS[1:], OWNERS)))
    def time_passes(self, by_ms: int, living: tuple[Owner, ...]) -> None:
        self.now_ms += by_ms
        for owner in living:
            self.lease_ms[owner] = self.now_ms + LEASE_MS
            self.ask(self._heartbeat(owner))

    def _heartbeat(self, owner: Owner) -> Heartbeat:
        """A gateway at its best: it has read whatever has left the engine, and does not vouch for that."""
        return Heartbeat(owner, 0, self.sequence, tuple(self.left))

    @precondition(lambda self: self.engine.inside)
    @rule(pick=picks)
    def finishes(self, pick: int) -> None:
        name = self._pick(list(self.engine.inside), pick)
        del self.engine.inside[name]
        self.left.append(name)

    @rule(told=st.booleans(), chance=st.integers(0, 2))
    def engine_restarts(self, told: bool, chance: int) -> None:
        if chance:
            return
        self.left += list(self.engine.inside)
        self.engine.restart()
        if told:
            self.reports_incarnation()

    @rule()
    def reports_incarnation(self) -> None:
        life = f"life-{self.engine.life}"
        self.ask(PutIncarnation(REPLICA, OWNERS[1], life, tuple(self.seen), self.number))

    @rule(heartbeats=st.booleans())
    def measures(self, heartbeats: bool) -> None:
        owner = OWNERS[0]
        seat = self.ask(TakeReader(REPLICA, owner))[0]
        if seat.outcome != "ok":
            owner = OWNERS[1]
            seat = self.ask(TakeReader(REPLICA, owner))[0]
        load = len(self.engine.inside)
        self.ask(PutSample(REPLICA, owner, f"life-{self.engine.life}", load, seat.sequence))
        if heartbeats:
            self.time_passes(200, OWNERS)

    # witnesses

    @invariant()
    def agrees(self) -> None:
        assert self.book.check() == []
        judge(self.oracle, self.book, SCOPES)
        self.engine.judge(self.book.records())
        assert self.book.held("pool:pool", "tokens") <= TOKENS_MAX
        assert self.book.held("replica:pool/0", "requests") <= REQUESTS_MAX
        read = [one.amount for held in self.oracle.held.values() for one in held if one[:2] == READ]
        assert sum(read) <= READ_MAX or len(read) == 1, f"read at once: {read}"

    @staticmethod
    def _pick(many: list, pick: int):  # type: ignore[no-untyped-def,type-arg]
        return many[pick % len(many)]
