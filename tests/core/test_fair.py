"""Turns (D1, D2): the tags and marks themselves, then flows of far and near gateways that share one pool for minutes.

The bound that is tested is the one derived in `core/fair.py`; each workload is many times as large, and the same test
must fail where nobody yields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from random import Random

import pytest

from headworks.core.book import Book
from headworks.core.book_proof import Replica
from headworks.core.commands import Heartbeat, Reserve, SetLimits, Stop, Unmark
from headworks.core.fair import Mark, Turns
from headworks.core.types import Charge, Owner
from headworks.testing.suites.ledger_subject import FIRST, LEASE_MS, REMEMBER_MS, SECOND, reserve, used
from tests.core.books import Asked

POOL = (Charge("pool:pool", "tokens", 1_000),)


def test_D1_a_flow_that_has_had_more_yields_to_one_that_waits() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    assert asked.outcome(reserve("a1", 600, tenant="a")) == "granted"
    assert asked.outcome(reserve("b1", 600, tenant="b", owner=SECOND)) == "refused"
    asked.ask(Stop("a1", FIRST, "E1", "completed", used(600)))
    assert asked.outcome(reserve("a2", 600, tenant="a")) == "yield"
    assert asked.held() == 0
    assert asked.outcome(reserve("b1", 600, tenant="b", owner=SECOND)) == "granted"
    asked.ask(Stop("b1", SECOND, "E1", "completed", used(600)))
    assert asked.outcome(reserve("a2", 600, tenant="a")) == "granted"


def test_D1_classes_first_then_tenants_inside_a_class() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("i1", 900, tenant="a"))
    asked.ask(reserve("k1", 400, tenant="b", service_class="bulk", owner=SECOND))
    asked.ask(Stop("i1", FIRST, "E1", "completed", used(900)))
    assert asked.outcome(reserve("i2", 100, tenant="new")) == "yield", "its class has had its turn"


def test_a_mark_lives_fifty_milliseconds() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("a1", 600, tenant="a"), reserve("b1", 600, tenant="b", owner=SECOND))
    asked.ask(Stop("a1", FIRST, "E1", "completed", used(600)))
    asked.now_ms = 19
    assert asked.outcome(reserve("a2", 600, tenant="a")) == "yield"
    asked.now_ms = 50
    assert asked.outcome(reserve("a2", 600, tenant="a")) == "granted"


def test_a_woken_flow_that_does_not_ask_in_twenty_milliseconds_loses_its_turn() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.now_ms = 10
    asked.ask(reserve("a1", 600, tenant="a"), reserve("b1", 600, tenant="b", owner=SECOND))
    assert asked.book.take_wakes() == []
    asked.ask(Stop("a1", FIRST, "E1", "completed", used(600)))
    assert asked.book.take_wakes() == [(SECOND, "pool")]
    asked.now_ms = 30
    assert asked.outcome(reserve("a2", 600, tenant="a")) == "granted"


def test_only_the_lowest_mark_that_fits_is_woken() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("a1", 600, tenant="a"), reserve("c1", 300, tenant="c"))
    asked.ask(reserve("big", 900, tenant="b", owner=SECOND), reserve("c2", 500, tenant="c"), reserve("a2", 200, tenant="a"))
    asked.ask(Stop("a1", FIRST, "E1", "completed", used(600)))
    assert asked.book.take_wakes() == [(FIRST, "pool")]


def test_a_grant_with_more_behind_it_keeps_its_mark() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("b1", 100, tenant="b", owner=SECOND, more=True))
    asked.ask(reserve("a1", 300, tenant="a"))
    assert asked.outcome(reserve("a2", 300, tenant="a")) == "yield"
    asked.ask(Unmark(("interactive", "b"), "pool", SECOND))
    assert asked.outcome(reserve("a2", 300, tenant="a")) == "granted"


def test_D1_estimates_are_trued_up_and_idleness_is_not_saved() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("a1", 100, tenant="a"), reserve("b1", 100, tenant="b", owner=SECOND))
    asked.ask(Stop("a1", FIRST, "E1", "completed", used(500)), Stop("b1", SECOND, "E1", "completed", used(20)))
    turns = asked.book._turns["pool"].tenants["interactive"]
    assert turns.finish == {"a": 500.0, "b": 20.0}
    asked.ask(reserve("c1", 10, tenant="c"), reserve("a2", 100, tenant="a"))
    assert turns.virtual == 500.0, "time follows the start tags of what is granted"
    asked.ask(Stop("c1", FIRST, "E0", "cancelled", None))
    assert turns.start("c", False) == 500.0, "an idle flow starts at virtual time"


def test_D1_what_never_ran_is_not_charged() -> None:
    asked = Asked(FIRST, limits=POOL)
    asked.ask(reserve("a1", 400, tenant="a"), Stop("a1", FIRST, "E0", "cancelled", None))
    assert asked.book._turns["pool"].tenants["interactive"].finish == {"a": 0.0}


def test_D1_a_correction_does_not_go_back_below_virtual_time() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("a1", 600, tenant="a"), *(reserve(f"b{n}", c, tenant="b", owner=SECOND) for n, c in ((1, 300), (2, 100))))
    asked.ask(reserve("a2", 500, tenant="a"), Stop("a1", FIRST, "E1", "completed", used(10)))
    level = asked.book._turns["pool"].tenants["interactive"]
    assert (level.virtual, level.finish) == (300.0, {"a": 300.0, "b": 400.0})


def test_slots_of_all_gateways_are_told_until_their_gateway_is_gone() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(replace(reserve("a1", 1), slots_tokens=700))
    assert asked.one(replace(reserve("b1", 1, owner=SECOND), slots_tokens=40)).slots_tokens == 740
    asked.advance(LEASE_MS, SECOND)
    assert asked.one(replace(reserve("b2", 1, owner=SECOND), slots_tokens=40)).slots_tokens == 40


def test_answers_count_what_waits_at_every_gateway() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("a1", 900, tenant="a"))
    asked.ask(reserve("a2", 900, tenant="a", waiting_tokens=4_000))
    answer = asked.one(reserve("b1", 700, tenant="b", owner=SECOND, waiting_tokens=700))
    assert answer.waiting_tokens == 6_300
    asked.now_ms = 50
    assert asked.one(reserve("b1", 700, tenant="b", owner=SECOND, waiting_tokens=700)).waiting_tokens == 1_400


def test_D2_a_large_head_is_passed_sixteen_times_and_then_saved_for() -> None:
    asked = Asked(FIRST, SECOND, limits=POOL)
    small = [f"s{number}" for number in range(40)]
    asked.ask(reserve("s-first", 100, tenant="small"))
    outcomes = []
    for name in small:
        asked.ask(reserve("large", 1_000, tenant="large", owner=SECOND))
        outcomes.append(asked.outcome(reserve(name, 100, tenant="small")))
        asked.ask(Stop(name, FIRST, "E1", "completed", used(100)))
    assert outcomes == ["granted"] * 16 + ["yield"] * 24
    asked.ask(Stop("s-first", FIRST, "E1", "completed", used(100)))
    assert asked.outcome(reserve("large", 1_000, tenant="large", owner=SECOND)) == "granted"


def test_D2_the_count_of_passes_starts_again_when_the_flow_has_caught_up() -> None:
    """Sixteen small pass, two large make up for it, and after the small ones' own turns sixteen may pass again."""
    asked = Asked(FIRST, SECOND, limits=POOL)
    asked.ask(reserve("s0", 100, tenant="small", more=True))
    running, course = "s0", ""
    for number in range(1, 70):
        if asked.outcome(reserve(f"l{number}", 1_000, tenant="large", owner=SECOND, more=True)) == "granted":
            course += "L"
            asked.ask(Stop(f"l{number}", SECOND, "E1", "completed", used(1_000)))
        granted = asked.outcome(reserve(f"s{number}", 100, tenant="small", more=True)) == "granted"
        asked.ask(Stop(running, FIRST, "E1", "completed", used(100)))
        if granted:
            course, running = course + "s", f"s{number}"
    assert course.startswith("s" * 16 + "LL" + "s" * 19 + "LL" + "s" * 20 + "LL")


