"""The running limit against an engine whose knee nobody has told it (B8), in virtual time and through the whole gate.

The engine's step takes base + c · n for n running sequences: the promise on tokens breaks at a knee that only the test knows.
Demand is three times what the engine can do at its knee; nothing about the number of places is configured.
"""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from headworks.core.policy import ClassPolicy, Policy, PoolPolicy, ReplicaPolicy, TenantPolicy
from headworks.sim.batching import ContinuousBatching
from headworks.sim.clients import Temper
from headworks.sim.compare import MODEL, POOL, make_book, make_gate
from headworks.sim.connection import Distance
from headworks.sim.faults import Fault
from headworks.sim.presets import BatchingSettings, StepCost
from headworks.sim.report import quantile
from headworks.sim.simulation import WARM_S, Setup, Simulation, Source
from headworks.sim.traffic import Planned

PROMISE_S = 0.035
BASE_S = 0.005
OUTPUT_TOKENS = 100
PROMPT_TOKENS = 64
REPLICA = f"{POOL}/0"


def knee_engine(knee: int) -> ContinuousBatching:
    """A step of exactly the promise at the knee. A prompt costs little, and memory is never short."""
    cost = StepCost(BASE_S, prefill_token_s=5e-6, attention_s=0.0, sequence_s=(PROMISE_S - BASE_S) / knee, kv_token_s=0.0)
    return ContinuousBatching(
        BatchingSettings(cost, running_max=512, batch_tokens_max=4096, kv_blocks=40_001, report_tokens=10)
    )


def simulated(
    knee: int,
    duration_s: float = 100.0,
    load: float = 3.0,
    faults: list[Fault] | None = None,
    promise_s: float | None = PROMISE_S,
    **pool: Any,
) -> Simulation:
    """Poisson-free demand: evenly spaced, so that whatever fluctuates is the control's own."""
    interactive = ClassPolicy("interactive", tpot_slo_s=promise_s, ttft_slo_s=1.0, wait_s_max=0.5)
    policy = Policy(
        version="test",
        number=1,
        classes={"interactive": interactive},
        tenants={"acme": TenantPolicy("acme")},
        pools={POOL: PoolPolicy(POOL, (MODEL,), (ReplicaPolicy(REPLICA),), **pool)},
    )
    capacity_per_s = knee / (OUTPUT_TOKENS * PROMISE_S)
    count = int(load * capacity_per_s * duration_s)
    # Lengths from 60 to 139, each as often as any other: what began together does not end together.
    planned = [
        Planned(number / (load * capacity_per_s), 0, PROMPT_TOKENS, 60 + (number * 37) % 80, ()) for number in range(count)
    ]
    source = Source("acme", "acme/key", "interactive", MODEL, POOL, Temper(), output_tokens_max=140, exact_prompt=True)
    setup = Setup(
        policy=policy,
        engines={REPLICA: lambda: knee_engine(knee)},
        sources=[source],
        planned=planned,
        duration_s=duration_s,
        seed=1,
        make_gate=make_gate,
        make_book=make_book,
        distance=Distance(0.0005, 0.0005, 0.005),
        faults=faults or [],
    )
    simulation = Simulation(setup)
    simulation.begin()
    simulation.world.run(simulation.end_s)
    return simulation


def running(simulation: Simulation, from_s: float, to_s: float = 1e9) -> list[float]:
    """How many ran in the engine in each second, by its own gauge: the mean of four looks."""
    looks = [by_name[REPLICA].running for at_s, by_name in simulation.gauges if from_s <= at_s - WARM_S <= to_s]
    return [statistics.mean(looks[start : start + 4]) for start in range(0, len(looks) - 3, 4)]


def slow_tokens_s(simulation: Simulation, from_s: float) -> float:
    """The 95th percentile of what answers that began after this time waited for a token."""
    found = []
    for arrival in simulation.arrivals.values():
        attempt = arrival.attempt
        if attempt.end == "completed" and attempt.first_byte_s is not None and attempt.first_byte_s - WARM_S >= from_s:
            assert attempt.ended_s is not None
            found.append((attempt.ended_s - attempt.first_byte_s) / (arrival.caller.planned.output_tokens - 1))
    slow_s = quantile(found, 0.95)
    assert slow_s is not None
    return slow_s


@pytest.mark.parametrize("knee", [20, 32, 44])
def test_B8_running_settles_at_a_hidden_knee_within_a_minute_and_keeps_the_promise(knee: int) -> None:
    simulation = simulated(knee)
    inside = running(simulation, 60.0)
    assert min(inside) >= 0.8 * knee
    assert max(inside) <= 1.1 * knee
    assert slow_tokens_s(simulation, 60.0) <= PROMISE_S


def test_B8_a_limit_without_feedback_breaks_the_promise() -> None:
    """The negative control: twice the knee, as an operator might have guessed, and nobody who is told of the promise."""
    simulation = simulated(32, duration_s=80.0, active_requests_max=64, promise_s=None)
    assert min(running(simulation, 60.0)) > 1.1 * 32
    assert slow_tokens_s(simulation, 60.0) > 1.5 * PROMISE_S


def test_B8_when_the_knee_halves_running_is_settled_again_within_30_s() -> None:
    """Everything takes 1.75 times as long: 1.75 · (5 + 16 · 30 ÷ 32) = 35 ms, so the promise breaks at 16 instead of 32."""
    simulation = simulated(32, duration_s=140.0, faults=[Fault(60.0, "engine_slow", REPLICA, for_s=1_000.0, ratio=1.75)])
    assert min(running(simulation, 40.0, 59.0)) >= 0.8 * 32
    inside = running(simulation, 90.0)
    assert min(inside) >= 0.8 * 16
    assert max(inside) <= 1.1 * 16
    assert slow_tokens_s(simulation, 90.0) <= PROMISE_S


def test_B8_near_the_threshold_the_admitted_rate_is_steady() -> None:
    simulation = simulated(200, duration_s=80.0, load=1.1)
    admitted = [0] * 80
    for arrival in simulation.arrivals.values():
        if arrival.sent_s is not None and arrival.sent_s - WARM_S < 80.0:
            admitted[int(arrival.sent_s - WARM_S)] += 1
    late = admitted[40:]
    assert statistics.pstdev(late) <= 0.15 * statistics.mean(late)
