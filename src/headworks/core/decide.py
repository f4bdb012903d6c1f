"""From a request to its decision: estimate → work → forecast → verdicts → what is done about it.

Nothing here keeps a life or asks a ledger: it looks, and says.
"""

from __future__ import annotations

from typing import Final

from headworks.core import metering
from headworks.core.checks import compare
from headworks.core.class_gates import CLOSED
from headworks.core.disciplines import Discipline, own_share
from headworks.core.estimate import Estimator
from headworks.core.floors import RESERVED
from headworks.core.forecast import forecast_of, wait_of
from headworks.core.lane import Lane
from headworks.core.last_moment import start_by_s
from headworks.core.life import Life
from headworks.core.policy import INFINITE_S, Policy
from headworks.core.quota import GONE
from headworks.core.reading import SATURATED
from headworks.core.reasons import REASONS
from headworks.core.types import LIMIT, REASON, VALUE, Decision, Request, Row, Work
from headworks.core.unread import to_read_tokens

CHECK: Final = 0
"""Its place in a `Row`."""
TENANT = "tenant"
"""The check of a tenant's own limits: whoever asks inside its reserve is held up by nothing else."""
SOON_S = 1.0
"""The hint of a refusal that has nothing to do with load."""
PROVED_RATIO = 0.95
"""A key whose execution is being stopped is asked for again when so many of its like have been proved to have stopped."""
WAITS = frozenset({"queue_timeout", "tenant_capacity_exceeded", "kv_saturation", "compute_saturation", SATURATED, RESERVED})
"""Failed checks that time may cure: the request queues. The others refuse when they concern a request that must wait."""
AT_ONCE = (*metering.AT_ONCE, CLOSED)
"""Failed checks that refuse at once, whatever else there is; the first of them is the one that is told."""


