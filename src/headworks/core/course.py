"""The course of an execution: from the grant to the last word of the ledger.

    granted → Run → first byte → … → ended in band (E1)
                                   → unwanted → abort → the server closes → clock proof (E3a)
                                   → connection lost → counting (E3b) or a new incarnation (E4)

Whatever happens, exactly one command frees what was charged: `Stop`, with its evidence. Nothing here looks at the time
to decide that something has stopped.
"""

from __future__ import annotations

from headworks.core import metering
from headworks.core.book_table import TERMINAL
from headworks.core.commands import Answer, Cancel, Start, Stop
from headworks.core.desk import Desk
from headworks.core.effects import Abort, Run
from headworks.core.ending import end_of, forget_proofs, is_failure, learn_end, outcome_of, outcome_record, usage_of
from headworks.core.events import (
    ClientSlow,
    EngineClosed,
    EngineLost,
    EngineSilent,
    Evidence,
    FirstByte,
    NotSent,
    Progressed,
    Stopped,
)
from headworks.core.evidence import ClockProof
from headworks.core.forecast import saw_end, saw_first_token, saw_nothing
from headworks.core.growth import Growth
from headworks.core.life import LEAVING, RUNNING, SENT, SETTLING, UNASKED, Life
from headworks.core.policy import INFINITE_S
from headworks.core.pool import Pool
from headworks.core.replica import BROKEN, Replica
from headworks.core.types import Decision, ReplicaSample
from headworks.core.unread import begin_to_read, has_read, plain_tokens, to_read_tokens

OVERDUE_S = 10.0
"""Evidence not there by then raises an alarm, and again every so often. The charge stays."""


