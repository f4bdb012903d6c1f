"""A prompt goes where its beginning has been read, unless too much is in hand there (D4)."""

from __future__ import annotations

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
    assert [affinity.where(prefix) for prefix in ((1, 2, 9), (1, 4, 9), (1, 9), (9,), ())] == ["p/0", "p/1", "p/1", "", ""]


def test_D4_what_was_not_seen_for_the_longest_is_forgotten() -> None:
    affinity = Affinity()
    affinity.sent((-1,), "p/0")
    affinity.sent((-2,), "p/0")
    affinity.sent((-1,), "p/0")
    affinity.sent(tuple(range(BLOCKS_MAX - 1)), "p/1")
    assert (affinity.where((-1,)), affinity.where((-2,))) == ("p/0", "")


def test_D4_a_prompt_goes_where_its_beginning_is_though_another_replica_has_less_in_hand() -> None:
    bench = bench_of()
    bench.arrive(1_000, prefix=(1, 2))
    bench.arrive(1_000)
    bench.arrive(1_000)
    assert where(bench) == ["p/0", "p/1", "p/0"]
    bench.arrive(10, prefix=(1, 2, 3))
    assert where(bench) == ["p/0"]
    bench.arrive(10)
    assert where(bench) == ["p/1"]


def test_D4_not_where_too_much_is_in_hand_and_from_then_on_it_is_elsewhere_too() -> None:
    bench = bench_of()
    bench.arrive(1_000, prefix=(1,))
    bench.arrive(100)
    assert where(bench) == ["p/0", "p/1"]
    bench.arrive(1_000, prefix=(1, 2))  # 2,000 there would be 1.9 of the mean
    assert where(bench) == ["p/1"]
    bench.arrive(100, prefix=(1, 2, 3))
    assert where(bench) == ["p/1"]


def test_D4_a_replica_that_takes_nothing_is_passed_over_whatever_it_has_read() -> None:
    bench = bench_of()
    bench.arrive(100, prefix=(1,))
    bench.arrive(100)
    assert where(bench) == ["p/0", "p/1"]
    bench.gate._desk.pools["p"].replicas["p/0"].refused_connection(bench.now_s)
    bench.arrive(100, prefix=(1, 2))
    assert where(bench) == ["p/1"]
