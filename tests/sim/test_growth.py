"""Growth under the auditor (A8): what the engine physically holds, against what is charged, after every event."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

from headworks.core.effects import Abort, Effect
from headworks.core.events import Event
from headworks.core.policy import Policy
from headworks.sim.campaign import run_world
from headworks.sim.compare import compared, make_gate, plan, setup
from headworks.sim.invariants import Watch
from headworks.sim.runner import GateLike
from headworks.sim.scenario import Comparison, Scenario, load
from headworks.sim.simulation import Setup, Simulation

STEP, LIMIT = 32, 1_600


def world(*, growth: bool = True, limit: int = LIMIT, **changed: Any) -> Comparison:
    """Three tenants whose answers differ, and a pool in which hardly three of the longest fit."""
    traffic = [
        {"tenant": name, "arrivals": "poisson", "rate_per_s": rate, "prompt": {"tokens": 32}, "output": output}
        for name, rate, output in (
            ("short", 6.0, {"kind": "lognormal", "tokens": 20, "sigma": 0.5}),
            ("long", 2.0, {"kind": "lognormal", "tokens": 150, "sigma": 0.6}),
            ("mixed", 3.0, {"kind": "lognormal", "tokens": 40, "sigma": 1.2}),
        )
    ]
    pool = {
        "active_tokens_max": limit,
        "active_requests_max": 64,
        "growth": growth,
        "growth_step_tokens": STEP,
        "growth_ahead_tokens": 8,
        "output_tokens_cold": 64,
    }
    given = {
        "what": "w",
        "duration_s": 40,
        "context_tokens": 2_048,
        "engines": {"preset": "a100_8b", "distance": {"latency_s": 0.001, "scrape_s": 0.005}},
        "policy": {
            "classes": {"interactive": {"ttft_slo_s": 2.0, "wait_s_max": 1.0, "gateway_s": 60}},
            "tenants": {"short": {}, "long": {}, "mixed": {}},
            "pool": pool,
        },
        "disciplines": {"predictive_ttft": {}},
        "traffic": [one | {"output_tokens_max": 480, "exact_prompt": True} for one in traffic],
    }
    return Scenario.model_validate(given | changed).comparison()


def made(comparison: Comparison) -> Setup:
    return setup(comparison, "predictive_ttft", plan(comparison, 1), 1)


class StrictWatch(Watch):
    """Nothing is broken in these worlds, so not even what was told to stop may pass one step before it has."""

    def _answered_for(self, charged: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        return charged


def watched(comparison: Comparison) -> Simulation:
    simulation = Simulation(made(comparison))
    watch = StrictWatch(simulation)
    most = 0

    def look() -> None:
        nonlocal most
        watch.look()
        most = max(most, simulation.ledger.book.held("pool:main", "tokens"))  # type: ignore[attr-defined]

    simulation.world.watch = look
    simulation.run()
    simulation.world.run(simulation.world.now_s + 5.0)  # the last stop is asked and answered
    watch.at_the_end()
    assert most <= LIMIT
    assert most > 0.9 * LIMIT, "it was full, or this shows nothing"
    return simulation


@cache
def found(growth: bool) -> dict[str, Any]:
    return compared(world(growth=growth), 1)["predictive_ttft"]


def test_A8_no_execution_passes_what_is_charged_by_a_step_and_the_pool_never_passes_its_limit() -> None:
    simulation = watched(world())
    ends = [arrival.attempt.end for arrival in simulation.arrivals.values()]
    assert ends.count("completed") > 100
    assert ends.count("cut") >= 1, "some growth was refused, or this shows nothing"
    assert sum(arrival.outcome.growths for arrival in simulation.arrivals.values() if arrival.outcome) > 20


def test_A8_a_pool_too_small_for_everybodys_maximum_serves_half_as_much_again_and_more() -> None:
    grown, reserved = found(True), found(False)
    assert grown["goodput_per_s"] >= 1.5 * reserved["goodput_per_s"]
    assert reserved["growth"]["granted"] == reserved["growth"]["cut_short"] == 0
    assert grown["growth"]["reserved_over_used_ratio"] < reserved["growth"]["reserved_over_used_ratio"] / 2


def test_A8_the_scenario_of_the_public_trace_compares_the_two_in_the_same_world() -> None:
    scenario = load(Path(__file__).parents[2] / "scenarios" / "growth.yaml")
    grown, reserved = scenario.comparison(), scenario.comparison("reserve_the_maximum")
    assert (grown.policy.pool["growth"], reserved.policy.pool["growth"]) == (True, False)
    assert grown.traffic == reserved.traffic and grown.traffic[0].by_client


class NeverEnds:
    """A planted bug: who may not grow is not ended."""

    def __init__(self, gate: GateLike) -> None:
        self._gate = gate

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        return [one for one in self._gate.handle(event, now_s) if not (isinstance(one, Abort) and one.as_length)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gate, name)


def never_ending_gate(policy: Policy, gateway: str, seed: int, boot: str) -> GateLike:
    return NeverEnds(make_gate(policy, gateway, seed, boot))


def test_A8_planted_answer_that_is_not_ended_is_seen_in_the_engines_memory() -> None:
    assert run_world(made(world())) == ""
    assert "holds_more" in run_world(dataclasses.replace(made(world()), make_gate=never_ending_gate))


def test_G2_each_client_of_a_trace_may_be_a_tenant(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("t_s,client,input_tokens,output_tokens\n0,a,10,5\n1,b,20,6\n2,a,30,7\n")
    traffic = [{"trace": str(path), "arrivals": "trace", "rate_per_s": 1.0, "by_client": True, "tenant": "short"}]
    comparison = world().model_copy(
        update={
            "duration_s": 3.0,
            "traffic": Scenario.model_validate({"what": "w", "disciplines": {"f": {}}, "traffic": traffic}).traffic,
        }
    )
    built = made(comparison)
    assert [(source.tenant, source.client) for source in built.sources] == [("short-a", "short-a"), ("short-b", "short-b")]
    assert {"short-a", "short-b"} <= built.policy.tenants.keys()
    assert {built.sources[one.source].tenant: one.prompt_tokens for one in built.planned}["short-b"] == 20
