"""The estimate made anew while tokens appear: how much is asked for next, and what a refusal of that leaves (C2, A8)."""

from __future__ import annotations

from headworks.core import events
from headworks.core.effects import Abort, Run
from tests.core.driver import Bench
from tests.core.test_growth import bench, counts, grows, watched

LONG = (300, 500, 700, 900, 1_100)
"""Of the hundred answers that this tenant is known by, those that became long."""


def known(limit: int | None = None, tenant: int | None = None) -> Bench:
    made = bench(limit=limit, tenant=tenant)
    for number in range(100):
        tokens = 30 if number % 20 else LONG[number // 20]
        made.arrive(4_100, 4_000)
        (run,) = made.take(Run)
        made.first_byte(run.execution.id)
        made.complete(run.execution.id, prompt_tokens=100, output_tokens=tokens)
    made.take(Abort)
    grows(made)
    return made


def running(made: Bench) -> tuple[str, int]:
    """One more, and what is reserved of its output."""
    made.arrive(4_100, 4_000)
    (run,) = made.take(Run)
    made.first_byte(run.execution.id)
    return run.execution.id, run.decision.work.output_tokens


def test_C2_the_next_step_is_what_half_of_those_that_became_longer_stay_within() -> None:
    made = known()
    execution, reserved = running(made)
    assert reserved == 30 + 18
    counts(made, execution, 32)
    (asked,) = grows(made)
    assert asked.step == 700 + 18
    assert made.held() == 100 + 718
    assert watched(made)[-1] == 718 - 16
    counts(made, execution, 702)
    assert [again.step for again in grows(made)] == [718 + 64], "too few became so long to say what half of them come to"


def test_C2_a_tenant_that_is_not_known_grows_by_one_step() -> None:
    made = bench()
    execution, reserved = running(made)
    counts(made, execution, reserved - 16)
    assert [asked.step for asked in grows(made)] == [reserved + 64]


def test_A8_where_the_large_step_is_refused_one_step_is_asked_for_at_once() -> None:
    made = known(limit=600)
    execution, _ = running(made)
    counts(made, execution, 32)
    assert [asked.step for asked in grows(made)] == [718, 48 + 64]
    assert made.held() == 100 + 48 + 64
    assert made.take(Abort) == []
    (life,) = [life for life in made.gate._desk.runs.values() if life.execution.id == execution]
    assert (life.growths, life.growths_refused) == (1, 0)


def test_A8_where_that_is_refused_as_well_it_ends_at_its_bound() -> None:
    made = known(limit=600)
    execution, reserved = running(made)
    made.arrive(450, 1)
    counts(made, execution, 32)
    assert [asked.step for asked in grows(made)] == [718, 48 + 64]
    assert made.held() == 148 + 450
    counts(made, execution, reserved)
    (abort,) = made.take(Abort)
    assert (abort.execution, abort.as_length, abort.reason) == (execution, True, "kv_saturation")
    assert made.held() <= 600


def test_A10_a_tenant_nobody_knows_is_reserved_more_once_its_first_answer_has_come_far() -> None:
    made = bench()
    execution, reserved = running(made)
    assert reserved == 200
    counts(made, execution, 184)
    made.arrive(4_100, 4_000)
    (run,) = made.take(Run)
    assert run.decision.work.output_tokens == 4 * 184 + 18


def test_A10_what_was_left_counts_whatever_proves_that_it_stopped() -> None:
    made = bench()
    name = made.arrive(4_100, 4_000)
    (run,) = made.take(Run)
    made.first_byte(run.execution.id)
    counts(made, run.execution.id, 184)
    counts(made, run.execution.id, 240)
    made.feed(events.ClientGone(name))
    made.arrive(4_100, 4_000)
    (run,) = made.take(Run)
    assert made.gate.estimates("acme")["m"]["answers"] == 1
    assert run.decision.work.output_tokens == 4 * 240 + 18, "though the engine has not shown yet that it stopped"


def test_A10_what_a_client_leaves_behind_counts_as_longer_than_that() -> None:
    """Nobody's answers stay short in the books because their clients never wait for the end."""
    made = bench()
    for _ in range(20):
        name = made.arrive(4_100, 4_000)
        (run,) = made.take(Run)
        made.first_byte(run.execution.id)
        made_tokens = run.decision.work.output_tokens - 16
        counts(made, run.execution.id, made_tokens)
        made.feed(events.ClientGone(name))
        made.complete(run.execution.id, prompt_tokens=100, output_tokens=made_tokens)
    made.arrive(4_100, 4_000)
    (run,) = made.take(Run)
    assert run.decision.work.output_tokens > 1_000
