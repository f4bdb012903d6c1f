"""Decisions and outcomes as the gate writes them down, with every field a test does not care about filled in."""

from __future__ import annotations

import dataclasses

from headworks.core.effects import Outcome, TurnedAway
from headworks.core.turning_away import NOT_FORESEEN
from headworks.core.types import Decision, Forecast, Request, RequestKey, Usage, Verdict, Work

WORK = Work(100, 60, 2, 0.0, 112, 40)
KEY = RequestKey("acme", "k")


def decided(outcome: str, reason: str = "", *verdicts: Verdict, wait_s: float | None = None, position: int = 0) -> Decision:
    return Decision(
        id="d",
        key=KEY,
        outcome=outcome,
        reason=reason,
        rows=tuple((one.check, one.scope, one.value, one.limit, one.unit, one.reason) for one in verdicts),
        forecast=Forecast(wait_s, 0.0, None, None, None, 1.3, "x"),
        work=WORK,
        retry_after_s=None,
        position=position,
        degraded="",
        decided_s=1.0,
        waited_s=0.0,
        gateway="g",
        policy_version="v",
        service_class="interactive",
        model="m",
        pool="llama",
    )


def ended(outcome: str, **fields: object) -> Outcome:
    given: dict[str, object] = {
        "id": "d",
        "key": KEY,
        "execution": "e",
        "outcome": outcome,
        "reason": "",
        "service_class": "interactive",
        "model": "m",
        "pool": "llama",
        "client": "acme/1",
        "retry": False,
        "arrived_s": 10.0,
        "admitted_s": 10.25,
        "sent_s": 10.25,
        "first_byte_s": 10.75,
        "ended_s": 12.75,
        "work": WORK,
        "usage": Usage(30, 8, 20, 2.5, "stop", True),
        "evidence": "E1",
        "unconfirmed_s": None,
        "in_slo": True,
        "predicted_ttft_s": 0.5,
    }
    return Outcome(**(given | fields))  # type: ignore[arg-type]


def asked_for(name: str, **changes: object) -> Request:
    about = (RequestKey("acme", name), False, "print", "acme/1", "interactive", "m", "llama")
    limits = (1032, None, 64, 1, True, (), None, 0, 10.0, float("inf"), 65.0)
    return dataclasses.replace(Request(name, *about, *limits, route="/v1/chat/completions"), **changes)  # type: ignore[arg-type]


def turned(name: str, *verdicts: Verdict, retry_kind: str = "", **changes: object) -> TurnedAway:
    """Refused before it was read, a quarter of a second after it came."""
    key = RequestKey("acme", name)
    decision = dataclasses.replace(decided("refuse", "rate_limit_exceeded", *verdicts), id=name, key=key, waited_s=0.25)
    decision = dataclasses.replace(decision, decided_s=10.25, retry_after_s=1.5, forecast=NOT_FORESEEN)
    return TurnedAway(decision, asked_for(name, **changes), retry_kind)
