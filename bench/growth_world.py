"""A gate and its ledger with so many of everything, for bench/growth.py: the pair of bench/decide.py in other sizes.

`Fleet` is several gateways over one ledger, which answers each at once and tells whom it wakes.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from decide import Pair
from headworks.core import effects, events
from headworks.core.book import Book
from headworks.core.commands import Reserve
from headworks.core.fair import Wake
from headworks.core.gate import Gate
from headworks.core.policy import INFINITE_S, DisciplinePolicy
from headworks.core.types import Capacity, ReplicaSample
from headworks.ledgers.memory import MemoryStore


@dataclass(slots=True)
class Size:
    """How much of everything there is."""

    waiting: int = 100
    tenants: int = 100
    reservations: int = 64
    replicas: int = 1
    gateways: int = 1


class Sized(Pair):
    """One gateway of any size."""

    def __init__(self, size: Size) -> None:
        self.tenants, self.running, self.replicas = size.tenants, size.reservations, size.replicas
        self._looks = 0
        super().__init__(DisciplinePolicy().kind, size.waiting)

    def tick_us(self) -> float:
        """One tick, which comes ten times a second whatever arrives."""
        self._now_s += 0.1
        return timed_us(lambda: self._feed(events.Tick()))

    def look_us(self) -> float:
        """One look at one replica, of which each gets two a second."""
        self._looks += 1
        number, now_s = self._looks % self.replicas, self._now_s
        iterations = (int(now_s / 0.025),)
        seen = ReplicaSample(f"mock/{number}", "1", now_s, now_s, iterations, self.running // self.replicas, 0, None, None, 0)
        return timed_us(lambda: self._feed(events.ReplicaSampled(seen)))


@dataclass(slots=True)
class Seat:
    """One gateway of a fleet."""

    gate: Gate
    inbox: deque[events.Event] = field(default_factory=deque)
    wake_s: float = INFINITE_S


class Fleet(Sized):
    """As many gateways as wanted, over one ledger; requests come to each in its turn, and waiting is spread over them."""

    def __init__(self, size: Size) -> None:
        self.tenants, self.running, self.replicas = size.tenants, size.reservations, 1
        self._now_s, self._number, self._running = 1.0, 0, deque[str]()
        self._taken, self._decisions, self._asks = 0, 0, 0
        self._owners: dict[str, Seat] = {}
        """Who asked for each execution."""
        settings = self.policy(DisciplinePolicy().kind)
        names = [f"gateway-{number}" for number in range(size.gateways)]
        self._seats = [Seat(Gate(settings, name, name.encode().ljust(16), "boot")) for name in names]
        book = Book(lease_ms=5_000, remember_ms=3_600_000)
        self._store = MemoryStore(book, lambda: int(self._now_s * 1000), self._woken)
        said = Capacity("mock/0", "vllm", "mock", "1", 1 << 20, self.kv_tokens, 16, None, ("E1", "E3a"))
        for seat in self._seats:
            self._tell(seat, events.Tick(), events.ReplicaDescribed(said))
        for _ in range(size.reservations + size.waiting):
            self._tell(self._next_seat(), events.Arrived(self._request()))
            self._advance()

    def _next_seat(self) -> Seat:
        return self._seats[self._number % len(self._seats)]

    def decide_us(self) -> float:
        """One arrival at the next gateway, and the end of what has run longest, wherever that is."""
        while not self._running:  # all places are empty: until somebody asks for one
            self._advance()
        seat, arrived, stopped = self._next_seat(), events.Arrived(self._request()), self._stopped()
        began_ns = time.process_time_ns()
        self._tell(seat, arrived)
        self._tell(self._owners.pop(stopped.execution), stopped)
        took_us = (time.process_time_ns() - began_ns) / 1000
        self._taken += len(self._running)
        self._decisions += 1
        self._advance()
        return took_us

    def asks_each(self) -> float:
        """How often the ledger was asked for capacity, a decision."""
        return self._asks / self._decisions

    def taken_ratio(self) -> float:
        """Of the places, how many were taken after each decision, on the mean: somebody always waited."""
        return self._taken / self._decisions / self.running

    def whole(self) -> bool:
        """Every counter is the sum of its parts."""
        return not any(seat.gate.check() for seat in self._seats) and not self._store.book.check()

    def _advance(self) -> None:
        self._now_s += self.apart_s
        for seat in self._seats:
            if seat.wake_s <= self._now_s:
                seat.wake_s = INFINITE_S
                self._tell(seat, events.Tick())

    def _woken(self, wake: Wake) -> None:
        seat = self._seats[int(wake.owner.gateway.removeprefix("gateway-"))]
        seat.inbox.append(events.Freed(wake.pool, wake.flow))

    def _tell(self, seat: Seat, *told: events.Event) -> None:
        """Until nobody has anything left to take in."""
        seat.inbox.extend(told)
        while busy := [one for one in self._seats if one.inbox]:
            for one in busy:
                self._take(one)

    def _take(self, seat: Seat) -> None:
        for effect in seat.gate.handle(seat.inbox.popleft(), self._now_s):
            if isinstance(effect, effects.Ask):
                self._asks += self._decisions and sum(isinstance(command, Reserve) for command in effect.commands)
                self._store.apply(effect.commands, lambda answers: seat.inbox.append(events.LedgerAnswered(answers)))
            elif isinstance(effect, effects.Run):
                self._running.append(effect.execution.id)
                self._owners[effect.execution.id] = seat
            elif isinstance(effect, effects.WakeAt):
                seat.wake_s = effect.at_s


def timed_us(call: Callable[[], object]) -> float:
    """This process's CPU time of one call."""
    began_ns = time.process_time_ns()
    call()
    return (time.process_time_ns() - began_ns) / 1000


class Steps:
    """Counts the interpreter's steps: what other work on the machine does not change. Of plain Python only."""

    def __init__(self) -> None:
        self.count = 0

    def of(self, call: Callable[[], object]) -> int:
        """How many one call takes."""
        self.count = 0
        sys.settrace(self._begun)
        try:
            call()
        finally:
            sys.settrace(None)
        return self.count

    def _begun(self, frame: FrameType, event: str, argument: Any) -> Callable[[FrameType, str, Any], Any]:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Callable[[FrameType, str, Any], Any]:
        self.count += event == "opcode"
        return self._step