class Course:
    """What happens to executions, at the gate's desk."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._growth = Growth(desk, self._may_not_grow)

    def granted(self, life: Life, decision: Decision, send_before_s: float, now_s: float) -> None:
        """The ledger has charged it: send it."""
        desk = self._desk
        life.admitted_s = life.sent_s = now_s
        life.decision, life.decided = decision, decision.work
        replica, work, finish_by_s = life.replica, life.work, life.request.finish_by_s
        watch_tokens = self._growth.watch_tokens(work, life.lane.pool.policy.growth_ahead_tokens)
        if life.reads and not watch_tokens and life.request.assembles:
            watch_tokens = max(1, work.output_tokens_max * work.sequences)  # only a stream shows when it has been read
        if watch_tokens and not life.request.stream:
            life.assembled = True
        if replica is not None:
            if life.request.prefix:
                life.lane.pool.affinity.sent(life.request.prefix, replica.name)
            replica.opening += 1
            replica.sent_tokens += life.lane.lengths.prompts.tokens(work)
            begin_to_read(life, replica)  # an answer that is assembled here is known to be streamed only now
            replica.prefill.sent(life.opening_tokens or to_read_tokens(work, life.lane), now_s)
        if life.streamed:  # an answer in one piece shows its first byte at its end
            finish_by_s = min(finish_by_s, now_s + life.lane.service_class.first_byte_s)
        elif life.reading_tokens and work.output_tokens_max:
            desk.has_read(life)  # and nobody can say when its prompt has been read, unless that is all there is to do
        desk.set_timer(life, finish_by_s)
        name, others = life.request.id, None
        if life.claim:  # whoever asked first may have left, and others may have come
            name, *rest = life.subscribers or [name]
            others = tuple(rest)
        desk.effect(
            Run(name, life.execution, work.output_tokens_max, send_before_s, decision, others, watch_tokens, life.variant)
        )

    def first_byte(self, event: FirstByte, now_s: float) -> Pool | None:
        """Its prompt has been read. Returns the pool, if others may be read now."""
        life = self._desk.runs.get(event.execution)
        if life is None or life.state != SENT:
            return None
        self._desk.move(life, "first_byte")
        life.begin(now_s)
        replica, closes = life.replica, False
        if replica is not None:
            if not replica.breaker.is_closed:
                replica.breaker.began(event.execution, now_s)
                closes = replica.breaker.is_closed
            self._learn_first_byte(life, replica, now_s)
            replica.unstamped[life.execution.id] = now_s
        self._desk.set_timer(life, life.request.finish_by_s)
        start, pool = Start(life.execution.id, self._desk.owner), life.lane.pool
        if life.reads and life.streamed:  # whoever waits for that, here or elsewhere, need not wait for it to be told
            self._desk.end_reading(life)
            self._desk.ask(life, start, now_s)
        else:
            self._desk.ask_with_next(life, start, now_s)
            if not life.reading_tokens and not closes:
                return None
        if life.reading_tokens:
            self._desk.has_read(life)
        return pool if pool.queue.requests else None

    def _learn_first_byte(self, life: Life, replica: Replica, now_s: float) -> None:
        own_tokens, ahead_tokens = life.opening_tokens, life.ahead_tokens
        self._no_longer_opening(life)
        if not life.streamed:
            return  # it came with the whole answer, so it says nothing about the first token
        took_s = now_s - (life.sent_s or now_s)
        if replica.reading.observe(plain_tokens(ahead_tokens + own_tokens, own_tokens, life.work, life.lane), took_s):
            self._desk.limits_open = True
        replica.prefill.observe(own_tokens, ahead_tokens, took_s, replica.requests <= life.work.sequences, now_s)
        life.batch = replica.requests
        saw_first_token(life, life.lane.observes, now_s)
        promise_s = life.lane.service_class.ttft_slo_s
        is_sized = life.work.basis != "bytes"
        replica.limit.first_token(took_s, promise_s, replica.requests, now_s, own_tokens, ahead_tokens, is_sized)
        if life.lane.gates is not None:
            life.lane.gates.first_tokens.add(now_s - life.request.arrived_s, now_s)

    def progressed(self, event: Progressed, now_s: float) -> None:
        life = self._desk.runs.get(event.execution)
        if life is not None and life.state in (RUNNING, LEAVING):
            life.output_tokens = event.output_tokens
            if life.state == RUNNING:
                life.mark(now_s, event.output_tokens)
                self._growth.progressed(life, now_s)

    def _may_not_grow(self, life: Life, reason: str, now_s: float) -> None:
        """It has reached what is reserved and gets no more: ended by its class's choice, and charged until it has stopped."""
        life.cut = life.wanted and life.lane.service_class.on_growth_refused != "stop"
        told = reason if life.wanted else ""
        self._desk.effect(Abort(life.execution.id, told, life.shortfall, life.cut))
        self.leave(life, "growth_refused", reason, now_s, abort=False)

    def client_slow(self, event: ClientSlow, now_s: float) -> None:
        """While its answer is not read, nobody here can vouch that it still runs."""
        life = self._desk.runs.get(event.execution)
        if life is not None:
            life.unread_until_s = INFINITE_S if event.paused else now_s
            self._desk.unread[event.execution] = life
            if event.paused and life.state == RUNNING:
                self._growth.unread(life, now_s)

    def stopped(self, event: Stopped, now_s: float) -> None:
        """In-band end, E1: the strongest word there is, welcome in every state it can reach."""
        life = self._desk.runs.get(event.execution)
        if life is None or life.state not in (SENT, RUNNING, LEAVING):
            return
        if event.at_once and life.state == SENT:
            life.first_byte_s = now_s
        life.usage = event.usage
        life.failed = event.failed
        if life.replica is not None:
            life.replica.breaker.ended_well(event.execution, now_s)
        if not event.failed:
            self._growth.ended(life, event.usage)
            saw_end(life, life.lane.observes, now_s)
            if life.lane.pool.policy.over_commit != 1.0 and life.replica is not None:
                life.lane.lengths.saw(event.usage, life.work)
                life.replica.memory.ended()
            learn_end(life, event.usage.output_tokens, now_s)
        self._settle(life, "ended", "E1", now_s)

    def not_sent(self, event: NotSent, now_s: float) -> Life | None:
        """Nothing was written, or the engine refused it as busy: E0. Returns the life if its client may have another try.

        One that was being stopped already has had its answer: the time limit that stopped it would stop it again.
        """
        life = self._desk.runs.get(event.execution)
        if life is None or life.state not in (SENT, LEAVING):
            return None
        life.end_reason = life.end_reason or NOT_SENT_REASONS.get(event.reason, "no_replica")
        replica = life.replica
        if event.reason == "connect" and replica is not None:
            replica.refused_connection(now_s)
            self._failed(life, now_s)
        elif event.reason == "busy" and replica is not None:
            replica.refused_as_busy(event.retry_after_s, now_s)
        life.failed = True
        again = life.wanted and life.state == SENT and event.reason != "fault"
        self._settle(life, "not_sent", "E0", now_s, report=not again)
        return life if again else None

    def lost(self, event: EngineLost, now_s: float) -> Life | None:
        """The connection broke: only counting or a new incarnation can tell whether it goes on. None: it was left before."""
        life = self._desk.runs.get(event.execution)
        if life is None or life.state not in (SENT, RUNNING, LEAVING):
            return None
        already = life.state == LEAVING
        self.leave(life, "lost", "upstream_lost", now_s, abort=not already, tells=not event.unheard)
        replica = life.replica
        if replica is not None:
            replica.unproved.setdefault(life.execution.id, now_s)
            self._desk.observe(replica.name, now_s)
        if event.answered and life.lane.pool.spill is not None:  # it runs on nobody's engine of ours, and nothing more comes
            life.failed = True
            self.evidence(Evidence(event.execution, "E1"), now_s)
        return None if already else life

    def silent(self, event: EngineSilent, now_s: float) -> None:
        life = self._desk.runs.get(event.execution)
        if life is not None and life.state in (SENT, RUNNING):
            self.leave(life, "silent", "upstream_timeout", now_s)

    def away(self, life: Life, now_s: float) -> None:
        """Another gateway holds its record now: close the connection and testify."""
        self.leave(life, "away", "ledger_unavailable", now_s)

    def drained(self, life: Life, now_s: float) -> None:
        """The gateway's own time is up: cut it, told as such."""
        self.leave(life, "time_over", "draining", now_s)

    def client_gone(self, life: Life, now_s: float) -> None:
        """The last subscriber of something sent has left."""
        if life.state in (SENT, RUNNING):
            self.leave(life, "gone", "", now_s)

    def due(self, life: Life, now_s: float) -> None:
        """A timer of something sent has passed: the first byte's limit, the time budget, or overdue evidence."""
        if life.state == LEAVING:
            waited_s = now_s - (life.leaving_s or now_s)
            self._desk.alarm("evidence_overdue", life.execution.id, f"unconfirmed for {waited_s:.0f} s, still charged")
            self._desk.set_timer(life, now_s + OVERDUE_S)
            self._mark_unproved(life, now_s)  # what the clock could not prove, counting may
        elif life.state in (SENT, RUNNING):
            over = now_s >= life.request.finish_by_s
            self.leave(life, "time_over" if over else "silent", "deadline_exceeded" if over else "upstream_timeout", now_s)

    def leave(self, life: Life, what: str, reason: str, now_s: float, abort: bool = True, tells: bool = True) -> None:
        """Unwanted from here on, and still charged: abort, cancel, and wait for evidence."""
        desk = self._desk
        was = life.state
        if not desk.move(life, what):
            return
        if was == LEAVING:
            return
        if is_failure(life, what, was, now_s):
            self._failed(life, now_s)
        elif life.replica is not None:
            life.replica.breaker.silent(life.execution.id)
        if was == SENT:
            self._no_longer_opening(life)
            saw_nothing(life, now_s)
        elif life.output_tokens:
            self._growth.cut(life, life.output_tokens)
        life.leaving_s = now_s
        life.end_reason = reason
        desk.set_timer(life, now_s + OVERDUE_S)
        if abort:
            desk.effect(Abort(life.execution.id, reason if tells and life.wanted else ""))
        desk.ask(life, Cancel(life.execution.id, desk.owner), now_s)

    def _failed(self, life: Life, now_s: float) -> None:
        """Its engine failed it."""
        replica = life.replica
        said = replica.breaker.failed(life.execution.id, now_s) if replica is not None else ""
        if replica is not None and said:
            self._desk.alarm(BROKEN, replica.name, said)
            self._desk.wake(replica.breaker.until_s)

    def _no_longer_opening(self, life: Life) -> None:
        replica = life.replica
        if replica is None:
            return
        replica.opening -= 1
        has_read(life, replica)

    def closed(self, event: EngineClosed, now_s: float) -> None:
        """The engine's server closed its side: the clock proof can begin, with a scrape begun from now on."""
        life = self._desk.runs.get(event.execution)
        replica = life.replica if life is not None else None
        if life is None or replica is None or life.state != LEAVING:
            return
        if replica.capacity is not None and "E3a" in replica.capacity.evidence:
            replica.closing[life.execution.id] = ClockProof(now_s, began=life.first_byte_s is not None)
        if life.execution.id not in replica.closing or life.first_byte_s is None:
            # The clock of an engine that has nothing to do stands still: what it never showed, counting has to prove.
            replica.unproved.setdefault(life.execution.id, now_s)
        self._desk.observe(replica.name, now_s)

    def sampled(self, replica: Replica, sample: ReplicaSample, now_s: float) -> None:
        """Which closed connections does this sample prove stopped?"""
        for execution in [name for name, proof in replica.closing.items() if proof.seen(sample)]:
            self.evidence(Evidence(execution, "E3a"), now_s)

    def evidence(self, event: Evidence, now_s: float) -> None:
        life = self._desk.runs.get(event.execution)
        if life is not None and life.state in (SENT, RUNNING, LEAVING):
            self._settle(life, "proved", event.level, now_s)

    def _settle(self, life: Life, what: str, level: str, now_s: float, report: bool = True) -> None:
        """It has stopped, with evidence: tell the ledger, once and until it answers."""
        desk = self._desk
        if life.state == SENT:
            self._no_longer_opening(life)
        if not desk.move(life, what):
            return
        life.evidence = level
        life.timer_s = life.timer_s if life.is_held else INFINITE_S  # its client waits no longer for the ledger to hear of it
        forget_proofs(life)
        if report:
            self.report(life, now_s)
        desk.drop_rider(life)
        usage = usage_of(life)
        commits = metering.commits(life) if life.quota is not None else ()
        desk.ask(life, Stop(life.execution.id, desk.owner, level, end_of(life), usage, commits), now_s)

    def answered(self, life: Life, answer: Answer, now_s: float) -> bool:
        """An answer to start, cancel or stop. True when the life has ended by it."""
        ask = life.ask
        if ask is not None and VERBS.get(type(ask)) == answer.verb:
            self._desk.heard(life)
        state, is_stop = life.state, answer.verb == "stop"
        if is_stop and (state == UNASKED or (state == SETTLING and answer.outcome != "refused")):
            if self._desk.ended is not None and type(ask) is Stop:
                self._desk.ended.append(ask)
            return self._over(life, now_s)
        if answer.verb == "cancel" and answer.state in TERMINAL and state == LEAVING:
            self._close_by_ledger(life, answer.evidence, now_s)
            return True
        if answer.verb == "grow":
            self._growth.answered(life, answer, now_s)
        if is_stop and state == SETTLING:
            # Only E0 can be refused: the ledger has seen a byte of it. Proof must come from the engine then.
            self._desk.move(life, "stop_refused")
            self._desk.alarm("stop_refused", life.execution.id, f"{life.evidence} was refused: {answer.state}")
            self._mark_unproved(life, now_s)
        return False

    def _over(self, life: Life, now_s: float) -> bool:
        """The ledger has let go of it."""
        self._growth.freed(life.lane.pool.name, now_s)
        if life.drawn and not life.is_held:
            metering.ended(life, now_s)
        return self._desk.move(life, "stop_answered")

    def _mark_unproved(self, life: Life, now_s: float) -> None:
        life.leaving_s = life.leaving_s or now_s
        replica = life.replica
        if replica is not None:
            replica.unproved[life.execution.id] = now_s

    def ended_by_ledger(self, execution: str, evidence: str, now_s: float) -> Life | None:
        """The ledger ended it by counting, a new incarnation or an operator's word. Returns the life if it was ours."""
        life = self._desk.runs.get(execution)
        if life is None or life.state not in (SENT, RUNNING, LEAVING, SETTLING):
            return None
        if life.state in (SENT, RUNNING):
            life.end_reason, life.failed = "upstream_lost", True
            self._failed(life, now_s)
            self._desk.effect(Abort(life.execution.id, "upstream_lost" if life.wanted else ""))
        self._close_by_ledger(life, evidence, now_s)
        return life

    def _close_by_ledger(self, life: Life, evidence: str, now_s: float) -> None:
        if self._desk.ended is not None:  # an older copy of the ledger would not know
            self._desk.ended.append(Stop(life.execution.id, self._desk.owner, evidence, end_of(life), usage_of(life)))
        if life.state != SETTLING:
            if life.state == SENT:
                self._no_longer_opening(life)
            self._desk.move(life, "proved")
            life.evidence = evidence
            forget_proofs(life)
            self.report(life, now_s)
        if life.quota is not None:
            metering.commits(life)
            self._desk.limits_open = True  # no stop of ours has told the ledger: the limits will, with the next beat
        self._over(life, now_s)
        life.ask = None

    def report(self, life: Life, now_s: float, outcome: str = "") -> None:
        """The one outcome of an arrival, and of those that share its answer."""
        if life.reported or life.is_held:
            return
        life.reported = True
        outcome = outcome or outcome_of(life)
        if life.leaving_s is not None and life.evidence:
            life.lane.pool.proof_s.add(now_s - life.leaving_s)
        self._desk.record(outcome_record(life, outcome, now_s))
        if life.drawn and life.evidence != "E0":  # that it never ran is so when the ledger has agreed
            metering.ended(life, now_s)
        if life.sharers:
            for sharer in life.sharers.values():
                sharer.execution, sharer.end_reason = life.execution, life.end_reason
                sharer.admitted_s = sharer.admitted_s if life.admitted_s is not None else None
                self.report(sharer, now_s, "replayed" if outcome == "completed" else outcome)


VERBS = {Start: "start", Cancel: "cancel", Stop: "stop"}
NOT_SENT_REASONS = {"late": "ledger_unavailable", "connect": "no_replica", "busy": "queue_timeout", "gone": "", "fault": ""}
