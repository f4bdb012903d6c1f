"""Growth: an answer that may become longer than what was reserved for it asks for more before it is (A8).

Let B be the output tokens reserved for all samples together, S one step (`growth.step_tokens`) and A the distance at which
it is asked (`growth.ahead_tokens`), both times the samples, since every step of the engine makes a token of each.

    B − A      more is asked for: one step, or what half of its tenant's answers stay within that became longer than B if that
               is more, or what is left of the most it may write
               granted: B grows, and it is asked again at the new B − A
               refused: one step is asked for; that refused as well, it goes on to B, and asks again whenever something else
               of this pool has ended
    B          still refused: it is ended, by its class's choice
    B + S − A  not answered at all: ended as well

An abort takes effect a few tokens later. So what is *generated* never passes B + S, as long as the gateway hears of it
within A tokens, and what is charged never passes a limit at all: the ledger decides. A step has the number of the output
tokens it leads to, so whatever arrives twice or late is counted once. Two asks under way at once, of a client that stopped
reading in between, may charge the smaller one on top: too much until the end, never too little.

Whose client does not read is not heard of: its reservation has to be all that it may write, at once.

A quota of a period is asked with every step as it is before the start, and is nobody's to lend.

`length` ends the answer as any that reached its limit; `stop` with an error; `spare` lets it pass its *tenant's* limit
while the pool has room: such a step is charged to the pool and not to the tenant. Where the pool has none it ends as
`length`.
"""

from __future__ import annotations

from collections.abc import Callable

from headworks.core.book_sessions import CALLS
from headworks.core.commands import Answer, Grow
from headworks.core.desk import Desk
from headworks.core.effects import Watch
from headworks.core.estimate import SLACK_TOKENS, sized
from headworks.core.life import LEAVING, RUNNING, Life
from headworks.core.policy import INFINITE_S
from headworks.core.quota import GONE, PREFIX
from headworks.core.session_use import EXHAUSTED
from headworks.core.types import Charge, Usage, Work

RETRIED_MAX = 8
"""Refused answers that ask again when one ends: what it gives back is rarely enough for more."""
MEMORY_SHORT, TENANT_SHORT, UNANSWERED = "kv_saturation", "tenant_capacity_exceeded", "ledger_unavailable"

End = Callable[[Life, str, float], None]
"""End an answer here: the life, the reason, the time."""


