"""The autoscaler of the simulator, and what admission is worth while engines are starting (B9)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from headworks.sim.autoscaler import Scaling
from headworks.sim.compare import compared, plan, run, setup
from headworks.sim.scenario import Scenario, load
from headworks.sim.simulation import WARM_S, Simulation

SCENARIOS = Path(__file__).parents[2] / "scenarios"
TOO_MUCH = """
what: "Thirty a second against one engine that serves ten, and two more that can be started"
duration_s: 60
engines: {kind: fixed_rate, replicas: 3, settings: {rate_per_s: 10, servers: 10}, scaling: {ready: 1, start_s: 20, every_s: 5}}
policy: {pool: {active_requests_max: 10}}
disciplines: {wfq: {kind: wfq}}
traffic: [{rate_per_s: 30, output_tokens_max: 64, exact_prompt: true}]
"""


def simulated(tmp_path: Path, text: str, **scaling: float) -> Simulation:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    comparison = load(path).comparison()
    made = setup(comparison, "wfq", plan(comparison, 1), 1)
    if scaling and made.scaling is not None:
        made.scaling = Scaling(**{"ready": 1, "start_s": 20.0, "every_s": 5.0, **scaling})  # type: ignore[arg-type]
    simulation = Simulation(made)
    simulation.run()
    return simulation


def test_B9_what_is_wanted_is_ready_the_start_up_time_after_it_was_seen_to_be_missing(tmp_path: Path) -> None:
    simulation = simulated(tmp_path, TOO_MUCH)
    assert simulation.autoscaler is not None
    assert [joined_s - WARM_S for joined_s in simulation.autoscaler.joined_s] == [25.0, 30.0]
    taken_s = {name: sorted(replica.taken.values()) for name, replica in simulation.replicas.items()}
    assert min(len(found) for found in taken_s.values()) > 200
    assert taken_s["main/0"][0] < WARM_S + 1.0
    assert WARM_S + 25.0 <= taken_s["main/1"][0] < WARM_S + 26.0
    assert WARM_S + 30.0 <= taken_s["main/2"][0] < WARM_S + 31.0


def test_B9_what_is_starting_already_is_not_started_again(tmp_path: Path) -> None:
    simulation = simulated(tmp_path, TOO_MUCH.replace("replicas: 3", "replicas: 9").replace("rate_per_s: 30", "rate_per_s: 14"))
    assert simulation.autoscaler is not None
    assert 1 <= len(simulation.autoscaler.joined_s) <= 3


def test_B9_an_autoscaler_that_is_not_asked_starts_nothing(tmp_path: Path) -> None:
    simulation = simulated(tmp_path, TOO_MUCH.replace("rate_per_s: 30", "rate_per_s: 5"))
    assert simulation.autoscaler is not None
    assert simulation.autoscaler.joined_s == []


@cache
def surge() -> dict[str, Any]:
    """The three ways at the middle load, with engines that take 90 s, for three minutes."""
    scenario, found = load(SCENARIOS / "autoscaler.yaml"), {}
    for name in ("rate_above", "auto_90_above", "both_90_above"):
        comparison = scenario.comparison(name).model_copy(update={"duration_s": 180.0})
        found[name] = next(iter(compared(comparison, scenario.seed).values()))
    return found


def test_B9_both_with_admission_is_better_than_a_rate_limit_alone_and_than_scaling_alone() -> None:
    found = surge()
    good_per_s = {name: one["goodput_per_s"] for name, one in found.items()}
    assert good_per_s["both_90_above"] >= 1.3 * good_per_s["rate_above"]
    assert good_per_s["both_90_above"] >= 1.3 * good_per_s["auto_90_above"]
    assert found["both_90_above"]["classes"]["interactive"]["late"] == 0
    assert found["auto_90_above"]["classes"]["interactive"]["late"] > 500
    assert found["rate_above"]["replicas_joined"] == 0


def test_B9_the_scenario_says_so_of_every_load_and_start_up_time() -> None:
    scenario = load(SCENARIOS / "autoscaler.yaml")
    compared_with = {path: condition.times for path, condition in scenario.expect.items()}
    assert len(compared_with) == 6
    for load_name in ("below", "above", "far_above"):
        for start_s in (90, 240):
            path = f"cases.both_{start_s}_{load_name}.disciplines.admission.goodput_per_s"
            others = (f"cases.rate_{load_name}", f"cases.auto_{start_s}_{load_name}")
            assert compared_with[path] == (1.0, *(f"{case}.disciplines.line.goodput_per_s" for case in others))


@pytest.mark.parametrize("seed", [1, 2])
def test_B2_a_step_to_twice_the_load_makes_nobody_late_who_is_let_in(seed: int) -> None:
    scenario = load(SCENARIOS / "step.yaml")
    assert run(scenario, seed)["failures"] == []


def test_B9_a_replica_count_that_is_no_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(TOO_MUCH.replace("ready: 1", "raedy: 1"))
    with pytest.raises(Exception, match="raedy"):
        load(path)


def test_B9_without_an_autoscaler_every_replica_is_there() -> None:
    assert Scenario.model_fields["engines"].default.autoscaler() is None
