"""What a run came to, as plain numbers.

Three populations, never mixed. *Arrivals* are attempts at the gateway's door: each is admitted (run or queued) or
refused when it comes, and ends in exactly one way. *Executions* are what the engines did. *Callers* are unique wishes:
a retry is not a new one. Rates count what happened within the run's duration; the conservation line counts everything,
up to the moment when nothing was left.

- admitted: given a place, at once or in the queue, and not sent away later; refused: told so, at once or after waiting;
- useful: the answer was complete while its caller still wanted it; goodput: useful, and within the class's promises;
  one that was ended for want of growth is neither; quality goodput: each counts as much as its degradation left of it;
- wasted: engine tokens (prompt read and output made) of executions that ended within the duration and whose answer
  nobody got in full; its ratio is over the tokens of all that ended then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from headworks.core.policy import ClassPolicy
from headworks.core.preempt import PREEMPTED
from headworks.sim import agents
from headworks.sim.clients import Attempt
from headworks.sim.fairness import fairness
from headworks.sim.report_tenants import by_tenant, is_useful, returns_per_s_max
from headworks.sim.runner import Shown
from headworks.sim.simulation import WARM_S, Arrival, Simulation

QUEUE_LOOKS_S = (10.0, 15.0)
"""Instants at which the queue's length stands in the results: just before whatever happens in them."""
QUALITY_RATIO = {
    "clamp_output": 0.8,
    "strip_few_shot": 0.9,
    "drop_n": 0.8,
    "no_speculation": 1.0,
    "smaller_model": 0.6,
    "spill": 1.0,
    "cached": 1.0,
}
"""What an answer after such a step is worth of one that came as it was asked for, so that degrading can be compared with
refusing: a convention. With several steps their product."""
ENDS = ("completed", "failed", "cancelled", "refused", "expired", "replayed")


def results(simulation: Simulation) -> dict[str, Any]:
    """One discipline's results. Every number is rounded to a millionth, so that equal runs give equal bytes."""
    duration_s, end_s = simulation.setup.duration_s, simulation.end_s
    arrivals = [a for a in simulation.arrivals.values() if a.attempt.arrived_s < end_s]
    refused = [a for a in arrivals if a.outcome is not None and a.outcome.outcome in ("refused", "expired")]
    admitted = [a for a in arrivals if a.outcome is not None and a.outcome.outcome not in ("refused", "expired")]
    useful = [a for a in arrivals if is_useful(a.attempt) and _ended_by(a.attempt, end_s)]
    good = [a for a in useful if in_slo(a, simulation)]
    waits_s = [a.attempt.first_byte_s - a.attempt.arrived_s for a in admitted if a.attempt.first_byte_s is not None]
    outcome: dict[str, Any] = {
        "arrivals": len(arrivals),
        "admitted": len(admitted),
        "admitted_per_s": len(admitted) / duration_s,
        "refused": len(refused),
        "refused_per_s": len(refused) / duration_s,
        "refused_after_waiting": sum(a.decision is not None and a.decision.outcome == "queue" for a in refused),
        "refused_by_reason": _counted(a.outcome.reason for a in refused if a.outcome is not None),
        "preempted": sum(a.outcome is not None and a.outcome.reason == PREEMPTED for a in arrivals),
        "useful_per_s": len(useful) / duration_s,
        "goodput_per_s": len(good) / duration_s,
        "ttft_p50_s": quantile(waits_s, 0.50),
        "ttft_p95_s": quantile(waits_s, 0.95),
        "ttft_p99_s": quantile(waits_s, 0.99),
        **_work(simulation),
        **_queue(simulation, arrivals),
        "growth": _growth(arrivals),
        "degraded": _counted(step for arrival in arrivals for step in arrival.degraded),
        "undegraded_goodput_per_s": sum(not arrival.degraded for arrival in good) / duration_s,
        "quality_goodput_per_s": sum(math.prod(QUALITY_RATIO[step] for step in one.degraded) for one in good) / duration_s,
        "replicas": _replicas(simulation),
        "replica_most_by_mean": _most_by_mean(simulation),
        "upstream": _upstream(simulation),
        "engine": _engine(simulation),
        "callers": _callers(simulation),
        **({"agents": agents.results(simulation.agents)} if simulation.agents else {}),
        "classes": classes(simulation, arrivals),
        "fairness": fairness(simulation),
        "tenants": by_tenant(simulation),
        "replicas_joined": len(simulation.autoscaler.joined_s) if simulation.autoscaler is not None else 0,
        "conservation": conservation(simulation),
        "alarms": _counted(alarm.name for _, alarm in simulation.alarms),
        "ledger_faults": dict(simulation.ledger.faults),
        "ended_s": simulation.world.now_s - WARM_S,
    }
    return {key: _rounded(value) for key, value in outcome.items()}


