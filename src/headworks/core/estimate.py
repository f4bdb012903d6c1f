"""How many tokens will it take? Prompts from bytes, outputs from what the tenant's answers came to.

*Prompts.* UTF-8 bytes are an upper bound of tokens in every byte-level vocabulary, and up to seventeen times too high for
none of them too low (characters ÷ 4 under-reserves exactly there). So a prompt is charged `bytes × ratio`, where the
ratio is 1 until twenty answers of that tenant and model have told the real one, and then the largest of the last 200
seen, with a margin of `RATIO_MARGIN`.

*Outputs* (A8, A10). What is allowed is twenty to forty times what is used, so where an answer can grow only its estimate is
reserved: the pool's quantile (`estimate.quantile`) of the tenant's last `OUTPUTS_KEPT` answers with that model, and
`growth.ahead_tokens` more, so that one as long as the quantile ends before it has to ask. Before `OUTPUTS_MIN` answers
it is `output_tokens_cold`, and no more than a quarter of what the smallest whole limit leaves beside the prompt: a guess
of ours must not make a small tenant's first request impossible (K08). Never more than is allowed, never less than what
the client makes certain. A window of 300 holds sixteen answers above its 95 % quantile: who reserved small and now uses
more is caught within as many answers, twice as many where every second one is kept.

What the engine's usage says at the end corrects what is learnt, never the reservation.
"""

from __future__ import annotations

from headworks.core.policy import TenantPolicy
from headworks.core.pool import Pool
from headworks.core.stats import Window
from headworks.core.types import Request, Usage, Work

TEMPLATE_TOKENS = 16
"""What a chat template may add around the text."""
OBSERVATIONS_MIN = 20
RATIO_MARGIN = 1.05
LEARN_EVERY = 4
OUTPUTS_MIN = 20
OUTPUTS_KEPT = 300
COLD_PARTS = 4
SLACK_TOKENS = 2
"""Beyond the quantile and the distance: a chat's first event has no text and is counted as a token, and an answer that
reaches the place where growth is asked for asks."""
PAIRS_MAX = 10_000
"""(tenant, model) pairs remembered; beyond, new pairs stay at the safe ratio and the cold output."""


class _Learnt:
    """What the answers of one (tenant, model) have told: tokens per prompt byte, and tokens they wrote."""

    __slots__ = ("_count", "_outputs", "_outputs_count", "_ratios", "output_tokens", "ratio")

    def __init__(self) -> None:
        self._count = self._outputs_count = 0
        self._ratios = Window(200)
        self._outputs = Window(OUTPUTS_KEPT)
        self.ratio: float | None = None
        self.output_tokens: int | None = None
        """The quantile of what a sample wrote; None while too few have ended."""

    def add_ratio(self, ratio: float) -> None:
        self._count += 1
        if self.ratio is not None and self._count % LEARN_EVERY and ratio <= self.ratio:
            return  # a known tenant's usual prompt: one in a few keeps the window fresh
        self._ratios.add(ratio)
        if len(self._ratios) >= OBSERVATIONS_MIN:
            self.ratio = min(1.0, self._ratios.quantile(1.0) * RATIO_MARGIN)

    def add_output(self, tokens: int, quantile: float) -> None:
        self._outputs_count += 1
        if len(self._outputs) == OUTPUTS_KEPT and self._outputs_count % 2:
            return  # short or long alike, so the quantile is the same
        self._outputs.add(tokens)
        if len(self._outputs) >= OUTPUTS_MIN:
            self.output_tokens = int(self._outputs.quantile(quantile))


