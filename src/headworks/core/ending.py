"""How it ended, in words and numbers: what the ledger is told of an execution, and the record of an arrival."""

from __future__ import annotations

from headworks.core import metering
from headworks.core.effects import Outcome
from headworks.core.life import SENT, Life
from headworks.core.reasons import REASONS
from headworks.core.types import Usage


def end_of(life: Life) -> str:
    """The end of an execution, for the ledger."""
    if life.evidence == "E1" and not life.failed:
        return "completed"
    return "failed" if life.failed or life.end_reason else "cancelled"


def usage_of(life: Life) -> Usage | None:
    """What it used as far as is known: the engine's word, or what was counted on the way, marked as not exact."""
    if life.usage is None and life.first_byte_s is not None:
        prompt_tokens = life.work.prefill_tokens
        end = "length" if life.cut else end_of(life)
        life.usage = Usage(prompt_tokens, 0, life.output_tokens, 0.0, end, False)
    return life.usage


def forget_proofs(life: Life) -> None:
    """It has stopped, so nothing more is to be proved of it."""
    replica, execution = life.replica, life.execution.id
    if replica is None:
        return
    if life.first_byte_s is not None:
        replica.unstamped.pop(execution, None)
    if replica.closing or replica.unproved:
        replica.closing.pop(execution, None)
        replica.unproved.pop(execution, None)


def is_failure(life: Life, what: str, was: str, now_s: float) -> bool:
    """Whether it is left because its engine failed it: a broken answer, or silence for longer than its class bears (B16)."""
    if what != "time_over":
        return what in ("lost", "silent")
    # An answer in one piece shows its first byte at its end, so only its whole budget tells that there is none.
    return was == SENT and now_s - (life.sent_s or now_s) >= life.lane.service_class.first_byte_s


def learn_end(life: Life, output_tokens: int, now_s: float) -> None:
    """What an answer that ended well says of how many may run."""
    replica, first_s = life.replica, life.first_byte_s
    if replica is None:
        return
    if not life.streamed:
        replica.limit.ended(replica.requests)
    elif life.lane.service_class.tpot_slo_s is not None and first_s is not None and first_s >= replica.limit.pace.since_s:
        further = output_tokens // life.work.sequences - 1
        if further > 0:
            replica.limit.pace.answered((now_s - first_s) / further, now_s - first_s)


def outcome_of(life: Life) -> str:
    """What became of an arrival that was admitted."""
    if life.cut:
        return "completed"
    if not life.wanted:
        return "cancelled"
    if life.evidence == "E1" and not life.failed and not life.end_reason:
        return "completed"
    return "failed"


def outcome_record(life: Life, outcome: str, now_s: float) -> Outcome:
    """The one record of how an arrival ended."""
    request = life.request
    missed = _missed(life, now_s) if outcome == "completed" and not life.cut else None
    return Outcome(
        request.id,
        request.key,
        life.execution.id,
        outcome,
        life.end_reason,
        request.service_class,
        request.model,
        request.pool,
        request.client,
        request.retry_count > 0,
        request.arrived_s,
        life.admitted_s,
        life.sent_s,
        life.first_byte_s,
        now_s,
        life.work,
        usage_of(life),
        life.evidence,
        now_s - life.leaving_s if life.leaving_s is not None else None,
        outcome == "completed" and not life.cut and missed is None,  # what we cut ends well, but where we ended it
        life.forecast.ttft_s,
        life.work.tokens - life.decided.tokens if life.growths and life.decided is not None else 0,
        life.growths,
        life.growths_refused,
        "over_budget" if life.end_reason == metering.RETRIES else life.retry_kind,
        life.forecast.total_s,
        life.execution.replica,
        request,
        life.marks,
        life.told_s,
        missed,
    )


def _missed(life: Life, now_s: float) -> tuple[str, str] | None:
    """The first limit of its class that a complete answer did not keep, and what took the time; None: it is goodput."""
    lane = life.lane
    first_s = life.first_byte_s if life.first_byte_s is not None else now_s
    arrived_s = life.request.arrived_s
    if lane.ttft_slo_s is not None and life.streamed and first_s - arrived_s > lane.ttft_slo_s:
        return "ttft", _cause(life, first_s - arrived_s, lane.ttft_slo_s)
    if lane.e2e_slo_s is not None and now_s - arrived_s > lane.e2e_slo_s:
        return "e2e", _cause(life, now_s - arrived_s, lane.e2e_slo_s)
    tokens = life.usage.output_tokens // max(1, life.work.sequences) if life.usage else 0
    if lane.token_promise is None or tokens < 2 or (now_s - first_s) / (tokens - 1) <= lane.token_promise.each_s:
        return None
    return "tpot", "memory" if _was_preempted(life) else "compute"


def _cause(life: Life, took_s: float, promised_s: float) -> str:
    """What took the time: our queue, if it would have been in time without it; else other tries, else the engine."""
    waited_s = (life.admitted_s or life.request.arrived_s) - life.request.arrived_s
    if took_s - waited_s <= promised_s:
        return "upstream" if _was_sent_before(life) else "queueing"
    return "memory" if _was_preempted(life) else "compute"


def _was_sent_before(life: Life) -> bool:
    """This is a second try: what kept it waiting was an engine, not our queue."""
    reason = REASONS.get(life.blocked_by)
    return reason is not None and reason.scope == "engine"


def _was_preempted(life: Life) -> bool:
    """Its engine put something aside for want of memory while it ran; which request that was, no engine says."""
    replica = life.replica
    return replica is not None and life.sent_s is not None and replica.memory.preempted_s >= life.sent_s