class Growth:
    """Who asks for more, at the gate's desk."""

    def __init__(self, desk: Desk, end: End) -> None:
        self._desk = desk
        self._end = end
        self._refused: dict[str, dict[str, Life]] = {}
        """Pool → executions that were refused and go on to their bound, in the order in which they asked last."""

    def watch_tokens(self, work: Work, ahead_tokens: int) -> int:
        """How far it may be unheard of, at its start; 0 where all that it may write is reserved."""
        if work.output_tokens >= work.output_tokens_max:
            return 0
        return max(1, (work.output_tokens - ahead_tokens) * work.sequences)

    def progressed(self, life: Life, now_s: float) -> None:
        """So many tokens were counted: ask, or end."""
        work, policy = life.work, life.lane.pool.policy
        if work.output_tokens >= work.output_tokens_max:
            return
        made_tokens = life.output_tokens // work.sequences
        if life.growing is not None:
            if made_tokens >= work.output_tokens + policy.growth_step_tokens - policy.growth_ahead_tokens:
                self._end(life, UNANSWERED, now_s)
        elif life.growth_refused:
            if made_tokens >= work.output_tokens:
                self._give_up(life, now_s)
        elif made_tokens >= work.output_tokens - policy.growth_ahead_tokens:
            estimator, first = self._desk.decider.estimator, not life.growths and not life.growths_refused
            estimator.reached(life.request, made_tokens, first, policy.quantile)
            self._ask(life, self._next_step(life), now_s)

    def unread(self, life: Life, now_s: float) -> None:
        """Its client stopped reading: from here on nobody can say how far it is."""
        work = life.work
        if work.output_tokens < work.output_tokens_max:
            self._ask(life, work.output_tokens_max, now_s)

    def _one_step(self, life: Life) -> int:
        return min(life.work.output_tokens + life.lane.pool.policy.growth_step_tokens, life.work.output_tokens_max)

    def _next_step(self, life: Life) -> int:
        """The estimate made anew, now that it is known to be longer (C2): fewer asks for the same answer."""
        one_step = self._one_step(life)
        longer = self._desk.decider.estimator.longer(life.request, life.work.output_tokens)
        if longer is None:
            return one_step
        wanted = longer + life.lane.pool.policy.growth_ahead_tokens + SLACK_TOKENS
        return max(one_step, min(wanted, life.work.output_tokens_max))

    def _ask(self, life: Life, output_tokens: int, now_s: float, spare: bool = False) -> None:
        """For so many output tokens a sample in all. `spare`: not at the tenant's expense."""
        lane, work, execution, policy = life.lane, life.work, life.execution, life.lane.pool.policy
        on_replica = f"replica:{execution.replica}"
        grown = self._grown(life, output_tokens)
        before, after = lane.charges(work, on_replica), lane.charges(grown, on_replica)
        charges = tuple(
            Charge(scope, unit, amount - held)
            for (scope, unit, held), (_, _, amount) in zip(before, after, strict=True)
            if amount > held and not (spare and scope == lane.tenant_scope)
        )
        observed = self._desk.lane(lane.tenant_policy.name, lane.class_name, lane.pool.name).observed_scope
        if observed and lane.session is None and observed != lane.observed_scope:  # since it was sent
            charges = (Charge(observed, "tokens", grown.tokens - work.tokens), *charges)
        if life.quota is not None:
            more = life.quota.more(grown, life.request.model)
            charges += tuple(Charge(*charge) for charge in more if charge[2] > 0)
        self._desk.ask_growth(life, Grow(execution.id, self._desk.owner, output_tokens, charges), now_s)
        unanswered_tokens = work.output_tokens + policy.growth_step_tokens - policy.growth_ahead_tokens
        self._desk.effect(Watch(execution.id, unanswered_tokens * work.sequences))

    def _grown(self, life: Life, output_tokens: int) -> Work:
        work = life.work
        prompt_tokens = work.prefill_tokens // work.sequences
        most, pool = work.output_tokens_max, life.lane.pool
        return sized(prompt_tokens, output_tokens, most, life.request, pool, work.basis, work.bound_tokens)

    def answered(self, life: Life, answer: Answer, now_s: float) -> None:
        """The ledger's word on the ask that stands; whatever else comes is of one that was given up."""
        command = life.growing
        if command is None or answer.step != command.step or life.state != RUNNING:
            return
        life.growing = None
        if answer.outcome in ("granted", "recorded"):
            self._granted(life, command, now_s)
        else:
            self._was_refused(life, command, answer, now_s)

    def _granted(self, life: Life, command: Grow, now_s: float) -> None:
        desk, before_tokens = self._desk, life.work.tokens
        desk.give_back(life)
        life.work = self._grown(life, command.step)
        if not any(charge.scope == life.lane.tenant_scope for charge in command.charges):
            life.spare_tokens += life.work.tokens - before_tokens
        if life.quota is not None:
            life.quota.grown(life.work, life.request.model)
        desk.take(life)
        life.growths += 1
        life.mark(now_s, 0)
        life.growth_refused, life.shortfall = False, None
        watch_tokens = self.watch_tokens(life.work, life.lane.pool.policy.growth_ahead_tokens)
        if watch_tokens:
            desk.effect(Watch(life.execution.id, watch_tokens))

    def _was_refused(self, life: Life, command: Grow, answer: Answer, now_s: float) -> None:
        tenant_scope, shortfalls = life.lane.tenant_scope, answer.shortfalls
        one_step = self._one_step(life)
        if command.step > one_step and life.unread_until_s != INFINITE_S:
            self._ask(life, one_step, now_s)
            return
        if life.lane.service_class.on_growth_refused == "spare":
            for_tenant = any(charge.scope == tenant_scope for charge in command.charges)
            others = tuple(short for short in shortfalls if short.scope != tenant_scope)
            if for_tenant and shortfalls and not others:
                self._ask(life, command.step, now_s, spare=True)
                return
            shortfalls = others
        life.growths_refused += 1
        life.growth_refused = True
        life.shortfall = shortfalls[0] if shortfalls else None
        bound_tokens = life.work.output_tokens * life.work.sequences
        if life.output_tokens >= bound_tokens or life.unread_until_s == INFINITE_S:
            self._give_up(life, now_s)
            return
        self._refused.setdefault(life.lane.pool.name, {})[life.execution.id] = life
        self._desk.effect(Watch(life.execution.id, bound_tokens))

    def freed(self, pool: str, now_s: float) -> None:
        """Something has ended there: what runs and was refused asks before anybody who waits."""
        refused = self._refused.get(pool)
        if not refused:
            return
        for name in list(refused)[:RETRIED_MAX]:
            life = refused.pop(name)
            if life.state == RUNNING and life.growth_refused and life.growing is None:
                self._ask(life, self._one_step(life), now_s)

    def ended(self, life: Life, usage: Usage) -> None:
        """Learn from its end; of one told to stop, only that it would have been longer, unless that is known already."""
        if life.state == LEAVING:
            self.cut(life, 0 if life.output_tokens else usage.output_tokens)
        elif life.decided is not None:
            quantile = life.lane.pool.policy.quantile
            self._desk.decider.estimator.observe(life.request, usage, life.decided, quantile)

    def cut(self, life: Life, output_tokens: int) -> None:
        """Nobody wants it any more, so many tokens long."""
        if life.decided is not None:
            quantile = life.lane.pool.policy.quantile
            self._desk.decider.estimator.observe_cut(life.request, output_tokens, life.decided, quantile)

    def _give_up(self, life: Life, now_s: float) -> None:
        short = life.shortfall
        if short is None:
            reason = UNANSWERED  # no limit stood in the way, so it was the ledger's own: our lease is over
        elif short.scope.startswith(PREFIX):
            reason = GONE
        elif short.scope.startswith(CALLS):
            reason = EXHAUSTED
        else:
            reason = TENANT_SHORT if short.scope == life.lane.tenant_scope else MEMORY_SHORT
        self._end(life, reason, now_s)
