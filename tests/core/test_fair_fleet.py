"""Turns (D1): flows of far and near gateways that share one pool for minutes.

The bound that is tested is the one derived in `core/fair.py`; each workload is many times as large, and the same test
must fail where nobody yields.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from random import Random

import pytest

from headworks.core.book import Book
from headworks.core.book_proof import Replica
from headworks.core.commands import Heartbeat, Reserve, SetLimits, Stop
from headworks.core.fair import Mark, Turns
from headworks.core.types import Charge, Owner
from headworks.testing.suites.ledger_subject import LEASE_MS, REMEMBER_MS, reserve


class NobodyYields(Book):
    """The simpler idea: local queues and shared counters, first come first served."""

    def _whose_turn(self, command: Reserve, turns: Turns, replica: Replica) -> tuple[bool, Sequence[Mark]]:
        return False, ()


class Fleet:
    """Gateways with endless queues in front of one pool. `tau_ms` is each gateway's round trip to the ledger."""

    POOL_TOKENS = 4_000
    TOKENS_PER_MS = 4.0
    """The pool's service rate: a request holds its tokens for tokens ÷ rate × (pool ÷ tokens)."""
    RETRY_MS = 25

    def __init__(self, kind: type[Book], taus_ms: Sequence[int], weights: dict[str, float], seed: int) -> None:
        self.book = kind(LEASE_MS, REMEMBER_MS)
        self.owners = [Owner(f"gateway-{number}", "boot") for number in range(len(taus_ms))]
        self.taus_ms = dict(zip(self.owners, taus_ms, strict=True))
        self.weights = weights
        self.served: dict[str, int] = dict.fromkeys(weights, 0)
        self.lead: list[float] = []
        """Over time: what the first flow has had more than the last, each by its weight."""
        self.busy_token_ms = 0
        self._random = Random(seed)
        self._events: list[tuple[int, int, object]] = []
        self._number = 0
        self._heads: dict[tuple[Owner, str], int] = {}
        self._asking: set[tuple[Owner, str]] = set()

    def run(self, sizes: dict[str, tuple[int, int]], placed: dict[Owner, tuple[str, ...]], until_ms: int) -> None:
        limit = SetLimits("policy", 1, (Charge("pool:pool", "tokens", self.POOL_TOKENS),))
        self.book.apply([limit, *(Heartbeat(owner) for owner in self.owners)], 0)
        for owner, flows in placed.items():
            for flow in flows:
                self._later(0, ("ask", owner, flow))
        beat_ms = 0
        while self._events[0][0] < until_ms:
            now_ms, _, event = heappop(self._events)
            if now_ms >= beat_ms:
                beat_ms = now_ms + 1_000
                self.book.apply([Heartbeat(owner) for owner in self.owners], now_ms)
            self._happen(event, sizes, now_ms)

    def _happen(self, event: object, sizes: dict[str, tuple[int, int]], now_ms: int) -> None:
        assert isinstance(event, tuple)
        if event[0] == "ask":
            _, owner, flow = event
            if (owner, flow) not in self._asking:
                self._asking.add((owner, flow))
                self._heads.setdefault((owner, flow), self._random.randint(*sizes[flow]))
                self._later(now_ms + self.taus_ms[owner] // 2, ("arrives", owner, flow))
        elif event[0] == "arrives":
            self._arrives(event[1], event[2], now_ms)
        elif event[0] == "answered":
            _, owner, flow, outcome = event
            self._asking.discard((owner, flow))
            self._later(now_ms + (0 if outcome == "granted" else self.RETRY_MS), ("ask", owner, flow))
        else:
            self.book.apply([Stop(event[1], event[2], "E1", "completed", None)], now_ms)
            for owner, _, _ in self.book.take_wakes():
                for flow in self.weights:
                    if (owner, flow) in self._heads:
                        self._later(now_ms + self.taus_ms[owner] // 2, ("ask", owner, flow))

    def _arrives(self, owner: Owner, flow: str, now_ms: int) -> None:
        self._number += 1
        cost, name = self._heads[owner, flow], f"x{self._number}"
        ask = reserve(name, cost, tenant=flow, owner=owner, more=True, charges=(Charge("pool:pool", "tokens", cost),))
        ask.weights = (1.0, self.weights[flow])
        outcome = self.book.apply([ask], now_ms)[0].outcome
        if outcome == "granted":
            del self._heads[owner, flow]
            self.served[flow] += cost
            first, last = self.weights
            self.lead.append(self.served[first] / self.weights[first] - self.served[last] / self.weights[last])
            runs_ms = round(self.POOL_TOKENS / self.TOKENS_PER_MS)
            self.busy_token_ms += runs_ms * cost
            self._later(now_ms + runs_ms, ("ended", name, owner))
        self._later(now_ms + self.taus_ms[owner] // 2, ("answered", owner, flow, outcome))

    def _later(self, at_ms: int, event: object) -> None:
        self._number += 1
        heappush(self._events, (at_ms, self._number, event))

    def spread(self) -> float:
        """The largest difference of weighted service over any interval."""
        lowest, highest, widest = self.lead[0], self.lead[0], 0.0
        for lead in self.lead:
            lowest, highest = min(lowest, lead), max(highest, lead)
            widest = max(widest, lead - lowest, highest - lead)
        return widest


def bound(largest: dict[str, int], weights: dict[str, float], tau_ms: int) -> float:
    """L_f/w_f + L_h/w_h + q + R·τ/min w, where only the small requests can pass a head, and e = 0."""
    own = sum(largest[flow] / weights[flow] for flow in weights)
    passing = 16 * min(largest[flow] / weights[flow] for flow in weights)
    return own + passing + Fleet.TOKENS_PER_MS * tau_ms / min(weights.values())


SIZES = {"near": (50, 200), "far": (200, 800)}
LARGEST = {"near": 200, "far": 800}


def fleet(kind: type[Book], gateways: int, weights: dict[str, float], seed: int = 1) -> Fleet:
    """The near flow at the first half of the gateways, the far one, three times as far away, at the others."""
    taus_ms = [2 if number < max(1, gateways // 2) else 6 for number in range(gateways)]
    shared = Fleet(kind, taus_ms, weights, seed)
    half = max(1, gateways // 2)
    near, far = shared.owners[:half], shared.owners[half:] or shared.owners
    placed = {owner: tuple(flow for flow, at in (("near", near), ("far", far)) if owner in at) for owner in shared.owners}
    shared.run(SIZES, placed, until_ms=34_000)
    return shared


@pytest.mark.parametrize("gateways", [1, 2, 8])
@pytest.mark.parametrize("weights", [{"near": 1.0, "far": 1.0}, {"near": 1.0, "far": 3.0}])
def test_D1_weighted_service_stays_within_the_bound(gateways: int, weights: dict[str, float]) -> None:
    shared = fleet(Book, gateways, weights)
    allowed = bound(LARGEST, weights, tau_ms=6)
    assert min(shared.served[flow] / weights[flow] for flow in weights) >= 8 * allowed, "too little work to mean anything"
    assert shared.spread() <= allowed
    assert shared.book.check() == []


def test_D1_the_pool_is_kept_busy() -> None:
    shared = fleet(Book, 8, {"near": 1.0, "far": 1.0})
    assert shared.busy_token_ms >= 0.9 * Fleet.POOL_TOKENS * 34_000


def test_D1_negative_control_local_queues_with_shared_counters() -> None:
    shared = fleet(NobodyYields, 2, {"near": 1.0, "far": 1.0})
    assert shared.spread() > 8 * bound(LARGEST, {"near": 1.0, "far": 1.0}, tau_ms=6)
