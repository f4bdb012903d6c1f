"""Random histories of a few keys at two gateways before one ledger: whatever is lost or repeated, a key runs once (A6, I12).

What physically runs is kept here, from what was sent and what ended, and asks nobody.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random

import pytest

from headworks.core import events
from headworks.core.effects import Attach, Reply, Run
from headworks.core.types import RequestKey, Usage
from tests.core.driver import Bench, policy

SEEDS = range(1, 41)
STEPS = 120
KEYS = ("a", "b", "c")
USED = Usage(999, 0, 1, 0.0, "stop", True)
LOSS_S = 0.9
"""Shorter than what is left of a lease, so that only messages are lost and no gateway."""


class Keys:
    """Two gateways, their clients, and the engine behind them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        settings = policy(interactive={"wait_s_max": 1.0}, pool={"active_requests_max": 2})
        first = Bench(settings, boot="boot-1")
        self.benches = (first, Bench(settings, book=first.book, boot="boot-2"))
        self.key_of: dict[str, str] = {}
        self.open: dict[str, Bench] = {}
        """Arrivals whose client waits."""
        self.running: dict[str, tuple[Bench, str]] = {}
        """Executions inside the engine, and the key they run for."""
        self.begun: set[str] = set()
        self.sent = 0
        self.told: Counter[str] = Counter()
        self.loss_s = 0.0

    def step(self) -> None:
        act = self.random.choice(
            (self.arrives, self.arrives, self.arrives, self.leaves, self.begins, self.ends, self.ends, self.passes, self.loses)
        )
        act()
        self.look()

    def arrives(self) -> None:
        bench, key = self.random.choice(self.benches), self.random.choice(KEYS)
        fingerprint = self.random.choice(("f", "f", "f", "f", "g"))
        name = f"{bench.gate._desk.owner.boot}-{len(self.key_of)}"
        self.key_of[name], self.open[name] = key, bench
        bench.arrive(1_000, id=name, key=RequestKey("acme", key), key_given=True, fingerprint=fingerprint)

    def leaves(self) -> None:
        if self.open:
            name = self.random.choice(list(self.open))
            self.open.pop(name).feed(events.ClientGone(name))

    def begins(self) -> None:
        waiting = [name for name in self.running if name not in self.begun]
        if waiting:
            name = self.random.choice(waiting)
            self.begun.add(name)
            self.running[name][0].feed(events.FirstByte(name))

    def ends(self) -> None:
        """In one of the ways there are. What ended stays ended for the engine, whoever hears of it."""
        if not self.running:
            return
        name = self.random.choice(list(self.running))
        bench, _ = self.running.pop(name)
        ways: list[events.Event] = [events.Stopped(name, USED, False)] * 4
        ways += [events.Stopped(name, USED, True), events.Evidence(name, "E3a")]
        if name not in self.begun:
            ways += [events.NotSent(name, "busy"), events.NotSent(name, "gone")]
        bench.feed(self.random.choice(ways))

    def passes(self) -> None:
        self.advance(self.random.choice((0.01, 0.06, 0.3)))

    def advance(self, seconds: float) -> None:
        for bench in self.benches:
            bench.advance(seconds)
        self.loss_s += seconds
        if self.loss_s > LOSS_S:
            self.mends()

    def loses(self) -> None:
        """Messages to the ledger or its answers, or what was kept of the answers."""
        bench = self.random.choice(self.benches)
        what = self.random.choice(("lose_asks", "lose_answers", "keeps_answers"))
        setattr(bench, what, not getattr(bench, what))

    def mends(self) -> None:
        self.loss_s = 0.0
        for bench in self.benches:
            bench.lose_asks = bench.lose_answers = False

    def look(self) -> None:
        """What was sent and answered since."""
        for bench in self.benches:
            for run in bench.take(Run):
                assert run.execution.id not in self.running and run.execution.id not in self.begun, "sent twice"
                self.running[run.execution.id] = bench, self.key_of[run.id]
                self.sent += 1
            for reply in bench.take(Reply):
                assert self.open.pop(reply.id, None) is bench, f"{reply.id} was answered, and nobody waits for that"
                self.told[reply.decision.reason] += 1
            self.told["attach"] += len(bench.take(Attach))
        keys = [key for _, key in self.running.values()]
        assert len(keys) == len(set(keys)), f"a key runs twice: {self.running}"


def finish(keys: Keys) -> None:
    """No more faults: everything ends, and there is time for what is asked again."""
    keys.mends()
    for _ in range(60):
        for name, (bench, _) in list(keys.running.items()):
            del keys.running[name]
            bench.feed(events.Stopped(name, USED, False))
            keys.look()
        keys.advance(0.5)
        keys.look()


@cache
def reached() -> Counter[str]:
    """What happened in all histories together, each of which held."""
    found: Counter[str] = Counter()
    for seed in SEEDS:
        found += history(seed)
    return found


def history(seed: int) -> Counter[str]:
    keys = Keys(seed)
    for _ in range(STEPS):
        keys.step()
    finish(keys)
    outcomes = Counter(one.id for bench in keys.benches for one in bench.outcomes())
    assert outcomes == Counter(dict.fromkeys(keys.key_of, 1)), "one outcome for each arrival"
    for bench in keys.benches:
        desk = bench.gate._desk
        assert (desk.lives, desk.runs, desk.claims) == ({}, {}, {})
    assert keys.benches[0].held() == 0
    ends = Counter(f"outcome {one.outcome}" for bench in keys.benches for one in bench.outcomes())
    return keys.told + ends


@pytest.mark.parametrize("seed", SEEDS)
def test_A6_one_execution_of_a_key_at_a_time_and_one_outcome_for_each_arrival(seed: int) -> None:
    """Run again: pytest tests/properties/test_keys.py -k "one_execution and SEED"."""
    history(seed)


@pytest.mark.parametrize(
    "what",
    [
        "attach",
        "idempotency_in_progress",
        "idempotency_key_reused",
        "idempotency_result_gone",
        "outcome completed",
        "outcome replayed",
        "outcome cancelled",
        "outcome failed",
        "outcome expired",
    ],
)
def test_I43_the_histories_meet_what_is_rare(what: str) -> None:
    assert reached()[what] >= 1
