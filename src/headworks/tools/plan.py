"""`headworks plan`: a decision log decided about again, by another policy (G2).

First the control: under the log's own policies the outcomes have to be those of the log, `REPRODUCED_MIN` of them at least,
or what follows is worth nothing. Then the plan: the same arrivals under the new policy, and who would have come out otherwise.

The log itself is what the plan is compared with. What a plan rests on, and what it cannot know, says `replay.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headworks.core.effects import Outcome
from headworks.core.events import ReplicaSampled
from headworks.core.policy import Policy
from headworks.core.types import Decision
from headworks.sim.report import quantile
from headworks.sim.series import Told, end_of, series
from headworks.tools.decision_log import Life
from headworks.tools.log_lines import Ended
from headworks.tools.replay import Again, Replay, counted
from headworks.tools.replay_model import Model

REPRODUCED_MIN = 0.99
CHANGES_MAX = 20
"""Kinds of change that are listed, the most frequent first."""
EXAMPLES_MAX = 3
"""Of each of the first `EXAMPLES_OF` kinds."""
EXAMPLES_OF = 4
LOGGED, PLANNED = "log", "plan"


@dataclass(slots=True)
class Side:
    """What became of an arrival, in the log or in a replay: both have these fields."""

    ended: Ended | Outcome | None
    end: str
    reason: str
    stopped_s: float


@dataclass(slots=True)
class Redone:
    """One life, decided about again."""

    life: Life
    control: list[Again]
    planned: list[Again]
    kv_used: list[tuple[float, float]]
    """In the plan."""
    fitted: int


def redo(life: Life, policy: Policy) -> Redone:
    """The control and the plan."""
    model = Model(life)
    control = counted(life, Replay(life, model).run())
    replay = Replay(life, model, policy)
    planned = counted(life, replay.run())
    kv_used = sorted(look for engine in replay.engines.values() for look in engine.kv_used)
    return Redone(life, control, planned, kv_used, model.fitted)


def plan(lives: Sequence[Life], policy: Policy) -> dict[str, Any]:
    """What the new policy would have changed, in plain values."""
    done = [redo(life, policy) for life in lives]
    planned = [one for life in done for one in life.planned]
    control = _control([one for life in done for one in life.control])
    return {
        "log": _log(done),
        "policy_version": policy.version,
        "control": control,
        "holds": control["reproduced_ratio"] is not None and control["reproduced_ratio"] >= REPRODUCED_MIN,
        "all": {"all": _figures(planned)},
        "classes": _grouped(planned, lambda one: one.arrival.ended.service_class),
        "tenants": _grouped(planned, lambda one: one.arrival.ended.key.tenant),
        "changed": sum(not one.is_same for one in planned),
        "changes": _changes(planned),
        "examples": _examples(done, policy),
        "series": _series(max(done, key=lambda one: len(one.planned)), policy) if done else {},
    }


def _log(done: Sequence[Redone]) -> dict[str, Any]:
    """What there was to go by."""
    lives = [one.life for one in done]
    compared = sum(len(one.planned) for one in done)
    return {
        "lives": len(lives),
        "gateways": sorted({life.gateway for life in lives}),
        "from_utc": min((life.began_utc for life in lives), default=""),
        "seconds": round(sum(life.ended_s - life.began_s for life in lives), 3),
        "policy_versions": sorted({policy.version for life in lives for _, policy in life.policies}),
        "arrivals": compared,
        "not_compared": sum(len(life.arrivals) for life in lives) - compared,
        "fitted_answers": sum(one.fitted for one in done),
    }


def _control(control: Sequence[Again]) -> dict[str, Any]:
    """How many outcomes are the same under the log's own policies."""
    same = sum(one.is_same for one in control)
    return {
        "compared": len(control),
        "reproduced": same,
        "reproduced_ratio": round(same / len(control), 6) if control else None,
        "reproduced_min": REPRODUCED_MIN,
        "differences": _changes(control),
    }


# figures


def _logged(one: Again) -> Side:
    ended = one.arrival.ended
    return Side(ended, ended.outcome, ended.reason, ended.stopped_s)


def _planned(one: Again) -> Side:
    outcome = one.outcome
    if outcome is None:
        return Side(None, one.end or "unfinished", "", one.arrival.at_s)
    return Side(outcome, outcome.outcome, outcome.reason, outcome.ended_s - (outcome.unconfirmed_s or 0.0))


SIDES: tuple[tuple[str, Callable[[Again], Side]], ...] = ((LOGGED, _logged), (PLANNED, _planned))


def _grouped(planned: Iterable[Again], name: Callable[[Again], str]) -> dict[str, Any]:
    groups: dict[str, list[Again]] = {}
    for one in planned:
        groups.setdefault(name(one), []).append(one)
    return {group: _figures(groups[group]) for group in sorted(groups)}


def _figures(planned: Sequence[Again]) -> dict[str, Any]:
    """The same figures of the log and of the plan, and how many come out otherwise."""
    found: dict[str, Any] = {"arrivals": len(planned), "changed": sum(not one.is_same for one in planned)}
    for name, side in SIDES:
        found[name] = _figures_of([(one, side(one)) for one in planned])
    return found


