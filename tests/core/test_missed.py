"""What took the time of a promise that was not kept: `Outcome.missed`, which operators are shown as its cause (F1, F2)."""

from __future__ import annotations

import pytest

from headworks.core import events
from headworks.core.effects import Run
from headworks.core.types import Usage
from tests.core.driver import Bench, capacity, policy

PATIENT = {"wait_s_max": 60.0, "first_byte_s": 60.0}
ONE_PLACE = {"active_requests_max": 1}


def bench_of(*, places: dict[str, int] | None = None, replicas: int = 1, **promised: float | None) -> Bench:
    """A class with these promises (`ttft_slo_s`, `e2e_slo_s`, `tpot_slo_s`) and a discipline that refuses nobody for them."""
    promise = {"ttft_slo_s": None, "e2e_slo_s": None, "tpot_slo_s": None, **promised}
    settings = policy(interactive={**PATIENT, **promise}, pool=places, replicas=replicas, kind="fifo", drop_late=False)
    return Bench(settings, capacities=tuple(capacity(f"p/{number}") for number in range(replicas)))


def run_of(bench: Bench, *, first_s: float, whole_s: float, tokens: int = 11) -> None:
    """The one that was just sent: its first token so much later, its end so much after it was sent."""
    execution = bench.execution()
    bench.advance(first_s)
    bench.first_byte(execution)
    bench.advance(whole_s - first_s)
    bench.complete(execution, output_tokens=tokens)


def missed(bench: Bench) -> tuple[str, str] | None:
    """Of the outcome that came last. It is goodput exactly where nothing was missed."""
    outcome = bench.outcomes()[-1]
    assert outcome.in_slo == (outcome.missed is None)
    return outcome.missed


def preempt(bench: Bench) -> None:
    """The engine puts something aside for want of memory."""
    bench.sample(preemptions_total=4)
    bench.advance(0.1)
    bench.sample(preemptions_total=5)


def test_F2_an_answer_that_keeps_all_its_promises_has_missed_none() -> None:
    bench = bench_of(ttft_slo_s=1.0, e2e_slo_s=2.0, tpot_slo_s=0.1)
    bench.arrive(40, 20)
    run_of(bench, first_s=1.0, whole_s=2.0)
    assert missed(bench) is None, "exactly at each of its limits"


@pytest.mark.parametrize(
    ("waited_s", "read_s", "cause"),
    [
        (0.0, 1.1, "compute"),
        (0.9, 1.1, "compute"),  # late without the queue too
        (0.9, 0.9, "queueing"),  # 1.8 s, of which the engine took 0.9
        (3.0, 1.0, "queueing"),  # in time to the instant without the queue
    ],
)
def test_F2_a_late_first_token_is_the_queues_fault_only_if_it_were_in_time_without_it(
    waited_s: float, read_s: float, cause: str
) -> None:
    bench = bench_of(ttft_slo_s=1.0, places=ONE_PLACE)
    if waited_s:
        bench.arrive(40, 20)
    before = bench.take(Run)
    bench.arrive(40, 20)
    for run in before:
        bench.first_byte(run.execution.id)
        bench.advance(waited_s)
        bench.complete(run.execution.id)
    run_of(bench, first_s=read_s, whole_s=read_s + 0.1)
    assert missed(bench) == ("ttft", cause)


def test_F2_of_several_promises_the_first_one_is_told() -> None:
    bench = bench_of(ttft_slo_s=1.0, e2e_slo_s=2.0, tpot_slo_s=0.1)
    bench.arrive(40, 20)
    run_of(bench, first_s=1.5, whole_s=9.0)
    assert missed(bench) == ("ttft", "compute")
    bench.arrive(40, 20)
    run_of(bench, first_s=0.5, whole_s=9.0)
    assert missed(bench) == ("e2e", "compute")
    bench.arrive(40, 20)
    run_of(bench, first_s=0.5, whole_s=1.9)
    assert missed(bench) == ("tpot", "compute"), "0.14 s a token"


def test_F2_a_first_token_that_nobody_was_to_see_is_no_promise() -> None:
    bench = bench_of(ttft_slo_s=1.0, e2e_slo_s=8.0)
    bench.arrive(40, 20, stream=False)
    run_of(bench, first_s=5.0, whole_s=6.0)
    assert missed(bench) is None
    bench.arrive(40, 20, stream=False)
    run_of(bench, first_s=5.0, whole_s=9.0)
    assert missed(bench) == ("e2e", "compute")


@pytest.mark.parametrize("promise", ["ttft", "e2e", "tpot"])
def test_F2_where_its_engine_put_something_aside_meanwhile_it_was_memory(promise: str) -> None:
    bench = bench_of(**{f"{promise}_slo_s": 0.1})
    bench.arrive(40, 20)
    preempt(bench)
    run_of(bench, first_s=2.0, whole_s=4.0)
    assert missed(bench) == (promise, "memory")


def test_F2_what_was_put_aside_before_it_was_sent_did_not_hold_it_up() -> None:
    bench = bench_of(e2e_slo_s=1.0)
    preempt(bench)
    bench.advance(0.1)
    bench.arrive(40, 20)
    run_of(bench, first_s=0.5, whole_s=2.0)
    assert missed(bench) == ("e2e", "compute")


def test_F2_time_that_a_broken_try_took_is_neither_queueing_nor_this_engines() -> None:
    """Its first engine broke off unheard; the second would have been in time."""
    bench = bench_of(ttft_slo_s=1.0, replicas=2)
    bench.arrive(40, 20)
    (first,) = bench.take(Run)
    bench.feed(events.EngineLost(first.execution.id, "reset", unheard=True))
    bench.advance(3.0)
    bench.feed(events.Evidence(first.execution.id, "E3b"))
    run_of(bench, first_s=0.5, whole_s=1.0)
    assert missed(bench) == ("ttft", "upstream")


def test_F2_an_answer_of_one_token_has_no_time_between_tokens() -> None:
    bench = bench_of(tpot_slo_s=0.1)
    bench.arrive(40, 20)
    run_of(bench, first_s=0.5, whole_s=3.0, tokens=1)
    assert missed(bench) is None
    bench.arrive(40, 20)
    run_of(bench, first_s=0.5, whole_s=0.7, tokens=2)
    assert missed(bench) == ("tpot", "compute")


def test_F2_of_two_samples_each_wrote_half_of_the_tokens() -> None:
    bench = bench_of(tpot_slo_s=0.1)
    bench.arrive(40, 10, samples=2)
    run_of(bench, first_s=0.5, whole_s=1.5, tokens=22)  # eleven each: 0.1 s a token
    assert missed(bench) is None
    bench.arrive(40, 10, samples=2)
    run_of(bench, first_s=0.5, whole_s=1.5, tokens=20)  # ten each: 0.11 s
    assert missed(bench) == ("tpot", "compute")


def test_F2_only_a_complete_answer_can_miss_a_promise() -> None:
    """A failure is counted as one, and not as late besides."""
    bench = bench_of(e2e_slo_s=1.0)
    bench.arrive(40, 20)
    execution = bench.execution()
    bench.first_byte(execution)
    bench.advance(5.0)
    bench.feed(events.Stopped(execution, Usage(20, 0, 3, 0.0, "error", True), True))
    (outcome,) = bench.outcomes()
    assert (outcome.outcome, outcome.in_slo, outcome.missed) == ("failed", False, None)