class Estimator:
    """Learns from the answers of each (tenant, model), and sizes requests by it."""

    def __init__(self) -> None:
        self._learnt: dict[tuple[str, str], _Learnt] = {}

    def work(self, request: Request, pool: Pool, tenant: TenantPolicy) -> Work:
        """What is charged: each sample holds its own prompt and output; memory goes by whole blocks (A1, design section 5).

        Without a client's maximum the output may be the rest of the context (unknown: then `output_tokens_cold`).
        """
        context_tokens = pool.context_tokens
        learnt = self._learnt.get((request.key[0], request.model))
        prompt_tokens = request.prompt_tokens
        basis = "exact"
        if prompt_tokens is None:
            if learnt is None or learnt.ratio is None:
                prompt_tokens, basis = request.prompt_bytes + TEMPLATE_TOKENS, "bytes"
            else:
                prompt_tokens, basis = int(request.prompt_bytes * learnt.ratio) + TEMPLATE_TOKENS, "learnt"
        most = request.output_tokens_max
        if most is None:
            if context_tokens:
                prompt_tokens = min(prompt_tokens, context_tokens - 1)
            most = context_tokens - prompt_tokens if context_tokens else pool.policy.output_tokens_cold
        elif context_tokens and prompt_tokens + most > context_tokens:
            # a prompt that leaves less is cut by the engine's own rule, never by our estimate
            prompt_tokens = max(1, context_tokens - most)
        output_tokens = most
        if pool.grows and (request.stream or request.assembles):
            output_tokens = _expected(request, prompt_tokens, most, learnt, pool, tenant)
        return sized(prompt_tokens, output_tokens, most, request.samples, pool.block_tokens, basis)

    def observe(self, request: Request, usage: Usage, quantile: float) -> None:
        """Learn from an answer that ended. The template's share is left out, so that small prompts do not mislead."""
        learnt = self._of(request)
        if learnt is None:
            return
        if usage.output_tokens:
            learnt.add_output(-(-usage.output_tokens // request.samples), quantile)
        if not usage.exact or request.prompt_tokens is not None or request.prompt_bytes <= 0 or request.samples > 1:
            return  # of several samples the usage says a sum that engines make up differently
        learnt.add_ratio(max(0, usage.prompt_tokens - TEMPLATE_TOKENS) / request.prompt_bytes)

    def observe_cut(self, request: Request, output_tokens: int, quantile: float) -> None:
        """An answer was ended by us: it would have been longer still, so it counts if it says more than is known."""
        learnt = self._of(request)
        tokens = -(-output_tokens // request.samples)
        if learnt is not None and tokens > (learnt.output_tokens or 0):
            learnt.add_output(tokens, quantile)

    def _of(self, request: Request) -> _Learnt | None:
        pair = (request.key[0], request.model)
        learnt = self._learnt.get(pair)
        if learnt is None and len(self._learnt) < PAIRS_MAX:
            learnt = self._learnt[pair] = _Learnt()
        return learnt


def sized(prompt_tokens: int, output_tokens: int, most: int, samples: int, block_tokens: int, basis: str) -> Work:
    """The work of so many samples, each with its own prompt and so much output reserved of at most `most`."""
    per_sequence = prompt_tokens + output_tokens
    kv_tokens = samples * (-(-per_sequence // block_tokens) * block_tokens)
    return Work(samples * per_sequence, samples * prompt_tokens, samples, 0.0, kv_tokens, output_tokens, basis, most)


def _expected(request: Request, prompt_tokens: int, most: int, learnt: _Learnt | None, pool: Pool, tenant: TenantPolicy) -> int:
    """What is reserved of an output that may become `most` tokens."""
    policy = pool.policy
    told_tokens = None if learnt is None else learnt.output_tokens
    expected = policy.output_tokens_cold if told_tokens is None else told_tokens + policy.growth_ahead_tokens + SLACK_TOKENS
    certain = request.output_tokens_min
    if expected >= most or certain >= most:
        return most
    for limit, block_tokens in ((tenant.active_tokens_max, 1), (pool.tokens_largest, pool.block_tokens)):
        if limit is not None:
            room = limit // request.samples // block_tokens * block_tokens - prompt_tokens
            expected = min(expected, room // COLD_PARTS if told_tokens is None else room)
    return max(1, expected, certain)
