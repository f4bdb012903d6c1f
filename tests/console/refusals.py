"""Requests that a real gate refused, each for another reason, as lines of a real decision log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headworks.core import events
from headworks.core.effects import Record
from headworks.gateway.decisions import DecisionLog, find
from tests.core.driver import Bench, capacity, drained_at, policy

PATIENT = {"ttft_slo_s": None, "wait_s_max": 2.0}
WALL_S = 1_795_996_800.0 - 100.0
"""The bench's clock begins at 100 s: that is midnight, UTC."""
Scene = Callable[[], tuple[Bench, str]]


def logged(bench: Bench, directory: Path) -> None:
    """Everything the gate has written down so far, into a log."""
    now_s = 0.0
    log = DecisionLog(directory, clock_s=lambda: now_s, wall_s=lambda: WALL_S + now_s)
    for effect in bench.effects:
        if isinstance(effect, Record):
            record = effect.record
            now_s = getattr(record, "decided_s", None) or getattr(record, "ended_s", 0.0)
            log.write(record)
    log.close()


def lines(scene: Scene, directory: Path) -> list[dict[str, Any]]:
    """What the log knows of the scene's refused request."""
    bench, name = scene()
    logged(bench, directory)
    return find(directory, name)


def tenant_tokens() -> tuple[Bench, str]:
    bench = Bench(policy(interactive={**PATIENT, "on_tenant_full": "refuse"}, tenant={"active_tokens_max": 15_000}))
    bench.arrive(9_000)
    return bench, bench.arrive(8_000, output_tokens=500)


def tenant_sequences_after_waiting() -> tuple[Bench, str]:
    bench = Bench(policy(interactive=PATIENT, tenant={"active_requests_max": 1}))
    bench.arrive(100)
    name = bench.arrive(100)
    bench.advance(2.1)
    return bench, name


def pool_full_after_waiting() -> tuple[Bench, str]:
    bench = Bench(policy(interactive=PATIENT, pool={"active_tokens_max": 40_000}))
    for tokens in (12_000, 16_000, 8_000):
        bench.arrive(tokens)
    name = bench.arrive(7_000)
    bench.advance(2.1)
    return bench, name


def pool_full_behind_others_after_waiting() -> tuple[Bench, str]:
    """4,000 tokens would have fitted, but 7,000 waited before it."""
    bench = Bench(policy(interactive=PATIENT, pool={"active_tokens_max": 40_000}))
    for tokens in (12_000, 16_000, 8_000, 7_000):
        bench.arrive(tokens)
    name = bench.arrive(5_000)
    bench.advance(2.1)
    return bench, name


def tenant_and_pool_full_after_waiting() -> tuple[Bench, str]:
    bench = Bench(policy(interactive=PATIENT, tenant={"active_tokens_max": 15_000}, pool={"active_tokens_max": 20_000}))
    bench.arrive(14_000)
    bench.arrive(5_000, tenant="batchco")
    name = bench.arrive(3_000)
    bench.advance(2.1)
    return bench, name


def too_late() -> tuple[Bench, str]:
    """45 wait before it, and ten leave in a second."""
    bench = Bench(policy(interactive={"ttft_slo_s": None, "wait_s_max": 60.0}, pool={"active_requests_max": 1}))
    drained_at(bench, 10.0, 100, waiting=45)
    return bench, bench.arrive(100, start_by_s=bench.now_s + 1.0)


def waiting_blindly() -> tuple[Bench, str]:
    """Nothing has ended yet, so nobody knows how fast anything will."""
    bench = Bench(policy(pool={"active_requests_max": 1}))
    for _ in range(6):
        bench.arrive(100)
    return bench, bench.arrive(100)


def memory_full_after_waiting() -> tuple[Bench, str]:
    bench = Bench(policy(interactive=PATIENT))
    bench.sample(kv_used_ratio=0.91)
    name = bench.arrive(100)
    bench.advance(1.9)
    bench.sample(kv_used_ratio=0.91)
    bench.advance(0.2)
    return bench, name


def too_late_and_memory_full() -> tuple[Bench, str]:
    bench = Bench(policy(interactive={"ttft_slo_s": None, "wait_s_max": 60.0}, pool={"active_requests_max": 1}))
    drained_at(bench, 10.0, 100, waiting=45)
    bench.sample(kv_used_ratio=0.875)
    return bench, bench.arrive(100, start_by_s=bench.now_s + 1.0)


def queue_full() -> tuple[Bench, str]:
    bench = Bench(policy(interactive={**PATIENT, "queue_requests_max": 2}, pool={"active_requests_max": 1}))
    for _ in range(3):
        bench.arrive(100)
    return bench, bench.arrive(100)


def larger_than_the_pool() -> tuple[Bench, str]:
    bench = Bench(policy(interactive=PATIENT), capacities=(capacity(kv_tokens=20_000),))
    return bench, bench.arrive(20_500)


def larger_than_its_tenant() -> tuple[Bench, str]:
    bench = Bench(policy(tenant={"active_tokens_max": 15_000}))
    return bench, bench.arrive(15_001)


def no_engine() -> tuple[Bench, str]:
    bench = Bench(policy(replicas=2), capacities=())
    bench.gate = type(bench.gate)(policy(), "g1", b"seed", "boot-2")
    bench.feed(events.Tick())
    return bench, bench.arrive(100)


def ledger_silent() -> tuple[Bench, str]:
    bench = Bench(policy())
    bench.lose_asks = True
    bench.advance(10.0)
    return bench, bench.arrive(100)


def shutting_down() -> tuple[Bench, str]:
    bench = Bench(policy())
    bench.feed(events.Drain(bench.now_s + 60.0))
    return bench, bench.arrive(100)


def only_observed() -> tuple[Bench, str]:
    settings = policy(tenant={"active_tokens_max": 1_000})
    settings.observe = True
    bench = Bench(settings)
    return bench, bench.arrive(5_000)


SCENES: dict[str, Scene] = {
    scene.__name__: scene
    for scene in (
        *(tenant_tokens, tenant_sequences_after_waiting, pool_full_after_waiting, tenant_and_pool_full_after_waiting),
        pool_full_behind_others_after_waiting,
        *(too_late, waiting_blindly, memory_full_after_waiting),
        *(too_late_and_memory_full, queue_full, larger_than_the_pool, larger_than_its_tenant, no_engine, ledger_silent),
        *(shutting_down, only_observed),
    )
}
