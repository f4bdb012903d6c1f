"""B2 with three gateways in front of one engine of known rate: each predicts a wait from what waits at all of them."""

from __future__ import annotations

from functools import cache, partial
from statistics import median

import pytest

from headworks.sim.compare import plan, setup
from headworks.sim.scenario import Comparison
from headworks.sim.simulation import WARM_S, Simulation

PER_S, WAITING, APART_S = 10.0, 15, 0.27
KNOWN_S = 5.0
"""By then a few beats have told what waits, and how quickly it gets on."""


class Apart(Simulation):
    """Its gateways come up one after the other, as processes do: not one of them beats at the very instant of another."""

    def begin(self) -> None:
        super().begin()
        for number in range(1, self.setup.gateways):
            self.world.at(APART_S * number, partial(self._again, number))

    def _again(self, number: int) -> None:
        runner = self.runners[number]
        assert runner is not None
        runner.kill()
        self.boot(number)


@cache
def predicted_s(tenants: tuple[str, str, str], kind: type[Simulation]) -> list[list[float]]:
    """By gateway, the waits foreseen for those who arrive while fifteen wait at each: as many come as are served."""
    traffic = [
        {
            "tenant": tenant,
            "gateway": number,
            "steps": [
                {"from_s": 0.05 + 0.013 * number, "rate_per_s": (WAITING + 1) / 0.2},
                {"from_s": 0.25 + 0.013 * number, "rate_per_s": PER_S / 3},
            ],
            "prompt": {"kind": "fixed", "tokens": 90},
            "output": {"kind": "fixed", "tokens": 10},
            "output_tokens_max": 10,
            "exact_prompt": True,
        }
        for number, tenant in enumerate(tenants)
    ]
    comparison = Comparison.model_validate(
        {
            "duration_s": 25.0,
            "gateways": 3,
            "engines": {"kind": "fixed_rate", "settings": {"rate_per_s": PER_S}},
            "policy": {
                "classes": {"interactive": {"ttft_slo_s": None, "wait_s_max": 50.0}},
                "tenants": {tenant: {} for tenant in tenants},
                "pool": {"active_requests_max": 1},
            },
            "disciplines": {"wfq": {"kind": "wfq"}},
            "traffic": traffic,
            "clients": {"patience_s": 60.0},
        }
    )
    simulation = kind(setup(comparison, "wfq", plan(comparison, 1), 1))
    simulation.run()
    found: list[list[float]] = [[], [], []]
    for arrival in simulation.arrivals.values():
        outcome, decision = arrival.outcome, arrival.decision
        assert outcome is not None and decision is not None
        if outcome.arrived_s - WARM_S > KNOWN_S:
            assert decision.forecast.wait_s is not None
            found[arrival.caller.planned.source].append(decision.forecast.wait_s)
    return found


def test_B2_three_gateways_with_15_waiting_each_foresee_4_5_s_on_each_of_them() -> None:
    """Flows that take turns: every newcomer, on every gateway."""
    for waits_s in predicted_s(("acme", "beta", "gamma"), Apart):
        assert len(waits_s) > 60
        assert min(waits_s) >= 4.0 and max(waits_s) <= 5.0


def test_B2_one_flow_at_three_gateways_is_foreseen_at_the_middle() -> None:
    """The gateway that asks first is served for seconds at a time, and the others hear of it once a second."""
    for waits_s in predicted_s(("acme", "acme", "acme"), Simulation):
        assert median(waits_s) == pytest.approx(4.5, abs=0.5)