class Decider:
    """Looks at requests with today's policy and measurements."""

    def __init__(self, policy: Policy, gateway: str) -> None:
        self.policy = policy
        self.gateway = gateway
        self.estimator = Estimator()

    def look(
        self,
        request: Request,
        number: int,
        lane: Lane,
        discipline: Discipline,
        now_s: float,
        counts: bool = True,
        work: Work | None = None,
    ) -> tuple[Life, bool]:
        """A new life with its work, forecast and verdicts; and whether nothing at all stands in its way.

        `counts`: it has just come. A variant of one that had is not another attempt of its client. `work`: where it
        is not to be estimated.
        """
        pool = lane.pool
        if work is None:
            work = self.estimator.work(request, pool, lane.tenant_policy)
        replica, reason = pool.place(request, work, lane, now_s)
        read_at = pool.reads_least() if reason == SATURATED else replica
        share = lane.share
        if share is not None and share.use is not None:
            share.use.asked_s = now_s
        kept = lane.kept(work, now_s) if lane.keeps else None
        if kept is not None:
            replica = read_at = None
        # What it waits for is being read there: its first token comes as late as if it stood behind that in the engine.
        forecast = forecast_of(work, lane, read_at, discipline, now_s)
        life = Life(request, number, lane, work, forecast)
        life.replica, life.told_s = replica, now_s
        if discipline.drops_late and not lane.observes:
            life.start_by_s = start_by_s(life, forecast.prefill_s)
        else:
            life.start_by_s = INFINITE_S
        inside = lane.reserve is not None and lane.is_inside(work)
        if inside:  # no forecast says that it cannot be on time: there is room for it, or there will be
            life.start_by_s = max(life.start_by_s, min(request.start_by_s, request.arrived_s + lane.service_class.wait_s_max))
        compared = compare(request, work, lane, forecast, now_s)
        life.rows = rows = compared.rows
        count = len(rows)
        if kept is not None:
            rows.append(kept)
        if inside and lane.reserve is not None:
            rows.append(lane.reserve.row(work, lane.tenant_scope))
        if (lane.metered or request.retry_count) and counts:
            rows[:0] = metering.arrived(life, now_s)
        if lane.gates is not None:
            rows += lane.gates.rows(now_s)
        if replica is None or (pool.queue.requests and not inside):
            return life, False
        if compared.passed and len(rows) == count:
            return life, True
        for row in rows:
            if row[VALUE] > row[LIMIT] and (not inside or row[CHECK] == TENANT):
                return life, False
        return life, True

    def judge(self, life: Life, now_s: float) -> list[Row]:
        """All checks as things stand now."""
        rows = compare(life.request, life.work, life.lane, life.forecast, now_s).rows
        kept = life.lane.kept(life.work, now_s) if life.lane.keeps else None
        if kept is not None:
            rows.append(kept)
        if life.lane.session_scope:
            rows += life.lane.own_rows(life.work)
        return [*metering.again(life, now_s), *rows] if life.lane.metered else rows

    def refusal(self, life: Life, discipline: Discipline, now_s: float, counts: bool = True) -> str:
        """The code with which this newcomer is refused at once, or "" when it may run or wait. `counts`: it has come."""
        pool = life.lane.pool
        never = self._never(life) or (metering.never(life, now_s) if life.lane.metered else None)
        if never is not None:
            life.rows.append(never)
            return NEVER
        inside = life.lane.is_inside(life.work)
        failed = {row[REASON] for row in life.rows if row[VALUE] > row[LIMIT] and (not inside or row[CHECK] == TENANT)}
        if not failed:
            return ""
        for reason in AT_ONCE:
            if reason in failed:
                return reason
        if "tenant_capacity_exceeded" in failed and life.lane.service_class.on_tenant_full == "refuse":
            return "tenant_capacity_exceeded"
        if discipline.refuses_predicted and "queue_delay_exceeded" in failed:
            if counts and life.replica is not None and _reads_too_long(life):  # that is to be tried, not only believed
                life.replica.prefill.refused(to_read_tokens(life.work, life.lane), now_s)
            return "queue_delay_and_kv_saturation" if "kv_saturation" in failed else "queue_delay_exceeded"
        if "queue_full" in failed and not discipline.drops_oldest and (pool.queue.requests or not WAITS.isdisjoint(failed)):
            return "queue_full"
        return ""

    def _never(self, life: Life) -> Row | None:
        """The verdict that no amount of waiting can cure (K08)."""
        work, lane = life.work, life.lane
        largest = lane.pool.tokens_largest if not lane.pool.policy.floors else lane.pool.largest_tokens(life.request.model)
        if largest is not None and work.kv_tokens > largest:
            return "memory", lane.pool_scope, work.kv_tokens, largest, "tokens", NEVER
        if lane.reserves is not None and lane.pool.tokens_max is not None:
            left = lane.pool.tokens_max - lane.reserves.others_tokens(lane)
            if work.kv_tokens > left:
                return "memory", lane.pool_scope, work.kv_tokens, left, "tokens beside what is reserved", NEVER
        tenant = lane.tenant_policy
        if tenant.active_tokens_max is not None and work.tokens > tenant.active_tokens_max:
            return "tenant", lane.tenant_scope, work.tokens, tenant.active_tokens_max, "tokens", NEVER
        if tenant.active_requests_max is not None and work.sequences > tenant.active_requests_max:
            return "tenant", lane.tenant_scope, work.sequences, tenant.active_requests_max, "requests", NEVER
        return None

    def decision(self, life: Life, outcome: str, reason: str, now_s: float, counts: bool = True) -> Decision:
        """The record of what was decided, with a return slot where the reason gives one. `counts`: and where it is kept."""
        request = life.request
        return Decision(
            request.id,
            request.key,
            outcome,
            reason,
            tuple(life.rows),
            life.forecast,
            life.work,
            self.retry_after_s(life, reason, now_s, counts) if outcome == "refuse" else None,
            _position(life.lane) if outcome == "queue" else 0,
            ", ".join(life.variant.told) if life.variant is not None and outcome != "refuse" else "",
            now_s,
            now_s - request.arrived_s,
            self.gateway,
            life.lane.policy_version,
            request.service_class,
            request.model,
            request.pool,
            life.decision is None,
        )

    def retry_after_s(self, life: Life, reason: str, now_s: float, counts: bool = True) -> float | None:
        """When its client should come back, which keeps a slot for it where the reason gives one, and it `counts`."""
        retry, horizon_s = REASONS[reason].retry, self.policy.horizon_s
        if life.lane.observes and retry in ("ticket", "refill"):
            return None  # its client is not told, so no slot is kept for it
        if retry == "ticket":
            lane = life.lane
            ahead = own_share(lane, now_s)
            wait_s = wait_of(lane.pool, ahead, now_s)
            name = "" if lane.share is None else lane.service_class.name
            slots = lane.pool.slots
            if counts:
                slot_s = slots.give(wait_s, life.work.tokens, ahead.here_per_s, horizon_s, now_s, name)
            else:
                slot_s = slots.next_s(wait_s, ahead.here_per_s, now_s, name)
            slot_s = max(slot_s, lane.pool.back_in_s(reason, now_s))
        elif retry == "refill":
            slot_s = metering.refill_s(life, horizon_s, now_s) if counts else metering.refilled_s(life, now_s)
        elif retry == "key":
            proof_s = life.lane.pool.proof_s
            # Nothing measured yet: what was never seen in an idle engine takes about a lease to be proved (E3b).
            return proof_s.quantile(PROVED_RATIO) if len(proof_s) else self.policy.lease_s
        elif reason == GONE:
            return metering.renewed_s(life, now_s)
        else:
            return max(SOON_S, life.lane.pool.back_in_s(reason, now_s)) if retry == "soon" else None
        if counts:
            metering.gave_slot(life, slot_s, horizon_s, now_s)
        return slot_s


NEVER = "request_exceeds_capacity"


def _reads_too_long(life: Life) -> bool:
    """It had room, and what is foreseen of its reading alone was against it."""
    forecast, promise_s = life.forecast, life.lane.service_class.ttft_slo_s
    if promise_s is None:
        return False
    return forecast.prefill_s > promise_s or (forecast.basis == "room" and (forecast.ttft_s or 0.0) > promise_s)


def _position(lane: Lane) -> int:
    """Its place in the queue it waits in: its own flow's where flows take turns."""
    queue = lane.pool.queue
    return queue.requests if lane.share is None else queue.line(lane.flow).requests
