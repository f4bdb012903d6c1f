"""B2 over several gateways: what waits at the others, and the rate of all of them."""

from __future__ import annotations

from typing import Any

import pytest

from headworks.core.elsewhere import FRESH_S, NOBODY, Elsewhere, told_of
from headworks.core.pool import Pool
from tests.core.driver import Bench, policy
from tests.core.shared_pool import Counter, shared

PATIENT: dict[str, Any] = {"ttft_slo_s": None, "wait_s_max": 60.0}


def pool_of(bench: Bench) -> Pool:
    return bench.gate._desk.pools["p"]


def waiting(count: int, tokens: int = 100) -> Bench:
    """A gateway where one runs and so many wait."""
    bench = Bench(policy(interactive=PATIENT, pool={"active_requests_max": 1}, kind="fifo", drop_late=False))
    for _ in range(count + 1):
        bench.arrive(tokens)
    return bench


def hear(bench: Bench, waits_tokens: int, served: int, now_s: float, gateways: int = 2) -> None:
    """A heartbeat's answer: the others have so much waiting and were granted so many requests of 100 tokens until now."""
    profiles = {"served:p": (100 * served, served), "waits:p": (waits_tokens, gateways)} if waits_tokens else {}
    pool_of(bench).elsewhere.learn(pool_of(bench), profiles, now_s)


def test_B2_three_gateways_with_15_waiting_each_and_10_a_second_are_four_and_a_half_seconds_on_each() -> None:
    bench = waiting(15)
    for beat in range(4):
        hear(bench, 2 * 15 * 100, 10 * beat, bench.now_s)
        bench.now_s += 1.0
    bench.now_s -= 1.0
    bench.decisions()
    bench.arrive(100)
    (decision,) = bench.decisions()
    assert decision.forecast.wait_s == pytest.approx(4.5)
    assert decision.forecast.basis == "drain"


def test_B2_who_has_room_by_its_own_knowledge_stands_behind_what_waits_elsewhere() -> None:
    bench = Bench(policy(interactive={"ttft_slo_s": 1.0, "wait_s_max": 60.0}, pool={"active_requests_max": 1}))
    for beat in range(3):
        hear(bench, 4_500, 10 * beat, bench.now_s)
        bench.now_s += 1.0
    bench.arrive(100)
    refused = bench.refusal()
    assert (refused.reason, refused.forecast.wait_s) == ("queue_delay_exceeded", pytest.approx(4.5))


def test_B2_alone_nothing_is_other_than_it_was() -> None:
    bench = waiting(15)
    hear(bench, 0, 0, bench.now_s)
    assert pool_of(bench).elsewhere.of(bench.now_s) is NOBODY


def test_B2_what_was_told_to_become_less_goes_on_to_and_is_not_believed_for_long() -> None:
    bench = waiting(1)
    hear(bench, 3_000, 0, 100.0)
    hear(bench, 2_000, 10, 101.0)
    elsewhere = pool_of(bench).elsewhere
    assert [elsewhere.of(101.0 + later_s).tokens for later_s in (0.0, 0.5, 1.0, 2.5)] == [2_000, 1_500, 1_000, 0]
    hear(bench, 4_000, 20, 102.0)
    assert [elsewhere.of(102.0 + later_s).tokens for later_s in (0.0, FRESH_S, FRESH_S + 0.1)] == [4_000, 4_000, 0]


def test_B2_a_gateway_that_is_gone_takes_its_grants_with_it_and_the_rate_begins_anew() -> None:
    bench = waiting(1)
    for beat, served in enumerate((1_000, 1_010, 1_020, 300)):
        hear(bench, 1_000, served, 100.0 + beat)
    assert pool_of(bench).elsewhere.of(103.0).tokens_per_s is None
    hear(bench, 1_000, 317, 104.0)
    hear(bench, 1_000, 322, 105.0)
    assert pool_of(bench).elsewhere.of(105.0).requests_per_s == 5.0, "the first beat's grants may be of before"


def test_B2_what_was_granted_while_nobody_waited_says_nothing_of_the_rate() -> None:
    bench = Bench(policy(interactive=PATIENT))
    pool = pool_of(bench)
    pool.elsewhere.learn(pool, {"served:p": (1_000, 10)}, 100.0)
    pool.elsewhere.learn(pool, {"served:p": (1_100, 11)}, 101.0)
    for beat, served in enumerate((20, 27, 37)):
        hear(bench, 500, served, 102.0 + beat)
    assert pool.elsewhere.of(104.0).requests_per_s == 10.0


def test_B2_own_grants_count_as_those_of_others_do() -> None:
    bench = waiting(3)
    pool = pool_of(bench)
    *_, life = bench.gate._desk.lives.values()
    assert life.work.tokens == 100
    hear(bench, 1_000, 0, 99.0)
    hear(bench, 1_000, 0, 100.0)
    for _ in range(4):
        pool.granted(life, 100.5)
    hear(bench, 1_000, 6, 101.0)
    assert (pool.elsewhere.of(101.0).requests_per_s, pool.elsewhere.of(101.0).tokens_per_s) == (10.0, 1_000.0)


def test_B2_what_waits_is_told_in_all_by_class_and_by_flow() -> None:
    made = Counter(shared(tenants={"acme": {"share": 2.0}}))
    made.arrive("interactive", "acme", 3)
    made.arrive("bulk", "acme", 1, tokens=400)
    told = dict(told_of(pool_of(made.bench)))
    assert told == {
        "served:p": (100, 1),
        "served:p\0interactive": (100, 1),
        "waits:p": (600, 1),
        "waits:p\0bulk": (400, 1),
        "waits:p\0bulk\0acme": (400, 1, 2_000),
        "waits:p\0interactive": (200, 1),
        "waits:p\0interactive\0acme": (200, 1, 2_000),
    }


def test_B2_by_weights_a_flow_waits_for_its_own_and_for_its_part_of_the_others_of_its_class() -> None:
    """Two tenants of one weight: 10 of acme's wait here and 20 there, 90 of batchco's there; 10 a second are granted."""
    made = Counter(shared())
    made.arrive("interactive", "acme", 11)
    pool = pool_of(made.bench)
    flows = {"waits:p\0interactive\0acme": (2_000, 1, 1_000), "waits:p\0interactive\0batchco": (9_000, 1, 1_000)}
    for beat in range(3):
        sums = {"served:p": (1_000 * beat, 10 * beat), "waits:p": (11_000, 1), "waits:p\0interactive": (11_000, 1)}
        pool.elsewhere.learn(pool, {**sums, **flows}, made.bench.now_s + beat)
    made.bench.now_s += 2.0
    assert made.decision("interactive", "acme").forecast.wait_s == pytest.approx(6.0), "30 of acme's and 30 of batchco's"


def test_B2_it_is_one_pool_s_own() -> None:
    bench = waiting(1)
    elsewhere, profiles = Elsewhere(), {"waits:other": (1_000, 1), "waits:p\0x": (700, 1)}
    elsewhere.learn(pool_of(bench), profiles, 100.0)
    assert (elsewhere.of(100.0), elsewhere.of(100.0, ("x",)).tokens) == (NOBODY, 700)