def conservation(simulation: Simulation) -> dict[str, int]:
    """arrivals = completed + failed + cancelled + refused + expired + replayed + lost with a gateway + still running."""
    counts = {"arrivals": len(simulation.arrivals), **dict.fromkeys(ENDS, 0), "lost_with_gateway": 0, "running": 0}
    for arrival in simulation.arrivals.values():
        if arrival.outcome is not None:
            counts[arrival.outcome.outcome] += 1
        elif not arrival.gateway.alive:
            counts["lost_with_gateway"] += 1
        else:
            counts["running"] += 1
    counts["difference"] = counts["arrivals"] - sum(counts[end] for end in (*ENDS, "lost_with_gateway", "running"))
    return counts


def quantile(values: Sequence[float], ratio: float) -> float | None:
    """The smallest value that at least this share does not pass; None of nothing."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(ratio * len(values)) - 1)]


def _ended_by(attempt: Attempt, end_s: float) -> bool:
    return attempt.ended_s is not None and attempt.ended_s <= end_s


def classes(simulation: Simulation, arrivals: Sequence[Arrival]) -> dict[str, Any]:
    """What became of each class's arrivals, however long it took. `answered_s_max`: until a final answer, good or bad."""
    found: dict[str, Any] = {}
    for name in simulation.setup.policy.classes:
        ours = [one for one in arrivals if simulation.setup.sources[one.caller.planned.source].service_class == name]
        useful = [one for one in ours if is_useful(one.attempt)]
        first_s = [a.attempt.first_byte_s - a.attempt.arrived_s for a in ours if a.attempt.first_byte_s is not None]
        answered_s = [a.attempt.ended_s - a.attempt.arrived_s for a in ours if a.attempt.ended_s is not None]
        found[name] = {
            "arrivals": len(ours),
            "useful": len(useful),
            "goodput_ratio": sum(in_slo(one, simulation) for one in useful) / len(ours) if ours else None,
            "ttft_p50_s": quantile(first_s, 0.50),
            "ttft_p95_s": quantile(first_s, 0.95),
            "ttft_p99_s": quantile(first_s, 0.99),
            "answered_s_max": max(answered_s, default=None),
            "late": sum(not _first_in_time(one, simulation) for one in ours),
            "unanswered": len(ours) - len(answered_s) - sum(one.attempt.left_s is not None for one in ours),
        }
    return found


def _first_in_time(arrival: Arrival, simulation: Simulation) -> bool:
    """Of one that was sent: its first token came as promised, or its client left before that."""
    attempt = arrival.attempt
    source = simulation.setup.sources[arrival.caller.planned.source]
    promise_s = simulation.setup.policy.classes[source.service_class].ttft_slo_s
    if promise_s is None or attempt.first_byte_s is None:
        return True
    return attempt.first_byte_s - attempt.arrived_s <= promise_s + 1e-9


