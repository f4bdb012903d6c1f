"""The forecast of a request and what is decided by it: cold, calibrated, for the first token, each token and the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headworks.core import events
from headworks.core.effects import Run
from headworks.core.predict import DecodeTime, DrainRate, PrefillTime, TokenPromise
from headworks.core.stats import Window
from headworks.core.types import Decision, Forecast, Usage
from tests.core.driver import Bench, capacity, drained_at, policy

LONG = {"wait_s_max": 60.0, "ttft_slo_s": 30.0}


def answered(bench: Bench, *, prompt_tokens: int = 100, output_tokens: int = 50, first_s: float, each_s: float) -> None:
    """One request from its arrival to its end."""
    bench.arrive(prompt_tokens + output_tokens, output_tokens)
    execution = bench.execution()
    bench.advance(first_s)
    bench.first_byte(execution)
    bench.advance(each_s * (output_tokens - 1))
    bench.complete(execution, prompt_tokens, output_tokens)


def last(bench: Bench) -> Forecast:
    return bench.decisions()[-1].forecast


def busy(bench: Bench, number: int = 1) -> list[str]:
    """So many that go on, so that nobody after them is alone."""
    sent = []
    for _ in range(number):
        bench.arrive(100, stream=True)
        sent.append(bench.execution())
        bench.advance(0.1)
        bench.first_byte(sent[-1])
    return sent


def test_C3_cold_nothing_is_known_and_that_is_not_zero() -> None:
    bench = Bench(policy(interactive=LONG))
    bench.arrive(100)
    forecast = last(bench)
    assert (forecast.basis, forecast.ttft_s, forecast.total_s, forecast.tpot_s) == ("room", None, None, None)


def test_C3_cold_nothing_is_admitted_beyond_the_running_limit() -> None:
    bench = Bench(policy(interactive={"wait_s_max": 1.0, "ttft_slo_s": 1.0}))
    for _ in range(20):
        bench.arrive(100)
    assert len(bench.take(Run)) == 8  # the limit of a cold engine
    assert [one.outcome for one in bench.decisions()] == ["admit"] * 8 + ["queue"] * 5 + ["refuse"] * 7


def test_C3_the_buffer_is_1_3_until_twenty_were_seen_and_calibrates_itself() -> None:
    bench = Bench(policy(interactive=LONG, pool={"active_requests_max": 99}))
    busy(bench)
    buffers = []
    for number in range(30):
        answered(bench, first_s=0.1, each_s=0.0)
        bench.effects.clear()
        if number >= 5:
            bench.arrive(150, 50)
            forecast = last(bench)
            buffers.append(forecast.buffer_ratio)
            assert forecast.ttft_s == pytest.approx(0.1 * forecast.buffer_ratio, abs=0.002)
            bench.feed(events.ClientGone(f"r{bench._arrivals}"))
            bench.effects.clear()
    # The first observations go into the fit; from the sixth on what lies beyond it is kept.
    assert buffers[:10] == pytest.approx([1.3] * 10)
    assert buffers[-1] == pytest.approx(1.0, abs=0.02), "there was nothing beyond the fit"


def warmed(**interactive: Any) -> Bench:
    """Sixty answers of 51 tokens, 10 ms each and 2 ms more for each beside it; 0.1 s to the first. Then promises are made."""
    bench = Bench(policy(interactive=LONG, pool={"active_requests_max": 999}))
    going: list[str] = []
    for number in range(60):
        if number % 6 == 0:
            going += busy(bench)
        batch = len(going) + 1
        answered(bench, output_tokens=51, first_s=0.1, each_s=0.010 + 0.002 * batch)
    for execution in going:
        bench.complete(execution)
    settings = policy(interactive={**LONG, **interactive}, pool={"active_requests_max": 999})
    bench.feed(events.PolicyChanged(replace(settings, version="v2", number=2)))
    bench.effects.clear()
    return bench


def test_C3_the_whole_answer_is_prefill_and_decode_at_the_batch_it_joins() -> None:
    bench = warmed()
    busy(bench, 9)
    bench.arrive(151, 51)
    forecast = last(bench)
    assert forecast.tpot_s == pytest.approx(0.010 + 0.002 * 10, abs=0.0005)
    assert forecast.total_s == pytest.approx(0.1 + 50 * 0.030, rel=0.1), "all of them came to 50 tokens' time"


def test_C3_an_answer_that_would_be_late_for_load_is_refused() -> None:
    bench = warmed(e2e_slo_s=3.0)
    bench.arrive(151, 51)
    assert bench.decisions()[-1].outcome == "admit"  # 50 tokens of 14 ms
    bench.effects.clear()
    busy(bench, 40)
    bench.effects.clear()
    bench.arrive(151, 51)  # 50 tokens of 94 ms
    refused = bench.refusal()
    assert refused.reason == "queue_delay_exceeded"
    value, limit = compared(refused, "s to the whole answer")
    assert value == pytest.approx(0.1 + 50 * 0.094, rel=0.15)
    assert limit == 3.0


def test_C3_an_answer_that_is_too_long_for_an_empty_engine_is_not_refused_for_load() -> None:
    bench = warmed(e2e_slo_s=0.5)
    busy(bench, 40)
    bench.effects.clear()
    bench.arrive(151, 51)
    assert bench.decisions()[-1].outcome == "admit", "50 tokens of 12 ms are more than 0.5 s in an empty engine too"


def test_C3_so_many_run_as_keep_the_promised_time_for_a_token() -> None:
    bench = warmed(tpot_slo_s=0.030, wait_s_max=0.2, ttft_slo_s=None)
    going = []
    for _ in range(12):
        bench.arrive(100, stream=True)
        going += [run.execution.id for run in bench.take(Run)]
    assert len(going) in (9, 10), "10 ms and 2 ms each: ten of them, less what is uncertain"
    told = next(one for one in bench.decisions() if one.outcome == "queue")
    assert (told.outcome, told.reason) == ("queue", "compute_saturation")
    assert compared(told, "requests at 0.03 s a token")[1] == len(going)
    for execution in going:
        bench.first_byte(execution)
    bench.complete(going[0])
    assert len(bench.take(Run)) == 1, "one that ends lets the next one in"


def compared(decision: Decision, unit: str) -> tuple[float, float]:
    (found,) = [(one.value, one.limit) for one in decision.verdicts if one.unit == unit]
    return found


def test_C3_a_promise_for_a_token_that_one_alone_breaks_holds_nobody_back() -> None:
    decode = DecodeTime()
    for number in range(40):
        decode.observe(1 + number % 8, 50, 50 * (0.040 + 0.001 * (1 + number % 8)))
    assert decode.places(TokenPromise(0.030, 0.05, "")) is None
    assert decode.places(TokenPromise(0.060, 0.05, "")) == 20
    assert decode.places(TokenPromise(0.042, 0.05, "")) == 8, "by fewer it could not be measured"


def test_C3_another_incarnation_is_not_held_to_what_lay_beyond_the_fit() -> None:
    bench = warmed()
    busy(bench)
    bench.arrive(151, 51)
    known = last(bench)
    assert known.buffer_ratio < 1.3
    bench.sample(incarnation="a", running=1)
    bench.sample(incarnation="b", running=1)
    bench.arrive(151, 51)
    after = last(bench)
    assert after.buffer_ratio == pytest.approx(1.3)
    assert after.ttft_s == pytest.approx(1.3 * (known.ttft_s or 0.0) / known.buffer_ratio, rel=0.01)


def test_C3_what_the_cache_held_is_not_read_again() -> None:
    bench = warmed()
    for _ in range(40):
        bench.arrive(151, 51)
        execution = bench.execution()
        bench.first_byte(execution)
        bench.feed(events.Stopped(execution, Usage(100, 80, 51, 0.0, "stop", True), False))
    lane = bench.gate._desk.lane("acme", "interactive", "p")
    assert lane.cached_ratio == pytest.approx(0.8, abs=0.02)


def test_C3_more_work_never_takes_less_time() -> None:
    prefill, decode = PrefillTime(), DecodeTime()
    for step in range(200):
        tokens, ahead, batch = 100 + 37 * (step % 11), 53 * (step % 7), 1 + step % 13
        prefill.observe(tokens, ahead, 2.0 - 0.001 * tokens + 0.002 * ahead, alone=False, now_s=step / 100)
        decode.observe(batch, 50, 1.0 - 0.01 * batch)
    assert all(one >= 0.0 for one in (*prefill.coefficients(), *decode.coefficients()))
    sizes = (1, 100, 1_000, 10_000)
    for tokens in sizes:  # of a size that was never sent one is tried
        prefill.sent(tokens, 2.0)
    times = [(prefill.expected(tokens, 0, False, 2.0) or (0.0, None))[0] for tokens in sizes]
    assert times == sorted(times)


def test_C3_one_that_left_after_its_bound_was_missed_and_one_before_says_nothing() -> None:
    bench = warmed()
    busy(bench)
    bounds = bench.gate._desk.pools["p"].bounds
    for waited_s, missed in ((0.05, 0), (5.0, 1)):
        before = bounds.firsts.missed
        name = bench.arrive(151, 51)
        bench.advance(waited_s)
        bench.feed(events.ClientGone(name))
        assert bounds.firsts.missed - before == missed


@pytest.mark.parametrize("observes", [False, True])
def test_C3_in_observe_mode_what_would_have_waited_teaches_nothing_of_waiting(observes: bool) -> None:
    settings = policy(interactive={**LONG, "queue_requests_max": 5_000}, pool={"active_requests_max": 1}, kind="fifo")
    bench = Bench(settings)
    drained_at(bench, per_s=10.0, tokens=100, waiting=5)
    bench.effects.clear()
    bench.feed(events.PolicyChanged(replace(settings, version="v2", number=2, observe=observes)))
    name = bench.arrive(100)
    life = next(one for one in bench.gate._desk.lives.values() if one.request.id == name)
    assert life.forecast.basis == "drain" and life.forecast.ttft_s is not None
    bounds = bench.gate._desk.pools["p"].bounds
    for _ in range(10):
        if life.state == "sent":
            break
        bench.advance(0.1)
        for execution in [name for name, one in bench.gate._desk.runs.items() if one is not life]:
            bench.first_byte(execution)
            bench.complete(execution)
    assert life.state == "sent"
    seen = bounds.firsts.seen
    bench.first_byte(life.execution.id)
    assert bounds.firsts.seen - seen == (0 if observes else 1)


@pytest.mark.parametrize(
    ("waited", "spreads"),
    [
        ([0.1] * 19, 1.0),  # too few are known
        ([0.1] * 20, 0.1),
        ([0.1] * 18 + [0.5] * 2, 0.5),  # a promise for 95 of 100: half of the tail of a tenth
        ([-0.3] * 40, 0.0),  # sooner than the mean: nobody starts before he comes
        ([2.0] * 40, 1.0),  # never beyond the sum of random gaps
    ],
)
def test_B2_a_wait_may_take_as_many_spreads_as_its_classs_percentile_of_waits_took(waited: list[float], spreads: float) -> None:
    bench = Bench(policy(interactive=LONG, pool={"active_requests_max": 1}, kind="fifo"))
    drained_at(bench, 10.0, 100, 4)
    bounds = bench.gate._desk.pools["p"].bounds
    bounds.waits = Window(100)
    for spread in waited:
        bounds.waits.add(spread)
    bench.arrive(100)
    forecast = last(bench)
    assert forecast.basis == "drain" and forecast.wait_s is not None and forecast.wait_most_s is not None
    assert forecast.wait_spread_s > 0.05
    assert forecast.wait_most_s - forecast.wait_s == pytest.approx(spreads * forecast.wait_spread_s)


def test_B2_one_that_waited_in_vain_counts_as_having_waited_so_long_at_least() -> None:
    """Otherwise only those would be known whose wait was short enough."""
    bench = Bench(policy(interactive=LONG, pool={"active_requests_max": 1}, kind="fifo"))
    drained_at(bench, 10.0, 100, 4)
    waits = bench.gate._desk.pools["p"].bounds.waits
    early, late = bench.arrive(100), bench.arrive(100)
    forecast, count = last(bench), len(waits)
    assert forecast.ttft_s is not None
    bench.advance(forecast.ttft_s / 2)
    bench.feed(events.ClientGone(early))
    assert len(waits) == count, "of one that left in time nobody knows"
    bench.advance(forecast.ttft_s)
    bench.feed(events.ClientGone(late))
    assert len(waits) == count + 1
    assert waits.quantile(1.0) > 0.0


def test_B2_a_newcomer_that_finds_room_is_not_foreseen_to_wait_for_another_flows_large_head() -> None:
    bench = Bench(policy(interactive=LONG, kind="wfq"), capacities=(capacity(kv_tokens=10_000),))
    bench.arrive(6_000, tenant="acme")
    bench.arrive(6_000, tenant="acme")
    assert [one.outcome for one in bench.decisions()] == ["admit", "queue"]
    bench.arrive(100, tenant="batchco")
    (decision,) = [one for one in bench.decisions() if one.outcome != "queue"]
    assert (decision.outcome, decision.forecast.basis, decision.forecast.wait_s) == ("admit", "room", 0.0)
    bench.arrive(100, tenant="acme")
    assert last(bench).basis != "room", "of its own flow it is not the first"


def test_C4_a_drain_rate_says_how_well_it_is_known() -> None:
    even, uneven = DrainRate(), DrainRate()
    for step in range(21):
        even.granted(100, 1, backlogged=True, now_s=0.1 * step)
        uneven.granted(50 + 100 * (step % 2), 1, backlogged=True, now_s=0.1 * step)
    assert (even.requests_error_ratio, even.tokens_error_ratio) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert uneven.tokens_error_ratio == pytest.approx(1.96 * 0.5 / 20**0.5, rel=1e-6)  # 100 ± 50 tokens in each of 20 gaps
    assert DrainRate().tokens_error_ratio is None


def test_C4_the_interval_holds_the_true_rate_nineteen_times_of_twenty() -> None:
    import random

    seed = 20261130
    print(f"python -m pytest tests/core/test_forecast.py -k interval  # seed {seed}")
    rng, held = random.Random(seed), 0
    for _ in range(400):
        drain, now_s = DrainRate(None, 1_024, 1e9), 0.0
        for _ in range(200):
            drain.granted(100, 1, backlogged=True, now_s=now_s)
            now_s += rng.expovariate(10.0)
        rate, error_ratio = drain.requests_per_s or 0.0, drain.requests_error_ratio or 0.0
        held += abs(rate - 10.0) <= error_ratio * rate
    assert 0.92 <= held / 400 <= 0.98


def test_C4_what_is_told_of_a_pool_is_measured_longer_than_what_decides() -> None:
    bench = Bench(policy(interactive={**LONG, "queue_requests_max": 5_000}, pool={"active_requests_max": 1}, kind="fifo"))
    for _ in range(400):
        bench.arrive(100)
    for _ in range(300):
        (run,) = bench.take(Run)
        bench.advance(0.05 if bench.now_s < 110.0 else 0.1)
        bench.first_byte(run.execution.id)
        bench.complete(run.execution.id)
    pool = bench.gate.snapshot(bench.now_s)["pools"]["p"]
    assert pool["drain_tokens_per_s"] == pytest.approx(1_000.0, rel=0.01), "the last sixty-four gaps of 0.1 s"
    assert pool["service_rate_per_s"] == pytest.approx(299 / (200 * 0.05 + 99 * 0.1), rel=0.02), "all of them"
    assert 0.0 < pool["service_rate_error_ratio"] < 0.1
