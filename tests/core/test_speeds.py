"""Replicas that are not equally quick: a request goes where it is complete first (D4)."""

from __future__ import annotations

from random import Random

import pytest

from headworks.core.effects import Run
from headworks.core.replica import Replica
from tests.core.driver import Bench, capacity, policy

PATIENT = {"ttft_slo_s": None, "wait_s_max": 20.0, "e2e_slo_s": None}


def bench_of(replicas: int = 2) -> Bench:
    return Bench(
        policy(replicas=replicas, interactive=PATIENT, pool={"active_requests_max": 100}),
        capacities=tuple(capacity(f"p/{number}", kv_tokens=1_000_000) for number in range(replicas)),
    )


def replicas(bench: Bench) -> list[Replica]:
    return list(bench.gate._desk.pools["p"].replicas.values())


def measured(bench: Bench, *paces_s: float, answers: int = 60) -> list[float]:
    """Answers of a hundred tokens on each replica in turn, at its pace. How many times slower each counts."""
    usual = bench.gate._desk.pools["p"].usual
    for number in range(answers):
        for one, pace_s in zip(replicas(bench), paces_s, strict=False):
            one.speed.answered(usual, 1.0 + number % 3, 100, 100 * pace_s)
    return [one.speed.times for one in replicas(bench)]


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
    quick, slow = measured(bench, 0.01, 0.02)
    assert slow / quick == pytest.approx(2.0, rel=0.1)
    assert shares(bench, 30, prefix) == {"p/0": 20, "p/1": 10}


def test_D4_one_slow_replica_of_four_makes_the_others_neither_quick_nor_slow() -> None:
    assert measured(bench_of(4), 0.01, 0.01, 0.01, 0.02) == [1.0, 1.0, 1.0, pytest.approx(1.6, abs=0.1)]


@pytest.mark.parametrize("pace_s", [0.0085, 0.012])
def test_D4_replicas_that_differ_by_a_fifth_count_as_alike(pace_s: float) -> None:
    bench = bench_of()
    assert measured(bench, 0.01, pace_s) == [1.0, 1.0]
    assert shares(bench, 20) == {"p/0": 10, "p/1": 10}


def test_D4_answers_that_vary_by_more_than_engines_do_say_nothing_of_them() -> None:
    random, bench = Random(7), bench_of(4)
    usual, wrong = bench.gate._desk.pools["p"].usual, 0
    for _ in range(500):
        for one in replicas(bench):
            one.speed.answered(usual, random.uniform(1, 30), 100, random.lognormvariate(0.0, 0.5))
            wrong += one.speed.times != 1.0
    assert wrong <= 20, "of 2,000"


def test_D4_one_that_is_not_known_yet_is_as_usual() -> None:
    assert measured(bench_of(4), 0.01, 0.01, 0.01, 0.16, answers=19) == [1.0, 1.0, 1.0, 1.0]
    assert measured(bench_of(4), 0.01, 0.01, 0.01, 0.16, answers=20)[3] > 1.3


def test_D4_one_that_becomes_slow_is_known_for_it_after_a_few_answers_and_well_again_as_soon() -> None:
    bench = bench_of()
    assert measured(bench, 0.01, 0.01, answers=200) == [1.0, 1.0]
    assert measured(bench, 0.01, 0.04, answers=6)[1] > 1.3
    assert measured(bench, 0.01, 0.01, answers=20)[1] == 1.0


def test_D4_however_slow_it_is_it_counts_fourfold_at_most_and_one_answer_is_no_news() -> None:
    bench = bench_of(4)
    assert measured(bench, 0.01, 0.01, 0.01, 0.01)[3] == 1.0
    usual = bench.gate._desk.pools["p"].usual
    replicas(bench)[3].speed.answered(usual, 1.0, 100, 1e9)
    assert replicas(bench)[3].speed.times == 1.0
    for number in range(200):
        replicas(bench)[3].speed.answered(usual, 1.0, 100, 1e9 * 10**number)
    assert replicas(bench)[3].speed.times == pytest.approx(4.0, abs=0.01)


def test_D4_another_process_at_the_same_place_begins_as_usual() -> None:
    bench = bench_of()
    measured(bench, 0.01, 0.04)
    bench.sample("p/1")
    bench.sample("p/1", incarnation="b")
    assert replicas(bench)[1].speed.times == 1.0


def test_D4_it_is_measured_by_what_runs() -> None:
    bench = bench_of()
    for _ in range(100):
        bench.arrive(200, 100)
        bench.arrive(200, 100)
        runs = {run.execution.replica: run.execution.id for run in bench.take(Run)}
        for replica, execution in sorted(runs.items()):
            bench.first_byte(execution)
            bench.advance(1.0 if replica == "p/0" else 2.0)
            bench.complete(execution, prompt_tokens=100, output_tokens=100)
    quick, slow = [one.speed.times for one in replicas(bench)]
    assert slow / quick > 1.6


def test_D4_a_pool_of_one_replica_measures_nothing() -> None:
    bench = bench_of(1)
    bench.arrive(200, 100)
    (run,) = bench.take(Run)
    bench.first_byte(run.execution.id)
    bench.advance(1.0)
    bench.complete(run.execution.id, prompt_tokens=100, output_tokens=100)
    assert bench.gate._desk.pools["p"].usual._count == 0