def test_D2_a_head_short_of_its_own_limit_is_passed_freely() -> None:
    asked = Asked(FIRST, SECOND, limits=(*POOL, Charge("tenant:large", "tokens", 500)))
    asked.ask(reserve("large-0", 400, tenant="large", owner=SECOND))
    for number in range(40):
        asked.ask(reserve("large-1", 400, tenant="large", owner=SECOND))
        assert asked.outcome(reserve(f"s{number}", 100, tenant="small")) == "granted"
        asked.ask(Stop(f"s{number}", FIRST, "E1", "completed", used(100)))


def test_one_flow_never_yields_to_itself() -> None:
    asked = Asked(FIRST, limits=POOL)
    outcomes = [asked.outcome(reserve(f"a{number}", 300, more=True)) for number in range(5)]
    assert outcomes == ["granted", "granted", "granted", "refused", "refused"]


# minutes of shared service


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
            for owner, _ in self.book.take_wakes():
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


def test_D1_forty_small_against_four_large_of_equal_total() -> None:
    """4,000 tokens each. At every moment both have had the same, up to one request of each and sixteen that passed."""
    asked = Asked(FIRST, SECOND, limits=POOL)
    waiting = {"small": [100] * 40, "large": [1_000] * 4}
    had, running, widest, number = {"small": 0, "large": 0}, [], 0, 0
    while waiting["small"] or waiting["large"]:
        granted = False
        for tenant, owner in (("small", FIRST), ("large", SECOND)):
            if waiting[tenant]:
                number += 1
                name, size = f"x{number}", waiting[tenant][0]
                if asked.outcome(reserve(name, size, tenant=tenant, owner=owner, more=len(waiting[tenant]) > 1)) == "granted":
                    had[tenant] += waiting[tenant].pop(0)
                    running.append((name, owner, size))
                    granted = True
                    if waiting["small"] and waiting["large"]:
                        widest = max(widest, abs(had["small"] - had["large"]))
        if not granted and running:
            name, owner, size = running.pop(0)
            asked.ask(Stop(name, owner, "E1", "completed", used(size)))
        asked.now_ms += 1
        asked.ask(Heartbeat(FIRST), Heartbeat(SECOND))
    assert had == {"small": 4_000, "large": 4_000}
    assert widest <= 100 + 1_000 + 16 * 100
