"""Random histories: every command there is, in any order, twice and too late, on a store and on a plain book side by side.

Few executions, keys and limits, so that they meet often. The answers must be equal to the last field, and the store's own
audit must stay empty after every list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from headworks.core.book import Book
from headworks.core.book_counters import STANDING
from headworks.core.commands import (
    Adopt,
    Answer,
    Cancel,
    Claim,
    CloseSession,
    Command,
    Depart,
    Floor,
    Grow,
    Heartbeat,
    Held,
    Opening,
    PutIncarnation,
    PutSample,
    Reassert,
    Reserve,
    SetLimits,
    Start,
    Stop,
    TakeReader,
    TellSession,
    Unmark,
    Waits,
    Withdraw,
)
from headworks.core.types import Charge, Owner, RequestKey, Reservation, SessionRecord, Usage
from headworks.testing.suites.ledger_subject import LEASE_MS, REMEMBER_MS, Ledger, Opened

LISTS = 400
SEEDS = (1, 2, 3, 4, 5)
EVIDENCE = ("E0", "E0", "E1", "E1", "E1", "E2", "E3a", "E4", "E5", "operator")
ENDS = ("completed", "failed", "cancelled")
STATES = ("CLAIMED", "RESERVED", "RUNNING", "CANCELLING", "ORPHANED", "COMPLETED", "FAILED", "CANCELLED")
STEPS_MS = {0: 40, 1: 10, 5: 10, 19: 10, 60: 10, 400: 8, 1000: 8, 3000: 3, 21_000: 1}
"""Time between two lists → how often."""


class History:
    """An endless stream of command lists, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311 - to be replayed, not to be guessed
        self._names = [f"x{number}" for number in range(14)]
        self._owners = [Owner(f"gateway-{number}", f"boot-{number}") for number in range(3)]
        self._minted = 0
        self._sequence = 0
        self._incarnations: dict[str, int] = {}
        self._makers: list[tuple[int, Callable[[], Command]]] = [
            (4, self._claim),
            (20, self._reserve),
            (6, self._open),
            (20, self._inside),
            (3, lambda: CloseSession(self._session())),
            (1, self._tell_session),
            (8, lambda: Start(self._name(), self._owner())),
            (6, self._grow),
            (8, lambda: Cancel(self._name(), self._owner())),
            (10, self._stop),
            (2, lambda: Adopt(self._owner(), self._random.randrange(5))),
            (4, self._reassert),
            (16, self._heartbeat),
            (1, self._depart),
            (2, lambda: Held(self._owner(), self._random.choice(("", "", "x", "x1")))),
            (6, lambda: TakeReader(self._replica(), self._owner())),
            (8, self._put_sample),
            (4, self._put_incarnation),
            (1, lambda: Withdraw(self._replica())),
            (2, self._set_limits),
            (2, lambda: Unmark(self._flow(), self._pool(), self._owner())),
            (2, self._waits),
        ]

    def step_ms(self) -> int:
        """Time until the next list."""
        return self._random.choices(list(STEPS_MS), list(STEPS_MS.values()))[0]

    def commands(self) -> list[Command]:
        """The next list."""
        makers = self._random.choices(
            [make for _, make in self._makers], [weight for weight, _ in self._makers], k=self._random.randrange(1, 6)
        )
        return [make() for make in makers]

    def heard(self, answers: list[Answer]) -> None:
        """What came of them: a history goes on from what a gateway would know."""
        self._sequence = max(answer.sequence for answer in answers)
        for answer in answers:
            if answer.replica and answer.incarnation:
                self._incarnations[answer.replica] = answer.incarnation

    def _name(self) -> str:
        return self._random.choice(self._names)

    def _new_name(self) -> str:
        """A name dies with its execution, so new ones are born."""
        self._minted += 1
        self._names[self._random.randrange(len(self._names))] = f"x{100 + self._minted}"
        return f"x{100 + self._minted}"

    def _owner(self) -> Owner:
        return self._random.choice(self._owners)

    def _depart(self) -> Command:
        """A gateway leaves and comes back as another."""
        number = self._random.randrange(len(self._owners))
        gone = self._owners[number]
        self._owners[number] = Owner(gone.gateway, f"boot-{self._sequence}")
        return Depart(gone)

    def _key(self) -> RequestKey | None:
        number = self._random.randrange(8)
        return RequestKey("acme", f"key-{number}") if number < 4 else None

    def _pool(self) -> str:
        return self._random.choice(("p", "q"))

    def _replica(self) -> str:
        return self._random.choice(("p/0", "p/1", "q/0"))

    def _flow(self) -> tuple[str, str]:
        return self._random.choice((("interactive", "acme"), ("interactive", "beta"), ("bulk", "acme")))

    def _charges(self) -> tuple[Charge, ...]:
        replica, tokens = self._replica(), self._random.choice((0, 10, 30, 70))
        scopes = [f"tenant:{self._flow()[1]}", f"pool:{replica[0]}", f"replica:{replica}"]
        if self._random.random() < 0.3:
            scopes.append(self._random.choice(("model:small", "reserved:p:acme", "lent:p")))
        charges = [*(Charge(scope, "tokens", tokens) for scope in scopes), Charge(f"replica:{replica}", "requests", 1)]
        if self._random.random() < 0.3:
            read = Charge(f"replica:{replica}", self._random.choice(("prefill_tokens", "heavy_prefills")), max(1, tokens))
            charges.insert(self._random.randrange(3, len(charges) + 1), read)
        return tuple(charges)

    def _usage(self) -> Usage | None:
        if self._random.random() < 0.3:
            return None
        return Usage(self._random.randrange(40), 0, self._random.randrange(40), 0.25, "stop", True)

    def _claim(self) -> Command:
        key = self._key() or RequestKey("beta", "key-0")
        return Claim(self._name(), key, self._random.choice(("f", "f", "f", "g")), self._owner())

    def _reserve(self) -> Command:
        charges = self._charges()
        replica = charges[2].scope.removeprefix("replica:")
        if self._random.random() < 0.1:
            charges = (Charge("observed:p", "tokens", charges[0].amount), *charges)
        return Reserve(
            execution=self._new_name() if self._random.random() < 0.4 else self._name(),
            key=self._key(),
            fingerprint="f",
            owner=self._owner(),
            pool=replica[0],
            replica=replica,
            flow=self._flow(),
            weights=self._random.choice(((1.0, 1.0), (3.0, 2.0))),
            cost_tokens=charges[0].amount,
            charges=charges,
            waiting_tokens=self._random.randrange(100),
            more=self._random.random() < 0.4,
            policy_version="policy",
            slots_tokens=self._random.choice((0, 0, 25)),
        )

    def _session(self) -> str:
        """Most in pool p, one in q; a name is used again when its session is forgotten."""
        return self._random.choice(("session:p/1", "session:p/2", "session:q/3"))

    def _open(self) -> Command:
        command, session = self._reserve(), self._session()
        assert isinstance(command, Reserve)
        pool, tokens = session[8], self._random.choice((30, 60, 90))
        scopes = (f"tenant:{command.flow[1]}", f"pool:{pool}", f"sessions:{pool}")
        lasts_ms, idle_ms = self._random.choice((3_000, 60_000)), self._random.choice((1_000, 20_000))
        charges = tuple(Charge(scope, "tokens", tokens) for scope in scopes)
        opens, replica = Opening(lasts_ms, idle_ms), f"{pool}/0"
        return replace(
            command, key=None, pool=pool, replica=replica, cost_tokens=tokens, charges=charges, session=session, opens=opens
        )

    def _inside(self) -> Command:
        command, session = self._reserve(), self._session()
        assert isinstance(command, Reserve)
        charges = (self._part(session, command.charges[0][2]), *command.charges)
        return replace(command, charges=charges, session=session, cost_tokens=0)

    def _part(self, session: str, tokens: int) -> Charge:
        return Charge(session, "tokens", self._random.choice((tokens, 20)))

    def _grow(self) -> Command:
        charges = self._charges()[:2]
        if self._random.random() < 0.1:
            charges = (Charge("observed:p", "tokens", charges[0].amount), *charges)
        if self._random.random() < 0.3:
            charges = (self._part(self._session(), charges[0].amount), *charges)
        return Grow(self._name(), self._owner(), self._random.randrange(4), charges)

    def _tell_session(self) -> Command:
        session = self._session()
        scopes = ("tenant:acme", f"pool:{session[8]}")
        spent = self._random.choice((0, 10, 40))
        told = SessionRecord(
            session, session[8], self._flow(), (1.0, 1.0), scopes, 60, spent, 0, 60 - spent, 0, "", 4_000, 9, 9_000
        )
        return TellSession(told)

    def _waits(self) -> Command:
        return Waits(self._flow(), self._pool(), self._owner(), self._charges(), self._random.randrange(100))

    def _stop(self) -> Command:
        evidence, end = self._random.choice(EVIDENCE), self._random.choice(ENDS)
        commits = (("tenant:beta", "tokens", self._sequence % 20),) if self._sequence % 3 == 0 else ()
        return Stop(self._name(), self._owner(), evidence, end, self._usage(), commits)

    def _reassert(self) -> Command:
        state, owner = self._random.choice(STATES), self._owner()
        replica, charges = self._replica(), self._charges()
        if self._random.random() < 0.3:
            charges = (self._part(self._session(), charges[0].amount), *charges)
        return Reassert(
            Reservation(
                execution=self._name(),
                key=self._key(),
                fingerprint="f",
                state=state,
                was="RUNNING" if state == "ORPHANED" else "",
                seen=self._random.random() < 0.5,
                owner=owner,
                reserved_by=owner,
                replica=replica,
                incarnation=0,
                charges=charges,
                usage=None,
                evidence="",
                reserved_ms=1,
                started_ms=0,
                ended_ms=0,
            )
        )

    def _heartbeat(self) -> Command:
        seen = max(0, self._sequence - self._random.randrange(20))
        unvouched = (self._name(),) if self._random.random() < 0.2 else ()
        profiles = ((self._replica(), tuple(self._random.randrange(9) for _ in range(24))),) if seen % 3 == 0 else ()
        return Heartbeat(self._owner(), self._random.randrange(100), seen, unvouched, profiles)

    def _put_sample(self) -> Command:
        after = max(0, self._sequence - self._random.randrange(20))
        return PutSample(self._replica(), self._owner(), f"life-{self._life()}", self._random.randrange(4), after)

    def _put_incarnation(self) -> Command:
        inside = tuple(self._name() for _ in range(self._random.randrange(3)))
        replica = self._replica()
        known = self._incarnations.get(replica, 0) - (self._random.random() < 0.1)
        return PutIncarnation(replica, self._owner(), f"life-{self._life()}", inside, known)

    def _life(self) -> int:
        return self._sequence // 250 + (self._random.random() < 0.02)

    def _set_limits(self) -> Command:
        amount = self._random.choice((60, 120, 200, STANDING))
        limits = (
            Charge("pool:p", "tokens", amount),
            Charge("pool:q", "tokens", 150),
            Charge("tenant:acme", "tokens", 160),
            *((Charge("tenant:beta", "tokens", 200),) if self._sequence % 7 else ()),
            Charge("sessions:p", "tokens", 90),
            Charge("replica:p/0", "requests", 3),
            Charge("replica:p/0", "prefill_tokens", 50),
            Charge("replica:q/0", "heavy_prefills", 20),
        )
        floors = tuple(floor for floor in FLOORS if self._random.random() < 0.5)
        committed = (Charge("tenant:beta", "tokens", self._sequence % 90),)
        number = self._random.randrange(1 + self._sequence // 50, 5 + self._sequence // 50)
        return SetLimits(f"policy-{number // 3}", number, limits, floors, committed)


FLOORS = (
    Floor("model:small", "tokens", 20, "replica:p/0"),
    Floor("reserved:p:acme", "tokens", 30, "pool:p", "lent:p"),
    Floor("tenant:beta", "tokens", 10, "pool:p", "lent:p"),
)


def check_history(opened: Opened) -> None:
    """The store and a plain book, step by step."""
    for seed in SEEDS:
        ledger, book = Ledger(opened), Book(LEASE_MS, REMEMBER_MS)
        history = History(seed)
        ledger.store = opened.fresh()
        for number in range(LISTS):
            opened.advance(history.step_ms())
            commands = history.commands()
            answers = ledger.ask(*commands)
            expected = book.apply(commands, ledger.store.now_ms())
            where = f"list {number} of History({seed})"
            for command, answer, wanted in zip(commands, answers, expected, strict=True):
                assert answer == wanted, f"{where}: {command}\n  answered {answer}\n  not      {wanted}"
            assert opened.check() == [], where
