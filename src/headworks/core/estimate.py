"""How many tokens will it take? First version: prompts from bytes, outputs by their maximum or the cold quantile.

UTF-8 bytes are an upper bound of tokens in every byte-level vocabulary, and up to seventeen times too high for none of
them too low (characters ÷ 4 under-reserves exactly there). So a prompt is charged `bytes × ratio`, where the ratio is
1 until twenty answers of that tenant and model have told the real one, and then the largest of the last 200 seen, with
a margin of `RATIO_MARGIN`. What the engine's usage says at the end corrects the ratio, never the reservation.
"""

from __future__ import annotations

from headworks.core.stats import Window
from headworks.core.types import Request, Usage, Work

TEMPLATE_TOKENS = 16
"""What a chat template may add around the text."""
OBSERVATIONS_MIN = 20
RATIO_MARGIN = 1.05
LEARN_EVERY = 4
PAIRS_MAX = 10_000
"""(tenant, model) pairs remembered; beyond, new pairs stay at the safe ratio."""


class _Learnt:
    """Tokens per prompt byte of one (tenant, model)."""

    __slots__ = ("count", "ratio", "window")

    def __init__(self) -> None:
        self.count = 0
        self.window = Window(200)
        self.ratio: float | None = None

    def add(self, ratio: float) -> None:
        self.count += 1
        if self.ratio is not None and self.count % LEARN_EVERY and ratio <= self.ratio:
            return  # a known tenant's usual prompt: one in a few keeps the window fresh
        self.window.add(ratio)
        if len(self.window) >= OBSERVATIONS_MIN:
            self.ratio = min(1.0, self.window.quantile(1.0) * RATIO_MARGIN)


class Estimator:
    """Learns tokens per prompt byte for each (tenant, model), and sizes requests by it."""

    def __init__(self) -> None:
        self._learnt: dict[tuple[str, str], _Learnt] = {}

    def work(self, request: Request, context_tokens: int, block_tokens: int, output_tokens_cold: int) -> Work:
        """What is charged: each sample holds its own prompt and output; memory goes by whole blocks (A1, design section 5).

        Without a client's maximum the output is the rest of the context (0: unknown, then `output_tokens_cold`).
        """
        prompt_tokens = request.prompt_tokens
        basis = "exact"
        if prompt_tokens is None:
            learnt = self._learnt.get((request.key[0], request.model))
            if learnt is None or learnt.ratio is None:
                prompt_tokens, basis = request.prompt_bytes + TEMPLATE_TOKENS, "bytes"
            else:
                prompt_tokens, basis = int(request.prompt_bytes * learnt.ratio) + TEMPLATE_TOKENS, "learnt"
        output_tokens = request.output_tokens_max
        if output_tokens is None:
            if context_tokens:
                prompt_tokens = min(prompt_tokens, context_tokens - 1)
            output_tokens = context_tokens - prompt_tokens if context_tokens else output_tokens_cold
        elif context_tokens and prompt_tokens + output_tokens > context_tokens:
            # a prompt that leaves less is cut by the engine's own rule, never by our estimate
            prompt_tokens = max(1, context_tokens - output_tokens)
        samples, per_sequence = request.samples, prompt_tokens + output_tokens
        kv_tokens = samples * (-(-per_sequence // block_tokens) * block_tokens)
        return Work(samples * per_sequence, samples * prompt_tokens, samples, 0.0, kv_tokens, output_tokens, basis)

    def observe(self, request: Request, usage: Usage) -> None:
        """Learn from exact usage. The template's share is left out, so that small prompts do not mislead."""
        if not usage.exact or request.prompt_tokens is not None or request.prompt_bytes <= 0 or request.samples > 1:
            return  # of several samples the usage says a sum that engines make up differently
        pair = (request.key[0], request.model)
        learnt = self._learnt.get(pair)
        if learnt is None:
            if len(self._learnt) >= PAIRS_MAX:
                return
            learnt = self._learnt[pair] = _Learnt()
        learnt.add(max(0, usage.prompt_tokens - TEMPLATE_TOKENS) / request.prompt_bytes)
