"""A prompt goes where its beginning has been read, unless too much is in hand there (D4)."""

from __future__ import annotations

from typing import Any

from headworks.core.affinity import BLOCKS_MAX, Affinity
from headworks.core.effects import Run
from tests.core.driver import Bench, capacity, policy


def bench_of(replicas: int = 2) -> Bench:
    return Bench(
        policy(replicas=replicas, pool={"active_requests_max": 100}),
        capacities=tuple(capacity(f"p/{number}", kv_tokens=1_000_000) for number in range(replicas)),
    )


def where(bench: Bench) -> list[str]:
    return [run.execution.replica for run in bench.take(Run)]


def test_D4_the_longest_known_beginning_decides() -> None:
    affinity = Affinity()
    affinity.sent((1, 2, 3), "p/0")
    affinity.sent((1, 4), "p/1")
    asked = ((1, 2, 9, 9), (1, 4), (1, 9), (9,), ())
    assert [affinity.where(prefix) for prefix in asked] == [("p/0", 0.5), ("p/1", 1.0), ("p/1", 0.5), ("", 0.0), ("", 0.0)]


def test_D4_what_was_not_seen_for_the_longest_is_forgotten() -> None:
    affinity = Affinity()
    affinity.sent((-1,), "p/0")
    affinity.sent((-2,), "p/0")
    affinity.sent((-1,), "p/0")
    affinity.sent(tuple(range(BLOCKS_MAX - 1)), "p/1")
    assert (affinity.where((-1,)), affinity.where((-2,))) == (("p/0", 1.0), ("", 0.0))


def began(bench: Bench, tokens: int, **changed: Any) -> str:
    """One that is sent and has been read. Returns where."""
    bench.arrive(tokens, **changed)
    (run,) = bench.take(Run)
    bench.first_byte(run.execution.id)
    return run.execution.replica


def test_D4_a_prompt_goes_where_its_beginning_is_though_another_replica_has_less_in_hand() -> None:
    bench = bench_of()
    assert [began(bench, 1_000, prefix=(1, 2)), began(bench, 100), began(bench, 100)] == ["p/0", "p/1", "p/0"]
    assert began(bench, 1_000, prefix=(1, 2, 3)) == "p/0", "two thirds of it, 666 tokens, need not be read there"
    assert began(bench, 100) == "p/1"


def test_D4_not_where_as_much_is_still_to_be_read() -> None:
    bench = bench_of()
    began(bench, 1_000, prefix=(1, 2))
    began(bench, 10)
    bench.arrive(2_400)  # p/0, and is being read
    assert where(bench) == ["p/0"]
    assert began(bench, 1_000, prefix=(1, 2, 3)) == "p/1"
    assert began(bench, 1_000, prefix=(1, 2, 3, 4)) == "p/1", "and from then on it is known there"


def test_D4_a_hot_beginning_makes_no_hot_spot() -> None:
    bench = bench_of()
    found = [began(bench, 10_000, prefix=(1,)) for _ in range(40)]
    assert found.count("p/0") <= 25
    assert found.count("p/1") >= 15
    assert found[:5] == ["p/0"] * 5


def test_D4_a_replica_that_takes_nothing_is_passed_over_whatever_it_has_read() -> None:
    bench = bench_of()
    bench.arrive(100, prefix=(1,))
    bench.arrive(100)
    assert where(bench) == ["p/0", "p/1"]
    bench.gate._desk.pools["p"].replicas["p/0"].refused_connection(bench.now_s)
    bench.arrive(100, prefix=(1, 2))
    assert where(bench) == ["p/1"]
