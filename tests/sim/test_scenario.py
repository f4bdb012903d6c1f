"""Scenarios: the figures of the burst, the words of a scenario file, and the same bytes for the same seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headworks.cli.main import application
from headworks.sim.compare import as_json, compared, plan, run
from headworks.sim.expect import Condition, failures
from headworks.sim.scenario import Scenario, ScenarioError, load

SCENARIOS = Path(__file__).parents[2] / "scenarios"


ALL = ["burst", "burst_batching", "small_pool", "bursty_tenant", "retry_wave"]


@cache
def found(name: str) -> dict[str, Any]:
    """The results of a scenario of this repository, run once for all tests that look at them."""
    scenario = load(SCENARIOS / f"{name}.yaml")
    return run(scenario, scenario.seed)


def invoke(*arguments: str) -> Any:
    words = ["sim", *arguments]
    return CliRunner().invoke(application(words), words)


def scenario_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    return path


SMALL = """
what: "Two a second against one that serves one"
duration_s: 5
engines: {kind: fixed_rate, settings: {rate_per_s: 1}}
policy: {pool: {active_requests_max: 1}}
disciplines: {fifo: {kind: fifo}}
traffic: [{rate_per_s: 2, output_tokens_max: 64, exact_prompt: true}]
"""


# the burst


def test_G3_unbounded_fifo_has_200_waiting_after_10_s_and_the_next_waits_20_s() -> None:
    assert found("burst")["queue_at_10_s"] == 200
    assert found("burst")["wait_est_at_10_s"] == 20.0


def test_G3_unbounded_fifo_admits_everybody_and_is_of_use_to_hardly_anybody() -> None:
    fifo = found("burst")["disciplines"]["fifo"]
    assert (fifo["arrivals"], fifo["admitted"], fifo["refused"]) == (1800, 1800, 0)
    assert fifo["useful_per_s"] == 0.5
    assert fifo["wasted_ratio"] == 0.95


def test_G3_a_queue_of_32_admits_632_of_1800_and_sheds_19_5_a_second() -> None:
    tail_drop = found("burst")["disciplines"]["fifo_tail_drop"]
    assert (tail_drop["admitted"], tail_drop["refused"]) == (632, 1168)
    assert round(tail_drop["admitted_per_s"], 1) == 10.5
    assert round(tail_drop["refused_per_s"], 1) == 19.5


def test_G3_prediction_admits_10_a_second_refuses_20_and_wastes_nothing() -> None:
    predictive = found("burst")["disciplines"]["predictive_ttft"]
    assert round(predictive["admitted_per_s"]) == 10
    assert round(predictive["refused_per_s"]) == 20
    assert predictive["goodput_per_s"] == 10.0
    assert predictive["wasted_ratio"] == 0.0
    assert predictive["ttft_p95_s"] <= 1.0


def test_G3_36_a_second_against_12_make_360_wait_after_15_s_for_30_s() -> None:
    fifo = found("burst")["cases"]["burst_36"]["disciplines"]["fifo"]
    assert (fifo["queue_at_15_s"], fifo["wait_est_at_15_s"]) == (360, 30.0)


def test_G3_a_long_queue_alone_is_not_useless_but_work_for_those_who_left_is() -> None:
    cases = found("burst")["cases"]
    useful = {
        (case, name): one["useful_per_s"]
        for case in ("patience_2_s", "patience_60_s")
        for name, one in cases[case]["disciplines"].items()
    }
    assert useful == {
        ("patience_2_s", "cancel_off"): 0.5,
        ("patience_2_s", "cancel_on"): 10.0,
        ("patience_60_s", "cancel_off"): 10.0,
        ("patience_60_s", "cancel_on"): 10.0,
    }
    assert cases["patience_60_s"]["disciplines"]["cancel_off"]["goodput_per_s"] == 0.25


@pytest.mark.parametrize("name", ALL)
def test_G3_every_expectation_of_a_scenario_holds(name: str) -> None:
    assert found(name)["failures"] == []


@pytest.mark.parametrize("name", ALL)
def test_I36_every_arrival_ends_in_exactly_one_way(name: str) -> None:
    cases = [found(name), *found(name)["cases"].values()]
    for case in cases:
        for discipline, one in case["disciplines"].items():
            counts = one["conservation"]
            assert counts["difference"] == 0, discipline
            assert counts["running"] == 0, discipline
            assert counts["arrivals"] >= one["arrivals"] > 0


def test_B5_a_bursty_tenant_gets_three_times_its_rate_for_20_s_and_the_steady_keep_80_percent() -> None:
    tenants = found("bursty_tenant")["disciplines"]["predictive_ttft"]["tenants"]
    assert 5.0 <= tenants["bursty"]["useful_per_s_best_20_s"] <= 6.5
    assert 1.8 <= tenants["bursty"]["useful_per_s_worst_20_s"] <= 2.2
    assert min(tenants[name]["served_ratio_worst_5_s"] for name in ("steady_a", "steady_b")) >= 0.8
    without = found("bursty_tenant")["cases"]["no_rate"]["disciplines"]["predictive_ttft"]["tenants"]
    assert max(without[name]["served_ratio_worst_5_s"] for name in ("steady_a", "steady_b")) <= 0.7


def test_K52_a_hundred_and_a_thousand_refused_at_once_return_as_the_pool_drains() -> None:
    for one, wishes in ((found("retry_wave"), 100), (found("retry_wave")["cases"]["thousand"], 1000)):
        results = one["disciplines"]["predictive_ttft"]
        assert results["tenants"]["wave"]["wishes"] == wishes
        assert results["callers"]["returns_per_s_max"] <= 1.2 * 10
        assert results["tenants"]["wave"]["served"] >= min(wishes, 590)


# running one


def test_G1_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    scenario = load(SCENARIOS / "small_pool.yaml")
    first, second, other = (as_json(run(scenario, seed)) for seed in (5, 5, 6))
    assert first == second
    assert first != other


def test_G1_another_process_with_other_hashes_gives_the_same_bytes() -> None:
    command = [sys.executable, "-m", "headworks.cli.main", "sim", str(SCENARIOS / "small_pool.yaml"), "--json", "--seed", "5"]
    first, second = (
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": hashes}, capture_output=True, timeout=60, check=False
        ).stdout
        for hashes in ("1", "2")
    )
    assert len(first) > 1000
    assert first == second


def test_G1_every_discipline_meets_the_very_same_requests() -> None:
    comparison = load(SCENARIOS / "burst_batching.yaml").comparison()
    assert plan(comparison, 3) == plan(comparison, 3)
    assert plan(comparison, 3) != plan(comparison, 4)


def test_G1_exit_0_when_it_holds_1_when_not_2_when_it_could_not_run(tmp_path: Path) -> None:
    holds = scenario_file(tmp_path, SMALL + "expect: {disciplines.fifo.arrivals: {equals: 10}}")
    assert invoke(str(holds), "--json").exit_code == 0
    fails = scenario_file(tmp_path, SMALL + "expect: {disciplines.fifo.arrivals: {equals: 11}}")
    failed = invoke(str(fails), "--json")
    assert failed.exit_code == 1
    assert "disciplines.fifo.arrivals: is 10; expected: equals 11" in failed.stderr
    assert invoke(str(tmp_path / "missing.yaml")).exit_code == 2
    assert invoke().exit_code == 2


def test_G2_a_trace_that_cannot_be_read_could_not_be_run(tmp_path: Path) -> None:
    text = SMALL.replace("rate_per_s: 2,", "trace: nowhere.csv,")
    answered = invoke(str(scenario_file(tmp_path, text)), "--json")
    assert answered.exit_code == 2
    assert "nowhere.csv" in answered.stderr


def test_G1_several_seeds_are_held_to_the_expectations_one_by_one(tmp_path: Path) -> None:
    path = scenario_file(tmp_path, SMALL + "expect: {disciplines.fifo.arrivals: {equals: 10}}")
    answered = invoke(str(path), "--json", "--seeds", "3", "--seed", "7")
    assert answered.exit_code == 0
    assert [one["seed"] for one in json.loads(answered.stdout)["runs"]] == [7, 8, 9]


def test_G1_json_has_the_keys_others_read(tmp_path: Path) -> None:
    answered = json.loads(invoke(str(scenario_file(tmp_path, SMALL)), "--json").stdout)
    wanted = {"goodput_per_s", "useful_per_s", "admitted", "refused", "wasted_ratio", "ttft_p95_s"}
    assert wanted <= set(answered["disciplines"]["fifo"])


# reading one


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("typo: 1", "typo"),
        ("clients: {patience: 2}", "no key 'patience'"),
        ("policy: {pool: {seats: 1}}", "no key 'seats'"),
        ("faults: [{at_s: 1, kind: meteor}]", "no such kind 'meteor'"),
        ("cases: {one: {compare: [lifo]}}", "no discipline 'lifo'"),
        ("expect: {a.b: {}}", "say one of"),
        ("baseline: lifo", "baseline: no discipline 'lifo'"),
        ("engines: {kind: continuous_batching, preset: gpu}", "no such preset"),
        ("traffic: [{rate_per_s: 2, by_client: true}]", "by_client needs a trace"),
        ("traffic: [{rate_per_s: 1.0e+9}]", "makes more than 5,000,000 arrivals"),
        ("traffic: [{rate_per_s: 2, prompt: {tokens: 0}}]", "at least one token"),
        ("traffic: [{rate_per_s: 2, output: {kind: uniform, low: 9, high: 8}}]", "low is not above high"),
        ("traffic: [{rate_per_s: 2, prompt: {kind: zipf}}]", "no such kind of length 'zipf'"),
        ("disciplines: {}", "disciplines"),
        ("disciplines: {one: {kind: lottery}}", "disciplines.one: no such kind 'lottery'; known: fifo"),
        ("disciplines: {one: {kind: []}}", "kind: Input should be a valid string"),
        ("policy: {classes: {}}", "policy.classes"),
        ("policy: {lease_s: .inf}", "policy.lease_s"),
        ("ledger: {latency_s: .nan}", "ledger.latency_s"),
        ("clients: {patience_s: .nan}", "patience_s: .nan is no number"),
        ("faults: [{at_s: 1, kind: engine_hang, target: main/1}]", "engine_hang has no target 'main/1'; known: main/0"),
        ("faults: [{at_s: 1, kind: gateway_kill, target: main/0}]", "gateway_kill has no target 'main/0'; known: 0"),
        ("what: " + "[" * 5_000, "not YAML"),
    ],
)
def test_G1_a_scenario_that_cannot_be_run_says_which_key_and_why(tmp_path: Path, change: str, said: str) -> None:
    key = change.split(":", 1)[0]
    kept = "\n".join(line for line in SMALL.splitlines() if not line.startswith(f"{key}:"))
    with pytest.raises(ScenarioError, match=said) as caught:
        load(scenario_file(tmp_path, f"{kept}\n{change}\n"))
    assert "scenario.yaml" in str(caught.value)


def test_G1_a_case_changes_only_what_it_names() -> None:
    scenario = Scenario.model_validate(
        {
            "what": "w",
            "disciplines": {"fifo": {}, "other": {}},
            "clients": {"patience_s": 2.0, "retries_max": 1},
            "traffic": [{"rate_per_s": 1.0}, {"rate_per_s": 2.0}],
            "cases": {"later": {"clients": {"patience_s": 9.0}, "traffic": [{"rate_per_s": 5.0}], "compare": ["other"]}},
        }
    )
    case = scenario.comparison("later")
    assert case.clients == {"patience_s": 9.0, "retries_max": 1}
    assert [one.rate_per_s for one in case.traffic] == [5.0, 2.0]
    assert list(case.disciplines) == ["other"]
    assert scenario.comparison().clients["patience_s"] == 2.0


@pytest.mark.parametrize(
    ("condition", "value", "holds"),
    [
        ({"equals": 3}, 3, True),
        ({"equals": 3}, 3.1, False),
        ({"at_least": 2, "at_most": 4}, 4, True),
        ({"at_least": 2, "at_most": 4}, 4.5, False),
        ({"between": (1, 2)}, 2, True),
        ({"between": (1, 2)}, 0.9, False),
        ({"about": (10, 0.1)}, 11, True),
        ({"about": (10, 0.1)}, 11.1, False),
        ({"times": (1.5, "a.other")}, 3, True),
        ({"times": (1.5, "a.other")}, 2.9, False),
    ],
)
def test_G1_conditions(condition: dict[str, Any], value: float, holds: bool) -> None:
    assert (failures({"a.b": Condition(**condition)}, {"a": {"b": value, "other": 2}}) == []) is holds


def test_G1_an_expectation_about_nothing_does_not_hold() -> None:
    assert failures({"a.c": Condition(equals=1)}, {"a": {"b": 1}}) == ["a.c: there is no 'c' in the results"]
    assert failures({"a.b": Condition(equals=1)}, {"a": {"b": None}}) == ["a.b: is None, not a number; expected: equals 1.0"]


def test_G2_a_recorded_trace_can_be_offered() -> None:
    comparison = Scenario.model_validate(
        {
            "what": "w",
            "duration_s": 5,
            "context_tokens": 4096,
            "engines": {"preset": "vllm_cpu_tiny"},
            "policy": {"pool": {"active_requests_max": 16}},
            "disciplines": {"predictive_ttft": {"kind": "predictive_ttft"}},
            "traffic": [{"trace": "azure2023_conv", "arrivals": "poisson", "rate_per_s": 5.0, "output_tokens_max": 1024}],
        }
    ).comparison()
    one = compared(comparison, 1)["predictive_ttft"]
    assert 10 <= one["arrivals"] <= 45
    assert one["conservation"]["difference"] == 0
    assert one["useful_per_s"] > 0
