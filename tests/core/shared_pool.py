"""A gate whose pool is shared by classes and tenants, on a bench with names.

One place at a time (`active_requests_max: 1`) makes the order of service visible; `served` says which flow each turn went to.
"""

from __future__ import annotations

from typing import Any

from headworks.core.effects import Run
from headworks.core.policy import ClassPolicy, DisciplinePolicy, Policy, PoolPolicy, ReplicaPolicy, TenantPolicy
from headworks.core.types import Decision
from tests.core.driver import Bench

INTERACTIVE = ClassPolicy("interactive", share=10.0, ttft_slo_s=None, wait_s_max=1_000.0, queue_requests_max=10_000)
BULK = ClassPolicy("bulk", share=1.0, ttft_slo_s=None, wait_s_max=1_000.0, queue_requests_max=10_000)


def shared(*classes: ClassPolicy, tenants: dict[str, dict[str, Any]] | None = None, kind: str = "wfq", **pool: Any) -> Policy:
    named = {one.name: one for one in classes or (INTERACTIVE, BULK)}
    known = {"acme": {}, "batchco": {}, **(tenants or {})}
    return Policy(
        version="v1",
        number=1,
        classes=named,
        tenants={name: TenantPolicy(name, classes=tuple(named), **given) for name, given in known.items()},
        pools={
            "p": PoolPolicy(
                "p", ("m",), (ReplicaPolicy("p/0"),), discipline=DisciplinePolicy(kind), **{"active_requests_max": 1, **pool}
            )
        },
    )


class Counter:
    """A bench with names: who arrived as what, and who is served when everything takes as long as everything else."""

    def __init__(self, settings: Policy) -> None:
        self.bench = Bench(settings)
        self.who: dict[str, str] = {}
        self.tokens: dict[str, int] = {}
        self.running: list[tuple[str, str, int]] = []

    def arrive(self, service_class: str, tenant: str, count: int = 1, tokens: int = 100, **changed: Any) -> None:
        for _ in range(count):
            arrived = self.bench.arrive(tokens, service_class=service_class, tenant=tenant, **changed)
            self.who[arrived] = f"{service_class}/{tenant}"
            self.tokens[arrived] = tokens

    def served(self, turns: int, used_tokens: int | None = None) -> list[str]:
        """End what runs, one after the other, and say who was sent in its place."""
        order: list[str] = []
        self.sent()
        for _ in range(turns):
            self.bench.advance(0.1)
            _, execution, tokens = self.running.pop(0)
            self.bench.first_byte(execution)
            self.bench.complete(execution, prompt_tokens=(used_tokens or tokens) - 1, output_tokens=1)
            order += self.sent()
        return order

    def sent(self) -> list[str]:
        """Who was sent since the last look."""
        runs = self.bench.take(Run)
        self.running += [(self.who[run.id], run.execution.id, self.tokens.get(run.id, 100)) for run in runs]
        return [self.who[run.id] for run in runs]

    def decision(self, service_class: str, tenant: str, tokens: int = 100, **changed: Any) -> Decision:
        """What a newcomer is told."""
        self.bench.decisions()
        self.arrive(service_class, tenant, 1, tokens, **changed)
        return self.bench.decisions()[-1]