def in_slo(arrival: Arrival, simulation: Simulation) -> bool:
    """As its client saw it, from sending this attempt."""
    attempt = arrival.attempt
    source = simulation.setup.sources[arrival.caller.planned.source]
    promise = simulation.setup.policy.classes[source.service_class]
    assert attempt.first_byte_s is not None
    assert attempt.ended_s is not None
    whole_s = attempt.ended_s - attempt.arrived_s
    token_s = (attempt.ended_s - attempt.first_byte_s) / max(1, arrival.caller.planned.output_tokens - 1)
    return _keeps(promise, attempt.first_byte_s - attempt.arrived_s, token_s, whole_s)


def _keeps(promise: ClassPolicy, ttft_s: float, tpot_s: float, e2e_s: float) -> bool:
    pairs = ((ttft_s, promise.ttft_slo_s), (tpot_s, promise.tpot_slo_s), (e2e_s, promise.e2e_slo_s))
    # A first token due at the limit is in time: both are sums of the same few numbers, so allow for their rounding.
    return all(limit_s is None or value_s <= limit_s + 1e-9 for value_s, limit_s in pairs)


def _work(simulation: Simulation) -> dict[str, Any]:
    """Tokens the engines worked on in the duration, and how many of them for nobody."""
    all_tokens = wasted_tokens = 0
    for replica in simulation.replicas.values():
        for execution, tokens in replica.work_tokens.items():
            if replica.ended_s.get(execution, math.inf) > simulation.end_s:
                continue
            all_tokens += tokens
            ids = simulation.executions.get(execution, ())
            if not any(is_useful(simulation.arrivals[id].attempt) for id in ids):
                wasted_tokens += tokens
    return {
        "engine_tokens": all_tokens,
        "wasted_tokens": wasted_tokens,
        "wasted_ratio": wasted_tokens / all_tokens if all_tokens else 0.0,
    }


def _upstream(simulation: Simulation) -> dict[str, int]:
    """What the gateways that live at the end sent to engines, first and once more, and how often a breaker changed."""
    found = dict.fromkeys(("sent", "retried", "opened", "probed", "closed"), 0)
    for runner in simulation.runners:
        gate = None if runner is None else runner.gate
        if not isinstance(gate, Shown):
            continue
        for pool in gate.snapshot(simulation.world.now_s)["pools"].values():
            found["sent"] += pool["upstream_sent"]
            found["retried"] += pool["upstream_retried"]
            for replica in pool["replicas"].values():
                for name, state in (("opened", "open"), ("probed", "half_open"), ("closed", "closed")):
                    found[name] += replica["breaker_transitions"][state]
    return found


def _queue(simulation: Simulation, arrivals: Sequence[Arrival]) -> dict[str, Any]:
    """How many waited at the gateways, and how long a newcomer would have had to, at stated instants."""
    found: dict[str, Any] = {"queue_max": _queue_max(arrivals)}
    for at_s in QUEUE_LOOKS_S:
        if at_s <= simulation.setup.duration_s:
            found[f"queue_at_{at_s:g}_s"] = sum(_waits_just_before(arrival, WARM_S + at_s) for arrival in arrivals)
            found[f"wait_est_at_{at_s:g}_s"] = _wait_est(simulation, arrivals, WARM_S + at_s)
    return found


def _stays(arrival: Arrival) -> tuple[float, float] | None:
    """From when to when it was inside the gateway and not sent; None if it was turned away at once."""
    if arrival.decision is None or arrival.decision.outcome == "refuse":
        return None
    ends = [t for t in (arrival.sent_s, arrival.outcome.ended_s if arrival.outcome else None) if t is not None]
    return arrival.attempt.arrived_s, min(ends, default=math.inf)


def _waits_just_before(arrival: Arrival, at_s: float) -> bool:
    stay = _stays(arrival)
    # "Just before": the millisecond in which the instant lies does not count, nor do sums that miss it by a rounding.
    return stay is not None and stay[0] < at_s - 1e-3 and stay[1] > at_s - 1e-3


