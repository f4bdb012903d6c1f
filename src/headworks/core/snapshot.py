"""Looking at the gate from outside: what there is, and whether its counters still equal the sum of their parts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from headworks.core.calibration import Calibration
from headworks.core.disciplines import Discipline
from headworks.core.forecast import wait_of
from headworks.core.life import CHARGED_HERE, QUEUED, Life
from headworks.core.pool import Pool
from headworks.core.pressure import Pressure
from headworks.core.queue import WaitingLine
from headworks.core.quota import Quota
from headworks.core.replica import Replica
from headworks.core.session_use import limit_tokens

if TYPE_CHECKING:
    from headworks.core.boot import Boot
    from headworks.core.desk import Desk


def snapshot(desk: Desk, boot: Boot, now_s: float) -> dict[str, Any]:
    """Everything a person or a gauge may want to know, as plain values."""
    return {
        "gateway": desk.owner.gateway,
        "boot": desk.owner.boot,
        "policy_version": desk.policy.version,
        "mode": "observe" if desk.policy.observe else "enforce",
        "ledger_available": not boot.lost,
        "open": boot.open(now_s),
        "orphans_watched": len(boot.wards),
        "pools": {name: _pool(desk, pool, now_s) for name, pool in desk.pools.items()},
        "tenants": {
            name: {
                "tokens": use.tokens,
                "requests": use.requests,
                "tokens_max": use.policy.active_tokens_max,
                "quota": _quota(use.quota, now_s) if use.quota is not None else None,
                "weight_ratio": use.demotion.ratio(now_s) if use.demotion is not None else 1.0,
            }
            for name, use in desk.tenants.items()
        },
    }


def tenant_use(desk: Desk, name: str) -> dict[str, Any]:
    """What one tenant holds and what of it waits, at a cost that does not grow with the number of tenants."""
    use = desk.tenants.get(name)
    queues = [pool.queue for pool in desk.pools.values()]
    lines = [queue.line((service_class, name)) for queue in queues for service_class in queue.classes]
    return {
        "tokens": use.tokens if use is not None else 0,
        "requests": use.requests if use is not None else 0,
        "queued_requests": sum(line.requests for line in lines),
        "queued_tokens": sum(line.tokens for line in lines),
    }


def _quota(quota: Quota, now_s: float) -> dict[str, Any]:
    """What is committed and what is outstanding, apart (K26)."""
    quota.turn(now_s)
    return {
        "period": quota.period,
        "ends_in_s": quota.ends_s - now_s,
        "tokens_max": quota.policy.tokens,
        "tokens_committed": quota.committed_tokens,
        "tokens_outstanding": quota.outstanding_tokens,
        "nanomoney_max": quota.policy.nanomoney,
        "nanomoney_committed": quota.committed_nanomoney,
        "nanomoney_outstanding": quota.outstanding_nanomoney,
    }


def _pool(desk: Desk, pool: Pool, now_s: float) -> dict[str, Any]:
    service = pool.drain.longer or pool.drain
    states = Counter(life.state for life in desk.runs.values() if life.request.pool == pool.name)
    return {
        "preempted_total": pool.preemption.total if pool.preemption is not None else 0,
        "reserves": _reserves(pool),
        "queue": {
            f"{service_class}/{tenant}": _line(pool, line, desk.disciplines[pool.name], now_s)
            for (service_class, tenant), line in pool.queue.lines.items()
        },
        "queued_requests": pool.queue.requests,
        "queued_tokens": pool.queue.tokens,
        "tokens": pool.tokens,
        "tokens_limit": pool.tokens_max,
        "requests": pool.requests,
        "requests_limit": pool.requests_limit(),
        "drain_tokens_per_s": pool.drain.tokens_per_s,
        "drain_error_ratio": pool.drain.tokens_error_ratio,
        "service_rate_per_s": service.requests_per_s,
        "service_rate_error_ratio": service.requests_error_ratio,
        "forecasts": {"ttft": _kept(pool.bounds.firsts), "e2e": _kept(pool.bounds.totals)},
        "sessions": sum(one.pool is pool for one in desk.sessions.values()),
        "sessions_tokens": sum(one.held_tokens for one in desk.sessions.values() if one.pool is pool),
        "sessions_tokens_limit": limit_tokens(pool),
        "steps_in_force": desk.cascades.levels(pool.name),
        "upstream_sent": pool.retries.sent,
        "upstream_retried": pool.retries.retried,
        "return_slots": len(pool.slots),
        "return_slots_tokens": pool.slots.tokens,
        "states": dict(sorted(states.items())),
        "pressure": _pressure(pool.pressure),
        "replicas": {name: _replica(replica, now_s) for name, replica in pool.all_replicas().items()},
    }


def _line(pool: Pool, line: WaitingLine, discipline: Discipline, now_s: float) -> dict[str, Any]:
    """One flow that waits: how long its head has, and what a newcomer to it would wait, by the forecast that decides."""
    head = line.first()
    return {
        "requests": line.requests,
        "tokens": line.tokens,
        "head_waited_s": now_s - head.request.arrived_s,
        "wait_s": wait_of(pool, discipline.ahead(head.lane, now_s), now_s),
    }


def _pressure(pressure: Pressure) -> dict[str, Any]:
    """As weighed at the last look at one of the pool's engines."""
    return {
        "engaged": pressure.switch.engaged,
        "pressed": pressure.is_pressed,
        "utilisation_ratio": pressure.utilisation_ratio,
        "reserved_ratio": pressure.reserved_ratio,
        "kv_ratio": pressure.kv_ratio,
        "compute_ratio": pressure.compute_ratio,
        "compute_source": pressure.compute_source,
        "scale_asked": pressure.switch.scale_asked,
        "scale_wanted_ratio": pressure.scale_wanted_ratio,
        "demanded_tokens": pressure.demanded_tokens,
    }


