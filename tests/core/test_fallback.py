"""Degradation: what a class consents to before its requests are refused (E5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headworks.core import events
from headworks.core.effects import Reply, Run, Serve
from headworks.core.fallback import Cascade, shaped
from headworks.core.policy import Policy, PoolPolicy, PricePolicy, QuotaPolicy, ReplicaPolicy, SpillPolicy, StepPolicy
from headworks.core.types import Leeway, Request, RequestKey
from tests.core.driver import Bench, capacity, policy

SMALLER = StepPolicy("smaller_model", model="small", pool="s", dwell_s=0.0)
CLAMP = StepPolicy("clamp_output", output_tokens_max=4, dwell_s=0.0)
SPILL = StepPolicy("spill", model="cloud-model", pool="c", dwell_s=0.0)
CACHED = StepPolicy("cached", dwell_s=0.0)
LEEWAY = Leeway(samples=1, prompt_bytes=10_000, is_kept=False)
LONG = {"ttft_slo_s": None, "wait_s_max": 2.0}


def degrading(*steps: StepPolicy, spill_money: int = 1_000_000, **interactive: Any) -> Policy:
    """Pool `p` with one place, a smaller model in pool `s`, a paid one in pool `c`."""
    made = policy(interactive={**LONG, "on_pressure": steps, **interactive}, pool={"active_requests_max": 1})
    price = PricePolicy(0.0, 0.0, 1.0)  # a thousand billionths of money for each token written
    beside = {
        "s": PoolPolicy("s", ("small",), (ReplicaPolicy("s/0"),), active_requests_max=1),
        "c": PoolPolicy(
            "c",
            ("cloud-model",),
            (ReplicaPolicy("c/0"),),
            active_requests_max=100,
            spill=SpillPolicy("cloud-model", price, spill_money),
        ),
    }
    return replace(made, pools={**made.pools, **beside})


def bench_of(*steps: StepPolicy, **changed: Any) -> Bench:
    places = (capacity(), capacity("s/0"), capacity("c/0"))
    return Bench(degrading(*steps, **changed), capacities=places)


def arrive(bench: Bench, tokens: int = 100, **changed: Any) -> str:
    name = bench.arrive(tokens, **{"leeway": LEEWAY, **changed})
    bench.advance(0.0)  # whoever must not wait at all is answered by the next tick
    return name


def pressed(bench: Bench, steps: int) -> None:
    """Raise the level so far: nothing more fits, and a second request waits until each change may be made."""
    bench.gate._desk.lane("acme", "interactive", "p")
    for _ in range(steps):
        bench.sample(kv_used_ratio=0.9)
        bench.advance(5.0)
    bench.sample(kv_used_ratio=0.7)
    assert levels(bench) == {"interactive": steps}


def levels(bench: Bench) -> dict[str, int]:
    return bench.gate.snapshot(bench.now_s)["pools"]["p"]["steps_in_force"]  # type: ignore[no-any-return]


def told(bench: Bench) -> list[tuple[str, str]]:
    """Where what was sent went, and what its client is told."""
    return [(run.execution.replica, run.decision.degraded) for run in bench.take(Run)]


# the cascade


def test_E5_steps_come_into_force_one_by_one_and_go_in_the_opposite_order() -> None:
    steps = (StepPolicy("cached", 0.80, 0.65, 0.0), StepPolicy("drop_n", 0.90, 0.70, 0.0))
    cascade, seen = Cascade(steps), []
    for at_s, pressure in enumerate((0.79, 0.81, 0.89, 0.91, 0.71, 0.69, 0.66, 0.64)):
        level = cascade.wants(pressure, float(at_s))
        if level != cascade.level:
            cascade.change(level, float(at_s))
        seen.append(cascade.level)
    assert seen == [0, 1, 1, 2, 2, 1, 1, 0]


def test_E5_a_step_dwells_before_it_changes_again() -> None:
    cascade = Cascade((StepPolicy("cached", 0.80, 0.65, dwell_s=10.0),))
    assert cascade.wants(0.9, 0.0) == 1
    cascade.change(1, 0.0)
    assert [cascade.wants(0.1, at_s) for at_s in (9.9, 10.0)] == [1, 0]
    cascade.change(0, 10.0)
    assert [cascade.wants(0.9, at_s) for at_s in (19.9, 20.0)] == [0, 1]


def test_E5_a_class_changes_at_most_once_in_five_seconds() -> None:
    bench, seen = bench_of(CLAMP, CACHED, SMALLER), []
    bench.gate._desk.lane("acme", "interactive", "p")
    for _ in range(22):
        bench.sample(kv_used_ratio=0.84)
        seen.append(levels(bench)["interactive"])
        bench.advance(0.5)
    assert seen == [1] * 10 + [2] * 10 + [3] * 2


def test_E5_a_class_that_consents_to_nothing_is_refused_as_ever() -> None:
    bench = bench_of()
    arrive(bench)
    bench.take(Run)
    arrive(bench)
    bench.advance(2.01)
    assert bench.refusal().reason == "queue_timeout"
    assert bench.gate._desk.lane("acme", "interactive", "p").cascade is None


# shaping


def test_E5_clamp_output_reaches_every_new_request_and_is_told() -> None:
    bench = bench_of(CLAMP)
    pressed(bench, 1)
    arrive(bench, tokens=200, output_tokens=100)
    (run,) = bench.take(Run)
    assert (run.output_tokens_max, run.decision.degraded) == (4, "clamp_output=4")
    assert bench.held() == 104, "and no more than that is reserved"
    bench.complete(run.execution.id)
    arrive(bench, tokens=103, output_tokens=3)
    assert told(bench) == [("p/0", "")], "one that asks for less is as it came"


def test_E5_a_request_whose_body_cannot_be_changed_is_left_as_it_is() -> None:
    bench = bench_of(CLAMP)
    pressed(bench, 1)
    arrive(bench, tokens=200, output_tokens=100, leeway=None)
    assert told(bench) == [("p/0", "")]
    assert bench.held() == 200


def test_E5_examples_and_further_samples_are_left_out_as_far_as_there_are_any() -> None:
    steps = (StepPolicy("strip_few_shot"), StepPolicy("drop_n"))
    base = Request(
        *("r", RequestKey("acme", "k"), False, "", "acme/key", "interactive", "m", "p", 4_000, 1_000, 10, 4, True),
        *("", None, 0, 0.0, 1.0, 55.0),
        leeway=Leeway(samples=1, prompt_bytes=400, is_kept=False),
    )
    request, variant = shaped(base, steps)
    assert (request.prompt_bytes, request.prompt_tokens, request.samples) == (400, None, 1)
    assert variant is not None
    assert (variant.told, variant.strips, variant.drops_n) == (("strip_few_shot", "drop_n"), True, True)
    assert shaped(replace(base, leeway=Leeway(4, 4_000, False)), steps) == (replace(base, leeway=Leeway(4, 4_000, False)), None)


# diverting


def test_E5_what_would_be_refused_goes_to_the_smaller_model_and_nobody_else_does() -> None:
    bench = bench_of(SMALLER, wait_s_max=0.0)
    pressed(bench, 1)
    first = arrive(bench)
    second = arrive(bench)
    assert told(bench) == [("p/0", ""), ("s/0", "smaller_model=small")]
    assert (bench.held("pool:p"), bench.held("pool:s")) == (100, 100)
    assert bench.take(Reply) == []
    runs = {life.request.id: name for name, life in bench.gate._desk.runs.items()}
    for name in (second, first):
        bench.first_byte(runs[name])
        bench.complete(runs[name])
    ends = {one.id: (one.outcome, one.model, one.pool) for one in bench.outcomes()}
    assert ends == {first: ("completed", "m", "p"), second: ("completed", "small", "s")}
    assert (bench.held("pool:p"), bench.held("pool:s")) == (0, 0)


def test_E5_a_refusal_is_pressure_enough_for_the_first_step() -> None:
    bench = bench_of(SMALLER, wait_s_max=0.0)
    arrive(bench)
    arrive(bench)
    assert [where for where, _ in told(bench)] == ["p/0", "s/0"]


def test_E5_whoever_has_waited_in_vain_is_tried_elsewhere_at_the_last_instant() -> None:
    bench = bench_of(SMALLER)
    pressed(bench, 1)
    arrive(bench)
    bench.take(Run)
    name = arrive(bench)
    bench.advance(1.97)
    assert bench.take(Run) == []
    bench.advance(0.02)
    (run,) = bench.take(Run)
    assert (run.id, run.execution.replica) == (name, "s/0")
    assert bench.gate.snapshot(bench.now_s)["pools"]["p"]["queued_requests"] == 0
    bench.complete(run.execution.id)
    assert [one.id for one in bench.outcomes()] == [name]


@pytest.mark.parametrize(("late_s", "helps"), [(0.2, True), (0.3, False)])
def test_E5_a_timer_that_comes_late_is_no_reason_to_refuse_within_a_quarter_of_a_second(late_s: float, helps: bool) -> None:
    bench = bench_of(SMALLER)
    pressed(bench, 1)
    arrive(bench)
    bench.take(Run)
    arrive(bench)
    bench.now_s += 2.0 + late_s
    bench.feed(events.Tick())
    assert [replica for replica, _ in told(bench)] == (["s/0"] if helps else [])
    assert len(bench.take(Reply)) == (not helps)


def test_E5_where_the_smaller_model_has_no_room_either_it_is_429() -> None:
    bench = bench_of(SMALLER, wait_s_max=0.0)
    pressed(bench, 1)
    for _ in range(2):
        arrive(bench)
    assert len(bench.take(Run)) == 2
    arrive(bench)
    assert bench.refusal().reason == "queue_timeout"


def test_E5_a_tenant_that_may_not_use_the_smaller_model_does_not_get_it() -> None:
    settings = degrading(SMALLER, wait_s_max=0.0)
    tenants = {name: replace(one, models=("m",)) for name, one in settings.tenants.items()}
    bench = Bench(replace(settings, tenants=tenants), capacities=(capacity(), capacity("s/0"), capacity("c/0")))
    pressed(bench, 1)
    arrive(bench)
    arrive(bench)
    assert told(bench) == [("p/0", "")]
    assert len(bench.take(Reply)) == 1


def test_E5_a_tenants_own_limit_is_no_reason_to_divert() -> None:
    settings = degrading(SMALLER, on_tenant_full="refuse")
    tenants = {name: replace(one, active_tokens_max=150) for name, one in settings.tenants.items()}
    bench = Bench(replace(settings, tenants=tenants), capacities=(capacity(), capacity("s/0"), capacity("c/0")))
    pressed(bench, 1)
    arrive(bench)
    arrive(bench)
    assert bench.refusal().reason == "tenant_capacity_exceeded"


def test_E5_a_broken_pool_is_answered_from_elsewhere_too() -> None:
    bench = bench_of(SMALLER)
    pressed(bench, 1)
    bench.gate._desk.pools["p"].replicas["p/0"].refused_connection(bench.now_s)
    arrive(bench)
    assert told(bench) == [("s/0", "smaller_model=small")]


def test_E5_spilling_keeps_to_the_budget_of_the_day() -> None:
    bench = bench_of(SPILL, spill_money=250_000, wait_s_max=0.0)
    pressed(bench, 1)
    arrive(bench)
    bench.take(Run)
    for _ in range(2):  # 100 tokens at a thousand each
        arrive(bench, tokens=101, output_tokens=100)
    runs = bench.take(Run)
    assert [(run.execution.replica, run.decision.degraded) for run in runs] == [("c/0", "spill=c")] * 2
    arrive(bench, tokens=101, output_tokens=100)
    assert bench.refusal().reason == "queue_timeout", (
        "a third would make it 300,000 of 250,000, which is not its tenant's fault"
    )
    for run in runs:
        bench.complete(run.execution.id, prompt_tokens=1, output_tokens=20)
    for _ in range(3):  # 40,000 are spent, so two more fit
        arrive(bench, tokens=101, output_tokens=100)
    assert len(bench.take(Run)) == 2
    assert len(bench.take(Reply)) == 1
    quota = bench.gate._desk.pools["c"].spill.quota  # type: ignore[union-attr]
    assert (quota.committed_nanomoney, quota.outstanding_nanomoney) == (40_000, 200_000)
    assert bench.held(quota.scope, "nanomoney") == 240_000, "the ledger holds the same"


def test_E5_cached_answers_without_running_anything() -> None:
    bench = bench_of(CACHED, wait_s_max=0.0)
    pressed(bench, 1)
    arrive(bench)
    name = arrive(bench, leeway=replace_kept())
    (served,) = bench.take(Serve)
    assert (served.id, served.decision.degraded) == (name, "cached")
    assert len(bench.take(Run)) == 1
    (outcome,) = bench.outcomes()
    assert (outcome.outcome, outcome.reason, outcome.usage) == ("replayed", "", None)
    arrive(bench)
    assert len(bench.take(Reply)) == 1, "what is not kept is refused"


def replace_kept() -> Leeway:
    return LEEWAY._replace(is_kept=True)


def test_E5_steps_are_tried_in_the_order_of_the_file() -> None:
    for steps, where in (((SMALLER, SPILL), "s/0"), ((SPILL, SMALLER), "c/0")):
        bench = bench_of(*steps, wait_s_max=0.0)
        pressed(bench, 2)
        arrive(bench)
        arrive(bench)
        assert [replica for replica, _ in told(bench)] == ["p/0", where]


def test_E5_one_that_is_clamped_and_diverted_is_told_of_both() -> None:
    bench = bench_of(CLAMP, SMALLER, wait_s_max=0.0)
    pressed(bench, 2)
    for _ in range(2):
        arrive(bench, tokens=200, output_tokens=100)
    assert told(bench) == [("p/0", "clamp_output=4"), ("s/0", "clamp_output=4, smaller_model=small")]


def test_E5_observing_changes_nothing() -> None:
    bench = Bench(replace(degrading(CLAMP), observe=True), capacities=(capacity(), capacity("s/0"), capacity("c/0")))
    bench.sample(kv_used_ratio=0.9)
    arrive(bench, tokens=200, output_tokens=100)
    (run,) = bench.take(Run)
    assert (run.output_tokens_max, run.variant) == (100, None)


def test_E5_a_key_stays_its_own_when_its_request_is_diverted() -> None:
    bench = bench_of(SMALLER, wait_s_max=0.0)
    pressed(bench, 1)
    arrive(bench)
    name = arrive(bench, key_given=True, key=RequestKey("acme", "mine"), fingerprint="f")
    run = next(run for run in bench.take(Run) if run.id == name)
    assert run.execution.replica == "s/0"
    again = arrive(bench, key_given=True, key=RequestKey("acme", "mine"), fingerprint="f")
    assert bench.take(Run) == [], "it shares that answer"
    bench.first_byte(run.execution.id)
    bench.complete(run.execution.id)
    assert {one.id: one.outcome for one in bench.outcomes()} == {name: "completed", again: "replayed"}


@pytest.mark.parametrize("steps", [(), (CLAMP,)])
def test_E5_a_reload_with_other_steps_begins_anew(steps: tuple[StepPolicy, ...]) -> None:
    bench = bench_of(CACHED)
    pressed(bench, 1)
    bench.feed(events.PolicyChanged(replace(degrading(*steps), version="v2", number=2)))
    arrive(bench)
    assert levels(bench) == ({"interactive": 0} if steps else {})


def test_E5_what_is_spilled_is_outstanding_against_its_tenants_quota_as_well() -> None:
    settings = degrading(SPILL, wait_s_max=0.0)
    tenants = {name: replace(one, quota=QuotaPolicy("day", tokens=1_000)) for name, one in settings.tenants.items()}
    bench = Bench(replace(settings, tenants=tenants), capacities=(capacity(), capacity("s/0"), capacity("c/0")))
    pressed(bench, 1)
    for _ in range(2):
        arrive(bench, tokens=101, output_tokens=100)
    runs = bench.take(Run)
    own = bench.gate._desk.tenants["acme"].quota
    purse = bench.gate._desk.pools["c"].spill
    assert own is not None
    assert purse is not None
    assert (own.outstanding_tokens, purse.quota.outstanding_nanomoney) == (202, 100_000)
    for run in runs:
        bench.complete(run.execution.id, prompt_tokens=1, output_tokens=10)
    assert (own.outstanding_tokens, own.committed_tokens) == (0, 22)
    assert (purse.quota.outstanding_nanomoney, purse.quota.committed_nanomoney) == (0, 10_000)
    assert (bench.held(own.scope), bench.held(purse.quota.scope, "nanomoney")) == (22, 10_000)
