"""Overloads that are simulated with a decision log kept, as a gateway keeps one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from headworks.core.effects import Effect, Outcome
from headworks.core.events import Event
from headworks.core.gate import Gate
from headworks.core.policy import Policy
from headworks.core.types import Decision
from headworks.gateway.decisions import DecisionLog
from headworks.gateway.log_facts import Facts
from headworks.sim.compare import plan, setup
from headworks.sim.scenario import Comparison
from headworks.sim.simulation import Setup, Simulation
from headworks.tools.decision_log import SIMULATED

WALL_S = 1_796_000_000.0


class LoggedGate(Gate):
    """Tells the log what the gate is told of engines and of policies, as the gateway's runner does."""

    facts: Facts

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        self.facts.take(event, now_s)
        return super().handle(event, now_s)


class LoggedSimulation(Simulation):
    """One gateway whose records go to a decision log, which is flushed after so many of them."""

    def __init__(self, setup: Setup, directory: Path, flush_every: int, **settings: Any) -> None:
        super().__init__(replace(setup, make_gate=self._gate))
        self.ledger.woken = None  # an embedded ledger has one gateway, which it need not wake
        clock_s = lambda: self.world.now_s  # noqa: E731
        self.log = DecisionLog(directory, clock_s=clock_s, wall_s=lambda: WALL_S + self.world.now_s, **settings)
        self.facts = Facts(self.log)
        self._flush_every = flush_every
        self._records = 0

    def _gate(self, policy: Policy, gateway: str, seed: int, boot: str) -> LoggedGate:
        self.facts.began(gateway, boot, WALL_S, SIMULATED, policy)
        gate = LoggedGate(policy, gateway, seed.to_bytes(16, "big"), boot, WALL_S)
        gate.facts = self.facts
        return gate

    def on_record(self, record: Decision | Outcome) -> None:
        self.log.write(record)
        self._records += 1
        if self._records % self._flush_every == 0:
            self.log.flush()
        super().on_record(record)


def logged(
    directory: Path, comparison: dict[str, Any], seed: int = 1, *, flush_every: int = 1_000, **settings: Any
) -> LoggedSimulation:
    """Run it with its first discipline, and leave its log in the directory."""
    made = Comparison.model_validate(comparison)
    world = setup(made, next(iter(made.disciplines)), plan(made, seed), seed)
    simulation = LoggedSimulation(world, directory, flush_every, flush_s=60.0, **settings)
    simulation.run()
    simulation.log.close()
    return simulation


def overload(**changes: Any) -> dict[str, Any]:
    """Three tenants, two classes, twice what a small engine can take; clients leave, and some come back."""
    return {
        "duration_s": 12,
        "context_tokens": 4096,
        "engines": {"preset": "vllm_cpu_tiny"},
        "policy": {
            "classes": {
                "interactive": {"ttft_slo_s": 1.0, "wait_s_max": 1.0},
                "bulk": {"ttft_slo_s": None, "wait_s_max": 8.0},
            },
            "tenants": {
                "acme": {"active_tokens_max": 3000},
                "quiet": {},
                "batchco": {"service_class": "bulk"},
            },
            "pool": {"active_requests_max": 8},
        },
        "disciplines": {"wfq": {"kind": "wfq"}},
        "traffic": [
            {"tenant": "acme", "arrivals": "poisson", "rate_per_s": 25.0, **LENGTHS},
            {"tenant": "quiet", "arrivals": "poisson", "rate_per_s": 5.0, **LENGTHS},
            {"tenant": "batchco", "service_class": "bulk", "arrivals": "poisson", "rate_per_s": 12.0, **LENGTHS},
        ],
        "clients": {"patience_s": 4.0, "leave_ratio": 0.1, "retries_max": 1, "key_ratio": 0.2},
        **changes,
    }


LENGTHS: dict[str, Any] = {
    "prompt": {"kind": "lognormal", "tokens": 120, "sigma": 0.8, "low": 8, "high": 1500},
    "output": {"kind": "lognormal", "tokens": 80, "sigma": 0.7, "low": 4, "high": 400},
    "output_tokens_max": 500,
}