def _figures_of(sides: Sequence[tuple[Again, Side]]) -> dict[str, Any]:
    ends = [end_of(side.end, in_slo=side.ended is not None and side.ended.in_slo) for _, side in sides]
    first_s = [
        side.ended.first_byte_s - side.ended.arrived_s
        for _, side in sides
        if side.ended is not None and side.ended.first_byte_s is not None
    ]
    usages = [side.ended.usage for _, side in sides if side.ended is not None and side.ended.usage is not None]
    return {
        "admitted": sum(side.ended is not None and side.ended.sent_s is not None for _, side in sides),
        "refused": ends.count("refused"),
        "expired": sum(side.end == "expired" for _, side in sides),
        "in_time": ends.count("in time"),
        "late": ends.count("late"),
        "left": ends.count("left"),
        "failed": ends.count("failed"),
        "ttft_p50_s": _rounded(quantile(first_s, 0.50)),
        "ttft_p95_s": _rounded(quantile(first_s, 0.95)),
        "tokens": sum(usage.prompt_tokens + usage.output_tokens for usage in usages),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


# what is otherwise


def _changes(again: Iterable[Again]) -> list[dict[str, Any]]:
    """From which outcome to which, the most frequent first."""
    kinds: dict[tuple[str, str], int] = {}
    for one in again:
        if not one.is_same:
            kind = _kind(one)
            kinds[kind] = kinds.get(kind, 0) + 1
    ranked = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    return [{"logged": logged, "planned": planned, "arrivals": count} for (logged, planned), count in ranked[:CHANGES_MAX]]


def _kind(one: Again) -> tuple[str, str]:
    return _named(_logged(one)), _named(_planned(one))


def _named(side: Side) -> str:
    return f"{side.end}: {side.reason}" if side.reason else side.end


def _examples(done: Sequence[Redone], policy: Policy) -> list[dict[str, Any]]:
    """The first arrivals of each frequent kind of change, with what was decided about them under the new policy."""
    kinds = [(one["logged"], one["planned"]) for one in _changes(one for life in done for one in life.planned)]
    wanted = dict.fromkeys(kinds[:EXAMPLES_OF], 0)
    found = []
    for redone in done:
        for one in redone.planned:
            if not one.is_same and wanted.get(_kind(one), EXAMPLES_MAX) < EXAMPLES_MAX:
                wanted[_kind(one)] += 1
                found.append(_example(one, redone.life))
    return sorted(found, key=lambda one: kinds.index((one["logged"], one["planned"])))


def _example(one: Again, life: Life) -> dict[str, Any]:
    """`lines`: its decisions and its outcome as a decision log would have them."""
    ended = one.arrival.ended
    lines = [decision_line(decision, life) for decision in one.decisions]
    if one.outcome is not None:
        lines.append(_line("outcome", one.outcome.ended_s, life, _outcome(one.outcome)))
    return {
        "id": ended.id,
        "tenant": ended.key.tenant,
        "class": ended.service_class,
        "logged": _named(_logged(one)),
        "planned": _named(_planned(one)),
        "lines": lines,
    }


def _line(kind: str, at_s: float, life: Life, record: dict[str, Any]) -> dict[str, Any]:
    line = {"kind": kind, "utc": life.utc(at_s), "monotonic_s": at_s, "record": record}
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(line))  # what is infinite is null there
    return found


def decision_line(decision: Decision, life: Life) -> dict[str, Any]:
    """A decision as a decision log would have it."""
    return _line("decision", decision.decided_s, life, _decision(decision))


def _decision(decision: Decision) -> dict[str, Any]:
    record: dict[str, Any] = msgspec.to_builtins(decision)
    del record["rows"]
    record["verdicts"] = [verdict._asdict() for verdict in decision.verdicts]
    return record


def _outcome(outcome: Outcome) -> dict[str, Any]:
    record: dict[str, Any] = msgspec.to_builtins(outcome)
    del record["request"]
    return record


# over time


def _series(redone: Redone, policy: Policy) -> dict[str, Any]:
    """The curves of the life with the most arrivals, as it was and as it would have been; and what each class promises."""
    life = redone.life
    duration_s = max(1.0, life.ended_s - life.began_s)
    kv_logged = [
        (at_s, event.sample.kv_used_ratio)
        for at_s, event in life.facts
        if isinstance(event, ReplicaSampled) and event.sample.kv_used_ratio is not None
    ]
    curves = {}
    for (name, side), kv_used in zip(SIDES, (kv_logged, redone.kv_used), strict=True):
        told = [_told(one, side(one), life.began_s) for one in redone.planned]
        curves[name] = series(told, [(at_s - life.began_s, ratio) for at_s, ratio in kv_used], duration_s)
    promised = {name: one.ttft_slo_s for name, one in policy.classes.items()}
    return {"from_utc": life.utc(life.began_s), "duration_s": round(duration_s, 3), "ttft_slo_s": promised, "curves": curves}


def _told(one: Again, side: Side, began_s: float) -> Told:
    logged, ended = one.arrival.ended, side.ended
    usage = ended.usage if ended is not None else None
    sent_s = ended.sent_s if ended is not None else None
    first_byte_s = ended.first_byte_s if ended is not None else None
    return Told(
        arrived_s=logged.arrived_s - began_s,
        sent_s=None if sent_s is None else sent_s - began_s,
        first_byte_s=None if first_byte_s is None else first_byte_s - began_s,
        ended_s=side.stopped_s - began_s,
        end=end_of(side.end, in_slo=ended is not None and ended.in_slo),
        tenant=logged.key.tenant,
        service_class=logged.service_class if ended is None else ended.service_class,
        tokens=0 if usage is None else usage.prompt_tokens + usage.output_tokens,
    )
