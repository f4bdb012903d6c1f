"""`ContinuousBatching` against a plain engine that does every token by hand, on random histories.

The model files work under the step in which it is due and never looks at the batch; the reference below walks over
every sequence in every step. They must agree on every output, and on what is held, after every event.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from headworks.sim.batching import ContinuousBatching
from headworks.sim.engine import Finished, FirstToken, Output, Preempted, Submitted, Tokens
from headworks.sim.presets import tiny

BLOCK, BLOCKS, SEATS, BUDGET = 16, 19, 4, 64


@dataclass(eq=False)
class One:
    execution: str
    prompt: int
    output: int
    computed: int = 0
    generated: int = 0

    def blocks(self) -> int:
        return -(-self.computed // BLOCK)


class ByHand:
    """Fixed steps of 10 ms, one sample each, no names, reports of one token."""

    def __init__(self) -> None:
        self.arrived: list[One] = []
        self.waiting: list[One] = []
        self.running: list[One] = []
        self.aborting: list[str] = []
        self.plan: list[tuple[One, int]] = []

    def used(self) -> int:
        return sum(one.blocks() for one in self.running)

    def boundary(self, now_s: float) -> list[Output]:
        outputs = self._end(now_s)
        self.waiting, self.arrived = self.waiting + self.arrived, []
        for line in (self.waiting, self.running):
            for one in [one for one in line if one.execution in self.aborting]:
                line.remove(one)
        for execution in self.aborting:
            outputs.append(Finished(execution, "abort", now_s))
        self.aborting = []
        preempted = False
        decoding = [one for one in self.running if one.computed == one.prompt + one.generated - 1 and one.generated]
        budget = BUDGET - len(decoding)
        for one in decoding + [one for one in self.running if one not in decoding]:
            if one not in self.running:
                continue
            chunk = 1 if one in decoding else min(budget, one.prompt + one.generated - one.computed)
            if chunk == 0:
                continue
            while self.used() - one.blocks() + -(-(one.computed + chunk) // BLOCK) > BLOCKS:
                victim = self.running.pop()
                # A step's work that is already planned for a victim is void; so is its memory.
                self.plan = [(planned, size) for planned, size in self.plan if planned is not victim]
                victim.computed, preempted = 0, True
                self.waiting.insert(0, victim)
                outputs.append(Preempted(victim.execution, 0, now_s))
                if victim is one:
                    break
            if one in self.running:
                budget -= 0 if one in decoding else chunk
                self._take(one, chunk)
        while not preempted and budget and self.waiting and len(self.running) < SEATS:
            one = self.waiting[0]
            target = one.prompt + one.generated
            if self.used() + -(-target // BLOCK) > BLOCKS:
                break
            self.running.append(self.waiting.pop(0))
            chunk = min(budget, target)
            budget -= chunk
            self._take(one, chunk)
        return outputs

    def _take(self, one: One, chunk: int) -> None:
        one.computed += chunk
        self.plan.append((one, chunk))

    def _end(self, now_s: float) -> list[Output]:
        outputs: list[Output] = []
        plan, self.plan = self.plan, []
        for one, _ in plan:
            if one.computed < one.prompt + one.generated:
                continue
            one.generated += 1
            if one.generated == 1:
                outputs.append(FirstToken(one.execution, now_s))
            outputs.append(Tokens(one.execution, 0, 1, now_s))
            if one.generated == one.output:
                self.running.remove(one)
                self.aborting = [execution for execution in self.aborting if execution != one.execution]
                outputs.append(Finished(one.execution, "stop", now_s))
        return outputs

    def held(self) -> dict[str, int]:
        return {one.execution: one.blocks() * BLOCK for one in self.running} | {
            one.execution: 0 for one in self.waiting + self.arrived
        }


def history(seed: int) -> int:
    rng = random.Random(seed)
    engine, by_hand = ContinuousBatching(tiny()), ByHand()
    preemptions = 0
    for step in range(500):
        now_s = round(step * 0.01, 9)
        expected, got = by_hand.boundary(now_s), engine.advance(now_s)
        preemptions += sum(isinstance(output, Preempted) for output in got)
        if rng.random() < 0.12 and step < 400:
            prompt, output = rng.randint(1, 150), rng.randint(1, 90)
            assert engine.submit(f"e{step}", prompt, output, 1, (), now_s) == Submitted.ACCEPTED
            by_hand.arrived.append(One(f"e{step}", prompt, output))
        if not by_hand.plan:
            # An idle engine does not wait for a boundary.
            expected += by_hand.boundary(now_s)
            got += engine.advance(now_s)
        inside = sorted(by_hand.held())
        if inside and rng.random() < 0.05:
            execution = rng.choice(inside)
            engine.abort(execution, now_s)
            by_hand.aborting += [execution] if execution not in by_hand.aborting else []
        assert sorted(map(repr, got)) == sorted(map(repr, expected)), f"seed {seed} step {step}"
        held = {execution: one.kv_tokens for execution, one in engine.held(now_s).items()}
        assert held == by_hand.held(), f"seed {seed} step {step}"
    return preemptions


@pytest.mark.parametrize("seed", range(40))
def test_G1_the_model_agrees_with_an_engine_that_does_every_token_by_hand(seed: int) -> None:
    print(f"replay: pytest 'tests/sim/test_engine_reference.py' -k 'by_hand and [{seed}]'")
    history(seed)


def test_G1_the_histories_reach_preemption() -> None:
    assert sum(history(seed) for seed in range(5)) >= 10
