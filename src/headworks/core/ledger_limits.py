"""What the ledger is told of limits: every scope's, and what is used up of those of a period."""

from __future__ import annotations

from collections.abc import Iterator

from headworks.core.book_counters import STANDING
from headworks.core.commands import Floor
from headworks.core.desk import Desk
from headworks.core.quota import Quota
from headworks.core.replica import Replica
from headworks.core.types import READ_UNITS, Charge


def limits_of(desk: Desk) -> Iterator[Charge]:
    """Every limit the ledger checks, from the policy and from what the engines said. Observing, it checks none."""
    if desk.policy.observe:
        return
    for tenant in desk.policy.tenants.values():
        if tenant.active_tokens_max is not None:
            yield Charge(f"tenant:{tenant.name}", "tokens", tenant.active_tokens_max)
        if tenant.active_requests_max is not None:
            yield Charge(f"tenant:{tenant.name}", "requests", tenant.active_requests_max)
    for quota in quotas_of(desk):
        yield from quota.limits()
    for pool in desk.pools.values():
        # One that leaves still counts: what runs there is charged to its pool, and each replica's own limit holds anyway.
        replicas = pool.all_replicas().values()
        limits = [replica.memory.limit() for replica in replicas]
        known = [limit for limit in limits if limit is not None]
        stated, most = pool.policy.active_tokens_max, STANDING
        if stated is not None or len(known) == len(limits):
            most = sum(known) if stated is None else stated
        if stated is not None or (limits and (most != STANDING or any(one.capacity is None for one in replicas))):
            in_sessions = most if most == STANDING else int(pool.policy.sessions_ratio_max * most)
            yield Charge(f"pool:{pool.name}", "tokens", most)
            yield Charge(f"sessions:{pool.name}", "tokens", in_sessions)
        if pool.reserves is not None:  # sequences are kept beside this
            places = pool.places_max
            if places is not None or any(replica.capacity is None for replica in replicas):
                yield Charge(f"pool:{pool.name}", "requests", STANDING if places is None else places)
        for replica in replicas:
            yield from _limits_there(replica)


def _limits_there(replica: Replica) -> Iterator[Charge]:
    """Of one engine. Until it has said what it holds, nobody's limit is taken away by what is not known here."""
    told = {"tokens": replica.memory.limit(), "requests": replica.requests_max(), **dict.fromkeys(sorted(READ_UNITS))}
    told.update((unit, most) for _, unit, most in replica.reading.limits(replica.scope))
    unknown = STANDING if replica.capacity is None else None
    for unit, most in told.items():
        if (limit := unknown if most is None else most) is not None:
            yield Charge(replica.scope, unit, limit)


def floors_of(desk: Desk) -> Iterator[Floor]:
    """What of a pool is kept for single tenants (B11)."""
    for pool in desk.pools.values():
        if pool.reserves is not None and not desk.policy.observe:
            yield from pool.reserves.floors()


def committed_of(desk: Desk) -> Iterator[Charge]:
    """What this gateway knows to be used up of the running periods' quotas; from here on the ledger has been told so."""
    for quota in quotas_of(desk):
        quota.is_told = True
        yield from quota.committed()


def quotas_of(desk: Desk) -> Iterator[Quota]:
    """Of tenants, and of what may be spent on spills."""
    for use in desk.tenants.values():
        if use.quota is not None:
            yield use.quota
    for pool in desk.pools.values():
        if pool.spill is not None:
            yield pool.spill.quota
