"""Replicas that are not equally quick: a request goes where it is complete first (D4)."""

from __future__ import annotations

import pytest

from headworks.core.effects import Run
from headworks.core.replica import Replica
from headworks.core.speeds import compare_speeds
from tests.core.driver import Bench, capacity, policy

PATIENT = {"ttft_slo_s": None, "wait_s_max": 20.0, "e2e_slo_s": None}


def bench_of(replicas: int = 2) -> Bench:
    return Bench(
        policy(replicas=replicas, interactive=PATIENT, pool={"active_requests_max": 100}),
        capacities=tuple(capacity(f"p/{number}", kv_tokens=1_000_000) for number in range(replicas)),
    )


def replicas(bench: Bench) -> list[Replica]:
    return list(bench.gate._desk.pools["p"].replicas.values())


def measured(replica: Replica, token_s: float, first_s: float = 0.1, answers: int = 10) -> None:
    """Answers of 100 tokens that it has written at this pace, whatever ran beside them."""
    for number in range(answers):
        replica.decode.observe(1.0 + number % 3, 100, 100 * token_s)
        replica.prefill.observe(1024.0 + number % 3, 0, first_s, True, 100.0)


def shares(bench: Bench, requests: int, prefix: bool = False) -> dict[str, int]:
    """Where so many go that all stay."""
    found: dict[str, int] = {}
    for number in range(requests):
        bench.arrive(100, 50, prefix=(number,) if prefix else ())
        (run,) = bench.take(Run)
        bench.first_byte(run.execution.id)
        found[run.execution.replica] = found.get(run.execution.replica, 0) + 1
    return found


@pytest.mark.parametrize("prefix", [False, True])
def test_D4_a_replica_at_half_speed_gets_half_as_much(prefix: bool) -> None:
    bench = bench_of()
    for one, token_s in zip(replicas(bench), (0.01, 0.02), strict=True):
        measured(one, token_s, first_s=10 * token_s)
    bench.sample()
    assert [one.writes_times for one in replicas(bench)] == [1.0, pytest.approx(2.0)]
    assert shares(bench, 30, prefix) == {"p/0": 20, "p/1": 10}


@pytest.mark.parametrize("token_s", [0.0085, 0.012])
def test_D4_replicas_that_differ_by_a_fifth_count_as_alike(token_s: float) -> None:
    bench = bench_of()
    for one, each_s in zip(replicas(bench), (0.01, token_s), strict=True):
        measured(one, each_s)
    bench.sample()
    assert shares(bench, 20) == {"p/0": 10, "p/1": 10}


def test_D4_one_that_is_not_known_yet_is_as_usual_and_one_slow_one_makes_nobody_quick() -> None:
    bench = bench_of(4)
    first, second, third, _ = replicas(bench)
    for one, token_s in ((first, 0.01), (second, 0.01), (third, 0.04)):
        measured(one, token_s)
    bench.sample()
    assert [one.writes_times for one in replicas(bench)] == [1.0, 1.0, pytest.approx(4.0), 1.0]


def test_D4_one_that_has_become_slow_is_known_for_it_after_a_few_answers() -> None:
    bench = bench_of()
    for one in replicas(bench):
        measured(one, 0.01, answers=200)
    measured(replicas(bench)[1], 0.04, answers=5)
    bench.sample()
    assert replicas(bench)[1].writes_times > 2.5


def test_D4_however_slow_it_is_it_counts_eightfold_at_most() -> None:
    bench = bench_of()
    for one, token_s in zip(replicas(bench), (0.01, 1.0), strict=True):
        measured(one, token_s)
    bench.sample()
    assert replicas(bench)[1].writes_times == 8.0
    assert shares(bench, 18) == {"p/0": 16, "p/1": 2}


def test_D4_it_is_measured_by_what_runs() -> None:
    bench = bench_of()
    for _ in range(20):
        bench.arrive(200, 100)
        bench.arrive(200, 100)
        for run in sorted(bench.take(Run), key=lambda run: run.execution.replica):
            bench.first_byte(run.execution.id)
            bench.advance(1.0 if run.execution.replica == "p/0" else 2.0)
            bench.complete(run.execution.id, prompt_tokens=100, output_tokens=100)
    bench.sample()
    assert [one.writes_times for one in replicas(bench)] == [1.0, pytest.approx(2.0, rel=0.1)]


def test_D4_nothing_is_compared_where_nothing_is_known() -> None:
    bench = bench_of()
    compare_speeds(replicas(bench))
    assert [(one.reads_times, one.writes_times) for one in replicas(bench)] == [(1.0, 1.0)] * 2
