"""The five checks, each with what it compares with what, in the order in which a failure is reported (B1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headworks.core.checks import Compared, compare
from headworks.core.forecast import places_of, whole_answer_s
from headworks.core.lane import Lane
from headworks.core.pool import Pool
from headworks.core.types import Forecast, Request, Row, Work
from tests.core.driver import Bench, capacity, policy
from tests.core.test_forecast import busy, warmed

WORK = Work(tokens=100, prefill_tokens=80, sequences=2, engine_s=0.0, kv_tokens=112, output_tokens=20)
KNOWN = Forecast(0.25, 0.125, 0.5, None, 40.0, 1.0, "queue", wait_most_s=0.75)
BLIND = replace(KNOWN, wait_s=None, wait_most_s=None, ttft_s=None)

POOL = [
    ("memory", "pool:p", 112, 40_000, "tokens", "queue_timeout"),
    ("compute", "pool:p", 2, 8, "requests", "queue_timeout"),
]
QUEUE = [
    ("fairness", "class:interactive", 1, 500, "queued requests", "queue_full"),
    ("fairness", "class:interactive", 400, 67_108_864, "queued bytes", "queue_full"),
]
WAIT = ("time", "pool:p", 0.75, 0.5, "s waiting at most", "queue_delay_exceeded")
FIRST_TOKEN = ("time", "pool:p", 0.375, 1.0, "s to first token", "queue_delay_exceeded")


class Scene:
    """A lane and its pool, and a request that has not arrived."""

    def __init__(self, **settings: Any) -> None:
        self.bench = Bench(policy(**settings))
        self.request = self.bench.request(100)

    @property
    def pool(self) -> Pool:
        return self.bench.gate._desk.pools["p"]

    @property
    def lane(self) -> Lane:
        return self.bench.gate._desk.lane("acme", "interactive", "p")

    def rows(self, forecast: Forecast = KNOWN, work: Work = WORK, **changed: Any) -> list[Row]:
        request: Request = replace(self.request, **changed)
        return compare(request, work, self.lane, forecast, self.bench.now_s).rows


def test_B1_every_row_of_a_plain_request_in_its_order() -> None:
    scene = Scene()
    assert scene.pool.requests_limit() == 8
    assert scene.rows() == [*POOL, *QUEUE, WAIT, FIRST_TOKEN]


def test_B1_what_a_tenant_holds_is_compared_first() -> None:
    scene = Scene(tenant={"active_tokens_max": 150, "active_requests_max": 3})
    scene.bench.arrive(40)
    assert scene.rows()[:2] == [
        ("tenant", "tenant:acme", 140, 150, "tokens", "tenant_capacity_exceeded"),
        ("tenant", "tenant:acme", 3, 3, "requests", "tenant_capacity_exceeded"),
    ]
    scene = Scene(tenant={"active_requests_max": 3})
    assert scene.rows()[0] == ("tenant", "tenant:acme", 2, 3, "requests", "tenant_capacity_exceeded")
    scene = Scene(tenant={"active_tokens_max": 150})
    assert [row[0] for row in scene.rows()] == ["tenant", "memory", "compute", "fairness", "fairness", "time", "time"]


def test_B1_the_engines_gauge_is_compared_where_there_is_one() -> None:
    scene = Scene()
    scene.bench.sample(kv_used_ratio=0.5)
    assert scene.rows()[1] == ("memory", "pool:p", 0.5, 0.85, "kv_ratio", "kv_saturation")


def test_B10_what_other_models_are_guaranteed_is_compared() -> None:
    scene = Scene(pool={"floors": {"m": 1_000, "other": 30_000}})
    assert scene.rows()[1] == ("memory", "model:m", 112, 10_000, "tokens", "model_reservation")


def test_D4_beyond_what_needs_no_look_the_future_peak_is_compared() -> None:
    scene = Scene(pool={"over_commit": 2.0})
    scene.pool.unguarded_tokens = 112
    assert [row[4] for row in scene.rows()][:2] == ["tokens", "requests"]
    scene.pool.unguarded_tokens = 111
    row = scene.rows()[1]
    assert (row[0], row[1], row[3], row[4], row[5]) == ("memory", "pool:p", 0.95, "kv_peak_ratio", "kv_saturation")
    assert row[2] == scene.pool.replicas["p/0"].memory.peak_with(WORK, scene.lane.lengths, scene.bench.now_s) / 40_000
    assert 0.0 < row[2] < 0.1


def test_D4_memory_that_is_not_over_committed_has_no_peak_to_fear() -> None:
    scene = Scene()
    scene.pool.unguarded_tokens = 0
    assert "kv_peak_ratio" not in [row[4] for row in scene.rows()]


def test_B7_a_prompt_that_is_counted_is_compared_with_what_is_being_read() -> None:
    scene = Scene(pool={"prefill_tokens_max": 500, "heavy_tokens": 64, "heavy_prefills_max": 4})
    scene.pool.reads_from_tokens = 80
    compute = [row for row in scene.rows() if row[0] == "compute"]
    assert compute[1:] == [
        ("compute", "pool:p", 80, 500, "prompt tokens", "prefill_saturated"),
        ("compute", "pool:p", 1, 4, "heavy prompts", "prefill_saturated"),
    ]
    scene.pool.reads_from_tokens = 81
    assert len([row for row in scene.rows() if row[0] == "compute"]) == 1


def test_B1_what_waits_is_compared_with_the_bounds_of_the_queue() -> None:
    scene = Scene(pool={"active_requests_max": 1}, tenant={"queue_requests_max": 7, "queue_bytes_max": 9_000})
    for tenant in ("acme", "acme", "batchco"):
        scene.bench.arrive(50, tenant=tenant)
    assert scene.pool.queue.requests == 2
    fairness = [row for row in scene.rows() if row[0] == "fairness"]
    assert fairness == [
        ("fairness", "class:interactive", 3, 500, "queued requests", "queue_full"),
        ("fairness", "class:interactive", 800, 67_108_864, "queued bytes", "queue_full"),
        ("fairness", "tenant:acme", 2, 7, "queued requests", "queue_full"),
        ("fairness", "tenant:acme", 600, 9_000, "queued bytes", "queue_full"),
    ]


@pytest.mark.parametrize(("limit", "unit"), [("queue_requests_max", "queued requests"), ("queue_bytes_max", "queued bytes")])
def test_B1_a_tenant_may_have_one_bound_without_the_other(limit: str, unit: str) -> None:
    scene = Scene(tenant={limit: 9_000})
    rows = [(row[1], row[4]) for row in scene.rows() if row[0] == "fairness"]
    assert rows == [("class:interactive", "queued requests"), ("class:interactive", "queued bytes"), ("tenant:acme", unit)]


@pytest.mark.parametrize(
    ("start_in_s", "wait_s_max", "promise_s", "limit_s"),
    [
        (0.375, 0.5, 1.0, 0.375),
        (9.0, 0.5, 1.0, 0.5),
        (9.0, 5.0, 1.0, 0.875),
        (9.0, 1.0, 1.0, 0.875),
        (9.0, 5.0, None, 5.0),
    ],
)
def test_B6_the_smallest_of_deadline_wait_and_promise_less_prefill_bounds_the_wait(
    start_in_s: float, wait_s_max: float, promise_s: float | None, limit_s: float
) -> None:
    scene = Scene(interactive={"wait_s_max": wait_s_max, "ttft_slo_s": promise_s})
    rows = scene.rows(start_by_s=scene.request.arrived_s + start_in_s)
    assert ("time", "pool:p", 0.75, limit_s, "s waiting at most", "queue_delay_exceeded") in rows


def test_B1_without_a_rate_only_five_may_wait_with_a_promise() -> None:
    scene = Scene(pool={"active_requests_max": 1})
    assert [row[0] for row in scene.rows(BLIND)] == ["memory", "compute", "fairness", "fairness"], "nobody waits"
    for _ in range(3):
        scene.bench.arrive(50)
    assert scene.rows(BLIND)[-1] == ("time", "pool:p", 3, 5, "requests waiting at an unknown rate", "queue_delay_exceeded")
    scene = Scene(pool={"active_requests_max": 1}, interactive={"ttft_slo_s": None})
    for _ in range(3):
        scene.bench.arrive(50)
    assert [row[0] for row in scene.rows(BLIND)] == ["memory", "compute", "fairness", "fairness"], "nothing is promised"


def test_B1_where_weights_decide_only_its_own_class_waits_before_it() -> None:
    scene = Scene(pool={"active_requests_max": 1}, kind="wfq")
    for _ in range(3):
        scene.bench.arrive(50)
    assert scene.rows(BLIND)[-1][2] == 3
    scene.bench.gate._desk.pools["p"].queue.classes["interactive"].requests = 1
    assert scene.rows(BLIND)[-1][2] == 2


def test_D3_a_queue_without_bounds_refuses_nobody_for_waiting() -> None:
    scene = Scene(unbounded=True)
    assert scene.rows() == [*POOL, FIRST_TOKEN]
    assert scene.rows(BLIND) == POOL


def test_B1_promises_of_each_token_and_of_the_whole_answer_are_compared_where_they_are_known() -> None:
    scene = Scene(interactive={"e2e_slo_s": 30.0, "tpot_slo_s": 0.05})
    whole = replace(KNOWN, total_s=3.0)
    assert scene.rows(whole) == [*POOL, *QUEUE, WAIT, FIRST_TOKEN], "the engine's pace is not known"
    bench = warmed(e2e_slo_s=3.0, tpot_slo_s=0.05)
    busy(bench, 3)
    pool, lane = bench.gate._desk.pools["p"], bench.gate._desk.lane("acme", "interactive", "p")
    known, work = replace(KNOWN, total_s=2.0, tpot_s=0.02), replace(WORK, output_tokens_max=51)
    rows = compare(bench.request(100), work, lane, known, bench.now_s).rows
    assert lane.token_promise is not None
    places, whole_s = places_of(pool, lane.token_promise), whole_answer_s(work, lane, known, 3.0)
    assert rows[2] == ("compute", "pool:p", 5, places, "requests at 0.05 s a token", "queue_timeout")
    assert rows[-2] == ("time", "pool:p", whole_s, 3.0, "s to the whole answer", "queue_delay_exceeded")
    assert whole_s == pytest.approx(0.375 + 51 * 0.02)
    assert len(compare(bench.request(100), work, lane, replace(known, total_s=None), bench.now_s).rows) == len(rows) - 1


def test_D4_of_several_engines_the_one_with_the_lowest_peak_counts() -> None:
    bench = Bench(policy(pool={"over_commit": 2.0}, replicas=2), capacities=(capacity(), capacity("p/1", 20_000)))
    pool = bench.gate._desk.pools["p"]
    pool.unguarded_tokens = 0
    lane = bench.gate._desk.lane("acme", "interactive", "p")
    (peak,) = [row for row in compare(bench.request(100), WORK, lane, KNOWN, bench.now_s).rows if row[4] == "kv_peak_ratio"]
    first, second = (pool.replicas[name].memory.peak_with(WORK, lane.lengths, bench.now_s) for name in ("p/0", "p/1"))
    assert peak[2] == first / 40_000 < second / 20_000


def test_B1_passed_is_what_is_within_its_limit_whoever_compared_it() -> None:
    plain = ("time", "pool:p", 2, 2, "s", "queue_full")
    within, beyond = Compared(), (*plain[:2], 3, *plain[3:])
    assert within.passed is True
    within.count(*plain)
    within.measure(*plain)
    within.add(plain)
    assert (within.passed, within.rows) == (True, [plain] * 3)
    counted, measured, added = Compared(), Compared(), Compared()
    counted.count(*beyond)
    measured.measure(*beyond)
    added.add(beyond)
    assert [(one.passed, one.rows) for one in (counted, measured, added)] == [(False, [beyond])] * 3