def _reserves(pool: Pool) -> dict[str, Any]:
    """By tenant: what is kept for it and what of that it has, in tokens and sequences."""
    found = pool.reserves.stated() if pool.reserves is not None else {}
    return {
        name: {"tokens": one.tokens, "requests": one.requests, "tokens_used": one.used[0], "requests_used": one.used[1]}
        for name, one in found.items()
    }


def _replica(replica: Replica, now_s: float) -> dict[str, Any]:
    sample, capacity = replica.sample, replica.capacity
    return {
        "state": replica.state(now_s),
        "leaves": replica.leaves,
        "withdrawn": replica.is_withdrawn,
        "empty": replica.is_empty,
        "evidence": list(capacity.evidence) if capacity else [],
        "tokens_limit": replica.tokens_max,
        "breaker": replica.breaker.state(now_s),
        "breaker_transitions": dict(replica.breaker.transitions),
        "tokens": replica.tokens,
        "requests": replica.requests,
        "limit_running": replica.limit.value,
        "over_commit": replica.memory.ratio,
        "reading_tokens": replica.reading.tokens,
        "reading_tokens_limit": replica.reading.tokens_max,
        "reading_heavy": replica.reading.heavy,
        "reading_heavy_limit": replica.reading.heavy_max,
        "prefill_fit": _named(("base_s", "own_token_s", "ahead_token_s"), replica.prefill.coefficients()),
        "decode_fit": _named(("token_s", "beside_s"), replica.decode.coefficients()),
        "step_s": replica.iteration_s,
        "slower_times": replica.speed.times,
        "unproved": len(replica.unproved) + len(replica.closing),
        "running": sample.running if sample else None,
        "waiting": sample.waiting if sample else None,
        "kv_used_ratio": sample.kv_used_ratio if sample else None,
        "compute_used_ratio": sample.compute_used_ratio if sample else None,
        "preemptions_total": sample.preemptions_total if sample else None,
        "sample_age_s": now_s - sample.ended_s if sample else None,
        "incarnation": sample.incarnation if sample else "",
    }


def _kept(calibration: Calibration) -> dict[str, Any]:
    """How many of the last forecasts were seen through, and the share of them that kept its bound."""
    seen, missed = calibration.seen, calibration.missed
    return {
        "coverage_wanted_ratio": calibration.coverage,
        "coverage_ratio": (seen - missed) / seen if seen else None,
        "seen_requests": seen,
    }


def _named(names: tuple[str, ...], values: tuple[float, ...]) -> dict[str, float]:
    return dict(zip(names, values, strict=True))


