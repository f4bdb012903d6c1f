"""Decisions as tests of the simulator need them: only the reason and the hint matter there."""

from __future__ import annotations

from headworks.core.types import Decision, Forecast, RequestKey, Work


def decision(id: str, outcome: str = "admit", reason: str = "", retry_after_s: float | None = None) -> Decision:
    return Decision(
        id=id,
        key=RequestKey("acme", id),
        outcome=outcome,
        reason=reason,
        rows=(),
        forecast=Forecast(None, 0.0, None, None, None, 1.0, "unknown"),
        work=Work(36, 16, 1, 0.0, 48, 20, "exact"),
        retry_after_s=retry_after_s,
        position=0,
        degraded="",
        decided_s=0.0,
        waited_s=0.0,
        gateway="gateway-0",
        policy_version="1",
        service_class="interactive",
        model="model",
        pool="main",
        at_arrival=True,
    )