def _queue_max(arrivals: Sequence[Arrival]) -> int:
    moves = [(t, step) for stay in map(_stays, arrivals) if stay is not None for t, step in ((stay[0], 1), (stay[1], -1))]
    length = longest = 0
    for _, step in sorted(moves):
        length += step
        longest = max(longest, length)
    return longest


def _wait_est(simulation: Simulation, arrivals: Sequence[Arrival], at_s: float) -> float | None:
    """W_est just before the instant: the work waiting then, divided by the drain rate the gate had measured (B2)."""
    for arrival in simulation.arrivals.values():
        if arrival.attempt.arrived_s >= at_s - 1e-3 and arrival.decision is not None:
            drain_tokens_per_s = arrival.decision.forecast.drain_tokens_per_s
            tokens = sum(one.decision.work.tokens for one in arrivals if one.decision and _waits_just_before(one, at_s))
            return tokens / drain_tokens_per_s if drain_tokens_per_s else None
    return None


def _growth(arrivals: Sequence[Arrival]) -> dict[str, Any]:
    """How often answers asked for more than was reserved, how many were ended for want of it, and how tight it all was."""
    ended = [a.outcome for a in arrivals if a.outcome is not None and a.outcome.usage is not None]
    used = sum(one.usage.prompt_tokens + one.usage.output_tokens for one in ended if one.usage is not None)
    return {
        "granted": sum(one.growths for one in ended),
        "refused": sum(one.growths_refused for one in ended),
        "cut_short": sum(a.attempt.end == "cut" for a in arrivals),
        "reserved_over_used_ratio": sum(one.work.tokens for one in ended) / used if used else None,
    }


def _engine(simulation: Simulation) -> dict[str, Any]:
    """The engines' own gauges over the duration, and how long the admitted waited for their first token there."""
    looks = [gauges for _, by_name in simulation.gauges for gauges in by_name.values()]
    inside_s = [
        arrival.attempt.first_byte_s - arrival.sent_s
        for arrival in simulation.arrivals.values()
        if arrival.sent_s is not None and arrival.attempt.first_byte_s is not None
    ]
    return {
        "waiting_max": max(look.waiting for look in looks),
        "waiting_mean": sum(look.waiting for look in looks) / len(looks),
        "running_max": max(look.running for look in looks),
        "kv_used_ratio_max": max(look.kv_used_ratio for look in looks),
        "preemptions": sum(
            replica.model.sample(simulation.world.now_s).preemptions for replica in simulation.replicas.values()
        ),
        "cached_ratio": _cached_ratio(simulation),
        "sent_to_first_token_p95_s": quantile(inside_s, 0.95),
    }


def _cached_ratio(simulation: Simulation) -> float:
    """Of the prompt tokens of all engines, what was in their prefix caches."""
    looks = [replica.model.sample(simulation.world.now_s) for replica in simulation.replicas.values()]
    return sum(look.cached_tokens for look in looks) / max(1, sum(look.prompt_tokens for look in looks))


def _most_by_mean(simulation: Simulation) -> float:
    """Tokens the busiest replica worked on, by the mean of all."""
    tokens = [sum(replica.work_tokens.values()) for replica in simulation.replicas.values()]
    return max(tokens) * len(tokens) / max(1, sum(tokens))


def _replicas(simulation: Simulation) -> dict[str, dict[str, float]]:
    """By replica: executions its engine took in, and tokens it worked on."""
    return {
        name: {"executions": len(replica.taken), "tokens": sum(replica.work_tokens.values())}
        for name, replica in simulation.replicas.items()
    }


def _callers(simulation: Simulation) -> dict[str, Any]:
    callers = simulation.callers
    served = sum(any(is_useful(attempt) for attempt in caller.attempts) for caller in callers)
    attempts = sum(len(caller.attempts) for caller in callers)
    return {
        "wishes": len(callers),
        "served": served,
        "served_ratio": served / len(callers) if callers else None,
        "attempts_per_wish": attempts / len(callers) if callers else None,
        "returns_per_s_max": returns_per_s_max(simulation),
    }


def _counted(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return value
