"""How many tokens will it take? First version: prompts from bytes, outputs by their maximum or the cold quantile.

UTF-8 bytes are an upper bound of tokens in every byte-level vocabulary, and up to seventeen times too high for none of
them too low (characters ÷ 4 under-reserves exactly there). So a prompt is charged `bytes × ratio`, where the ratio is
1 until twenty answers of that tenant and model have told the real one, and then the largest of the last 200 seen, with
a margin of `RATIO_MARGIN`. What the engine's usage says at the end corrects the ratio, never the reservation.
"""

from __future__ import annotations

from headworks.core.stats import Window
from headworks.core.types import Estimate, Request, Usage, Work

TEMPLATE_TOKENS = 16
"""What a chat template may add around the text."""
OBSERVATIONS_MIN = 20
RATIO_MARGIN = 1.05
PAIRS_MAX = 10_000
"""(tenant, model) pairs remembered; beyond, new pairs stay at the safe ratio."""


class _Learnt:
    """Tokens per prompt byte of one (tenant, model)."""

    __slots__ = ("error_ratio", "ratio", "window")

    def __init__(self) -> None:
        self.window = Window(200)
        self.ratio: float | None = None
        self.error_ratio = 1.0

    def add(self, ratio: float) -> None:
        self.window.add(ratio)
        if len(self.window) >= OBSERVATIONS_MIN:
            high = self.window.quantile(1.0)
            self.ratio = min(1.0, high * RATIO_MARGIN)
            middle = self.window.quantile(0.5)
            self.error_ratio = high / middle - 1.0 if middle else 1.0


class Estimator:
    """Learns tokens per prompt byte for each (tenant, model)."""

    def __init__(self) -> None:
        self._learnt: dict[tuple[str, str], _Learnt] = {}

    def estimate(self, request: Request, context_tokens: int, output_tokens_cold: int) -> Estimate:
        """Prompt and output of one sample. Without a client's maximum the output is the rest of the context (0: unknown)."""
        prompt_tokens, basis, error_ratio = self._prompt(request)
        output_tokens = request.output_tokens_max
        if output_tokens is not None:
            if context_tokens:  # a prompt that leaves less is cut by the engine's own rule, never by our estimate
                prompt_tokens = min(prompt_tokens, max(1, context_tokens - output_tokens))
        elif context_tokens:
            prompt_tokens = min(prompt_tokens, context_tokens - 1)
            output_tokens = context_tokens - prompt_tokens
        else:
            output_tokens = output_tokens_cold
        return Estimate(prompt_tokens, 0, output_tokens, 1.0, basis, error_ratio)

    def _prompt(self, request: Request) -> tuple[int, str, float]:
        if request.prompt_tokens is not None:
            return max(1, request.prompt_tokens), "exact", 0.0
        learnt = self._learnt.get((request.key.tenant, request.model))
        if learnt is None or learnt.ratio is None:
            return request.prompt_bytes + TEMPLATE_TOKENS, "bytes", 1.0
        return int(request.prompt_bytes * learnt.ratio) + TEMPLATE_TOKENS, "learnt", learnt.error_ratio

    def observe(self, request: Request, usage: Usage) -> None:
        """Learn from exact usage. The template's share is left out, so that small prompts do not mislead."""
        if not usage.exact or request.prompt_tokens is not None or request.prompt_bytes <= 0:
            return
        pair = (request.key.tenant, request.model)
        learnt = self._learnt.get(pair)
        if learnt is None:
            if len(self._learnt) >= PAIRS_MAX:
                return
            learnt = self._learnt[pair] = _Learnt()
        learnt.add(max(0, usage.prompt_tokens - TEMPLATE_TOKENS) / request.prompt_bytes)


def work_of(request: Request, estimate: Estimate, block_tokens: int) -> Work:
    """What is charged: each sample holds its own prompt and output; memory goes by whole blocks (A1, design section 5)."""
    samples = request.samples
    prompt_tokens, output_tokens = estimate.prompt_tokens, estimate.output_tokens
    per_sequence = prompt_tokens + output_tokens
    kv_tokens = samples * (-(-per_sequence // block_tokens) * block_tokens)
    prefill_tokens = samples * (prompt_tokens - estimate.cached_tokens)
    return Work(samples * per_sequence, prefill_tokens, samples, 0.0, kv_tokens, output_tokens)
