"""How many tokens will it take? First version: prompts from bytes, outputs by their maximum or the cold quantile.

UTF-8 bytes are an upper bound of tokens in every byte-level vocabulary, and up to seventeen times too high for none of
them too low (characters ÷ 4 under-reserves exactly there). So a prompt is charged `bytes × ratio`, where the ratio is
1 until twenty answers of that tenant and model have told the real one, and then the largest of the last 200 seen, with
a margin of `RATIO_MARGIN`. What the engine's usage says at the end corrects the ratio, never the reservation.
"""

from __future__ import annotations

from headworks.core.stats import Window
from headworks.core.types import Capacity, Estimate, Request, Usage, Work

TEMPLATE_TOKENS = 16
"""What a chat template may add around the text."""
OBSERVATIONS_MIN = 20
RATIO_MARGIN = 1.05
PAIRS_MAX = 10_000
"""(tenant, model) pairs remembered; beyond, new pairs stay at the safe ratio."""


class Estimator:
    """Learns tokens per prompt byte for each (tenant, model)."""

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, str], Window] = {}

    def estimate(self, request: Request, capacity: Capacity | None, output_tokens_cold: int) -> Estimate:
        """Prompt and output of one sample. Without a client's maximum the output is the rest of the context."""
        context_tokens = capacity.context_tokens if capacity else 0
        prompt_tokens, basis, error_ratio = self._prompt(request)
        if request.output_tokens_max is not None:
            output_tokens = request.output_tokens_max
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
        window = self._ratios.get((request.key.tenant, request.model))
        if window is None or len(window) < OBSERVATIONS_MIN:
            return request.prompt_bytes + TEMPLATE_TOKENS, "bytes", 1.0
        high = window.quantile(1.0)
        ratio = min(1.0, high * RATIO_MARGIN)
        return int(request.prompt_bytes * ratio) + TEMPLATE_TOKENS, "learnt", high / window.quantile(0.5) - 1.0

    def observe(self, request: Request, usage: Usage) -> None:
        """Learn from exact usage. The template's share is left out, so that small prompts do not mislead."""
        if not usage.exact or request.prompt_tokens is not None or request.prompt_bytes <= 0:
            return
        pair = (request.key.tenant, request.model)
        window = self._ratios.get(pair)
        if window is None:
            if len(self._ratios) >= PAIRS_MAX:
                return
            window = self._ratios[pair] = Window(200)
        window.add(max(0, usage.prompt_tokens - TEMPLATE_TOKENS) / request.prompt_bytes)


def work_of(request: Request, estimate: Estimate, capacity: Capacity | None, engine_s: float) -> Work:
    """What is charged: each sample holds its own prompt and output; memory goes by whole blocks (A1, design section 5)."""
    per_sequence = estimate.prompt_tokens + estimate.output_tokens
    block = capacity.block_tokens if capacity else 1
    return Work(
        tokens=request.samples * per_sequence,
        prefill_tokens=request.samples * (estimate.prompt_tokens - estimate.cached_tokens),
        sequences=request.samples,
        engine_s=engine_s,
        kv_tokens=request.samples * -(-per_sequence // block) * block,
        output_tokens=estimate.output_tokens,
    )
