"""The paged memory of the engine models: what is shared, what stays, what goes first."""

from __future__ import annotations

import random

from headworks.sim.batching import ContinuousBatching
from headworks.sim.blocks import BlockPool
from headworks.sim.engine import Finished
from headworks.sim.presets import tiny


def holding(pool: BlockPool, *names: str) -> None:
    pool.take(len(names))
    assert all(pool.publish(name) for name in names)


def test_G1_one_block_is_never_handed_out() -> None:
    pool = BlockPool(20, 16)
    assert (pool.total, pool.free(), pool.blocks_for(16), pool.blocks_for(17)) == (19, 19, 1, 2)


def test_G1_a_shared_block_counts_once_until_its_last_user_leaves() -> None:
    pool = BlockPool(20, 16)
    holding(pool, "a", "b")
    pool.share(["a", "b"])
    assert pool.used == 2
    pool.leave(0, ["a", "b"])
    assert pool.used == 2
    pool.leave(0, ["a", "b"])
    assert (pool.used, pool.free()) == (0, 19)
    assert pool.cached(["a", "b", "c"], 3) == 2


def test_G1_the_deepest_block_of_the_oldest_prefix_is_evicted_first() -> None:
    pool = BlockPool(6, 16)
    holding(pool, "a", "b", "c")
    pool.leave(0, ["a", "b", "c"])
    holding(pool, "x")
    pool.leave(0, ["x"])
    pool.take(2)
    assert pool.cached(["a", "b", "c"], 3) == 2
    assert pool.cached(["x"], 1) == 1
    pool.take(1)
    assert pool.cached(["a", "b", "c"], 3) == 1
    pool.take(1)
    assert (pool.cached(["a"], 1), pool.cached(["x"], 1)) == (0, 1)


def test_G1_a_cached_prefix_has_no_gap() -> None:
    pool = BlockPool(20, 16)
    holding(pool, "a", "c")
    assert pool.cached(["a", "b", "c"], 3) == 1


def test_G1_taking_an_idle_block_is_taking_a_free_one() -> None:
    """Both requests share eight idle blocks, and only one of them has room for its other ten."""
    engine = ContinuousBatching(tiny())
    shared = [f"s{number}" for number in range(8)]
    engine.submit("first", 129, 1, 1, shared, 0.0)
    engine.advance(1.0)
    engine.submit("a", 288, 1, 1, [*shared, *range(10)], 1.0)
    engine.submit("b", 160, 1, 1, [*shared, *range(100, 102)], 1.0)
    engine.advance(1.005)
    assert engine.used_tokens() <= engine.kv_tokens
    assert [output.execution for output in engine.advance(5.0) if isinstance(output, Finished)] == ["a", "b"]
    assert engine.used_tokens() == 0


def test_G1_memory_is_never_more_than_there_is_whatever_is_shared() -> None:
    for seed in range(30):
        print(f"replay: seed {seed}")
        rng, engine, ended, submitted = random.Random(seed), ContinuousBatching(tiny()), 0, 0
        for step in range(300):
            now_s = step * 0.01
            if rng.random() < 0.15:
                blocks, family = rng.randint(1, 9), rng.randint(0, 2)
                names = [(family, depth) for depth in range(rng.randint(0, blocks))]
                engine.submit(f"e{step}", blocks * 16 + rng.randint(0, 15), rng.randint(1, 60), rng.randint(1, 2), names, now_s)
                submitted += 1
            if rng.random() < 0.05:
                engine.abort(f"e{rng.randint(0, step)}", now_s)
            ended += sum(isinstance(output, Finished) for output in engine.advance(now_s))
            assert 0 <= engine.used_tokens() <= engine.kv_tokens
            held = engine.held(now_s)
            assert sum(one.kv_tokens for one in held.values()) >= engine.used_tokens()
            assert sum(one.sequences for one in held.values()) == engine.inside
        ended += sum(isinstance(output, Finished) for output in engine.advance(1000.0))
        assert (ended, engine.used_tokens(), engine.inside) == (submitted, 0, 0)
