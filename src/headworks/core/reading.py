"""How much prompt an engine may be reading at once: the caps that hold a prefill avalanche back (B7).

An engine reads prompts in the order in which they came, and a first token waits for all of them. Memory does not hold them
back: two thousand prompts of ten thousand tokens fit one after the other, and whoever comes behind them waits for minutes.
So two more things are counted, in the ledger, from the reserve to the first token (`types.READ_UNITS`):

    prefill_tokens   tokens of prompts that are being read on a replica   ≤ `prefill.tokens_in_flight_max`
    heavy_prefills   prompts of `prefill.heavy_tokens` or more            ≤ `prefill.heavy_max`

A prompt longer than a cap is read when nothing else is: it must be read all the same.

`auto`: an engine may have in hand what it reads within the smallest promise of a first token, since what came behind more than
that would be late whatever it is. Work of classes that promise less has half of it: who has that promise finds the other half,
to wait and to be read in. Long prompts have a quarter, so that others fit beside them.

    tokens_in_flight_max = promise × rate      heavy_max = max(1, ¼ × tokens_in_flight_max ÷ heavy_tokens)

The half is the gate's own, stricter than what the ledger knows of; both caps are the ledger's.

The rate is measured: tokens that stood before a first token, its own among them, ÷ the time it took, over recent ones of at
least `MEASURED_TOKENS`. It is what the engine reads beside all its other work, at today's load. Before the first of them the
caps are `COLD_PROMPTS` heavy prompts' worth of tokens and one heavy prompt. Where no class promises a first token there is
nothing to protect, and no cap.

A prompt counts for what such prompts come to (`lengths.PromptShares`); where a cap is stated, for all that is charged.

Short prompts cost nothing here: under `auto` those below an eighth of a heavy one are not counted. There are never more of
them than places in the batch, and the forecast sees them coming. A stated cap on tokens counts every prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headworks.core.policy import PoolPolicy
from headworks.core.types import Row, Work

if TYPE_CHECKING:
    from headworks.core.lane import Lane

NOTHING_COUNTED = 1 << 62
"""No prompt is so long."""
COLD_PROMPTS = 2
OTHERS_RATIO = 0.5
"""The part of the tokens for classes that promise less than the most urgent one, under `auto`."""
HEAVY_RATIO = 0.25
"""The part that may be of heavy prompts, likewise."""
LIGHT_PARTS = 8
TOKENS_MIN = 2048
"""No automatic cap is less: about what one step of an engine takes."""
MEASURED_TOKENS = 512
"""What is read behind fewer takes as long as a step does, and says nothing of a rate."""
KEEP_RATIO = 0.95
"""The weight of a measurement against the next one."""
MOVES_RATIO = 0.2
"""An automatic cap that would change by less stays: each change is told to the ledger."""
SATURATED = "prefill_saturated"

Charges = tuple[tuple[str, str, int], ...]
"""Each in the shape of `Charge`: what a prompt holds while it is read."""


class Reading:
    """What one engine is reading for this gateway, and how much it may."""

    __slots__ = (
        "_measured_s",
        "_measured_tokens",
        "_policy",
        "_promise_s",
        "from_tokens",
        "heavy",
        "heavy_max",
        "tokens",
        "tokens_max",
    )

    def __init__(self, policy: PoolPolicy, promise_s: float | None) -> None:
        self.tokens = 0
        """Of the prompts counted, from the ask to the first token."""
        self.heavy = 0
        self._measured_tokens = self._measured_s = 0.0
        self.change_policy(policy, promise_s)

    def change_policy(self, policy: PoolPolicy, promise_s: float | None) -> None:
        """`promise_s`: the smallest promise of a first token among all classes; None where nobody is promised one."""
        self._policy = policy
        self._promise_s = promise_s
        self.tokens_max, self.heavy_max = self._caps()
        self.from_tokens = NOTHING_COUNTED
        """Prompts of at least so many tokens are counted."""
        if policy.prefill_tokens_max is not None:
            self.from_tokens = 1
        elif self.tokens_max is not None:
            self.from_tokens = max(1, policy.heavy_tokens // LIGHT_PARTS)
        elif self.heavy_max is not None:
            self.from_tokens = policy.heavy_tokens

    def _caps(self) -> tuple[int | None, int | None]:
        """Tokens and heavy prompts that may be read at once; None where nothing limits them."""
        policy = self._policy
        tokens_max, heavy_max = policy.prefill_tokens_max, policy.heavy_prefills_max
        if self._promise_s is None:
            return tokens_max, heavy_max
        if tokens_max is None:
            rate = self.tokens_per_s
            learnt = COLD_PROMPTS * policy.heavy_tokens if rate is None else int(self._promise_s * rate)
            tokens_max = max(TOKENS_MIN, learnt)
        if heavy_max is None:
            known = self.tokens_per_s is not None
            heavy_max = max(1, int(HEAVY_RATIO * tokens_max / policy.heavy_tokens)) if known else 1
        return tokens_max, heavy_max

    @property
    def tokens_per_s(self) -> float | None:
        """How fast it reads beside all its other work; None until that was measured."""
        return self._measured_tokens / self._measured_s if self._measured_s else None

    def observe(self, tokens: int, took_s: float) -> bool:
        """A first token came `took_s` after its request was sent behind prompts of `tokens`, its own included.

        Whether the caps are others now: the ledger has to be told.
        """
        if tokens < MEASURED_TOKENS or took_s <= 0.0:
            return False
        self._measured_tokens = self._measured_tokens * KEEP_RATIO + tokens
        self._measured_s = self._measured_s * KEEP_RATIO + took_s
        caps = self._caps()
        if not _moved(self.tokens_max, caps[0]) and not _moved(self.heavy_max, caps[1]):
            return False
        self.tokens_max, self.heavy_max = caps
        return True

    def tokens_limit(self, promise_s: float | None) -> int | None:
        """What may be read at once with a prompt of a class with this promise."""
        is_stated, is_urgent = self._policy.prefill_tokens_max is not None, promise_s == self._promise_s
        return self.tokens_max if is_stated or is_urgent or self.tokens_max is None else int(OTHERS_RATIO * self.tokens_max)

    def size(self, work: Work, lane: Lane) -> int:
        """What a prompt counts for; 0 if it does not. Beside a stated cap that is all that is charged for it."""
        policy = self._policy
        if work.prefill_tokens < self.from_tokens:
            return 0
        if policy.prefill_tokens_max is not None or policy.heavy_prefills_max is not None:
            return work.prefill_tokens
        tokens = lane.lengths.prompts.tokens(work)
        return tokens if tokens >= self.from_tokens else 0

    def has_room(self, prompt_tokens: int, promise_s: float | None) -> bool:
        """Whether a prompt of this size may be read beside what is being read; alone it always may."""
        if not self.tokens or not prompt_tokens:
            return True
        tokens_max = self.tokens_limit(promise_s)
        if tokens_max is not None and self.tokens + prompt_tokens > tokens_max:
            return False
        return prompt_tokens < self._policy.heavy_tokens or self.heavy_max is None or self.heavy < self.heavy_max

    def charges(self, prompt_tokens: int, scope: str) -> Charges:
        """What a reserve charges for the reading; nothing for a prompt that is not counted."""
        if not prompt_tokens:
            return ()
        tokens = (scope, "prefill_tokens", prompt_tokens)
        return (tokens, (scope, "heavy_prefills", 1)) if prompt_tokens >= self._policy.heavy_tokens else (tokens,)

    def begin(self, charges: Charges) -> None:
        """One is asked for."""
        self._count(charges, 1)

    def end(self, charges: Charges) -> None:
        """Its first token has come, or the ledger has let go of it."""
        self._count(charges, -1)

    def _count(self, charges: Charges, one: int) -> None:
        for _, unit, amount in charges:
            if unit == "prefill_tokens":
                self.tokens += one * amount
            else:
                self.heavy += one * amount

    def limits(self, scope: str) -> Charges:
        """What the ledger is told, in the same shape."""
        caps = (("prefill_tokens", self.tokens_max), ("heavy_prefills", self.heavy_max))
        return tuple((scope, unit, cap) for unit, cap in caps if cap is not None)

    def rows(self, prompt_tokens: int, promise_s: float | None, scope: str) -> list[Row]:
        """The verdicts on a prompt that is counted."""
        rows: list[Row] = []
        tokens_max = self.tokens_limit(promise_s)
        if tokens_max is not None:
            limit = tokens_max if self.tokens else max(tokens_max, prompt_tokens)
            rows.append(("compute", scope, self.tokens + prompt_tokens, limit, "prompt tokens", SATURATED))
        if self.heavy_max is not None and prompt_tokens >= self._policy.heavy_tokens:
            rows.append(("compute", scope, self.heavy + 1, self.heavy_max, "heavy prompts", SATURATED))
        return rows


def _moved(before: int | None, after: int | None) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(after - before) > MOVES_RATIO * before