def audit(desk: Desk) -> list[str]:
    """A sentence for each counter that differs from what its parts add up to; empty when all is well."""
    found: list[str] = []
    for name, pool in desk.pools.items():
        waiting = pool.queue.lives()
        _same(found, f"pool {name} queued requests", pool.queue.requests, len(waiting))
        _same(found, f"pool {name} queued tokens", pool.queue.tokens, sum(life.work.tokens for life in waiting))
        found.extend(f"{life.request.id} waits in {name} while {life.state}" for life in waiting if life.state != QUEUED)
        taken = [life for life in desk.runs.values() if life.request.pool == name]
        stay = [life for life in taken if life.replica is None or not life.replica.leaves]
        held_tokens = sum(one.held_tokens for one in desk.sessions.values() if one.pool is pool)
        _same(found, f"pool {name} tokens", pool.tokens, sum(life.work.kv_tokens for life in stay) + held_tokens)
        _same(found, f"pool {name} requests", pool.requests, sum(life.work.sequences for life in stay))
        _audit_classes(found, pool, taken, waiting)
        if pool.reserves is not None:
            for scope, (tokens, requests) in pool.reserves.used().items():
                charged = [one for life in taken for one in life.lane.charges(life.work, "") if one[0] == scope]
                _same(found, f"{scope} tokens", tokens, sum(amount for _, unit, amount in charged if unit == "tokens"))
                _same(found, f"{scope} requests", requests, sum(amount for _, unit, amount in charged if unit == "requests"))
        for replica in pool.all_replicas().values():
            there = [life for life in taken if life.execution.replica == replica.name]
            taken_tokens = sum(life.work.kv_tokens for life in there) + sum(
                one.held_tokens for one in desk.sessions.values() if one.on is replica
            )
            _same(found, f"replica {replica.name} tokens", replica.tokens, taken_tokens)
            if replica.floors is not None:
                _same(found, f"replica {replica.name} by model", replica.floors.used(), replica.by_model())
            opening = sum(life.state == "sent" for life in there)
            _same(found, f"replica {replica.name} opening", replica.opening, opening)
            unread = sum(life.opening_tokens for life in there)
            _same(found, f"replica {replica.name} unread", replica.unread_tokens, unread)
            for unit, counter in (("prefill_tokens", replica.reading.tokens), ("heavy_prefills", replica.reading.heavy)):
                parts = sum(amount for life in there for _, counted, amount in life.reads if counted == unit)
                _same(found, f"replica {replica.name} {unit}", counter, parts)
    for tenant, use in desk.tenants.items():
        mine = [life for life in desk.runs.values() if life.request.key.tenant == tenant]
        held_tokens = sum(one.held_tokens for one in desk.sessions.values() if one.tenant is use)
        taken_tokens = sum(life.work.tokens - life.spare_tokens for life in mine) + held_tokens
        _same(found, f"tenant {tenant} tokens", use.tokens, taken_tokens)
        _same(found, f"tenant {tenant} requests", use.requests, sum(life.work.sequences for life in mine))
        if use.quota is not None:
            asked = [life.quota.tokens_in(use.quota.scope) for life in mine if life.quota is not None]
            _same(found, f"tenant {tenant} tokens outstanding", use.quota.outstanding_tokens, sum(asked))
    found.extend(f"{name} is {life.state}" for name, life in desk.runs.items() if life.state not in CHARGED_HERE)
    found.extend(f"{name} is claimed for {life.claim}" for name, life in desk.claims.items() if life.claim != name)
    return found


def _audit_classes(found: list[str], pool: Pool, taken: list[Life], waiting: list[Life]) -> None:
    _same(found, f"pool {pool.name} prompts being read", pool.reading_tokens, sum(life.reading_tokens for life in taken))
    for name, use in pool.class_uses.items():
        works = [life.work for life in taken if life.lane.use is use]
        _same(found, f"class {name} tokens in {pool.name}", use.tokens, sum(work.kv_tokens for work in works))
        _same(found, f"class {name} requests in {pool.name}", use.requests, sum(work.sequences for work in works))
    for name, queued in pool.queue.classes.items():
        theirs = [life for life in waiting if life.request.service_class == name and life.lane.session is None]
        _same(found, f"class {name} requests queued in {pool.name}", queued.requests, len(theirs))
        _same(found, f"class {name} tokens queued in {pool.name}", queued.tokens, sum(life.work.tokens for life in theirs))


def _same(found: list[str], what: str, counter: object, parts: object) -> None:
    if counter != parts:
        found.append(f"{what}: counter {counter}, parts {parts}")
